"""`LaneKeeper`: opens the lanes that claims should have, goes on with those that were left, closes those without use.

Any number of processes do this at once: every step may be done twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic

from wiggle_core.criteria.text import format_text
from wiggle_core.criteria.tree import TRUE
from wiggle_core.errors import CriteriaError, NoLanes
from wiggle_core.lanes.book import LaneBook
from wiggle_core.lanes.filling import clear, complete, resume
from wiggle_core.lanes.heads import before, head_of
from wiggle_core.lanes.planner import MAX_LANES, Planner, Verdict
from wiggle_core.stores.lanes import Lane, LaneId, LaneRow, Lanes, LaneState, NewLane
from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.feasibility import can_match
from wiggle_core.tasks.task import OrderKey

_log = logging.getLogger("wiggle.lanes")

PATIENCE_SECONDS = 5.0
"""How long the opening of lanes waits for transactions that began before it; then it is left for a later pass."""
SILENCE_SECONDS = 30.0
"""After so long without a word, lanes that are being filled or cleared are anybody's."""
IDLE_SECONDS = 600.0
"""Lanes that had no worker for so long are closed."""
NOTE_SECONDS = 10.0
"""How often it is told which lanes are in use, and a part of the rows looked at for dead ones."""
TIDY_SECONDS = 60.0
"""How often idle lanes are looked for."""
PRUNE_SECONDS = 0.5
"""How long one pass looks at rows of lanes for dead ones."""
PRUNED_ROWS = 5_000
"""How many rows are looked at in a transaction."""
HEAD_SECONDS = 2.0
"""How often it is looked how much the walks of a queue pass by."""
MOVED_PAGES = 150
"""Where walks pass by so many pages, the queue's head moves on. On PostgreSQL these take 0.5 ms of a claim."""
SPARED_PAGES = 30
"""A head is closed where walks would pass by fewer without it."""
HEAD_TASKS = 200
"""Of how many READY tasks the last one is the bound of a new head."""


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """A lane as people are told of it: its rows, dead ones included, counted up to a cap, and its age in seconds."""

    lane: Lane
    size: int
    age: float


class LaneKeeper:
    """The lanes of one engine's store. Thread-safe, but for `care`, which one thread calls."""

    def __init__(self, store: Store, book: LaneBook, planner: Planner, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._book = book
        self._planner = planner
        self._clock = clock
        self._noted_at = self._tidied_at = self._looked_at = clock()
        self._pruned: LaneRow | None = None

    # By hand

    def infos(self, cap: int = 100_000) -> list[LaneInfo]:
        """The lanes that are not CLOSED, by id. Raises NoLanes, StoreError."""
        lanes, now = self._lanes(), self._store.now()
        present = sorted(lanes.read(0).lanes, key=lambda lane: lane.id)
        sizes = lanes.sizes([lane.id for lane in present], cap)
        return [LaneInfo(lane, sizes.get(lane.id, 0), (now - lane.opened_at) / 1_000_000) for lane in present]

    def open(
        self, routes: Sequence[Route], reason: str = "by hand", *, patience: float = PATIENCE_SECONDS
    ) -> list[Lane]:
        """Open a lane for each route, and fill all of them in one pass. They stay until they are closed by hand.

        Returns them as they are then: FILLING still when somebody else fills them, or when for `patience` seconds
        somebody held a transaction that began before; a later pass goes on, and so does calling this again. Raises
        NoLanes, StoreError; CriteriaError, with nothing opened, for a predicate that takes every task or none, and for
        more than MAX_LANES in a queue.
        """
        self._require_room(routes)
        for route in routes:
            _require_choice(route)
        wanted = [NewLane(route.queue, route.predicate, reason, is_pinned=True) for route in routes]
        resume(self._lanes(), SILENCE_SECONDS, patience)
        return self._open(wanted, patience)

    def _require_room(self, routes: Sequence[Route]) -> None:
        known = self._book.refresh()
        present = Counter(lane.queue for lane in known.lanes.values())
        new = {route for route in routes if (route.queue, route.predicate) not in known.by_predicate}
        for queue, more in Counter(route.queue for route in new).items():
            if present[queue] + more > MAX_LANES:
                raise CriteriaError(f"queue {queue!r} has {present[queue]} lanes, and at most {MAX_LANES} (N4)")

    def close(self, ids: Collection[LaneId], *, patience: float = PATIENCE_SECONDS) -> list[Lane]:
        """Close lanes, and delete their rows; those that this call began to close. Raises NoLanes, StoreError."""
        lanes = self._lanes()
        closing = lanes.close(ids)
        clear(lanes, closing, patience)
        self._book.refresh()
        return closing

    def verdict(self, route: Route) -> Verdict:
        """How claims by a route go now, and why (N5). Raises StoreError."""
        self._book.refresh()
        return self._planner.verdict(route)

    def _lanes(self) -> Lanes:
        if self._store.lanes is None:
            raise NoLanes(f"the store {self._store.capabilities.name} has no lanes")
        return self._store.lanes

    def _open(self, wanted: Sequence[NewLane], patience: float) -> list[Lane]:
        lanes = self._lanes()
        complete(lanes, lanes.open(wanted), patience)
        known = self._book.refresh()
        found = [known.by_predicate.get((new.queue, new.predicate)) for new in wanted]
        present = [lane for lane in found if lane is not None]
        _log.info("%d of %d lanes are open", sum(lane.state is LaneState.OPEN for lane in present), len(wanted))
        return present

    # Again and again

    def care(self) -> None:
        """One pass: open what is wanted, go on with what was left, tell what is used, close what is not. Raises
        StoreError."""
        lanes = self._store.lanes
        if lanes is None:
            return
        self._book.refresh()
        wanted = self._planner.wanted()
        if wanted:
            for new in wanted:
                _log.info("a lane opens on queue %r: %s", new.queue, new.reason)
            self._open(wanted, PATIENCE_SECONDS)
        if self._planner.has_heads and self._clock() - self._looked_at >= HEAD_SECONDS:
            self._looked_at = self._clock()
            self._move_heads(lanes)
        if self._book.known.lanes:
            self._keep(lanes)

    def note_use(self) -> None:
        """Tell which lanes are in use, and how many tasks were claimed through each since it was told last. Raises
        StoreError."""
        used = self._planner.take_hits()
        if used and self._store.lanes is not None:
            self._store.lanes.note_use(used)

    def _keep(self, lanes: Lanes) -> None:
        if any(lane.state is not LaneState.OPEN for lane in self._book.known.lanes.values()):
            resume(lanes, SILENCE_SECONDS, PATIENCE_SECONDS)
        if self._clock() - self._noted_at >= NOTE_SECONDS:
            self._noted_at = self._clock()
            self.note_use()
            self._prune(lanes)
        if self._clock() - self._tidied_at >= TIDY_SECONDS:
            self._tidied_at = self._clock()
            self._close_idle(lanes)
            self._close_needless_heads(lanes)

    def _prune(self, lanes: Lanes) -> None:
        """Go on where the last pass ended. Walks leave the rows of what they claim in lanes, faster than one part of
        them at a time could follow."""
        until = self._clock() + PRUNE_SECONDS
        while True:
            self._pruned = lanes.prune(self._pruned, PRUNED_ROWS)
            if self._pruned is None or self._clock() >= until:
                return

    def _move_heads(self, lanes: Lanes) -> None:
        for queue, reached in self._planner.walked().items():
            head = self._book.known.heads.get(queue)
            pages = lanes.passed(queue, head)
            if pages >= MOVED_PAGES and not self._heads(queue, LaneState.FILLING):
                bound = _bound(lanes, queue, reached)
                if bound is not None and (head is None or bound[:2] != (head.priority, head.created_at)):
                    self._move_head(queue, bound, f"the head of the queue, where walks had passed by {pages} pages")

    def _move_head(self, queue: str, bound: OrderKey, reason: str) -> None:
        _log.info("the head of queue %r moves: %s", queue, reason)
        predicate = before(bound.priority, bound.created_at)
        for new in self._open([NewLane(queue, predicate, reason)], PATIENCE_SECONDS):
            if new.state is LaneState.OPEN:
                # Another process may have moved it as well, and will close this one then.
                self.close([lane.id for lane in self._heads(queue, LaneState.OPEN) if lane.id < new.id])

    def _close_needless_heads(self, lanes: Lanes) -> None:
        for queue in self._book.known.heads:
            if lanes.passed(queue, None) < SPARED_PAGES:
                self.close([lane.id for lane in self._heads(queue, LaneState.OPEN)])

    def _heads(self, queue: str, state: LaneState) -> list[Lane]:
        """The heads of a queue that nobody asked for by hand."""
        present = [each for each in self._book.known.lanes.values() if each.queue == queue and each.state is state]
        return [lane for lane in present if not lane.is_pinned and head_of(lane) is not None]

    def _close_idle(self, lanes: Lanes) -> None:
        longest = self._store.now() - round(IDLE_SECONDS * 1_000_000)
        idle = [
            lane.id
            for lane in lanes.read(0).lanes
            if lane.state is LaneState.OPEN and not lane.is_pinned and lane.used_at < longest
        ]
        if idle:
            _log.info("%d lanes close: nobody has claimed through them for %d minutes", len(idle), IDLE_SECONDS // 60)
            self.close(idle)


def _bound(lanes: Lanes, queue: str, reached: OrderKey | None) -> OrderKey | None:
    """Where a new head of a queue ends: few READY tasks come before. If they are all that there are, it goes as far as
    claims came lately; None when there is neither."""
    part = lanes.ready_tasks(queue, [], None, HEAD_TASKS)
    places = [task.order_key for task, _ in part.tasks]
    if part.last is None and reached is not None:
        places.append(reached)
    return max(places, default=None)


def _require_choice(route: Route) -> None:
    if route.predicate == TRUE:
        raise CriteriaError(f"a lane would hold all of queue {route.queue!r}: these criteria take every task")
    if not can_match(route.predicate):
        raise CriteriaError(f"a lane would stay empty: no task can match {format_text(route.predicate)}")
