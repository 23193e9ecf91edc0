"""Checks of how lanes open and close (N3): whoever placed a task by lanes that have changed since, or claims by one
that is not open, is refused; and what changed is told to everybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from wiggle_core.conformance.laned import Laned, by_lane, new_lane
from wiggle_core.conformance.lanes import ONE, TWO, n, require_exact
from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    SECOND,
    START,
    TTL,
    ManualClock,
    claim,
    enqueue_one,
    make_task,
    stored,
)
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.book import LaneBook
from wiggle_core.lanes.filling import clear, complete
from wiggle_core.stores.lanes import Lane, LaneRow, LaneState, Placed
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Store,
)
from wiggle_core.tasks.task import State, TaskRecord

TENANTS = tuple(n == number for number in range(12))


# Calls placed by other lanes than there are


def _stale(laned: Laned) -> list[Placed]:
    """By epochs that were, and by one that has not come yet."""
    present = laned.lanes.read(0).epoch
    return [Placed(epoch) for epoch in range(present)] + [Placed(present + 1)]


def test_an_enqueue_by_another_epoch_is_refused(laned: Laned) -> None:
    """N3: an enqueue of a READY task that was placed by another epoch raises StaleLanes, and nothing of it is stored;
    one by the present epoch is taken."""
    laned.open(n == 1)
    laned.open(n == 2)
    batch = [make_task("later", state=State.SCHEDULED, ready_at=START + SECOND), make_task("now", attributes=ONE)]
    for told in _stale(laned):
        with pytest.raises(StaleLanes):
            laned.store.enqueue(batch, told)
        assert laned.store.lookup(["later", "now"]) == {}
    assert laned.enqueue(batch) == {"later", "now"}


def test_an_enqueue_of_scheduled_tasks_is_taken_by_any_epoch(laned: Laned) -> None:
    """N3: tasks that are not READY enter no lane, so that an enqueue of these only is never refused."""
    laned.open(n == 1)
    for number, told in enumerate(_stale(laned)):
        task = make_task(f"t{number}", state=State.SCHEDULED, ready_at=START + SECOND)
        assert laned.store.enqueue([task], told) == {task.id}


MAKING_READY: dict[str, Callable[[TaskRecord], Change]] = {
    "retry": lambda held: Requeue(held.lease, 0, ONE),
    "release": lambda held: GiveBack(held.lease, ONE),
    "expiry": lambda held: Expire(held.lease, 0, ONE),
    "promotion": lambda _: Promote("waiting", ONE),
    "revival": lambda _: Revive("failed", ONE),
}
OTHERS: dict[str, Callable[[TaskRecord], Change]] = {
    "end": lambda held: Finish(held.lease, State.DONE),
    "retry later": lambda held: Requeue(held.lease, SECOND, ONE),
    "expiry, retry later": lambda held: Expire(held.lease, SECOND, ONE),
    "expiry for good": lambda held: Expire(held.lease, None, ONE),
    "cancel": lambda held: Cancel(held.id),
}


def _begin(laned: Laned, clock: ManualClock) -> list[TaskRecord]:
    """Tasks in every state, and two lanes opened one after the other; two tasks that run, their leases run out."""
    store = laned.store
    for name in ("failed", "h1", "h2"):
        enqueue_one(store, name)
    held = {task.id: task for task in claim(store)}
    store.apply([Finish(held["failed"].lease, State.FAILED)])
    enqueue_one(store, "waiting", state=State.SCHEDULED, ready_at=START + TTL)
    clock.move(TTL / SECOND)
    laned.open(n == 1)
    laned.open(n == 2)
    return [held["h1"], held["h2"]]


@pytest.mark.parametrize("way", MAKING_READY)
def test_a_change_by_another_epoch_is_refused(laned: Laned, clock: ManualClock, way: str) -> None:
    """N3: a batch with a change that makes its task READY raises StaleLanes when it was placed by another epoch, and
    nothing of it is applied."""
    first, second = _begin(laned, clock)
    batch: list[Change] = [Finish(second.lease, State.DONE), MAKING_READY[way](first)]
    before = {name: stored(laned.store, name) for name in ("failed", "h1", "h2", "waiting")}
    for told in _stale(laned):
        for changes in (batch, batch[::-1], batch[1:]):
            with pytest.raises(StaleLanes):
                laned.store.apply(changes, told)
        assert {name: stored(laned.store, name) for name in before} == before
    assert len(laned.apply([(batch[0], second), (batch[1], first)])) == 2


@pytest.mark.parametrize("way", OTHERS)
def test_a_change_that_makes_nothing_ready_is_taken_by_any_epoch(laned: Laned, clock: ManualClock, way: str) -> None:
    """N3: changes after which no task is READY are never refused."""
    held = _begin(laned, clock)
    past, *_, future = _stale(laned)
    assert laned.store.apply([OTHERS[way](held[0])], past) == {held[0].id}
    assert laned.store.apply([OTHERS[way](held[1])], future) == {held[1].id}


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "among others"])
def test_a_claim_by_a_lane_that_is_not_open_is_refused(laned: Laned, is_alone: bool) -> None:
    """N3: a claim that names a lane which is FILLING, CLOSING, CLOSED or unknown raises StaleLanes, never an empty
    answer, and leases nothing."""
    laned.enqueue([make_task(attributes=ONE), make_task(queue="elsewhere")])
    elsewhere = replace(ALL, queue="elsewhere")
    [lane] = laned.begin(n == 1)

    def require_refusal(chosen: Lane) -> None:
        routes = (by_lane(chosen),) if is_alone else (elsewhere, by_lane(chosen))
        with pytest.raises(StaleLanes):
            laned.store.claim(ClaimRequest("w", "token", TTL, 10, routes))
        assert laned.store.leased("token") == []

    require_refusal(lane)
    assert complete(laned.lanes, [lane], 1)
    assert len(laned.content(lane)) == 1
    assert laned.lanes.close([lane.id])
    require_refusal(lane)
    assert clear(laned.lanes, [lane], 1)
    require_refusal(lane)
    require_refusal(replace(lane, id=lane.id + 1_000))
    # A walk by the same predicate goes on.
    assert len(claim(laned.store, replace(by_lane(lane), lane=None))) == 1


# Opening and closing


def test_opening_many_lanes_is_one_step(laned: Laned) -> None:
    """N3: the epoch grows by one however many lanes begin to fill or to close, and not at all when none does; lanes
    that are there are not begun again, nor are two alike."""
    before = laned.lanes.read(0).epoch
    added = laned.begin(*TENANTS, TENANTS[0])
    assert [lane.predicate for lane in added] == [new_lane(each).predicate for each in TENANTS]
    assert {(lane.state, lane.epoch) for lane in added} == {(LaneState.FILLING, before + 1)}
    assert laned.begin(*TENANTS) == []
    assert laned.lanes.read(0).epoch == before + 1
    [more] = laned.begin(TENANTS[3], Task.step == "s")
    elsewhere = laned.begin(TENANTS[3], queue="elsewhere")
    assert (more.epoch, [lane.epoch for lane in elsewhere]) == (before + 2, [before + 3])
    names = [lane.id for lane in added[:5]]
    closing = laned.lanes.close([*names, names[0]])
    assert {(lane.id, lane.state, lane.epoch) for lane in closing} == {
        (name, LaneState.CLOSING, before + 4) for name in names
    }
    assert laned.lanes.close(names) == []
    assert laned.lanes.close([more.id + 1_000]) == []
    assert laned.lanes.read(0).epoch == before + 4


def test_ids_of_lanes_are_never_used_again(laned: Laned, open_handle: Callable[[], Store]) -> None:
    """N3: every lane has an id that no other one had, though its predicate was a lane's before, and that one is gone;
    a lane begins anew while the one before it is still being cleared."""
    used: list[int] = []
    other = Laned.over(open_handle())
    for turn in range(6):
        each = (laned, other)[turn % 2]
        lanes = each.begin(n == 1, n == 2)
        assert len(lanes) == 2
        used += [lane.id for lane in lanes]
        if turn % 3:
            assert complete(each.lanes, lanes, 1)
        closing = each.lanes.close([lane.id for lane in lanes])
        assert len(closing) == 2
        if turn != 2:
            assert clear(each.lanes, closing, 1)
    assert used == sorted(set(used))


def test_a_lane_asked_for_by_hand_is_pinned(laned: Laned) -> None:
    """N3: a lane keeps why it was opened; when one that is there is asked for by hand it is pinned, and that is told,
    without a new epoch."""
    [lane] = laned.open(n == 1)
    known = laned.lanes.read(0)
    by_hand = replace(new_lane(n == 1), is_pinned=True, reason="by hand")
    assert laned.lanes.open([by_hand]) == []
    [pinned] = laned.lanes.read(known.revision).lanes
    assert (pinned.id, pinned.is_pinned, pinned.state) == (lane.id, True, LaneState.OPEN)
    assert laned.lanes.read(0).epoch == known.epoch
    assert lane.reason == new_lane(n == 1).reason
    assert not lane.is_pinned


def test_changes_are_told_to_those_who_knew(laned: Laned) -> None:
    """N3: `read` tells of the lanes that changed since a revision, the step from FILLING to OPEN and the end of a lane
    among them, and of nothing else; for 0 it tells of all that there are."""
    lanes = laned.lanes
    first = lanes.read(0)
    assert (first.is_whole, first.lanes) == (True, ())
    seen = first.revision
    steps: list[tuple[Callable[[], object], LaneState]] = []
    [kept, lane] = laned.begin(n == 1, n == 2)
    steps = [
        (lambda: None, LaneState.FILLING),
        (lambda: lanes.finish([lane.id]), LaneState.OPEN),
        (lambda: lanes.close([lane.id]), LaneState.CLOSING),
        (lambda: lanes.clear([lane.id], 10), LaneState.CLOSED),
    ]
    for act, state in steps:
        act()
        told = lanes.read(seen)
        assert told.revision > seen
        assert {each.id: each.state for each in told.lanes}[lane.id] is state
        assert len(told.lanes) == (2 if state is LaneState.FILLING and not told.is_whole else 1) or seen == 0
        seen = told.revision
        assert seen == 0 or lanes.read(seen).lanes == ()
    assert [each.id for each in lanes.read(0).lanes] == [kept.id]
    assert lanes.read(seen).epoch == lanes.read(0).epoch == first.epoch + 2


@pytest.mark.parametrize("seed", range(3))
def test_who_reads_seldom_knows_as_much(laned: Laned, seed: int) -> None:
    """N3: whoever reads changes now and then knows the lanes as whoever reads all of them, after any steps."""
    random, lanes = Random(seed), laned.lanes
    often, seldom = LaneBook(laned.store), LaneBook(laned.store)
    for _ in range(60):
        present = lanes.read(0).lanes
        some = [lane.id for lane in present if random.random() < 0.4]
        match random.randrange(4):
            case 0:
                laned.begin(*random.sample(TENANTS, 2))
            case 1:
                lanes.close(some)
            case 2:
                lanes.finish(some)
            case _:
                lanes.clear(some, random.choice((1, 10)))
        whole = LaneBook(laned.store).refresh()
        assert often.refresh() == replace(whole, indexes=often.known.indexes)
        if random.random() < 0.2:
            assert seldom.refresh().lanes == whole.lanes
    assert dict(seldom.refresh().by_predicate) == dict(LaneBook(laned.store).refresh().by_predicate)


def test_a_closing_lane_is_cleared_in_parts(laned: Laned) -> None:
    """N3: `clear` deletes at most as many rows as it was told, and a lane is CLOSED when none is left; lanes that are
    not CLOSING are left alone."""
    one, two, kept = laned.open(n == 1, n == 2, n >= 1)
    laned.enqueue([make_task(attributes={"n": number % 3}) for number in range(30)])
    names = [one.id, two.id]
    assert laned.lanes.clear([*names, kept.id], 100) == 0
    assert (laned.size(one), laned.size(kept)) == (10, 20)
    laned.lanes.close(names)
    deleted = [laned.lanes.clear(names, 7) for _ in range(4)]
    assert (sum(deleted), max(deleted)) == (20, 7)
    assert (laned.size(one), laned.size(two), laned.size(kept)) == (0, 0, 20)
    assert [lane.id for lane in laned.lanes.read(0).lanes] == [kept.id]
    laned.book.refresh()
    require_exact(laned, kept)


def test_a_lane_opened_again_is_filled_again(laned: Laned) -> None:
    """N1, N3: a lane that was closed and is opened anew holds what came meanwhile, and nothing that left."""
    for turn in range(3):
        [lane] = laned.open(n == 1)
        laned.enqueue([make_task(attributes=ONE) for _ in range(4)])
        require_exact(laned, lane)
        claim(laned.store, by_lane(lane), limit=1)
        laned.close(lane)
        assert laned.size(lane) == 0
        laned.enqueue([make_task(attributes=ONE if each % 2 else TWO) for each in range(4)])
        claim(laned.store, limit=2)
        assert laned.store.audit() == [], turn


def test_rows_that_come_after_the_end_do_no_harm(laned: Laned) -> None:
    """N3: a filler that goes on after its lane was closed, or is gone, brings nothing back."""
    laned.enqueue([make_task(attributes=ONE) for _ in range(5)])
    [lane] = laned.begin(n == 1)
    part = laned.lanes.ready_tasks(QUEUE, [], None, 10).tasks
    rows = [LaneRow(lane.id, task.order_key, ready_no) for task, ready_no in part]
    laned.lanes.fill(rows[:2])
    laned.lanes.close([lane.id])
    laned.lanes.fill(rows[2:4])
    laned.lanes.finish([lane.id])
    assert clear(laned.lanes, [lane], 1)
    laned.lanes.fill(rows[3:])
    laned.lanes.finish([lane.id])
    with pytest.raises(StaleLanes):
        claim(laned.store, by_lane(lane))
    laned.prune()
    assert laned.size(lane) == 0
    [again] = laned.open(n == 1)
    require_exact(laned, again)


def test_use_is_noted(laned: Laned, clock: ManualClock) -> None:
    """N4: hits add up, and a lane that has a worker is known to have been used then; the epoch stays."""
    one, two = laned.open(n == 1, n == 2)
    epoch = laned.lanes.read(0).epoch
    clock.move(7)
    laned.lanes.note_use({one.id: 3, 10_000: 1})
    laned.lanes.note_use({one.id: 4})
    lanes = {lane.id: lane for lane in laned.lanes.read(0).lanes}
    assert (lanes[one.id].hits, lanes[one.id].used_at) == (7, clock.now)
    assert (lanes[two.id].hits, lanes[two.id].used_at) == (0, START)
    assert laned.lanes.read(0).epoch == epoch
