"""Checks of lanes under faults (N1, N3, L6): a call that failed, or was not answered, while lanes changed comes right.

The faults are injected around the store; under `Replaying` and a `LaneBook`, as an engine has them, every task is there
once, and in the lanes that there are in the end.
"""

from __future__ import annotations

from random import Random

import pytest

from wiggle_core.conformance.faults import CHANGES, FAULTS, Faulty, fail_once
from wiggle_core.conformance.laned import Laned, Moved, by_lane
from wiggle_core.conformance.lanes import ONE, TWO, n, require_exact
from wiggle_core.conformance.plugin import (
    ALL,
    SECOND,
    START,
    TTL,
    ManualClock,
    claim_one,
    enqueue_one,
    ids,
    make_task,
    stored,
)
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.filling import clear, complete, resume
from wiggle_core.stores.changes import makes_ready
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import ClaimRequest, Finish, GiveBack, Requeue, Route, change_id
from wiggle_core.tasks.task import State, TaskRecord


def _failing(laned: Laned, method: str, fault: str, *, lanes_change: bool = True) -> tuple[Laned, Faulty]:
    """The store as an engine has it, by what it knows of lanes now, and about to fail once; lanes open meanwhile."""
    store, faulty = fail_once(laned.store, method, FAULTS[fault])
    through = Laned.over(store)
    through.book.refresh()
    if lanes_change:
        faulty.meanwhile = lambda: laned.open(n >= 1, Task.step == "charge")
    return through, faulty


@pytest.mark.parametrize("fault", FAULTS)
def test_an_enqueue_that_failed_while_lanes_changed_is_in_once(laned: Laned, fault: str) -> None:
    """N1, N3, L6: whatever became of the first try, each task is stored once, reported as inserted, and in all lanes
    that were opened since."""
    laned.open(n == 1)
    tasks = [make_task(attributes=ONE if each % 2 else TWO) for each in range(6)]
    through, faulty = _failing(laned, "enqueue", fault)
    assert through.enqueue(tasks) == set(ids(tasks))
    assert faulty.struck["enqueue"] == 1
    assert len(laned.book.refresh().lanes) == 3
    require_exact(laned, *laned.book.known.lanes.values())
    assert laned.enqueue(tasks) == set()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_failed_while_lanes_changed_is_applied_once(
    laned: Laned, clock: ManualClock, change: str, fault: str
) -> None:
    """N1, N3, L6: a change whose first try failed, or was not answered, while lanes were opened takes effect once; its
    task is in the lanes that it matches then, if it is READY."""
    laned.open(n == 1)
    laned.enqueue([make_task("ended")])
    laned.store.apply([Finish(claim_one(laned.store).lease, State.FAILED)])
    laned.enqueue([make_task("held", attributes=ONE)])
    held = claim_one(laned.store)
    enqueue_one(laned.store, "waiting", state=State.SCHEDULED, ready_at=START + TTL)
    clock.move(TTL / SECOND)
    wanted = CHANGES[change](held.lease)
    task = stored(laned.store, change_id(wanted))
    through, faulty = _failing(laned, "apply", fault)
    assert through.apply([(wanted, task)]) == {task.id}
    assert faulty.struck["apply"] == 1
    assert laned.apply([(wanted, task)]) == set()
    assert (stored(laned.store, task.id).state is State.READY) is makes_ready(wanted)
    assert len(laned.book.refresh().lanes) == 3
    require_exact(laned, *laned.book.known.lanes.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_batch_that_failed_while_lanes_changed_is_told_whole(laned: Laned, fault: str) -> None:
    """N3, L6: when several changes failed, or were not answered, and the lanes have changed since, all are told that
    took effect, those that make nothing READY among them."""
    laned.enqueue([make_task(f"t{each}", attributes=ONE) for each in range(4)])
    held = [claim_one(laned.store) for _ in range(4)]
    moved: list[Moved] = [(GiveBack(task.lease, TWO), task) for task in held[:3]]
    moved.append((Finish(held[3].lease, State.DONE), held[3]))
    through, _ = _failing(laned, "apply", fault)
    assert through.apply(moved) == set(ids(held))
    assert laned.apply(moved) == set()
    require_exact(laned, *laned.book.refresh().lanes.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_claim_by_a_lane_that_failed_leases_nothing_unseen(laned: Laned, fault: str) -> None:
    """N1, L6: what a claim by a lane leased is what it answers with, whatever became of its first try; the rest stays
    in the lane."""
    (one,) = laned.open(n == 1)
    laned.enqueue([make_task(attributes=ONE) for _ in range(6)])
    through, _ = _failing(laned, "claim", fault, lanes_change=False)
    claimed = through.store.claim(ClaimRequest("w", "mine", TTL, 4, (by_lane(one),)))
    assert laned.store.leased("mine") == sorted(claimed, key=lambda task: task.order_key)
    assert len(laned.content(one)) == 6 - len(claimed)
    require_exact(laned, one)


OPENING = ("lanes.open", "lanes.drained", "lanes.ready_tasks", "lanes.fill", "lanes.finish", "lanes.read")
CLOSING = ("lanes.close", "lanes.drained", "lanes.clear", "lanes.read")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", OPENING)
def test_an_opening_that_failed_comes_right(laned: Laned, clock: ManualClock, method: str, fault: str) -> None:
    """N3: whichever call of an opening failed, the lane is open and exact, at the latest when somebody has looked for
    what was left."""
    laned.enqueue([make_task(attributes={"n": each % 3}) for each in range(9)])
    through, faulty = _failing(laned, method, fault, lanes_change=False)
    complete(through.lanes, through.begin(n == 1, n == 2), 10)
    through.book.refresh()
    through.enqueue([make_task(attributes=ONE)])
    clock.move(31)
    resume(laned.lanes, 30, 10)
    lanes = laned.book.refresh().lanes.values()
    assert len(lanes) == 2
    assert faulty.struck[method] == 1
    require_exact(laned, *lanes)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", CLOSING)
def test_a_closing_that_failed_comes_right(laned: Laned, clock: ManualClock, method: str, fault: str) -> None:
    """N3: whichever call of a closing failed, the lane is gone with its rows, at the latest when somebody has looked
    for what was left; then its predicate can have another one."""
    one, two = laned.open(n == 1, n == 2)
    laned.enqueue([make_task(attributes={"n": each % 3}) for each in range(9)])
    through, faulty = _failing(laned, method, fault, lanes_change=False)
    clear(through.lanes, through.lanes.close([one.id]), 10)
    through.book.refresh()
    clock.move(31)
    resume(laned.lanes, 30, 10)
    assert faulty.struck[method] == 1
    assert list(laned.book.refresh().lanes) == [two.id]
    assert laned.size(one) == 0
    require_exact(laned, two, *laned.open(n == 1))


@pytest.mark.parametrize("seed", range(3))
def test_lanes_are_exact_after_a_run_through_faults(laned: Laned, clock: ManualClock, seed: int) -> None:
    """N1, N3, L6: while every third call fails in some way, and lanes open and close, none of them lacks a task or has
    one too many."""
    random, faulty = Random(seed), Faulty(laned.store)
    through = Laned.over(Replaying(faulty.as_store(), sleep=lambda _: None))
    methods = sorted({"enqueue", "claim", "apply", *OPENING, *CLOSING})
    for _ in range(40):
        for method in methods:
            if random.random() < 0.3 and not faulty.is_armed(method):
                faulty.arm(method, random.choice(list(FAULTS.values())))
        through.enqueue([make_task(attributes={"n": random.randrange(3)}) for _ in range(3)])
        _run_some(through, random)
        lanes = through.lanes
        complete(lanes, through.begin(*random.sample((n == 0, n == 1, n == 2, n >= 1, Task.attempt >= 2), 2)), 10)
        clear(lanes, lanes.close([lane.id for lane in lanes.read(0).lanes if random.random() < 0.3]), 10)
        clock.move(10)
        resume(lanes, 30, 10)
    clock.move(31)
    resume(laned.lanes, 30, 10)
    assert sum(faulty.struck.values()) > 50
    assert laned.book.refresh().lanes
    require_exact(laned, *laned.book.known.lanes.values())


def _run_some(through: Laned, random: Random) -> None:
    """Claim a few, by a lane if there is one, and have them run again with other attributes."""
    walks = [Route(lane.queue, lane.predicate) for lane in through.book.refresh().lanes.values()]
    routes = through.book.with_lanes([random.choice([ALL, *walks])])
    try:
        held: list[TaskRecord] = through.store.claim(ClaimRequest("w", f"{random.random()}", TTL, 3, routes))
    except StaleLanes:
        return
    moved: list[Moved] = []
    for task in held:
        attributes = {"n": random.randrange(3)}
        change = Requeue(task.lease, 0, attributes) if random.random() < 0.5 else GiveBack(task.lease, attributes)
        moved.append((change, task))
    assert through.apply(moved) == set(ids(held))
