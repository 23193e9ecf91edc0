"""`Replaying`: what the engine does about database errors, wrapped around a store so that no store contains it.

TRANSIENT is replayed, AMBIGUOUS is resolved by ids and tokens (L6), PERMANENT is passed on. Each error is logged with
its cause and its reference; callers see the reference only.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import AmbiguousStoreError, StaleLanes, StoreError, TransientStoreError
from wiggle_core.stores.lanes import (
    NO_LANES,
    Head,
    Lane,
    LaneChanges,
    LaneId,
    LaneRow,
    Lanes,
    NewLane,
    Placed,
    ReadyTasks,
)
from wiggle_core.stores.store import (
    Cancel,
    Capabilities,
    Change,
    ClaimRequest,
    Document,
    Explanation,
    Fate,
    Finish,
    Promote,
    Revive,
    Route,
    Slice,
    Store,
    change_id,
)
from wiggle_core.tasks.task import LIVE, Lease, OrderKey, State, TaskId, TaskRecord

T = TypeVar("T")
_log = logging.getLogger("wiggle.store")

TRIES = 3
PAUSE_SECONDS = 0.05


class Replaying:
    """A store that behaves as the one inside, but for passing trouble.

    `counts` tells how often each class of error was met. Raises StoreError when three tries did not help, or when an
    AMBIGUOUS answer cannot be resolved because the database stays away.
    """

    def __init__(self, store: Store, sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self.counts: Counter[str] = Counter()
        self._sleep = sleep

    def _try(self, action: Callable[[], T], resolve: Callable[[], T] | None = None) -> T:
        """Run `action`, replaying TRANSIENT; an AMBIGUOUS answer is what `resolve` finds, or a replay without one."""
        for attempt in range(1, TRIES + 1):
            try:
                return action()
            except TransientStoreError as error:
                self._note(error)
                if attempt == TRIES:
                    raise
            except AmbiguousStoreError as error:
                self._note(error)
                if resolve is not None:
                    return self._try(resolve)
                if attempt == TRIES:
                    raise
            except StoreError as error:
                self._note(error)
                raise
            self._sleep(PAUSE_SECONDS * attempt * random.uniform(0.5, 1.5))
        raise AssertionError("the loop returns or raises")

    def _note(self, error: StoreError) -> None:
        self.counts[type(error).__name__] += 1
        log_error(error)

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    @property
    def lanes(self) -> Lanes | None:
        return None if self.store.lanes is None else ReplayingLanes(self.store.lanes, self._try)

    def now(self) -> int:
        return self._try(self.store.now)

    def migrate(self) -> list[str]:
        return self._try(self.store.migrate)

    def verify(self) -> None:
        self._try(self.store.verify)

    def audit(self) -> list[str]:
        return self._try(self.store.audit)

    def schema_sql(self) -> str:
        return self.store.schema_sql()

    def close(self) -> None:
        self.store.close()

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        # An id that is there after an AMBIGUOUS answer counts as inserted now: by its id the task is the caller's.
        # Inserting again is harmless (L4), and needed when the lost commit was not applied. The lanes may have changed
        # since, which is the caller's business only when the first try was not applied.
        def resolve() -> set[TaskId]:
            ids = [task.id for task in tasks]
            try:
                inserted = self.store.enqueue(tasks, placed)
            except StaleLanes as stale:
                known = set(self.store.lookup(ids))
                if known.issuperset(ids):
                    return known
                raise StaleLanes(stale.done | known) from None
            return inserted | set(self.store.lookup(ids))

        return self._try(lambda: self.store.enqueue(tasks, placed), resolve)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return self._try(lambda: self.store.claim(request), lambda: self.store.leased(request.token))

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        return self._try(lambda: self.store.extend(leases, ttl))

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        def seen() -> set[TaskId]:
            fates = self.store.lookup([change_id(change) for change in changes])
            return {change_id(change) for change in changes if _took_effect(change, fates)}

        def resolve() -> set[TaskId]:
            try:
                applied = self.store.apply(changes, placed)
            except StaleLanes as stale:
                raise StaleLanes(stale.done | seen()) from None
            return applied | seen()

        return self._try(lambda: self.store.apply(changes, placed), resolve)

    def due(self, limit: int) -> list[TaskRecord]:
        return self._try(lambda: self.store.due(limit))

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        return self._try(lambda: self.store.lookup(ids))

    def leased(self, token: str) -> list[TaskRecord]:
        return self._try(lambda: self.store.leased(token))

    def get(self, task_id: TaskId) -> TaskRecord | None:
        return self._try(lambda: self.store.get(task_id))

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        return self._try(lambda: self.store.find(route, states, limit, after))

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        return self._try(lambda: self.store.count(route, states, cap))

    def slices(self) -> list[Slice]:
        return self._try(self.store.slices)

    def explain(self, route: Route, limit: int) -> Explanation:
        return self._try(lambda: self.store.explain(route, limit))

    def purge(self, before: int, limit: int) -> int:
        return self._try(lambda: self.store.purge(before, limit))

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        def resolve() -> int:
            found = self.store.get_document(kind, key)
            if found is not None and found.body == body and found.revision == (revision or 0) + 1:
                return found.revision
            return self.store.put_document(kind, key, body, revision)

        return self._try(lambda: self.store.put_document(kind, key, body, revision), resolve)

    def get_document(self, kind: str, key: str) -> Document | None:
        return self._try(lambda: self.store.get_document(kind, key))

    def list_documents(self, kind: str) -> list[Document]:
        return self._try(lambda: self.store.list_documents(kind))

    def delete_document(self, kind: str, key: str) -> bool:
        return self._try(lambda: self.store.delete_document(kind, key))


class _Attempt(Protocol):
    """`Replaying._try`."""

    def __call__(self, action: Callable[[], T], /) -> T: ...


class ReplayingLanes:
    """The lanes inside, likewise. Every call but one may be made twice: what `open` and `close` began stands FILLING or
    CLOSING, and whoever looks for the unfinished goes on with it."""

    def __init__(self, lanes: Lanes, attempt: _Attempt) -> None:
        self._lanes = lanes
        self._try = attempt

    def read(self, since: int) -> LaneChanges:
        return self._try(lambda: self._lanes.read(since))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        return self._try(lambda: self._lanes.open(wanted))

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        return self._try(lambda: self._lanes.close(ids))

    def drained(self, epoch: int, timeout: float) -> bool:
        return self._try(lambda: self._lanes.drained(epoch, timeout))

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return self._try(lambda: self._lanes.ready_tasks(queue, matching, after, size))

    def fill(self, rows: Sequence[LaneRow]) -> None:
        self._try(lambda: self._lanes.fill(rows))

    def finish(self, ids: Collection[LaneId]) -> None:
        self._try(lambda: self._lanes.finish(ids))

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        return self._try(lambda: self._lanes.clear(ids, limit))

    def unfinished(self, silence: int) -> list[Lane]:
        return self._try(lambda: self._lanes.unfinished(silence))

    def note_work(self, ids: Collection[LaneId]) -> None:
        self._try(lambda: self._lanes.note_work(ids))

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        self._try(lambda: self._lanes.note_use(hits))

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return self._try(lambda: self._lanes.prune(after, size))

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        return self._try(lambda: self._lanes.sizes(ids, cap))

    def passed(self, queue: str, head: Head | None) -> int:
        return self._try(lambda: self._lanes.passed(queue, head))


def within(store: Store) -> Store:
    """The store inside, which has optional powers or not. Nothing that these do is replayed."""
    return store.store if isinstance(store, Replaying) else store


def log_error(error: StoreError) -> None:
    """Put an error into the log, with its cause."""
    # Without a cause it is a sentence of ours, of which a traceback says no more.
    cause = None if error.__cause__ is None else error
    _log.warning("%s: %s", type(error).__name__, error, exc_info=cause)


def _took_effect(change: Change, fates: dict[TaskId, Fate]) -> bool:
    """Whether a change, sent once without an answer, is seen in the fate of its task (L6)."""
    fate = fates.get(change_id(change))
    if fate is None:
        return False
    match change:
        case Promote():
            return fate.state is State.READY
        case Cancel():
            return fate.state is State.CANCELLED
        case Revive():
            return fate.state in LIVE
        case Finish(lease, state):
            return fate.token == lease.token and fate.state is state
        case _:
            # Requeue, GiveBack, Expire: the task keeps the lease's token until the next claim.
            return fate.token == change.lease.token and fate.state is not State.RUNNING
