"""Checks of openers of lanes (N3): those who die, those who come at once, and those who wait for calls placed before.

A store in which a call can stand in the midst of its transaction says how by a fixture `hold_epoch`: called with a
handle it gives a context manager, inside which that handle holds the present epoch as an `enqueue` does.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import repeat
from threading import Event
from time import monotonic
from typing import TypeAlias

import pytest

from wiggle_core.conformance.laned import Laned, Moved, placed, require_lanes
from wiggle_core.conformance.lanes import ONE, n, require_exact
from wiggle_core.conformance.lanes_changing import TENANTS
from wiggle_core.conformance.plugin import QUEUE, SECOND, ManualClock, claim, ids, make_task
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.filling import clear, complete, resume
from wiggle_core.stores.lanes import Lane, LaneRow, LaneState, Placed
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import GiveBack, Store
from wiggle_core.tasks.task import TaskId

HoldEpoch: TypeAlias = Callable[[Store], AbstractContextManager[object]]


def test_what_a_dead_opener_left_is_taken_over(laned: Laned, clock: ManualClock) -> None:
    """N3: lanes that nobody has worked on for some time are found by one who looks, and by one only; each may be
    filled or cleared to its end from whatever step it was left at."""
    laned.enqueue([make_task(attributes={"n": number % 3}) for number in range(12)])
    filling = laned.begin(n == 1, n == 2)
    closing = laned.lanes.close([lane.id for lane in laned.open(n == 0)])
    part = laned.lanes.ready_tasks(QUEUE, [n == 1], None, 2).tasks
    laned.lanes.fill([LaneRow(filling[0].id, task.order_key, ready_no) for task, ready_no in part])
    clock.move(29)
    assert laned.lanes.unfinished(30 * SECOND) == []
    laned.lanes.note_work([filling[0].id])
    clock.move(1)
    left = laned.lanes.unfinished(30 * SECOND)
    assert {lane.id for lane in left} == {filling[1].id, closing[0].id}
    assert laned.lanes.unfinished(30 * SECOND) == []
    clock.move(40)
    resume(laned.lanes, 30, 1)
    known = laned.book.refresh()
    assert {lane.id: lane.state for lane in known.lanes.values()} == {lane.id: LaneState.OPEN for lane in filling}
    require_exact(laned, *filling)
    clock.move(60)
    assert laned.lanes.unfinished(30 * SECOND) == []


def test_a_clock_that_stepped_back_keeps_no_lane_unfinished(laned: Laned, clock: ManualClock) -> None:
    """N3, L1: when the database's clock stepped back, a lane that was left is found all the same."""
    clock.move(1_000)
    [lane] = laned.begin(n == 1)
    clock.move(-1_000)
    assert [each.id for each in laned.lanes.unfinished(30 * SECOND)] == [lane.id]


def test_two_may_fill_the_same_lanes(laned: Laned, open_handle: Callable[[], Store]) -> None:
    """N3: every step of opening and closing may be done twice: two who fill and clear the same lanes at once leave
    each task in them once."""
    laned.enqueue([make_task(attributes={"n": number % 4}) for number in range(80)])
    lanes = [Laned.over(Replaying(open_handle())).lanes for _ in range(3)]
    for _ in range(3):
        filling = laned.begin(n == 1, n >= 2, n == 3)
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(complete, lanes, repeat(filling), repeat(10)))
        laned.book.refresh()
        require_exact(laned, *filling)
        laned.prune()
        assert [laned.size(lane) for lane in filling] == [len(laned.expected(lane)) for lane in filling]
        closing = laned.lanes.close([lane.id for lane in filling])
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(clear, lanes, repeat(closing), repeat(10)))
        assert laned.lanes.read(0).lanes == ()


def test_openers_at_once_open_each_lane_once(open_handle: Callable[[], Store]) -> None:
    """N3: of handles that ask for the same lanes at once, one begins each of them, and all epochs differ."""
    laned = require_lanes(open_handle())
    others = [Laned.over(Replaying(open_handle())) for _ in range(4)]

    def begin(number: int) -> list[Lane]:
        added: list[Lane] = []
        for turn in range(len(TENANTS)):
            added += others[number].begin(*(TENANTS[turn - each] for each in range(number + 1)))
        return added

    with ThreadPoolExecutor(len(others)) as pool:
        added = [lane for share in pool.map(begin, range(len(others))) for lane in share]
    present = laned.lanes.read(0)
    assert sorted(lane.id for lane in added) == sorted({lane.id for lane in present.lanes})
    assert len({lane.predicate for lane in added}) == len(added) == len(TENANTS)
    assert present.epoch <= len(TENANTS)


# Waiting, and who does not


def test_nothing_placed_before_is_missed(open_handle: Callable[[], Store]) -> None:
    """N3: once `drained` has told that nobody holds an older epoch, every task that was placed by one is seen by
    whoever reads: lanes filled then lack none."""
    laned = require_lanes(open_handle())
    handles = [open_handle() for _ in range(2)]
    for turn in range(4):
        is_over, told = Event(), Placed(laned.lanes.read(0).epoch)

        def produce(handle: Store, told: Placed = told, is_over: Event = is_over) -> list[TaskId]:
            done: list[TaskId] = []
            while not is_over.is_set():
                tasks = [make_task(queue="produced", attributes=ONE) for _ in range(3)]
                try:
                    done += Replaying(handle).enqueue(tasks, told)
                except StaleLanes:
                    break
            return done

        with ThreadPoolExecutor(len(handles)) as pool:
            runs = [pool.submit(produce, handle) for handle in handles]
            try:
                [lane] = laned.begin(n == turn, queue="produced")
                assert laned.lanes.drained(lane.epoch, 30)
                seen = {task.id for task, _ in laned.lanes.ready_tasks("produced", [], None, 100_000).tasks}
            finally:
                is_over.set()
        placed_before = {task_id for run in runs for task_id in run.result()}
        assert placed_before <= seen, f"{len(placed_before - seen)} tasks came by the old epoch after it was drained"


def test_an_opener_waits_for_those_before_it(
    laned: Laned, open_handle: Callable[[], Store], request: pytest.FixtureRequest
) -> None:
    """N3: while a call that holds the old epoch stands still, an opener is told that it is not drained, and nobody
    else waits: others enqueue, claim and settle by the new one; when the call has ended, it is drained."""
    hold: HoldEpoch = _hold_epoch(request)
    one, standing = Laned.over(open_handle()), open_handle()
    laned.enqueue([make_task(attributes=ONE) for _ in range(4)])
    with hold(standing):
        began = monotonic()
        [lane] = laned.begin(n == 1)
        assert not laned.lanes.drained(lane.epoch, 0.3)
        assert not complete(laned.lanes, [lane], 0.1)
        one.enqueue([make_task(attributes=ONE) for _ in range(4)])
        held = claim(one.store)
        moved: list[Moved] = [(GiveBack(task.lease, ONE), task) for task in held]
        assert one.apply(moved) == set(ids(held))
        assert laned.book.refresh().lanes[lane.id].state is LaneState.FILLING
        [closing] = laned.lanes.close([lane.id])
        assert not laned.lanes.drained(closing.epoch, 0.1)
        assert monotonic() - began < 5
    assert laned.lanes.drained(closing.epoch, 10)
    assert clear(laned.lanes, [closing], 1)
    [again] = laned.open(n == 1)
    assert len(laned.content(again)) == 8
    require_exact(laned, again)


def _hold_epoch(request: pytest.FixtureRequest) -> HoldEpoch:
    try:
        found: HoldEpoch = request.getfixturevalue("hold_epoch")
    except pytest.FixtureLookupError:
        pytest.skip("no fixture `hold_epoch`: no call of this store can be held in the midst of its transaction")
    return found


def test_a_call_placed_between_two_changes_of_lanes_is_placed_again(laned: Laned) -> None:
    """N3: whoever is refused reads the changes and places anew, until nothing changed meanwhile: the task is in the
    lanes that there are then."""
    task = make_task("t", attributes=ONE)
    predicates = iter((n == 1, n >= 1, n <= 1))

    def enqueue(told: Placed) -> set[TaskId]:
        if (predicate := next(predicates, None)) is not None:
            Laned.over(laned.store).open(predicate)
        return laned.store.enqueue([task], told)

    assert laned.book.place(lambda known: placed(known, [task]), enqueue) == {"t"}
    lanes = laned.lanes.read(0).lanes
    assert len(lanes) == 3
    assert [laned.content(lane) for lane in lanes] == [["t"]] * 3
