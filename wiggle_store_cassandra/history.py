"""History: settled tasks, out of the shards that claims read (L5).

A task is settled in its shard, by one conditional batch, and moved here some time later, many at once: first written
here, then deleted there. A crash in between leaves it in both places, and the next move goes on; whoever asks looks at
the shard first. A row here is written once and deleted once, so that no two writers ever disagree about one (CA4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from wiggle_core.tasks.task import TaskId
from wiggle_store_cassandra.connections import Row
from wiggle_store_cassandra.order import Kind, of_number, read_time
from wiggle_store_cassandra.rows import Statement, Stored, deleted, read_body, write_body
from wiggle_store_cassandra.shards import Shards, Write

MOVED_AT_ONCE = 100
HOUR_MICROS = 3_600_000_000
HOURS_AT_ONCE = 8
"""How many hours of a shard are read side by side; all of their tasks are in memory then."""

_ID = "WHERE space = ? AND id = ?"
_KEEP = """
    INSERT INTO $history (space, id, version, settled_at, number, hour, body, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_LOG = "INSERT INTO $settled (space, number, hour, settled_at, version, id, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LOG_HOUR = "INSERT INTO $settled_hour (space, hour, number) VALUES (?, ?, ?)"
_KNOWN = f"SELECT id FROM $history {_ID} LIMIT 1"
_GET = f"SELECT version, body, settled_at, number, hour FROM $history {_ID}"
_GET_WHOLE = _GET.replace("hour FROM", "hour, payload FROM")
_FORGET = f"DELETE FROM $history {_ID} AND version = ?"
_FORGET_LOG = "DELETE FROM $settled WHERE space = ? AND number = ? AND hour = ? AND settled_at = ? AND version = ?"
_HOURS = "SELECT hour, number FROM $settled_hour WHERE space = ?"
_FORGET_HOUR = "DELETE FROM $settled_hour WHERE space = ? AND hour = ? AND number = ?"
_OF_HOUR = "$settled WHERE space = ? AND number = ? AND hour = ?"
_OLD = f"SELECT settled_at, version, id FROM {_OF_HOUR} AND settled_at < ? LIMIT ?"
_HOUR = f"SELECT version, body FROM {_OF_HOUR}"
_ANY = f"SELECT id FROM {_OF_HOUR} LIMIT 1"
_FORGET_TO = f"DELETE FROM {_OF_HOUR} AND (settled_at, version) <= (?, ?)"
_SETTLED = f"""
    SELECT place FROM $shard WHERE space = ? AND number = ? AND kind = {Kind.SETTLED:d} AND place >= ? LIMIT ?
"""


class Kept:
    """A settled task in history, and where the rows about it are."""

    __slots__ = ("hour", "number", "settled_at", "stored")

    def __init__(self, row: Row) -> None:
        version, body, self.settled_at, self.number, self.hour, *payload = row
        self.stored = read_body(version, body, *payload)

    @property
    def name(self) -> tuple[int, int, int, str]:
        """What its rows are found by, beside the id."""
        return self.number, self.hour, self.settled_at, str(self.stored.version)


def forgotten(space: str, task_id: TaskId, name: tuple[int, int, int, str]) -> list[Statement]:
    """The statements that delete one run of a task."""
    number, hour, settled_at, version = name[0], name[1], name[2], UUID(name[3])
    return [
        (_FORGET_LOG, (space, number, hour, settled_at, version)),
        (_FORGET, (space, task_id, version)),
    ]


def known(shards: Shards, ids: Sequence[TaskId]) -> set[TaskId]:
    """Those of these ids that are in history."""
    answers = shards.connections.many([(_KNOWN, (shards.space, each)) for each in ids])
    return {each for each, rows in zip(ids, answers, strict=True) if rows}


def get(shards: Shards, ids: Sequence[TaskId], *, whole: bool = False) -> dict[TaskId, Kept]:
    """The last run of each of these tasks, as far as it is in history; payloads only where they are asked for."""
    cql = _GET_WHOLE if whole else _GET
    answers = shards.connections.many([(cql, (shards.space, each)) for each in ids])
    found = ((each, [Kept(row) for row in rows]) for each, rows in zip(ids, answers, strict=True) if rows)
    return {each: max(rows, key=lambda kept: kept.settled_at) for each, rows in found}


# Moving


def move(shards: Shards, now: int, numbers: Sequence[int]) -> int:
    """Move settled tasks of these shards into history, some of each; how many."""
    return _move(shards, now, {number: of_number(shards.statics(number).mark) for number in numbers})


def _move(shards: Shards, now: int, begins: dict[int, bytes]) -> int:
    """Likewise those behind these places, which become those behind what was moved."""
    asks = [(_SETTLED, (shards.space, number, begin, MOVED_AT_ONCE)) for number, begin in begins.items()]
    places = dict(zip(begins, shards.connections.many(asks), strict=True))
    settled = {number: [read_time(place)[1] for (place,) in rows] for number, rows in places.items() if rows}
    shards.reread(list(settled))
    tasks = shards.tasks([each for ids in settled.values() for each in ids], whole=True)
    hour = now // HOUR_MICROS
    writes, kept = [], []
    for number, ids in settled.items():
        # A row beside a task is written and deleted with it, so that the task is settled if it is still there.
        stored = [tasks[each] for each in ids if each in tasks and tasks[each].task.finished_at is not None]
        if not stored:
            continue
        kept += [(_LOG_HOUR, (shards.space, hour, number)), *_kept(shards.space, number, hour, stored)]
        gone = [each for old in stored for each in deleted(shards.space, number, old)]
        writes.append(Write(number, [shards.next_moved(number), *gone], stored[0], None))
    if not writes:
        return 0
    shards.connections.write(kept)
    outcomes = shards.write(writes)
    moved = [write.number for write, is_done in zip(writes, outcomes, strict=True) if is_done]
    begins.update((number, places[number][-1][0] + b"\0") for number in moved)
    shards.reread([write.number for write in writes])
    return sum(len(settled[number]) for number in moved)


def _kept(space: str, number: int, hour: int, tasks: Sequence[Stored]) -> Iterator[Statement]:
    for each in tasks:
        at, body = each.task.finished_at, write_body(each)
        yield _KEEP, (space, each.task.id, each.version, at, number, hour, body, each.task.payload)
        yield _LOG, (space, number, hour, at, each.version, each.task.id, body)
        if each.back_from is not None:
            yield from forgotten(space, each.task.id, each.back_from)


def move_all(shards: Shards, now: int) -> None:
    """Move whatever is settled by now, each part from where the last one ended: not past what that deleted (CA1)."""
    begins = {number: of_number(shards.statics(number).mark) for number in range(shards.count)}
    while _move(shards, now, begins):
        pass


# All of it


def each_settled(shards: Shards) -> Iterator[Stored]:
    """Every task in history, payloads left out; those among them that were revived, too."""
    hours = _hours(shards)
    for start in range(0, len(hours), HOURS_AT_ONCE):
        asks = [(_HOUR, (shards.space, number, hour)) for hour, number in hours[start : start + HOURS_AT_ONCE]]
        for rows in shards.connections.many(asks):
            yield from (read_body(version, body) for version, body in rows)


def _hours(shards: Shards) -> list[tuple[int, int]]:
    return sorted((hour, number) for hour, number in shards.connections.rows(_HOURS, (shards.space,)))


def purge(shards: Shards, now: int, before: int, limit: int) -> int:
    """Forget at most `limit` tasks that were settled before an instant, longest settled first within an hour."""
    move_all(shards, now)
    forgotten = 0
    for hour, number in _hours(shards):
        if forgotten == limit or hour > before // HOUR_MICROS + 1:
            break
        # Nothing is written into an hour that is over for so long: whoever moves tasks names the present one.
        is_over = hour < now // HOUR_MICROS - 1
        forgotten += _purge_hour(shards, number, hour, before, limit - forgotten, is_over=is_over)
    return forgotten


def _purge_hour(shards: Shards, number: int, hour: int, before: int, limit: int, *, is_over: bool) -> int:
    """Forget at most `limit` tasks that moved in an hour. One that is over is deleted from its beginning on, with one
    tombstone a call: those of single rows would be read by each of the calls that it takes (CA1)."""
    connections, place = shards.connections, (shards.space, number, hour)
    rows = connections.rows(_OLD, (*place, before, limit))
    connections.write([(_FORGET, (shards.space, task_id, version)) for _, version, task_id in rows])
    if not is_over:
        connections.write([(_FORGET_LOG, (*place, settled_at, version)) for settled_at, version, _ in rows])
        return len(rows)
    if rows:
        connections.write([(_FORGET_TO, (*place, *rows[-1][:2]))])
    if len(rows) < limit and not connections.rows(_ANY, place):
        connections.write([(_FORGET_HOUR, (shards.space, hour, number))])
    return len(rows)
