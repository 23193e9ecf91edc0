"""Changes and leases: each kind of change is one statement over a JSON list of them, with the guard inside (L2).

Every statement locks its rows in id order before it changes one (L7, PG14), and tests its guard on the row as it is
once it has the lock. One kind of change is one statement and one round trip; several kinds share a transaction, which
locks the tasks of all of them first. They are prepared: one JSON list is like another to the planner, and planning cost
the server twice what a single settlement does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from wiggle_core.stores.changes import makes_ready
from wiggle_core.stores.lanes import LaneId, Placed
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
from wiggle_core.tasks.task import Lease, State, TaskId
from wiggle_store_postgres.connections import Connections, Session
from wiggle_store_postgres.epochs import hold_epoch, lane_array, require_current
from wiggle_store_postgres.moment import moment
from wiggle_store_postgres.rows import LANE_ROW

Item: TypeAlias = tuple[TaskId, str | None, str | None, str | None, str | None, int | None, str | None, str | None]
"""A change in the list: id, token, state, result, error, delay, attributes, and the lanes that its task enters when it
is READY afterwards; None for what its kind does not have."""
_LANES = 7

_PlacedChange: TypeAlias = tuple[Change, Sequence[LaneId]]

# Rows are found and locked by id alone, and only then tested, as they are behind the lock. With the guard inside, the
# planner may prefer the index of another column to the ids, and read every RUNNING task for a few settlements. The
# order is that of an expression, since by the bare id it may be had from a walk through the whole primary key.
_HELD = """
    WITH moment AS MATERIALIZED (SELECT {moment} AS now),
    change AS MATERIALIZED (
        SELECT value ->> 0 AS id, value ->> 1 AS token, value ->> 2 AS state, value ->> 3 AS result,
            value ->> 4 AS error, (value ->> 5)::bigint AS delay, (value ->> 6)::jsonb AS attributes{placing}
        FROM json_array_elements($1::json) AS value
    ),
    held AS MATERIALIZED (
        SELECT change.*, {present}
        FROM change JOIN $schema.{table} AS {table} ON {table}.id = change.id{condition}
        ORDER BY (change.id || '') COLLATE "C" FOR UPDATE OF {table}
    )"""
_OF_TASK = "task.state AS present_state, task.token AS present_token, task.lease_until, task.ready_at"
_OF_HISTORY = "history.state AS present_state"
_UNCHANGED = (
    "id, queue, step, created_at, priority, workflow, version, node, kind, correlation_id, instance_id, retry, token"
)
# What left takes its change along: joined to it afterwards, each row would be compared with every change, since the
# planner does not know how many there are.
_SETTLE = f""",
    gone AS (
        DELETE FROM $schema.task AS task USING held, moment WHERE task.id = held.id AND {{guard}}
        RETURNING {", ".join(f"task.{column}" for column in _UNCHANGED.split(", "))}, task.ready_at, task.attributes,
            task.attempt, task.owner, task.lease_until, moment.now, held.state, held.result, {{error}} AS error
    )
    INSERT INTO $schema.history ({_UNCHANGED}, ready_at, attributes, attempt, owner, lease_until, finished_at, state,
        result, error)
    SELECT * FROM gone RETURNING id, token
"""
_UPDATE = """
    UPDATE $schema.task AS task SET {values}, reserved_at = NULL
    FROM held, moment WHERE task.id = held.id AND {guard}
    RETURNING task.id, task.token
"""
# What makes tasks READY goes by the epoch, and puts each into its lanes.
_PLACING = f", (value ->> 7)::bigint[] AS lanes, {hold_epoch('$3')} AS ready_no"
_IS_PLACED = " AND change.ready_no IS NOT NULL"
_UPDATE_READY = """
    UPDATE $schema.task AS task SET {values}, reserved_at = NULL, ready_no = held.ready_no
    FROM held, moment WHERE task.id = held.id AND {guard}
    RETURNING task.id, task.token
"""
_REVIVE = f""",
    gone AS (
        DELETE FROM $schema.history AS history USING held, moment WHERE history.id = held.id AND {{guard}}
        RETURNING {", ".join(f"history.{column}" for column in _UNCHANGED.split(", "))}, moment.now, held.attributes,
            held.ready_no, held.lanes
    )"""
_INSERT_AGAIN = f"""
    INSERT INTO $schema.task ({_UNCHANGED}, ready_at, attributes, ready_no, attempt, state)
    SELECT {_UNCHANGED}, now, attributes, ready_no, 1, 'READY' FROM gone RETURNING id, token
"""
_ENTERED = f""",
    entered AS (
        INSERT INTO $schema.lane_task ({LANE_ROW}) SELECT {{row}} FROM {{ready}} ON CONFLICT DO NOTHING
    )"""
_LOCK = """
    SELECT task.id FROM (SELECT DISTINCT value AS id FROM json_array_elements_text($1::json) AS value) AS named
    JOIN $schema.task AS task ON task.id = named.id
    ORDER BY (named.id || '') COLLATE "C" FOR UPDATE OF task
"""

_IS_LEASED = "held.present_state = 'RUNNING' AND held.present_token = held.token"
_RAN_OUT = f"{_IS_LEASED} AND held.lease_until <= moment.now"

_AGAIN = {
    "state": "CASE WHEN held.delay > 0 THEN 'SCHEDULED' ELSE 'READY' END",
    "attempt": "task.attempt + 1",
    "ready_at": "moment.now + held.delay",
    "attributes": "held.attributes",
    "error": "held.error",
    "owner": "NULL",
    "lease_until": "NULL",
}
_BACK = {"state": "'READY'", "attributes": "held.attributes", "owner": "NULL", "lease_until": "NULL"}
_NOW_READY = {"state": "'READY'", "ready_at": "moment.now", "attributes": "held.attributes"}


_CHOSEN = _HELD.format(moment=moment("$2"), present=_OF_TASK, table="task", placing="", condition="")
_CHOSEN_TO_BE_READY = _HELD.format(
    moment=moment("$2"), present=_OF_TASK, table="task", placing=_PLACING, condition=_IS_PLACED
)
_CHOSEN_FROM_HISTORY = _HELD.format(
    moment=moment("$2"), present=_OF_HISTORY, table="history", placing=_PLACING, condition=_IS_PLACED
)


@dataclass(frozen=True, slots=True)
class _Statement:
    """How a kind of change is made: a statement over a list of items and the time; and over the epoch, with lanes or
    without, if tasks may be READY afterwards."""

    text: str
    text_with_lanes: str | None = None


def _values(new: dict[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in new.items())


def _settle(error: str, guard: str) -> _Statement:
    """The statement that moves tasks into history."""
    return _Statement(_CHOSEN + _SETTLE.format(error=error, guard=guard))


def _update_ready(new: dict[str, str], guard: str) -> _Statement:
    """The statement that gives some columns new values, after which tasks may be READY."""
    update = _UPDATE_READY.format(values=_values(new), guard=guard)
    entered = _ENTERED.format(
        row="lane, priority, created_at, ready_at, id, ready_no",
        ready="changed, unnest(lanes) AS lane WHERE state = 'READY'",
    )
    columns = "task.state, task.priority, task.created_at, task.ready_at, task.ready_no, held.lanes"
    with_lanes = f",\n    changed AS ({update}, {columns}){entered} SELECT id, token FROM changed"
    return _Statement(_CHOSEN_TO_BE_READY + update, _CHOSEN_TO_BE_READY + with_lanes)


def _revive(guard: str) -> _Statement:
    """The statement that makes tasks of history READY."""
    revived = _CHOSEN_FROM_HISTORY + _REVIVE.format(guard=guard)
    entered = _ENTERED.format(row="lane, priority, created_at, now, id, ready_no", ready="gone, unnest(lanes) AS lane")
    return _Statement(revived + _INSERT_AGAIN, revived + entered + _INSERT_AGAIN)


_FINISH = _settle("held.error", _IS_LEASED)
_GIVE_UP = _settle("held.error", _RAN_OUT)
_CANCEL = _settle("task.error", "held.present_state IN ('SCHEDULED', 'READY', 'RUNNING')")
_REQUEUE = _update_ready(_AGAIN, _IS_LEASED)
_TAKE_BACK = _update_ready(_AGAIN, _RAN_OUT)
_GIVE_BACK = _update_ready(_BACK, _IS_LEASED)
_PROMOTE = _update_ready(_NOW_READY, "held.present_state = 'SCHEDULED' AND held.ready_at <= moment.now")
_BRING_BACK = _revive("held.present_state IN ('FAILED', 'CANCELLED')")
_EXTEND = _CHOSEN + _UPDATE.format(
    values=_values({"lease_until": "moment.now + held.delay"}),
    guard=_IS_LEASED,
)


def apply(connections: Connections, now: int | None, changes: Sequence[Change], placed: Placed) -> set[TaskId]:
    """Apply guarded changes in one transaction; the ids of those that took effect. Raises StaleLanes (N3)."""
    if not changes:
        return set()
    epoch = placed.epoch if any(map(makes_ready, changes)) else None
    steps = [each for some in _rounds(changes, placed) for each in _by_statement(some).items()]
    if len(steps) == 1:
        with connections.changing() as session:
            return set(_carry_out(session, *steps[0], now, epoch))
    with connections.transaction() as session:
        session.rows(_LOCK, (json.dumps([change_id(change) for change in changes]),))
        return {task_id for statement, items in steps for task_id in _carry_out(session, statement, items, now, epoch)}


def _rounds(changes: Sequence[Change], placed: Placed) -> Iterator[list[_PlacedChange]]:
    """The changes in id order (L7), each task once a round: the second of two takes what the first one left."""
    waiting = sorted(((change, placed.of(index)) for index, change in enumerate(changes)), key=_id_of)
    while waiting:
        first: dict[TaskId, _PlacedChange] = {}
        later = [each for each in waiting if first.setdefault(_id_of(each), each) is not each]
        yield list(first.values())
        waiting = later


def _id_of(each: _PlacedChange) -> TaskId:
    return change_id(each[0])


def _by_statement(changes: list[_PlacedChange]) -> dict[_Statement, list[Item]]:
    groups: dict[_Statement, list[Item]] = defaultdict(list)
    for change, lanes in changes:
        statement, item = _planned(change, lane_array(lanes))
        groups[statement].append(item)
    return groups


def _planned(change: Change, lanes: str | None) -> tuple[_Statement, Item]:
    """The statement that makes a change, and its item in the list."""
    match change:
        case Finish(lease, state, result, error):
            return _FINISH, (lease.task_id, lease.token, state, result, error, None, None, None)
        case Requeue(lease, delay, given, error):
            return _REQUEUE, (lease.task_id, lease.token, None, None, error, delay, encode_attributes(given), lanes)
        case GiveBack(lease, given):
            return _GIVE_BACK, (lease.task_id, lease.token, None, None, None, None, encode_attributes(given), lanes)
        case Expire(lease, None, _, error):
            return _GIVE_UP, (lease.task_id, lease.token, State.FAILED, None, error, None, None, None)
        case Expire(lease, delay, given, error):
            return _TAKE_BACK, (lease.task_id, lease.token, None, None, error, delay, encode_attributes(given), lanes)
        case Promote(task_id, given):
            return _PROMOTE, (task_id, None, None, None, None, None, encode_attributes(given), lanes)
        case Cancel(task_id):
            return _CANCEL, (task_id, None, State.CANCELLED, None, None, None, None, None)
        case Revive(task_id, given):
            return _BRING_BACK, (task_id, None, None, None, None, None, encode_attributes(given), lanes)
        case _:
            assert_never(change)


def _carry_out(
    session: Session, statement: _Statement, items: list[Item], now: int | None, epoch: int | None
) -> Iterator[TaskId]:
    """Send a statement; the ids of the tasks that it changed. Raises StaleLanes (N3)."""
    given = json.dumps(items, ensure_ascii=False)
    if statement.text_with_lanes is None:
        changed = session.rows(statement.text, (given, now), prepare=True)
    else:
        has_lanes = any(item[_LANES] for item in items)
        text = statement.text_with_lanes if has_lanes else statement.text
        changed = session.rows(text, (given, now, epoch), prepare=True)
        if not changed:
            require_current(session, epoch)
    yield from (task_id for task_id, _ in changed)


def extend(connections: Connections, now: int | None, leases: Sequence[Lease], ttl: int) -> set[Lease]:
    """Move the end of leases still held to now + ttl; those that held (L2)."""
    if not leases:
        return set()
    items: list[Item] = [(lease.task_id, lease.token, None, None, None, ttl, None, None) for lease in leases]
    with connections.changing() as session:
        held = session.rows(_EXTEND, (json.dumps(items, ensure_ascii=False), now), prepare=True)
    return {Lease(task_id, token) for task_id, token in held}
