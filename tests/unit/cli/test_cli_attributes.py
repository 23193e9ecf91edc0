"""`wiggle attributes extract` (A1-A3, section 9)."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from .conftest import Wiggle, write_lines

CASES: dict[str, Any] = json.loads(  # Any: the shape of the cases file
    files("wiggle_core.conformance").joinpath("cases/attributes.json").read_text("utf-8")
)
DECLARE = [part for each in CASES["declare"] for part in ("--declare", f"{each['name']}:{each['type']}:{each['path']}")]


def test_every_public_case(wiggle: Wiggle, tmp_path: Path) -> None:
    """C8, A3: one object a line, exactly as the public file has it."""
    contexts = write_lines(tmp_path / "contexts.jsonl", *(case["context"] for case in CASES["cases"]))
    ended = wiggle("attributes", "extract", *DECLARE, "--contexts", contexts)
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == [case["expect"] for case in CASES["cases"]]


def test_contexts_from_stdin(wiggle: Wiggle) -> None:
    """Section 9: `-` is stdin; a path may hold a colon, and a last line needs no end."""
    ended = wiggle("attributes", "extract", "--declare", "n:long:a:b", "--contexts", "-", stdin=b'{"a:b": 1}\r\n{}')
    assert ended.lines == [{"n": 1}, {}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "contexts.jsonl:2: an empty line; JSON is expected"),
        (b"\xff", "contexts.jsonl:2: not UTF-8 text (byte 1 of the line)"),
        ("{'n': 1}", "contexts.jsonl:2: payload: no JSON"),
        ("{} {}", "contexts.jsonl:2: payload: no JSON"),
        ("[" * 10_000, "contexts.jsonl:2: payload: nested too deeply"),
        (b"\x00", "contexts.jsonl:2: payload: no JSON"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_bad_context_names_file_and_line(wiggle: Wiggle, tmp_path: Path, line: object, message: str) -> None:
    """A context that is no JSON ends the command with code 2; the lines before it are answered."""
    contexts = write_lines(tmp_path / "contexts.jsonl", '{"n": 5}', line, '{"n": 6}')
    started = process_time()
    ended = wiggle("attributes", "extract", "--declare", "n:long:n", "--contexts", contexts)
    assert process_time() - started < 0.5
    assert (ended.code, ended.lines) == (2, [{"n": 5}])
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_line_beyond_all_measure_is_refused(wiggle: Wiggle, tmp_path: Path) -> None:
    """A file without line ends must not be read into memory whole."""
    contexts = write_lines(tmp_path / "contexts.jsonl", b'"' + b"x" * (17 * 1024 * 1024) + b'"')
    ended = wiggle("attributes", "extract", "--declare", "n:long:n", "--contexts", contexts)
    assert (ended.code, ended.out) == (2, "")
    assert "contexts.jsonl:1: a line of more than 16 MiB" in ended.err


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (["n"], "--declare 'n': NAME:TYPE:PATH is expected"),
        (["n:long"], "--declare 'n:long': NAME:TYPE:PATH is expected"),
        (["n:LONG:n"], "no type 'LONG'; there are string, long, decimal, boolean, instant"),
        (["n:int:n"], "no type 'int'"),
        (["N:long:n"], "'N' is no attribute name"),
        (["n:long:a..b"], "has an empty segment"),
        (["n:long:a", "n:long:b"], "'n' is declared twice"),
        ([f"n{index}:long:a" for index in range(17)], "17 attributes; a workflow declares at most 16"),
        (["n" * 1_000_000 + ":long:n"], "is no attribute name"),
        ([], "Missing option '--declare'"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_bad_declaration_is_refused(wiggle: Wiggle, declared: list[str], message: str) -> None:
    """A1: exit 2 and one line with what was wrong."""
    options = [part for each in declared for part in ("--declare", each)]
    ended = wiggle("attributes", "extract", *options, "--contexts", "-")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err) < 400
