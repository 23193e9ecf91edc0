"""Walk or lane (N4): claims by the lanes that are open, and which further criteria should have one.

A walk costs what it passes by. Where of the first READY tasks so few match that passing the others by costs more than a
lane, a lane is wanted. Claims only take notes: they are never kept waiting for a probe or for a lane to fill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock
from time import monotonic

from wiggle_core.criteria.tree import TRUE
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.book import PLACEMENTS, LaneBook
from wiggle_core.stores.lanes import Head, Lane, LaneId, LaneState, NewLane
from wiggle_core.stores.store import ClaimRequest, Route, Store
from wiggle_core.tasks.feasibility import can_match
from wiggle_core.tasks.task import OrderKey, TaskRecord

REFRESH_SECONDS = 1.0
"""How old a claim's knowledge of lanes may be; one that only lacks a lane walks, and loses nothing but time."""
PROBE_ROWS = 2_000
"""How many READY tasks a probe looks at; no claim has to pass by more of them once its lane is open."""
PROBE_AGAIN_SECONDS = 5.0
"""How soon a walk that became slow is probed again."""
SLOW_SECONDS = 0.002
"""A walk that takes so long may have passed by much; whether it did is told by the probe."""
FORGOTTEN_SECONDS = 60.0
"""A route that has not claimed for so long is no longer in use."""
MAX_LANES = 10_000
"""How many lanes a queue may have."""


class LanePolicy(StrEnum):
    """`WIGGLE_LANES`: which criteria have lanes."""

    AUTO = "auto"
    """Those for which a walk would cost more than a lane."""
    ON = "on"
    """All of them."""
    OFF = "off"
    """None: every claim walks, however far."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How claims by a route go, and why; a lane that is wanted but not open yet has its reason in `wanted`."""

    plan: str
    """`walk` or `lane`."""
    reason: str
    wanted: str | None = None
    lane: LaneId | None = None
    """The lane by which they go, if they do."""
    head: Head | None = None
    """The head by which they walk, if they do."""


@dataclass(slots=True)
class _Use:
    """A route in use: when it claimed last, whether it should be probed, and what the last probe said."""

    claimed_at: float
    probed_at: float = float("-inf")
    is_probe_due: bool = True
    verdict: Verdict | None = None


@dataclass(slots=True)
class _Walk:
    """A queue that is walked: when that was last, and the last place in its order where a task was found since it was
    asked for."""

    claimed_at: float
    reached: OrderKey | None = None


@dataclass(slots=True)
class _Notes:
    uses: dict[Route, _Use] = field(default_factory=dict)
    walks: dict[str, _Walk] = field(default_factory=dict)
    hits: Counter[LaneId] = field(default_factory=Counter)


class Planner:
    """Decides how the routes of one engine claim. Thread-safe."""

    def __init__(
        self, store: Store, book: LaneBook, policy: LanePolicy, clock: Callable[[], float] = monotonic
    ) -> None:
        self.policy = policy
        self._store = store
        self._book = book
        self._clock = clock
        self._lock = Lock()
        self._notes = _Notes()
        self._refreshed_at = float("-inf")
        self._has_lanes = store.lanes is not None and policy is not LanePolicy.OFF
        self.has_heads = self._has_lanes and store.capabilities.heads
        """Whether walks go by heads."""

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        """The claim, by lanes where there are any. Raises StoreError."""
        is_needed = self.has_heads or any(route.predicate != TRUE for route in request.routes)
        if not self._has_lanes or not is_needed:
            return self._store.claim(request)
        if self._clock() - self._refreshed_at >= REFRESH_SECONDS:
            self._refresh()
        for _ in range(PLACEMENTS):
            planned = self._book.with_lanes(request.routes)
            began = self._clock()
            try:
                claimed = self._store.claim(replace(request, routes=planned))
            except StaleLanes:
                self._refresh()
                continue
            self._note(planned, claimed, began)
            return claimed
        return self._store.claim(request)

    def _refresh(self) -> None:
        self._refreshed_at = self._clock()
        self._book.refresh()

    def _note(self, routes: Sequence[Route], claimed: Sequence[TaskRecord], began: float) -> None:
        now = self._clock()
        is_slow = now - began >= SLOW_SECONDS
        by_queue = {route.queue: route for route in routes}
        with self._lock:
            for route in routes:
                if route.predicate != TRUE:
                    self._note_use(Route(route.queue, route.predicate), now, is_slow and route.lane is None)
                if route.lane is None:
                    self._notes.walks.setdefault(route.queue, _Walk(now)).claimed_at = now
            self._note_tasks(by_queue, claimed)

    def _note_tasks(self, routes: Mapping[str, Route], claimed: Sequence[TaskRecord]) -> None:
        lanes = {queue: next(iter(route.lanes), None) for queue, route in routes.items()}
        last: dict[str, TaskRecord] = {}
        for task in claimed:
            lane, head = lanes[task.queue], routes[task.queue].head
            if lane is not None and head is not None and not head.is_before(task.order_key):
                lane = lanes[task.queue] = None  # nor is any task behind this one
            if lane is not None:
                self._notes.hits[lane] += 1
            last[task.queue] = task
        for queue, task in last.items():
            if routes[queue].lane is None:
                walk = self._notes.walks[queue]
                walk.reached = max(task.order_key, walk.reached or task.order_key)

    def _note_use(self, route: Route, now: float, is_slow: bool) -> None:
        use = self._notes.uses.setdefault(route, _Use(now))
        use.claimed_at = now
        if is_slow and now - use.probed_at >= PROBE_AGAIN_SECONDS:
            use.is_probe_due = True

    # For the lanes' keeper

    def wanted(self) -> list[NewLane]:
        """The lanes that the routes in use should have and do not, probing those of which that is not known."""
        found = [new for route in self._due() if (new := self._decided(route)) is not None]
        room = {queue: MAX_LANES - self._count(queue) for queue in {new.queue for new in found}}
        kept = []
        for new in found:
            room[new.queue] -= 1
            if room[new.queue] >= 0:
                kept.append(new)
        return kept

    def walked(self) -> dict[str, OrderKey | None]:
        """The queues that are walked, each with the last place in its order where a task was found since this was asked
        last, if any was."""
        longest = self._clock() - FORGOTTEN_SECONDS
        with self._lock:
            walks = {queue: walk for queue, walk in self._notes.walks.items() if walk.claimed_at >= longest}
            reached = {queue: walk.reached for queue, walk in walks.items()}
            self._notes.walks = {queue: _Walk(walk.claimed_at) for queue, walk in walks.items()}
            return reached

    def _due(self) -> list[Route]:
        now = self._clock()
        with self._lock:
            uses = self._notes.uses
            for route in [each for each, use in uses.items() if now - use.claimed_at > FORGOTTEN_SECONDS]:
                del uses[route]
            due = [route for route, use in uses.items() if use.is_probe_due and self._lane(route) is None]
            for route in due:
                uses[route].is_probe_due = False
                uses[route].probed_at = now
            return due

    def _decided(self, route: Route) -> NewLane | None:
        verdict = self.verdict(route)
        if verdict.wanted is None:
            return None
        return NewLane(route.queue, route.predicate, verdict.wanted)

    def verdict(self, route: Route) -> Verdict:
        """How claims by a route go, by what is known of the lanes, and by a probe where none is open."""
        found = self._judged(route)
        head = self._book.known.heads.get(route.queue) if found.lane is None and self.has_heads else None
        return replace(found, head=head)

    def _judged(self, route: Route) -> Verdict:
        lane = self._lane(route)
        if self._store.lanes is None:
            return Verdict("walk", "the store has no lanes")
        if route.predicate == TRUE:
            return Verdict("walk", "every task of the queue matches")
        if not can_match(route.predicate):
            return Verdict("walk", "no task can match")
        if lane is not None and self.policy is not LanePolicy.OFF:
            if lane.state is LaneState.OPEN:
                return Verdict("lane", lane.reason, lane=lane.id)
            return Verdict("walk", "its lane is being filled")
        if self.policy is LanePolicy.OFF:
            return Verdict("walk", "WIGGLE_LANES=off")
        if self._count(route.queue) >= MAX_LANES:
            return Verdict("walk", f"queue {route.queue!r} has {MAX_LANES} lanes, and gets no more")
        if self.policy is LanePolicy.ON:
            return Verdict("walk", "it has no lane yet", "WIGGLE_LANES=on")
        return self._probed(route)

    def _probed(self, route: Route) -> Verdict:
        lanes = self._store.lanes
        assert lanes is not None, "asked before"
        part = lanes.ready_tasks(route.queue, [route.predicate], None, PROBE_ROWS)
        told = f"{len(part.tasks)} of the first {PROBE_ROWS} ready tasks match"
        if part.last is None:
            return Verdict("walk", f"the queue has fewer than {PROBE_ROWS} ready tasks")
        if len(part.tasks) >= PROBE_ROWS * self._store.capabilities.rare_below:
            return Verdict("walk", told)
        return Verdict("walk", "it has no lane yet", told)

    def _lane(self, route: Route) -> Lane | None:
        return self._book.known.by_predicate.get((route.queue, route.predicate))

    def _count(self, queue: str) -> int:
        return sum(lane.queue == queue for lane in self._book.known.lanes.values())

    def take_hits(self) -> dict[LaneId, int]:
        """The lanes of the routes in use, and the heads of the queues that are walked, with how many tasks were claimed
        through each since this was asked last."""
        heads = self._book.known.heads
        with self._lock:
            hits, self._notes.hits = self._notes.hits, Counter()
            used = {lane.id for route in self._notes.uses if (lane := self._lane(route)) is not None}
            used |= {heads[queue].lane for queue in self._notes.walks if queue in heads}
        return {each: hits[each] for each in used | set(hits)}
