"""Changes and leases: each kind of change is one statement over a JSON list of them, with the guard inside (L2).

A list as one bind makes a group of settlements a few steps, whatever its size. A statement each would give Python's
global lock away at every one of them with the write lock in hand: up to 370 ms for 100 were measured beside a thread
that computes, 10 ms this way.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from wiggle_core.stores.changes import makes_ready
from wiggle_core.stores.lanes import LaneId, Placed
from wiggle_core.stores.sql.rows import Values
from wiggle_core.stores.store import (
    Cancel,
    Change,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    change_id,
)
from wiggle_core.tasks.keys import encode_attributes
from wiggle_core.tasks.task import Clock, Lease, State, TaskId
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.lane_rows import enter, require_epoch

_UNCHANGED = (
    "queue, step, created_at, priority, workflow, version, node, kind, correlation_id, instance_id, retry, token"
)

# The list drives each statement, one task found by its id for each entry: CROSS JOIN and INDEXED BY say so to a
# planner that old statistics might lead through all tasks.
_SETTLE = f"""
    INSERT INTO history (number, id, {_UNCHANGED}, ready_no, ready_at, attributes, attempt, owner, lease_until,
        finished_at, state, result, error)
    SELECT number, task.id, {_UNCHANGED}, ready_no, ready_at, attributes, attempt, owner, lease_until, :now,
        json_extract(change.value, '$[2]'), json_extract(change.value, '$[3]'), {{error}}
    FROM json_each(:changes) AS change CROSS JOIN task INDEXED BY task_id
    WHERE task.id = json_extract(change.value, '$[0]') AND {{guard}}
    RETURNING id, token
"""
_CHANGING = ("state", "attempt", "ready_at", "attributes", "error", "owner", "lease_until", "ready_no")
# An upsert, since UPDATE .. FROM leaves the order of its join to the planner whatever is written.
_UPDATE = f"""
    INSERT INTO task (number, id, {_UNCHANGED}, {", ".join(_CHANGING)})
    SELECT number, task.id, {_UNCHANGED}, {{values}}
    FROM json_each(:changes) AS change CROSS JOIN task INDEXED BY task_id
    WHERE task.id = json_extract(change.value, '$[0]') AND {{guard}}
    ON CONFLICT (number) DO UPDATE
    SET {", ".join(f"{column} = excluded.{column}" for column in _CHANGING)}, reserved_at = NULL
    RETURNING id, token
"""
_REVIVE = f"""
    INSERT INTO task (number, id, {_UNCHANGED}, ready_no, ready_at, attributes, attempt, state)
    SELECT number, history.id, {_UNCHANGED}, ready_no + 1, :now, json_extract(change.value, '$[1]'), 1, 'READY'
    FROM json_each(:changes) AS change CROSS JOIN history INDEXED BY history_id
    WHERE history.id = json_extract(change.value, '$[0]') AND state IN ('FAILED', 'CANCELLED')
    RETURNING id, token
"""
_LEAVE_TASK = "DELETE FROM task INDEXED BY task_id WHERE id IN (SELECT value FROM json_each(?))"
_LEAVE_HISTORY = "DELETE FROM history INDEXED BY history_id WHERE id IN (SELECT value FROM json_each(?))"

_IS_LEASED = "state = 'RUNNING' AND token = json_extract(change.value, '$[1]')"
_RAN_OUT = f"{_IS_LEASED} AND lease_until <= :now"
_NEW_ERROR = "json_extract(change.value, '$[4]')"
# Of one that is not READY yet it may grow too: it grows again when the task is.
_NEXT = "ready_no + 1"

_AGAIN = {
    "state": "iif(json_extract(change.value, '$[2]') > 0, 'SCHEDULED', 'READY')",
    "attempt": "attempt + 1",
    "ready_at": ":now + json_extract(change.value, '$[2]')",
    "attributes": "json_extract(change.value, '$[3]')",
    "error": _NEW_ERROR,
    "owner": "NULL",
    "lease_until": "NULL",
    "ready_no": _NEXT,
}
_BACK = {
    "state": "'READY'",
    "attributes": "json_extract(change.value, '$[2]')",
    "owner": "NULL",
    "lease_until": "NULL",
    "ready_no": _NEXT,
}
_NOW_READY = {
    "state": "'READY'",
    "ready_at": ":now",
    "attributes": "json_extract(change.value, '$[1]')",
    "ready_no": _NEXT,
}


def _update(new: dict[str, str], guard: str) -> str:
    """The update that gives some columns new values and keeps the others."""
    return _UPDATE.format(values=", ".join(new.get(column, column) for column in _CHANGING), guard=guard)


@dataclass(frozen=True, slots=True)
class _Step:
    """How one kind of change is made: a statement over a list of values, and what removes the rows it moved."""

    statement: str
    leave: str | None = None


_FINISH = _Step(_SETTLE.format(error=_NEW_ERROR, guard=_IS_LEASED), _LEAVE_TASK)
_GIVE_UP = _Step(_SETTLE.format(error=_NEW_ERROR, guard=_RAN_OUT), _LEAVE_TASK)
_CANCEL = _Step(_SETTLE.format(error="error", guard="state IN ('SCHEDULED', 'READY', 'RUNNING')"), _LEAVE_TASK)
_REQUEUE = _Step(_update(_AGAIN, _IS_LEASED))
_TAKE_BACK = _Step(_update(_AGAIN, _RAN_OUT))
_GIVE_BACK = _Step(_update(_BACK, _IS_LEASED))
_PROMOTE = _Step(_update(_NOW_READY, "state = 'SCHEDULED' AND ready_at <= :now"))
_BRING_BACK = _Step(_REVIVE, _LEAVE_HISTORY)
_EXTEND = _update({"lease_until": ":now"}, _IS_LEASED)


@dataclass(frozen=True, slots=True)
class _Round:
    """Changes of different tasks: their values, as a JSON list for each kind of step, and the lanes of each task."""

    steps: dict[_Step, str]
    lanes: dict[TaskId, Sequence[LaneId]]


def apply(connections: Connections, clock: Clock, changes: Sequence[Change], placed: Placed) -> set[TaskId]:
    """Apply guarded changes in one transaction; the ids of those that took effect. Raises StaleLanes."""
    if not changes:
        return set()
    rounds = [_by_step(each) for each in _rounds(changes, placed)]
    is_epoch_asked = any(map(makes_ready, changes))
    applied: set[TaskId] = set()
    with connections.writing() as connection:
        if is_epoch_asked:
            require_epoch(connection, placed)
        now = clock()
        for each in rounds:
            moved = list(_carry_out(connection, each.steps, now))
            enter(connection, ((task_id, each.lanes.get(task_id, ())) for task_id in moved))
            applied.update(moved)
    return applied


def _rounds(changes: Sequence[Change], placed: Placed) -> Iterator[list[tuple[Change, Sequence[LaneId]]]]:
    """The changes in id order (L7), each task once a round: the second of two takes what the first one left."""
    lanes = placed.lanes or [()] * len(changes)
    waiting = sorted(zip(changes, lanes, strict=True), key=lambda each: change_id(each[0]))
    while waiting:
        first: dict[TaskId, tuple[Change, Sequence[LaneId]]] = {}
        later = [each for each in waiting if first.setdefault(change_id(each[0]), each) is not each]
        yield list(first.values())
        waiting = later


def _by_step(changes: list[tuple[Change, Sequence[LaneId]]]) -> _Round:
    groups: dict[_Step, list[Values]] = defaultdict(list)
    for change, _ in changes:
        step, values = _planned(change)
        groups[step].append(values)
    steps = {step: json.dumps(values) for step, values in groups.items()}
    return _Round(steps, {change_id(change): lanes for change, lanes in changes if lanes})


def _planned(change: Change) -> tuple[_Step, Values]:
    """The step that makes a change, and what it reads from the list: id, token where it names one, then the rest."""
    match change:
        case Finish(lease, state, result, error):
            return _FINISH, (lease.task_id, lease.token, state, result, error)
        case Requeue(lease, delay, attributes, error):
            return _REQUEUE, (lease.task_id, lease.token, delay, encode_attributes(attributes), error)
        case GiveBack(lease, attributes):
            return _GIVE_BACK, (lease.task_id, lease.token, encode_attributes(attributes))
        case Expire(lease, None, _, error):
            return _GIVE_UP, (lease.task_id, lease.token, State.FAILED, None, error)
        case Expire(lease, delay, attributes, error):
            return _TAKE_BACK, (lease.task_id, lease.token, delay, encode_attributes(attributes), error)
        case Promote(task_id, attributes):
            return _PROMOTE, (task_id, encode_attributes(attributes))
        case Cancel(task_id):
            return _CANCEL, (task_id, None, State.CANCELLED, None)
        case Revive(task_id, attributes):
            return _BRING_BACK, (task_id, encode_attributes(attributes))
        case _:
            assert_never(change)


def _carry_out(connection: sqlite3.Connection, steps: dict[_Step, str], now: int) -> Iterator[TaskId]:
    for step, changes in steps.items():
        rows = connection.execute(step.statement, {"now": now, "changes": changes}).fetchall()
        moved = [task_id for task_id, _ in rows]
        if moved and step.leave:
            connection.execute(step.leave, (json.dumps(moved),))
        yield from moved


def extend(connections: Connections, clock: Clock, leases: Sequence[Lease], ttl: int) -> set[Lease]:
    """Move the end of leases still held to now + ttl; those that held (L2)."""
    if not leases:
        return set()
    named = json.dumps([(lease.task_id, lease.token) for lease in leases])
    with connections.writing() as connection:
        held = connection.execute(_EXTEND, {"now": clock() + ttl, "changes": named}).fetchall()
    return {Lease(task_id, token) for task_id, token in held}
