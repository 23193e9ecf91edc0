"""Claims: each route's first free tasks are locked, then the first of all are leased, in one transaction of two round
trips.

A walk reads the queue by the index that is in claim order, with FOR UPDATE SKIP LOCKED: no sort comes between, so no
row is locked that is not returned, but for the moment in which the predicate is tested on it (MY1). READ COMMITTED lets
go of a row that does not match at once (MY2).

A route with a lane reads the lane's first rows instead, without a lock: a row of a lane that stays locked behind a
task which was passed by would be in the way of others (MY11). Only the tasks of these rows are locked, by their
primary key, and `ready_no` tells whether they are still what the lane says. What a route locked beyond the limit is
free again when the claim has answered (O2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

from wiggle_core.errors import StaleLanes, StoreError
from wiggle_core.stores.lanes import LaneId, LaneRow
from wiggle_core.stores.sql.rows import claim_order, read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import OrderKey, TaskRecord
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Answer, Connections, Session, Statement
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.order import LANE_KEY, ORDER, behind, of
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.rows import TASK_COLUMNS

SPARE = 32
"""How many rows of a lane are read beyond the limit: those of tasks that others take just now, and dead ones."""
LONGEST_PART = 1_000
"""How many rows of a lane are read at once at most, so that none reads much more than it claims (N4)."""
PARTS = 20
"""How many parts of a lane one claim reads at most, where their rows are dead or locked."""
PRUNING_PAUSE = 0.1
"""How many seconds lie at least between two prunings of a lane's head. Rows that are passed by may be those of tasks
that other claims lock just now, and then there is nothing to delete."""

# MariaDB sorts a million rows if the constants are in the order, too (MY12).
_WALK = f"""
    SELECT {ORDER}, ready_no FROM $task AS task FORCE INDEX (task_dispatch)
    WHERE queue = %s AND state = 'READY' AND {{condition}}
    ORDER BY {ORDER} LIMIT %s FOR UPDATE SKIP LOCKED
"""
# The order is that of the rows, which are sorted before the join, if at all: so the join ends with the limit, and locks
# nothing behind it. Both products lock the tables of the outer statement only.
_BY_LANE = f"""
    SELECT STRAIGHT_JOIN {of("head", LANE_KEY)}
    FROM (
        SELECT {LANE_KEY} FROM $lane_task WHERE lane = %s AND {{behind}} ORDER BY {LANE_KEY} LIMIT %s
    ) AS head
    JOIN $task AS task FORCE INDEX (PRIMARY)
    ON task.id = head.id AND task.ready_no = head.ready_no AND task.state = 'READY'
    ORDER BY {of("head", LANE_KEY)} LIMIT %s FOR UPDATE SKIP LOCKED
"""
# Asked before the part itself: what is written in between may come twice then, and is not lost.
_END_OF_PART = f"SELECT {LANE_KEY} FROM $lane_task WHERE lane = %s AND {{behind}} ORDER BY {LANE_KEY} LIMIT %s, 1"
_STANDING = "SELECT count(*) FROM $lane WHERE id IN %s AND state = 'OPEN'"

_LEASE = """
    UPDATE $task AS task FORCE INDEX (PRIMARY)
    SET state = 'RUNNING', owner = %s, token = %s, lease_until = {now} + %s, due_at = {now} + %s, reserved_at = NULL
    WHERE id IN %s AND state = 'READY'
"""
_LEASED = f"""
    SELECT {TASK_COLUMNS} FROM $task AS task FORCE INDEX (PRIMARY)
    WHERE task.id IN %s AND task.token = %s AND task.state = 'RUNNING'
"""


class Candidate(NamedTuple):
    """A task that is locked for a claim, and the lane it was found by."""

    key: OrderKey
    ready_no: int
    lane: LaneId | None


@dataclass(slots=True)
class _Part:
    """A stretch of a lane: what it begins behind, and how many rows it has at most."""

    lane: LaneId
    after: Sequence[object] | None
    size: int


class Claiming:
    """Claims, and the times at which the heads of lanes were pruned last."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._pruned_at: dict[LaneId, float] = {}

    def claim(self, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes (N3)."""
        if not request.routes or request.limit < 1:
            return []
        passed: dict[LaneId, int] = {}
        rows = []
        with self._connections.transaction() as session:
            found = _locked(session, request, passed)
            if found:
                rows = session.commit(_lease(now, request, found))[1].rows
        for lane, size in passed.items():
            self._prune(lane, size, is_empty=not rows)
        return list(map(read_row, sorted(rows, key=claim_order)))

    def _prune(self, lane: LaneId, size: int, *, is_empty: bool) -> None:
        """Delete the dead ones of the first rows of a lane, if many were passed by. What was claimed is claimed,
        whatever becomes of this."""
        now = monotonic()
        if is_empty or now - self._pruned_at.get(lane, 0.0) > PRUNING_PAUSE:
            self._pruned_at[lane] = now
            with suppress(StoreError):
                lane_rows.prune_head(self._connections, lane, size)


def _locked(session: Session, request: ClaimRequest, passed: dict[LaneId, int]) -> list[Candidate]:
    """The first free tasks over all routes, locked. `passed` gets the lanes of which many rows were passed by, and how
    many."""
    statements = list(first_statements(session.server.product, request.routes, request.limit))
    answers = iter(session.batch(statements))
    found: list[Candidate] = []
    for route in request.routes:
        if route.lane is None:
            found += _candidates(next(answers), None)
        else:
            found += _by_lane(session, route.lane, request.limit, answers, passed)
    lanes = _lanes(request.routes)
    if lanes and next(answers).rows != [(len(lanes),)]:
        raise StaleLanes
    return sorted(found, key=attrgetter("key"))[: request.limit]


def first_statements(product: Product, routes: Sequence[Route], limit: int) -> Iterator[Statement]:
    """What a claim sends first. Whether lanes are OPEN is asked at last: none is cleared before it is CLOSING."""
    for route in routes:
        if route.lane is None:
            walk = _walk(product, route)
            yield walk.text, (*walk.binds, limit)
        else:
            yield from _part(_Part(route.lane, None, limit + SPARE), limit)
    lanes = _lanes(routes)
    if lanes:
        yield _STANDING, (lanes,)


@lru_cache(maxsize=1024)
def _walk(product: Product, route: Route) -> Fragment:
    condition = WRITERS[product].render(route.predicate)
    return Fragment(_WALK.format(condition=condition.text), (route.queue, *condition.binds))


def _lanes(routes: Sequence[Route]) -> list[LaneId]:
    return [route.lane for route in routes if route.lane is not None]


def _part(part: _Part, limit: int) -> list[Statement]:
    """The questions for the end of a part and for its first free tasks."""
    condition, binds = behind(LANE_KEY, part.after)
    return [
        (_END_OF_PART.format(behind=condition), (part.lane, *binds, part.size - 1)),
        (_BY_LANE.format(behind=condition), (part.lane, *binds, part.size, limit)),
    ]


def _by_lane(
    session: Session, lane: LaneId, limit: int, answers: Iterator[Answer], passed: dict[LaneId, int]
) -> list[Candidate]:
    """The first free tasks of a lane, given the answers about its first part; the next parts are read as long as their
    rows are dead or locked."""
    end = next(answers)
    found = {each.key.id: each for each in _candidates(next(answers), lane)}
    size = limit + SPARE
    for _ in range(PARTS):
        if len(found) >= limit or not end.rows:
            break
        passed[lane] = passed.get(lane, 0) + size
        size = min(size * 4, max(LONGEST_PART, limit))
        end, part = session.batch(_part(_Part(lane, end.rows[0], size), limit - len(found)))
        found |= {each.key.id: each for each in _candidates(part, lane)}
    return list(found.values())


def _candidates(answer: Answer, lane: LaneId | None) -> Iterator[Candidate]:
    return (Candidate(OrderKey(*row[:-1]), row[-1], lane) for row in answer.rows)


def _lease(now: int | None, request: ClaimRequest, found: Sequence[Candidate]) -> Iterator[Statement]:
    """Lease what is locked, read it, and let its rows of the lanes go that it was found by. In the order of their keys
    (L7)."""
    ids = sorted(each.key.id for each in found)
    yield _LEASE.format(now=moment(now)), (request.owner, request.token, request.ttl, request.ttl, ids)
    yield _LEASED, (ids, request.token)
    rows = [LaneRow(each.lane, each.key, each.ready_no) for each in found if each.lane is not None]
    if rows:
        yield lane_rows.deletion(rows)
