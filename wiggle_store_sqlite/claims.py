"""Claims: a plain read finds candidates, by a walk of the dispatch index or by a lane, then a guarded update takes
those still free.

The read holds no lock, so that a long one blocks no writer and an empty answer costs no write (O2). `INDEXED BY` keeps
the planner, whatever its statistics say, from an index that would have to sort the queue (O1).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from wiggle_core.errors import StaleLanes, StoreError
from wiggle_core.stores.lanes import LaneId
from wiggle_core.stores.sql.rows import Row, claim_order, read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Explanation, Route
from wiggle_core.tasks.task import Clock, OrderKey, TaskRecord
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.dialect import WRITER
from wiggle_store_sqlite.lane_rows import IS_IN_LANE, drop_dead
from wiggle_store_sqlite.rows import ORDER, task_columns

_WALK = f"""
    SELECT {ORDER}, number FROM task INDEXED BY task_dispatch
    WHERE queue = ? AND state = 'READY' AND {{visit}}{{condition}}
    ORDER BY {ORDER} LIMIT ?
"""
# The lane drives: its tasks are looked up one by one, until there are enough that are READY with the row's number.
_LANE_WALK = """
    SELECT place.priority, place.created_at, place.ready_at, place.id, place.number
    FROM lane_task AS place CROSS JOIN task NOT INDEXED ON task.number = place.number
    WHERE place.lane = ? AND {visit_row}{visit}task.state = 'READY' AND task.ready_no = place.ready_no
    ORDER BY place.priority, place.created_at, place.ready_at, place.id LIMIT ?
"""
_CANDIDATES = "SELECT json_group_array(number), count(*), {is_stale}, {is_dirty} FROM ({walk})"
_MERGED = f"SELECT {ORDER}, number FROM ({{walks}}) ORDER BY {ORDER} LIMIT ?"
_IS_STALE = "(SELECT count(*) FROM lane WHERE lane.id IN ({lanes}) AND lane.state = 'OPEN') < {number}"
_IS_DIRTY = "count(*) = 0 AND EXISTS (SELECT 1 FROM lane_task WHERE lane IN ({lanes}))"

# By number, which stays with a task for life and is never given again: it spares a look-up of each id. Statistics made
# by ANALYZE while there were few tasks would lead the planner through all of them, hence NOT INDEXED.
_LEASE = f"""
    UPDATE task NOT INDEXED SET state = 'RUNNING', owner = ?, token = ?, lease_until = ?, reserved_at = NULL
    WHERE number IN (SELECT value FROM json_each(?)) AND state = 'READY' AND ({{guard}})
    RETURNING {task_columns()}
"""
_IS_IN_OPEN_LANE = f"{IS_IN_LANE} AND (SELECT lane.state FROM lane WHERE lane.id = ?) = 'OPEN'"

_DEAD_AT_ONCE = 1_000
"""How many dead rows one transaction of a claim deletes."""
_CLEANINGS = 20
"""How many transactions a claim spends at most on dead rows that it met."""


def claim(connections: Connections, clock: Clock, request: ClaimRequest) -> list[TaskRecord]:
    """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes."""
    if not request.routes or request.limit < 1:
        return []
    with connections.reading() as connection:
        found = _find(connection, request.routes, request.limit)
        if not found.count and not found.is_dirty:
            return []
        with connections.writing_on(connection):
            rows = _lease(connection, request, clock() + request.ttl, found)
            is_clean = _clean(connection, request, rows)
        if not is_clean:
            _clean_on(connections, connection, request, rows)
    return list(map(read_row, rows))


@dataclass(frozen=True, slots=True)
class _Found:
    """Candidates, by the numbers of their rows in a JSON list, and how many they are; `is_dirty` if there is none but
    the lanes have rows."""

    numbers: str
    count: int
    is_dirty: bool


def _find(connection: sqlite3.Connection, routes: tuple[Route, ...], limit: int) -> _Found:
    walk = candidates(routes, limit)
    numbers, count, is_stale, is_dirty = connection.execute(walk.text, walk.binds).fetchone()
    if is_stale:
        raise StaleLanes
    return _Found(numbers, count, bool(is_dirty))


def _lease(connection: sqlite3.Connection, request: ClaimRequest, lease_until: int, found: _Found) -> list[Row]:
    """Lease what was found, in claim order."""
    rows = _update(connection, request, lease_until, found.numbers)
    if len(rows) < found.count:  # others were quicker: take what is left, now that nobody else can
        left = _find(connection, request.routes, request.limit - len(rows))
        rows += _update(connection, request, lease_until, left.numbers)
    return sorted(rows, key=claim_order)


def _update(connection: sqlite3.Connection, request: ClaimRequest, lease_until: int, numbers: str) -> list[Row]:
    statement, guard = guarded_lease(request.routes)
    return connection.execute(statement, (request.owner, request.token, lease_until, numbers, *guard)).fetchall()


def _clean(connection: sqlite3.Connection, request: ClaimRequest, rows: Sequence[Row]) -> bool:
    """Delete the lane rows of what was leased, and the dead ones that were met on the way; whether none is left."""
    lanes = _lanes(request.routes)
    if not lanes:
        return True
    # Fewer than asked for: the lanes were read to their ends.
    last = OrderKey(*claim_order(rows[-1])) if len(rows) == request.limit else None
    return drop_dead(connection, lanes, last, len(rows) + _DEAD_AT_ONCE)


def _clean_on(
    connections: Connections, connection: sqlite3.Connection, request: ClaimRequest, rows: Sequence[Row]
) -> None:
    """Go on with that in short transactions, so that the next claims need not pass by so many. What was leased is
    leased: no trouble of this reaches the caller, as it would deny that."""
    with suppress(StoreError):
        for _ in range(_CLEANINGS):
            with connections.writing_on(connection):
                if _clean(connection, request, rows):
                    return


def _lanes(routes: tuple[Route, ...]) -> list[LaneId]:
    return [route.lane for route in routes if route.lane is not None]


def candidates(routes: tuple[Route, ...], limit: int) -> Fragment:
    """The query for the tasks to claim, by their numbers in one JSON list, their count, whether a lane is not OPEN, and
    whether the lanes have dead rows only. One row is one step, and so one wait for Python's global lock, whatever
    other threads compute."""
    return _candidates(routes, limit, "", "")


def _candidates(routes: tuple[Route, ...], limit: int, visit: str, visit_row: str) -> Fragment:
    text, pieces = _walk(routes, visit, visit_row)
    lanes = _lanes(routes)
    binds = [bind for piece in pieces for bind in (*piece, limit)]
    return Fragment(text, (*lanes, *lanes, *binds, limit) if len(routes) > 1 else (*lanes, *lanes, *binds))


@lru_cache(maxsize=512)
def _walk(routes: tuple[Route, ...], visit: str, visit_row: str) -> tuple[str, list[tuple[object, ...]]]:
    """The walk over all routes, each cut to the limit before they are merged, and each one's binds but the limit."""
    branches = [_branch(route, visit, visit_row) for route in routes]
    walks = [branch.text for branch in branches]
    merged = _MERGED.format(walks=" UNION ALL ".join(f"SELECT * FROM ({walk})" for walk in walks))
    lanes = _lanes(routes)
    holes = ", ".join("?" * len(lanes))
    text = _CANDIDATES.format(
        walk=walks[0] if len(walks) == 1 else merged,
        is_stale=_IS_STALE.format(lanes=holes, number=len(lanes)) if lanes else "0",
        is_dirty=_IS_DIRTY.format(lanes=holes) if lanes else "0",
    )
    return text, [branch.binds for branch in branches]


def _branch(route: Route, visit: str, visit_row: str) -> Fragment:
    if route.lane is not None:
        return Fragment(_LANE_WALK.format(visit=visit, visit_row=visit_row), (route.lane,))
    condition = WRITER.render(route.predicate)
    return Fragment(_WALK.format(condition=condition.text, visit=visit), (route.queue, *condition.binds))


@lru_cache(maxsize=512)
def guarded_lease(routes: tuple[Route, ...]) -> tuple[str, list[object]]:
    """The update that repeats what makes a task a candidate of each route, its queue and predicate or its place in an
    OPEN lane: what was read before the lock may have changed (O4)."""
    guards, binds = [], list[object]()
    for route in routes:
        if route.lane is None:
            condition = WRITER.render(route.predicate)
            guards.append(f"(queue = ? AND {condition.text})")
            binds += (route.queue, *condition.binds)
        else:
            guards.append(f"({_IS_IN_OPEN_LANE})")
            binds += (route.lane, route.lane)
    return _LEASE.format(guard=" OR ".join(guards)), binds


_VISIT, _VISIT_ROW = "visited(task.number) AND ", "visited(place.number) AND "


def explain(connections: Connections, route: Route, limit: int) -> Explanation:
    """The read of a claim by this route, SQLite's plan for it, and how many rows it visits: it is carried out, with a
    function in it that counts them. Raises StaleLanes."""
    shown = candidates((route,), limit)
    counting = _candidates((route,), limit, _VISIT, _VISIT_ROW)
    visits = _Visits()
    with connections.reading() as connection:
        steps = connection.execute(f"EXPLAIN QUERY PLAN {shown.text}", shown.binds).fetchall()
        connection.create_function("visited", 1, visits)
        try:
            _, _, is_stale, _ = connection.execute(counting.text, counting.binds).fetchone()
        finally:
            connection.create_function("visited", 1, None)
    if is_stale:
        raise StaleLanes
    return Explanation(shown.text, shown.binds, _indent(steps), visits.number)


class _Visits:
    """A function of SQL that is true of every row, and counts them."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, _: int) -> bool:
        self.number += 1
        return True


def _indent(steps: list[tuple[int, int, int, str]]) -> tuple[str, ...]:
    depths = {0: 0}
    for step, parent, _, _ in steps:
        depths[step] = depths[parent] + 1
    return tuple("  " * depths[parent] + detail for _, parent, _, detail in steps)
