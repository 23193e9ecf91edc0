"""The rows of lanes, other than by claims: how they are put in, filled, cleared, pruned, counted and audited (N1).
Whoever deletes rows passes those by that others have locked, so that nobody waits for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from wiggle_core.criteria.tree import Predicate
from wiggle_core.criteria.wire import stored_predicate
from wiggle_core.errors import TransientStoreError
from wiggle_core.stores.lanes import LaneId, LaneRow, ReadyTasks
from wiggle_core.tasks.task import OrderKey, TaskRecord
from wiggle_store_mysql.connections import Connections, Row, Session, Statement
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.epochs import hold_any
from wiggle_store_mysql.order import LANE_KEY, LANE_ROW, ORDER, behind, key_list, lock_of, named, of
from wiggle_store_mysql.packets import places
from wiggle_store_mysql.rows import BARE_TASK_COLUMNS, read_task

ROWS = 1_000
"""How many rows one statement puts in at most."""

_INSERT = f"INSERT IGNORE INTO $lane_task ({LANE_ROW}) VALUES {{rows}}"
_DELETE = f"DELETE present FROM {named('lane_task', LANE_ROW)}"

# The tasks that are looked at and the last one of them, in one statement: both of one snapshot. Nothing but the index
# is read for the last one.
_STRETCH = f"""
        SELECT {{columns}} FROM $task AS task FORCE INDEX (task_dispatch)
        WHERE queue = %s AND state = 'READY' AND {{behind}} ORDER BY {ORDER} LIMIT {{which}}"""
_PART = f"""
    SELECT false AS is_last, {BARE_TASK_COLUMNS}, task.ready_no
    FROM ({_STRETCH.format(columns="*", behind="{behind}", which="%s")}
    ) AS task WHERE {{condition}}
    UNION ALL
    SELECT true, JSON_ARRAY({ORDER}), NULL, NULL, 0
    FROM ({_STRETCH.format(columns=ORDER, behind="{behind}", which="%s, 1")}
    ) AS last
"""

_ENTERED = "SELECT id FROM $lane WHERE id IN %s AND state IN ('FILLING', 'OPEN')"
_TRIES = 20

_CLOSING = "SELECT id FROM $lane WHERE id IN %s AND state = 'CLOSING'"
_CLEARED = f"SELECT {LANE_ROW} FROM $lane_task WHERE lane IN %s LIMIT %s FOR UPDATE SKIP LOCKED"
_EMPTY = """
    SELECT lane.id FROM $lane AS lane WHERE lane.id IN %s AND lane.state = 'CLOSING'
    AND NOT EXISTS (SELECT 1 FROM $lane_task AS entry WHERE entry.lane = lane.id)
"""
# What is judged is a snapshot. A row whose task is not READY by its number there will never be live again.
_END_OF_PART = f"SELECT {LANE_ROW} FROM $lane_task WHERE {{behind}} ORDER BY {LANE_ROW} LIMIT %s, 1"
_DEAD = f"""
    SELECT STRAIGHT_JOIN {of("part", LANE_ROW)} FROM (
        SELECT {LANE_ROW} FROM $lane_task WHERE {{behind}} ORDER BY {LANE_ROW} LIMIT %s
    ) AS part
    LEFT JOIN $task AS task FORCE INDEX (PRIMARY)
    ON task.id = part.id AND task.ready_no = part.ready_no AND task.state = 'READY'
    LEFT JOIN $lane AS lane ON lane.id = part.lane AND lane.state <> 'CLOSED'
    WHERE task.id IS NULL OR lane.id IS NULL
"""
_FREE = f"SELECT {of('present', LANE_ROW)} FROM {named('lane_task', LANE_ROW)} {{lock}} SKIP LOCKED"
_SIZE = "SELECT count(*) FROM (SELECT 1 FROM $lane_task WHERE lane = %s LIMIT %s) AS first"

# One statement a lane, so that the lane, its rows and the tasks are those of one moment, whoever writes meanwhile.
_OPEN = "SELECT id, queue, predicate FROM $lane WHERE state = 'OPEN' ORDER BY id"
_IS_OPEN = "EXISTS (SELECT 1 FROM $lane WHERE id = %s AND state = 'OPEN')"
_SAME = " AND ".join(f"entry.{column} = task.{column}" for column in LANE_KEY.split(", "))
_AUDIT = f"""
    (SELECT task.id, 'is not in' AS what FROM $task AS task
    WHERE {_IS_OPEN} AND task.queue = %s AND task.state = 'READY' AND {{condition}}
    AND NOT EXISTS (SELECT 1 FROM $lane_task AS entry WHERE entry.lane = %s AND {_SAME})
    ORDER BY task.id LIMIT %s)
    UNION ALL
    (SELECT entry.id, 'is in' FROM $lane_task AS entry JOIN $task AS present
    ON present.id = entry.id AND present.ready_no = entry.ready_no AND present.state = 'READY'
    WHERE {_IS_OPEN} AND entry.lane = %s AND NOT EXISTS (
        SELECT 1 FROM $task AS task
        WHERE task.id = present.id AND {_SAME} AND task.queue = %s AND task.state = 'READY' AND {{condition}}
    )
    ORDER BY entry.id LIMIT %s)
"""
_ORPHANS = """
    SELECT lane, count(*) FROM $lane_task AS entry
    WHERE NOT EXISTS (SELECT 1 FROM $lane AS lane WHERE lane.id = entry.lane AND lane.state <> 'CLOSED')
    GROUP BY lane ORDER BY lane
"""


def insertions(rows: Sequence[LaneRow]) -> Iterator[Statement]:
    """The statements that put rows in, in the order of their keys. One that is there already is left as it is."""
    values = sorted(map(_values, rows))
    for start in range(0, len(values), ROWS):
        part = values[start : start + ROWS]
        yield _INSERT.format(rows=places(part)), part


def deletion(rows: Iterable[LaneRow]) -> Statement:
    """The statement that deletes rows."""
    return _deletion(map(_values, rows))


def _deletion(values: Iterable[Row]) -> Statement:
    return _DELETE, (key_list(values),)


def _values(row: LaneRow) -> Row:
    return (row.lane, *row.key, row.ready_no)


def ready_tasks(
    connections: Connections, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int
) -> ReadyTasks:
    """The next READY tasks of a queue, those left out that match none of the predicates."""
    further, place = behind(ORDER, after)
    with connections.reading() as session:
        writer = WRITERS[session.server.product]
        conditions = [writer.render(predicate) for predicate in matching]
        text = " OR ".join(f"({condition.text})" for condition in conditions) or "true"
        binds = [bind for condition in conditions for bind in condition.binds]
        statement = _PART.format(behind=further, condition=text)
        rows = session.rows(statement, (queue, *place, size, *binds, queue, *place, size - 1))
    last = next((OrderKey(*json.loads(row[1])) for row in rows if row[0]), None)
    found = sorted(((read_task(row[1:-1]), row[-1]) for row in rows if not row[0]), key=_place)
    return ReadyTasks(tuple(found), last)


def _place(found: tuple[TaskRecord, int]) -> OrderKey:
    return found[0].order_key


def fill(connections: Connections, rows: Sequence[LaneRow]) -> None:
    """Put rows into those of their lanes that are FILLING or OPEN."""
    for _ in range(_TRIES):
        with connections.transaction() as session:
            # The lanes are asked behind the lock: while it is held, nobody deletes the rows of one that begins to
            # close.
            held, entered = session.batch(
                [hold_any(session.server.product), (_ENTERED, (sorted({row.lane for row in rows}),))]
            )
            if held.rows:
                lanes = {lane for (lane,) in entered.rows}
                session.commit(list(insertions([row for row in rows if row.lane in lanes])))
                return
    raise TransientStoreError("the lanes of the store change so fast that none can be filled")


def clear(connections: Connections, ids: Collection[LaneId], limit: int) -> tuple[int, list[LaneId]]:
    """Delete at most `limit` rows of those of these lanes that are CLOSING; how many, and which lanes have none."""
    if not ids:
        return 0, []
    with connections.transaction() as session:
        closing = [lane for (lane,) in session.rows(_CLOSING, (list(ids),))]
        rows = session.rows(_CLEARED, (closing, limit)) if closing else []
        session.commit([_deletion(rows)] if rows else [])
    with connections.reading() as session:
        return len(rows), [lane for (lane,) in session.rows(_EMPTY, (list(ids),))]


def prune(connections: Connections, after: LaneRow | None, size: int) -> LaneRow | None:
    """Delete those of the next `size` rows that are dead or belong to no lane; the last of them, None at the end."""
    condition, binds = behind(LANE_ROW, None if after is None else _values(after))
    asked: list[Statement] = [
        (_END_OF_PART.format(behind=condition), (*binds, size - 1)),
        (_DEAD.format(behind=condition), (*binds, size)),
    ]
    with connections.reading() as session:
        end, dead = (answer.rows for answer in session.batch(asked))
    _delete_free(connections, dead)
    return LaneRow(end[0][0], OrderKey(*end[0][1:5]), end[0][5]) if end else None


def prune_head(connections: Connections, lane: LaneId, size: int) -> int:
    """Delete those of the first `size` rows of a lane that are dead; how many were."""
    with connections.reading() as session:
        dead = session.rows(_DEAD.format(behind="lane = %s"), (lane, size))
    _delete_free(connections, dead)
    return len(dead)


def _delete_free(connections: Connections, rows: Sequence[Row]) -> None:
    """Delete those of these rows that nobody has locked."""
    if not rows:
        return
    with connections.transaction() as session:
        free = session.rows(_FREE.format(lock=lock_of(session.server.product, "present")), (key_list(rows),))
        if free:
            session.commit([_deletion(free)])


def sizes(connections: Connections, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
    """How many rows each lane has, counted up to `cap`."""
    if not ids:
        return {}
    with connections.reading() as session:
        present = [lane for (lane,) in session.rows("SELECT id FROM $lane WHERE id IN %s", (list(ids),))]
        answers = session.batch([(_SIZE, (lane, cap)) for lane in present]) if present else []
    return {lane: int(answer.rows[0][0]) for lane, answer in zip(present, answers, strict=True)}


def audit(session: Session, shown: int) -> list[str]:
    """What is wrong with the rows of OPEN lanes, and which rows belong to no lane (N1); some of each kind."""
    found = [line for lane in session.rows(_OPEN) for line in _audit_lane(session, lane, shown)]
    orphans = session.rows(_ORPHANS)
    return found + [f"{count} rows are in lane {lane}, which does not exist" for lane, count in islice(orphans, shown)]


def _audit_lane(session: Session, lane: Row, shown: int) -> list[str]:
    number, queue, predicate = lane
    condition = WRITERS[session.server.product].render(stored_predicate(predicate))
    missing = (number, queue, *condition.binds, number, shown)
    extra = (number, number, queue, *condition.binds, shown)
    rows = session.rows(_AUDIT.format(condition=condition.text), (*missing, *extra))
    return [f"task {task_id!r} {what} lane {number}" for task_id, what in rows]
