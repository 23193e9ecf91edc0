"""Questions about tasks. The predicate is tested by the SQL that claims use, and each answer is one statement: so
each is one snapshot, in which a task is either live or in history, and none skips what others hold (PG3)."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from wiggle_core.stores.sql.rows import read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import Fate, Route, Slice
from wiggle_core.tasks.task import LIVE, OrderKey, State, TaskId, TaskRecord
from wiggle_store_postgres.claims import ORDER
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.dialect import WRITER
from wiggle_store_postgres.moment import EPOCH_MICROS, moment
from wiggle_store_postgres.rows import HISTORY_COLUMNS, TASK_COLUMNS

_BRANCH = (
    "SELECT {columns} FROM $schema.{table} AS {table} WHERE state = '{state}' AND queue = ${queue} AND {condition}"
)
_ORDERED = f"SELECT {{columns}} FROM ({{branches}}) AS found ORDER BY {ORDER} LIMIT ${{limit}}::bigint"

_NOW = f"SELECT {EPOCH_MICROS}"
_GET = f"""
    SELECT {TASK_COLUMNS} FROM $schema.task AS task WHERE id = $1
    UNION ALL SELECT {HISTORY_COLUMNS} FROM $schema.history AS history WHERE id = $1
"""
_FATE = """
    SELECT {table}.id, {table}.state, {table}.token, {table}.attempt
    FROM named JOIN $schema.{table} AS {table} ON {table}.id = named.id
"""
_LOOKUP = f"""
    WITH named AS MATERIALIZED (SELECT DISTINCT value AS id FROM json_array_elements_text($1::json) AS value)
    {_FATE.format(table="task")} UNION ALL {_FATE.format(table="history")}
"""
_LEASED = f"""
    SELECT {TASK_COLUMNS} FROM $schema.task AS task WHERE state = 'RUNNING' AND token = $1 ORDER BY {ORDER}
"""
_SLICES = """
    SELECT workflow, version, queue, count(*), min(ready_at) FROM $schema.task WHERE state = 'READY'
    GROUP BY workflow, version, queue
    ORDER BY workflow NULLS FIRST, version NULLS FIRST, queue
"""

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""

# The middle is for a clock that stepped back: it must not stretch a reservation.
_FREE = (
    "(reserved_at IS NULL OR reserved_at > (SELECT now FROM moment) "
    "OR reserved_at <= (SELECT now FROM moment) - $2::bigint)"
)
_LATE = f"""
    {{name}} AS MATERIALIZED (
        SELECT {{due_at}} AS due_at, id FROM $schema.task
        WHERE state = '{{state}}' AND {{due_at}} <= (SELECT now FROM moment) AND {_FREE}
        ORDER BY {{due_at}}, id LIMIT $3::bigint FOR UPDATE SKIP LOCKED
    )"""
_DUE = f"""
    WITH moment AS MATERIALIZED (SELECT {moment("$1")} AS now),
    {_LATE.format(name="expired", state=State.RUNNING.value, due_at="lease_until")},
    {_LATE.format(name="waiting", state=State.SCHEDULED.value, due_at="ready_at")},
    picked AS MATERIALIZED (
        SELECT due_at, id FROM (SELECT * FROM expired UNION ALL SELECT * FROM waiting) AS late
        ORDER BY due_at, id LIMIT $3::bigint
    )
    UPDATE $schema.task AS task SET reserved_at = (SELECT now FROM moment)
    WHERE task.id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING {TASK_COLUMNS}
"""
_PURGE = """
    WITH old AS MATERIALIZED (
        SELECT id FROM $schema.history WHERE finished_at < $1::bigint
        ORDER BY finished_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM $schema.history AS history USING old WHERE history.id = old.id RETURNING history.id),
    bodies AS (DELETE FROM $schema.payload AS payload USING gone WHERE payload.id = gone.id)
    SELECT count(*) FROM gone
"""


def now(connections: Connections) -> int:
    """The database's time in epoch microseconds."""
    with connections.reading() as session:
        ((answer,),) = session.rows(_NOW)
    return int(answer)


def get(connections: Connections, task_id: TaskId) -> TaskRecord | None:
    """One task, live or in history."""
    with connections.reading() as session:
        rows = session.rows(_GET, (task_id,))
    return read_row(rows[0]) if rows else None


def lookup(connections: Connections, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
    """The fate of each known id, live or in history (L6)."""
    with connections.reading() as session:
        rows = session.rows(_LOOKUP, (json.dumps(list(ids), ensure_ascii=False),))
    return {task_id: Fate(State(state), token, attempt) for task_id, state, token, attempt in rows}


def leased(connections: Connections, token: str) -> list[TaskRecord]:
    """The tasks RUNNING under a claim's token, in claim order."""
    with connections.reading() as session:
        return list(map(read_row, session.rows(_LEASED, (token,))))


def find(
    connections: Connections, route: Route, states: Collection[State], limit: int, after: OrderKey | None
) -> list[TaskRecord]:
    """One page of the tasks that match, in claim order, beginning behind `after`."""
    if not states or limit < 1:
        return []
    statement = _page(route, _unique(states), limit, after)
    with connections.reading() as session:
        return list(map(read_row, session.rows(statement.text, statement.binds)))


def _page(route: Route, states: list[State], limit: int, after: OrderKey | None) -> Fragment:
    """Each state's own page, and of these the first tasks."""
    binds: list[object] = []
    pages = []
    for state in states:
        table = _table(state)
        page = _branch(route, state, TASK_COLUMNS if table == "task" else HISTORY_COLUMNS, len(binds))
        binds += page.binds
        behind = ""
        if after is not None:
            first = len(binds) + 1
            behind = f" AND ({ORDER}) > (${first}::integer, ${first + 1}::bigint, ${first + 2}::bigint, ${first + 3})"
            binds += after
        binds.append(limit)
        pages.append(f"({page.text}{behind} ORDER BY {ORDER} LIMIT ${len(binds)}::bigint)")
    if len(pages) == 1:
        return Fragment(pages[0], tuple(binds))
    binds.append(limit)
    return Fragment(_ORDERED.format(columns="*", branches=" UNION ALL ".join(pages), limit=len(binds)), tuple(binds))


def count(connections: Connections, route: Route, states: Collection[State], cap: int) -> int:
    """How many tasks match, counted up to `cap`."""
    if not states or cap < 1:
        return 0
    binds: list[object] = []
    branches = []
    for state in _unique(states):
        branch = _branch(route, state, "1", len(binds))
        binds += branch.binds
        branches.append(branch.text)
    text = f"SELECT count(*) FROM ({' UNION ALL '.join(branches)} LIMIT ${len(binds) + 1}::bigint) AS found"
    with connections.reading() as session:
        ((found,),) = session.rows(text, (*binds, cap))
    return int(found)


def _branch(route: Route, state: State, columns: str, bound: int) -> Fragment:
    """The matching tasks of one state; `bound` values are bound before."""
    condition = WRITER.render(route.predicate, bound + 1)
    text = _BRANCH.format(
        columns=columns, table=_table(state), state=state.value, queue=bound + 1, condition=condition.text
    )
    return Fragment(text, (route.queue, *condition.binds))


def _table(state: State) -> str:
    return "task" if state in LIVE else "history"


def _unique(states: Collection[State]) -> list[State]:
    return [state for state in State if state in states]


def slices(connections: Connections) -> list[Slice]:
    """The READY tasks by workflow, version and queue, an absent one first."""
    with connections.reading() as session:
        return [Slice(*row) for row in session.rows(_SLICES)]


def due(connections: Connections, time: int | None, limit: int) -> list[TaskRecord]:
    """SCHEDULED tasks that are due and RUNNING ones whose lease ran out, longest due first, kept for this caller."""
    with connections.changing() as session:
        rows = session.rows(_DUE, (time, RESERVATION_MICROS, max(limit, 0)))
    return sorted(map(read_row, rows), key=_due_order)


def _due_order(task: TaskRecord) -> tuple[int, TaskId]:
    due_at = task.lease_until if task.state is State.RUNNING else task.ready_at
    return due_at or 0, task.id


def purge(connections: Connections, before: int, limit: int) -> int:
    """Forget at most `limit` tasks settled before an instant; how many were."""
    with connections.changing() as session:
        ((forgotten,),) = session.rows(_PURGE, (before, max(limit, 0)))
    return int(forgotten)
