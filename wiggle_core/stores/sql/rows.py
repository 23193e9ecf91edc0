"""Between task records and rows of SQL stores: the columns stand in the order of the record's fields."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from wiggle_core.tasks.keys import StoredAttributes, encode_attributes
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy
from wiggle_core.tasks.task import State, TaskRecord

Row: TypeAlias = Sequence[Any]  # Any: the driver's types are those of the values
"""A row as the driver returns it: every field of a TaskRecord, attributes as the stored JSON text of their keys."""

Values: TypeAlias = tuple[object, ...]
"""What a row binds."""

INSERTED = (
    "id", "queue", "step", "created_at", "ready_at", "state", "attributes", "priority", "attempt", "workflow",
    "version", "node", "kind", "correlation_id", "instance_id", "retry",
)  # fmt: skip
"""The columns of a task that nobody has claimed yet, in the order of `inserted_values`; its payload is kept apart."""

claim_order = itemgetter(8, 3, 4, 0)
"""The claim order (O1) of rows: priority, created_at, ready_at, id."""

_STATE, _ATTRIBUTES, _INSTANCE, _RETRY = 5, 7, 15, 16
_STATES = {state.value: state for state in State}


def read_row(row: Row) -> TaskRecord:
    """The task in a row of every field, in order. A task alone in its instance, and the default policy, are NULL."""
    values = list(row)
    values[_STATE] = _STATES[row[_STATE]]
    values[_ATTRIBUTES] = StoredAttributes(row[_ATTRIBUTES])
    values[_INSTANCE] = row[0] if row[_INSTANCE] is None else row[_INSTANCE]
    values[_RETRY] = DEFAULT_RETRY if row[_RETRY] is None else RetryPolicy.load(row[_RETRY])
    return TaskRecord(*values)


def inserted_values(task: TaskRecord) -> Values:
    """The values of INSERTED."""
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
