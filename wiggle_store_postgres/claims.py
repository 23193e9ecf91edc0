"""Claims: one statement, one round trip. Each route locks its first free tasks, then the first of all are leased.

`FOR UPDATE SKIP LOCKED` stands in a MATERIALIZED part, so that no plan can run it again and lock more than the limit
(PG1). A row that changed between snapshot and lock is tested again by PostgreSQL, predicate and all; a batch may thus
be short of what is there (PG2). What a route locked beyond the limit is free again when the statement ends (O2).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter

from wiggle_core.stores.sql.rows import read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Explanation, Route
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.dialect import WRITER
from wiggle_store_postgres.moment import moment
from wiggle_store_postgres.rows import TASK_COLUMNS

ORDER = "priority, created_at, ready_at, id"

_OWNER, _TOKEN, _NOW, _TTL, _LIMIT = "$1", "$2", "$3", "$4", "$5"
_FIXED_BINDS = 5

_WALK = f"""
    {{name}} AS MATERIALIZED (
        SELECT {ORDER} FROM $schema.task
        WHERE queue = ${{queue}} AND state = 'READY' AND {{condition}}
        ORDER BY {ORDER} LIMIT {_LIMIT}::bigint FOR UPDATE SKIP LOCKED
    )"""
_MERGED = f"""
    picked AS MATERIALIZED (SELECT id FROM ({{walks}}) AS walk ORDER BY {ORDER} LIMIT {_LIMIT}::bigint)"""
# The ids come as an array, since a join is a choice: with statistics from emptier days a planner without our settings
# was seen to merge the candidates with the whole table. The guard is worded so that no partial index is on offer: the
# dispatch index has an id too, behind all else, and was preferred when there were no statistics.
_LEASE = f"""
    UPDATE $schema.task AS task
    SET state = 'RUNNING', owner = {_OWNER}, token = {_TOKEN}, lease_until = {moment(_NOW)} + {_TTL}::bigint,
        reserved_at = NULL
    WHERE task.id = ANY (ARRAY(SELECT id FROM picked)) AND task.state NOT IN ('SCHEDULED', 'RUNNING')
    RETURNING {TASK_COLUMNS}
"""


def claim(connections: Connections, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
    """Lease the first READY tasks that match, in claim order over all routes (O1-O4)."""
    if not request.routes or request.limit < 1:
        return []
    statement = _statement(request.routes)
    binds = (request.owner, request.token, now, request.ttl, request.limit, *statement.binds)
    with connections.changing() as session:
        rows = session.rows(statement.text, binds)
    return sorted(map(read_row, rows), key=attrgetter("order_key"))


@lru_cache(maxsize=512)
def _statement(routes: tuple[Route, ...]) -> Fragment:
    """The claim over all routes, and what they bind behind the fixed binds."""
    walks = list(_walks(routes))
    text = ",".join(walk.text for walk in walks)
    if len(walks) > 1:
        merged = " UNION ALL ".join(f"SELECT * FROM walk_{number}" for number in range(len(walks)))
        text += "," + _MERGED.format(walks=merged)
    return Fragment(f"WITH {text}{_LEASE}", tuple(bind for walk in walks for bind in walk.binds))


def _walks(routes: tuple[Route, ...]) -> Iterator[Fragment]:
    bound = _FIXED_BINDS
    for number, route in enumerate(routes):
        name = "picked" if len(routes) == 1 else f"walk_{number}"
        condition = WRITER.render(route.predicate, bound + 1)
        yield Fragment(
            _WALK.format(name=name, queue=bound + 1, condition=condition.text), (route.queue, *condition.binds)
        )
        bound += 1 + len(condition.binds)


def explain(connections: Connections, route: Route, limit: int) -> Explanation:
    """The statement of a claim by this route, and PostgreSQL's plan for it. Nothing is claimed."""
    statement = _statement((route,))
    binds = ("", "", None, 0, limit, *statement.binds)
    with connections.reading() as session:
        lines = session.rows(f"EXPLAIN {statement.text}", binds)
    return Explanation(statement.text, binds, tuple(line for (line,) in lines))
