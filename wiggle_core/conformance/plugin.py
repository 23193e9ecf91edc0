"""What the checks share: the fixtures, a clock that tests move, and short ways to make tasks and to claim them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Protocol
from uuid import uuid4

import pytest

from wiggle_core.criteria.tree import Predicate, Value, normalize
from wiggle_core.stores.store import ClaimRequest, Expire, Route, Store
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskId, TaskRecord

SECOND = 1_000_000
START = 1_772_323_200 * SECOND
"""Where the manual clock begins: 2026-03-01T00:00:00Z."""

TTL = 30 * SECOND
QUEUE = "payments"
ALL = Route(QUEUE)
"""Everything on the queue that `make_task` uses."""


class StoreFactory(Protocol):
    """What a store's own tests supply as the fixture `store_factory`.

    Every call opens another handle on one database, which is empty when the test begins. A store without separate
    handles returns the same object again.
    """

    def __call__(self, clock: Clock | None = None) -> Store: ...


class ManualClock:
    """A clock that stands still until a test moves it, in either direction."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def move(self, seconds: float) -> int:
        """Step forward, or back with a negative number; the new time in epoch microseconds."""
        self.now += round(seconds * SECOND)
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    """The clock of every handle that a check opens."""
    return ManualClock()


@pytest.fixture
def open_handle(store_factory: StoreFactory, clock: ManualClock) -> Iterator[Callable[[], Store]]:
    """Opens handles on the test's database, the first of which creates the schema; closes them all at the end."""
    opened: list[Store] = []

    def open_one() -> Store:
        store = store_factory(clock)
        if not opened:
            store.migrate()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_handle: Callable[[], Store]) -> Store:
    """One handle on an empty database with the schema in place."""
    return open_handle()


_serial = count(1)


def make_task(
    task_id: TaskId | None = None,
    *,
    created_at: int = START,
    ready_at: int = START,
    attributes: Mapping[str, Value] | None = None,
    **fields: Any,  # Any: whatever fields of TaskRecord a check cares about
) -> TaskRecord:
    """A READY task on `QUEUE`, of which a check names only what it is about."""
    chosen = task_id or f"task-{next(_serial):06d}"
    given: dict[str, Any] = {"queue": QUEUE, "step": "charge", "instance_id": chosen} | fields  # Any: as above
    return TaskRecord(chosen, created_at=created_at, ready_at=ready_at, attributes=dict(attributes or {}), **given)


def route(predicate: Predicate, queue: str = QUEUE) -> Route:
    """The route of a predicate as the engine would plan it: in normal form."""
    return Route(queue, normalize(predicate))


def claim(
    store: Store, *routes: Route, limit: int = 1_000, owner: str = "worker-1", ttl: int = TTL
) -> list[TaskRecord]:
    """One claim with a token of its own; over `ALL` when no route is named.

    Where order is kept by partition only (`strict_order` false), the answer's own order is not what is asked about.
    """
    claimed = store.claim(ClaimRequest(owner, uuid4().hex, ttl, limit, routes or (ALL,)))
    return claimed if store.capabilities.strict_order else sorted(claimed, key=attrgetter("order_key"))


def drain(store: Store, *routes: Route, limit: int, owner: str = "worker-1") -> Iterator[list[TaskRecord]]:
    """Claim after claim until one comes back empty. A task that comes twice fails the check, which would never end."""
    seen: set[TaskId] = set()
    while claimed := claim(store, *routes, limit=limit, owner=owner):
        assert len(claimed) <= limit
        assert seen.isdisjoint(ids(claimed)), "a task was claimed again while it was leased"
        seen.update(ids(claimed))
        yield claimed


def find_by_pages(store: Store, chosen: Route, size: int) -> list[TaskRecord]:
    """The READY tasks, page by page. A task on two pages fails the check, which would never end."""
    seen: list[TaskRecord] = []
    while page := store.find(chosen, [State.READY], size, seen[-1].order_key if seen else None):
        assert len(page) <= size
        assert set(ids(seen)).isdisjoint(ids(page)), "a task is on two pages"
        seen += page
    return seen


def claim_one(store: Store, ttl: int = TTL) -> TaskRecord:
    """The first task of `ALL`, claimed."""
    (task,) = claim(store, limit=1, ttl=ttl)
    return task


def enqueue_one(store: Store, task_id: TaskId | None = None, **fields: Any) -> TaskRecord:  # Any: as in make_task
    """A task as `make_task` makes it, put into the store."""
    task = make_task(task_id, **fields)
    assert store.enqueue([task]) == {task.id}
    return task


def expire_and_reclaim(store: Store, clock: ManualClock) -> tuple[TaskRecord, TaskRecord]:
    """One task as its first holder had it, and as a second holder has it after the first one's lease ran out."""
    enqueue_one(store)
    first = claim_one(store)
    clock.move(TTL / SECOND)
    assert store.apply([Expire(first.lease, 0, {})]) == {first.id}
    return first, claim_one(store)


def enqueue_all(store: Store, tasks: Sequence[TaskRecord]) -> None:
    """Put many new tasks into the store, in batches that it takes."""
    size = store.capabilities.max_batch
    for start in range(0, len(tasks), size):
        batch = tasks[start : start + size]
        assert store.enqueue(batch) == set(ids(batch))


def stored(store: Store, task_id: TaskId) -> TaskRecord:
    """The task as the store has it now, live or in history."""
    task = store.get(task_id)
    assert task is not None, f"the store does not know task {task_id!r}"
    return task


def are_first(store: Store, got: list[TaskId], wanted: list[TaskId], limit: int) -> bool:
    """Whether a claim of at most `limit` answered with the first of the tasks that match, or, where order is kept by
    partition only, with as many of them."""
    if store.capabilities.strict_order:
        return got == wanted[:limit]
    return len(got) == len(wanted[:limit]) == len(set(got)) and set(got) <= set(wanted)


def ids(tasks: Iterable[TaskRecord | OrderKey]) -> list[TaskId]:
    """The ids, in the order given."""
    return [task.id for task in tasks]


def in_order(tasks: Iterable[TaskRecord]) -> list[TaskId]:
    """The ids in claim order (O1)."""
    return ids(sorted(task.order_key for task in tasks))
