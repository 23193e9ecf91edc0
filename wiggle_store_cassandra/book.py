"""The lanes of a space, in one partition: which there are, and the numbers by which their changes are told (N1-N3).

Each change is one conditional batch on the revision, so that one is behind another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from wiggle_core.criteria.wire import stored_predicate
from wiggle_core.criteria.written import predicate_to_object, to_json
from wiggle_core.errors import AmbiguousStoreError, StaleLanes, TransientStoreError
from wiggle_core.stores.lanes import Lane, LaneId, LaneState
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.rows import Statement, new_version
from wiggle_store_cassandra.shards import Shards

T = TypeVar("T")

TRIES = 50
CLOSED_KEPT = 1_000
"""How many closed lanes are remembered for those who knew them."""

_NUMBERS = "epoch, revision, last_id, forgotten"
_READ_NUMBERS = f"SELECT {_NUMBERS}, version FROM $lane WHERE space = ? AND id = 0"
_READ = f"SELECT {_NUMBERS}, id, version, body FROM $lane WHERE space = ?"
_SOME = "SELECT id, version, body FROM $lane WHERE space = ? AND id IN ?"
_SET_NUMBERS = """
    UPDATE $lane SET epoch = ?, revision = ?, last_id = ?, forgotten = ? WHERE space = ? IF revision = ?
"""
_PUT = "INSERT INTO $lane (space, id, version, body) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM $lane WHERE space = ? AND id = ?"
_NOTE = "UPDATE $lane SET version = ?, body = ? WHERE space = ? AND id = ? IF version = ?"


class Numbers(NamedTuple):
    """What tells changes of lanes apart. They stand beside a row without a lane, 0, which is always there. Until
    `forgotten`, some lanes that closed are not known any more."""

    epoch: int
    revision: int
    last_id: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A lane, the revision of its last change, and when it was worked on last."""

    lane: Lane
    revision: int
    work_at: int
    version: UUID = field(default_factory=new_version)


@dataclass(slots=True)
class Edit:
    """A change of the lanes in the making, from what there is."""

    numbers: Numbers
    entries: dict[LaneId, Entry]
    touched: set[LaneId] = field(default_factory=set)
    dropped: set[LaneId] = field(default_factory=set)

    def put(self, lane: Lane, *, work_at: int | None = None) -> Lane:
        """This lane is as given here from now on."""
        old = self.entries.get(lane.id)
        at = work_at if work_at is not None or old is None else old.work_at
        self.entries[lane.id] = Entry(lane, self.numbers.revision, at or 0)
        self.touched.add(lane.id)
        return lane

    def next_epoch(self) -> int:
        """Begin an epoch."""
        self.numbers = self.numbers._replace(epoch=self.numbers.epoch + 1)
        return self.numbers.epoch

    def next_id(self) -> LaneId:
        """An id that no lane ever had."""
        self.numbers = self.numbers._replace(last_id=self.numbers.last_id + 1)
        return self.numbers.last_id

    def forget_closed(self) -> None:
        """Forget the lanes that closed longest ago."""
        closed = sorted(
            (each.revision, lane) for lane, each in self.entries.items() if each.lane.state is LaneState.CLOSED
        )
        for revision, lane in closed[: -CLOSED_KEPT or None]:
            self.numbers = self.numbers._replace(forgotten=max(self.numbers.forgotten, revision))
            self.touched.discard(lane)
            self.dropped.add(lane)


class Book:
    """Reads and changes the lanes of a space."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._space = shards.space

    @property
    def _connections(self) -> Connections:
        return self._shards.there()

    def numbers(self) -> Numbers:
        """The numbers as they are now."""
        rows = self._connections.rows(_READ_NUMBERS, (self._space,))
        return Numbers(*rows[0][:4])

    def require_epoch(self, epoch: int) -> None:
        """Raise StaleLanes unless this is the present epoch (N3)."""
        if self.numbers().epoch != epoch:
            raise StaleLanes

    def read(self) -> tuple[Numbers, dict[LaneId, Entry]]:
        """Everything, as of one time."""
        rows = self._connections.rows(_READ, (self._space,))
        numbers = Numbers(*rows[0][:4])
        entries = (_read_entry(*row[4:]) for row in rows if row[5] is not None)
        return numbers, {each.lane.id: each for each in entries}

    def some(self, ids: Collection[LaneId]) -> dict[LaneId, Entry]:
        """Those of these lanes that are known."""
        if not ids:
            return {}
        rows = self._connections.rows(*self.ask_some(ids))
        return {each.lane.id: each for each in (_read_entry(*row) for row in rows)}

    def ask_some(self, ids: Collection[LaneId]) -> Statement:
        """The question that `some` asks, for those who ask it beside others."""
        return _SOME, (self._space, sorted(set(ids)))

    def edit(self, change: Callable[[Edit], T]) -> T:
        """Change lanes as `change` says, which may be asked several times; what it returned the last time.

        Nothing is written when it touches nothing. Raises StoreError.
        """
        for _ in range(TRIES):
            numbers, entries = self.read()
            edit = Edit(numbers._replace(revision=numbers.revision + 1), entries)
            result = change(edit)
            if not edit.touched:
                return result
            edit.forget_closed()
            try:
                if self._connections.applied(self._statements(numbers.revision, edit)):
                    return result
            except AmbiguousStoreError:
                if self._is_ours(edit):
                    return result
        raise TransientStoreError("the lanes of the store change so fast that no other change can be made")

    def _statements(self, revision: int, edit: Edit) -> list[Statement]:
        entries = {each: edit.entries[each] for each in sorted(edit.touched)}
        return [
            (_SET_NUMBERS, (*edit.numbers, self._space, revision)),
            *((_PUT, (self._space, each, entry.version, _write_entry(entry))) for each, entry in entries.items()),
            *((_DROP, (self._space, each)) for each in sorted(edit.dropped)),
        ]

    def _is_ours(self, edit: Edit) -> bool:
        """Whether a change without an answer was applied, found out by the version of one of its lanes."""
        lane = min(edit.touched)
        rows = self._connections.serial_rows(_SOME, (self._space, [lane]))
        return any(version == edit.entries[lane].version for _, version, _ in rows)

    def note(self, ids: Collection[LaneId], change: Callable[[Entry], Entry]) -> None:
        """Note of these lanes what is no change to anybody: it moves no revision. Who is late leaves it."""
        for _ in range(TRIES):
            found = self.some(ids)
            left = []
            for each, entry in found.items():
                new = replace(change(entry), version=new_version())
                binds = (new.version, _write_entry(new), self._space, each, entry.version)
                if not self._connections.applied([(_NOTE, binds)]):
                    left.append(each)
            if not left:
                return
            ids = left


def _write_entry(entry: Entry) -> str:
    lane = entry.lane
    return json.dumps([
        lane.queue, to_json(predicate_to_object(lane.predicate)), lane.state.value, lane.epoch, lane.reason,
        lane.is_pinned, lane.opened_at, lane.used_at, lane.hits, entry.revision, entry.work_at,
    ])  # fmt: skip


def _read_entry(lane: LaneId, version: UUID, body: str) -> Entry:
    queue, predicate, state, epoch, reason, is_pinned, opened_at, used_at, hits, revision, work_at = json.loads(body)
    told = Lane(
        lane, queue, stored_predicate(predicate), LaneState(state), epoch, reason, is_pinned, opened_at, used_at, hits
    )
    return Entry(told, revision, work_at, version)


def lanes_of(entries: Sequence[Entry]) -> list[Lane]:
    """The lanes, in the order of their ids."""
    return sorted((each.lane for each in entries), key=lambda lane: lane.id)
