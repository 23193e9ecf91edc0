"""What the journal says, in memory: each task once, indexed by what a claim and a sweep ask for. No file, no lock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache
from heapq import merge
from itertools import islice

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.criteria.tree import Predicate
from wiggle_core.stores.store import Document, Route, Slice
from wiggle_core.tasks.task import OrderKey, State, TaskId, TaskRecord
from wiggle_store_journal.entries import DocumentKey, Entry

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""


@lru_cache(maxsize=1024)
def _matcher(predicate: Predicate) -> Matcher:
    """The core's own evaluator decides (C8), which is why the store does not claim `native_predicate`."""
    return compile_predicate(predicate)


class Shelf:
    """Tasks and documents as all entries taken in so far leave them."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, TaskRecord] = {}
        self.documents: dict[DocumentKey, Document] = {}
        self.taken_in = 0
        """How many things all entries said; far more than there are when the journal is due for compaction."""
        # A claim must not sort a deep queue, and a sweep must not pass over what is READY.
        self._ready: dict[str, list[OrderKey]] = defaultdict(list)
        self._waiting: dict[TaskId, int | None] = {}

    def take_in(self, entry: Entry) -> None:
        """Make it so."""
        self.taken_in += entry.size
        for task in entry.tasks.values():
            self._remove(task.id)
            self._put(task)
        for task_id in entry.forgotten:
            self._remove(task_id)
        self._waiting.update(entry.reserved)
        self.documents.update(entry.documents)
        for key in entry.deleted:
            del self.documents[key]

    def _put(self, task: TaskRecord) -> None:
        self.tasks[task.id] = task
        if task.state is State.READY:
            insort(self._ready[task.queue], task.order_key)
        elif task.state in (State.SCHEDULED, State.RUNNING):
            self._waiting[task.id] = None

    def _remove(self, task_id: TaskId) -> None:
        self._waiting.pop(task_id, None)
        task = self.tasks.pop(task_id, None)
        if task is not None and task.state is State.READY:
            keys = self._ready[task.queue]
            del keys[bisect_left(keys, task.order_key)]

    def first(self, routes: Collection[Route], limit: int) -> list[TaskRecord]:
        """The first READY tasks that match, in claim order over all routes (O1)."""
        return [self.tasks[key.id] for key in islice(merge(*map(self._walk, routes)), limit)]

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        is_match = _matcher(route.predicate)
        return (key for key in self._ready.get(route.queue, ()) if is_match(self.tasks[key.id]))

    def matching(self, route: Route, states: Collection[State]) -> Iterator[TaskRecord]:
        """The tasks in these states that match, in no order."""
        is_match = _matcher(route.predicate)
        for task in self.tasks.values():
            if task.queue == route.queue and task.state in states and is_match(task):
                yield task

    def depth(self, queue: str) -> int:
        """How many tasks are READY on a queue."""
        return len(self._ready.get(queue, ()))

    def running(self) -> Iterator[TaskRecord]:
        return (self.tasks[task_id] for task_id in self._waiting if self.tasks[task_id].state is State.RUNNING)

    def due(self, now: int, limit: int) -> list[TaskRecord]:
        """What waits for a sweeper and is not kept for another one, longest due first."""
        late = sorted((due_at, task_id) for task_id in self._waiting if (due_at := self._due_at(task_id)) <= now)
        return [self.tasks[task_id] for _, task_id in late if not self._is_reserved(task_id, now)][:limit]

    def _due_at(self, task_id: TaskId) -> int:
        task = self.tasks[task_id]
        return task.lease_until or 0 if task.state is State.RUNNING else task.ready_at

    def _is_reserved(self, task_id: TaskId, now: int) -> bool:
        reserved_at = self._waiting[task_id]
        # The lower bound is for a clock that stepped back: it must not stretch a reservation.
        return reserved_at is not None and reserved_at <= now < reserved_at + RESERVATION_MICROS

    def slices(self) -> list[Slice]:
        """The READY tasks by workflow, version and queue."""
        ready: dict[tuple[str | None, int | None, str], list[int]] = defaultdict(list)
        for task in self.tasks.values():
            if task.state is State.READY:
                ready[task.workflow, task.version, task.queue].append(task.ready_at)
        slices = [Slice(*names, len(times), min(times)) for names, times in ready.items()]
        return sorted(slices, key=lambda each: (each.workflow or "", each.version or 0, each.queue))

    def entries(self, size: int = 1000) -> Iterator[Entry]:
        """Entries that say the same in as few words, a thousand tasks each. Reservations are not worth keeping."""
        tasks = iter(self.tasks.values())
        while part := list(islice(tasks, size)):
            yield Entry(tasks={task.id: task for task in part})
        yield Entry(documents=dict(self.documents))
