"""Checks of what sweepers do (L2, L3, O3): taking expired leases back, promoting what is due, and sharing the work."""

from __future__ import annotations

from collections.abc import Callable

from wiggle_core.conformance.plugin import (
    SECOND,
    START,
    TTL,
    ManualClock,
    claim,
    claim_one,
    enqueue_one,
    expire_and_reclaim,
    ids,
    make_task,
    stored,
)
from wiggle_core.stores.store import Expire, Promote, Store
from wiggle_core.tasks.task import State


def test_expiry_needs_the_end_of_the_lease(store: Store, clock: ManualClock) -> None:
    """L2: a lease is not taken back one microsecond before its end, and is at its end."""
    enqueue_one(store)
    held = claim_one(store)
    clock.now = START + TTL - 1
    assert store.apply([Expire(held.lease, 0, {})]) == set()
    assert stored(store, held.id) == held
    clock.now = START + TTL
    assert store.apply([Expire(held.lease, 0, {})]) == {held.id}


def test_expiry_spares_a_lease_extended_meanwhile(store: Store, clock: ManualClock) -> None:
    """L2: a lease that was extended after `due` named it is not taken back."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(TTL / SECOND)
    assert ids(store.due(10)) == [held.id]
    store.extend([held.lease], TTL)
    assert store.apply([Expire(held.lease, 0, {})]) == set()
    assert stored(store, held.id).state is State.RUNNING


def test_expiry_needs_the_token(store: Store, clock: ManualClock) -> None:
    """L2: an expiry that names an earlier lease leaves the present one alone, though that ran out too."""
    first, second = expire_and_reclaim(store, clock)
    clock.move(TTL / SECOND)
    assert store.apply([Expire(first.lease, 0, {})]) == set()
    assert store.apply([Expire(second.lease, 0, {})]) == {second.id}


def test_an_expired_run_counts_as_a_failure(store: Store, clock: ManualClock) -> None:
    """L3: expiry grows the attempt by one and sets ready_at to now + delay, as a retry does."""
    enqueue_one(store, "later")
    enqueue_one(store, "now")
    later, now = sorted(claim(store), key=lambda task: task.id)
    clock.move(TTL / SECOND + 2)
    assert store.apply([Expire(later.lease, SECOND, {"n": 1}), Expire(now.lease, 0, {})]) == {"later", "now"}
    waiting, ready = stored(store, "later"), stored(store, "now")
    assert (waiting.state, waiting.attempt, waiting.ready_at) == (State.SCHEDULED, 2, clock.now + SECOND)
    assert (waiting.owner, waiting.lease_until, waiting.attributes) == (None, None, {"n": 1})
    assert (ready.state, ready.attempt, ready.ready_at) == (State.READY, 2, clock.now)


def test_expiry_with_attempts_used_up_fails_the_task(store: Store, clock: ManualClock) -> None:
    """L3: an expiry that allows no further run puts the task into history as FAILED, with the error."""
    enqueue_one(store, attempt=20)
    held = claim_one(store)
    clock.move(TTL / SECOND)
    assert store.apply([Expire(held.lease, None, {}, error="gone")]) == {held.id}
    failed = stored(store, held.id)
    assert (failed.state, failed.error, failed.finished_at) == (State.FAILED, "gone", clock.now)
    assert claim(store) == []
    assert store.due(10) == []


def test_promotion_needs_the_due_time(store: Store, clock: ManualClock) -> None:
    """L3, O3: a SCHEDULED task is promoted at its time, not before, and only once; promotion sets ready_at to now."""
    task = enqueue_one(store, state=State.SCHEDULED, ready_at=START + 10)
    clock.now = START + 9
    assert store.apply([Promote(task.id, {})]) == set()
    clock.now = START + 10
    assert store.apply([Promote(task.id, {"n": 1})]) == {task.id}
    ready = stored(store, task.id)
    assert (ready.state, ready.ready_at, ready.attributes) == (State.READY, START + 10, {"n": 1})
    clock.move(60)
    assert store.apply([Promote(task.id, {})]) == set()
    assert ids(claim(store)) == [task.id]
    assert store.apply([Promote(task.id, {})]) == set()


def test_late_promotion_is_ready_from_then_on(store: Store, clock: ManualClock) -> None:
    """L3: ready_at is the time of the promotion, not the time for which the task was scheduled."""
    task = enqueue_one(store, state=State.SCHEDULED, ready_at=START + SECOND)
    clock.move(100)
    store.apply([Promote(task.id, {})])
    assert stored(store, task.id).ready_at == clock.now


def test_due_names_what_needs_care(store: Store, clock: ManualClock) -> None:
    """Section 6: `due` returns SCHEDULED tasks at their time and RUNNING ones at their end, longest due first."""
    enqueue_one(store, "held")
    claim_one(store, ttl=20 * SECOND)
    enqueue_one(store, "soon", state=State.SCHEDULED, ready_at=START + 10 * SECOND)
    enqueue_one(store, "later", state=State.SCHEDULED, ready_at=START + 30 * SECOND)
    enqueue_one(store, "ready")
    clock.now = START + 10 * SECOND - 1
    assert store.due(10) == []
    clock.now = START + 20 * SECOND
    assert ids(store.due(10)) == ["soon", "held"]
    clock.now = START + 30 * SECOND
    assert "later" in ids(store.due(10))


def test_two_sweepers_get_different_tasks(store: Store, clock: ManualClock, open_handle: Callable[[], Store]) -> None:
    """Section 6: what `due` returned is kept from other callers for some seconds, then returned again."""
    other = open_handle()
    store.enqueue([make_task(state=State.SCHEDULED, ready_at=START + number) for number in range(7)])
    clock.move(1)
    first, second = ids(store.due(3)), ids(other.due(100))
    assert (len(first), len(second)) == (3, 4)
    assert set(first).isdisjoint(second)
    assert store.due(100) == []
    clock.move(60)
    assert sorted(ids(other.due(100))) == sorted(first + second)


def test_due_tasks_come_whole(store: Store, clock: ManualClock) -> None:
    """L3: `due` returns whole tasks, the retry policy and the lease included, so that any node can decide."""
    enqueue_one(store, payload='{"a": 1}', attributes={"n": 3})
    held = claim_one(store)
    clock.move(TTL / SECOND)
    assert store.due(10) == [held]
