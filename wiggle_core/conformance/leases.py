"""Checks of leases and fencing (L1-L3, L6, L7): who may extend, settle, expire and cancel, and what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
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
    route,
    stored,
)
from wiggle_core.criteria.fields import Task
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Fate,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Store,
)
from wiggle_core.tasks.task import Lease, State

SETTLEMENTS: dict[str, Callable[[Lease], Change]] = {
    "done": lambda lease: Finish(lease, State.DONE, result="1"),
    "failed": lambda lease: Finish(lease, State.FAILED, error="no"),
    "retry later": lambda lease: Requeue(lease, SECOND, {}),
    "retry at once": lambda lease: Requeue(lease, 0, {}),
    "release": lambda lease: GiveBack(lease, {}),
}
"""What a holder can report, by name."""


# Extend


def test_extending_moves_the_end_of_a_lease(store: Store, clock: ManualClock) -> None:
    """L2: extend answers with the lease that held and moves its end to now + ttl, sooner or later than it was."""
    enqueue_one(store)
    held = claim_one(store)
    for ttl in (100 * SECOND, SECOND):
        clock.move(7)
        assert store.extend([held.lease], ttl) == {held.lease}
        assert stored(store, held.id).lease_until == clock.now + ttl


def test_extending_a_stale_lease_changes_nothing(store: Store, clock: ManualClock) -> None:
    """L2: a stale token extends nothing, even beside one that holds; the answer names only the one that held."""
    first, second = expire_and_reclaim(store, clock)
    other = enqueue_one(store)
    held = claim_one(store)
    clock.move(1)
    never = Lease("never-was", held.lease.token)
    assert store.extend([first.lease, held.lease, never], TTL) == {held.lease}
    assert stored(store, second.id) == second
    assert stored(store, other.id).lease_until == clock.now + TTL


def test_a_lease_that_ran_out_is_held_until_taken_back(store: Store, clock: ManualClock) -> None:
    """L2: after its end, and before anyone took it back, a lease can still be extended."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(TTL / SECOND + 60)
    assert claim(store) == []
    assert store.extend([held.lease], TTL) == {held.lease}
    assert store.apply([Expire(held.lease, 0, {})]) == set()


# Settle


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_a_holder_settles_once(store: Store, outcome: str) -> None:
    """L2: a settlement under the right token takes effect, and a second one of any kind does not."""
    enqueue_one(store)
    held = claim_one(store)
    assert store.apply([SETTLEMENTS[outcome](held.lease)]) == {held.id}
    after = stored(store, held.id)
    assert after.state is not State.RUNNING
    for again in SETTLEMENTS.values():
        assert store.apply([again(held.lease)]) == set()
        assert store.extend([held.lease], TTL) == set()
    assert stored(store, held.id) == after


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_a_late_settlement_changes_nothing(store: Store, clock: ManualClock, outcome: str) -> None:
    """L2: once another worker has the task, the first one's settlement is without effect."""
    first, second = expire_and_reclaim(store, clock)
    assert store.apply([SETTLEMENTS[outcome](first.lease)]) == set()
    assert stored(store, second.id) == second
    assert store.apply([SETTLEMENTS[outcome](second.lease)]) == {second.id}


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_a_settlement_after_the_end_holds_until_expiry(store: Store, clock: ManualClock, outcome: str) -> None:
    """L2: a settlement after the lease's end holds as long as nobody took the lease back."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(TTL / SECOND + 1)
    assert store.apply([SETTLEMENTS[outcome](held.lease)]) == {held.id}


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_an_unclaimed_task_cannot_be_settled(store: Store, outcome: str) -> None:
    """L2: a settlement names a lease; a task that was never claimed, or is unknown, is not changed by one."""
    task = enqueue_one(store)
    for lease in (Lease(task.id, "made-up"), Lease(task.id, ""), Lease("unknown", "made-up")):
        assert store.apply([SETTLEMENTS[outcome](lease)]) == set()
    assert stored(store, task.id) == task
    assert store.get("unknown") is None


def test_finished_tasks_keep_outcome_and_times(store: Store, clock: ManualClock) -> None:
    """L5: a settled task is in history with its state, result or error, the time, and no longer claimable."""
    enqueue_one(store, "well", payload='{"a":1}', attributes={"region": "eu"})
    enqueue_one(store, "badly")
    done, failed = sorted(claim(store), key=lambda task: task.id, reverse=True)
    clock.move(9)
    changes = [Finish(done.lease, State.DONE, result='{"b": 2}'), Finish(failed.lease, State.FAILED, error="it's no %")]
    assert store.apply(changes) == {"well", "badly"}
    well, badly = stored(store, "well"), stored(store, "badly")
    assert (well.state, well.result, well.error, well.finished_at) == (State.DONE, '{"b": 2}', None, clock.now)
    assert (badly.state, badly.result, badly.error, badly.finished_at) == (State.FAILED, None, "it's no %", clock.now)
    assert (well.payload, well.attributes, well.attempt, well.token) == ('{"a":1}', {"region": "eu"}, 1, done.token)
    assert claim(store) == []


def test_releasing_keeps_attempt_and_place(store: Store, clock: ManualClock) -> None:
    """L3: a released task is READY with the attempt, ready_at and place in the order that it had."""
    tasks = [enqueue_one(store, ready_at=START + number, attempt=2) for number in range(3)]
    held = claim_one(store)
    clock.move(5)
    assert store.apply([GiveBack(held.lease, {"region": "eu"})]) == {held.id}
    released = stored(store, held.id)
    assert (released.state, released.attempt, released.ready_at) == (State.READY, 2, held.ready_at)
    assert (released.owner, released.lease_until) == (None, None)
    assert released.attributes == {"region": "eu"}
    assert ids(claim(store)) == ids(tasks)


def test_a_retry_waits_its_delay(store: Store, clock: ManualClock) -> None:
    """L3: a retry grows the attempt by one and sets ready_at to now + delay; the task is SCHEDULED until promoted."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(3)
    assert store.apply([Requeue(held.lease, 10 * SECOND, {"n": 2}, error="busy")]) == {held.id}
    waiting = stored(store, held.id)
    assert (waiting.state, waiting.attempt, waiting.ready_at) == (State.SCHEDULED, 2, clock.now + 10 * SECOND)
    assert (waiting.owner, waiting.lease_until, waiting.error) == (None, None, "busy")
    assert waiting.attributes == {"n": 2}
    assert claim(store) == []


def test_a_retry_without_delay_is_ready_now(store: Store, clock: ManualClock) -> None:
    """L3: a retry without delay is READY at once, with ready_at = now and so behind those that waited longer."""
    enqueue_one(store, "first")
    enqueue_one(store, "second")
    held = claim_one(store)
    clock.move(3)
    assert store.apply([Requeue(held.lease, 0, {})]) == {held.id}
    ready = stored(store, held.id)
    assert (ready.state, ready.attempt, ready.ready_at) == (State.READY, 2, clock.now)
    assert ids(claim(store)) == [*({"first", "second"} - {held.id}), held.id]


def test_new_attributes_and_attempt_decide_the_next_claim(store: Store) -> None:
    """A2: what a retry or release stored is what the next claim tests; what was stored before is gone."""
    region = Task.attr("region", str)
    enqueue_one(store, attributes={"region": "eu", "vip": True})
    held = claim_one(store)
    store.apply([Requeue(held.lease, 0, {"region": "us"})])
    assert claim(store, route(region == "eu")) == []
    assert claim(store, route(Task.attr("vip", bool).is_not_null())) == []
    assert claim(store, route(Task.attempt == 1)) == []
    assert ids(claim(store, route((region == "us") & (Task.attempt == 2)))) == [held.id]


# Cancel


def test_any_live_task_can_be_cancelled(store: Store, clock: ManualClock) -> None:
    """L5: cancelling takes a scheduled, ready or running task into history; a settled or unknown one is left alone."""
    enqueue_one(store, "running")
    claim_one(store)
    enqueue_one(store, "ready")
    enqueue_one(store, "scheduled", state=State.SCHEDULED, ready_at=START + TTL)
    names = ["ready", "running", "scheduled"]
    clock.move(1)
    assert store.apply([Cancel(name) for name in [*names, "unknown"]]) == set(names)
    for name in names:
        cancelled = stored(store, name)
        assert (cancelled.state, cancelled.finished_at) == (State.CANCELLED, clock.now)
    assert store.apply([Cancel(name) for name in names]) == set()
    assert claim(store) == []


@pytest.mark.parametrize("outcome", SETTLEMENTS)
def test_the_holder_of_a_cancelled_task_has_lost_it(store: Store, outcome: str) -> None:
    """L2: after a running task was cancelled, its holder can neither extend nor settle it."""
    enqueue_one(store)
    held = claim_one(store)
    store.apply([Cancel(held.id)])
    cancelled = stored(store, held.id)
    assert store.extend([held.lease], TTL) == set()
    assert store.apply([SETTLEMENTS[outcome](held.lease)]) == set()
    assert stored(store, held.id) == cancelled


# Many changes in one call


def test_changes_are_independent(store: Store) -> None:
    """Section 6: one change whose guard fails does not keep the others of the call from taking effect."""
    store.enqueue([make_task(f"t{number}") for number in range(5)])
    held = {task.id: task.lease for task in claim(store)}
    stale = Lease("t2", "stale")
    changes: list[Change] = [
        GiveBack(held["t4"], {}),
        Finish(stale, State.DONE),
        Requeue(held["t1"], SECOND, {}),
        Cancel("t0"),
        Finish(held["t3"], State.DONE, result="3"),
        Promote("t2", {}),
    ]
    assert store.apply(changes) == {"t0", "t1", "t3", "t4"}
    states = {name: fate.state for name, fate in store.lookup([f"t{number}" for number in range(5)]).items()}
    assert states == {
        "t0": State.CANCELLED,
        "t1": State.SCHEDULED,
        "t2": State.RUNNING,
        "t3": State.DONE,
        "t4": State.READY,
    }


def test_changes_to_one_task_follow_each_other(store: Store) -> None:
    """L7: changes are applied in id order, those to one task in the order given, each testing what the last left."""
    store.enqueue([make_task(name) for name in "abcd"])
    a, b, c, d = claim(store)
    changes: list[Change] = [
        Cancel("d"),
        Revive("d", {"n": 1}),
        Finish(b.lease, State.DONE),
        Cancel("a"),
        GiveBack(c.lease, {}),
        Finish(a.lease, State.DONE),
        Cancel("b"),
        Cancel("c"),
        Finish(d.lease, State.DONE),
    ]
    assert store.apply(changes) == {"a", "b", "c", "d"}
    states = {name: fate.state for name, fate in store.lookup(list("abcd")).items()}
    assert states == {"a": State.CANCELLED, "b": State.DONE, "c": State.CANCELLED, "d": State.READY}


def test_many_changes_in_one_call(store: Store) -> None:
    """Section 6: as many changes as the store says it takes in one batch are applied in one call."""
    size = min(store.capabilities.max_batch, 500)
    store.enqueue([make_task() for _ in range(size)])
    held = claim(store, limit=size)
    assert len(held) == size
    assert len(store.extend([task.lease for task in held], 2 * TTL)) == size
    assert len(store.lookup(ids(held))) == size
    assert len(store.apply([Finish(task.lease, State.DONE, result=f'"{task.id}"') for task in held])) == size
    assert {task.result for task in store.find(ALL, [State.DONE], size)} == {f'"{task.id}"' for task in held}


# Resolving what is ambiguous


def test_a_token_finds_what_its_claim_got(store: Store) -> None:
    """L6: `leased` returns the tasks that are RUNNING under a claim's token, in claim order; others are not named."""
    store.enqueue([make_task(priority=number % 2) for number in range(6)])
    mine = sorted(store.claim(ClaimRequest("w", "mine", TTL, 4, (ALL,))), key=lambda task: task.order_key)
    store.claim(ClaimRequest("w", "theirs", TTL, 2, (ALL,)))
    assert store.leased("mine") == mine
    store.apply([Finish(mine[0].lease, State.DONE), GiveBack(mine[1].lease, {})])
    assert store.leased("mine") == mine[2:]
    assert store.leased("nobody's") == []


def test_the_last_token_stays_with_a_task(store: Store) -> None:
    """L6: `lookup` gives state, last token and attempt of known tasks, live or settled, and leaves unknown ones out."""
    store.enqueue([make_task(name) for name in ("done", "released", "retried", "running")])
    enqueue_one(store, "new", queue="elsewhere")
    held = {task.id: task for task in claim(store)}
    store.apply([
        Finish(held["done"].lease, State.DONE),
        GiveBack(held["released"].lease, {}),
        Requeue(held["retried"].lease, 0, {}),
    ])  # fmt: skip
    token = held["done"].token
    assert store.lookup([*held, "new", "unknown"]) == {
        "done": Fate(State.DONE, token, 1),
        "released": Fate(State.READY, token, 1),
        "retried": Fate(State.READY, token, 2),
        "running": Fate(State.RUNNING, token, 1),
        "new": Fate(State.READY, None, 1),
    }
    assert store.lookup([]) == {}


def test_a_clock_that_steps_back_breaks_no_lease(store: Store, clock: ManualClock) -> None:
    """L1: when the clock steps back, leases still hold, are not taken back early, and settle as ever."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(-3600)
    assert store.due(10) == []
    assert store.apply([Expire(held.lease, 0, {})]) == set()
    assert store.extend([held.lease], TTL) == {held.lease}
    assert stored(store, held.id).lease_until == clock.now + TTL
    enqueue_one(store, ready_at=START)
    assert len(claim(store)) == 1
    assert store.apply([Finish(held.lease, State.DONE)]) == {held.id}
    assert stored(store, held.id).finished_at == clock.now
