"""Deliberately wrong stores, each with the one rule that it breaks: what proves that the kit proves anything.

Each is the reference store with one mistake, of a kind that was met in real queues. A kit that does not catch one of
them has a hole where the mistake could be. Those that read criteria wrongly are in `misreading`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from pathlib import Path
from threading import Lock
from time import sleep

from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.errors import TransientStoreError
from wiggle_core.stores.changes import changed, is_leased, permits
from wiggle_core.stores.lanes import NO_LANES, LaneId, Placed
from wiggle_core.stores.memory import MemoryStore
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
    Route,
    Store,
    change_id,
)
from wiggle_core.tasks.task import LIVE, SETTLED, Clock, Lease, OrderKey, State, TaskId, TaskRecord, system_clock

PAUSE_SECONDS = 0.002
"""How long a saboteur that does two things in two steps waits between them, so that a race meets the gap for sure."""


@dataclass(frozen=True, slots=True)
class Saboteur:
    """A wrong store: what it does wrong, the rule it breaks, and the factory of its handles in an empty folder."""

    name: str
    rule: str
    make: Callable[[Path], StoreFactory]


def in_memory(make: Callable[[Clock | None], Store]) -> Callable[[Path], StoreFactory]:
    """A factory whose handles are all one object, as those of the reference store are."""

    def begin(_: Path) -> StoreFactory:
        opened: list[Store] = []

        def open_handle(clock: Clock | None = None) -> Store:
            if not opened:
                opened.append(make(clock))
            return opened[0]

        return open_handle

    return begin


class _Changing(MemoryStore):
    """The reference store, with what a change asks and makes as methods for saboteurs to get wrong."""

    def _take_effect(self, change: Change, now: int, lanes: Sequence[LaneId]) -> bool:
        task = self.get(change_id(change))
        if task is None or not self.permits(task, change, now):
            return False
        self._put(self.changed(task, change, now), lanes)
        return True

    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        return permits(task, change, now)

    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        return changed(task, change, now)


# Leases


class ExtendsWithoutToken(MemoryStore):
    def _holds(self, lease: Lease) -> bool:
        task = self._live.get(lease.task_id)
        return task is not None and task.state is State.RUNNING


class RefusesLateHeartbeats(MemoryStore):
    def _holds(self, lease: Lease) -> bool:
        return super()._holds(lease) and (self._live[lease.task_id].lease_until or 0) > self.now()


class SettlesWithoutToken(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        if isinstance(change, (Finish, Requeue, GiveBack)):
            return task.state is State.RUNNING
        return super().permits(task, change, now)


class SettlesInAnyState(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        if isinstance(change, (Finish, Requeue, GiveBack)):
            return task.token == change.lease.token
        return super().permits(task, change, now)


class ExpiresLate(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        return super().permits(task, change, now - 1 if isinstance(change, Expire) else now)


class ExpiresWithoutTheEnd(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        if isinstance(change, Expire):
            return is_leased(task, change.lease.token)
        return super().permits(task, change, now)


class KeepsTheFirstToken(MemoryStore):
    def _lease(self, task: TaskRecord, request: ClaimRequest, lease_until: int) -> TaskRecord:
        return super()._lease(task, replace(request, token=task.token or request.token), lease_until)


class LeasesByItsOwnClock(MemoryStore):
    def _lease(self, task: TaskRecord, request: ClaimRequest, lease_until: int) -> TaskRecord:
        return super()._lease(task, request, system_clock() + request.ttl)


class LeasesUnguarded(MemoryStore):
    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            first = self._first(request)
        sleep(PAUSE_SECONDS)
        with self._lock:
            live = [self._live[key.id] for key in first if key.id in self._live]
            return [self._lease(task, request, self.now() + request.ttl) for task in live]


class KeepsTheAttempt(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return replace(after, attempt=task.attempt) if isinstance(change, Expire) else after


class ReleasesToTheBack(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return replace(after, ready_at=now) if isinstance(change, GiveBack) else after


class PromotesToThePast(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return replace(after, ready_at=task.ready_at) if isinstance(change, Promote) else after


class RetriesWithOldAttributes(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return replace(after, attributes=task.attributes) if isinstance(change, (Requeue, Expire)) else after


class MixesAttributes(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return replace(after, attributes={**task.attributes, **after.attributes})


class ForgetsTheToken(_Changing):
    def changed(self, task: TaskRecord, change: Change, now: int) -> TaskRecord:
        after = super().changed(task, change, now)
        return after if after.state is State.RUNNING else replace(after, token=None)


class FindsNoClaim(MemoryStore):
    def leased(self, token: str) -> list[TaskRecord]:
        return super().leased(token)[1:]


class LooksAtTheLivingOnly(MemoryStore):
    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        return {task_id: fate for task_id, fate in super().lookup(ids).items() if fate.state in LIVE}


# Order and claim


class BreaksTiesBackwards(MemoryStore):
    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            keys = sorted(chain(*map(self._keys, request.routes)), key=lambda key: key.id, reverse=True)
            first = sorted(keys, key=lambda key: key[:3])[: request.limit]
            return [self._lease(self._live[key.id], request, self.now() + request.ttl) for key in first]


class ServesRoutesInTurn(MemoryStore):
    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        claimed: list[TaskRecord] = []
        for route in request.routes:
            part = replace(request, routes=(route,), limit=request.limit - len(claimed))
            claimed += super().claim(part)
        return claimed


class FindsByAge(MemoryStore):
    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        found = super().find(route, states, 10_000, after)
        return sorted(found, key=lambda task: (task.created_at, task.id))[:limit]


class ClaimsOneMore(MemoryStore):
    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return super().claim(replace(request, limit=request.limit + 1))


class LocksAllCandidates(MemoryStore):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._hidden: set[TaskId] = set()

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            free = [key for key in merge(*map(self._keys, request.routes)) if key.id not in self._hidden]
            self._hidden.update(key.id for key in free)
        sleep(5 * PAUSE_SECONDS)
        with self._lock:
            self._hidden.difference_update(key.id for key in free)
            still = [self._live[key.id] for key in free if key.id in self._live]
            return [self._lease(task, request, self.now() + request.ttl) for task in still[: request.limit]]


class ClaimsTheDue(MemoryStore):
    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            for task in list(self._live.values()):
                if task.state is State.SCHEDULED and task.ready_at <= self.now():
                    self._put(replace(task, state=State.READY))
            return super().claim(request)


class PromotesEarly(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        if isinstance(change, Promote):
            return task.state is State.SCHEDULED
        return super().permits(task, change, now)


class LooksAtTheHeadOnly(MemoryStore):
    def _walk(self, route: Route) -> Iterator[OrderKey]:
        head = set(self._ready.get(route.queue, ())[:200])
        return (key for key in super()._walk(route) if key in head)


# Enqueue, history and batches


class OverwritesWhatLives(MemoryStore):
    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            new = super().enqueue(tasks, placed)
            for index, task in enumerate(tasks):
                if task.id not in new and task.id in self._live:
                    self._put(task, placed.of(index))
            return new


class ForgetsTheSettled(MemoryStore):
    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            for task in tasks:
                self._history.pop(task.id, None)
            return super().enqueue(tasks, placed)


class LosesBetweenTwoCommits(MemoryStore):
    def _put(self, task: TaskRecord, lanes: Sequence[LaneId] = ()) -> TaskRecord:
        if task.state in SETTLED:
            self._remove(task.id)
            self._commit()
        return super()._put(task, lanes)

    def _commit(self) -> None:
        """Let everyone see what there is so far: `apply` holds the lock once."""
        self._lock.release()
        sleep(PAUSE_SECONDS)
        self._lock.acquire()


class DoublesBetweenTwoCommits(LosesBetweenTwoCommits):
    def _put(self, task: TaskRecord, lanes: Sequence[LaneId] = ()) -> TaskRecord:
        if task.state in SETTLED:
            self._history[task.id] = task
            self._commit()
        return MemoryStore._put(self, task, lanes)


class SparesTheRunning(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        is_spared = isinstance(change, Cancel) and task.state is State.RUNNING
        return not is_spared and super().permits(task, change, now)


class PurgesByAge(MemoryStore):
    def purge(self, before: int, limit: int) -> int:
        with self._lock:
            old = [task.id for task in self._history.values() if task.created_at < before][:limit]
            for task_id in old:
                self._remove(task_id)
            return len(old)


class RevivesTheDone(_Changing):
    def permits(self, task: TaskRecord, change: Change, now: int) -> bool:
        return (isinstance(change, Revive) and task.state in SETTLED) or super().permits(task, change, now)


class AppliesAllOrNothing(_Changing):
    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            now, tasks = self.now(), [self.get(change_id(change)) for change in changes]
            if any(task is None or not permits(task, each, now) for task, each in zip(tasks, changes, strict=True)):
                return set()
            return super().apply(changes, placed)


class LocksInTheOrderGiven(MemoryStore):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._rows: dict[TaskId, Lock] = {}

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._locked(map(change_id, changes)):
            return super().apply(changes, placed)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        with self._locked(lease.task_id for lease in leases):
            return super().extend(leases, ttl)

    @contextmanager
    def _locked(self, ids: Iterator[TaskId]) -> Iterator[None]:
        with ExitStack() as held:
            for task_id in dict.fromkeys(ids):
                row = self._rows.setdefault(task_id, Lock())
                if not row.acquire(timeout=100 * PAUSE_SECONDS):
                    raise TransientStoreError("a deadlock was found, and this call is its victim")
                held.callback(row.release)
                sleep(PAUSE_SECONDS / 4)
            yield


class NamesTheDueToEverybody(MemoryStore):
    def _is_reserved(self, task_id: TaskId, now: int) -> bool:
        return False


class OverwritesDocuments(MemoryStore):
    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        return super().put_document(kind, key, body)


class CountsPastTheCap(MemoryStore):
    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        return super().count(route, states, 10_000)


LIFE: tuple[Saboteur, ...] = (
    Saboteur("extends without the token", "L2", in_memory(ExtendsWithoutToken)),
    Saboteur("refuses heartbeats after the end", "L2", in_memory(RefusesLateHeartbeats)),
    Saboteur("settles without the token", "L2", in_memory(SettlesWithoutToken)),
    Saboteur("settles whatever the state", "L2", in_memory(SettlesInAnyState)),
    Saboteur("expires with < for <=", "L2", in_memory(ExpiresLate)),
    Saboteur("expires without testing the end again", "L2", in_memory(ExpiresWithoutTheEnd)),
    Saboteur("keeps the first token for every claim", "L2", in_memory(KeepsTheFirstToken)),
    Saboteur("ends leases by its own clock", "L1", in_memory(LeasesByItsOwnClock)),
    Saboteur("leases what it read before the lock", "L1", in_memory(LeasesUnguarded)),
    Saboteur("lets the attempt stand at expiry", "L3", in_memory(KeepsTheAttempt)),
    Saboteur("resets ready_at at a release", "L3", in_memory(ReleasesToTheBack)),
    Saboteur("keeps ready_at at a promotion", "L3", in_memory(PromotesToThePast)),
    Saboteur("retries with the old attributes", "A2", in_memory(RetriesWithOldAttributes)),
    Saboteur("keeps attributes that are gone", "A2", in_memory(MixesAttributes)),
    Saboteur("forgets the last token", "L6", in_memory(ForgetsTheToken)),
    Saboteur("finds a part of a claim by its token", "L6", in_memory(FindsNoClaim)),
    Saboteur("looks up the living only", "L6", in_memory(LooksAtTheLivingOnly)),
    Saboteur("breaks ties backwards", "O1", in_memory(BreaksTiesBackwards)),
    Saboteur("serves one route before the other", "O1", in_memory(ServesRoutesInTurn)),
    Saboteur("finds in another order than it claims", "O1", in_memory(FindsByAge)),
    Saboteur("claims one more than the limit", "O2", in_memory(ClaimsOneMore)),
    Saboteur("locks all candidates", "O2", in_memory(LocksAllCandidates)),
    Saboteur("claims scheduled tasks that are due", "O3", in_memory(ClaimsTheDue)),
    Saboteur("promotes before the time", "O3", in_memory(PromotesEarly)),
    Saboteur("walks the first 200 tasks only", "O4", in_memory(LooksAtTheHeadOnly)),
    Saboteur("overwrites at a second enqueue", "L4", in_memory(OverwritesWhatLives)),
    Saboteur("lets settled ids be enqueued again", "L4", in_memory(ForgetsTheSettled)),
    Saboteur("writes history after a commit of its own: loses", "L5", in_memory(LosesBetweenTwoCommits)),
    Saboteur("writes history in a commit before: doubles", "L5", in_memory(DoublesBetweenTwoCommits)),
    Saboteur("cannot cancel what runs", "L5", in_memory(SparesTheRunning)),
    Saboteur("purges by age instead of by end", "L5", in_memory(PurgesByAge)),
    Saboteur("locks rows in the order given", "L7", in_memory(LocksInTheOrderGiven)),
    Saboteur("declares anew over what is declared", "A1", in_memory(OverwritesDocuments)),
    Saboteur("revives what is done", "Section 8", in_memory(RevivesTheDone)),
    Saboteur("applies all changes or none", "Section 6", in_memory(AppliesAllOrNothing)),
    Saboteur("names what is due to two sweepers", "Section 6", in_memory(NamesTheDueToEverybody)),
    Saboteur("counts past the cap", "Section 6", in_memory(CountsPastTheCap)),
)
"""The saboteurs of tasks' lives: claims, leases, history."""
