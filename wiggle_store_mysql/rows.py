"""What is selected to read a task: the columns in the order of the record's fields, the payload from its own table."""

from __future__ import annotations

_SHARED = (
    "{t}.id, {t}.queue, {t}.step, {t}.created_at, {t}.ready_at, {t}.state, "
    "{body}, {t}.attributes, {t}.priority, "
    "{t}.attempt, {t}.workflow, {t}.version, {t}.node, {t}.kind, {t}.correlation_id, {t}.instance_id, {t}.retry, "
    "{t}.owner, {t}.token, {t}.lease_until, "
)
_BODY = "(SELECT payload.body FROM $payload AS payload WHERE payload.id = {t}.id) AS body"
_NOT_SETTLED = "NULL AS finished_at, NULL AS result, task.error"

TASK_COLUMNS = _SHARED.format(t="task", body=_BODY.format(t="task")) + _NOT_SETTLED
"""What `read_row` reads, selected from `$task AS task`."""

BARE_TASK_COLUMNS = _SHARED.format(t="task", body="'null' AS body") + _NOT_SETTLED
"""Likewise, with the payload left out."""

HISTORY_COLUMNS = (
    _SHARED.format(t="history", body=_BODY.format(t="history")) + "history.finished_at, history.result, history.error"
)
"""What `read_row` reads, selected from `$history AS history`."""
