"""What a store can do: the `Store` protocol, the requests it takes and the changes it applies.

A store is synchronous, thread-safe and free of policy: it neither retries nor logs nor decides what becomes of a
failed run. Its clock is its database's (L1). Every driver error leaves it as a `StoreError` of one of three classes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from sqlalchemy import URL

from wiggle_core.criteria.tree import TRUE, Predicate, Value
from wiggle_core.stores.lanes import NO_LANES, Head, LaneId, Lanes, Placed
from wiggle_core.tasks.task import Clock, Lease, OrderKey, State, TaskId, TaskRecord


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a store, which decide what the conformance kit asks of it."""

    name: str
    strict_order: bool
    """Whether an uncontended claim is in the order O1 over everything; else in the order of each partition."""
    native_like: bool
    """Whether LIKE is decided by the database; else by the core as residual."""
    native_predicate: bool
    """Whether the whole predicate is decided by the database, so that claims answer while the evaluator raises."""
    rare_below: float
    """The share of matching tasks, from 0 to 1, below which a claim through a lane costs less than a walk (N4)."""
    max_batch: int
    """How many tasks one `enqueue` or `apply` takes at best; the engine cuts longer ones."""
    processes: bool
    """Whether several processes can share the store."""
    durable: bool
    """Whether tasks outlive the process."""
    heads: bool = False
    """Whether claims go by the head of a route. For stores where tasks that left a queue cost walks until the database
    cleans up."""


@dataclass(frozen=True, slots=True)
class Route:
    """One criteria as planned for one claim: a queue and a predicate in normal form.

    With `lane`, a claim reads the lane of that predicate instead of walking the queue (N4). With `head`, a walk reads
    what comes before the bound from that lane, and begins at the bound (PG4).
    """

    queue: str
    predicate: Predicate = TRUE
    lane: LaneId | None = None
    head: Head | None = None

    @property
    def lanes(self) -> tuple[LaneId, ...]:
        """The lane that a claim by it reads, if any."""
        if self.lane is not None:
            return (self.lane,)
        return () if self.head is None else (self.head.lane,)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """At most `limit` tasks over all `routes` together (each queue once), leased to `owner` for `ttl` microseconds.

    `token` is new for every claim (L2); all tasks of the claim carry it.
    """

    owner: str
    token: str
    ttl: int
    limit: int
    routes: tuple[Route, ...]


# Changes. Each is guarded by what it names, independent of the others, and silently without effect when the guard
# fails. `delay` is in microseconds from the database's now; `attributes` are those extracted for the next run (A2).


@dataclass(frozen=True, slots=True)
class Finish:
    """The run under this lease ended for good: DONE with a result, or FAILED with an error. Moves to history (L5)."""

    lease: Lease
    state: State
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """The run failed and is to be tried again: attempt + 1, ready_at = now + delay, SCHEDULED (READY without delay)."""

    lease: Lease
    delay: int
    attributes: Mapping[str, Value]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The holder will not run it: READY again, attempt and ready_at kept (L3)."""

    lease: Lease
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Expire:
    """Take an expired lease back, testing state, token and lease end <= now (L2). `delay` as in Requeue, or None when
    the attempts are used up: then FAILED."""

    lease: Lease
    delay: int | None
    attributes: Mapping[str, Value]
    error: str = "the lease ran out"


@dataclass(frozen=True, slots=True)
class Promote:
    """SCHEDULED and due: READY, ready_at = now (L3)."""

    task_id: TaskId
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Any live task becomes CANCELLED, a running one too: its holder finds its lease lost."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class Revive:
    """A FAILED or CANCELLED task leaves history and is READY now, attempt 1."""

    task_id: TaskId
    attributes: Mapping[str, Value]


Change: TypeAlias = Finish | Requeue | GiveBack | Expire | Promote | Cancel | Revive


def change_id(change: Change) -> TaskId:
    """The task that a change is about."""
    return change.task_id if isinstance(change, (Promote, Cancel, Revive)) else change.lease.task_id


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a task: its state, its last token and its attempt. Resolves AMBIGUOUS outcomes (L6)."""

    state: State
    token: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The ready tasks of one (workflow, version, queue)."""

    workflow: str | None
    version: int | None
    queue: str
    ready: int
    oldest_ready_at: int


@dataclass(frozen=True, slots=True)
class Document:
    """A small JSON document (text in `body`) with a revision that grows from 1."""

    kind: str
    key: str
    revision: int
    body: str
    updated_at: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """How the store claims by a route: the statement, its binds, the database's own plan, line by line, and how many
    rows of tasks and lanes it read, where that can be known (N5)."""

    sql: str
    binds: tuple[object, ...]
    plan: tuple[str, ...]
    rows_read: int | None = None


class Store(Protocol):
    """A place where tasks live. Raises StoreError of one of the three classes for any trouble with the database."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def lanes(self) -> Lanes | None:
        """The lanes of the store, or None when it has none: then every claim walks (N4)."""
        ...

    def now(self) -> int:
        """The database's time in epoch microseconds (L1)."""
        ...

    # Schema

    def migrate(self) -> list[str]:
        """Create or upgrade the schema under the database's own lock; the names of the migrations applied now.

        Forward only. Raises SchemaError for a newer or altered schema, or for a database that is not wiggle's.
        """
        ...

    def verify(self) -> None:
        """Raise SchemaError, naming the command that helps, unless the schema is the one this version knows."""
        ...

    def audit(self) -> list[str]:
        """What is wrong with the stored data, a sentence each; empty when all is well (`wiggle db check`)."""
        ...

    def schema_sql(self) -> str:
        """The statements that `migrate` runs on an empty database, for those who run DDL by hand."""
        ...

    def close(self) -> None:
        """Release every connection. Safe to call twice."""
        ...

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        """Insert READY or SCHEDULED tasks in one transaction; the ids inserted now.

        An id that is live, or in history, is left alone (L4); so is the second of two alike in one call. Raises
        StaleLanes, with nothing inserted, when a task is READY and the epoch is another (N3). A store that has no
        transaction over several tasks inserts each whole, and tells of those inserted by then (`StaleLanes.done`).
        """
        ...

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match, in claim order over all routes (O1-O4).

        Raises StaleLanes when a route names a lane, that of a head too, that is not OPEN (N3).
        """
        ...

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        """Move the end of leases still held to now + ttl microseconds; those that held (L2).

        A lease that ran out is still held until it is taken back.
        """
        ...

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        """Apply guarded changes in one transaction, in id order (L7); the ids of those that took effect.

        Raises StaleLanes, with nothing applied, when a change may make its task READY and the epoch is another (N3);
        without a transaction over several tasks, as in `enqueue`.
        """
        ...

    def due(self, limit: int) -> list[TaskRecord]:
        """SCHEDULED tasks that are due and RUNNING ones whose lease ran out, longest due first.

        What one call returned is kept from other callers for some seconds, so that two sweepers get different ones.
        """
        ...

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        """The fate of each known id, live or in history (L6)."""
        ...

    def leased(self, token: str) -> list[TaskRecord]:
        """The tasks RUNNING under a claim's token, in claim order: what an AMBIGUOUS claim got (L6)."""
        ...

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        """One task, live or in history."""
        ...

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        """One page of the tasks that match, in claim order, beginning behind `after`. `states` may be of any kind.

        The predicate is tested as the claim tests it. Payloads are included.
        """
        ...

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        """How many tasks match, counted up to `cap`."""
        ...

    def slices(self) -> list[Slice]:
        """The READY tasks by workflow, version and queue, ordered by these."""
        ...

    def explain(self, route: Route, limit: int) -> Explanation:
        """How a claim by this route is carried out. It is, up to the tasks that it would lease; none is leased."""
        ...

    def purge(self, before: int, limit: int) -> int:
        """Forget at most `limit` tasks settled before an instant; how many were. The engine keeps L4's minimum."""
        ...

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        """Write a document and return its new revision. `revision` is the one it must have now: 0 for none yet, None
        for any. Raises RevisionConflict otherwise."""
        ...

    def get_document(self, kind: str, key: str) -> Document | None: ...

    def list_documents(self, kind: str) -> list[Document]:
        """All documents of a kind, by key."""
        ...

    def delete_document(self, kind: str, key: str) -> bool:
        """Whether there was one."""
        ...


@runtime_checkable
class Grants(Protocol):
    """Optional power of a store whose database has roles: to tell what a role needs to work with it, and no more."""

    def role_sql(self, role: str) -> str:
        """The statements that grant it; run by whoever ran `migrate`."""
        ...


@runtime_checkable
class Advises(Protocol):
    """Optional power of a store on a server of its own settings: to tell what they cost, where that may be meant so."""

    def advice(self) -> list[str]:
        """A sentence for each setting that an operator should know of; of what is wrong `audit` tells."""
        ...


@runtime_checkable
class Enlist(Protocol):
    """Optional power of a store in a database that callers have tables of their own in: to take tasks along in a
    caller's own transaction."""

    def enlist(self, connection: object, tasks: Sequence[TaskRecord]) -> None:
        """Insert tasks, in id order as they are given (L7), by way of the caller's connection, to be committed or
        rolled back with what else it does.

        READY ones enter SCHEDULED and due, so that a transaction which is left open holds nothing of ours (N3). An id
        that is live, or in history, is left alone (L4). Nothing is replayed: after a StoreError the caller's
        transaction is lost. Raises EnlistRejected, with nothing sent, for a connection that will not do.
        """
        ...


class Line(Protocol):
    """A connection by which processes tell each other on which queues tasks became READY. For one thread. Raises
    StoreError when it is lost, and is then of no more use."""

    def fileno(self) -> int:
        """What to wait at until there is something to hear."""
        ...

    def tell(self, queues: Collection[str]) -> None:
        """Name queues to all others who hear."""
        ...

    def heard(self) -> set[str]:
        """The queues that others named since it was asked last. Does not wait."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Notify(Protocol):
    """Optional power of a store whose database passes messages on: to wake the workers of other processes at once.

    A hint and no more: what is not heard is found when a worker looks again.
    """

    @property
    def notifies(self) -> bool:
        """Whether the store was opened to do so."""
        ...

    def open_line(self, *, hears: bool) -> Line:
        """A line, by which others are heard only where `hears`."""
        ...


class StorePlugin(Protocol):
    """A module named by an entry point of the group `wiggle.stores`; the entry point's name is the URL scheme.

    Importing it must not import the driver, so that `wiggle plugins` can list it where the driver is missing.
    """

    DRIVER: str
    """The module of the driver, such as `sqlite3`; "" for none."""
    EXTRA: str
    """The extra of the distribution that installs the driver; "" for none."""
    LIVE_TESTED: str
    """Which server versions the conformance kit was run on, or "" if on none."""

    def open_store(self, url: URL, *, clock: Clock | None = None) -> Store:
        """The store that the URL names. Touches nothing until it is asked something. Raises InvalidStoreUrl."""
        ...

    def open_scratch(self, url: URL, *, clock: Clock | None = None) -> Store:
        """An empty, migrated store beside what the URL names, in a schema, keyspace or file of its own, which `close`
        drops."""
        ...
