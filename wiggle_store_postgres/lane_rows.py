"""The rows of lanes, other than by claims and by what makes tasks READY: how they are filled, cleared, pruned, counted
and audited (N1). Whoever deletes rows passes those by that others have locked, so that nobody waits for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import islice

from wiggle_core.criteria.tree import Predicate
from wiggle_core.criteria.wire import stored_predicate
from wiggle_core.errors import TransientStoreError
from wiggle_core.stores.lanes import LaneId, LaneRow, ReadyTasks
from wiggle_core.stores.sql.rows import claim_order, read_row
from wiggle_core.tasks.task import OrderKey
from wiggle_store_postgres.claims import IS_READY, ORDER
from wiggle_store_postgres.connections import Connections, Row, Session
from wiggle_store_postgres.dialect import WRITER
from wiggle_store_postgres.epochs import hold_epoch
from wiggle_store_postgres.rows import BARE_TASK_COLUMNS, LANE_ROW

_PART = f"""
    WITH part AS MATERIALIZED (
        SELECT * FROM $schema.task WHERE queue = $1 AND state = 'READY'{{behind}}
        ORDER BY {ORDER} LIMIT $2::bigint
    ),
    last AS (SELECT {ORDER} FROM part OFFSET $2::bigint - 1),
    found AS (SELECT {BARE_TASK_COLUMNS}, ready_no FROM part AS task WHERE {{condition}})
    SELECT last.*, found.* FROM (SELECT) AS one LEFT JOIN last ON true LEFT JOIN found ON true
"""
_BEHIND = f" AND ({ORDER}) > ($3::integer, $4::bigint, $5::bigint, $6)"
_KEY = len(OrderKey._fields)

# The state of a lane is that of a snapshot from before the lock; but what the lock confirms is that no lane has begun
# to close since, and while it is held nobody deletes the rows of one that does.
_FILL = f"""
    WITH epoch AS MATERIALIZED (
        SELECT {hold_epoch("(SELECT epoch FROM $schema.lane_epoch)")} AS ready_no
    ),
    given AS MATERIALIZED (
        SELECT (value ->> 0)::bigint AS lane, (value ->> 1)::integer AS priority, (value ->> 2)::bigint AS created_at,
            (value ->> 3)::bigint AS ready_at, value ->> 4 AS id, (value ->> 5)::bigint AS ready_no
        FROM json_array_elements($1::json) AS value
    ),
    entered AS (
        INSERT INTO $schema.lane_task ({LANE_ROW}) SELECT {LANE_ROW} FROM given
        WHERE (SELECT ready_no FROM epoch) IS NOT NULL AND lane = ANY (ARRAY(
            SELECT id FROM $schema.lane WHERE id = ANY (ARRAY(SELECT lane FROM given)) AND state IN ('FILLING', 'OPEN')
        ))
        ON CONFLICT DO NOTHING
    )
    SELECT ready_no IS NOT NULL FROM epoch
"""
_TRIES = 20

_CLEAR = """
    DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM $schema.lane_task
        WHERE lane = ANY (ARRAY(SELECT id FROM $schema.lane WHERE id = ANY ($1::bigint[]) AND state = 'CLOSING'))
        LIMIT $2::bigint FOR UPDATE SKIP LOCKED
    ))
"""
_EMPTY = """
    SELECT id FROM $schema.lane AS lane WHERE id = ANY ($1::bigint[]) AND state = 'CLOSING'
    AND (SELECT true FROM $schema.lane_task AS row WHERE row.lane = lane.id LIMIT 1) IS NULL
"""
# What is judged is a snapshot. A row whose task is not READY by its number there will never be live again.
_PRUNE = f"""
    WITH part AS MATERIALIZED (
        SELECT ctid AS place, {LANE_ROW} FROM $schema.lane_task WHERE {{behind}}
        ORDER BY {LANE_ROW} LIMIT $1::bigint
    ),
    dead AS MATERIALIZED (
        SELECT ctid AS place FROM $schema.lane_task WHERE ctid = ANY (ARRAY(
            SELECT place FROM part WHERE
            (SELECT task.ready_no FROM $schema.task AS task WHERE task.id = part.id AND {IS_READY})
                IS DISTINCT FROM part.ready_no
            OR (SELECT lane.state <> 'CLOSED' FROM $schema.lane AS lane WHERE lane.id = part.lane) IS NOT TRUE
        )) FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(SELECT place FROM dead)))
    SELECT {LANE_ROW} FROM part OFFSET $1::bigint - 1
"""
_FROM_THE_FIRST = "true"
_BEHIND_A_ROW = f"({LANE_ROW}) > ($2::bigint, $3::integer, $4::bigint, $5::bigint, $6, $7::bigint)"
_SIZES = """
    SELECT lane.id, size.rows FROM $schema.lane AS lane CROSS JOIN LATERAL (
        SELECT count(*) AS rows FROM (
            SELECT FROM $schema.lane_task AS row WHERE row.lane = lane.id LIMIT $2::bigint
        ) AS first
    ) AS size
    WHERE lane.id = ANY ($1::bigint[])
"""

# One statement a lane, so that the lane, its rows and the tasks are those of one moment, whoever writes meanwhile.
_AUDIT = f"""
    WITH lane AS MATERIALIZED (SELECT FROM $schema.lane WHERE id = $1::bigint AND state = 'OPEN'),
    wanted AS MATERIALIZED (
        SELECT {ORDER}, ready_no FROM $schema.task
        WHERE EXISTS (SELECT FROM lane) AND queue = $2 AND state = 'READY' AND {{condition}}
    ),
    present AS MATERIALIZED (
        SELECT row.priority, row.created_at, row.ready_at, row.id, row.ready_no
        FROM $schema.lane_task AS row JOIN $schema.task AS task ON task.id = row.id AND task.ready_no = row.ready_no
        WHERE EXISTS (SELECT FROM lane) AND row.lane = $1::bigint AND task.state = 'READY'
    )
    (SELECT id, 'is not in' FROM (SELECT * FROM wanted EXCEPT SELECT * FROM present) AS missing ORDER BY id LIMIT $3)
    UNION ALL
    (SELECT id, 'is in' FROM (SELECT * FROM present EXCEPT SELECT * FROM wanted) AS extra ORDER BY id LIMIT $3)
"""
_OPEN = "SELECT id, queue, predicate FROM $schema.lane WHERE state = 'OPEN' ORDER BY id"
_ORPHANS = """
    SELECT lane, count(*) FROM $schema.lane_task
    WHERE NOT EXISTS (SELECT FROM $schema.lane AS lane WHERE lane.id = lane_task.lane AND lane.state <> 'CLOSED')
    GROUP BY lane ORDER BY lane
"""


def ready_tasks(
    connections: Connections, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int
) -> ReadyTasks:
    """The next READY tasks of a queue, those left out that match none of the predicates."""
    binds: list[object] = [queue, size, *(after or ())]
    conditions = []
    for predicate in matching:
        condition = WRITER.render(predicate, len(binds))
        conditions.append(condition.text)
        binds += condition.binds
    statement = _PART.format(behind=_BEHIND if after else "", condition=" OR ".join(conditions) or "true")
    with connections.reading() as session:
        rows = session.rows(statement, binds)
    last = OrderKey(*rows[0][:_KEY]) if rows[0][0] is not None else None
    found = sorted((row[_KEY:] for row in rows if row[_KEY] is not None), key=claim_order)
    return ReadyTasks(tuple((read_row(row[:-1]), row[-1]) for row in found), last)


def fill(connections: Connections, rows: Sequence[LaneRow]) -> None:
    """Put rows into those of their lanes that are FILLING or OPEN."""
    items = json.dumps(sorted((row.lane, *row.key, row.ready_no) for row in rows), ensure_ascii=False)
    for _ in range(_TRIES):
        with connections.changing() as session:
            ((is_held,),) = session.rows(_FILL, (items,))
        if is_held:
            return
    raise TransientStoreError("the lanes of the store change so fast that none can be filled")


def clear(connections: Connections, ids: Collection[LaneId], limit: int) -> tuple[int, list[LaneId]]:
    """Delete at most `limit` rows of those of these lanes that are CLOSING; how many, and which lanes have none."""
    with connections.changing() as session:
        deleted = session.run(_CLEAR, (list(ids), limit))
        return deleted, [lane for (lane,) in session.rows(_EMPTY, (list(ids),))]


def prune(connections: Connections, after: LaneRow | None, size: int) -> LaneRow | None:
    """Delete those of the next `size` rows that are dead or belong to no lane; the last of them, None at the end."""
    behind: tuple[object, ...] = () if after is None else (after.lane, *after.key, after.ready_no)
    statement = _PRUNE.format(behind=_FROM_THE_FIRST if after is None else _BEHIND_A_ROW)
    with connections.changing() as session:
        rows = session.rows(statement, (size, *behind))
    return LaneRow(rows[0][0], OrderKey(*rows[0][1:5]), rows[0][5]) if rows else None


def sizes(connections: Connections, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
    """How many rows each lane has, counted up to `cap`."""
    with connections.reading() as session:
        return dict(session.rows(_SIZES, (list(ids), cap)))


def audit(session: Session, shown: int) -> list[str]:
    """What is wrong with the rows of OPEN lanes, and which rows belong to no lane (N1); some of each kind."""
    found = [line for lane in session.rows(_OPEN) for line in _audit_lane(session, lane, shown)]
    orphans = session.rows(_ORPHANS)
    return found + [f"{count} rows are in lane {lane}, which does not exist" for lane, count in islice(orphans, shown)]


def _audit_lane(session: Session, lane: Row, shown: int) -> list[str]:
    number, queue, predicate = lane
    condition = WRITER.render(stored_predicate(predicate), 3)
    rows = session.rows(_AUDIT.format(condition=condition.text), (number, queue, shown, *condition.binds))
    return [f"task {task_id!r} {what} lane {number}" for task_id, what in rows]
