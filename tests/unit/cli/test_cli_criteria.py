"""`wiggle criteria`: check, match, explain (sections 4 and 9)."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task

from .conftest import Wiggle, write_lines

CASES: dict[str, Any] = json.loads(  # Any: the shape of the cases file
    files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8")
)
STEP = {"op": "=", "args": [{"field": "step"}, "charge"]}
WAYS = {
    "evaluator": [],
    "find on memory": ["--store", "memory://"],
    "claim on memory": ["--store", "memory://", "--claim"],
    "find on sqlite": ["--store", "sqlite://"],
    "claim on sqlite": ["--store", "sqlite://", "--claim"],
    "walk on memory": ["--store", "memory://", "--claim", "--lanes", "off"],
    "lanes on memory": ["--store", "memory://", "--claim", "--lanes", "on"],
    "walk on sqlite": ["--store", "sqlite://", "--claim", "--lanes", "off"],
    "lanes on sqlite": ["--store", "sqlite://", "--claim", "--lanes", "on"],
}


# check


def test_check_prints_every_form(wiggle: Wiggle, tmp_path: Path) -> None:
    """Section 9: exit 0 and ok, json, text and fingerprint; the three name the same criteria."""
    file = write_lines(tmp_path / "c.json", {"queue": "payments", "where": STEP})
    by_json = wiggle("criteria", "check", "--json-file", file)
    by_text = wiggle("criteria", "check", "--text", "step = 'charge'", "--queue", "payments")
    assert (by_json.code, by_json.out, by_json.err) == (0, by_text.out, "")
    assert by_json.json == {
        "ok": True,
        "json": {"queue": "payments", "where": STEP},
        "text": "step = 'charge'",
        "fingerprint": QueueCriteria("payments", Task.step == "charge").fingerprint,
    }


@pytest.mark.parametrize(
    ("content", "options", "queue"),
    [
        ({"where": STEP}, (), "default"),
        ({"where": STEP}, ("--queue", "q"), "q"),
        ({"queue": "q", "where": STEP}, ("--queue", "q"), "q"),
        ({"queue": "q"}, (), "q"),
        ({"where": None}, (), "default"),
    ],
)
def test_the_queue_comes_from_the_file_or_the_option(
    wiggle: Wiggle, tmp_path: Path, content: object, options: tuple[str, ...], queue: str
) -> None:
    """Section 9: --queue is optional."""
    ended = wiggle("criteria", "check", "--json-file", write_lines(tmp_path / "c", content), *options)
    assert (ended.code, ended.json["json"]["queue"]) == (0, queue)


def test_check_reads_stdin(wiggle: Wiggle) -> None:
    """Section 9: `-` is stdin; a byte order mark is no part of JSON."""
    ended = wiggle(
        "criteria", "check", "--json-file", "-", stdin=b"\xef\xbb\xbf" + json.dumps({"where": STEP}).encode()
    )
    assert (ended.code, ended.json["ok"]) == (0, True)


def test_everything_has_a_text(wiggle: Wiggle, tmp_path: Path) -> None:
    """Section 4: criteria without a predicate are TRUE."""
    ended = wiggle("criteria", "check", "--json-file", write_lines(tmp_path / "c", {"queue": "q"}))
    assert (ended.json["text"], ended.json["json"]) == ("TRUE", {"queue": "q"})


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_refused_cases_are_refused_with_their_path(wiggle: Wiggle, tmp_path: Path, case: dict[str, Any]) -> None:
    """C6, C8: each refused case of the public file: exit 2 and a pointer below /where."""
    ended = wiggle("criteria", "check", "--json-file", write_lines(tmp_path / "c", {"where": case["where"]}))
    assert (ended.code, ended.json["ok"], ended.err) == (2, False, "")
    assert ended.json["path"].startswith("/where")
    assert ended.json["error"]


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["name"])
def test_text_and_json_of_every_case_agree(wiggle: Wiggle, tmp_path: Path, case: dict[str, Any]) -> None:
    """Section 4: what is printed as text is read back as the same JSON and fingerprint."""
    by_json = wiggle("criteria", "check", "--json-file", write_lines(tmp_path / "c", {"where": case["where"]})).json
    by_text = wiggle("criteria", "check", "--text", by_json["text"]).json
    assert by_text["fingerprint"] == by_json["fingerprint"]
    if case["where"] is not None:
        assert by_text == by_json


NEST = '{"where": ' + '{"op":"not","args":[' * 10_000 + "1" + "]}" * 10_000 + "}"
HOSTILE = {
    "10,000 levels": NEST.encode(),
    "10,000 brackets": b"[" * 10_000,
    "a megabyte of text": json.dumps({"where": {"op": "=", "args": [{"field": "step"}, "x" * 1_000_000]}}).encode(),
    "a megabyte of blanks": b" " * 1_000_000,
    "NaN": b'{"where": {"op": "=", "args": [{"attr": "n", "type": "decimal"}, NaN]}}',
    "Infinity": b'{"where": {"op": "=", "args": [{"attr": "n", "type": "decimal"}, -Infinity]}}',
    "1e999999999999": b'{"where": {"op": "=", "args": [{"attr": "n", "type": "decimal"}, 1e999999999999]}}',
    "5,000 digits": b'{"where": {"op": "=", "args": [{"attr": "n", "type": "long"}, ' + b"9" * 5000 + b"]}}",
    "a lone surrogate": b'{"where": {"op": "=", "args": [{"field": "step"}, "\\ud800"]}}',
    "a lone surrogate as queue": b'{"queue": "\\ud800"}',
    "a control character in the queue": b'{"queue": "a\\u0007b"}',
    "an empty queue": b'{"queue": ""}',
    "a queue that is no text": b'{"queue": 5}',
    "a key twice": b'{"queue": "a", "queue": "b"}',
    "an unknown key": b'{"queue": "a", "colour": "red"}',
    "nothing said": b"{}",
    "an empty file": b"",
    "a NUL": b"\x00",
    "UTF-16": '{"queue": "a"}'.encode("utf-16"),
    "Latin-1": '{"queue": "é"}'.encode("latin-1"),
    "a list": b"[]",
    "null": b"null",
    "a bare predicate": json.dumps(STEP).encode(),
    "two documents": b'{"queue": "a"} {"queue": "b"}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_at_once(wiggle: Wiggle, tmp_path: Path, content: bytes) -> None:
    """C6, C7: exit 2 and JSON on stdout, in milliseconds, without repeating the input."""
    file = tmp_path / "c.json"
    file.write_bytes(content)
    started = process_time()
    ended = wiggle("criteria", "check", "--json-file", str(file))
    assert process_time() - started < 0.5
    assert (ended.code, ended.json["ok"], ended.err) == (2, False, "")
    assert 0 < len(ended.json["error"]) < 300
    assert len(ended.json["path"]) < 300


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "give either --json-file or --text"),
        (("--text", "TRUE", "--json-file", "c"), "give either --json-file or --text"),
        (("--json-file", "missing.json"), "missing.json: No such file or directory"),
        (("--json-file", "."), ".: Is a directory"),
        (("--text", "TRUE", "--queue", ""), "a queue needs a name"),
        (("--text", "TRUE", "--queue", "a\x1bb"), "a queue's name has no control characters"),
    ],
)
def test_check_answers_in_json_whatever_is_wrong(wiggle: Wiggle, arguments: tuple[str, ...], error: str) -> None:
    """Section 9: exit 2 and {"ok": false, "error": ...}."""
    ended = wiggle("criteria", "check", *arguments)
    assert (ended.code, ended.json["ok"], ended.json["error"]) == (2, False, error)


BAD_TEXTS = [
    "",
    " ",
    "step",
    "step = ",
    "step = 'a' AND",
    "(" * 10_000,
    "NOT " * 10_000 + "TRUE",
    "'" + "x" * 1_000_000,
    "step = \x00",
    "step = '\ud800'",
    "TRUE " * 100_000,
    "attempt = " + "9" * 5000,
    "colour = 'red'",
]


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: repr(text[:20]))
def test_bad_text_is_refused_at_once(wiggle: Wiggle, text: str) -> None:
    """Section 4, C6: what is no predicate is refused, and nothing of any size is repeated."""
    started = process_time()
    ended = wiggle("criteria", "check", "--text", text)
    assert process_time() - started < 0.5
    assert (ended.code, ended.json["ok"]) == (2, False)
    assert 0 < len(ended.json["error"]) < 1000


def test_a_file_and_an_option_that_differ_are_refused(wiggle: Wiggle, tmp_path: Path) -> None:
    """C6: of two queues none is chosen silently."""
    file = write_lines(tmp_path / "c", {"queue": "a", "where": STEP})
    ended = wiggle("criteria", "check", "--json-file", file, "--queue", "b")
    assert (ended.code, ended.json["path"]) == (2, "/queue")


# match


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    return write_lines(tmp_path / "tasks.jsonl", *CASES["tasks"])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_case_matches_as_expected(wiggle: Wiggle, tmp_path: Path, tasks: str, way: list[str]) -> None:
    """C8, O1: the public cases: the expected ids in the expected order, the refused ones refused."""
    every = CASES["cases"] + CASES["refused"]
    criteria = write_lines(tmp_path / "criteria.jsonl", *({"where": case["where"]} for case in every))
    ended = wiggle("criteria", "match", "--tasks", tasks, "--criteria", criteria, *way)
    assert (ended.code, ended.err) == (0, "")
    answers = dict(zip((case["name"] for case in every), ended.lines, strict=True))
    expected = {case["name"]: case["expect"] for case in CASES["cases"]}
    assert {name: answers[name] for name in expected} == expected
    assert all(list(answers[case["name"]]) == ["error"] for case in CASES["refused"])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_tasks_are_taken_as_given(wiggle: Wiggle, tmp_path: Path, way: list[str]) -> None:
    """Section 9: no clock, no extraction, one queue: a task of the year 9999 can be claimed, attempt as it stands."""
    late = {"id": "late", "queue": "a", "step": "s", "created_at": "9999-12-31T23:59:59Z"}
    early = {"id": "early", "queue": "b", "step": "s", "created_at": "0001-01-01T00:00:00Z", "attempt": 7}
    given = [each | {"ready_at": each["created_at"], "payload": '{"n": 1}'} for each in (late, early)]
    file = write_lines(tmp_path / "t", *given)
    criteria = write_lines(
        tmp_path / "c", {"where": None}, {"where": {"op": "=", "args": [{"field": "attempt"}, 7]}},
        {"queue": "elsewhere", "where": {"op": "isNull", "args": [{"attr": "n", "type": "long"}]}},
    )  # fmt: skip
    ended = wiggle("criteria", "match", "--tasks", file, "--criteria", criteria, *way)
    assert ended.lines == [["early", "late"], ["early"], ["early", "late"]]


@pytest.mark.parametrize("lanes", ["on", "off"])
def test_a_claim_leaves_nothing_behind(wiggle: Wiggle, tmp_path: Path, tasks: str, lanes: str) -> None:
    """Section 9: everything is released before the next criteria, so the same question has the same answer."""
    wheres = [None, {"op": "not", "args": [STEP]}] * 10
    criteria = write_lines(tmp_path / "c", *({"where": where} for where in wheres))
    way = ("--store", "sqlite://", "--claim", "--lanes", lanes)
    ended = wiggle("criteria", "match", "--tasks", tasks, "--criteria", criteria, *way)
    assert ended.lines == ended.lines[:2] * 10
    assert ended.lines[0] == CASES["cases"][0]["expect"]


def test_refused_criteria_keep_their_line(wiggle: Wiggle, tmp_path: Path, tasks: str) -> None:
    """Section 9: one line of output a line of criteria, whatever is wrong with it."""
    refused = ["", b"\xff", "nonsense", "[]", "{}", {"where": None, "expect": []}, b"\x00", NEST]
    criteria = write_lines(tmp_path / "c", *refused, {"where": None})
    ended = wiggle("criteria", "match", "--tasks", tasks, "--criteria", criteria)
    assert ended.code == 0
    assert [list(each) for each in ended.lines[:-1]] == [["error"]] * 8
    assert len(ended.lines[-1]) == 16
    assert ended.lines[5] == {"error": "/expect: criteria has no key 'expect'"}


TASK = {"id": "t", "queue": "q", "step": "s", "created_at": "2026-01-01T00:00:00Z", "ready_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "tasks.jsonl:2: an empty line; JSON is expected"),
        (b"\xff\xfe", "tasks.jsonl:2: not UTF-8 text (byte 1 of the line)"),
        (b"\x00", "tasks.jsonl:2: not JSON"),
        ("[" * 10_000, "tasks.jsonl:2: JSON nested too deeply"),
        ("x" * 100_000, "tasks.jsonl:2: more than 64 KiB of JSON"),
        ("[]", "tasks.jsonl:2: task: an object is expected"),
        (TASK | {"colour": 1}, "tasks.jsonl:2: colour: no such key"),
        (TASK | {"id": None}, "tasks.jsonl:2: id: missing"),
        (TASK | {"id": "first"}, "tasks.jsonl:2: id: 'first' stands in an earlier line too"),
        (TASK | {"priority": -1}, "tasks.jsonl:2: priority"),
        (TASK | {"attempt": 0}, "tasks.jsonl:2: attempt"),
        (TASK | {"created_at": "2026-01-01"}, "tasks.jsonl:2: created_at"),
        (TASK | {"queue": "a\nb"}, "tasks.jsonl:2: queue"),
        (TASK | {"attributes": {"X": 1}}, "tasks.jsonl:2: attributes"),
        (TASK | {"state": "DONE"}, "tasks.jsonl:2: state: only READY tasks can be matched"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_bad_task_names_file_and_line(wiggle: Wiggle, tmp_path: Path, line: object, message: str) -> None:
    """C6: tasks are checked too, before anything is answered."""
    file = write_lines(tmp_path / "tasks.jsonl", TASK | {"id": "first"}, line)
    criteria = write_lines(tmp_path / "c", {"where": None})
    for way in ([], ["--store", "memory://"]):
        ended = wiggle("criteria", "match", "--tasks", file, "--criteria", criteria, *way)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err
        assert len(ended.err.splitlines()) == 1


def test_claiming_needs_a_store(wiggle: Wiggle, tasks: str) -> None:
    """Section 9: the evaluator claims nothing."""
    ended = wiggle("criteria", "match", "--tasks", tasks, "--criteria", tasks, "--claim")
    assert (ended.code, ended.err) == (2, "wiggle: --claim needs --store\n")


# explain


def test_explain_shows_how_a_store_claims(wiggle: Wiggle, store: str) -> None:
    """N5: normal form, fingerprint, statement, binds, plan, verdict with its reason."""
    text = "NOT (step = 'it''s' OR attempt > 3)"
    found = wiggle("criteria", "explain", "--text", text, "--queue", "payments", "--store", store, "--json").json
    assert sorted(found["text"].split(" AND ")) == ["NOT attempt > 3", "NOT step = 'it''s'"]
    assert found["fingerprint"] == wiggle("criteria", "check", "--text", text).json["fingerprint"]
    assert (found["verdict"], found["store"], found["queue"]) == ("walk", "sqlite", "payments")
    assert "SELECT" in found["sql"].upper()
    assert "it's" in found["binds"]
    assert "it's" not in found["sql"]
    assert found["plan"]
    shown = wiggle("criteria", "explain", "--text", text, "--queue", "payments", "--store", store)
    assert shown.code == 0
    for part in (found["text"], found["fingerprint"], found["plan"][0], "verdict      walk"):
        assert part in shown.out


def test_explain_refuses_as_check_does(wiggle: Wiggle, store: str) -> None:
    """C6: exit 2, one line, the path in it."""
    ended = wiggle("criteria", "explain", "--text", "colour = 'red'", "--store", store)
    assert ended.code == 2
    assert "colour" in ended.err
