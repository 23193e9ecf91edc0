"""The index over lanes (N2): the same lanes as the reference evaluator, at a few evaluations a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

import pytest

from wiggle_core.conformance.plugin import make_task
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria import Not, Or, Predicate, Task, cb, compile_predicate, matches
from wiggle_core.criteria.evaluate import Evaluable, Matcher
from wiggle_core.criteria.tree import normalize
from wiggle_core.lanes.matching import LaneIndex
from wiggle_core.stores.lanes import Lane, LaneState

tenant = Task.attr("tenant", int)
total = Task.attr("total", Decimal)
vip = Task.attr("vip", bool)


def lanes_of(*predicates: Predicate) -> list[Lane]:
    """Lanes numbered from 1."""
    normal = map(normalize, predicates)
    return [
        Lane(number, "q", predicate, LaneState.OPEN, 1, "", False, 0, 0) for number, predicate in enumerate(normal, 1)
    ]


class Counting:
    """Compiles predicates, and counts how often each lane's is evaluated."""

    def __init__(self) -> None:
        self.evaluations: Counter[int] = Counter()

    def __call__(self, lane: Lane) -> Matcher:
        is_match = compile_predicate(lane.predicate)

        def counted(task: Evaluable) -> bool:
            self.evaluations[lane.id] += 1
            return is_match(task)

        return counted


def index_of(lanes: Sequence[Lane]) -> tuple[LaneIndex, Counting]:
    counting = Counting()
    return LaneIndex(lanes, counting), counting


def test_random_lanes_are_found_as_the_evaluator_finds_them() -> None:
    """N2, C8: for hostile predicates and tasks, exactly the lanes that match, each once."""
    hostile = Hostile(5)
    lanes = lanes_of(*(hostile.predicate() for _ in range(400)))
    index, _ = index_of(lanes)
    entered = 0
    for number in range(400):
        task = hostile.task(f"t{number}", "q")
        found = index.lanes_of(task)
        assert sorted(found) == [lane.id for lane in lanes if matches(lane.predicate, task)]
        entered += len(found)
    assert entered > 1_000


def test_a_thousand_tenants_cost_one_evaluation() -> None:
    """N2: lanes that differ in one constant are told apart by the task's own value."""
    lanes = lanes_of(*((tenant == number) & (total > Decimal(100)) for number in range(1_000)))
    index, counting = index_of(lanes)
    assert list(index.lanes_of(make_task(attributes={"tenant": 700, "total": Decimal(200)}))) == [701]
    assert list(index.lanes_of(make_task(attributes={"tenant": 700, "total": Decimal(5)}))) == []
    assert list(index.lanes_of(make_task(attributes={}))) == []
    assert counting.evaluations == {701: 2}


@pytest.mark.parametrize(
    "predicate",
    [
        tenant.in_([3, 4]),
        (tenant == 3) | (tenant == 4),
        ((tenant == 3) & (total > 1)) | tenant.in_([4, 5]),
        (total > 1) & ((tenant == 4) | (tenant == 3)),
    ],
    ids=str,
)
def test_equalities_of_every_branch_are_hashed(predicate: Predicate) -> None:
    """N2: a list, and a disjunction all of whose branches ask for the same reference, are found by its value."""
    index, counting = index_of(lanes_of(predicate))
    assert list(index.lanes_of(make_task(attributes={"tenant": 9, "total": Decimal(2)}))) == []
    assert not counting.evaluations
    assert list(index.lanes_of(make_task(attributes={"tenant": 4, "total": Decimal(2)}))) == [1]


@pytest.mark.parametrize("predicate", [Not(tenant == 3), (tenant == 3) | (total > 1), tenant != 3, Or(())], ids=str)
def test_what_may_hold_without_an_equality_is_tried(predicate: Predicate) -> None:
    """N2: a negated equality, or a branch without one, is no reason to leave a lane out."""
    index, counting = index_of(lanes_of(predicate))
    task = make_task(attributes={"tenant": 9, "total": Decimal(2)})
    assert list(index.lanes_of(task)) == ([1] if matches(normalize(predicate), task) else [])
    assert counting.evaluations == {1: 1}


def test_values_of_another_family_are_absent() -> None:
    """C5: true is not 1, and the text 1 is not 1, though Python would find them by the same hash."""
    index, _ = index_of(lanes_of(tenant == 1, cb.equal(vip, True)))
    assert list(index.lanes_of(make_task(attributes={"tenant": True, "vip": 1}))) == []
    assert list(index.lanes_of(make_task(attributes={"tenant": "1", "vip": "true"}))) == []
    assert list(index.lanes_of(make_task(attributes={"tenant": Decimal("1.0"), "vip": True}))) == [1, 2]
