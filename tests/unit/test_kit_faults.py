"""`Faulty` raises where it was armed, once each, and is otherwise the store inside."""

from __future__ import annotations

import pytest

from wiggle_core.conformance.faults import LOST, REFUSED, UNANSWERED, Faulty
from wiggle_core.conformance.laned import new_lane
from wiggle_core.conformance.plugin import ALL, make_task
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import AmbiguousStoreError, TransientStoreError
from wiggle_core.stores.lanes import LaneState
from wiggle_core.stores.memory import CAPABILITIES, MemoryStore
from wiggle_core.tasks.task import State


def test_a_fault_strikes_before_or_after_the_work() -> None:
    """L6: before, nothing was applied; after, everything was and only the answer is lost."""
    inside = MemoryStore()
    faulty = Faulty(inside)
    store = faulty.as_store()
    faulty.arm("enqueue", REFUSED, LOST, UNANSWERED)
    with pytest.raises(TransientStoreError):
        store.enqueue([make_task("a")])
    with pytest.raises(AmbiguousStoreError):
        store.enqueue([make_task("a")])
    assert inside.get("a") is None
    with pytest.raises(AmbiguousStoreError):
        store.enqueue([make_task("a")])
    assert inside.get("a") is not None
    assert store.enqueue([make_task("b")]) == {"b"}
    assert faulty.struck == {"enqueue": 3}


def test_other_methods_are_the_stores_own() -> None:
    """Style: a fault point concerns one method; everything else is answered by the store inside."""
    faulty = Faulty(MemoryStore())
    store = faulty.as_store()
    faulty.arm("claim", REFUSED)
    assert store.enqueue([make_task("a")]) == {"a"}
    assert store.count(ALL, [State.READY], 10) == 1
    assert store.capabilities == CAPABILITIES
    assert not faulty.struck


def test_lanes_fail_where_they_are_told_to() -> None:
    """N3: a fault point of a method of lanes has its own name, and somebody else acts before the error is raised."""
    inside = MemoryStore()
    faulty = Faulty(inside)
    lanes = faulty.lanes
    assert lanes is not None
    faulty.arm("lanes.open", UNANSWERED)
    faulty.meanwhile = lambda: inside.lanes.finish([1])
    assert faulty.is_armed("lanes.open")
    with pytest.raises(AmbiguousStoreError):
        lanes.open([new_lane(Task.step == "s")])
    assert [lane.state for lane in lanes.read(0).lanes] == [LaneState.OPEN]
    assert not faulty.is_armed("lanes.open")
    assert faulty.struck == {"lanes.open": 1}
