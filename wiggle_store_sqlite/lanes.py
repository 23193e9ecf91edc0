"""The lanes of a SQLite store (design N1-N3): which there are, opening, filling and closing them.

SQLite's one writer is the lock that holds an epoch: whoever makes tasks READY has compared it under that lock, so when
a change of the lanes is committed nobody is left who placed tasks by an older number.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wiggle_core.criteria.tree import Predicate
from wiggle_core.criteria.wire import stored_predicate
from wiggle_core.criteria.written import predicate_to_object, to_json
from wiggle_core.stores.lanes import Head, Lane, LaneChanges, LaneId, LaneRow, LaneState, NewLane, ReadyTasks
from wiggle_core.tasks.task import Clock, OrderKey
from wiggle_store_sqlite import lane_rows
from wiggle_store_sqlite.connections import Connections

CLOSED_KEPT = 1_000
"""How many closed lanes are remembered for those who knew them."""

_COLUMNS = "id, queue, predicate, state, epoch, reason, is_pinned, opened_at, used_at, hits"
_LANES = f"SELECT json_group_array(json_array({_COLUMNS})) FROM (SELECT * FROM lane {{which}} ORDER BY id)"
_ENTERED = "state IN ('FILLING', 'OPEN')"
_NAMED = "id IN (SELECT value FROM json_each(:ids))"

# One statement, and so one snapshot.
_READ = f"""
    SELECT epoch, revision, :since = 0 OR :since < forgotten, CASE WHEN :since = 0 OR :since < forgotten
        THEN ({_LANES.format(which="WHERE state <> 'CLOSED'")})
        ELSE ({_LANES.format(which="WHERE lane.revision > :since")}) END
    FROM counter
"""
_PRESENT = f"""
    SELECT json_group_array(json_array(queue, predicate)) FROM json_each(?) AS wanted
    CROSS JOIN lane INDEXED BY lane_entered
    WHERE queue = json_extract(wanted.value, '$[0]') AND predicate = json_extract(wanted.value, '$[1]')
        AND {_ENTERED}
"""
_BY_ID = _LANES.format(which=f"WHERE {_NAMED}")
_NEXT_EPOCH = "UPDATE counter SET epoch = epoch + 1, revision = revision + 1 RETURNING epoch, revision"
_NEXT_REVISION = "UPDATE counter SET revision = revision + 1 RETURNING revision"
_ADD = """
    INSERT INTO lane (state, queue, predicate, reason, is_pinned, epoch, revision, opened_at, used_at, work_at, hits)
    SELECT 'FILLING', json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), :epoch, :revision, :now, :now, :now, 0
    FROM json_each(:new) RETURNING id
"""
_TO_PIN = f"""
    SELECT json_group_array(lane.id), count(*) FROM json_each(?) AS wanted CROSS JOIN lane INDEXED BY lane_entered
    WHERE queue = json_extract(wanted.value, '$[0]') AND predicate = json_extract(wanted.value, '$[1]')
        AND {_ENTERED} AND NOT is_pinned
"""
_PIN = f"UPDATE lane NOT INDEXED SET is_pinned = 1, revision = :revision WHERE {_NAMED}"
_THOSE = f"SELECT json_group_array(id), count(*) FROM lane NOT INDEXED WHERE {_NAMED} AND {{condition}}"
_CLOSE = f"""
    UPDATE lane NOT INDEXED SET state = 'CLOSING', epoch = :epoch, revision = :revision, work_at = :now WHERE {_NAMED}
"""
_FINISH = f"UPDATE lane NOT INDEXED SET state = 'OPEN', revision = :revision WHERE {_NAMED}"
_EMPTY = "state = 'CLOSING' AND NOT EXISTS (SELECT 1 FROM lane_task WHERE lane_task.lane = lane.id)"
_CLOSED = f"UPDATE lane NOT INDEXED SET state = 'CLOSED', revision = :revision WHERE {_NAMED}"
_FORGET = """
    DELETE FROM lane WHERE state = 'CLOSED' AND id NOT IN (
        SELECT id FROM lane WHERE state = 'CLOSED' ORDER BY revision DESC, id DESC LIMIT ?
    ) RETURNING revision
"""
_NOTE_FORGOTTEN = "UPDATE counter SET forgotten = max(forgotten, ?)"
# The lower bound is for a clock that stepped back: it must not keep a lane unfinished.
_UNFINISHED = """
    SELECT json_group_array(id), count(*) FROM lane INDEXED BY lane_unfinished
    WHERE state IN ('FILLING', 'CLOSING') AND NOT work_at BETWEEN :now - :silence + 1 AND :now
"""
_NOTE_WORK = f"UPDATE lane NOT INDEXED SET work_at = :now WHERE {_NAMED}"
_NOTE_USE = """
    INSERT INTO lane (id, state, queue, epoch, revision, is_pinned, opened_at, used_at, work_at, hits, reason,
        predicate)
    SELECT lane.id, state, queue, epoch, revision, is_pinned, opened_at, :now, work_at,
        hits + json_extract(noted.value, '$[1]'), reason, predicate
    FROM json_each(:hits) AS noted CROSS JOIN lane NOT INDEXED
    WHERE lane.id = json_extract(noted.value, '$[0]')
    ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at, hits = excluded.hits
"""


class SqliteLanes:
    """The `Lanes` of one `SqliteStore`."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def read(self, since: int) -> LaneChanges:
        with self._connections.reading() as connection:
            epoch, revision, is_whole, lanes = connection.execute(_READ, {"since": since}).fetchone()
        return LaneChanges(epoch, revision, bool(is_whole), tuple(_read_lanes(lanes)))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        unique = _unique(wanted)
        with self._connections.writing() as connection:
            ((present,),) = connection.execute(_PRESENT, (_names(unique),)).fetchall()
            known = {(queue, predicate) for queue, predicate in json.loads(present)}
            pinned = [each for each, new in unique.items() if each in known and new.is_pinned]
            self._pin(connection, pinned)
            missing = [(*each, new.reason, int(new.is_pinned)) for each, new in unique.items() if each not in known]
            if not missing:
                return []
            ((epoch, revision),) = connection.execute(_NEXT_EPOCH).fetchall()
            binds = {"new": json.dumps(missing), "epoch": epoch, "revision": revision, "now": self._clock()}
            ids = [each for (each,) in connection.execute(_ADD, binds).fetchall()]
            return _named(connection, ids)

    def _pin(self, connection: sqlite3.Connection, lanes: Iterable[tuple[str, str]]) -> None:
        ((ids, number),) = connection.execute(_TO_PIN, (_names(lanes),)).fetchall()
        if number:
            connection.execute(_PIN, {"ids": ids, "revision": _next_revision(connection)})

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        with self._connections.writing() as connection:
            entered, number = _those(connection, ids, _ENTERED)
            if not number:
                return []
            ((epoch, revision),) = connection.execute(_NEXT_EPOCH).fetchall()
            binds = {"ids": entered, "epoch": epoch, "revision": revision, "now": self._clock()}
            connection.execute(_CLOSE, binds)
            return _named(connection, json.loads(entered))

    def drained(self, epoch: int, timeout: float) -> bool:
        return True  # who holds a number holds the write lock

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return lane_rows.ready_tasks(self._connections, queue, matching, after, size)

    def fill(self, rows: Sequence[LaneRow]) -> None:
        lane_rows.fill(self._connections, rows)

    def finish(self, ids: Collection[LaneId]) -> None:
        with self._connections.writing() as connection:
            filling, number = _those(connection, ids, "state = 'FILLING'")
            if number:
                connection.execute(_FINISH, {"ids": filling, "revision": _next_revision(connection)})

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        with self._connections.writing() as connection:
            closing, _ = _those(connection, ids, "state = 'CLOSING'")
            deleted = lane_rows.drop_all(connection, sorted(json.loads(closing)), limit)
            empty, number = _those(connection, ids, _EMPTY)
            if number:
                connection.execute(_CLOSED, {"ids": empty, "revision": _next_revision(connection)})
                _forget_closed(connection)
        return deleted

    def unfinished(self, silence: int) -> list[Lane]:
        with self._connections.reading() as connection:
            _, number = connection.execute(_UNFINISHED, {"now": self._clock(), "silence": silence}).fetchone()
            if not number:  # as nearly always
                return []
            with self._connections.writing_on(connection):
                now = self._clock()
                ids, _ = connection.execute(_UNFINISHED, {"now": now, "silence": silence}).fetchone()
                connection.execute(_NOTE_WORK, {"ids": ids, "now": now})
                return _named(connection, json.loads(ids))

    def note_work(self, ids: Collection[LaneId]) -> None:
        with self._connections.writing() as connection:
            connection.execute(_NOTE_WORK, {"ids": json.dumps(list(ids)), "now": self._clock()})

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        with self._connections.writing() as connection:
            connection.execute(_NOTE_USE, {"hits": json.dumps(list(hits.items())), "now": self._clock()})

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return lane_rows.prune(self._connections, after, size)

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        return lane_rows.sizes(self._connections, ids, cap)

    def passed(self, queue: str, head: Head | None) -> int:
        return 0  # what left is gone


def _unique(wanted: Sequence[NewLane]) -> dict[tuple[str, str], NewLane]:
    """The lanes by queue and predicate as it is stored; of two alike the first, pinned if any of them is to be."""
    unique: dict[tuple[str, str], NewLane] = {}
    for new in wanted:
        name = new.queue, to_json(predicate_to_object(new.predicate))
        first = unique.setdefault(name, new)
        if new.is_pinned:
            unique[name] = replace(first, is_pinned=True)
    return unique


def _names(lanes: Iterable[tuple[str, str]]) -> str:
    return json.dumps(list(lanes))


def _those(connection: sqlite3.Connection, ids: Collection[LaneId], condition: str) -> tuple[str, int]:
    """Those of these lanes that are so, as a JSON list, and their number."""
    binds = {"ids": json.dumps(list(ids))}
    ((found, number),) = connection.execute(_THOSE.format(condition=condition), binds).fetchall()
    return found, number


def _next_revision(connection: sqlite3.Connection) -> int:
    ((revision,),) = connection.execute(_NEXT_REVISION).fetchall()
    return int(revision)


def _forget_closed(connection: sqlite3.Connection) -> None:
    revisions = [revision for (revision,) in connection.execute(_FORGET, (CLOSED_KEPT,)).fetchall()]
    if revisions:
        connection.execute(_NOTE_FORGOTTEN, (max(revisions),))


def _named(connection: sqlite3.Connection, ids: Sequence[LaneId]) -> list[Lane]:
    ((lanes,),) = connection.execute(_BY_ID, {"ids": json.dumps(ids)}).fetchall()
    return _read_lanes(lanes)


def _read_lanes(text: str) -> list[Lane]:
    """The lanes in a JSON list of their columns."""
    return [_read_lane(columns) for columns in json.loads(text)]


def _read_lane(columns: Sequence[Any]) -> Lane:  # Any: the driver's types are those of the values
    lane, queue, predicate, state, epoch, reason, is_pinned, opened_at, used_at, hits = columns
    read = stored_predicate(predicate)
    return Lane(lane, queue, read, LaneState(state), epoch, reason, bool(is_pinned), opened_at, used_at, hits)
