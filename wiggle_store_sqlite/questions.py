"""Questions about tasks. The predicate is tested by the SQL that claims use, and each answer is one statement: so
each is one snapshot, in which a task is either live or in history."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from wiggle_core.stores.sql.rows import read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import Fate, Route, Slice
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskId, TaskRecord
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.dialect import WRITER
from wiggle_store_sqlite.rows import ORDER, history_columns, task_columns

# Each live state has an index of its own; a settled one has to pass over history.
_SOURCES = {
    State.READY: "task INDEXED BY task_dispatch",
    State.SCHEDULED: "task INDEXED BY task_scheduled",
    State.RUNNING: "task INDEXED BY task_leased",
    State.DONE: "history",
    State.FAILED: "history",
    State.CANCELLED: "history",
}
_BRANCH = "SELECT {columns} FROM {source} WHERE state = '{state}' AND queue = ? AND {condition}"
_BEHIND = f" AND ({ORDER}) > (?, ?, ?, ?)"

_GET = f"""
    SELECT {task_columns()} FROM task WHERE id = :id
    UNION ALL SELECT {history_columns()} FROM history WHERE id = :id
"""
_NAMED = "id IN (SELECT value FROM json_each(:ids))"
_LOOKUP = f"""
    SELECT id, state, token, attempt FROM task INDEXED BY task_id WHERE {_NAMED}
    UNION ALL SELECT id, state, token, attempt FROM history INDEXED BY history_id WHERE {_NAMED}
"""
_LEASED = f"""
    SELECT {task_columns()} FROM task INDEXED BY task_leased WHERE state = 'RUNNING' AND token = ? ORDER BY {ORDER}
"""
_SLICES = """
    SELECT workflow, version, queue, count(*), min(ready_at) FROM task INDEXED BY task_dispatch WHERE state = 'READY'
    GROUP BY workflow, version, queue ORDER BY workflow, version, queue
"""

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""

# The lower bound is for a clock that stepped back: it must not stretch a reservation.
_FREE = "(reserved_at IS NULL OR NOT reserved_at BETWEEN :now - :reservation + 1 AND :now)"
_DUE = f"""
    SELECT json_group_array(id), count(*) FROM (
        SELECT id FROM (
            SELECT * FROM (
                SELECT lease_until AS due_at, id FROM task INDEXED BY task_leased
                WHERE state = 'RUNNING' AND lease_until <= :now AND {_FREE} ORDER BY lease_until, id LIMIT :limit
            ) UNION ALL SELECT * FROM (
                SELECT ready_at AS due_at, id FROM task INDEXED BY task_scheduled
                WHERE state = 'SCHEDULED' AND ready_at <= :now AND {_FREE} ORDER BY ready_at, id LIMIT :limit
            )
        ) ORDER BY due_at, id LIMIT :limit
    )
"""
_RESERVE = f"""
    UPDATE task INDEXED BY task_id SET reserved_at = ? WHERE id IN (SELECT value FROM json_each(?))
    RETURNING {task_columns()}
"""
_PURGE = """
    DELETE FROM history INDEXED BY history_id WHERE id IN (
        SELECT id FROM history INDEXED BY history_finished WHERE finished_at < ? ORDER BY finished_at LIMIT ?
    ) RETURNING number
"""
_KEEP_NUMBER = """
    UPDATE counter SET last_number = :highest WHERE last_number < :highest
        AND :highest = (SELECT max(number) FROM payload)
"""
_PURGE_PAYLOADS = "DELETE FROM payload WHERE number IN (SELECT value FROM json_each(?))"


def get(connections: Connections, task_id: TaskId) -> TaskRecord | None:
    """One task, live or in history."""
    with connections.reading() as connection:
        rows = connection.execute(_GET, {"id": task_id}).fetchall()
    return read_row(rows[0]) if rows else None


def lookup(connections: Connections, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
    """The fate of each known id, live or in history (L6)."""
    with connections.reading() as connection:
        rows = connection.execute(_LOOKUP, {"ids": json.dumps(list(ids))}).fetchall()
    return {task_id: Fate(State(state), token, attempt) for task_id, state, token, attempt in rows}


def leased(connections: Connections, token: str) -> list[TaskRecord]:
    """The tasks RUNNING under a claim's token, in claim order."""
    with connections.reading() as connection:
        return list(map(read_row, connection.execute(_LEASED, (token,)).fetchall()))


def find(
    connections: Connections, route: Route, states: Collection[State], limit: int, after: OrderKey | None
) -> list[TaskRecord]:
    """One page of the tasks that match, in claim order, beginning behind `after`."""
    page = [_page(route, state, limit, after) for state in _unique(states)]
    if not page or limit < 1:
        return []
    text = " UNION ALL ".join(f"SELECT * FROM ({branch.text})" for branch in page)
    binds = [bind for branch in page for bind in branch.binds]
    with connections.reading() as connection:
        rows = connection.execute(f"{text} ORDER BY {ORDER} LIMIT ?", (*binds, limit)).fetchall()
    return list(map(read_row, rows))


def _page(route: Route, state: State, limit: int, after: OrderKey | None) -> Fragment:
    """The page as it would be of one state alone."""
    is_history = _SOURCES[state] == "history"
    branch = _branch(route, state, history_columns() if is_history else task_columns())
    behind, bounds = ("", ()) if after is None else (_BEHIND, tuple(after))
    return Fragment(f"{branch.text}{behind} ORDER BY {ORDER} LIMIT ?", (*branch.binds, *bounds, limit))


def count(connections: Connections, route: Route, states: Collection[State], cap: int) -> int:
    """How many tasks match, counted up to `cap`."""
    branches = [_branch(route, state, "1") for state in _unique(states)]
    if not branches or cap < 1:
        return 0
    text = " UNION ALL ".join(branch.text for branch in branches)
    binds = [bind for branch in branches for bind in branch.binds]
    with connections.reading() as connection:
        ((found,),) = connection.execute(f"SELECT count(*) FROM ({text} LIMIT ?)", (*binds, cap)).fetchall()
    return int(found)


def _branch(route: Route, state: State, columns: str) -> Fragment:
    condition = WRITER.render(route.predicate)
    text = _BRANCH.format(columns=columns, source=_SOURCES[state], state=state.value, condition=condition.text)
    return Fragment(text, (route.queue, *condition.binds))


def _unique(states: Collection[State]) -> list[State]:
    return [state for state in State if state in states]


def slices(connections: Connections) -> list[Slice]:
    """The READY tasks by workflow, version and queue."""
    with connections.reading() as connection:
        return [Slice(*row) for row in connection.execute(_SLICES).fetchall()]


def due(connections: Connections, clock: Clock, limit: int) -> list[TaskRecord]:
    """SCHEDULED tasks that are due and RUNNING ones whose lease ran out, longest due first, reserved for this caller.

    Asked first without the write lock: most sweeps find nothing.
    """
    with connections.reading() as connection:
        _, found = connection.execute(_DUE, _due_binds(clock(), limit)).fetchone()
    if not found:
        return []
    with connections.writing() as connection:
        now = clock()
        ids, _ = connection.execute(_DUE, _due_binds(now, limit)).fetchone()
        rows = connection.execute(_RESERVE, (now, ids)).fetchall()
    return sorted(map(read_row, rows), key=_due_order)


def _due_binds(now: int, limit: int) -> dict[str, int]:
    return {"now": now, "reservation": RESERVATION_MICROS, "limit": max(limit, 0)}


def _due_order(task: TaskRecord) -> tuple[int, TaskId]:
    due_at = task.lease_until if task.state is State.RUNNING else task.ready_at
    return due_at or 0, task.id


def purge(connections: Connections, before: int, limit: int) -> int:
    """Forget at most `limit` tasks settled before an instant; how many were."""
    with connections.writing() as connection:
        rows = connection.execute(_PURGE, (before, max(limit, 0))).fetchall()
        numbers = [number for (number,) in rows]
        if numbers:
            connection.execute(_KEEP_NUMBER, {"highest": max(numbers)})
            connection.execute(_PURGE_PAYLOADS, (json.dumps(numbers),))
    return len(numbers)
