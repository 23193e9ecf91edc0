"""What is selected to read a task: the columns in the order of the record's fields, the payload from its own table;
and the types of what is inserted."""

from __future__ import annotations

from wiggle_core.stores.sql.rows import INSERTED

_SHARED = (
    "{t}.id, {t}.queue, {t}.step, {t}.created_at, {t}.ready_at, {t}.state, "
    "(SELECT payload.body FROM $schema.payload WHERE payload.id = {t}.id), {t}.attributes::text, {t}.priority, "
    "{t}.attempt, {t}.workflow, {t}.version, {t}.node, {t}.kind, {t}.correlation_id, {t}.instance_id, {t}.retry, "
    "{t}.owner, {t}.token, {t}.lease_until, "
)
TASK_COLUMNS = _SHARED.format(t="task") + "NULL::bigint, NULL::text, task.error"
"""What `read_row` reads, selected from `task`."""

HISTORY_COLUMNS = _SHARED.format(t="history") + "history.finished_at, history.result, history.error"
"""What `read_row` reads, selected from `history`."""

_TYPES = {
    "attributes": "jsonb",
    "priority": "integer",
    **dict.fromkeys(("created_at", "ready_at", "attempt", "version"), "bigint"),
}
INSERTED_TYPES = {column: _TYPES.get(column, "text") for column in INSERTED}
"""The columns of a task that nobody has claimed yet, with their types."""

LANE_ROW = "lane, priority, created_at, ready_at, id, ready_no"
"""The columns of a lane row, in the order of its key."""
