"""The rows of lanes: put in with the tasks that become READY, or when a lane is filled; taken out by the claims that
meet them, when a lane is cleared, or when the sweep finds them dead (N1).

A row is live while the task of its number is READY with its `ready_no`. Lists come as one JSON bind, and leave as one
JSON row, for the reason that `changes` gives.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence

from wiggle_core.criteria.tree import TRUE, Or, Predicate
from wiggle_core.errors import StaleLanes
from wiggle_core.stores.lanes import LaneId, LaneRow, Placed, ReadyTasks
from wiggle_core.stores.sql.rows import read_row
from wiggle_core.tasks.task import OrderKey, TaskId
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.dialect import WRITER
from wiggle_store_sqlite.rows import ORDER, ready_columns

_PLACE = f"{ORDER}, ready_no, number"
"""Where a row stands in its lane."""
_UP_TO = f"({_PLACE}) <= (?, ?, ?, ?, ?, ?)"

_IS_LIVE = """
    EXISTS (
        SELECT 1 FROM task NOT INDEXED
        WHERE task.number = place.number AND task.ready_no = place.ready_no AND task.state = 'READY'
    )
"""
"""The test that a row of `lane_task AS place` is live."""

IS_IN_LANE = """
    EXISTS (
        SELECT 1 FROM lane_task AS place
        WHERE place.lane = ? AND place.priority = task.priority AND place.created_at = task.created_at
            AND place.ready_at = task.ready_at AND place.id = task.id AND place.ready_no = task.ready_no
            AND place.number = task.number
    )
"""
"""The test that a READY task has a row in a lane, which is bound."""

_LAST = 2**63 - 1

_EPOCH = "SELECT epoch FROM counter"
_INSERT = f"""
    INSERT OR IGNORE INTO lane_task (lane, {_PLACE})
    SELECT json_extract(entry.value, '$[0]'), priority, created_at, ready_at, task.id, ready_no, number
    FROM json_each(?) AS entry CROSS JOIN task INDEXED BY task_id
    WHERE task.id = json_extract(entry.value, '$[1]') AND state = 'READY'
"""
_FILL = f"""
    {_INSERT} AND ready_no = json_extract(entry.value, '$[2]') AND EXISTS (
        SELECT 1 FROM lane NOT INDEXED
        WHERE lane.id = json_extract(entry.value, '$[0]') AND lane.state IN ('FILLING', 'OPEN')
    )
"""

# `(all columns) IN (list)` would look a row up by its first four columns only, which any number of tasks may share. So
# rows are deleted by ranges, and one that is too long is cut first: not every SQLite knows DELETE .. LIMIT.
_CUT = f"""
    SELECT lane, priority, created_at, ready_at, place.id, ready_no, number
    FROM json_each(?) AS named CROSS JOIN lane_task AS place
    WHERE lane = named.value AND {_UP_TO.replace(" id,", " place.id,")}
    LIMIT 1 OFFSET ?
"""
_DROP = f"""
    DELETE FROM lane_task AS place WHERE lane IN (SELECT value FROM json_each(?)) AND {_UP_TO} AND {{condition}}
"""
_DROP_DEAD = _DROP.format(condition=f"NOT {_IS_LIVE}")
_DROP_ALL = _DROP.format(condition="1")

_SIZES = """
    SELECT json_group_array(json_array(lane.id, (
        SELECT count(*) FROM (SELECT 1 FROM lane_task WHERE lane_task.lane = lane.id LIMIT ?)
    )))
    FROM json_each(?) AS named CROSS JOIN lane NOT INDEXED ON lane.id = named.value
"""

_READY = "FROM task INDEXED BY task_dispatch WHERE queue = ? AND state = 'READY'"
_BEHIND, _UNTIL = f" AND ({ORDER}) > (?, ?, ?, ?)", f" AND ({ORDER}) <= (?, ?, ?, ?)"
_END = f"SELECT {ORDER} {_READY}{{bounds}} ORDER BY {ORDER} LIMIT 1 OFFSET ?"
_PART = f"""
    SELECT json_group_array(json_array({ready_columns()}))
    FROM (SELECT * {_READY}{{bounds}} AND {{condition}} ORDER BY {ORDER} LIMIT -1)
"""

_ALL = f"(lane, {_PLACE})"
_PRUNE_END = f"""
    SELECT lane, {_PLACE} FROM lane_task WHERE {_ALL} > (?, ?, ?, ?, ?, ?, ?) ORDER BY lane, {_PLACE} LIMIT 1 OFFSET ?
"""
_LOST = f"""
    lane_task AS place WHERE {_ALL} > (?, ?, ?, ?, ?, ?, ?) AND {_ALL} <= (?, ?, ?, ?, ?, ?, ?) AND NOT (
        {_IS_LIVE} AND EXISTS (SELECT 1 FROM lane NOT INDEXED WHERE lane.id = place.lane)
    )
"""
_HAS_LOST = f"SELECT EXISTS (SELECT 1 FROM {_LOST})"
_DROP_LOST = f"DELETE FROM {_LOST}"
_BEFORE_ALL, _BEHIND_ALL = (0, 0, 0, 0, "", 0, 0), (_LAST, 0, 0, 0, "", 0, 0)


def require_epoch(connection: sqlite3.Connection, placed: Placed) -> None:
    """Raise StaleLanes unless the tasks were placed by the present epoch (N3). Asked under the write lock, which keeps
    the epoch as it is until the commit: SQLite's one writer is the lock that holds it."""
    ((epoch,),) = connection.execute(_EPOCH).fetchall()
    if epoch != placed.epoch:
        raise StaleLanes


def enter(connection: sqlite3.Connection, entries: Iterable[tuple[TaskId, Sequence[LaneId]]]) -> None:
    """Put those of the tasks that are READY now into their lanes."""
    pairs = [(lane, task_id) for task_id, lanes in entries for lane in lanes]
    if pairs:
        connection.execute(_INSERT, (json.dumps(pairs),))


def fill(connections: Connections, rows: Sequence[LaneRow]) -> None:
    """Put those of the tasks that are READY still with that number into those of the lanes that are FILLING or OPEN."""
    if rows:
        entries = json.dumps([(row.lane, row.key.id, row.ready_no) for row in rows])
        with connections.writing() as connection:
            connection.execute(_FILL, (entries,))


def drop_dead(connection: sqlite3.Connection, lanes: Sequence[LaneId], last: OrderKey | None, limit: int) -> bool:
    """Delete dead rows of these lanes, up to the place of a task or to the end, looking at `limit` rows at most;
    whether these were all."""
    _, is_all = _drop(connection, _DROP_DEAD, lanes, last, limit)
    return is_all


def drop_all(connection: sqlite3.Connection, lanes: Sequence[LaneId], limit: int) -> int:
    """Delete at most `limit` rows of these lanes; how many were."""
    deleted, _ = _drop(connection, _DROP_ALL, lanes, None, limit)
    return deleted


def _drop(
    connection: sqlite3.Connection, statement: str, lanes: Sequence[LaneId], last: OrderKey | None, limit: int
) -> tuple[int, bool]:
    """How many rows were deleted, and whether there are no more of them."""
    until = (*(last or (_LAST, 0, 0, "")), _LAST, _LAST)
    cut = connection.execute(_CUT, (json.dumps(lanes), *until, limit - 1)).fetchall()
    if not cut:
        return connection.execute(statement, (json.dumps(lanes), *until)).rowcount, True
    ((lane, *place),) = cut
    before = lanes[: lanes.index(lane)]
    deleted = connection.execute(statement, (json.dumps(before), *until)).rowcount
    return deleted + connection.execute(statement, (json.dumps([lane]), *place)).rowcount, False


def sizes(connections: Connections, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
    """How many rows each of these lanes has, counted up to `cap`."""
    with connections.reading() as connection:
        ((found,),) = connection.execute(_SIZES, (cap, json.dumps(list(ids)))).fetchall()
    return dict(json.loads(found))


def ready_tasks(
    connections: Connections, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int
) -> ReadyTasks:
    """The next READY tasks of a queue, those left out that match none of these predicates.

    The end of the part is looked up first, in the index alone; then those that match are read, by one statement.
    """
    bounds: str
    binds: tuple[object, ...]
    bounds, binds = ("", (queue,)) if after is None else (_BEHIND, (queue, *after))
    condition = WRITER.render(Or(tuple(matching)) if matching else TRUE)
    with connections.reading() as connection:
        ends = connection.execute(_END.format(bounds=bounds), (*binds, size - 1)).fetchall()
        last = OrderKey(*ends[0]) if ends else None
        if last is not None:
            bounds, binds = bounds + _UNTIL, (*binds, *last)
        part = _PART.format(bounds=bounds, condition=condition.text)
        ((text,),) = connection.execute(part, (*binds, *condition.binds)).fetchall()
    return ReadyTasks(tuple((read_row(row[:-1]), row[-1]) for row in json.loads(text)), last)


def prune(connections: Connections, after: LaneRow | None, size: int) -> LaneRow | None:
    """Look at the next `size` rows of all lanes, and delete those that are dead or belong to no lane.

    Nearly always there are none, and then nobody is kept waiting.
    """
    # Rows of one task that differ in nothing but its number are passed over, until the next time.
    begin = _BEFORE_ALL if after is None else (after.lane, *after.key, after.ready_no, _LAST)
    with connections.reading() as connection:
        ends = connection.execute(_PRUNE_END, (*begin, size - 1)).fetchall()
        bounds = (*begin, *(ends[0] if ends else _BEHIND_ALL))
        ((has_lost,),) = connection.execute(_HAS_LOST, bounds).fetchall()
        if has_lost:
            with connections.writing_on(connection):
                connection.execute(_DROP_LOST, bounds)
    return LaneRow(ends[0][0], OrderKey(*ends[0][1:5]), ends[0][5]) if ends else None
