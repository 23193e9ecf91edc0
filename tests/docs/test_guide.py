"""The guide "Add a database", followed as it stands in a clean environment.

The stranger's store is written from the finished example, method by method: each row of the guide's table adds the
methods that it names, and then its command has to be green.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wiggle_core.stores.store import Store

if TYPE_CHECKING:
    from tests.conftest import CleanEnvironment

GUIDE = Path(__file__).parents[2] / "docs" / "add-a-database.md"
TEXT = GUIDE.read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (`\w+`(?: `\w+`)*) \| `(pytest[^`]*)` \|$", re.MULTILINE)
_WRITTEN = """

from wiggle_store_journal.store import JournalStore


def _open(self: ShelfStore, url: URL, clock: Clock | None = None) -> None:
    JournalStore.__init__(self, url.database, 30, clock)


ShelfStore.__init__ = _open
for _name in {names}:
    setattr(ShelfStore, _name, vars(JournalStore)[_name])
"""


def blocks(language: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(TEXT) if found == language]


def _commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def _rows() -> list[tuple[list[str], str]]:
    return [(re.findall(r"\w+", names), command) for names, command in _ROW.findall(TEXT)]


def _follow(environment: CleanEnvironment, commands: list[str], folder: Path) -> Path:
    """Run commands one by one as a shell would, `cd` included; the folder where they end. `# fails` means it has to."""
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[0] == "cd":
            folder /= words[1]
            continue
        if words[:2] == ["pip", "install"] and "--editable" not in words:
            continue  # it is installed from this checkout; the index has another version, or none
        done = environment.run(words, folder)
        has_to_fail = "# fails" in command
        assert (done.returncode == 0) != has_to_fail, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return folder


@pytest.fixture(scope="module")
def shelf(clean_environment: CleanEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the guide's first block leaves it."""
    return _follow(clean_environment, _commands(blocks("console")[0]), tmp_path_factory.mktemp("guide"))


def test_the_template_fails_for_the_right_reason(clean_environment: CleanEnvironment, shelf: Path) -> None:
    """Section 6: a store that is not written yet fails every check, told by the sentence of what is missing."""
    done = clean_environment.run(["pytest", "-p", "no:cacheprovider", "--tb=no", "-rA"], shelf)
    reasons = [line for line in done.stdout.splitlines() if line.startswith(("ERROR ", "FAILED ", "PASSED "))]
    assert len(reasons) > 80
    # The first call of nearly every check creates the schema; a few skip, and the first call is the one that closes.
    first = re.compile(r"NotImplementedError: (migrate: create or upgrade|close: release every)")
    assert [line for line in reasons if not first.search(line)] == []


def test_its_rows_name_every_method() -> None:
    """Section 6: whoever has followed all rows has written the whole protocol, but for lanes, which come later."""
    named = [name for names, _ in _rows() for name in names]
    wanted = {name for name in vars(Store) if not name.startswith("_")} - {"capabilities", "lanes"}
    assert len(named) == len(set(named))
    assert set(named) == wanted


def test_the_table_leads_to_a_green_kit(clean_environment: CleanEnvironment, shelf: Path) -> None:
    """Section 6: each row's command is green with the methods of the rows so far, and the last runs the whole kit."""
    store, written = shelf / "src" / "wiggle_store_shelf" / "store.py", [*_rows()]
    template, names = store.read_text(encoding="utf-8"), ["capabilities"]
    for more, command in written:
        names += more
        store.write_text(template + _WRITTEN.format(names=names), encoding="utf-8")
        _follow(clean_environment, [command], shelf)
    assert written[-1][1] == "pytest"


def test_the_finished_store_is_proven(clean_environment: CleanEnvironment, tmp_path: Path) -> None:
    """Section 9: the commands of the guide's proof work on a finished store."""
    [proof] = blocks("console")[1:]
    commands = [command for command in _commands(proof) if command != "pytest"]  # that one is the table's last
    assert len(commands) == 4
    _follow(clean_environment, commands, tmp_path)


@pytest.mark.parametrize("code", blocks("python"), ids=["evaluator", "SQL writer", "lanes"])
def test_python_block_runs(clean_environment: CleanEnvironment, code: str, tmp_path: Path) -> None:
    """Section 1: the guide's code is executed; a block is a whole program, and warnings are errors."""
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    done = clean_environment.run(["python", "-W", "error", script], tmp_path)
    assert done.returncode == 0, done.stderr
