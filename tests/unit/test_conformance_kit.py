"""The kit itself: nothing is lost on the way to an adopter; what it generates is hostile, checked and repeatable."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wiggle_core.conformance as kit
from wiggle_core.conformance import __main__ as command
from wiggle_core.conformance import (
    attributes,
    claiming,
    criteria,
    documents,
    faults,
    heads,
    heads_moving,
    history,
    lanes,
    lanes_audit,
    lanes_changing,
    lanes_faults,
    lanes_filling,
    lanes_openers,
    leases,
    machine,
    processes,
    racing,
    sweeping,
)
from wiggle_core.conformance.differential import compare
from wiggle_core.conformance.lane_saboteurs import ForgetsOfManyLanes
from wiggle_core.conformance.plugin import make_task
from wiggle_core.conformance.reach import LEAF_CLASSES, VALUE_CLASSES, Reach, leaves
from wiggle_core.conformance.strategies import Hostile, same_value
from wiggle_core.criteria.check import check
from wiggle_core.criteria.wire import predicate_from_object, predicate_to_object
from wiggle_core.errors import UnknownScheme
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import ClaimRequest, Route, Store
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskRecord
from wiggle_core.tasks.wire import task_from_object, task_to_object

MODULES = (
    *(attributes, claiming, criteria, documents, faults, heads, heads_moving, history, lanes, lanes_audit),
    *(lanes_changing, lanes_filling, lanes_faults, lanes_openers, leases, machine, processes, racing, sweeping),
)


def _checks(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


def test_every_check_reaches_the_adopter() -> None:
    """Style: one star-import brings every check; two of one name would hide each other."""
    names = [name for module in MODULES for name in _checks(module)]
    assert len(names) == len(set(names)) > 60
    assert set(kit.__all__) == {*names, "clock", "headed", "laned", "open_handle", "store"}
    assert all(getattr(kit, name) is check for module in MODULES for name, check in _checks(module).items())


def test_every_check_names_its_rule() -> None:
    """Style: each check's docstring is one sentence of the contract that begins with the rule's id."""
    rule = re.compile(r"(?:[CAOLN][1-8](?:-[CL][1-8])?(?:, )?|Section \d+(?:, )?)+: \S.*\.", re.DOTALL)
    for module in MODULES:
        for name, each in _checks(module).items():
            assert rule.fullmatch(each.__doc__ or ""), f"{name}: {each.__doc__}"


def test_the_kit_knows_no_store_by_name() -> None:
    """Style: what is asked of a store depends on its capabilities, never on its name."""
    for module in MODULES:
        source = Path(str(module.__file__)).read_text("utf-8")
        source = re.sub(r"\bstores\.memory import MemoryStore|\bMemoryStore\(", "", source)  # the reference store
        assert not re.search(r"(?i)sqlite|postgres|mysql|maria|oracle|mssql|cassandra|memory", source), module.__name__


# What is generated


def test_the_same_seed_gives_the_same() -> None:
    """Section 10: a disagreement can be found again by its seed."""
    first, second, other = Hostile(7), Hostile(7), Hostile(8)
    drawn = [(each.task("t", "q"), [each.predicate() for _ in range(20)]) for each in (first, second, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_generated_predicates_are_valid_and_cross_the_wire() -> None:
    """C6: what is generated passes the checks, and its JSON form reads back as the same predicate."""
    hostile = Hostile(1)
    for _ in range(300):
        predicate = hostile.predicate()
        assert check(predicate) == predicate
        assert predicate_from_object(json.loads(json.dumps(predicate_to_object(predicate)))) == predicate


def test_generated_tasks_are_valid_and_cross_the_wire() -> None:
    """C7: what is generated is within the bounds of tasks, and its JSON form reads back as the same task."""
    hostile = Hostile(2)
    for number in range(200):
        task = hostile.task(f"t{number}", hostile.queue(number))
        again = task_from_object(json.loads(json.dumps(task_to_object(task))))
        assert again == task
        assert all(same_value(again.attributes[name], value) for name, value in task.attributes.items())


def test_generated_leaves_meet_every_class_of_values() -> None:
    """C8: leaves of each kind meet values of each class, and hold for some and not for others."""
    hostile, reach = Hostile(3), Reach()
    tasks = [hostile.task(f"t{number}", "q") for number in range(60)]
    for _ in range(400):
        reach.note(hostile.predicate(), tasks)
    assert reach.missed() == []


def test_reach_tells_what_was_missed() -> None:
    """C8: a class counts as met only when a leaf held and another did not."""
    reach = Reach()
    assert reach.missed() == [*VALUE_CLASSES, *LEAF_CLASSES]
    hostile = Hostile(4)
    predicate = hostile.leaf()
    reach.note(predicate, [hostile.task("t", "q")])
    assert reach.missed() == [*VALUE_CLASSES, *LEAF_CLASSES]


def test_leaves_are_found_in_every_nest() -> None:
    """Section 4: the leaves of a tree, left to right, whatever connects them."""
    hostile = Hostile(5)
    a, b, c = hostile.leaf(), hostile.leaf(), hostile.leaf()
    assert list(leaves(~(a & ~(b | c)) | a)) == [a, b, c, a]


# The differential test


class _Forgetful(MemoryStore):
    """Finds all but the last match, and claims in the wrong order."""

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        return super().find(route, states, limit, after)[:-1]

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return super().claim(request)[::-1]


def test_the_reference_store_agrees() -> None:
    """C8: on the reference store no answer differs, and as many pairs are tried as were asked for."""
    findings = compare(MemoryStore(), pairs=5_000, seed=1, tasks=32)
    assert findings.disagreements == []
    assert (findings.pairs, findings.predicates, findings.claims) == (5_024, 157, 20)


def test_a_disagreement_is_told_in_full() -> None:
    """C8: an answer that differs is kept with what was missing and what was surplus, ready for JSON."""
    findings = compare(_Forgetful(), pairs=5_000, seed=1, tasks=32)
    told = [each.to_object() for each in findings.disagreements]
    assert {each["by"] for each in told} == {"find", "claim"}
    lost = next(each for each in told if each["by"] == "find")
    assert lost["missing"]
    assert lost["surplus"] == []
    turned = next(each for each in told if each["by"] == "claim")
    assert (turned["missing"], turned["surplus"]) == ([], [])
    assert turned["expected"] != turned["got"]
    assert json.loads(json.dumps(told)) == told


def _run_on(monkeypatch: pytest.MonkeyPatch, store: Store) -> int:
    def open_scratch(url: str, *, clock: Clock | None = None) -> Store:
        return store

    monkeypatch.setattr(command, "open_scratch", open_scratch)
    return command.main(["differential", "--store", "any://", "--pairs", "5000", "--tasks", "32"])


def test_the_command_reports_agreement(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Section 10: the command exits with 0 when every pair agreed."""
    assert _run_on(monkeypatch, MemoryStore()) == 0
    assert re.search(r"disagreements +0\n", capsys.readouterr().out)


def test_the_command_reports_disagreement(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Section 10: the command exits with 1 and prints the first disagreements as JSON when a pair did not agree."""
    assert _run_on(monkeypatch, _Forgetful()) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(shown) == command.SHOWN


def test_the_command_refuses_an_unknown_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Style: a store that cannot be opened is one clear line and exit code 2, no traceback."""

    def open_scratch(url: str) -> Store:
        raise UnknownScheme("any", "no store serves any://")

    monkeypatch.setattr(command, "open_scratch", open_scratch)
    assert command.main(["differential", "--store", "any://"]) == 2
    assert capsys.readouterr().err == "no store serves any://\n"


# Lanes


class _Laneless(MemoryStore):
    """Keeps its lanes to itself."""

    @property
    def lanes(self) -> Any:  # Any: None, where the store below it has lanes
        return None


def test_claims_by_lanes_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """N1, C8: with `--lanes` each predicate that is tried by a claim is tried by one through its lane, and no lane is
    left behind; a store without lanes is refused."""
    store = MemoryStore()
    findings = compare(store, pairs=5_000, seed=1, tasks=32, by_lanes=True)
    assert findings.disagreements == []
    assert findings.by_lanes == findings.claims == 20
    assert store.lanes.read(0).lanes == ()
    monkeypatch.setattr(command, "open_scratch", lambda url: _Laneless())
    assert command.main(["differential", "--lanes", "--store", "any://"]) == 2
    assert capsys.readouterr().err == "the store memory has no lanes\n"


def test_a_lane_that_disagrees_is_told() -> None:
    """N1: an answer by a lane that differs is told as one, whatever the walk answered."""
    store = ForgetsOfManyLanes()
    findings = compare(store, pairs=5_000, seed=1, tasks=32, by_lanes=True)
    assert {answer.by for answer in findings.disagreements} == {"claim by lane"}


def test_the_audit_of_lanes_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """N1, N3: the command exits with 0 and prints what was done, leaving the store as empty as it was; with 1 when it
    found something."""
    store = MemoryStore()
    monkeypatch.setattr(command, "open_store", lambda url: store)
    assert command.main(["lanes", "--store", "any://", "--seconds", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^findings +0$", shown, re.MULTILINE)
    assert re.search(r"^tasks by lane +[1-9]", shown, re.MULTILINE)
    assert (store.slices(), store.lanes.read(0).lanes, store.audit()) == ([], (), [])
    monkeypatch.setattr(command, "open_store", lambda url: ForgetsOfManyLanes())
    assert command.main(["lanes", "--store", "any://", "--seconds", "1"]) == 1


def test_the_audit_of_lanes_wants_an_empty_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Style: a store with tasks of somebody's, or without lanes, is left alone: one line, exit code 2."""
    used = MemoryStore()
    used.enqueue([make_task("t")])
    for store in (used, _Laneless()):
        monkeypatch.setattr(command, "open_store", lambda url, store=store: store)
        assert command.main(["lanes", "--store", "any://"]) == 2
        assert capsys.readouterr().err == "a store with lanes is needed, and an empty one\n"
    assert used.get("t") is not None
