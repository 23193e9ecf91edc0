"""Claims: one statement, one round trip. Each route locks its first free tasks, then the first of all are leased.

`FOR UPDATE SKIP LOCKED` stands in a MATERIALIZED part, so that no plan can run it again and lock more than the limit
(PG1). A row that changed between snapshot and lock is tested again by PostgreSQL, predicate and all; a batch may thus
be short of what is there (PG2). What a route locked beyond the limit is free again when the statement ends (O2).

A route with a lane reads the lane's first rows instead, and locks the task of each. The statement sees one snapshot, so
lane rows that were written since, for a task that came back, stay where they are when it leases that task (PG13). They
do no harm: `ready_no` is tested with the lock held, and no row that has died can live again. The other way round, a row
whose task was not READY by that number in the snapshot will never be live again, and may be deleted.

Claims are prepared (PG6): parsing and planning one cost the server twice what carrying it out does. PostgreSQL keeps
one plan for all values once that looks no dearer than plans for given values did. It cannot be another plan, since our
settings leave no choice, but it would look dear if it had to read a tenth of the queue, as is assumed of a limit that
is not known. So a limit stands in the text: the next power of two, lest each limit has a statement of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from time import monotonic

from wiggle_core.errors import StaleLanes, StoreError
from wiggle_core.stores.lanes import LaneId
from wiggle_core.stores.sql.rows import read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_postgres.connections import Connections, Row
from wiggle_store_postgres.dialect import WRITER
from wiggle_store_postgres.moment import moment
from wiggle_store_postgres.rows import TASK_COLUMNS

ORDER = "priority, created_at, ready_at, id"

DEAD_ROWS = 1_000
"""How many rows of a lane one claim passes by at most, so that none reads much more than it claims (N4)."""
TRIES = 20
"""How many claims are sent, while a lane's rows hide what comes behind them, before the last one ignores that."""
PRUNING_PAUSE = 0.1
"""How many seconds lie at least between two prunings of a lane's head. Rows that are passed by may be those of tasks
that other claims lock just now, and then there is nothing to delete."""

_HASHED = 9
"""From so many values on PostgreSQL looks a value up in a list by its hash, if the plan knows the list."""

_OWNER, _TOKEN, _NOW, _TTL, _LIMIT = "$1", "$2", "$3", "$4", "$5"
_FIXED_BINDS = 5

# A planner that knows nothing of the tasks prefers an index of one state, since that names the state and has an id too,
# behind all else. Worded so, the guard offers it none, and the primary key is left.
IS_READY = "task.state NOT IN ('SCHEDULED', 'RUNNING')"

_WALK = f"""
    {{name}} AS MATERIALIZED (
        SELECT * FROM (
            SELECT {ORDER} FROM $schema.task
            WHERE queue = ${{queue}} AND state = 'READY' AND {{condition}}
            ORDER BY {ORDER} LIMIT {{most}} FOR UPDATE SKIP LOCKED
        ) AS free LIMIT {_LIMIT}::bigint
    )"""
_MERGED = f"""
    picked AS MATERIALIZED (
        SELECT id{{place}} FROM ({{walks}}) AS walk{{condition}} ORDER BY {ORDER} LIMIT {_LIMIT}::bigint
    )"""
# The ids come as an array, since a join is a choice: with statistics from emptier days a planner without our settings
# was seen to merge the candidates with the whole table.
_LEASE = f"""
    UPDATE $schema.task AS task
    SET state = 'RUNNING', owner = {_OWNER}, token = {_TOKEN}, lease_until = {moment(_NOW)} + {_TTL}::bigint,
        reserved_at = NULL
    WHERE task.id = ANY (ARRAY(SELECT id FROM picked)) AND {IS_READY}
    RETURNING {TASK_COLUMNS}
"""

# LATERAL, and a lock inside, leave the planner no other way to join.
_LANE = f"""
    {{name}} AS MATERIALIZED (
        SELECT * FROM (
            SELECT {", ".join(f"head.{column}" for column in ORDER.split(", "))}, head.place, head.number FROM (
                SELECT ctid AS place, {ORDER}, ready_no, row_number() OVER (ORDER BY {ORDER}, ready_no) AS number
                FROM $schema.lane_task WHERE lane = ${{lane}}::bigint AND (SELECT are_open FROM standing)
                ORDER BY {ORDER}, ready_no LIMIT {{most}} + {DEAD_ROWS}
            ) AS head CROSS JOIN LATERAL (
                SELECT FROM $schema.task AS task
                WHERE task.id = head.id AND task.ready_no = head.ready_no AND {IS_READY}
                FOR UPDATE SKIP LOCKED
            ) AS locked
            ORDER BY head.priority, head.created_at, head.ready_at, head.id, head.ready_no LIMIT {{most}}
        ) AS free LIMIT {_LIMIT}::bigint
    ),
    met_{{number}} AS MATERIALIZED (
        SELECT count(*) AS found, CASE WHEN count(*) = {_LIMIT}::bigint THEN max(number) ELSE (
            SELECT count(*) FROM (
                SELECT FROM $schema.lane_task WHERE lane = ${{lane}}::bigint LIMIT {{most}} + {DEAD_ROWS}
            ) AS head
        ) END AS met FROM {{name}}
    )"""
_STANDING = """
    standing AS MATERIALIZED (
        SELECT count(*) = {count} AS are_open FROM $schema.lane WHERE id IN ({lanes}) AND state = 'OPEN'
    )"""
# A route without a lane has looked at the state of the others' lanes, too; and what comes behind a lane's rows may be
# before its tasks (O1).
_MAY_LEASE = f"""
        WHERE (SELECT are_open FROM standing) AND (${{is_last}}::boolean OR {{most}} + {DEAD_ROWS} > ALL (
            SELECT met FROM ({{met}}) AS met WHERE found < {_LIMIT}::bigint
        ))"""
_LEASE_BY_LANE = f""",
    leased AS ({_LEASE}),
    gone AS (
        DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(SELECT place FROM picked WHERE place IS NOT NULL))
    )
    SELECT standing.are_open, {{met}}, leased.* FROM standing CROSS JOIN {{tables}} LEFT JOIN leased ON true
"""
# Rows that a snapshot shows to be dead will never live again. They are passed by if another one is deleting them.
_PRUNE_HEAD = f"""
    WITH dead AS MATERIALIZED (
        SELECT ctid AS place FROM $schema.lane_task WHERE ctid = ANY (ARRAY(
            SELECT place FROM (
                SELECT ctid AS place, id, ready_no FROM $schema.lane_task WHERE lane = $1::bigint
                ORDER BY {ORDER}, ready_no LIMIT $2::bigint
            ) AS head
            WHERE (SELECT task.ready_no FROM $schema.task AS task WHERE task.id = head.id AND {IS_READY})
                IS DISTINCT FROM head.ready_no
        )) FOR UPDATE SKIP LOCKED
    )
    DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(SELECT place FROM dead))
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """The claim over some routes, and what they bind behind the fixed binds.

    With `lanes`, three columns more come first: whether all of them are OPEN, and, an array each, how many tasks were
    found by each and how many of its rows were met. If there are other routes as well, one bind more tells whether
    this is the last try.
    """

    text: str
    binds: tuple[object, ...]
    is_prepared: bool
    longest: int
    """How many rows of a lane are met at most; with so many, there may be more."""
    lanes: tuple[LaneId, ...] = ()
    takes_last: bool = False


class Claiming:
    """Claims, and the times at which the heads of lanes were pruned last."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._pruned_at: dict[LaneId, float] = {}

    def claim(self, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
        """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes (N3)."""
        if not request.routes or request.limit < 1:
            return []
        statement = statement_for(request.routes, request.limit)
        binds = (request.owner, request.token, now, request.ttl, request.limit, *statement.binds)
        if statement.lanes:
            rows = self._by_lanes(statement, binds)
        else:
            with self._connections.changing() as session:
                rows = session.rows(statement.text, binds, prepare=statement.is_prepared)
        return sorted(map(read_row, rows), key=attrgetter("order_key"))

    def _by_lanes(self, statement: Statement, binds: tuple[object, ...]) -> list[Row]:
        for number in range(TRIES):
            last = (number == TRIES - 1,) if statement.takes_last else ()
            with self._connections.changing() as session:
                rows = session.rows(statement.text, (*binds, *last), prepare=statement.is_prepared)
            are_open, found, met = rows[0][:3]
            if not are_open:
                raise StaleLanes
            leased = [row[3:] for row in rows if row[3] is not None]
            is_cut = not leased and statement.longest in met
            for each in zip(statement.lanes, found, met, strict=True):
                self._prune(*each, is_cut)
            if not is_cut:
                return leased
        return []

    def _prune(self, lane: LaneId, found: int, met: int, is_cut: bool) -> None:
        """Delete the dead ones of the first rows of a lane, if more than a few were passed by. What was claimed is
        claimed, whatever becomes of this."""
        now = monotonic()
        if met - found > found / 2 and (is_cut or now - self._pruned_at.get(lane, 0.0) > PRUNING_PAUSE):
            self._pruned_at[lane] = now
            with suppress(StoreError), self._connections.changing() as session:
                session.run(_PRUNE_HEAD, (lane, met))


def statement_for(routes: tuple[Route, ...], limit: int) -> Statement:
    """The claim over all routes of so many tasks at most."""
    return _statement(routes, 1 << (limit - 1).bit_length())


@lru_cache(maxsize=512)
def _statement(routes: tuple[Route, ...], most: int) -> Statement:
    parts = list(_parts(routes, most))
    text = ",".join(part.fragment.text for part in parts)
    binds = tuple(bind for part in parts for bind in part.fragment.binds)
    lanes = [part for part in parts if part.lane is not None]
    is_prepared = not any(isinstance(bind, list) and len(bind) >= _HASHED for bind in binds)
    if lanes:
        text, names = _with_lanes(parts, lanes, len(binds), most), tuple(part.lane for part in lanes if part.lane)
        return Statement(text, binds, is_prepared, most + DEAD_ROWS, names, len(parts) > 1)
    if len(parts) > 1:
        text += "," + _MERGED.format(walks=_union(parts, ORDER), place="", condition="")
    return Statement(f"WITH {text}{_LEASE}", binds, is_prepared, most + DEAD_ROWS)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one route adds to the statement, under a name; `first` is the number of its first bind, its queue or its
    lane."""

    name: str
    number: int
    first: int
    lane: LaneId | None
    fragment: Fragment


def _parts(routes: tuple[Route, ...], most: int) -> Iterator[_Part]:
    bound = _FIXED_BINDS
    for number, route in enumerate(routes):
        name = "picked" if len(routes) == 1 else f"walk_{number}"
        if route.lane is not None:
            fragment = Fragment(_LANE.format(name=name, number=number, lane=bound + 1, most=most), (route.lane,))
        else:
            condition = WRITER.render(route.predicate, bound + 1)
            text = _WALK.format(name=name, queue=bound + 1, condition=condition.text, most=most)
            fragment = Fragment(text, (route.queue, *condition.binds))
        yield _Part(name, number, bound + 1, route.lane, fragment)
        bound += len(fragment.binds)


def _with_lanes(parts: Sequence[_Part], lanes: Sequence[_Part], bound: int, most: int) -> str:
    """The claim when there are lanes among its parts."""
    standing = _STANDING.format(lanes=", ".join(f"${part.first}::bigint" for part in lanes), count=len(lanes))
    texts = [standing, *(part.fragment.text for part in parts)]
    tables = [f"met_{part.number}" for part in lanes]
    if len(parts) > 1:
        may_lease = _MAY_LEASE.format(
            is_last=_FIXED_BINDS + bound + 1,
            met=" UNION ALL ".join(f"SELECT * FROM {table}" for table in tables),
            most=most,
        )
        walks = " UNION ALL ".join(
            f"SELECT {ORDER}, {'NULL::tid AS place' if part.lane is None else 'place'} FROM {part.name}"
            for part in parts
        )
        texts.append(_MERGED.format(walks=walks, place=", place", condition=may_lease))
    met = ", ".join(f"ARRAY[{', '.join(f'{table}.{each}' for table in tables)}]" for each in ("found", "met"))
    return f"WITH {','.join(texts)}{_LEASE_BY_LANE.format(met=met, tables=' CROSS JOIN '.join(tables))}"


def _union(parts: Sequence[_Part], columns: str) -> str:
    return " UNION ALL ".join(f"SELECT {columns} FROM {part.name}" for part in parts)
