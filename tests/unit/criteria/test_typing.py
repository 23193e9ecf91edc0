"""The static types of the Python spelling: wrong-typed expressions are refused by both checkers (section 4)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "typing"
RIGHT, WRONG = SAMPLES / "right.py", SAMPLES / "wrong.py"

Complaints = set[tuple[str, int]]
"""File name and line of each error."""


def run(*arguments: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert answer.returncode == 1, f"errors were to be found: {answer.stdout}{answer.stderr}"
    return answer.stdout


def mypy() -> Complaints:
    errors = re.findall(r"(\w+\.py):([0-9]+): error:", run("mypy", "--strict", "--no-pretty", str(RIGHT), str(WRONG)))
    return {(name, int(line)) for name, line in errors}


def pyright() -> Complaints:
    report = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(SAMPLES)))
    assert report["summary"]["filesAnalyzed"] == 2
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_types_are_accepted_and_wrong_ones_refused(checker: Callable[[], Complaints]) -> None:
    """Section 4: every wrong-typed line is an error of both checkers, and no right one is."""
    lines = enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
    marked = {(WRONG.name, number) for number, line in lines if line.endswith("# refused")}
    assert len(marked) > 40
    assert checker() == marked
