"""Commands run in this process, as `wiggle` runs them: arguments in, exit code and output back."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wiggle_core.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # Any: JSON of any shape
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:  # Any: as above
        return [json.loads(line) for line in self.out.splitlines()]


Wiggle = Callable[..., Ended]


@pytest.fixture(autouse=True)
def clean_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder and no settings of the developer's."""
    for name in [name for name in os.environ if name.startswith("WIGGLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def wiggle(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Wiggle:
    """Runs `wiggle` with arguments and bytes on stdin. No command may ever show a traceback."""

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ended(code, out, err)

    return run


@pytest.fixture
def store(wiggle: Wiggle, clean_place: Path) -> str:
    """The URL of an empty store that every command opens anew."""
    url = f"sqlite:///{clean_place}/tasks.db"
    assert wiggle("db", "upgrade", "--store", url).code == 0
    return url


def write_lines(path: Path, *lines: object) -> str:
    """A file of JSON lines; text and bytes go in as they are. Returns its name."""
    raw = [line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
           for line in lines]  # fmt: skip
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return str(path)
