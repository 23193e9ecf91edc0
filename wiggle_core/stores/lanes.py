"""Lanes as a store keeps them (design N1-N3): what they are, and the `Lanes` protocol.

A lane holds the READY tasks of one queue that match one predicate, in claim order, so that a claim by a rare predicate
reads its first tasks instead of walking the queue. Which lanes a task enters is decided by the core, with the reference
evaluator; a store keeps the rows, and the numbers by which a change of lanes loses none of them:

- The *epoch* grows whenever a lane begins to fill or to close. Who makes tasks READY says by which epoch it placed
  them, holds that number while its transaction lasts, and is refused with StaleLanes when it is not the present one.
- `ready_no` of a task grows each time it enters READY, and is part of its lane rows. A row is live while its task is
  READY with that number; every other row is dead: no claim returns its task, and a claim or `prune` that meets it
  deletes it. Nothing makes a dead row live again.
- The *revision* grows with every change of a lane, that from FILLING to OPEN included, and tells what there is to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from wiggle_core.criteria.tree import Predicate
from wiggle_core.tasks.task import OrderKey, TaskRecord

LaneId: TypeAlias = int
"""Never used twice in one store."""


class LaneState(StrEnum):
    """Where a lane is in its life: tasks enter it while it is FILLING or OPEN, claims may name it while it is OPEN."""

    FILLING = "FILLING"
    OPEN = "OPEN"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"
    """Its rows are gone; it is kept for a while to tell those who knew it."""


@dataclass(frozen=True, slots=True)
class NewLane:
    """A lane that is wanted. `predicate` is in normal form; `reason` is a sentence for people.

    A pinned lane was asked for by hand, and stays until it is closed by hand.
    """

    queue: str
    predicate: Predicate
    reason: str
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane. Times are in the database's epoch microseconds.

    `epoch` is the one that its last opening or closing began. `hits` are tasks that were claimed through it, as far as
    they have been noted.
    """

    id: LaneId
    queue: str
    predicate: Predicate
    state: LaneState
    epoch: int
    reason: str
    is_pinned: bool
    opened_at: int
    used_at: int
    hits: int = 0


@dataclass(frozen=True, slots=True)
class LaneChanges:
    """What changed since a revision: these lanes are now as told here; with `is_whole` there are no others."""

    epoch: int
    revision: int
    is_whole: bool
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The lanes that tasks enter when a call makes them READY, decided when the epoch was `epoch`.

    `lanes` goes along with the tasks or changes of the call, one entry each; empty when none enters any lane. An entry
    counts only when its task is READY once the call has taken effect.
    """

    epoch: int
    lanes: Sequence[Sequence[LaneId]] = ()

    def of(self, index: int) -> Sequence[LaneId]:
        """The lanes that the task or change of this index enters."""
        return self.lanes[index] if self.lanes else ()


NO_LANES = Placed(0)
"""How tasks are placed in a store that has never had a lane."""


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A place of a task in a lane."""

    lane: LaneId
    key: OrderKey
    ready_no: int


@dataclass(frozen=True, slots=True)
class ReadyTasks:
    """Some READY tasks of a queue in claim order, each with its `ready_no`, payloads left out.

    `last` is where the next part begins: the key of the last task that was looked at, or None at the end of the queue.
    """

    tasks: tuple[tuple[TaskRecord, int], ...]
    last: OrderKey | None


@dataclass(frozen=True, slots=True)
class Head:
    """A lane of the READY tasks of a queue that come before a bound in its claim order: those with a lower priority, or
    with this priority and an earlier `created_at`, in epoch microseconds.

    With it a walk begins at the bound, and need not pass by what left the queue before it.
    """

    lane: LaneId
    priority: int
    created_at: int

    def is_before(self, key: OrderKey) -> bool:
        """Whether the lane has the task of this place, or had it."""
        return (key.priority, key.created_at) < (self.priority, self.created_at)


class Lanes(Protocol):
    """The lanes of a store; `Store.lanes`. Thread-safe. Raises StoreError for any trouble with the database."""

    def read(self, since: int) -> LaneChanges:
        """The lanes that changed after a revision, CLOSED ones among them; all that are not CLOSED for revision 0, or
        when the store has forgotten some that closed since."""
        ...

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        """Begin to fill those of these lanes that are not FILLING or OPEN already, in one transaction that makes the
        epoch grow by one; the new ones. One that is there already is pinned, if this is asked for.

        When all are there the epoch stays. Nobody waits but two callers of this and of `close` for each other.
        """
        ...

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        """Begin to close those of these lanes that are FILLING or OPEN, in one transaction that makes the epoch grow by
        one; those that are CLOSING now."""
        ...

    def drained(self, epoch: int, timeout: float) -> bool:
        """Wait until nobody holds an epoch below this one any more, for at most `timeout` seconds; whether that came.

        Nobody waits for the caller meanwhile (N3).
        """
        ...

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        """The next `size` READY tasks of a queue behind `after`, those left out that match none of `matching`; an empty
        `matching` leaves out none. The tasks were READY with their `ready_no` at one time."""
        ...

    def fill(self, rows: Sequence[LaneRow]) -> None:
        """Put tasks into those of these lanes that are FILLING or OPEN, in one short transaction. A row that is there
        already is left as it is, and one that is dead by now does no harm."""
        ...

    def finish(self, ids: Collection[LaneId]) -> None:
        """Those of these lanes that are FILLING are OPEN from now on."""
        ...

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        """Delete at most `limit` rows of these lanes, which are CLOSING, without waiting for any that are locked; how
        many were. Lanes of which none is left are CLOSED from now on."""
        ...

    def unfinished(self, silence: int) -> list[Lane]:
        """The lanes that are FILLING or CLOSING and that nobody has worked on for `silence` microseconds. They are the
        caller's for as long; `note_work` makes it longer."""
        ...

    def note_work(self, ids: Collection[LaneId]) -> None:
        """Tell that these lanes are still being filled or cleared."""
        ...

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        """Tell that these lanes have a worker now, and how many more tasks were claimed through each."""
        ...

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        """Look at the next `size` rows of all lanes, and delete those that are dead or belong to no lane, without
        waiting for any that are locked; where to go on, None at the end."""
        ...

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        """How many rows each of these lanes has, counted up to `cap`, dead ones among them."""
        ...

    def passed(self, queue: str, head: Head | None) -> int:
        """How many pages a walk by this head, or by none, reads before it finds the first READY task: few, unless there
        is much that left the queue and was not cleaned away. 0 where this costs nothing."""
        ...
