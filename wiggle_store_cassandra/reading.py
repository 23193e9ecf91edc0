"""Reading what is READY in a shard in claim order: a queue, or a lane, over all its generations.

Several of these are read side by side: each says what it would ask next, is given the answers, and yields rows until it
needs more (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from wiggle_core.stores.lanes import LaneId
from wiggle_core.tasks.task import OrderKey
from wiggle_store_cassandra.connections import Row
from wiggle_store_cassandra.order import Kind, behind, of_key, of_lane, of_ready, read_key
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.shards import Generations, Shards

_READ = """
    SELECT place, version, body FROM $shard WHERE space = ? AND number = ? AND kind = ? AND place >= ? AND place < ?
    LIMIT ?
"""
_IS_SEALED = f"SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.READY:d} AND place = ?"

Found: TypeAlias = tuple[bytes, OrderKey, Row]
"""The key as bytes and as such, and the row: place, version and body; a lane's has no body."""


@dataclass(slots=True)
class _Part:
    """One generation: what was read of it, and where reading goes on; at `None` it is at its end."""

    generation: int
    prefix: bytes
    next: bytes | None
    rows: list[Row] = field(default_factory=list)
    is_read: bool = False
    is_from_begin: bool = True


def lane_part(known: Generations, queue: str, lane: LaneId, generation: int) -> tuple[bytes, bytes]:
    """From where to where a lane is to be read in a generation: what is left of it is not before what is left of the
    generation."""
    begin, prefix = known.begin(queue, generation), of_lane(lane, generation)
    return prefix + begin[len(of_ready(queue, generation)) :], behind(prefix)


class Reading:
    """The READY tasks of a queue in one shard, or those of one of its lanes, in claim order."""

    def __init__(
        self,
        shards: Shards,
        number: int,
        queue: str,
        known: Generations,
        size: int,
        *,
        lane: LaneId | None = None,
        begins: Mapping[int, bytes] | None = None,
        after: OrderKey | None = None,
    ) -> None:
        self.number, self.queue, self.lane = number, queue, lane
        self.known = known
        self._begins = begins or {}
        self._shards, self._size = shards, size
        self._after = b"" if after is None else of_key(after)
        parts = [self._part(each) for each in known.all]
        # Without those sealed ones in which nothing of a lane is left.
        self._parts = [each for each in parts[:-1] if self._lower(each) < behind(b"")] + parts[-1:]
        self._heap: list[tuple[bytes, int]] = []
        self.is_outdated = False
        """The open generation has been sealed meanwhile: all of this is to be read anew."""

    def _part(self, generation: int) -> _Part:
        if self.lane is None:
            begin, prefix = self.known.begin(self.queue, generation), of_ready(self.queue, generation)
        else:
            begin, _ = lane_part(self.known, self.queue, self.lane, generation)
            begin, prefix = max(begin, self._begins.get(generation, b"")), of_lane(self.lane, generation)
        if not self._after:
            return _Part(generation, prefix, begin)
        after = prefix + self._after + b"\0"
        return _Part(generation, prefix, max(begin, after), is_from_begin=begin >= after)

    @staticmethod
    def _lower(part: _Part) -> bytes:
        return (part.next or b"")[len(part.prefix) :]

    def first_asks(self) -> list[Statement]:
        """What is to be asked before anything can be told: the open generation, the sealed one with the lowest
        beginning, and whether the open one is open still."""
        opened = len(self._parts) - 1
        sealed = min((index for index in range(opened)), key=lambda each: self._lower(self._parts[each]), default=None)
        self._first = [opened] if sealed is None else [opened, sealed]
        asks = [self._ask(self._parts[each]) for each in self._first]
        if self.lane is not None or self._after:
            place = of_ready(self.queue, self.known.open)
            asks.append((_IS_SEALED, (self._shards.space, self.number, place)))
        return asks

    def take(self, answers: Sequence[list[Row]]) -> None:
        """The answers to `first_asks`."""
        for index, rows in zip(self._first, answers, strict=False):
            self._loaded(self._parts[index], rows)
        if len(answers) > len(self._first) and answers[-1]:
            self.is_outdated = True
        self._heap = [
            (self._head(each), index) for index, each in enumerate(self._parts) if each.rows or each.next is not None
        ]
        heapify(self._heap)

    def _head(self, part: _Part) -> bytes:
        return part.rows[-1][0][len(part.prefix) :] if part.rows else self._lower(part)

    def _ask(self, part: _Part) -> Statement:
        kind = Kind.READY if self.lane is None else Kind.LANE
        return _READ, (
            self._shards.space, self.number, kind, part.next, behind(part.prefix), self._size,
        )  # fmt: skip

    def _loaded(self, part: _Part, rows: list[Row]) -> None:
        if rows and rows[0][0] == part.prefix:  # put there when the generation was sealed
            self.is_outdated = True
            return
        if not part.is_read and part.is_from_begin:
            self._note_begin(part, rows[0][0] if rows else None)
        part.is_read = True
        part.next = rows[-1][0] + b"\0" if len(rows) == self._size else None
        part.rows = rows[::-1]

    def _note_begin(self, part: _Part, begin: bytes | None) -> None:
        if self.lane is None:
            self._shards.note_begin(self.number, self.queue, part.generation, begin)
        elif part.generation != self.known.open:
            self._shards.note_lane_begin(self.number, self.lane, part.generation, begin or behind(part.prefix))

    def rows(self) -> Iterator[Found]:
        """The rows, more being read as they are needed. Ends when it `is_outdated`."""
        while self._heap and not self.is_outdated:
            _, index = self._heap[0]
            part = self._parts[index]
            if not part.rows:
                heappop(self._heap)
                if part.next is None:
                    continue
                (rows,) = self._shards.connections.many([self._ask(part)])
                self._loaded(part, rows)
                if part.rows:
                    heappush(self._heap, (self._head(part), index))
                continue
            row = part.rows.pop()
            key = row[0][len(part.prefix) :]
            heappop(self._heap)
            if part.rows or part.next is not None:
                heappush(self._heap, (self._head(part), index))
            yield key, read_key(key), row


@dataclass(frozen=True, slots=True)
class Wanted:
    """A queue, or one of its lanes, in one shard, from behind a place on."""

    number: int
    queue: str
    lane: LaneId | None = None
    after: OrderKey | None = None


def begin(shards: Shards, wanted: Sequence[Wanted], size: int) -> dict[Wanted, Reading]:
    """Begin to read all of these side by side, `size` rows at once. Where there never was a READY task there is none.

    Raises StoreError.
    """
    found: dict[Wanted, Reading] = {}
    left = list(wanted)
    while left:
        known = shards.generations_of([(each.number, each.queue) for each in left])
        begins = shards.begins_of([(each.number, each.lane) for each in left if each.lane is not None])
        readings = {
            each: Reading(
                shards,
                each.number,
                each.queue,
                known[each.number, each.queue],
                size,
                lane=each.lane,
                begins=begins.get((each.number, each.lane or 0)),
                after=each.after,
            )
            for each in left
            if (each.number, each.queue) in known
        }
        asks = {each: reading.first_asks() for each, reading in readings.items()}
        answers = iter(shards.connections.many([ask for part in asks.values() for ask in part]))
        for each, reading in readings.items():
            reading.take([next(answers) for _ in asks[each]])
        outdated = [each for each, reading in readings.items() if reading.is_outdated]
        for each in outdated:
            shards.forget_generations(each.number, each.queue)
        found |= {each: reading for each, reading in readings.items() if not reading.is_outdated}
        left = outdated
    return found
