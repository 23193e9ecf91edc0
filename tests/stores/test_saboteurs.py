"""Wrong stores are caught: each saboteur fails a check of the kit that names the rule it breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wiggle_core.conformance as kit
from tests.stores import sqlite_saboteurs
from wiggle_core.conformance.contract import RULES, read_check
from wiggle_core.conformance.lanes_audit import Upheaval, run_in_threads
from wiggle_core.conformance.sabotage import CONTROLS, SABOTEURS
from wiggle_core.conformance.saboteurs import Saboteur

ROOT = Path(__file__).parents[2]
ALL = (*SABOTEURS, *sqlite_saboteurs.SABOTEURS)


def _run(*options: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wiggle_core.conformance", "saboteurs", "--first", *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Any]:  # Any: parsed JSON
    """What the command says of everyone. One run for all: most of it is the beginning and the end."""
    done = _run("--json", "--module", sqlite_saboteurs.__name__)
    assert done.stdout.startswith("["), done.stderr
    return {each["saboteur"]: each for each in json.loads(done.stdout)}


@pytest.mark.parametrize("saboteur", ALL, ids=lambda saboteur: saboteur.name)
def test_a_saboteur_is_caught(verdicts: dict[str, Any], saboteur: Saboteur) -> None:  # Any: as above
    """Issue 4: a check fails, its docstring names the rule that is broken, and it failed by its own assertion."""
    verdict = verdicts[saboteur.name]
    assert verdict["failed"], f"{saboteur.rule}: not caught by {verdict['passed']}"
    assert all(saboteur.rule in read_check(getattr(kit, name)).rules for name in verdict["failed"])
    assert verdict["is_right"]


def test_right_stores_are_not_caught(verdicts: dict[str, Any]) -> None:  # Any: as above
    """Issue 4: the stores without a mistake fail no check that anybody was tried with, and pass all that caught."""
    passed: set[str] = set()
    for control in CONTROLS:
        assert verdicts[control.name]["failed"] == []
        passed.update(verdicts[control.name]["passed"])
    assert {name for each in verdicts.values() for name in each["failed"]} <= passed


def test_saboteurs_break_what_the_contract_promises() -> None:
    """Issue 4: there is a saboteur for each rule that a store can break; names tell them apart."""
    names = [saboteur.name for saboteur in ALL]
    assert len(names) == len(set(names))
    # A3 is the engine's: what does not fit never reaches a store. So is N2, which lanes a task enters.
    assert set(RULES) - {saboteur.rule for saboteur in ALL} == {"A3", "N2"}


WRONG_IN_UPHEAVAL = (
    *("forgets lanes at a retry", "has no ready_no", "checks the epoch without holding it", "checks no epoch"),
    *("reads the epoch in the locking statement", "fills before the old epoch is drained"),
)


@pytest.mark.parametrize("name", WRONG_IN_UPHEAVAL)
def test_the_audit_of_lanes_finds(name: str, tmp_path: Path) -> None:
    """N1, N3: what would lose rows in life is found by the audit while lanes open and close, too.

    Which threads meet is chance: on a busy machine the rarest of these mistakes shows in most runs, not in each.
    """
    [saboteur] = [each for each in SABOTEURS if each.name == name]
    tried = []
    for seed in range(1, 21):
        upheaval = Upheaval(seconds=3, seed=seed, producers=4, claimers=4, interval=0.03)
        tally = run_in_threads(saboteur.make(tmp_path), upheaval)
        if tally.findings:
            return
        tried.append(tally.counts)
    pytest.fail(f"not found in {len(tried)} runs: {tried}")


def test_who_does_nothing_wrong_is_told(tmp_path: Path) -> None:
    """Issue 4: a saboteur that no check catches is named, and the command exits with 1."""
    (tmp_path / "harmless.py").write_text(
        "from wiggle_core.conformance.saboteurs import Saboteur, in_memory\n"
        "from wiggle_core.stores.memory import MemoryStore\n"
        "SABOTEURS = [Saboteur('harmless', 'L7', in_memory(MemoryStore))]\n"
    )
    done = _run("--module", "harmless", "--only", "harmless", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told, *controls = done.stdout.splitlines()
    assert told.startswith("harmless")
    assert "L7  NOT CAUGHT by 3 checks" in told
    assert [each.partition("  ")[0] for each in controls] == [each.name for each in CONTROLS]
