"""Bulk inserts: few tasks as one JSON list in one statement, many by COPY.

Every id that is taken, live or in history, has its row in `payload`, from enqueue to purge. So one unique index
decides about an id, also after a wait for whoever writes it just now, and no move into history or back can slip by
(L4). Ids are inserted in order (L7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from psycopg.errors import UniqueViolation

from wiggle_core.errors import PermanentStoreError, StaleLanes
from wiggle_core.stores.lanes import LaneId, Placed
from wiggle_core.stores.sql.rows import INSERTED, inserted_values
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.epochs import hold_epoch, lane_array, require_current
from wiggle_store_postgres.rows import INSERTED_TYPES, LANE_ROW

COPY_FROM = 200
"""From so many tasks on COPY is quicker, whose two streams take more round trips than one statement."""

_KINDS = list(INSERTED_TYPES.items())
_COLUMNS = ", ".join(INSERTED)
_LAST = len(INSERTED)
_GIVEN = f"""
    SELECT {", ".join(f"(value ->> {place})::{kind} AS {name}" for place, (name, kind) in enumerate(_KINDS))},
        value ->> {_LAST} AS body, (value ->> {_LAST + 1})::bigint[] AS lanes, {hold_epoch("$2")} AS ready_no
    FROM (SELECT value::jsonb AS value FROM json_array_elements($1::json) AS value OFFSET 0) AS item
"""
_ONE_GIVEN = f"""
    SELECT {", ".join(f"${place}::{kind} AS {name}" for place, (name, kind) in enumerate(_KINDS, 1))},
        ${_LAST + 1}::text AS body, ${_LAST + 2}::bigint[] AS lanes, {hold_epoch(f"${_LAST + 3}")} AS ready_no
"""
_INSERT = f"""
    WITH given AS MATERIALIZED ({{given}}),
    fresh AS (
        INSERT INTO $schema.payload (id, body) SELECT id, body FROM given WHERE ready_no IS NOT NULL
        ON CONFLICT (id) DO NOTHING RETURNING id
    ){{entered}}
    INSERT INTO $schema.task ({_COLUMNS}, ready_no) SELECT {_COLUMNS}, ready_no FROM given JOIN fresh USING (id)
    RETURNING id
"""
_ENTERED = f""",
    entered AS (
        INSERT INTO $schema.lane_task ({LANE_ROW})
        SELECT {LANE_ROW} FROM given JOIN fresh USING (id), unnest(lanes) AS lane ON CONFLICT DO NOTHING
    )"""
_HELD_AND_KNOWN = f"""
    SELECT {hold_epoch("$2")}, EXISTS (
        SELECT FROM json_array_elements_text($1::json) AS named JOIN $schema.payload AS payload ON payload.id = named
    )
"""
_COPY_PAYLOADS = "COPY $schema.payload (id, body) FROM STDIN"
_COPY_TASKS = f"COPY $schema.task ({_COLUMNS}, ready_no) FROM STDIN"
_COPY_LANES = f"COPY $schema.lane_task ({LANE_ROW}) FROM STDIN"


@lru_cache
def _insert(*, is_one: bool, has_lanes: bool) -> str:
    """The statement for a list of tasks, or for one: this takes its values as they are, and a fifth off the time."""
    return _INSERT.format(given=_ONE_GIVEN if is_one else _GIVEN, entered=_ENTERED if has_lanes else "")


def enqueue(connections: Connections, tasks: Sequence[TaskRecord], placed: Placed) -> set[TaskId]:
    """Insert the tasks whose ids are neither live nor in history; their ids. Raises StaleLanes (N3)."""
    new: dict[TaskId, TaskRecord] = {}
    lanes: dict[TaskId, Sequence[LaneId]] = {}
    for index, task in enumerate(tasks):
        if task.id not in new:  # of two alike the first one counts
            new[task.id] = task
            if task.state is State.READY and placed.of(index):
                lanes[task.id] = placed.of(index)
    if not new:
        return set()
    epoch = placed.epoch if any(task.state is State.READY for task in tasks) else None
    in_order = [new[each] for each in sorted(new)]
    if len(in_order) >= COPY_FROM and _copied(connections, in_order, lanes, epoch):
        return set(new)
    statement = _insert(is_one=len(in_order) == 1, has_lanes=bool(lanes))
    items = [(*inserted_values(task), task.payload, lane_array(lanes.get(task.id, ()))) for task in in_order]
    binds = items[0] if len(items) == 1 else (json.dumps(items, ensure_ascii=False),)
    with connections.changing() as session:
        inserted = session.rows(statement, (*binds, epoch), prepare=True)
        if not inserted:
            require_current(session, epoch)
    return {task_id for (task_id,) in inserted}


def _copied(
    connections: Connections, new: list[TaskRecord], lanes: Mapping[TaskId, Sequence[LaneId]], epoch: int | None
) -> bool:
    """Whether all tasks went in by COPY, which knows no conflict clause: False, with nothing done, if an id is taken.

    The question before spares a retry an error in the server's log; only one who enqueues the same ids at the same
    time meets the unique index.
    """
    names = json.dumps([task.id for task in new], ensure_ascii=False)
    try:
        with connections.transaction() as session:
            ((ready_no, is_known),) = session.rows(_HELD_AND_KNOWN, (names, epoch))
            if ready_no is None:
                raise StaleLanes
            if is_known:
                return False
            session.copy(_COPY_PAYLOADS, ((task.id, task.payload) for task in new))
            session.copy(_COPY_TASKS, ((*inserted_values(task), ready_no) for task in new))
            # In the order of their index, which is the quickest one.
            rows = sorted((lane, *task.order_key, ready_no) for task in new for lane in lanes.get(task.id, ()))
            if rows:
                session.copy(_COPY_LANES, rows)
            return True
    except PermanentStoreError as error:
        if isinstance(error.__cause__, UniqueViolation):
            return False
        raise
