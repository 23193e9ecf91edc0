"""Checks of how lanes are filled (N1): the parts in which READY tasks are read, and rows that come late or twice."""

from __future__ import annotations

import pytest

from wiggle_core.conformance.laned import Laned, Moved, by_lane
from wiggle_core.conformance.lanes import ONE, TWO, WAYS, n, require_exact
from wiggle_core.conformance.plugin import (
    QUEUE,
    SECOND,
    START,
    ManualClock,
    claim,
    ids,
    in_order,
    make_task,
    stored,
)
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Predicate, normalize
from wiggle_core.lanes import filling
from wiggle_core.stores.lanes import LaneRow
from wiggle_core.stores.store import Cancel, GiveBack
from wiggle_core.tasks.task import OrderKey, State, TaskRecord


@pytest.mark.parametrize("part", [1, 2, 7, 50])
def test_a_lane_is_filled_part_by_part(laned: Laned, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """N1: filling reads the queue and writes rows in parts of any size, and leaves nobody out at their borders."""
    monkeypatch.setattr(filling, "PART", part)
    monkeypatch.setattr(filling, "ROWS", 3)
    laned.enqueue([make_task(priority=each % 4, attributes={"n": each % 3}) for each in range(50)])
    laned.enqueue([make_task(queue="elsewhere", attributes=ONE)])
    lanes = laned.open(n == 1, n == 2, n >= 1, n == 9, Task.step == "charge")
    few = laned.open(n == 0)
    assert [len(laned.content(lane)) for lane in (*lanes, *few)] == [17, 16, 33, 0, 50, 17]
    require_exact(laned, *lanes, *few)
    assert laned.open(n == 1, queue="elsewhere") != lanes[:1]


@pytest.mark.parametrize("matching", [(), (n == 1,), (n == 1, n == 2), (n == 9,)], ids=["all", "one", "two", "none"])
def test_ready_tasks_come_in_parts(laned: Laned, matching: tuple[Predicate, ...]) -> None:
    """N1, O1: the parts of a queue's READY tasks, joined, are those that match any of the predicates, in claim order,
    each with its number and without its payload; the end is told."""
    tasks = [make_task(priority=each % 4, attributes={"n": each % 3}, payload='"long"') for each in range(30)]
    laned.enqueue([*tasks, make_task(state=State.SCHEDULED, ready_at=START + SECOND), make_task(queue="elsewhere")])
    wanted = [task for task in tasks if not matching or any(matches(each, task) for each in matching)]
    for size in (1, 4, 15, 30, 31):
        seen = _parts(laned, [normalize(each) for each in matching], size)
        assert ids(task for task, _ in seen) == in_order(wanted), size
        assert {task.payload for task, _ in seen} <= {"null"}
        assert all(task.attributes == stored(laned.store, task.id).attributes for task, _ in seen[:3])


def _parts(laned: Laned, matching: list[Predicate], size: int) -> list[tuple[TaskRecord, int]]:
    after: OrderKey | None = None
    seen: list[tuple[TaskRecord, int]] = []
    for _ in range(100):
        part = laned.lanes.ready_tasks(QUEUE, matching, after, size)
        seen += part.tasks
        if part.last is None:
            return seen
        assert after is None or part.last > after
        after = part.last
    raise AssertionError("the parts do not end")


def test_numbers_grow_with_each_time_a_task_is_ready(laned: Laned, clock: ManualClock) -> None:
    """N1: `ready_no` is another, larger one each time a task becomes READY, whichever way."""
    laned.enqueue([make_task("t")])
    numbers: list[int] = []
    for way in WAYS.values():
        numbers.append(laned.lanes.ready_tasks(QUEUE, [], None, 10).tasks[0][1])
        [held] = claim(laned.store)
        assert way(laned, clock, held, ONE) == {"t"}
    assert numbers == sorted(set(numbers))


def test_rows_that_come_late_do_no_harm(laned: Laned) -> None:
    """N1: a filler whose part was read before its tasks were claimed, and made READY with other attributes, puts in
    rows that no claim returns."""
    laned.enqueue([make_task(f"t{each}", attributes=ONE) for each in range(6)])
    [lane] = laned.begin(n == 1)
    part = laned.lanes.ready_tasks(QUEUE, [lane.predicate], None, 10)
    held = claim(laned.store)
    moved: list[Moved] = [(GiveBack(task.lease, TWO), task) for task in held[:2]]
    moved += [(GiveBack(task.lease, ONE), task) for task in held[2:4]]
    laned.apply(moved)
    laned.store.apply([Cancel(held[4].id)])
    laned.lanes.fill([LaneRow(lane.id, task.order_key, ready_no) for task, ready_no in part.tasks])
    laned.lanes.finish([lane.id])
    assert laned.content(lane) == ids(held[2:4])
    require_exact(laned, lane)
    laned.prune()
    assert laned.size(lane) == 2


def test_dead_rows_go(laned: Laned) -> None:
    """N1: rows that died are gone after `prune` has looked at all of them, part by part; live ones stay."""
    one, two = laned.open(n >= 1, n == 2)
    laned.enqueue([make_task(f"{each:02d}", attributes={"n": each % 3}) for each in range(60)])
    claim(laned.store, limit=30)
    after: LaneRow | None = None
    for _ in range(100):
        after = laned.lanes.prune(after, 7)
        if after is None:
            break
    assert after is None
    assert (laned.size(one), laned.size(two)) == (len(laned.expected(one)), len(laned.expected(two)))
    assert laned.lanes.sizes([one.id, two.id], 5) == {one.id: 5, two.id: 5}
    claim(laned.store, by_lane(two), limit=5)
    claim(laned.store, by_lane(one), limit=1)
    require_exact(laned, one, two)


def test_a_claim_deletes_dead_rows_that_it_met(laned: Laned) -> None:
    """N1: a claim by a lane does away with dead rows that were before what it returned, so that the next one need not
    pass by them again."""
    (one,) = laned.open(n == 1)
    laned.enqueue([make_task(attributes=ONE) for _ in range(30)])
    assert len(claim(laned.store, limit=28)) == 28
    assert len(claim(laned.store, by_lane(one), limit=10)) == 2
    assert claim(laned.store, by_lane(one)) == []
    assert laned.size(one) < 28
    require_exact(laned, one)
