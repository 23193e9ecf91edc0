"""Claims: each route's first free tasks are locked, then the first of all are leased, in one transaction of two round
trips.

A walk reads the queue by the index that is in claim order, with FOR UPDATE SKIP LOCKED: no sort comes between, so no
row is locked that is not returned, but for the moment in which the predicate is tested on it (MY1). READ COMMITTED lets
go of a row that does not match at once (MY2). There are two cases for a walk by pages, which reads a page without
locks, and locks those of its tasks that are free by their keys; where some are not, it goes on behind the page, by two
round trips more for each further one:

- MariaDB lets go of rows of the primary key only. So there all walks with a predicate are by pages.
- A row that is passed by stays locked in the index, on either product. Claims that lock some tasks by the index and
  others by their keys would wait for each other there, in a circle. So beside a lane or a page all walks are by pages.

A route with a lane reads the lane's first rows instead, and locks the task of each by its primary key; `ready_no` tells
whether it still is what the lane says. MariaDB cannot name the table to be locked, so there the row of the lane is
locked along with it, and another claim by the same lane passes by both. Nobody waits for a row of a lane in the reverse
order: a claim deletes none but those of its own lane that it holds (MY11).

What a route locked beyond the limit is free again when the claim has answered (O2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

from wiggle_core.criteria.tree import TRUE, Predicate
from wiggle_core.errors import StaleLanes, StoreError
from wiggle_core.stores.lanes import LaneId, LaneRow
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import OrderKey, TaskRecord
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Connections, Row, Session, Statement
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.order import LANE_KEY, ORDER, behind, keys, lock_of, of
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.rows import TASK_COLUMNS, read_task

CROWDED = 50
"""From so many rows on that a claim passes by in a lane, its head is looked at for dead ones; from fewer, if it found
no more tasks than that."""
PRUNED = 200
"""How many rows at the head of a lane are looked at for dead ones."""
PRUNED_IN_A_ROW = 1_000
"""Likewise, for as long as most of them are dead."""
PRUNINGS = 20
"""How often in a row, at most."""
PRUNING_PAUSE = 1.0
"""How many seconds lie at least between two prunings of a lane's head by one process: what a claim passed by may be
locked by other claims, and not dead."""
SHORT_PRUNING_PAUSE = 0.1
"""Likewise, where most of the rows were dead the last time."""

# MariaDB sorts a million rows if the constants are in the order, too (MY12).
_READY = f"""
    SELECT {ORDER}, ready_no FROM $task AS task FORCE INDEX (task_dispatch)
    WHERE queue = %s AND state = 'READY' AND {{condition}}
    ORDER BY {ORDER} LIMIT %s"""
_WALK = f"{_READY} FOR UPDATE SKIP LOCKED"
# The lock is on the task that is joined alone: it does not reach into the page. Tested on 10.11: of 10 tasks found
# among 100, FOR UPDATE in the walk itself kept 91 locked, and this 10.
_PAGE = f"""
    SELECT STRAIGHT_JOIN {of("page", LANE_KEY)}, free.id IS NOT NULL AS is_free FROM ({_READY}
    ) AS page
    LEFT JOIN $task AS free FORCE INDEX (PRIMARY)
    ON free.id = page.id AND free.ready_no = page.ready_no AND free.state = 'READY'
    FOR UPDATE SKIP LOCKED
"""
# Of a page that was read before, in its order, so that no more is locked than is wanted.
_FIRST_FREE = f"""
    SELECT free.id FROM {keys("id, ready_no")} STRAIGHT_JOIN $task AS free FORCE INDEX (PRIMARY)
    ON free.id = given.id AND free.ready_no = given.ready_no AND free.state = 'READY'
    LIMIT %s {{lock}} SKIP LOCKED
"""
LONGEST_PAGE = 500
"""How many tasks a page has at most, where others have locked those before it."""
# In the order of the lane's own key, so that the join ends with the limit.
_BY_LANE = f"""
    SELECT STRAIGHT_JOIN {of("head", LANE_KEY)}
    FROM $lane_task AS head FORCE INDEX (PRIMARY)
    JOIN $task AS task FORCE INDEX (PRIMARY)
    ON task.id = head.id AND task.ready_no = head.ready_no AND task.state = 'READY'
    WHERE head.lane = %s ORDER BY {of("head", LANE_KEY)} LIMIT %s {{lock}} SKIP LOCKED
"""
# How many rows were passed by is not asked, for that would read them all again: the place of a single one tells enough.
_PASSED = f"""
    SELECT {LANE_KEY} FROM $lane_task FORCE INDEX (PRIMARY) WHERE lane = %s ORDER BY {LANE_KEY} LIMIT 1 OFFSET %s
"""
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


class Head(NamedTuple):
    """What a claim found in a lane: how many free tasks, and the last of them. With `is_end` there are no more."""

    lane: LaneId
    found: int
    last: OrderKey | None
    is_end: bool

    def asked(self) -> Statement:
        """The question for the row that would be behind the last, had it passed by so many."""
        return _PASSED, (self.lane, self.found + min(self.found, CROWDED))

    def is_crowded(self, rows: Sequence[Row]) -> bool:
        """Whether the claim passed by as many rows as it found, or by CROWDED, from the answer to `asked`."""
        return bool(rows) and (self.is_end or self.last is None or OrderKey(*rows[0][:4]) <= self.last)


class Claiming:
    """Claims, and the times at which the heads of lanes may be pruned next."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._prune_at: dict[LaneId, float] = {}

    def claim(self, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes (N3)."""
        if not request.routes or request.limit < 1:
            return []
        with self._connections.transaction() as session:
            found, heads = _locked(session, request)
            rows: list[Row] = []
            crowded = heads  # whatever was there has been passed by
            if found:
                _, leased, *passed = session.commit(list(lease_statements(now, request, found, heads)))
                crowded = [each for each, answer in zip(heads, passed, strict=False) if each.is_crowded(answer.rows)]
                rows = leased.rows
        for head in crowded:
            self._prune(head.lane)
        return sorted(map(read_task, rows), key=attrgetter("order_key"))

    def _prune(self, lane: LaneId) -> None:
        """Delete the dead ones of the first rows of a lane, which claims pass by one by one. What was claimed is
        claimed, whatever becomes of this."""
        now = monotonic()
        if now < self._prune_at.get(lane, now):
            return
        self._prune_at[lane] = now + PRUNING_PAUSE
        size = PRUNED
        with suppress(StoreError):
            for _ in range(PRUNINGS):
                if lane_rows.prune_head(self._connections, lane, size) <= size / 2:
                    return
                self._prune_at[lane] = now + SHORT_PRUNING_PAUSE
                size = PRUNED_IN_A_ROW


def _locked(session: Session, request: ClaimRequest) -> tuple[list[Candidate], list[Head]]:
    """The first free tasks over all routes, locked, and what was found in each lane. Raises StaleLanes."""
    answers = session.batch(list(first_statements(session.server.product, request.routes, request.limit)))
    lanes = _lanes(request.routes)
    is_by_pages = _is_by_pages(session.server.product, request.routes)
    if lanes and answers.pop().rows != [(len(lanes),)]:
        raise StaleLanes
    found: list[Candidate] = []
    heads = []
    for route, answer in zip(request.routes, answers, strict=True):
        rows = _free(session, route, request.limit, answer.rows) if is_by_pages else answer.rows
        found += (Candidate(OrderKey(*row[:4]), row[4], route.lane) for row in rows)
        if route.lane is not None:
            last = OrderKey(*rows[-1][:4]) if rows else None
            heads.append(Head(route.lane, len(rows), last, len(rows) < request.limit))
    return sorted(found, key=attrgetter("key"))[: request.limit], heads


def first_statements(product: Product, routes: Sequence[Route], limit: int) -> Iterator[Statement]:
    """What a claim sends first. Whether lanes are OPEN is asked at last: none is cleared before it is CLOSING."""
    walk = _PAGE if _is_by_pages(product, routes) else _WALK
    for route in routes:
        if route.lane is None:
            condition = _condition(product, route.predicate)
            yield walk.format(condition=condition.text), (route.queue, *condition.binds, limit)
        else:
            yield _BY_LANE.format(lock=lock_of(product, "task")), (route.lane, limit)
    lanes = _lanes(routes)
    if lanes:
        yield _STANDING, (lanes,)


def _is_by_pages(product: Product, routes: Sequence[Route]) -> bool:
    """Whether the walks among the routes are by pages."""
    has_predicate = any(route.predicate != TRUE for route in routes)
    return bool(_lanes(routes)) or (product is Product.MARIADB and has_predicate)


def _free(session: Session, route: Route, limit: int, rows: list[Row]) -> list[Row]:
    """The rows of a first page that are locked, with those of the pages behind it where it has too few."""
    if route.lane is not None:
        return rows
    product = session.server.product
    lock = _FIRST_FREE.format(lock=lock_of(product, "free"))
    free = [row for row in rows if row[-1]]
    size = limit
    while len(rows) == size and len(free) < limit:
        size = min(4 * size, LONGEST_PAGE)
        rows = session.rows(*_page(product, route, max(row[:4] for row in rows), size))
        if rows:
            page = json.dumps([row[3:5] for row in rows], ensure_ascii=False)
            locked = set(session.rows(lock, (page, limit - len(free))))
            free += [row for row in rows if row[3:4] in locked]
    return free


def _page(product: Product, route: Route, after: Row, size: int) -> Statement:
    condition = _condition(product, route.predicate)
    further, place = behind(ORDER, after)
    text = _READY.format(condition=f"{condition.text} AND {further}")
    return text, (route.queue, *condition.binds, *place, size)


@lru_cache(maxsize=1024)
def _condition(product: Product, predicate: Predicate) -> Fragment:
    return WRITERS[product].render(predicate)


def _lanes(routes: Sequence[Route]) -> list[LaneId]:
    return [route.lane for route in routes if route.lane is not None]


def lease_statements(
    now: int | None, request: ClaimRequest, found: Sequence[Candidate], heads: Sequence[Head]
) -> Iterator[Statement]:
    """Lease what is locked, read it, ask what was passed by in lanes, and let the rows of lanes go by which it was
    found. In the order of their keys (L7)."""
    ids = sorted(each.key.id for each in found)
    yield _LEASE.format(now=moment(now)), (request.owner, request.token, request.ttl, request.ttl, ids)
    yield _LEASED, (ids, request.token)
    yield from (head.asked() for head in heads)
    rows = [LaneRow(each.lane, each.key, each.ready_no) for each in found if each.lane is not None]
    if rows:
        yield lane_rows.deletion(rows)
