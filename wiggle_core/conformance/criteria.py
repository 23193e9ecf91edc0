"""Checks of the meaning of criteria (C1-C8): the named cases, and hostile predicates against the evaluator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NoReturn

import pytest

from wiggle_core.conformance.differential import Answer, Round, compare
from wiggle_core.conformance.plugin import QUEUE, claim, find_by_pages, ids, make_task, route
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria import evaluate
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, Predicate
from wiggle_core.criteria.wire import predicate_from_object
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import State
from wiggle_core.tasks.wire import task_from_object

CASES: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8")
)
CASE_TASKS = [task_from_object(each) for each in CASES["tasks"]]


def _predicate(case: dict[str, Any]) -> Predicate:  # Any: parsed JSON
    return TRUE if case["where"] is None else predicate_from_object(case["where"])


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["name"])
def test_named_case(store: Store, case: dict[str, Any]) -> None:  # Any: parsed JSON
    """C1-C8: find, count and claim give the expected ids of a named case, in claim order."""
    store.enqueue(CASE_TASKS)
    chosen = route(_predicate(case))
    expected: list[str] = case["expect"]
    assert ids(store.find(chosen, [State.READY], 100)) == expected, case["why"]
    assert store.count(chosen, [State.READY], 100) == len(expected)
    assert ids(claim(store, chosen, limit=2)) == expected[:2]
    assert ids(claim(store, chosen)) == expected[2:]
    assert store.count(route(TRUE), [State.READY], 100) == len(CASE_TASKS) - len(expected)


def _told(disagreements: list[Answer]) -> str:
    """The first disagreements as JSON: what a store's author needs to try one by hand."""
    return "\n".join(json.dumps(each.to_object()) for each in disagreements[:3])


@pytest.mark.parametrize("seed", range(4))
def test_hostile_predicates_agree_with_the_evaluator(store: Store, seed: int) -> None:
    """C8: find, count and claim give the evaluator's set in its order, on hostile predicates and tasks."""
    findings = compare(store, pairs=64 * 150, seed=seed, tasks=64)
    assert findings.disagreements == [], _told(findings.disagreements)
    assert findings.matched > 0


def test_hostile_claims_agree_with_the_evaluator(store: Store) -> None:
    """C8, O1: claims of any limit by hostile predicates give the evaluator's first matches, in its order."""
    hostile = Hostile(99)
    tried = Round.begin(store, hostile, 0, 48)
    for _ in range(60):
        predicate, limit = hostile.predicate(), hostile.random.randint(1, 48)
        assert tried.claimed(predicate, limit) == tried.expected(predicate)[:limit], predicate


def test_pages_of_hostile_predicates_join(store: Store) -> None:
    """C8, O1: pages found by hostile predicates, joined, are what one page would be."""
    hostile = Hostile(5)
    tried = Round.begin(store, hostile, 0, 48)
    for _ in range(25):
        predicate = hostile.predicate()
        assert ids(find_by_pages(store, route(predicate, tried.queue), 7)) == tried.expected(predicate), predicate


def test_predicates_are_decided_by_the_database(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 10: where the store says so, find, count and claim answer while the evaluator is made to raise."""
    if not store.capabilities.native_predicate:
        pytest.skip(f"{store.capabilities.name}: capability native_predicate is false")
    store.enqueue(CASE_TASKS)
    hostile = Hostile(3)
    tried = Round.begin(store, hostile, 0, 48)
    cases = [(route(_predicate(case)), case["expect"]) for case in CASES["cases"]]
    hard = [hostile.predicate() for _ in range(40)]
    cases += [(route(predicate, tried.queue), tried.expected(predicate)) for predicate in hard]
    _make_evaluator_raise(monkeypatch)
    for chosen, expected in cases:
        assert ids(store.find(chosen, [State.READY], 100)) == expected
        assert store.count(chosen, [State.READY], 100) == len(expected)
    everything = next(expected for chosen, expected in cases if chosen.predicate == TRUE)
    assert ids(claim(store, route(Task.step == "charge"))) == [each for each in everything if _step(each) == "charge"]


def _step(task_id: str) -> str:
    return next(task.step for task in CASE_TASKS if task.id == task_id)


def _make_evaluator_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the evaluator wherever it was imported to."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the evaluator was asked")

    entrances: list[Callable[..., object]] = [evaluate.matches, evaluate.compile_predicate]
    for module in [each for name, each in sys.modules.items() if name.startswith("wiggle_")]:
        for name, value in list(vars(module).items()):
            if any(value is entrance for entrance in entrances):
                monkeypatch.setattr(module, name, refuse)
    with pytest.raises(AssertionError, match="the evaluator was asked"):
        evaluate.matches(TRUE, make_task(queue=QUEUE))
