"""Claims: read candidates shard by shard, let the core's evaluator decide, and take them by one conditional batch a
shard (CA2, CA6).

A claim looks at some shards, in an order of chance, and takes what comes first from the one whose first task is first.
Only when these have too little does it look at all others. Within a shard the order is exact (O1).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from threading import Lock
from uuid import UUID

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.criteria.tree import TRUE, Predicate
from wiggle_core.errors import PermanentStoreError, StaleLanes, TransientStoreError
from wiggle_core.stores.lanes import LaneState
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import OrderKey, State, TaskRecord
from wiggle_store_cassandra.book import Book
from wiggle_store_cassandra.reading import Reading, Wanted, begin
from wiggle_store_cassandra.rows import Stored, become, read_body
from wiggle_store_cassandra.shards import Shards

PEEKED = 4
"""How many shards a claim looks at before it takes the best: more of them order better, and cost more to read."""
ROWS_A_SHARD = 2_000
"""How many rows that do not match one claim passes by in a shard. The next one by the same predicate goes on there."""
PAGE = 200
"""How many rows are read at once where not all match."""
TAKES = 10
"""How often a claim tries to take from a shard what others were quicker to take."""
RETURN_MICROS = 1_000_000
"""How often a claim that goes on behind what others passed by looks at that again. What became READY there since comes
first (O1), and there may always be more behind."""
CURSORS = 10_000
"""How many places are kept where claims go on, before all are forgotten."""


@lru_cache(maxsize=1024)
def matcher(predicate: Predicate) -> Matcher:
    """The compiled predicate."""
    return compile_predicate(predicate)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A READY task that matches, by what the shard had when it was read."""

    key: OrderKey
    number: int
    route: Route
    version: UUID


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where claims by a predicate go on in a shard: behind all that was passed by, but for a look back now and then,
    which goes on at `back` and came there at `looked_at`."""

    place: OrderKey
    looked_at: int
    back: OrderKey | None = None

    def is_late(self, now: int) -> bool:
        """Whether it is time to look back. The lower bound is for a clock that stepped back."""
        return not 0 <= now - self.looked_at < RETURN_MICROS

    def moved(self, after: OrderKey | None, last: OrderKey, now: int) -> _Cursor:
        """After what stands behind `after` has been passed by until `last`."""
        if after == self.place:
            return replace(self, place=max(last, self.place))
        return _Cursor(last, now) if last >= self.place else _Cursor(self.place, now, last)


class Claiming:
    """Claims of one store. Thread-safe."""

    def __init__(self, shards: Shards, book: Book) -> None:
        self._shards = shards
        self._book = book
        self._lock = Lock()
        self._cursors: dict[tuple[int, str, Predicate], _Cursor] = {}

    def claim(self, now: int, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match. Raises StaleLanes, StoreError."""
        before = self._cursors_of(request)
        claimed = self._claim(now, request)
        looked_back = any(each.is_late(now) for each in before)
        if claimed or not before or (self._cursors_of(request) and not looked_back):
            return claimed
        # It looked back, or came to the end: what stands in the other part may be all there is.
        return self._claim(now, request)

    def _cursors_of(self, request: ClaimRequest) -> list[_Cursor]:
        """Where a claim goes on behind what others by the same predicates passed by, in all shards."""
        found = (self._cursor(number, route) for number in range(self._shards.count) for route in request.routes)
        return [each for each in found if each is not None]

    def _claim(self, now: int, request: ClaimRequest) -> list[TaskRecord]:
        numbers = random.sample(range(self._shards.count), self._shards.count)
        claimed: list[TaskRecord] = []
        is_checked = not any(route.lanes for route in request.routes)
        for part in (numbers[:PEEKED], numbers[PEEKED:]):
            left = part
            for _ in range(TAKES):
                wanted = request.limit - len(claimed)
                if not wanted or not left:
                    break
                try:
                    found = self._candidates(now, left, request.routes, wanted)
                    if not is_checked:
                        # Behind the reading of their rows, so that rows which are being cleared are no empty lane (N3).
                        self._require_open(request.routes)
                        is_checked = True
                    self._take(now, request, _picked(found, wanted), claimed)
                except (TransientStoreError, PermanentStoreError):
                    if not claimed:
                        raise
                    return _in_order(claimed)  # a replay would claim others beside them (O2)
                ids = {task.id for task in claimed}
                # Where all that was found was got, there is no more; where others were quicker, there may be.
                left = [number for number, part in found.items() if not ids.issuperset(each.key.id for each in part)]
        return _in_order(claimed)

    def _require_open(self, routes: Sequence[Route]) -> None:
        lanes = {lane for route in routes for lane in route.lanes}
        found = self._book.some(lanes)
        closed = [each for each in lanes if each not in found or found[each].lane.state is not LaneState.OPEN]
        if closed:
            self._shards.forget_begins(closed)  # what was seen of one that is FILLING is not all that it will have
            raise StaleLanes

    # Candidates

    def candidates(self, now: int, route: Route, limit: int) -> int:
        """How many tasks a claim by a route finds in the shards that it looks at first; none is leased."""
        numbers = random.sample(range(self._shards.count), min(PEEKED, self._shards.count))
        return sum(map(len, self._candidates(now, numbers, [route], limit).values()))

    def _candidates(
        self, now: int, numbers: Sequence[int], routes: Sequence[Route], limit: int
    ) -> dict[int, list[Candidate]]:
        """The first that match in each of these shards, at most `limit` of each."""
        asked = {
            (number, route): Wanted(number, route.queue, route.lane, self._begin(now, number, route))
            for number in numbers
            for route in routes
        }
        is_exact = all(route.lane is not None or route.predicate == TRUE for route in routes)
        readings = begin(self._shards, list(asked.values()), limit if is_exact else max(limit, PAGE))
        found: dict[int, list[Candidate]] = {}
        for number in numbers:
            streams = [
                self._matching(now, readings[asked[number, route]], route, asked[number, route].after)
                for route in routes
                if asked[number, route] in readings
            ]
            found[number] = list(islice(merge(*streams, key=lambda each: each.key), limit))
        return found

    def _matching(self, now: int, reading: Reading, route: Route, after: OrderKey | None) -> Iterator[Candidate]:
        if route.lane is not None or route.predicate == TRUE:
            for _, key, (_, version, _) in reading.rows():
                yield Candidate(key, reading.number, route, version)
            return
        is_match, passed, last = matcher(route.predicate), 0, None
        for _, key, row in reading.rows():
            last = key
            _, version, body = row
            if is_match(read_body(version, body).task):
                yield Candidate(key, reading.number, route, version)
            else:
                passed += 1
                if passed >= ROWS_A_SHARD:
                    break
        else:
            last = None
        self._go_on(now, reading.number, route, after, last)

    def _cursor(self, number: int, route: Route) -> _Cursor | None:
        return None if route.lane is not None else self._cursors.get((number, route.queue, route.predicate))

    def _begin(self, now: int, number: int, route: Route) -> OrderKey | None:
        cursor = self._cursor(number, route)
        if cursor is None:
            return None
        return cursor.back if cursor.is_late(now) else cursor.place

    def _go_on(self, now: int, number: int, route: Route, after: OrderKey | None, last: OrderKey | None) -> None:
        """Where the next claim by this predicate begins: behind what this one passed by, or at the beginning."""
        place = number, route.queue, route.predicate
        with self._lock:
            if last is None:
                self._cursors.pop(place, None)
                return
            if len(self._cursors) >= CURSORS:
                self._cursors.clear()
            known = self._cursors.get(place)
            self._cursors[place] = _Cursor(last, now) if known is None else known.moved(after, last, now)

    # Taking

    def _take(
        self, now: int, request: ClaimRequest, picked: dict[int, list[Candidate]], claimed: list[TaskRecord]
    ) -> None:
        """Lease candidates, side by side in their shards, and add them to what is claimed: those that nobody else took
        or changed before."""
        shards = self._shards
        left = dict(picked)
        for _ in range(TAKES):
            if not left:
                break
            tasks = shards.tasks([each.key.id for part in left.values() for each in part], whole=True)
            turns = {
                number: [
                    (tasks[each.key.id], _leased(tasks[each.key.id], request, now, shards.statics(number).mark))
                    for each in part
                    if _is_there(tasks.get(each.key.id), each)
                ]
                for number, part in left.items()
            }
            turns = {number: turn for number, turn in turns.items() if turn}
            writes = [
                shards.update(number, turn, [shards.guard(number, mark=shards.statics(number).mark)])
                for number, turn in turns.items()
            ]
            outcomes = dict(zip(turns, shards.write(writes), strict=True))
            taken = [number for number, is_done in outcomes.items() if is_done]
            claimed += [new.task for number in taken for _, new in turns[number]]
            for number in taken:  # once all of them are told: it may fail
                self._note(number, left[number], turns[number])
            failed = [number for number, is_done in outcomes.items() if not is_done]
            if failed:
                shards.reread(failed)
            left = {number: left[number] for number in failed}

    def _note(self, number: int, found: Sequence[Candidate], turn: Sequence[tuple[Stored, Stored]]) -> None:
        """What was taken out of a shard is nothing that others should have to read past (CA1)."""
        for queue in {old.task.queue for old, _ in turn}:
            taken = [old.generation for old, _ in turn if old.task.queue == queue]
            self._shards.note_taken(number, queue, taken)
        for lane, number_taken in Counter(each.route.lane for each in found).items():
            if lane is not None:
                queue = next(each.route.queue for each in found if each.route.lane == lane)
                self._shards.note_taken_from_lane(number, queue, lane, number_taken)


def _in_order(claimed: list[TaskRecord]) -> list[TaskRecord]:
    return sorted(claimed, key=lambda task: task.order_key)


def _picked(found: dict[int, list[Candidate]], limit: int) -> dict[int, list[Candidate]]:
    """What to take from which shard: all from the one whose first comes first, as far as that goes."""
    picked: dict[int, list[Candidate]] = {}
    for number in sorted((each for each in found if found[each]), key=lambda each: found[each][0].key):
        picked[number] = found[number][:limit]
        limit -= len(picked[number])
        if not limit:
            break
    return picked


def _is_there(stored: Stored | None, found: Candidate) -> bool:
    """Whether a task is READY and matches still: what changed since it was found is looked at anew (O4)."""
    if stored is None or stored.task.state is not State.READY:
        return False
    if stored.version == found.version:
        return True
    route = found.route
    return stored.task.queue == route.queue and (
        matcher(route.predicate)(stored.task) if route.lane is None else route.lane in stored.lanes
    )


def _leased(old: Stored, request: ClaimRequest, now: int, mark: int) -> Stored:
    until = now + request.ttl
    task = replace(old.task, state=State.RUNNING, owner=request.owner, token=request.token, lease_until=until)
    return become(old, task, due=max(until, mark))
