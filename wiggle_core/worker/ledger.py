"""The leases that a worker holds, from the claim to the settlement, and what it has counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import assert_never

from wiggle_core.tasks.outcome import Done, Fail, Outcome, Release, Retry
from wiggle_core.tasks.task import TaskId
from wiggle_core.worker.context import TaskContext

_log = logging.getLogger("wiggle.worker")


@dataclass(slots=True)
class Counts:
    """What a worker did since it was made. `done` to `released` count outcomes that the store accepted; `lost` those
    whose lease was gone, `dropped` those that no attempt to report got through in time."""

    claims: int = 0
    empty_claims: int = 0
    claimed: int = 0
    claim_seconds: float = 0.0
    done: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    dropped: int = 0
    errors: int = 0


def _counted_as(outcome: Outcome) -> str:
    match outcome:
        case Done():
            return "done"
        case Retry():
            return "retried"
        case Fail():
            return "failed"
        case Release():
            return "released"
        case _:
            assert_never(outcome)


class Ledger:
    """Who holds what. Locked once a batch, never once a task."""

    def __init__(self, counts: Counts) -> None:
        self._lock = Lock()
        self._held: dict[TaskId, TaskContext] = {}
        self._counts = counts

    def __len__(self) -> int:
        return len(self._held)

    def add(self, contexts: Iterable[TaskContext]) -> None:
        """Hold newly claimed tasks. A task that is held already was taken back before it could be claimed again."""
        with self._lock:
            for context in contexts:
                previous = self._held.get(context.id)
                if previous is not None:
                    self._lose(previous)
                self._held[context.id] = context

    def held(self) -> list[TaskContext]:
        """All that is held now."""
        with self._lock:
            return list(self._held.values())

    def confirm(self, contexts: Iterable[TaskContext], held: Callable[[TaskContext], bool], until: float) -> None:
        """Note which leases an extension found held; the others are lost, unless they are just being settled."""
        with self._lock:
            for context in contexts:
                if held(context):
                    context.sure_until = until
                elif not context.is_settling and self._held.get(context.id) is context:
                    self._lose(context)

    def settle(self, reports: Sequence[tuple[TaskContext, Outcome]], accepted: Collection[TaskId]) -> None:
        """Hold no more what was reported, and count what became of it."""
        with self._lock:
            for context, outcome in reports:
                if context.id in accepted:
                    self._count(_counted_as(outcome))
                elif not context.lease_lost:
                    self._lose(context)
                self._forget(context)

    def give_up(self, reports: Iterable[tuple[TaskContext, Outcome]]) -> None:
        """Hold no more what could not be reported: the leases run out, and the tasks are run again."""
        with self._lock:
            for context, _ in reports:
                self._count("dropped")
                self._forget(context)

    def abandon(self) -> list[TaskContext]:
        """Drop whatever still runs; its late results find their lease lost. What was held, to be released."""
        with self._lock:
            running = [context for context in self._held.values() if not context.is_settling]
            for context in running:
                context.lease_lost = True
            return running

    def count(self, field: str, by: float = 1) -> None:
        """Add to one of the counts."""
        with self._lock:
            self._count(field, by)

    def count_claim(self, claimed: int, seconds: float) -> None:
        """Count one claim, what it found and what it cost."""
        with self._lock:
            self._count("claims")
            self._count("empty_claims", claimed == 0)
            self._count("claimed", claimed)
            self._count("claim_seconds", seconds)

    def counts(self) -> Counts:
        """A copy of the counts."""
        with self._lock:
            return replace(self._counts)

    def _count(self, field: str, by: float = 1) -> None:
        setattr(self._counts, field, getattr(self._counts, field) + by)

    def _lose(self, context: TaskContext) -> None:
        context.lease_lost = True
        self._count("lost")
        self._forget(context)
        _log.warning("the lease on task %s was lost; its result is dropped", context.id)

    def _forget(self, context: TaskContext) -> None:
        if self._held.get(context.id) is context:
            del self._held[context.id]
