"""What is selected to read a task: the columns in the order of the record's fields, the payload from its own table;
and the types of what is inserted."""

from __future__ import annotations

from wiggle_core.stores.sql.rows import INSERTED

_SHARED = (
    "{t}.id, {t}.queue, {t}.step, {t}.created_at, {t}.ready_at, {t}.state, "
    "{body}, {t}.attributes::text, {t}.priority, "
    "{t}.attempt, {t}.workflow, {t}.version, {t}.node, {t}.kind, {t}.correlation_id, {t}.instance_id, {t}.retry, "
    "{t}.owner, {t}.token, {t}.lease_until, "
)
_BODY = "(SELECT payload.body FROM $schema.payload WHERE payload.id = {t}.id)"
_NOT_SETTLED = "NULL::bigint, NULL::text, task.error"
TASK_COLUMNS = _SHARED.format(t="task", body=_BODY.format(t="task")) + _NOT_SETTLED
"""What `read_row` reads, selected from `task`."""

BARE_TASK_COLUMNS = _SHARED.format(t="task", body="'null'::text AS body") + _NOT_SETTLED
"""Likewise, with the payload left out."""

HISTORY_COLUMNS = (
    _SHARED.format(t="history", body=_BODY.format(t="history")) + "history.finished_at, history.result, history.error"
)
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
