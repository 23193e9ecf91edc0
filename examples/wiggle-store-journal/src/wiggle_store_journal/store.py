"""The journal store: the `Store` protocol over one file. Each method is one transaction, or one look at the shelf."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path

from wiggle_core.errors import RevisionConflict, StoreError
from wiggle_core.stores.changes import changed, is_leased, permits
from wiggle_core.stores.lanes import NO_LANES, Placed
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
from wiggle_core.tasks.task import SETTLED, Clock, Lease, OrderKey, State, TaskId, TaskRecord, system_clock
from wiggle_store_journal.journal import Journal

CAPABILITIES = Capabilities(
    name="journal",
    strict_order=True,
    native_like=False,
    native_predicate=False,
    rare_below=0.0,
    max_batch=1_000,
    processes=True,
    durable=True,
)
"""What is true of this store, and so what the kit asks of it."""


class JournalStore:
    """A `Store` in an append-only file, for the threads of any number of processes on one machine.

    Every handle keeps all tasks in memory, history included. The clock is the machine's, read while the lock is held.
    """

    def __init__(self, path: str, timeout: float, clock: Clock | None = None, *, is_scratch: bool = False) -> None:
        self._journal = Journal(path, timeout)
        self._timeout = timeout
        self._clock: Clock = clock or system_clock
        self._is_scratch = is_scratch

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def lanes(self) -> None:
        """None: every claim walks (N4), through memory, and past thousands of tasks rather than millions."""

    def now(self) -> int:
        return self._clock()

    # Schema: the header

    def migrate(self) -> list[str]:
        if self._journal.create():
            return ["0001_header"]
        self.verify()
        return []

    def verify(self) -> None:
        with self._journal.reading():
            return

    def audit(self) -> list[str]:
        with closing(Journal(self._journal.path, self._timeout)) as journal:  # one that has read nothing yet
            try:
                with journal.reading():
                    return []
            except StoreError as error:
                return [str(error)]

    def schema_sql(self) -> str:
        return ""

    def close(self) -> None:
        self._journal.close()
        if self._is_scratch:
            with suppress(FileNotFoundError):
                Path(self._journal.path).unlink()

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._journal.writing() as (shelf, entry):
            for task in tasks:
                if task.id not in shelf.tasks and task.id not in entry.tasks:
                    entry.tasks[task.id] = replace(task, attributes=dict(task.attributes))
            return set(entry.tasks)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._journal.writing() as (shelf, entry):
            lease_until = self.now() + request.ttl
            for task in shelf.first(request.routes, request.limit):
                entry.tasks[task.id] = replace(
                    task,
                    state=State.RUNNING,
                    owner=request.owner,
                    token=request.token,
                    lease_until=lease_until,
                )
            return list(entry.tasks.values())

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        with self._journal.writing() as (shelf, entry):
            lease_until = self.now() + ttl
            held = {lease for lease in leases if _holds(shelf.tasks.get(lease.task_id), lease)}
            for lease in held:
                entry.tasks[lease.task_id] = replace(shelf.tasks[lease.task_id], lease_until=lease_until)
            return held

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._journal.writing() as (shelf, entry):
            now = self.now()
            for change in sorted(changes, key=change_id):
                task_id = change_id(change)
                # The second change to a task tests what the first one left.
                task = entry.tasks.get(task_id) or shelf.tasks.get(task_id)
                if task is not None and permits(task, change, now):
                    entry.tasks[task_id] = changed(task, change, now)
            return set(entry.tasks)

    def due(self, limit: int) -> list[TaskRecord]:
        with self._journal.writing() as (shelf, entry):
            now = self.now()
            found = shelf.due(now, limit)
            entry.reserved = {task.id: now for task in found}
            return found

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        with self._journal.reading() as shelf:
            known = (shelf.tasks[task_id] for task_id in ids if task_id in shelf.tasks)
            return {task.id: Fate(task.state, task.token, task.attempt) for task in known}

    def leased(self, token: str) -> list[TaskRecord]:
        with self._journal.reading() as shelf:
            return _in_order(task for task in shelf.running() if task.token == token)

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        with self._journal.reading() as shelf:
            return shelf.tasks.get(task_id)

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        with self._journal.reading() as shelf:
            found = shelf.matching(route, states)
            return _in_order(task for task in found if after is None or task.order_key > after)[:limit]

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        with self._journal.reading() as shelf:
            return sum(1 for _ in islice(shelf.matching(route, states), cap))

    def slices(self) -> list[Slice]:
        with self._journal.reading() as shelf:
            return shelf.slices()

    def explain(self, route: Route, limit: int) -> Explanation:
        with self._journal.reading() as shelf:
            depth = shelf.depth(route.queue)
        line = f"walk in memory: the {depth} READY tasks of queue {route.queue!r} in claim order, until {limit} match"
        return Explanation("", (), (line,))

    def purge(self, before: int, limit: int) -> int:
        with self._journal.writing() as (shelf, entry):
            settled = (task for task in shelf.tasks.values() if task.state in SETTLED)
            old = (task.id for task in settled if (task.finished_at or 0) < before)
            entry.forgotten = list(islice(old, limit))
        self._journal.compact()
        return len(entry.forgotten)

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        with self._journal.writing() as (shelf, entry):
            present = shelf.documents.get((kind, key))
            current = 0 if present is None else present.revision
            if revision not in (None, current):
                raise RevisionConflict(kind, key)
            entry.documents[kind, key] = Document(kind, key, current + 1, body, self.now())
            return current + 1

    def get_document(self, kind: str, key: str) -> Document | None:
        with self._journal.reading() as shelf:
            return shelf.documents.get((kind, key))

    def list_documents(self, kind: str) -> list[Document]:
        with self._journal.reading() as shelf:
            return [shelf.documents[each] for each in sorted(shelf.documents) if each[0] == kind]

    def delete_document(self, kind: str, key: str) -> bool:
        with self._journal.writing() as (shelf, entry):
            is_there = (kind, key) in shelf.documents
            if is_there:
                entry.deleted.append((kind, key))
            return is_there


def _holds(task: TaskRecord | None, lease: Lease) -> bool:
    return task is not None and is_leased(task, lease.token)


def _in_order(tasks: Iterable[TaskRecord]) -> list[TaskRecord]:
    return sorted(tasks, key=attrgetter("order_key"))
