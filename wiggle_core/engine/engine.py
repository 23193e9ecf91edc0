"""`Engine`: everything that can be asked of a store of tasks, by clients, workers and operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from uuid import uuid4

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.engine.coverage import DEFAULT_CAP, DEFAULT_SAMPLES, Backlog, read_backlog
from wiggle_core.engine.declarations import Declarations
from wiggle_core.engine.enlisting import enlist
from wiggle_core.engine.misses import AttributeMiss, Misses
from wiggle_core.engine.placement import Placement, parts
from wiggle_core.engine.routes import plan, route_of
from wiggle_core.engine.settling import accepted, settlement
from wiggle_core.engine.subscriptions import Subscription, Subscriptions
from wiggle_core.engine.sweeper import DEFAULT_LIMIT, Swept, move_due, purge
from wiggle_core.engine.workers import WorkerInfo, forget_silent, list_workers, read_workers
from wiggle_core.errors import LeaseLost, TaskRejected
from wiggle_core.lanes.book import LaneBook
from wiggle_core.lanes.keeper import LaneKeeper
from wiggle_core.lanes.planner import Planner
from wiggle_core.settings import Settings
from wiggle_core.stores.registry import open_store, store_url
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Cancel, ClaimRequest, Route, Store
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.outcome import Outcome
from wiggle_core.tasks.retry import MAX_DELAY, RetryPolicy
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import LIVE, Clock, Lease, OrderKey, State, TaskId, TaskRecord

DEFAULT_LEASE = timedelta(seconds=30)
DEFAULT_BATCH = 1_000
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """How many tasks a bulk enqueue inserted, and how many were there already by their id (L4)."""

    inserted: int = 0
    existing: int = 0


def open_engine(url: str | None = None, *, clock: Clock | None = None, migrate: bool = False) -> Engine:
    """The engine over the store that a URL names, or that the environment does (`store_url`).

    With `migrate`, the schema is created or upgraded first. Raises SchemaError when it is missing or another,
    UnknownScheme, StoreNotInstalled or InvalidStoreUrl.
    """
    engine = Engine(Replaying(open_store(store_url(url), clock=clock)))
    try:
        if migrate:
            engine.migrate()
        engine.store.verify()
    except BaseException:
        engine.close()
        raise
    return engine


class Engine:
    """A queue of tasks over one store. Thread-safe; one a process is enough."""

    def __init__(self, store: Store, *, settings: Settings | None = None) -> None:
        self.store = store
        self.settings = settings or Settings.from_environment()
        self._subscriptions = Subscriptions(store)
        self._misses = Misses()
        self._declarations = Declarations(store, self._misses)
        longest = self.settings.payload_max_bytes
        book = LaneBook(store)
        self._planner = Planner(store, book, self.settings.lanes)
        self.lanes = LaneKeeper(store, book, self._planner)
        self._placement = Placement(store, book, self._declarations, self._subscriptions, longest)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Safe to call twice."""
        self._subscriptions.close()
        self.store.close()

    def migrate(self) -> list[str]:
        """Create or upgrade the schema; the names of the migrations applied now."""
        return self.store.migrate()

    def declare(self, workflow: str, *, version: int, attributes: Iterable[Attribute]) -> None:
        """Store which attributes the tasks of a workflow version carry (A1). The same again is a no-op.

        Raises DeclarationError for a declaration that A1 refuses, or that differs from the one stored.
        """
        self._declarations.declare(workflow, version, attributes)

    # Enqueue

    def enqueue(
        self,
        queue: str,
        step: str,
        payload: object = None,
        *,
        workflow: str | None = None,
        version: int | None = None,
        node: str | None = None,
        kind: str = "task",
        correlation_id: str | None = None,
        id: str | None = None,
        priority: int = 0,
        delay: timedelta | None = None,
        ready_at: datetime | None = None,
        retry: RetryPolicy | None = None,
    ) -> TaskId:
        """Store one task and return its id; a no-op when a task of that id is known (L4).

        `priority` 0 is the most urgent. Raises TaskRejected naming the field that is refused (C7).
        """
        new = NewTask(
            queue, step, payload, workflow, version, node, kind, correlation_id, id, priority, delay, ready_at,
            retry,
        )  # fmt: skip
        ids, _ = self._placement.enqueue([new])
        return ids[0]

    def enqueue_many(self, tasks: Iterable[NewTask], *, batch: int = DEFAULT_BATCH) -> Enqueued:
        """Store many tasks, `batch` of them in a transaction; the iterable is read as it goes, a batch at a time.

        Raises TaskRejected for the first task that is refused: the batches before its own are stored, as a note on
        the error says.
        """
        if batch < 1:
            raise ValueError("a batch has at least one task")
        size = min(batch, self.store.capabilities.max_batch)
        stream, seen, inserted = iter(tasks), 0, 0
        while part := list(islice(stream, size)):
            try:
                ids, new = self._placement.enqueue(part)
            except TaskRejected as error:
                error.add_note(f"the {seen} tasks before this batch are stored, {inserted} of them new")
                raise
            seen, inserted = seen + len(ids), inserted + len(new)
        return Enqueued(inserted, seen - inserted)

    def enlist(self, connection: object, tasks: Iterable[NewTask]) -> list[TaskId]:
        """Store tasks inside the caller's own transaction, to exist if it is committed and only then; their ids.

        `connection` is a psycopg.Connection, or a Connection or Session of SQLAlchemy's on postgresql+psycopg, to the
        store's own database. It is neither committed nor rolled back here. Once the caller has committed, the tasks
        become READY with the next sweep of any worker, or at once by `wake`. One whose id is known is a no-op (L4).

        Raises EnlistRejected for a store or a connection that will not do, TaskRejected for the first task that is
        refused (C7), both before anything is stored; StoreError when the transaction is lost, TransientStoreError when
        the caller should run all of it again.
        """
        return enlist(self.store, self._declarations, self.settings.payload_max_bytes, connection, tasks)

    # Claim and settle

    def claim(
        self, owner: str, criteria: Sequence[QueueCriteria], *, limit: int = 1, lease: timedelta = DEFAULT_LEASE
    ) -> list[TaskRecord]:
        """Lease at most `limit` READY tasks that match, in claim order over all criteria (O1-O4).

        Raises CriteriaError for a queue named twice, ValueError for a limit or lease that is not positive.
        """
        return self.claim_routes(owner, plan(criteria), limit, lease)

    def claim_routes(self, owner: str, routes: tuple[Route, ...], limit: int, lease: timedelta) -> list[TaskRecord]:
        """As `claim`, by routes planned before."""
        if limit < 1:
            raise ValueError("limit is at least 1")
        if not routes:
            return []
        return self._planner.claim(ClaimRequest(owner, uuid4().hex, _ttl(lease), limit, routes))

    def extend(self, leases: Sequence[Lease], lease: timedelta = DEFAULT_LEASE) -> set[Lease]:
        """Keep leases for `lease` from now on; those that were still held (L2)."""
        size, ttl = self.store.capabilities.max_batch, _ttl(lease)
        return {held for part in parts(leases, size) for held in self.store.extend(part, ttl)}

    def settle(self, task: TaskRecord, outcome: Outcome) -> None:
        """Report how the run of a claimed task ended.

        Raises LeaseLost when its lease is no longer held, TaskRejected for a result that is no JSON.
        """
        if not self.settle_many([(task, outcome)]):
            raise LeaseLost(task.id)

    def settle_many(self, settled: Iterable[tuple[TaskRecord, Outcome]]) -> set[TaskId]:
        """Report many outcomes in one transaction; the ids of those whose lease held. Raises TaskRejected, before
        anything is stored, for a result that is no JSON."""
        placing, longest = self._placement.placing(), self.settings.payload_max_bytes
        return self._placement.apply([settlement(task, outcome, placing, longest) for task, outcome in settled])

    def report(self, settled: Iterable[tuple[TaskRecord, Outcome]]) -> set[TaskId]:
        """As `settle_many`, for workers: an outcome that is refused fails its task, for the run cannot be undone."""
        placing, longest = self._placement.placing(), self.settings.payload_max_bytes
        return self._placement.apply([accepted(task, outcome, placing, longest) for task, outcome in settled])

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a live task; whether there was one. One that runs is not interrupted: its result is dropped."""
        return bool(self.store.apply([Cancel(task_id)]))

    def retry(self, task_id: TaskId) -> bool:
        """Make a FAILED or CANCELLED task READY again, attempt 1; whether it was one."""
        task = self.store.get(task_id)
        if task is None or task.state not in (State.FAILED, State.CANCELLED):
            return False
        return bool(self._placement.apply([self._placement.placing().revive(task)]))

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        """One task, live or in history."""
        return self.store.get(task_id)

    def find(
        self,
        criteria: QueueCriteria,
        states: Collection[State] = LIVE,
        limit: int = 100,
        after: OrderKey | None = None,
    ) -> list[TaskRecord]:
        """One page of the tasks that match, in claim order, behind `after` (the last one's `order_key`)."""
        return self.store.find(route_of(criteria), states, limit, after)

    def count(self, criteria: QueueCriteria, states: Collection[State] = LIVE, cap: int = DEFAULT_CAP) -> int:
        """How many tasks match, counted up to `cap`."""
        return self.store.count(route_of(criteria), states, cap)

    def workers(self) -> list[WorkerInfo]:
        """The registered workers by id, with what they take and whether they are live. Registrations that this version
        cannot read are left out, and told in the log."""
        return list_workers(self.store)

    def backlog(self, *, cap: int = DEFAULT_CAP, samples: int = DEFAULT_SAMPLES) -> Backlog:
        """The ready tasks by workflow, version and queue, and those that no live worker takes, with the reason."""
        return read_backlog(self.store, read_workers(self.store), cap, samples)

    def attribute_misses(self) -> Mapping[AttributeMiss, int]:
        """How often a declared attribute was absent, by the reason, in the tasks that this engine enqueued or made
        ready since it was opened (A3). Each time a payload is read counts."""
        return self._misses.read()

    # Time and waking

    def sweep(self, limit: int = DEFAULT_LIMIT) -> Swept:
        """One pass: at most `limit` due tasks promoted or taken back, as many forgotten of old history, and the lanes
        cared for (N4)."""
        moved = self.sweep_due(limit)
        self.lanes.care()
        return Swept(moved.promoted, moved.retried, moved.failed, self._purge(limit))

    def sweep_due(self, limit: int = DEFAULT_LIMIT) -> Swept:
        """The part of a sweep that tasks wait for: promotion and expiry."""
        return move_due(self.store, self._placement, limit)

    def tidy(self, limit: int = DEFAULT_LIMIT) -> None:
        """The part of a sweep that nobody waits for: all old history, `limit` tasks in a transaction."""
        while self._purge(limit) == limit:
            pass

    def forget_workers(self) -> int:
        """Forget workers that died long ago without a word; how many they were."""
        return forget_silent(self.store)

    def _purge(self, limit: int) -> int:
        return purge(self.store, self.settings.history_retention_seconds * 1_000_000, limit)

    def subscribe(
        self, criteria: QueueCriteria | Iterable[QueueCriteria], callback: Callable[[], None]
    ) -> Subscription:
        """Have `callback` called when a task that matches becomes READY through this engine, in the thread that
        made it so. `close` of the result ends it.

        With a store that tells other processes, also when one of the queue became READY there, in a thread of its own.
        """
        wanted = [criteria] if isinstance(criteria, QueueCriteria) else criteria
        return self.subscribe_routes(map(route_of, wanted), callback)

    def subscribe_routes(self, routes: Iterable[Route], callback: Callable[[], None]) -> Subscription:
        """As `subscribe`, by routes planned before."""
        return self._subscriptions.add(routes, callback)

    def wake(self) -> None:
        """Make all tasks READY that are due, then call every subscriber of this engine, for tasks that came another
        way, as by `enlist`."""
        while self.sweep_due(DEFAULT_LIMIT).moved >= DEFAULT_LIMIT:
            pass
        self._subscriptions.wake_all()


def _ttl(lease: timedelta) -> int:
    if not timedelta(0) < lease <= MAX_DELAY:
        raise ValueError(f"a lease is longer than nothing, and at most {MAX_DELAY.days} days")
    return lease // _MICROSECOND
