"""What is selected to read a task, and how it is read.

All fields but the longest come as one JSON text: PyMySQL takes 20 us for the description of each column of an answer
and 1.5 us for each value in it, which the JSON parser of Python's library takes for a whole task.
"""

from __future__ import annotations

import json

from wiggle_core.stores.sql.rows import read_row
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_mysql.connections import Row

_FIELDS = (
    "id, queue, step, created_at, ready_at, state, priority, attempt, workflow, version, node, kind, correlation_id, "
    "instance_id, retry, owner, token, lease_until, finished_at, result, error"
)
_BEFORE_BODY = 6
"""How many of them come before payload and attributes in a record."""
_SETTLED = ("finished_at", "result")


def _columns(table: str, body: str) -> str:
    names = ["NULL" if table == "task" and name in _SETTLED else f"{table}.{name}" for name in _FIELDS.split(", ")]
    return f"JSON_ARRAY({', '.join(names)}) AS fields, {body} AS body, {table}.attributes"


def _body(table: str) -> str:
    return f"(SELECT payload.body FROM $payload AS payload WHERE payload.id = {table}.id)"


TASK_COLUMNS = _columns("task", _body("task"))
"""What `read_task` reads, selected from `$task AS task`."""

BARE_TASK_COLUMNS = _columns("task", "'null'")
"""Likewise, with the payload left out."""

HISTORY_COLUMNS = _columns("history", _body("history"))
"""What `read_task` reads, selected from `$history AS history`."""


def read_task(row: Row) -> TaskRecord:
    """The task in a row of these columns."""
    fields, *long = row
    values = json.loads(fields)
    return read_row([*values[:_BEFORE_BODY], *long, *values[_BEFORE_BODY:]])
