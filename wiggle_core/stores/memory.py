"""The reference store: tasks in this process's memory, under one lock.

It is written to be read as the meaning of the `Store` protocol, and what SQL stores are compared with. What a change
asks of a task and makes of it stands in `changes`; the class only keeps tasks where their state belongs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from operator import attrgetter, itemgetter
from threading import RLock

from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl, RevisionConflict
from wiggle_core.stores.changes import changed, is_leased, makes_ready, permits
from wiggle_core.stores.lanes import NO_LANES, LaneId, Placed
from wiggle_core.stores.memory_lanes import MemoryLanes, matcher
from wiggle_core.stores.store import (
    Capabilities,
    Change,
    ClaimRequest,
    Document,
    Explanation,
    Fate,
    Route,
    Slice,
    change_id,
)
from wiggle_core.tasks.task import LIVE, SETTLED, Clock, Lease, OrderKey, State, TaskId, TaskRecord, system_clock

DRIVER = ""
EXTRA = ""
LIVE_TESTED = "in process"

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""

CAPABILITIES = Capabilities(
    name="memory",
    strict_order=True,
    native_like=False,
    native_predicate=False,
    rare_below=0.05,
    max_batch=10_000,
    processes=False,
    durable=False,
    heads=True,
)


def open_store(url: URL, *, clock: Clock | None = None) -> MemoryStore:
    """A new, empty store: `memory://` names no place where one could be found again."""
    if any((url.host, url.port, url.database, url.username, url.password, url.query)):
        raise InvalidStoreUrl("a memory store has no address: write memory://")
    return MemoryStore(clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> MemoryStore:
    """As `open_store`: every memory store is a scratch store."""
    return open_store(url, clock=clock)


class MemoryStore:
    """A `Store` whose database is this object. Thread-safe; gone with the process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or system_clock
        self._lock = RLock()
        self._live: dict[TaskId, TaskRecord] = {}
        self._history: dict[TaskId, TaskRecord] = {}
        # Claims must not sort a deep queue: the keys of READY tasks are kept in claim order, queue by queue.
        self._ready: dict[str, list[OrderKey]] = defaultdict(list)
        # Nor must a sweep pass over them: SCHEDULED and RUNNING tasks, with the time when `due` last returned each.
        self._waiting: dict[TaskId, int | None] = {}
        self._documents: dict[tuple[str, str], Document] = {}
        self._lanes = MemoryLanes(self._lock, self._clock, self._live, self._ready)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def lanes(self) -> MemoryLanes:
        return self._lanes

    def now(self) -> int:
        return self._clock()

    # Schema: there is none

    def migrate(self) -> list[str]:
        return []

    def verify(self) -> None:
        return None

    def audit(self) -> list[str]:
        with self._lock:
            ready = {key for keys in self._ready.values() for key in keys}
            expected = {task.order_key for task in self._live.values() if task.state is State.READY}
            misplaced = [f"task {key.id!r} is READY in one place only" for key in sorted(ready ^ expected)]
            settled = [
                f"task {each!r} is both live and in history" for each in sorted(self._live.keys() & self._history)
            ]
            return misplaced + settled + self._lanes.audit()

    def schema_sql(self) -> str:
        return ""

    def close(self) -> None:
        return None

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        inserted = set()
        with self._lock:
            if any(task.state is State.READY for task in tasks):
                self._lanes.require(placed)
            for index, task in enumerate(tasks):
                if self.get(task.id) is None:
                    self._put(replace(task, attributes=dict(task.attributes)), placed.of(index))
                    inserted.add(task.id)
        return inserted

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            lease_until = self.now() + request.ttl
            claimed = [self._lease(self._live[key.id], request, lease_until) for key in self._first(request)]
            for route in request.routes:
                for lane in route.lanes:
                    self._lanes.drop_dead_head(lane)
            return claimed

    def _first(self, request: ClaimRequest) -> list[OrderKey]:
        """The first READY tasks that match, over all routes."""
        return list(islice(merge(*map(self._keys, request.routes)), request.limit))

    def _keys(self, route: Route) -> Iterator[OrderKey]:
        """The keys of the READY tasks that match, in claim order (O1), from the route's lane if it has one."""
        return self._walk(route) if route.lane is None else self._lanes.keys(route.lane)

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        is_match, keys = matcher(route.predicate), self._ready.get(route.queue, [])
        found = iter(keys)
        if (head := route.head) is not None:
            bound = bisect_left(keys, (head.priority, head.created_at), key=itemgetter(slice(2)))
            found = chain(self._lanes.keys(head.lane), islice(keys, bound, None))
        return (key for key in found if is_match(self._live[key.id]))

    def _lease(self, task: TaskRecord, request: ClaimRequest, lease_until: int) -> TaskRecord:
        owner, token = request.owner, request.token
        return self._put(replace(task, state=State.RUNNING, owner=owner, token=token, lease_until=lease_until))

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        with self._lock:
            held, lease_until = {lease for lease in leases if self._holds(lease)}, self.now() + ttl
            for lease in held:
                self._put(replace(self._live[lease.task_id], lease_until=lease_until))
            return held

    def _holds(self, lease: Lease) -> bool:
        task = self._live.get(lease.task_id)
        return task is not None and is_leased(task, lease.token)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            if any(map(makes_ready, changes)):
                self._lanes.require(placed)
            now = self.now()
            ordered = sorted(enumerate(changes), key=lambda each: change_id(each[1]))
            return {change_id(change) for index, change in ordered if self._take_effect(change, now, placed.of(index))}

    def _take_effect(self, change: Change, now: int, lanes: Sequence[LaneId]) -> bool:
        task = self.get(change_id(change))
        if task is None or not permits(task, change, now):
            return False
        self._put(changed(task, change, now), lanes)
        return True

    def due(self, limit: int) -> list[TaskRecord]:
        with self._lock:
            now = self.now()
            late = sorted((due_at, task_id) for task_id in self._waiting if (due_at := self._due_at(task_id)) <= now)
            free = [task_id for _, task_id in late if not self._is_reserved(task_id, now)][:limit]
            self._waiting.update(dict.fromkeys(free, now))
            return [self._live[task_id] for task_id in free]

    def _due_at(self, task_id: TaskId) -> int:
        task = self._live[task_id]
        return task.lease_until or 0 if task.state is State.RUNNING else task.ready_at

    def _is_reserved(self, task_id: TaskId, now: int) -> bool:
        reserved_at = self._waiting[task_id]
        # The lower bound is for a clock that stepped back: it must not stretch a reservation.
        return reserved_at is not None and reserved_at <= now < reserved_at + RESERVATION_MICROS

    def _put(self, task: TaskRecord, lanes: Sequence[LaneId] = ()) -> TaskRecord:
        """Keep the task where its state belongs, and nowhere else; a READY one in these lanes too."""
        self._remove(task.id)
        (self._history if task.state in SETTLED else self._live)[task.id] = task
        if task.state is State.READY:
            insort(self._ready[task.queue], task.order_key)
            self._lanes.enter(task, lanes)
        elif task.state in LIVE:
            self._waiting[task.id] = None
        return task

    def _remove(self, task_id: TaskId) -> None:
        self._history.pop(task_id, None)
        self._waiting.pop(task_id, None)
        task = self._live.pop(task_id, None)
        if task is not None and task.state is State.READY:
            keys = self._ready[task.queue]
            del keys[bisect_left(keys, task.order_key)]

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        with self._lock:
            known = ((task_id, self.get(task_id)) for task_id in ids)
            return {task_id: Fate(task.state, task.token, task.attempt) for task_id, task in known if task is not None}

    def leased(self, token: str) -> list[TaskRecord]:
        with self._lock:
            held = [task for task in map(self._live.__getitem__, self._waiting) if is_leased(task, token)]
            return sorted(held, key=attrgetter("order_key"))

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        with self._lock:
            return self._live.get(task_id) or self._history.get(task_id)

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        with self._lock:
            found = [task for task in self._matching(route, states) if after is None or task.order_key > after]
        return sorted(found, key=attrgetter("order_key"))[:limit]

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        with self._lock:
            return sum(1 for _ in islice(self._matching(route, states), cap))

    def _matching(self, route: Route, states: Collection[State]) -> Iterator[TaskRecord]:
        is_match = matcher(route.predicate)
        for tasks in (self._live, self._history):
            for task in tasks.values():
                if task.queue == route.queue and task.state in states and is_match(task):
                    yield task

    def slices(self) -> list[Slice]:
        ready: dict[tuple[str | None, int | None, str], list[int]] = defaultdict(list)
        with self._lock:
            for key in (key for keys in self._ready.values() for key in keys):
                task = self._live[key.id]
                ready[task.workflow, task.version, task.queue].append(task.ready_at)
        found = [Slice(*names, len(times), min(times)) for names, times in ready.items()]
        return sorted(found, key=_slice_order)

    def explain(self, route: Route, limit: int) -> Explanation:
        with self._lock:
            found = list(islice(self._keys(route), limit))
            if route.lane is not None:
                line = f"lane {route.lane} in process: its first {limit} tasks"
                return Explanation("", (), (line,), len(found))
            keys = self._ready.get(route.queue, [])
            read = len(keys) if len(found) < limit else bisect_left(keys, found[-1]) + 1
        line = (
            f"walk in process: the {len(keys)} READY tasks of queue {route.queue!r} in claim order, until {limit} match"
        )
        return Explanation("", (), (line,), read)

    def purge(self, before: int, limit: int) -> int:
        with self._lock:
            old = (task.id for task in self._history.values() if (task.finished_at or 0) < before)
            forgotten = list(islice(old, limit))
            for task_id in forgotten:
                self._remove(task_id)
                self._lanes.forget(task_id)
            return len(forgotten)

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        with self._lock:
            present = self._documents.get((kind, key))
            current = 0 if present is None else present.revision
            if revision not in (None, current):
                raise RevisionConflict(kind, key)
            self._documents[kind, key] = Document(kind, key, current + 1, body, self.now())
            return current + 1

    def get_document(self, kind: str, key: str) -> Document | None:
        with self._lock:
            return self._documents.get((kind, key))

    def list_documents(self, kind: str) -> list[Document]:
        with self._lock:
            return [self._documents[each] for each in sorted(self._documents) if each[0] == kind]

    def delete_document(self, kind: str, key: str) -> bool:
        with self._lock:
            return self._documents.pop((kind, key), None) is not None


def _slice_order(each: Slice) -> tuple[bool, str, bool, int, str]:
    """By workflow, version and queue, an absent one first."""
    return (each.workflow is not None, each.workflow or "", each.version is not None, each.version or 0, each.queue)
