"""Mutation testing of what decides whether a task matches: `python -m tests.mutation` (or `make mutation`).

Runs mutmut by the settings in pyproject.toml, prints killed and total for each file, and writes every survivor to
`mutants/survivors.txt`. Fails below 90 % killed, or where a survivor has no reason in `survivors.md` yet.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

GOAL = 0.90
MUTANTS = Path("mutants")
REASONS = Path(__file__).with_name("survivors.md")
SURVIVED, KILLED_BY = (0, 33), (1, 3, 24, 36, 37, 152, 255, -9, -24, -11)
"""mutmut's exit codes: 33 is a mutant that no test reaches; a mutant killed by the clock or a crash is killed."""


class Survivor(NamedTuple):
    """A mutant that no test fails for: its file, its function, and the lines that it changes."""

    file: str
    function: str
    change: str


def main(arguments: list[str]) -> int:
    """Run mutmut, unless only the report is asked for, and report."""
    if "--report" not in arguments:
        ended = subprocess.run([sys.executable, "-m", "mutmut", "run", *arguments], check=False)
        if ended.returncode:
            print(f"mutmut ended with {ended.returncode}: the same command goes on from there")
            return 1
    killed, total = Counter[str](), Counter[str]()
    for file, name, code in _results():
        total[file] += code is not None
        killed[file] += code in KILLED_BY
        if code is not None and code not in (*KILLED_BY, *SURVIVED):
            print(f"{name} ended with an unknown code: {code}")
    survivors = sorted(_survivors())
    _print_table(killed, total)
    _write(survivors)
    unexplained = _unexplained(survivors)
    for each in unexplained:
        print(f"\nnot in {REASONS.name}: {each.file} {each.function}\n{each.change}")
    share = killed.total() / max(1, total.total())
    return int(share < GOAL or bool(unexplained))


def _results() -> Iterator[tuple[str, str, int | None]]:
    """File, name and exit code of each mutant; None for one that was not tried."""
    for path in sorted(MUTANTS.rglob("*.py.meta")):
        file = str(path.relative_to(MUTANTS)).removesuffix(".meta")
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            yield file, name, code


def _survivors() -> Iterator[Survivor]:
    difference = import_module("mutmut.mutation.diff_apply").get_diff_for_mutant
    for file, name, code in _results():
        if code in SURVIVED:
            lines = difference(name, path=file).splitlines()[3:]
            changed = [line for line in lines if line[:1] in ("-", "+")]
            yield Survivor(file, _function(name), "\n".join(changed))


def _function(name: str) -> str:
    """`Class.method` or the function, out of mutmut's name for a mutant."""
    return re.sub(r"__mutmut_\d+$", "", name.rpartition(".")[2]).replace("xǁ", "").replace("ǁ", ".").removeprefix("x_")


def _print_table(killed: Counter[str], total: Counter[str]) -> None:
    print(f"\n{'file':45} {'killed':>6} {'total':>6} {'share':>7}")
    for file in sorted(total):
        print(f"{file:45} {killed[file]:6} {total[file]:6} {killed[file] / max(1, total[file]):7.1%}")
    print(f"{'all':45} {killed.total():6} {total.total():6} {killed.total() / max(1, total.total()):7.1%}")


def _write(survivors: list[Survivor]) -> None:
    text = "".join(f"{each.file} {each.function}\n{each.change}\n\n" for each in survivors)
    (MUTANTS / "survivors.txt").write_text(text, encoding="utf-8")


def _unexplained(survivors: list[Survivor]) -> list[Survivor]:
    """Those whose new line does not stand in the list of reasons."""
    reasons = REASONS.read_text(encoding="utf-8") if REASONS.exists() else ""
    return [each for each in survivors if _as_listed(each) not in reasons]


def _as_listed(survivor: Survivor) -> str:
    """The mutant as `survivors.md` spells it, on one line: the function, and the new lines or those that are gone."""
    lines = survivor.change.splitlines()
    new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    gone = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    return f"`{survivor.function}`: `{new or f'without {gone}'}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
