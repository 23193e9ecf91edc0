"""Between task records and rows: one list of columns, in the order of the record's fields."""

from __future__ import annotations

from wiggle_core.tasks.keys import StoredAttributes, encode_attributes
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_postgres.connections import Row

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

_STATE, _ATTRIBUTES, _INSTANCE, _RETRY = 5, 7, 15, 16
_STATES = {state.value: state for state in State}


def read_row(row: Row) -> TaskRecord:
    """The task in a row of TASK_COLUMNS or HISTORY_COLUMNS."""
    values = list(row)
    values[_STATE] = _STATES[row[_STATE]]
    values[_ATTRIBUTES] = StoredAttributes(row[_ATTRIBUTES])
    values[_INSTANCE] = row[0] if row[_INSTANCE] is None else row[_INSTANCE]
    values[_RETRY] = DEFAULT_RETRY if row[_RETRY] is None else RetryPolicy.load(row[_RETRY])
    return TaskRecord(*values)


INSERTED = {
    "id": "text",
    "queue": "text",
    "step": "text",
    "created_at": "bigint",
    "ready_at": "bigint",
    "state": "text",
    "attributes": "jsonb",
    "priority": "integer",
    "attempt": "bigint",
    "workflow": "text",
    "version": "bigint",
    "node": "text",
    "kind": "text",
    "correlation_id": "text",
    "instance_id": "text",
    "retry": "text",
}
"""The columns of a task that nobody has claimed yet, with their types."""


def inserted_values(task: TaskRecord) -> Row:
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
