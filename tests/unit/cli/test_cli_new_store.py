"""`wiggle new-store` and `wiggle store-contract`: what a stranger begins with."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

import wiggle_core.conformance as kit
from wiggle_core.conformance.contract import RULES, Contract, add_keywords, read_check
from wiggle_core.stores.lanes import Lanes
from wiggle_core.stores.store import Store, StorePlugin

from .conftest import Wiggle

MODULE = "wiggle_store_shelf"
MEMBERS = [name for name in vars(Store) if not name.startswith("_")]


@pytest.fixture
def package(wiggle: Wiggle, clean_place: Path) -> Path:
    """The folder of a new store `shelf`."""
    assert wiggle("new-store", "shelf").code == 0
    return clean_place / "wiggle-store-shelf"


@pytest.fixture
def modules(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its modules can be imported while a test runs."""
    monkeypatch.syspath_prepend(package / "src")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]


# new-store


def test_every_file_is_there_and_has_no_hole(wiggle: Wiggle, package: Path) -> None:
    """Section 9: the command names the files that it wrote; no placeholder is left in one."""
    told = wiggle("new-store", "attic", "--directory", "deep/down", "--json").json
    assert told["directory"] == "deep/down"
    found = sorted(str(each.relative_to("deep/down")) for each in Path("deep/down").rglob("*") if each.is_file())
    assert told["files"] == found
    texts = [each.read_text(encoding="utf-8") for each in package.rglob("*") if each.is_file()]
    assert len(texts) == len(found) == 7
    assert not any("$" in text for text in texts)


def test_its_entry_point_names_its_module(package: Path) -> None:
    """Section 6: the entry point's name is the scheme, and its value a module that is there."""
    settings = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["wiggle.stores"] == {"shelf": MODULE}
    assert settings["project"]["name"] == "wiggle-store-shelf"
    assert (package / "src" / MODULE / "__init__.py").exists()


@pytest.mark.usefixtures("modules")
def test_its_store_has_the_methods_of_the_protocol() -> None:
    """Section 6: each method of the protocol is there with the same signature, and says what it has to do."""
    store = importlib.import_module(f"{MODULE}.store").ShelfStore
    assert {name for name in vars(store) if not name.startswith("_")} == set(MEMBERS)
    assert store(make_url("shelf:///x")).lanes is None
    for name in set(MEMBERS) - {"capabilities", "lanes"}:
        assert inspect.signature(getattr(store, name)) == inspect.signature(getattr(Store, name)), name
        source = inspect.getsource(getattr(store, name))
        assert re.search(rf"raise NotImplementedError\(\s*['\"]{name}: \w", source), source


@pytest.mark.usefixtures("modules")
def test_its_module_is_a_plugin() -> None:
    """Section 6: the module has what the registry asks of a plug-in, and imports no store before it is opened."""
    plugin = importlib.import_module(MODULE)
    assert f"{MODULE}.store" not in sys.modules
    for name in (*StorePlugin.__annotations__, "open_store", "open_scratch"):
        assert hasattr(plugin, name)
    for name in ("open_store", "open_scratch"):
        wanted = list(inspect.signature(getattr(StorePlugin, name)).parameters.values())[1:]
        assert list(inspect.signature(getattr(plugin, name)).parameters.values()) == wanted


@pytest.mark.parametrize("name", ["", "Shelf", "my-db", "my_db", "1db", "a" * 32, "../db", "db ", "é", "a\nb"])
def test_a_name_that_is_no_scheme_is_refused(wiggle: Wiggle, clean_place: Path, name: str) -> None:
    """Section 9: exit 2, a line that says what is expected, and nothing is written."""
    ended = wiggle("new-store", "--", name)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "is no URL scheme" in ended.err
    assert list(clean_place.iterdir()) == []


def test_a_taken_scheme_is_refused(wiggle: Wiggle, clean_place: Path) -> None:
    """Section 9: two plug-ins of one scheme would hide each other."""
    ended = wiggle("new-store", "sqlite")
    assert (ended.code, list(clean_place.iterdir())) == (2, [])
    assert "is taken by wiggle-core" in ended.err


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_left_alone(wiggle: Wiggle, clean_place: Path, kind: str) -> None:
    """Section 9: an existing folder, even an empty one, or file is refused and stays as it is."""
    place = clean_place / "wiggle-store-shelf"
    if kind == "folder":
        place.mkdir()
    else:
        place.write_text("mine", encoding="utf-8")
    ended = wiggle("new-store", "shelf")
    assert (ended.code, ended.out) == (2, "")
    assert "exists: name another one with --directory" in ended.err
    assert [each.name for each in clean_place.rglob("*")] == ["wiggle-store-shelf"]


def test_a_folder_that_cannot_be_made_is_told(wiggle: Wiggle, clean_place: Path) -> None:
    """Section 9: trouble with the disk is exit 3 and one line."""
    (clean_place / "file").write_text("", encoding="utf-8")
    ended = wiggle("new-store", "shelf", "--directory", "file/below")
    assert (ended.code, ended.err.count("\n")) == (3, 1)


# store-contract


def test_every_check_names_a_rule() -> None:
    """Style: each check of the kit says which rule or section it proves, and what it promises."""
    checks = [read_check(getattr(kit, name)) for name in kit.__all__ if name.startswith("test_")]
    assert len(checks) > 80
    assert [check.name for check in checks if not check.rules or not check.promise] == []


def test_the_contract_is_printed_from_the_kit(wiggle: Wiggle) -> None:
    """Section 9: every check of the kit stands under each rule that it names, in the contract's order."""
    told = wiggle("store-contract", "--json").json
    named = {proof["check"] for proofs in told["rules"].values() for proof in proofs}
    assert named == {name for name in kit.__all__ if name.startswith("test_")}
    assert [rule for rule in told["rules"] if rule in RULES] == [rule for rule in RULES if rule not in told["unnamed"]]
    assert list(told["rules"])[:3] == ["C1", "C2", "C3"]
    proofs = {proof["check"]: proof["promise"] for proof in told["rules"]["L2"]}
    assert proofs["test_expiry_needs_the_token"].startswith("an expiry that names an earlier lease")


def test_the_contract_names_what_lanes_take(wiggle: Wiggle) -> None:
    """Section 7: every method of the `Lanes` protocol is told with its promise and how it is called."""
    told = {each["name"]: each for each in wiggle("store-contract", "--json").json["lanes"]}
    assert set(told) == {name for name in vars(Lanes) if not name.startswith("_")}
    assert told["drained"]["signature"] == "(epoch: int, timeout: float) -> bool"
    assert told["finish"]["promise"] == "Those of these lanes that are FILLING are OPEN from now on."
    assert "The `Lanes` protocol" in wiggle("store-contract").out


def test_the_contract_is_shown_to_people(wiggle: Wiggle) -> None:
    """Section 9: tables by what the rules are about, and the rules that no check names at the end."""
    shown = wiggle("store-contract").out
    for title in ("Criteria", "Order and claim", "Leases"):
        assert f"\n{title}" in f"\n{shown}"
    assert shown.splitlines()[-1].startswith(f"{len(kit.__all__) - 5} checks; rules that none of them names:")


def test_only_rules_of_the_core_go_unnamed() -> None:
    """Style: every rule that a store can break is named by a check. How attributes are declared and read is decided
    before a store sees them."""
    checks = tuple(read_check(getattr(kit, name)) for name in kit.__all__ if name.startswith("test_"))
    assert set(Contract(checks).unnamed()) <= {"A1", "A3"}


def test_docstrings_are_read() -> None:
    """Style: rules, spans of rules and sections stand before the first colon."""

    def check() -> None:
        """C1-C3, L2, Section 10: a promise
        of two lines: all of it."""

    def silent() -> None: ...

    assert read_check(check).rules == ("C1", "C2", "C3", "L2", "Section 10")
    assert read_check(check).promise == "a promise of two lines: all of it."
    assert read_check(silent).rules == ()
    assert Contract((read_check(check), read_check(silent))).by_rule().keys() == {"C1", "C2", "C3", "L2", "Section 10"}
    add_keywords(check)
    assert {"L2", "test_cli_new_store"} <= vars(check).keys()


def test_rules_and_modules_select_checks(tmp_path: Path) -> None:
    """Style: `pytest -k L2` and `pytest -k sweeping` select what they say in an adopter's own test module."""
    (tmp_path / "test_mine.py").write_text("from wiggle_core.conformance import *\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-k",
        "sweeping and L2",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    selected = re.findall(r"::(test_\w+)", done.stdout)
    assert "test_expiry_needs_the_token" in selected
    assert all(vars(getattr(kit, name)).keys() >= {"sweeping", "L2"} for name in selected)


def test_a_missing_extra_is_named() -> None:
    """Section 9: without the packages of the kit the command says what to install: exit 2, one line."""
    code = (
        "import sys; sys.modules['pytest'] = None\nfrom wiggle_core.cli import main; sys.exit(main(['store-contract']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == "wiggle: the conformance kit needs pytest: pip install 'wiggle-core[test]'\n"
