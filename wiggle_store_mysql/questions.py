"""Questions about tasks. The predicate is tested by the SQL that claims use, and each answer is one statement: so
each is one snapshot, in which a task is either live or in history, and none skips what others hold.

What `due` and `purge` take is read without locks first, then locked by primary key in id order, and tested again: to
lock it by the index that finds it would be the other way round than changes do (MY3, L7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TypeVar

from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import Fate, Route, Slice
from wiggle_core.tasks.task import LIVE, OrderKey, State, TaskId, TaskRecord
from wiggle_store_mysql.connections import Connections, Row, Session
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.moment import EPOCH_MICROS, moment
from wiggle_store_mysql.order import ORDER, behind, id_list, named
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.rows import HISTORY_COLUMNS, TASK_COLUMNS, read_task

T = TypeVar("T")

IDS_AT_ONCE = 500
"""How many ids one statement names. MariaDB may turn a list of 1,000 into a table to join; MySQL was seen to read the
whole table for one of 20,000, which is more than its range optimizer has memory for."""

# Without FORCE INDEX both take the start of the index, and not the place in it, for a page that begins at half its
# length or before: 150,000 rows read instead of 10, on MariaDB.
_TABLES = {"task": "$task AS task FORCE INDEX (task_dispatch)", "history": "$history AS history"}
_BRANCH = "SELECT {columns} FROM {table} WHERE state = '{state}' AND queue = %s AND {condition}"

_NOW = f"SELECT {EPOCH_MICROS}"
_GET = f"""
    SELECT {TASK_COLUMNS} FROM $task AS task WHERE task.id = %s
    UNION ALL SELECT {HISTORY_COLUMNS} FROM $history AS history WHERE history.id = %s
"""
_FATE = "SELECT id, state, token, attempt FROM ${table} FORCE INDEX (PRIMARY) WHERE id IN %s"
_LOOKUP = f"{_FATE.format(table='task')} UNION ALL {_FATE.format(table='history')}"
# The queues are read from the index by leaps, and of each its RUNNING tasks only.
_LEASED = f"""
    SELECT STRAIGHT_JOIN {TASK_COLUMNS}
    FROM (SELECT DISTINCT queue FROM $task FORCE INDEX (task_dispatch)) AS known
    JOIN $task AS task FORCE INDEX (task_dispatch)
    ON task.queue = known.queue AND task.state = 'RUNNING' AND task.token = %s
"""
_SLICES = """
    SELECT workflow, version, queue, count(*), min(ready_at) FROM $task WHERE state = 'READY'
    GROUP BY workflow, version, queue ORDER BY workflow, version, queue
"""

RESERVATION_MICROS = 5_000_000
"""How long `due` keeps what it returned from other callers."""

# The upper bound is for a clock that stepped back: that must not stretch a reservation much. It is above the time, for
# the row may have been reserved since this statement began.
_FREE = (
    f"(reserved_at IS NULL OR reserved_at NOT BETWEEN {{now}} - {RESERVATION_MICROS - 1} "
    f"AND {{now}} + {RESERVATION_MICROS})"
)
# `due_at` is NULL while READY, so it tells the state, too.
_LATE = f"due_at <= {{now}} AND {_FREE}"
_LATE_PAGE = f"SELECT due_at, id FROM $task FORCE INDEX (task_due) WHERE {_LATE}"
_LOCK_LATE = f"SELECT id FROM $task FORCE INDEX (PRIMARY) WHERE id IN %s AND {_LATE}"
_RESERVE = "UPDATE $task FORCE INDEX (PRIMARY) SET reserved_at = {now} WHERE id IN %s"
_RESERVED = f"SELECT {TASK_COLUMNS} FROM $task AS task FORCE INDEX (PRIMARY) WHERE task.id IN %s"

_OLD_PAGE = "SELECT finished_at, id FROM $history FORCE INDEX (history_finished) WHERE finished_at < {before:d}"
_LOCK_OLD = "SELECT id FROM $history FORCE INDEX (PRIMARY) WHERE id IN %s AND finished_at < {before:d}"
_FORGET = [f"DELETE present FROM {named(table, 'id')}" for table in ("history", "payload")]


def now(connections: Connections) -> int:
    """The database's time in epoch microseconds."""
    with connections.reading() as session:
        ((answer,),) = session.rows(_NOW)
    return int(answer)


def get(connections: Connections, task_id: TaskId) -> TaskRecord | None:
    """One task, live or in history."""
    with connections.reading() as session:
        rows = session.rows(_GET, (task_id, task_id))
    return read_task(rows[0]) if rows else None


def lookup(connections: Connections, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
    """The fate of each known id, live or in history (L6). Ids of one statement are looked up in one snapshot."""
    if not ids:
        return {}
    with connections.reading() as session:
        answers = session.batch([(_LOOKUP, (part, part)) for part in _cut(ids)])
    rows = [row for answer in answers for row in answer.rows]
    return {task_id: Fate(State(state), token, attempt) for task_id, state, token, attempt in rows}


def leased(connections: Connections, token: str) -> list[TaskRecord]:
    """The tasks RUNNING under a claim's token, in claim order."""
    with connections.reading() as session:
        return _in_order(session.rows(_LEASED, (token,)))


def find(
    connections: Connections, route: Route, states: Collection[State], limit: int, after: OrderKey | None
) -> list[TaskRecord]:
    """One page of the tasks that match, in claim order, beginning behind `after`."""
    if not states or limit < 1:
        return []
    with connections.reading() as session:
        statement = _page(session.server.product, route, _unique(states), limit, after)
        return _in_order(session.rows(statement.text, statement.binds))[:limit]


def _in_order(rows: Sequence[Row]) -> list[TaskRecord]:
    return sorted(map(read_task, rows), key=attrgetter("order_key"))


def _page(product: Product, route: Route, states: list[State], limit: int, after: OrderKey | None) -> Fragment:
    """Each state's own page."""
    later, place = behind(ORDER, after)
    pages, binds = [], []
    for state in states:
        page = _branch(product, route, state, TASK_COLUMNS if state in LIVE else HISTORY_COLUMNS)
        pages.append(f"{page.text} AND {later} ORDER BY {ORDER} LIMIT %s")
        binds += [*page.binds, *place, limit]
    return Fragment(_union(pages), tuple(binds))


def count(connections: Connections, route: Route, states: Collection[State], cap: int) -> int:
    """How many tasks match, counted up to `cap`."""
    if not states or cap < 1:
        return 0
    with connections.reading() as session:
        branches = [_branch(session.server.product, route, state, "1") for state in _unique(states)]
        found = _union([f"{branch.text} LIMIT %s" for branch in branches])
        binds = [bind for branch in branches for bind in (*branch.binds, cap)]
        ((counted,),) = session.rows(f"SELECT count(*) FROM ({found}) AS found", binds)
    return min(int(counted), cap)


def _branch(product: Product, route: Route, state: State, columns: str) -> Fragment:
    """The matching tasks of one state."""
    condition = WRITERS[product].render(route.predicate)
    table = _TABLES["task" if state in LIVE else "history"]
    text = _BRANCH.format(columns=columns, table=table, state=state.value, condition=condition.text)
    return Fragment(text, (route.queue, *condition.binds))


def _union(branches: Sequence[str]) -> str:
    return " UNION ALL ".join(f"({branch})" for branch in branches)


def _unique(states: Collection[State]) -> list[State]:
    return [state for state in State if state in states]


def slices(connections: Connections) -> list[Slice]:
    """The READY tasks by workflow, version and queue, an absent one first."""
    with connections.reading() as session:
        return [Slice(*row) for row in session.rows(_SLICES)]


def due(connections: Connections, time: int | None, limit: int) -> list[TaskRecord]:
    """SCHEDULED tasks that are due and RUNNING ones whose lease ran out, longest due first, kept for this caller."""
    at = moment(time)
    with connections.transaction() as session:
        ids = _lock_first(session, "due_at, id", _LATE_PAGE.format(now=at), _LOCK_LATE.format(now=at), limit)
        if not ids:
            return []
        parts = _cut(ids)
        reserving = [(_RESERVE.format(now=at), (part,)) for part in parts]
        answers = session.commit([*reserving, *((_RESERVED, (part,)) for part in parts)])
    rows = [row for answer in answers[len(parts) :] for row in answer.rows]
    return sorted(map(read_task, rows), key=_due_order)


def _due_order(task: TaskRecord) -> tuple[int, TaskId]:
    due_at = task.lease_until if task.state is State.RUNNING else task.ready_at
    return due_at or 0, task.id


def purge(connections: Connections, before: int, limit: int) -> int:
    """Forget at most `limit` tasks settled before an instant; how many were."""
    with connections.transaction() as session:
        page, lock = _OLD_PAGE.format(before=before), _LOCK_OLD.format(before=before)
        ids = _lock_first(session, "finished_at, id", page, lock, limit)
        session.commit([(forget, (id_list(ids),)) for forget in _FORGET] if ids else [])
    return len(ids)


def _lock_first(session: Session, key: str, page: str, lock: str, limit: int) -> list[TaskId]:
    """Lock the first `limit` rows in the order of a key, without those that others lock; their ids, in order.

    Page by page, so that one who comes second gets the rows behind those of the first.
    """
    found: list[TaskId] = []
    after, size = None, min(limit, IDS_AT_ONCE)
    while len(found) < limit:
        later, place = behind(key, after)
        rows = session.rows(f"{page} AND {later} ORDER BY {key} LIMIT %s", (*place, size))
        if rows:
            ids = sorted(row[-1] for row in rows)
            locked = {each for (each,) in session.rows(f"{lock} ORDER BY id FOR UPDATE SKIP LOCKED", (ids,))}
            found += [row[-1] for row in rows if row[-1] in locked]
        if len(rows) < size:
            break
        after = rows[-1]
    return sorted(found[:limit])


def _cut(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + IDS_AT_ONCE] for start in range(0, len(values), IDS_AT_ONCE)]
