"""Claims: each route's first free tasks are locked, then the first of all are leased, in one transaction of two round
trips.

A walk reads the queue by the index that is in claim order, with FOR UPDATE SKIP LOCKED: no sort comes between, so no
row is locked that is not returned, but for the moment in which the predicate is tested on it (MY1). READ COMMITTED lets
go of a row that does not match at once (MY2).

A route with a lane reads the lane's first rows instead, and locks the task of each by its primary key; `ready_no` tells
whether it still is what the lane says. MariaDB cannot name the table to be locked, so there the row of the lane is
locked along with it, and another claim by the same lane passes by both. Nobody waits for a row of a lane in the reverse
order: a claim deletes none but those of its own lane that it holds (MY11).

What a route locked beyond the limit is free again when the claim has answered (O2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
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
from wiggle_store_mysql.connections import Connections, Session, Statement
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.order import LANE_KEY, ORDER, of
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.rows import TASK_COLUMNS

PRUNED = 200
"""How many rows at the head of a lane are looked at for dead ones."""
PRUNED_IN_A_ROW = 1_000
"""Likewise, for as long as most of them are dead."""
PRUNINGS = 20
"""How often in a row, at most."""
PRUNING_PAUSE = 0.1
"""How many seconds lie at least between two prunings of a lane's head by one process."""

# MariaDB sorts a million rows if the constants are in the order, too (MY12).
_WALK = f"""
    SELECT {ORDER}, ready_no FROM $task AS task FORCE INDEX (task_dispatch)
    WHERE queue = %s AND state = 'READY' AND {{condition}}
    ORDER BY {ORDER} LIMIT %s FOR UPDATE SKIP LOCKED
"""
# In the order of the lane's own key, so that the join ends with the limit.
_BY_LANE = f"""
    SELECT STRAIGHT_JOIN {of("head", LANE_KEY)}
    FROM $lane_task AS head FORCE INDEX (PRIMARY)
    JOIN $task AS task FORCE INDEX (PRIMARY)
    ON task.id = head.id AND task.ready_no = head.ready_no AND task.state = 'READY'
    WHERE head.lane = %s ORDER BY {of("head", LANE_KEY)} LIMIT %s {{lock}} SKIP LOCKED
"""
_LOCK_OF_TASK = {Product.MYSQL: "FOR UPDATE OF task", Product.MARIADB: "FOR UPDATE"}
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


class Claiming:
    """Claims, and the times at which the heads of lanes were pruned last."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._pruned_at: dict[LaneId, float] = {}

    def claim(self, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes (N3)."""
        if not request.routes or request.limit < 1:
            return []
        for lane in _lanes(request.routes):
            self._prune(lane)
        with self._connections.transaction() as session:
            found = _locked(session, request)
            rows = session.commit(list(lease_statements(now, request, found)))[1].rows if found else []
        return list(map(read_row, sorted(rows, key=claim_order)))

    def _prune(self, lane: LaneId) -> None:
        """Delete the dead ones of the first rows of a lane now and then: a claim that meets them passes by them one by
        one. It is carried out whatever becomes of this."""
        now = monotonic()
        if now - self._pruned_at.get(lane, -PRUNING_PAUSE) < PRUNING_PAUSE:
            return
        self._pruned_at[lane] = now
        size = PRUNED
        with suppress(StoreError):
            for _ in range(PRUNINGS):
                if lane_rows.prune_head(self._connections, lane, size) <= size / 2:
                    return
                size = PRUNED_IN_A_ROW


def _locked(session: Session, request: ClaimRequest) -> list[Candidate]:
    """The first free tasks over all routes, locked. Raises StaleLanes."""
    answers = session.batch(list(first_statements(session.server.product, request.routes, request.limit)))
    lanes = _lanes(request.routes)
    if lanes and answers.pop().rows != [(len(lanes),)]:
        raise StaleLanes
    found = [
        Candidate(OrderKey(*row[:-1]), row[-1], route.lane)
        for route, answer in zip(request.routes, answers, strict=True)
        for row in answer.rows
    ]
    return sorted(found, key=attrgetter("key"))[: request.limit]


def first_statements(product: Product, routes: Sequence[Route], limit: int) -> Iterator[Statement]:
    """What a claim sends first. Whether lanes are OPEN is asked at last: none is cleared before it is CLOSING."""
    for route in routes:
        if route.lane is None:
            walk = _walk(product, route)
            yield walk.text, (*walk.binds, limit)
        else:
            yield _BY_LANE.format(lock=_LOCK_OF_TASK[product]), (route.lane, limit)
    lanes = _lanes(routes)
    if lanes:
        yield _STANDING, (lanes,)


@lru_cache(maxsize=1024)
def _walk(product: Product, route: Route) -> Fragment:
    condition = WRITERS[product].render(route.predicate)
    return Fragment(_WALK.format(condition=condition.text), (route.queue, *condition.binds))


def _lanes(routes: Sequence[Route]) -> list[LaneId]:
    return [route.lane for route in routes if route.lane is not None]


def lease_statements(now: int | None, request: ClaimRequest, found: Sequence[Candidate]) -> Iterator[Statement]:
    """Lease what is locked, read it, and let its rows of the lanes go that it was found by. In the order of their keys
    (L7)."""
    ids = sorted(each.key.id for each in found)
    yield _LEASE.format(now=moment(now)), (request.owner, request.token, request.ttl, request.ttl, ids)
    yield _LEASED, (ids, request.token)
    rows = [LaneRow(each.lane, each.key, each.ready_no) for each in found if each.lane is not None]
    if rows:
        yield lane_rows.deletion(rows)
