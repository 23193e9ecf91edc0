"""Between task records and rows: one list of columns, in the order of the record's fields."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from wiggle_core.tasks.keys import StoredAttributes, encode_attributes
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy
from wiggle_core.tasks.task import State, TaskRecord

Row: TypeAlias = Sequence[Any]  # Any: SQLite's types are those of the values
"""A row of `task_columns` or `history_columns`, as the driver returns it."""

Values: TypeAlias = tuple[object, ...]
"""What a row binds."""

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


_STATE, _ATTRIBUTES, _INSTANCE, _RETRY = 5, 7, 15, 16
claim_order = itemgetter(8, 3, 4, 0)
"""The claim order (O1) of such rows: priority, created_at, ready_at, id."""

_STATES = {state.value: state for state in State}


def read_row(row: Row) -> TaskRecord:
    """The task in a row of `task_columns` or `history_columns`."""
    values = list(row)
    values[_STATE] = _STATES[row[_STATE]]
    values[_ATTRIBUTES] = StoredAttributes(row[_ATTRIBUTES])
    values[_INSTANCE] = row[0] if row[_INSTANCE] is None else row[_INSTANCE]
    values[_RETRY] = DEFAULT_RETRY if row[_RETRY] is None else RetryPolicy.load(row[_RETRY])
    return TaskRecord(*values)


INSERTED_COLUMNS = (
    "id, queue, step, created_at, ready_at, state, attributes, priority, attempt, workflow, version, node, "
    "kind, correlation_id, instance_id, retry"
)
INSERTED_WIDTH = INSERTED_COLUMNS.count(",") + 1


def inserted_values(task: TaskRecord) -> Values:
    """The values of INSERTED_COLUMNS for a task that nobody has claimed yet."""
    return (
        task.id,
        task.queue,
        task.step,
        task.created_at,
        task.ready_at,
        task.state.value,
        encode_attributes(task.attributes),
        task.priority,
        task.attempt,
        task.workflow,
        task.version,
        task.node,
        task.kind,
        task.correlation_id,
        None if task.instance_id == task.id else task.instance_id,
        None if task.retry == DEFAULT_RETRY else task.retry.dump(),
    )
