"""Bulk inserts: few tasks as one JSON list in one statement, many by COPY.

Every id that is taken, live or in history, has its row in `payload`, from enqueue to purge. So one unique index
decides about an id, also after a wait for whoever writes it just now, and no move into history or back can slip by
(L4). Ids are inserted in order (L7).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.errors import UniqueViolation

from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.lanes import LaneId, Placed
from wiggle_core.stores.sql.rows import INSERTED, Values, inserted_values
from wiggle_core.tasks.task import OrderKey, State, TaskId, TaskRecord
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.epochs import held_epoch, lane_array, require_held
from wiggle_store_postgres.rows import INSERTED_TYPES, LANE_ROW

COPY_FROM = 200
"""From so many tasks on COPY is quicker, whose two streams take more round trips than one statement."""

_COLUMNS = ", ".join(INSERTED)
_FIELDS = ", ".join(
    f"(value ->> {place})::{kind} AS {name}" for place, (name, kind) in enumerate(INSERTED_TYPES.items())
)
_BODY, _LANES = len(INSERTED), len(INSERTED) + 1
_INSERT = f"""
    WITH {held_epoch("$2")},
    given AS MATERIALIZED (
        SELECT {_FIELDS}, value ->> {_BODY} AS body, (value ->> {_LANES})::bigint[] AS lanes
        FROM json_array_elements($1::json) AS value WHERE (SELECT ready_no FROM epoch) IS NOT NULL
    ),
    fresh AS (
        INSERT INTO $schema.payload (id, body) SELECT id, body FROM given ON CONFLICT (id) DO NOTHING RETURNING id
    ),
    inserted AS (
        INSERT INTO $schema.task ({_COLUMNS}, ready_no)
        SELECT {_COLUMNS}, (SELECT ready_no FROM epoch) FROM given JOIN fresh USING (id) RETURNING id
    ){{entered}}
    SELECT epoch.ready_no, inserted.id FROM epoch LEFT JOIN inserted ON true
"""
_ENTERED = f""",
    entered AS (
        INSERT INTO $schema.lane_task ({LANE_ROW})
        SELECT lane, priority, created_at, ready_at, id, (SELECT ready_no FROM epoch)
        FROM given JOIN fresh USING (id), unnest(lanes) AS lane ON CONFLICT DO NOTHING
    )"""
_INSERT_ALONE, _INSERT_WITH_LANES = _INSERT.format(entered=""), _INSERT.format(entered=_ENTERED)
_HELD_AND_KNOWN = f"""
    WITH {held_epoch("$2")}
    SELECT ready_no, EXISTS (
        SELECT FROM json_array_elements_text($1::json) AS named JOIN $schema.payload AS payload ON payload.id = named
    ) FROM epoch
"""
_COPY_PAYLOADS = "COPY $schema.payload (id, body) FROM STDIN"
_COPY_TASKS = f"COPY $schema.task ({_COLUMNS}, ready_no) FROM STDIN"
_COPY_LANES = f"COPY $schema.lane_task ({LANE_ROW}) FROM STDIN"


@dataclass(frozen=True, slots=True)
class _New:
    """A task to be inserted: the values of INSERTED, its payload, and its place in the lanes that it enters."""

    values: Values
    payload: str
    key: OrderKey
    lanes: Sequence[LaneId]

    @property
    def item(self) -> tuple[object, ...]:
        return (*self.values, self.payload, lane_array(self.lanes))


def enqueue(connections: Connections, tasks: Sequence[TaskRecord], placed: Placed) -> set[TaskId]:
    """Insert the tasks whose ids are neither live nor in history; their ids. Raises StaleLanes (N3)."""
    new: dict[TaskId, _New] = {}
    epoch: int | None = None
    for index, task in enumerate(tasks):
        is_ready = task.state is State.READY
        epoch = placed.epoch if is_ready else epoch
        if task.id not in new:  # of two alike the first one counts
            lanes = placed.of(index) if is_ready else ()
            new[task.id] = _New(inserted_values(task), task.payload, task.order_key, lanes)
    if not new:
        return set()
    in_order = [new[each] for each in sorted(new)]
    if len(in_order) >= COPY_FROM and _copied(connections, in_order, epoch):
        return set(new)
    has_lanes = any(each.lanes for each in in_order)
    binds = (json.dumps([each.item for each in in_order], ensure_ascii=False), epoch)
    with connections.changing() as session:
        rows = session.rows(_INSERT_WITH_LANES if has_lanes else _INSERT_ALONE, binds)
    require_held(rows)
    return {task_id for _, task_id in rows if task_id is not None}


def _copied(connections: Connections, new: list[_New], epoch: int | None) -> bool:
    """Whether all tasks went in by COPY, which knows no conflict clause: False, with nothing done, if an id is taken.

    The question before spares a retry an error in the server's log; only one who enqueues the same ids at the same
    time meets the unique index.
    """
    names = json.dumps([each.key.id for each in new], ensure_ascii=False)
    try:
        with connections.transaction() as session:
            held = session.rows(_HELD_AND_KNOWN, (names, epoch))
            require_held(held)
            ((ready_no, is_known),) = held
            if is_known:
                return False
            session.copy(_COPY_PAYLOADS, ((each.key.id, each.payload) for each in new))
            session.copy(_COPY_TASKS, ((*each.values, ready_no) for each in new))
            # In the order of their index: it is the quicker way, and that of everyone.
            lane_rows = sorted((lane, *each.key, ready_no) for each in new for lane in each.lanes)
            if lane_rows:
                session.copy(_COPY_LANES, lane_rows)
            return True
    except PermanentStoreError as error:
        if isinstance(error.__cause__, UniqueViolation):
            return False
        raise
