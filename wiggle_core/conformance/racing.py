"""Checks under threads, each with a handle of its own: no double lease, no lost task, no change applied twice (L1-L4).

The threads start together at a barrier, and nothing here depends on who is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TypeVar

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
    SECOND,
    START,
    TTL,
    ManualClock,
    claim,
    claim_one,
    drain,
    enqueue_all,
    enqueue_one,
    ids,
    make_task,
    route,
    stored,
)
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import RevisionConflict
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Cancel, Change, Expire, Finish, GiveBack, Revive, Route, Store
from wiggle_core.tasks.task import State

T = TypeVar("T")
RACERS = 4


def _race(open_handle: Callable[[], Store], run: Callable[[Store, int, Barrier], T], racers: int = RACERS) -> list[T]:
    """What each of the threads returned. A deadlock's victim is replayed, as the engine would do."""
    handles = [Replaying(open_handle()) for _ in range(racers)]
    barrier = Barrier(racers, timeout=60)

    def start(number: int) -> T:
        barrier.wait()
        return run(handles[number], number, barrier)

    with ThreadPoolExecutor(racers) as pool:
        return list(pool.map(start, range(racers)))


def test_racing_claims_take_each_task_once(open_handle: Callable[[], Store]) -> None:
    """L1, O4: four handles that claim at once take every task, none twice, and none of them goes without."""
    tasks = [make_task(priority=number % 3) for number in range(1200)]
    enqueue_all(open_handle(), tasks)

    def take(store: Store, number: int, barrier: Barrier) -> list[str]:
        taken = ids(claim(store, limit=3))
        barrier.wait()  # everyone has claimed once before anyone can have drained the queue
        return taken + [task.id for claimed in drain(store, limit=3) for task in claimed]

    shares = _race(open_handle, take)
    assert sorted(each for share in shares for each in share) == sorted(ids(tasks))
    assert all(shares)


def test_racing_claims_and_settlements_lose_nothing(open_handle: Callable[[], Store]) -> None:
    """L1, L2: handles that claim, extend and settle at once settle each task exactly once."""
    tasks = [make_task() for _ in range(400)]
    store = open_handle()
    enqueue_all(store, tasks)

    def work(handle: Store, number: int, _: Barrier) -> list[str]:
        settled: list[str] = []
        for held in drain(handle, limit=4):
            leases = [task.lease for task in reversed(held)]
            assert handle.extend(leases, TTL) == set(leases)
            settled += handle.apply([Finish(lease, State.DONE, result=str(number)) for lease in leases])
        return settled

    shares = _race(open_handle, work)
    assert sorted(each for share in shares for each in share) == sorted(ids(tasks))
    assert all(stored(store, task.id).state is State.DONE for task in tasks)


def test_racing_enqueues_insert_each_id_once(open_handle: Callable[[], Store]) -> None:
    """L4: when handles enqueue the same ids at once, each id is inserted by one of them only."""
    store = open_handle()
    names = [f"t{number:04d}" for number in range(900)]

    def enqueue(handle: Store, number: int, _: Barrier) -> list[str]:
        inserted: list[str] = []
        for start in range(0, len(names), 7):
            batch = [make_task(name) for name in names[start : start + 7]]
            inserted += handle.enqueue(batch if number % 2 else batch[::-1])
        return inserted

    shares = _race(open_handle, enqueue)
    assert sorted(each for share in shares for each in share) == names
    assert len(claim(store)) == len(names)


def test_a_task_ends_once(open_handle: Callable[[], Store], clock: ManualClock) -> None:
    """L2: when its holder settles, a sweeper expires and a user cancels a task at once, exactly one takes effect."""
    store = open_handle()
    enqueue_all(store, [make_task() for _ in range(300)])
    held = claim(store)
    clock.move(TTL / SECOND)

    def end(handle: Store, number: int, _: Barrier) -> list[str]:
        ways: list[list[Change]] = [
            [Finish(task.lease, State.DONE) for task in held],
            [Expire(task.lease, SECOND, {}) for task in held],
            [Finish(task.lease, State.FAILED) for task in held],
            [Expire(task.lease, None, {}) for task in held],
        ]
        return [each for change in ways[number] for each in handle.apply([change])]

    ended = [each for share in _race(open_handle, end) for each in share]
    assert sorted(ended) == sorted(ids(held))


def test_racing_cancels_and_settlements_agree(open_handle: Callable[[], Store]) -> None:
    """L2, L7: batches that name the same tasks in different order take effect on each of them once."""
    store = open_handle()
    enqueue_all(store, [make_task() for _ in range(800)])
    held = claim(store)

    def settle(handle: Store, number: int, _: Barrier) -> list[str]:
        settled: list[str] = []
        for start in range(0, len(held), 10):
            batch = held[start : start + 10] if number % 2 else held[start : start + 10][::-1]
            changes: list[Change] = [
                Finish(task.lease, State.DONE) if number < 2 else Cancel(task.id) for task in batch
            ]
            settled += handle.apply(changes)
        return settled

    settled = [each for share in _race(open_handle, settle) for each in share]
    assert sorted(settled) == sorted(ids(held))


def test_racing_sweepers_get_different_tasks(open_handle: Callable[[], Store], clock: ManualClock) -> None:
    """Section 6: sweepers that ask at once get different tasks, together all that are due."""
    store = open_handle()
    tasks = [make_task(state=State.SCHEDULED, ready_at=START + number) for number in range(800)]
    enqueue_all(store, tasks)
    clock.move(1)

    def sweep(handle: Store, _number: int, _barrier: Barrier) -> list[str]:
        swept: list[str] = []
        while found := ids(handle.due(2)):
            assert set(swept).isdisjoint(found), "a task came again while it was kept for one sweeper"
            swept += found
        return swept

    swept = [each for share in _race(open_handle, sweep) for each in share]
    assert sorted(swept) == sorted(ids(tasks))


def test_racing_document_writes_lose_no_update(open_handle: Callable[[], Store]) -> None:
    """Section 6: of writers that count up one document by compare-and-set, none overwrites another's step."""
    store = open_handle()
    store.put_document("counter", "c", "0", 0)
    steps = 100

    def count_up(handle: Store, _number: int, _barrier: Barrier) -> None:
        for _ in range(steps):
            # A step is refused only when another's got in between, so the steps of all bound the tries of each.
            assert any(_step(handle) for _ in range(steps * RACERS))

    _race(open_handle, count_up)
    document = store.get_document("counter", "c")
    assert document is not None
    assert (document.body, document.revision) == (str(steps * RACERS), steps * RACERS + 1)


def _step(handle: Store) -> bool:
    document = handle.get_document("counter", "c")
    assert document is not None
    try:
        handle.put_document("counter", "c", str(int(document.body) + 1), document.revision)
    except RevisionConflict:
        return False
    return True


def test_a_claim_beside_others_is_whole(open_handle: Callable[[], Store], clock: ManualClock) -> None:
    """L2: tasks claimed while others claim carry the claim's own token and owner, and are found by it."""
    store = open_handle()
    enqueue_all(store, [make_task() for _ in range(300)])

    def check(handle: Store, number: int, _: Barrier) -> None:
        for held in drain(handle, limit=5, owner=f"worker-{number}"):
            assert {task.owner for task in held} == {f"worker-{number}"}
            assert {task.lease_until for task in held} == {clock.now + TTL}
            assert handle.leased(held[0].lease.token) == held

    _race(open_handle, check)
    enqueue_one(store)
    assert claim_one(store).owner == "worker-1"


@pytest.mark.parametrize("racers", [2, 5, 8])
def test_claimers_leave_each_other_their_share(open_handle: Callable[[], Store], racers: int) -> None:
    """O2: of n claimers that ask at once for m of n x m tasks each gets m, asking thrice at most: none locks what it
    does not return."""
    store, share = open_handle(), 5
    for turn in range(4):
        tasks = [make_task(queue=queue) for queue in (f"one {turn}", f"two {turn}") for _ in range(racers * share)]
        enqueue_all(store, tasks)
        routes = [(Route(f"one {turn}"),), (Route(f"one {turn}"), Route(f"two {turn}"))]

        def take(handle: Store, number: int, barrier: Barrier, routes: list[tuple[Route, ...]] = routes) -> list[int]:
            alone = _ask_thrice(handle, routes[0], share)
            barrier.wait()
            return [alone, _ask_thrice(handle, routes[1], share)]

        assert _race(open_handle, take, racers) == [[share, share]] * racers


def _ask_thrice(handle: Store, routes: tuple[Route, ...], limit: int) -> int:
    """How many tasks up to three claims got. Fewer than were asked for is normal, while others claim too."""
    taken = 0
    for _ in range(3):
        if taken < limit:
            taken += len(claim(handle, *routes, limit=limit - taken))
    return taken


def test_a_claim_tests_what_is_stored_now(open_handle: Callable[[], Store]) -> None:
    """O4: a claim returns no task that matched when the claim began and was changed by another before it was leased."""
    enqueue_all(open_handle(), [make_task(attributes={"region": "eu"}) for _ in range(12)])
    region = Task.attr("region", str)

    def swap(handle: Store, number: int, _: Barrier) -> None:
        mine, other = ("eu", "us") if number % 2 else ("us", "eu")
        for _turn in range(60):
            held = claim(handle, route(region == mine), limit=4)
            assert [task.attributes["region"] for task in held] == [mine] * len(held)
            handle.apply([GiveBack(task.lease, {"region": other}) for task in held])

    _race(open_handle, swap, 6)


def test_heartbeats_beside_settlements_deadlock_nobody(open_handle: Callable[[], Store]) -> None:
    """L7: batches that extend, settle and cancel the same tasks, named in opposite order, never wait for each other in
    a circle: no call fails."""
    store = open_handle()
    enqueue_all(store, [make_task() for _ in range(240)])
    held = [task for claimed in drain(store, limit=60) for task in claimed]
    handles = [open_handle() for _ in range(RACERS)]

    def touch(handle: Store, number: int) -> int:
        for start in range(0, len(held), 30):
            leases = [task.lease for task in held[start : start + 30]]
            leases = leases if number % 2 else leases[::-1]
            handle.extend(leases, TTL)
            handle.apply([GiveBack(lease, {}) if number < 2 else Finish(lease, State.DONE) for lease in leases[::3]])
            handle.extend(leases[::-1], TTL)
        return len(handle.leased(held[0].lease.token))

    # Not under Replaying, which would hide the victim of a deadlock.
    with ThreadPoolExecutor(RACERS) as pool:
        assert len(list(pool.map(touch, handles, range(RACERS)))) == RACERS
    assert store.audit() == []


def test_a_task_is_always_in_one_place(open_handle: Callable[[], Store]) -> None:
    """L5: while tasks settle and are revived, every look finds each of them once, live or in history, never in both
    and never in neither."""
    store = open_handle()
    names = [f"t{number:02d}" for number in range(12)]
    store.enqueue([make_task(name) for name in names])
    is_over = Event()

    def move(handle: Store) -> None:
        try:
            for _ in range(25):
                handle.apply([Finish(task.lease, State.FAILED) for task in claim(handle)])
                handle.apply([Revive(name, {}) for name in names])
        finally:
            is_over.set()

    def watch(handle: Store) -> None:
        while not is_over.is_set():
            assert ids(handle.find(ALL, list(State), 100)) == names
            assert handle.count(ALL, list(State), 100) == len(names)
            assert handle.lookup(names).keys() == set(names)
            assert all(handle.get(name) is not None for name in names)

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(move, open_handle()), *(pool.submit(watch, open_handle()) for _ in range(2))]
    for run in runs:
        run.result()
    assert store.audit() == []
