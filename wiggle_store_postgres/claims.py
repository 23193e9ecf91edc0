"""Claims: one statement, one round trip. Each route locks its first free tasks, then the first of all are leased.

`FOR UPDATE SKIP LOCKED` stands in a MATERIALIZED part, so that no plan can run it again and lock more than the limit
(PG1). A row that changed between snapshot and lock is tested again by PostgreSQL, predicate and all; a batch may thus
be short of what is there (PG2). What a route locked beyond the limit is free again when the statement ends (O2).

A route with a lane reads the lane's first rows instead, and locks the task of each. The statement sees one snapshot, so
lane rows that were written since, for a task that came back, stay where they are when it leases that task (PG13). They
do no harm: `ready_no` is tested with the lock held, and no row that has died can live again. The other way round, a row
whose task was not READY by that number in the snapshot will never be live again, and may be deleted.

A route with a head reads what comes before the bound from the head's lane, tests the predicate on each task that it
locks, and walks from the bound only for what is wanted still: index entries before it, of tasks that are gone, are not
visited (PG4). How many rows it reads is not limited, as it is not for a walk.

Claims are prepared (PG6): parsing and planning one cost the server twice what carrying it out does. PostgreSQL keeps
one plan for all values once that looks no dearer than plans for given values did. It cannot be another plan, since our
settings leave no choice, but it would look dear if it had to read a tenth of the queue, as is assumed of a limit that
is not known. So a limit stands in the text: the next power of two, lest each limit has a statement of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from time import monotonic

from wiggle_core.errors import StaleLanes, StoreError
from wiggle_core.stores.lanes import Head, LaneId
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
            WHERE queue = ${{queue}} AND state = 'READY'{{behind}} AND {{condition}}
            ORDER BY {ORDER} LIMIT {{most}} FOR UPDATE SKIP LOCKED
        ) AS free LIMIT {_LIMIT}::bigint{{less}}
    )"""
BEHIND_HEAD = " AND (priority, created_at) >= (${}::integer, ${}::bigint)"
"""The places in the claim order from the bound of a head on."""
_LESS = " - (SELECT count(*) FROM {head})"
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
_HEAD = f"""
    {{name}} AS MATERIALIZED (
        SELECT * FROM (
            SELECT {", ".join(f"head.{column}" for column in ORDER.split(", "))}, head.ctid AS place
            FROM $schema.lane_task AS head CROSS JOIN LATERAL (
                SELECT FROM $schema.task AS task
                WHERE task.id = head.id AND task.ready_no = head.ready_no AND {IS_READY} AND {{condition}}
                FOR UPDATE SKIP LOCKED
            ) AS locked
            WHERE head.lane = ${{lane}}::bigint AND (SELECT are_open FROM standing)
            ORDER BY head.priority, head.created_at, head.ready_at, head.id, head.ready_no LIMIT {{most}}
        ) AS free LIMIT {_LIMIT}::bigint
    )"""
_STANDING = """
    standing AS MATERIALIZED (
        SELECT count(*) = {count} AS are_open FROM $schema.lane WHERE id IN ({lanes}) AND state = 'OPEN'
    )"""
# A route without a lane has looked at the state of the others' lanes, too; and what comes behind a lane's rows may be
# before its tasks (O1).
_ARE_OPEN = """
        WHERE (SELECT are_open FROM standing)"""
_NONE_IS_CUT = f""" AND (${{is_last}}::boolean OR {{most}} + {DEAD_ROWS} > ALL (
            SELECT met FROM ({{met}}) AS met WHERE found < {_LIMIT}::bigint
        ))"""
_LEASE_BY_LANE = f""",
    leased AS ({_LEASE}),
    gone AS (
        DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(SELECT place FROM picked WHERE place IS NOT NULL))
    )
    SELECT standing.are_open, {{met}}, leased.* FROM standing{{tables}} LEFT JOIN leased ON true
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

    With `names_lanes`, three columns more come first: whether all lanes are OPEN, those of heads too, and, an array
    each, how many tasks were found by each of `lanes` and how many of its rows were met. If there are such, and other
    parts as well, one bind more tells whether this is the last try.
    """

    text: str
    binds: tuple[object, ...]
    is_prepared: bool
    longest: int
    """How many rows of a lane are met at most; with so many, there may be more."""
    names_lanes: bool = False
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
        if statement.names_lanes:
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
    parts = _parts(routes, most)
    text = ",".join(part.fragment.text for part in parts)
    binds = tuple(bind for part in parts for bind in part.fragment.binds)
    is_prepared = not any(isinstance(bind, list) and len(bind) >= _HASHED for bind in binds)
    if any(part.lane is not None for part in parts):
        lanes = tuple(part.lane for part in parts if part.lane is not None and part.is_whole)
        text = _with_lanes(parts, len(binds), most)
        takes_last = bool(lanes) and len(parts) > 1
        return Statement(text, binds, is_prepared, most + DEAD_ROWS, True, lanes, takes_last)
    if len(parts) > 1:
        text += "," + _MERGED.format(walks=_union(parts, ORDER), place="", condition="")
    return Statement(f"WITH {text}{_LEASE}", binds, is_prepared, most + DEAD_ROWS)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a route adds to the statement, under a name; `first` is the number of its first bind, its queue or its lane.

    A route with a head adds two, of which the first reads the head's lane: not the whole of it matches.
    """

    name: str
    number: int
    first: int
    lane: LaneId | None
    fragment: Fragment
    is_whole: bool = True


def _parts(routes: tuple[Route, ...], most: int) -> list[_Part]:
    parts: list[_Part] = []
    is_only = len(routes) == 1 and routes[0].head is None
    for number, route in enumerate(routes):
        first = _FIXED_BINDS + sum(len(part.fragment.binds) for part in parts) + 1
        name = "picked" if is_only else f"walk_{number}"
        if route.lane is not None:
            fragment = Fragment(_LANE.format(name=name, number=number, lane=first, most=most), (route.lane,))
            parts.append(_Part(name, number, first, route.lane, fragment))
        elif route.head is not None:
            parts += _with_head(number, first, route, route.head, most)
        else:
            condition = WRITER.render(route.predicate, first)
            text = _WALK.format(name=name, queue=first, behind="", condition=condition.text, most=most, less="")
            parts.append(_Part(name, number, first, None, Fragment(text, (route.queue, *condition.binds))))
    return parts


def _with_head(number: int, first: int, route: Route, head: Head, most: int) -> tuple[_Part, _Part]:
    """What comes before the bound, and what of the rest is wanted still. Both use the binds of one predicate."""
    condition = WRITER.render(route.predicate, first)
    lane_binds = (head.lane, *condition.binds)
    before = _HEAD.format(name=f"head_{number}", lane=first, condition=condition.text, most=most)
    queue = first + len(lane_binds)
    walk = _WALK.format(
        name=f"walk_{number}",
        queue=queue,
        behind=BEHIND_HEAD.format(queue + 1, queue + 2),
        condition=condition.text,
        most=most,
        less=_LESS.format(head=f"head_{number}"),
    )
    return (
        _Part(f"head_{number}", number, first, head.lane, Fragment(before, lane_binds), is_whole=False),
        _Part(f"walk_{number}", number, queue, None, Fragment(walk, (route.queue, head.priority, head.created_at))),
    )


def _with_lanes(parts: Sequence[_Part], bound: int, most: int) -> str:
    """The claim when there are lanes among its parts."""
    lanes = [part for part in parts if part.lane is not None]
    standing = _STANDING.format(lanes=", ".join(f"${part.first}::bigint" for part in lanes), count=len(lanes))
    texts = [standing, *(part.fragment.text for part in parts)]
    tables = [f"met_{part.number}" for part in lanes if part.is_whole]
    if len(parts) > 1:
        condition = _ARE_OPEN
        if tables:
            met = " UNION ALL ".join(f"SELECT * FROM {table}" for table in tables)
            condition += _NONE_IS_CUT.format(is_last=_FIXED_BINDS + bound + 1, met=met, most=most)
        walks = " UNION ALL ".join(
            f"SELECT {ORDER}, {'NULL::tid AS place' if part.lane is None else 'place'} FROM {part.name}"
            for part in parts
        )
        texts.append(_MERGED.format(walks=walks, place=", place", condition=condition))
    met = ", ".join(f"ARRAY[{', '.join(f'{table}.{each}' for table in tables)}]::bigint[]" for each in ("found", "met"))
    joined = "".join(f" CROSS JOIN {table}" for table in tables)
    return f"WITH {','.join(texts)}{_LEASE_BY_LANE.format(met=met, tables=joined)}"


def _union(parts: Sequence[_Part], columns: str) -> str:
    return " UNION ALL ".join(f"SELECT {columns} FROM {part.name}" for part in parts)
