"""Claims: a plain read walks the dispatch index for candidates, then a guarded update takes those still free.

The walk holds no lock, so that a long one blocks no writer and an empty answer costs no write (O2). `INDEXED BY` keeps
the planner, whatever its statistics say, from an index that would have to sort the queue (O1).
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from wiggle_core.stores.sql.rows import Row, claim_order, read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Explanation, Route
from wiggle_core.tasks.task import Clock, TaskRecord
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.dialect import WRITER
from wiggle_store_sqlite.rows import task_columns

ORDER = "priority, created_at, ready_at, id"

_WALK = f"""
    SELECT {ORDER} FROM task INDEXED BY task_dispatch
    WHERE queue = ? AND state = 'READY' AND {{condition}}
    ORDER BY {ORDER} LIMIT ?
"""
_CANDIDATES = "SELECT json_group_array(id), count(*) FROM ({walk})"
_MERGED = f"SELECT id FROM ({{walks}}) ORDER BY {ORDER} LIMIT ?"

# Statistics made by ANALYZE while there were few tasks would lead the planner through all of them, hence INDEXED BY.
_LEASE = f"""
    UPDATE task INDEXED BY task_id SET state = 'RUNNING', owner = ?, token = ?, lease_until = ?, reserved_at = NULL
    WHERE id IN (SELECT value FROM json_each(?)) AND state = 'READY' AND ({{guard}})
    RETURNING {task_columns()}
"""


def claim(connections: Connections, clock: Clock, request: ClaimRequest) -> list[TaskRecord]:
    """Lease the first READY tasks that match, in claim order over all routes (O1-O4)."""
    if not request.routes or request.limit < 1:
        return []
    with connections.reading() as connection:
        ids, count = _walk_queues(connection, request, request.limit)
        if not count:
            return []
        with connections.writing_on(connection):
            lease_until = clock() + request.ttl
            rows = _lease(connection, request, lease_until, ids)
            if len(rows) < count:  # others were quicker: take what is left, now that nobody else can
                ids, _ = _walk_queues(connection, request, request.limit - len(rows))
                rows += _lease(connection, request, lease_until, ids)
    rows.sort(key=claim_order)
    return list(map(read_row, rows))


def _walk_queues(connection: sqlite3.Connection, request: ClaimRequest, limit: int) -> tuple[str, int]:
    walk = candidates(request.routes, limit)
    ids, count = connection.execute(walk.text, walk.binds).fetchone()
    return ids, count


def _lease(connection: sqlite3.Connection, request: ClaimRequest, lease_until: int, ids: str) -> list[Row]:
    statement, guard = guarded_lease(request.routes)
    return connection.execute(statement, (request.owner, request.token, lease_until, ids, *guard)).fetchall()


def candidates(routes: tuple[Route, ...], limit: int) -> Fragment:
    """The query for the ids of the tasks to claim, as one JSON list, and their count. One row is one step, and
    so one wait for Python's global lock, whatever other threads compute."""
    text, pieces = _walk(routes)
    binds = [bind for piece in pieces for bind in (*piece, limit)]
    return Fragment(_CANDIDATES.format(walk=text), (*binds, limit) if len(routes) > 1 else tuple(binds))


@lru_cache(maxsize=512)
def _walk(routes: tuple[Route, ...]) -> tuple[str, list[tuple[object, ...]]]:
    """The walk over all routes, each cut to the limit before they are merged, and each one's binds but the limit."""
    conditions = [WRITER.render(route.predicate) for route in routes]
    walks = [_WALK.format(condition=condition.text) for condition in conditions]
    binds = [(route.queue, *condition.binds) for route, condition in zip(routes, conditions, strict=True)]
    if len(walks) == 1:
        return walks[0], binds
    return _MERGED.format(walks=" UNION ALL ".join(f"SELECT * FROM ({walk})" for walk in walks)), binds


@lru_cache(maxsize=512)
def guarded_lease(routes: tuple[Route, ...]) -> tuple[str, list[object]]:
    """The update that repeats each route's queue and predicate: what was read before the lock may have changed (O4)."""
    guards, binds = [], list[object]()
    for route in routes:
        condition = WRITER.render(route.predicate)
        guards.append(f"(queue = ? AND {condition.text})")
        binds += (route.queue, *condition.binds)
    return _LEASE.format(guard=" OR ".join(guards)), binds


def explain(connections: Connections, route: Route, limit: int) -> Explanation:
    """The walk of a claim by this route, and SQLite's plan for it."""
    walk = candidates((route,), limit)
    with connections.reading() as connection:
        steps = connection.execute(f"EXPLAIN QUERY PLAN {walk.text}", walk.binds).fetchall()
    return Explanation(walk.text, walk.binds, _indent(steps))


def _indent(steps: list[tuple[int, int, int, str]]) -> tuple[str, ...]:
    depths = {0: 0}
    for step, parent, _, _ in steps:
        depths[step] = depths[parent] + 1
    return tuple("  " * depths[parent] + detail for _, parent, _, detail in steps)
