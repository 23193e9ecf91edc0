"""Checks of the meaning of criteria (C1-C8): the named cases, and hostile predicates against the evaluator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from importlib.resources import files
from typing import Any, NoReturn

import pytest

from wiggle_core.conformance.differential import Answer, Round, compare
from wiggle_core.conformance.plugin import (
    QUEUE,
    are_first,
    claim,
    enqueue_all,
    find_by_pages,
    ids,
    in_order,
    make_task,
    route,
)
from wiggle_core.conformance.strategies import TEXTS, Hostile
from wiggle_core.criteria import evaluate
from wiggle_core.criteria.check import MAX_JSON_BYTES, MAX_VALUES
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.instants import EPOCH
from wiggle_core.criteria.tree import TRUE, AttributeReference, In, Or, Predicate, Value, ValueType
from wiggle_core.criteria.wire import predicate_from_object, predicate_to_object
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import State
from wiggle_core.tasks.wire import task_from_object

CASES: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8")
)
CASE_TASKS = [task_from_object(each) for each in CASES["tasks"]]


def case_predicate(case: dict[str, Any]) -> Predicate:  # Any: parsed JSON
    """What a named case asks for."""
    return TRUE if case["where"] is None else predicate_from_object(case["where"])


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["name"])
def test_named_case(store: Store, case: dict[str, Any]) -> None:  # Any: parsed JSON
    """C1-C8: find, count and claim give the expected ids of a named case, in claim order."""
    store.enqueue(CASE_TASKS)
    chosen = route(case_predicate(case))
    expected: list[str] = case["expect"]
    assert ids(store.find(chosen, [State.READY], 100)) == expected, case["why"]
    assert store.count(chosen, [State.READY], 100) == len(expected)
    first = claim(store, chosen, limit=2)
    assert are_first(store, ids(first), expected, 2)
    assert in_order(first + claim(store, chosen)) == expected
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
        assert are_first(store, tried.claimed(predicate, limit), tried.expected(predicate), limit), predicate


def test_hostile_claims_over_several_queues_agree(store: Store) -> None:
    """C8, O1: one claim over several queues, each by a hostile predicate, gives the evaluator's matches, merged."""
    hostile = Hostile(42)
    tried = [Round.begin(store, hostile, serial, 24) for serial in range(4)]
    for _ in range(40):
        asked = [(each, hostile.predicate()) for each in tried]
        limit = hostile.random.randint(1, 96)
        claimed = claim(store, *(route(predicate, each.queue) for each, predicate in asked), limit=limit)
        wanted = [task for each, predicate in asked for task in each.tasks if evaluate.matches(predicate, task)]
        assert are_first(store, ids(claimed), in_order(wanted), limit), asked
        tried[0].laned.release(claimed)


MAKERS: dict[ValueType, Callable[[int], Value]] = {
    ValueType.STRING: str,
    ValueType.LONG: int,
    ValueType.DECIMAL: lambda number: Decimal(number) / 8,
    ValueType.INSTANT: lambda number: EPOCH + timedelta(days=number),
}
"""A different value of each type for each number."""


def test_texts_are_told_apart_exactly(store: Store) -> None:
    """C4: of texts that differ in case, blanks, accents, form or a control character only, each equals itself alone,
    and ranges divide them by code point."""
    texts = sorted(set(TEXTS))
    tasks = [make_task(f"{number:04d}", step=text, attributes={"a": text}) for number, text in enumerate(texts)]
    enqueue_all(store, tasks)
    for number, text in enumerate(texts):
        for reference in (Task.step, Task.attr("a", str)):
            assert ids(store.find(route(reference == text), [State.READY], 1_000)) == [f"{number:04d}"], ascii(text)
            below = store.count(route((reference < text) | (reference > text + "\u0001")), [State.READY], 1_000)
            assert below == sum(each < text or each > text + "\u0001" for each in texts), ascii(text)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_longest_list_tests_every_value(store: Store, kind: ValueType) -> None:
    """C3, C7: a list of 200 values, and its negation, test each of them, whatever their order."""
    values = [MAKERS[kind](number) for number in range(MAX_VALUES + 40)]
    tasks = [make_task(f"{number:04d}", attributes={"a": value}) for number, value in enumerate(values)]
    enqueue_all(store, tasks)
    chosen = In(AttributeReference("a", kind), tuple(values[20 : MAX_VALUES + 20][::-1]))
    assert ids(store.find(route(chosen), [State.READY], 1000)) == ids(tasks[20 : MAX_VALUES + 20])
    assert ids(store.find(route(~chosen), [State.READY], 1000)) == ids(tasks[:20] + tasks[MAX_VALUES + 20 :])


def test_the_largest_claim_is_answered(store: Store) -> None:
    """C7: a claim over 32 criteria, each with lists as long and as many as 64 KiB hold, is answered in order."""
    lists = [Task.attr(f"n{each}", int).in_(range(each, each + MAX_VALUES)) for each in range(80)]
    largest = Or((Task.step == "charge", *lists))
    assert MAX_JSON_BYTES / 2 < len(json.dumps(predicate_to_object(largest), separators=(",", ":"))) < MAX_JSON_BYTES
    queues = [f"queue {number:02d}" for number in range(32)]
    tasks = [make_task(queue=queue, priority=number % 3) for number, queue in enumerate(queues)]
    tasks += [make_task(queue=queue, step="none", attributes={"n79": 278}) for queue in queues]
    enqueue_all(store, tasks + [make_task(queue=queue, step="none", attributes={"n79": 279}) for queue in queues])
    assert ids(claim(store, *(route(largest, queue) for queue in queues))) == in_order(tasks)


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
    cases = [(route(case_predicate(case)), case["expect"]) for case in CASES["cases"]]
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
