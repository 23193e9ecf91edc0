"""`LaneBook`: what one process knows of the lanes of its store, and placing tasks by it (N2, N3).

What is known may be old. The store refuses whatever was decided by lanes that have changed since; then the changes are
read, and it is decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from wiggle_core.criteria.evaluate import Evaluable, Matcher, compile_predicate
from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import StaleLanes, TransientStoreError
from wiggle_core.lanes.heads import open_heads
from wiggle_core.lanes.matching import LaneIndex
from wiggle_core.stores.lanes import Head, Lane, LaneChanges, LaneId, LaneState, Placed
from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.task import TaskId

PLACEMENTS = 20
"""How often a call places its tasks anew before it gives up. Lanes that change so fast are a fault of somebody's."""

ENTERED = frozenset({LaneState.FILLING, LaneState.OPEN})
"""The states in which tasks enter a lane."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The lanes as of a revision; immutable, so that readers need no lock."""

    epoch: int = 0
    revision: int = 0
    lanes: Mapping[LaneId, Lane] = field(default_factory=dict)
    indexes: Mapping[str, LaneIndex] = field(default_factory=dict)
    by_predicate: Mapping[tuple[str, Predicate], Lane] = field(default_factory=dict)
    heads: Mapping[str, Head] = field(default_factory=dict)
    """By queue, for stores that claim by them."""

    def entered(self, task: Evaluable, queue: str) -> Sequence[LaneId]:
        """The lanes that a task of the queue enters when it becomes READY."""
        index = self.indexes.get(queue)
        return () if index is None else index.lanes_of(task)


class LaneBook:
    """The lanes of a store as this process knows them. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._matchers: dict[LaneId, Matcher] = {}
        self.known = Knowledge()
        """Replaced, never changed."""

    def refresh(self) -> Knowledge:
        """Read what changed; what is known then. Raises StoreError."""
        lanes = self._store.lanes
        if lanes is None:
            return self.known
        with self._lock:
            changes = lanes.read(self.known.revision)
            if changes.revision != self.known.revision or changes.epoch != self.known.epoch:
                self.known = self._merged(changes)
            return self.known

    def _merged(self, changes: LaneChanges) -> Knowledge:
        before = {} if changes.is_whole else self.known.lanes
        lanes = {**before, **{lane.id: lane for lane in changes.lanes}}
        lanes = {each: lane for each, lane in lanes.items() if lane.state is not LaneState.CLOSED}
        entered = [lane for lane in lanes.values() if lane.state in ENTERED]
        by_queue: dict[str, list[Lane]] = {}
        for lane in entered:
            by_queue.setdefault(lane.queue, []).append(lane)
        self._matchers = {each: found for each, found in self._matchers.items() if each in lanes}
        return Knowledge(
            changes.epoch,
            changes.revision,
            lanes,
            {queue: self._index(queue, each, changes) for queue, each in by_queue.items()},
            {(lane.queue, lane.predicate): lane for lane in entered},
            open_heads(entered) if self._store.capabilities.heads else {},
        )

    def _index(self, queue: str, lanes: Sequence[Lane], changes: LaneChanges) -> LaneIndex:
        """The index of a queue; the one there was, where nothing of this queue changed."""
        present = self.known.indexes.get(queue)
        if present is not None and not changes.is_whole and all(lane.queue != queue for lane in changes.lanes):
            return present
        return LaneIndex(lanes, self._matcher_of)

    def _matcher_of(self, lane: Lane) -> Matcher:
        found = self._matchers.get(lane.id)
        if found is None:
            found = self._matchers[lane.id] = compile_predicate(lane.predicate)
        return found

    def place(self, decide: Callable[[Knowledge], Placed], act: Callable[[Placed], set[TaskId]]) -> set[TaskId]:
        """Do what makes tasks READY, placed as `decide` says, again and again until the lanes did not change meanwhile;
        the tasks of which `act` tells that it was done.

        Raises TransientStoreError when they never stop to.
        """
        known = self.known
        done: set[TaskId] = set()
        for _ in range(PLACEMENTS):
            try:
                return done | act(decide(known))
            except StaleLanes as stale:
                done |= stale.done
                known = self.refresh()
        raise TransientStoreError("the lanes of the store change so fast that no task can be placed")

    def with_lanes(self, routes: Sequence[Route]) -> tuple[Route, ...]:
        """The routes, each by its lane if there is an open one, else by its queue's head."""
        return tuple(map(self._with_lane, routes))

    def _with_lane(self, route: Route) -> Route:
        lane = self.known.by_predicate.get((route.queue, route.predicate))
        if lane is None or lane.state is not LaneState.OPEN:
            return Route(route.queue, route.predicate, head=self.known.heads.get(route.queue))
        return Route(route.queue, route.predicate, lane.id)
