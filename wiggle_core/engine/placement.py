"""The one place through which tasks become READY: enqueue, retry, release, promotion, expiry and revival.

Each of them extracts the attributes anew from the stored payload (A2), puts the task into the lanes that it matches
(N2), and wakes the local workers that would take it. Whatever else has to happen to every READY task belongs here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from wiggle_core.criteria.tree import Value
from wiggle_core.engine.declarations import Declarations, Reading
from wiggle_core.engine.subscriptions import Subscriptions
from wiggle_core.errors import TaskRejected
from wiggle_core.lanes.book import Knowledge, LaneBook
from wiggle_core.stores.lanes import Placed
from wiggle_core.stores.store import (
    Change,
    Expire,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Store,
    change_id,
)
from wiggle_core.tasks.payload import MAX_PAYLOAD_BYTES
from wiggle_core.tasks.submission import NewTask, admit
from wiggle_core.tasks.task import State, TaskId, TaskRecord

T = TypeVar("T")
_log = logging.getLogger("wiggle.engine")


@dataclass(frozen=True, slots=True)
class Move:
    """A change, and the task as it will stand READY if the change takes effect; None when it will not be READY."""

    change: Change
    ready: TaskRecord | None = None


class Placement:
    """Puts tasks where they wait to be claimed."""

    def __init__(
        self,
        store: Store,
        book: LaneBook,
        declarations: Declarations,
        subscriptions: Subscriptions,
        longest_payload: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._store = store
        self._book = book
        self._declarations = declarations
        self._subscriptions = subscriptions
        self._longest_payload = longest_payload

    def enqueue(self, new: Sequence[NewTask]) -> tuple[list[TaskId], set[TaskId]]:
        """Store new tasks in one transaction: all their ids in order, and those inserted now.

        Raises TaskRejected before anything is stored.
        """
        now, attributes_of = self._store.now(), self._declarations.reading().attributes
        records = [admit(each, now, attributes_of, self._longest_payload) for each in new]
        inserted = self._book.place(
            lambda known: _placed(known, [each if each.state is State.READY else None for each in records]),
            lambda placed: self._store.enqueue(records, placed),
        )
        self._announce([each for each in records if each.state is State.READY and each.id in inserted])
        return [each.id for each in records], inserted

    def apply(self, moves: Sequence[Move]) -> set[TaskId]:
        """Apply changes, in transactions as large as the store takes; the ids of those that took effect."""
        applied: set[TaskId] = set()
        for part in parts(moves, self._store.capabilities.max_batch):
            done = self._apply(part)
            self._announce([move.ready for move in part if move.ready is not None and change_id(move.change) in done])
            applied |= done
        return applied

    def _apply(self, moves: Sequence[Move]) -> set[TaskId]:
        changes, ready = [move.change for move in moves], [move.ready for move in moves]
        return self._book.place(lambda known: _placed(known, ready), lambda placed: self._store.apply(changes, placed))

    def placing(self) -> Placing:
        """The moves of one call or batch, which share what is read of the declarations."""
        return Placing(self._declarations.reading())

    def _announce(self, ready: Sequence[TaskRecord]) -> None:
        if ready:
            self._subscriptions.announce(ready)


def _placed(known: Knowledge, ready: Sequence[TaskRecord | None]) -> Placed:
    """The lanes of tasks as they will stand READY; None for one that will not."""
    if not known.indexes:
        return Placed(known.epoch)
    return Placed(known.epoch, [() if task is None else known.entered(task, task.queue) for task in ready])


class Placing:
    """Makes the moves by which tasks become READY, attributes extracted for the run to come."""

    __slots__ = ("_reading",)

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def requeue(self, task: TaskRecord, delay: int, error: str | None) -> Move:
        """After a failed run: `delay` microseconds from now, or at once."""
        attributes = self._attributes(task)
        ready = replace(task, attempt=task.attempt + 1, attributes=attributes) if delay == 0 else None
        return Move(Requeue(task.lease, delay, attributes, error), ready)

    def give_back(self, task: TaskRecord) -> Move:
        """From a holder who will not run it."""
        attributes = self._attributes(task)
        return Move(GiveBack(task.lease, attributes), replace(task, attributes=attributes))

    def expire(self, task: TaskRecord, delay: int | None) -> Move:
        """From a holder whose lease ran out; `delay` None when no attempt is left."""
        if delay is None:
            return Move(Expire(task.lease, None, {}))
        attributes = self._attributes(task)
        ready = replace(task, attempt=task.attempt + 1, attributes=attributes) if delay == 0 else None
        return Move(Expire(task.lease, delay, attributes), ready)

    def promote(self, task: TaskRecord) -> Move:
        """A scheduled task that is due."""
        attributes = self._attributes(task)
        return Move(Promote(task.id, attributes), replace(task, attributes=attributes))

    def revive(self, task: TaskRecord) -> Move:
        """A failed or cancelled task, back from history."""
        attributes = self._attributes(task)
        return Move(Revive(task.id, attributes), replace(task, attempt=1, attributes=attributes))

    def _attributes(self, task: TaskRecord) -> Mapping[str, Value]:
        try:
            return self._reading.attributes(task.workflow, task.version, task.payload, task.attributes)
        except TaskRejected as error:
            # Put there by something other than this engine. It must not stop the sweep of all others (A3).
            _log.warning("task %s has no attributes: %s", task.id, error)
            return {}


def parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The sequence cut into pieces of at most `size`."""
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
