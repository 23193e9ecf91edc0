"""Bulk inserts: few tasks as one JSON list in one statement, many by COPY.

Every id that is taken, live or in history, has its row in `payload`, from enqueue to purge. So one unique index
decides about an id, also after a wait for whoever writes it just now, and no move into history or back can slip by
(L4). Ids are inserted in order (L7).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from psycopg.errors import UniqueViolation

from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.sql.rows import INSERTED, inserted_values
from wiggle_core.tasks.task import TaskId, TaskRecord
from wiggle_store_postgres.connections import Connections, Row
from wiggle_store_postgres.rows import INSERTED_TYPES

COPY_FROM = 200
"""From so many tasks on COPY is quicker, whose two streams take more round trips than one statement."""

_COLUMNS = ", ".join(INSERTED)
_FIELDS = ", ".join(
    f"(value ->> {place})::{kind} AS {name}" for place, (name, kind) in enumerate(INSERTED_TYPES.items())
)
_INSERT = f"""
    WITH given AS MATERIALIZED (
        SELECT {_FIELDS}, value ->> {len(INSERTED)} AS body FROM json_array_elements($1::json) AS value
    ),
    fresh AS (
        INSERT INTO $schema.payload (id, body) SELECT id, body FROM given ON CONFLICT (id) DO NOTHING RETURNING id
    )
    INSERT INTO $schema.task ({_COLUMNS}) SELECT {_COLUMNS} FROM given JOIN fresh USING (id) RETURNING id
"""
_KNOWN = """
    SELECT EXISTS (
        SELECT FROM json_array_elements_text($1::json) AS named JOIN $schema.payload AS payload ON payload.id = named
    )
"""
_COPY_PAYLOADS = "COPY $schema.payload (id, body) FROM STDIN"
_COPY_TASKS = f"COPY $schema.task ({_COLUMNS}) FROM STDIN"


def enqueue(connections: Connections, tasks: Sequence[TaskRecord]) -> set[TaskId]:
    """Insert the tasks whose ids are neither live nor in history; their ids."""
    rows: dict[TaskId, Row] = {}
    payloads: dict[TaskId, str] = {}
    for task in tasks:
        if task.id not in rows:  # of two alike the first one counts
            rows[task.id] = inserted_values(task)
            payloads[task.id] = task.payload
    if not rows:
        return set()
    ids = sorted(rows)
    if len(ids) >= COPY_FROM and _copied(connections, [rows[each] for each in ids], payloads):
        return set(ids)
    items = [(*rows[each], payloads[each]) for each in ids]
    with connections.changing() as session:
        inserted = session.rows(_INSERT, (json.dumps(items, ensure_ascii=False),))
    return {task_id for (task_id,) in inserted}


def _copied(connections: Connections, rows: list[Row], payloads: dict[TaskId, str]) -> bool:
    """Whether all rows went in by COPY, which knows no conflict clause: False, with nothing done, if an id is taken.

    The question before spares a retry an error in the server's log; only one who enqueues the same ids at the same
    time meets the unique index.
    """
    try:
        with connections.transaction() as session:
            ((is_known,),) = session.rows(_KNOWN, (json.dumps([row[0] for row in rows], ensure_ascii=False),))
            if is_known:
                return False
            session.copy(_COPY_PAYLOADS, ((row[0], payloads[row[0]]) for row in rows))
            session.copy(_COPY_TASKS, rows)
            return True
    except PermanentStoreError as error:
        if isinstance(error.__cause__, UniqueViolation):
            return False
        raise
