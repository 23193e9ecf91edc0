"""`Laned`: a store used as the engine uses it, each task placed in its lanes, for the checks of lanes (N1-N3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest

from wiggle_core.conformance.plugin import QUEUE, drain, find_by_pages, ids, in_order
from wiggle_core.criteria.tree import Predicate, normalize
from wiggle_core.lanes.book import Knowledge, LaneBook
from wiggle_core.lanes.filling import clear, complete
from wiggle_core.stores.changes import changed, makes_ready
from wiggle_core.stores.lanes import Lane, LaneRow, Lanes, NewLane, Placed
from wiggle_core.stores.store import Change, GiveBack, Route, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord

PATIENCE_SECONDS = 30.0
"""How long the checks wait for those who hold an old epoch; all of them go on."""
PRUNED_ROWS = 500

Moved: TypeAlias = tuple[Change, TaskRecord]
"""A change, and its task as it was before."""


@dataclass(frozen=True, slots=True)
class Laned:
    """One handle of a store with lanes, and what it knows of them."""

    store: Store
    book: LaneBook

    @classmethod
    def over(cls, store: Store) -> Laned:
        return cls(store, LaneBook(store))

    @property
    def lanes(self) -> Lanes:
        found = self.store.lanes
        assert found is not None, "the check is for stores with lanes"
        return found

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord]) -> set[TaskId]:
        """Store tasks, those that are READY in their lanes; the ids inserted now."""
        ready = [task if task.state is State.READY else None for task in tasks]
        return self.book.place(lambda known: placed(known, ready), lambda told: self.store.enqueue(tasks, told))

    def apply(self, moved: Sequence[Moved]) -> set[TaskId]:
        """Apply changes, the tasks that they make READY in their lanes; the ids of those that took effect."""
        now = self.store.now()
        ready = [changed(task, change, now) if makes_ready(change) else None for change, task in moved]
        changes = [change for change, _ in moved]
        return self.book.place(lambda known: placed(known, ready), lambda told: self.store.apply(changes, told))

    def release(self, tasks: Sequence[TaskRecord]) -> None:
        """Give claimed tasks back as they are."""
        moved: list[Moved] = [(GiveBack(task.lease, task.attributes), task) for task in tasks]
        assert self.apply(moved) == set(ids(tasks))

    # Lanes

    def begin(self, *predicates: Predicate, queue: str = QUEUE) -> list[Lane]:
        """Begin to fill the lanes of these predicates that there are not yet; the new ones."""
        return self.lanes.open([new_lane(each, queue) for each in predicates])

    def open(self, *predicates: Predicate, queue: str = QUEUE) -> list[Lane]:
        """The lane of each predicate, open."""
        assert complete(self.lanes, self.begin(*predicates, queue=queue), PATIENCE_SECONDS)
        known = self.book.refresh()
        return [known.by_predicate[queue, normalize(each)] for each in predicates]

    def close(self, *lanes: Lane) -> None:
        """Close lanes, their rows deleted."""
        assert clear(self.lanes, self.lanes.close([lane.id for lane in lanes]), PATIENCE_SECONDS)
        self.book.refresh()

    def content(self, lane: Lane) -> list[TaskId]:
        """What claims by the lane return until none is left, in the order of their answers; all are given back."""
        held = [task for claimed in drain(self.store, by_lane(lane), limit=1_000) for task in claimed]
        self.release(held)
        # Where order is kept by partition only, it is so within the answers of one claim.
        return ids(held) if self.store.capabilities.strict_order else in_order(held)

    def expected(self, lane: Lane) -> list[TaskId]:
        """What they should: the READY tasks that match, as `find` has them (C8)."""
        return ids(find_by_pages(self.store, replace(by_lane(lane), lane=None), 10_000))

    def size(self, lane: Lane) -> int:
        """How many rows the lane has, dead ones among them."""
        return self.lanes.sizes([lane.id], 10_000).get(lane.id, 0)

    def prune(self) -> None:
        """Look at all rows, and delete the dead ones."""
        after: LaneRow | None = None
        while (after := self.lanes.prune(after, PRUNED_ROWS)) is not None:
            pass


def new_lane(predicate: Predicate, queue: str = QUEUE) -> NewLane:
    """A lane for a predicate."""
    return NewLane(queue, normalize(predicate), "a check asks for it")


def by_lane(lane: Lane) -> Route:
    """A claim's route by a lane."""
    return Route(lane.queue, lane.predicate, lane.id)


def placed(known: Knowledge, ready: Sequence[TaskRecord | None]) -> Placed:
    """Where tasks go as they will stand READY; None for one that will not."""
    return Placed(known.epoch, [() if task is None else known.entered(task, task.queue) for task in ready])


@pytest.fixture
def laned(store: Store) -> Laned:
    """The test's store, placing tasks in lanes. Stores without lanes are excused."""
    return require_lanes(store)


def require_lanes(store: Store) -> Laned:
    """The store as `Laned`; skips the check, by name and reason, where there are no lanes."""
    if store.lanes is None:
        pytest.skip(f"{store.capabilities.name}: capability lanes is None, so every claim walks")
    return Laned.over(store)
