"""A task as its shard keeps it: one row that every change is conditional on, and rows beside it by which it is found.

Which rows stand beside a task follows from the task alone (`Stored.beside`), and all of them lie in one partition: a
change writes them in one conditional batch, so that none is ever without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID, uuid4

from wiggle_core.stores.lanes import LaneId
from wiggle_core.stores.sql.rows import inserted_values, read_row
from wiggle_core.tasks.task import SETTLED, State, TaskRecord
from wiggle_store_cassandra.order import Kind, of_key, of_lane, of_ready, of_time

Place: TypeAlias = tuple[Kind, bytes]
Statement: TypeAlias = tuple[str, tuple[object, ...]]
"""CQL with `?`, and what it binds."""

_ROW = "WHERE space = ? AND number = ? AND kind = ? AND place = ?"
_TASK = f"WHERE space = ? AND number = ? AND kind = {Kind.TASK:d} AND place = ?"

INSERT = f"""
    INSERT INTO $shard (space, number, kind, place, version, body, payload) VALUES (?, ?, {Kind.TASK:d}, ?, ?, ?, ?)
    IF NOT EXISTS
"""
_UPDATE = f"UPDATE $shard SET version = ?, body = ? {_TASK} IF version = ?"
_DELETE = f"DELETE FROM $shard {_TASK} IF version = ?"
_PUT = "INSERT INTO $shard (space, number, kind, place, version, body) VALUES (?, ?, ?, ?, ?, ?)"
_PUT_BARE = "INSERT INTO $shard (space, number, kind, place, version) VALUES (?, ?, ?, ?, ?)"
_DROP = f"DELETE FROM $shard {_ROW}"


@dataclass(frozen=True, slots=True)
class Stored:
    """A task, and what its shard knows of it. `version` is new with every write, so that no two states of a task, nor
    of two tasks that had one id, are ever taken for each other."""

    task: TaskRecord
    version: UUID
    ready_no: int = 0
    generation: int = 0
    """Of its queue, in which it became READY."""
    lanes: tuple[LaneId, ...] = ()
    """The lanes that it is in, while it is READY (N1)."""
    due: int = 0
    """Where it stands among the SCHEDULED, the leases or the settled, in epoch microseconds."""
    back_from: tuple[int, int, int, str] | None = None
    """The shard, the hour, the time and the version of the run in history that it was revived from. Whoever revives it
    deletes that one; so does, in case that process died, whoever moves it there again."""

    @property
    def place(self) -> bytes:
        return self.task.id.encode()

    def beside(self) -> Iterator[Place]:
        """The rows by which it is found."""
        if self.task.state is State.READY:
            key = of_key(self.task.order_key)
            yield Kind.READY, of_ready(self.task.queue, self.generation) + key
            yield from ((Kind.LANE, of_lane(lane, self.generation) + key) for lane in self.lanes)
        else:
            yield TIMED[self.task.state], of_time(self.due, self.task.id)


TIMED = {
    State.SCHEDULED: Kind.SCHEDULED,
    State.RUNNING: Kind.LEASED,
    **dict.fromkeys(SETTLED, Kind.SETTLED),
}
"""By which rows tasks are found that are not READY: by when something is to be done about them."""


def new_version() -> UUID:
    """One that was never used."""
    return uuid4()


def write_body(stored: Stored) -> str:
    """The text of all but the payload, which is a column of its own."""
    task = stored.task
    values = list(inserted_values(task))
    values.insert(6, None)
    values += [task.owner, task.token, task.lease_until, task.finished_at, task.result, task.error]
    values += [stored.ready_no, stored.generation, stored.lanes, stored.due, stored.back_from]
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def read_body(version: UUID, body: str, payload: str | None = None) -> Stored:
    """What `write_body` wrote; the payload is `null` where it was not read."""
    *values, ready_no, generation, lanes, due, back_from = json.loads(body)
    values[6] = "null" if payload is None else payload
    return Stored(read_row(values), version, ready_no, generation, tuple(lanes), due, back_from and tuple(back_from))


# What a change sends


def inserted(space: str, number: int, new: Stored) -> Iterator[Statement]:
    """A task that must not be there yet."""
    body = write_body(new)
    yield INSERT, (space, number, new.place, new.version, body, new.task.payload)
    yield from _put(space, number, new, body)


def updated(space: str, number: int, old: Stored, new: Stored) -> Iterator[Statement]:
    """A task that must still be as it was read."""
    body = write_body(new)
    yield _UPDATE, (new.version, body, space, number, new.place, old.version)
    # A row that is deleted and written in one batch is gone: both have one timestamp, and the deletion wins.
    kept = set(new.beside())
    yield from ((_DROP, (space, number, *each)) for each in old.beside() if each not in kept)
    yield from _put(space, number, new, body)


def deleted(space: str, number: int, old: Stored) -> Iterator[Statement]:
    """A task that must still be as it was read."""
    yield _DELETE, (space, number, old.place, old.version)
    yield from ((_DROP, (space, number, *each)) for each in old.beside())


def _put(space: str, number: int, new: Stored, body: str) -> Iterator[Statement]:
    for kind, place in new.beside():
        if kind is Kind.READY:  # walks test predicates on what stands in the order itself
            yield _PUT, (space, number, kind, place, new.version, body)
        else:  # a body that is null would be a tombstone (CA1)
            yield _PUT_BARE, (space, number, kind, place, new.version)


def become(old: Stored, task: TaskRecord, *, due: int = 0) -> Stored:
    """The same task in another state than READY."""
    return replace(old, task=task, version=new_version(), generation=0, lanes=(), due=due)
