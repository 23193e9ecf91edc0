"""What is selected to read a task: the columns in the order of the record's fields, the payload from its own table."""

from __future__ import annotations

ORDER = "priority, created_at, ready_at, id"
"""The claim order (O1)."""

_SHARED = (
    "id, queue, step, created_at, ready_at, state, {body}, attributes, priority, attempt, workflow, version, node, "
    "kind, correlation_id, instance_id, retry, owner, token, lease_until, "
)
_BODY = "(SELECT body FROM payload WHERE payload.number = {table}.number)"


def task_columns(table: str = "task") -> str:
    """What `read_row` reads, selected from `task` or from rows of its columns under another name."""
    return _SHARED.format(body=_BODY.format(table=table)) + "NULL, NULL, error"


def history_columns(table: str = "history") -> str:
    """What `read_row` reads, selected from `history`."""
    return _SHARED.format(body=_BODY.format(table=table)) + "finished_at, result, error"


def ready_columns() -> str:
    """What `read_row` reads, of a task whose payload is not wanted, and its `ready_no`."""
    return _SHARED.format(body="'null'") + "NULL, NULL, error, ready_no"
