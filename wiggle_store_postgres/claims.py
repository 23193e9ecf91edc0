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
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from wiggle_core.errors import StaleLanes
from wiggle_core.stores.sql.rows import read_row
from wiggle_core.stores.sql.writer import Fragment
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_postgres.connections import Connections, Row, Session
from wiggle_store_postgres.dialect import WRITER
from wiggle_store_postgres.moment import moment
from wiggle_store_postgres.rows import TASK_COLUMNS

ORDER = "priority, created_at, ready_at, id"

DEAD_ROWS = 1_000
"""How many dead lane rows one statement passes by and deletes, so that none reads much more than it claims (N4)."""
TRIES = 20
"""How many such statements a claim sends before it is content with less than there may be."""

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
    picked AS MATERIALIZED (SELECT id FROM ({{walks}}) AS walk{{condition}} ORDER BY {ORDER} LIMIT {_LIMIT}::bigint)"""
# The ids come as an array, since a join is a choice: with statistics from emptier days a planner without our settings
# was seen to merge the candidates with the whole table.
_LEASE = f"""
    UPDATE $schema.task AS task
    SET state = 'RUNNING', owner = {_OWNER}, token = {_TOKEN}, lease_until = {moment(_NOW)} + {_TTL}::bigint,
        reserved_at = NULL
    WHERE task.id = ANY (ARRAY(SELECT id FROM picked)) AND {IS_READY}
    RETURNING {TASK_COLUMNS}
"""

# Rows are drawn from `head` one by one, as far as they are needed, and are kept: to look at them again reads nothing.
# LATERAL, and a lock inside, leave the planner no other way to join.
_HEAD = f"""
    head_{{number}} AS MATERIALIZED (
        SELECT ctid AS place, {ORDER}, ready_no, row_number() OVER (ORDER BY {ORDER}, ready_no) AS number
        FROM $schema.lane_task WHERE lane = ${{lane}}::bigint
        ORDER BY {ORDER}, ready_no LIMIT {{most}} + {DEAD_ROWS}
    ),
    walk_{{number}} AS MATERIALIZED (
        SELECT * FROM (
            SELECT {", ".join(f"head.{column}" for column in ORDER.split(", "))}, head.place, head.number
            FROM head_{{number}} AS head CROSS JOIN LATERAL (
                SELECT 1 FROM $schema.task AS task
                WHERE task.id = head.id AND task.ready_no = head.ready_no AND {IS_READY}
                FOR UPDATE SKIP LOCKED
            ) AS locked
            LIMIT {{most}}
        ) AS free LIMIT {_LIMIT}::bigint
    ),
    is_short_{{number}} AS MATERIALIZED (SELECT count(*) < {_LIMIT}::bigint AS it FROM walk_{{number}}),
    met_{{number}} AS MATERIALIZED (
        SELECT place, number, id, ready_no FROM head_{{number}} LIMIT (
            SELECT CASE WHEN (SELECT it FROM is_short_{{number}}) THEN NULL ELSE max(number) END FROM walk_{{number}}
        )
    ),
    dead_{{number}} AS MATERIALIZED (
        SELECT ctid AS place FROM $schema.lane_task WHERE ctid = ANY (ARRAY(
            SELECT place FROM met_{{number}} AS met WHERE CASE
                WHEN number = ANY (ARRAY(SELECT number FROM walk_{{number}})) THEN false
                ELSE (SELECT task.ready_no FROM $schema.task AS task WHERE task.id = met.id AND {IS_READY})
                    IS DISTINCT FROM met.ready_no
            END
        )) FOR UPDATE SKIP LOCKED
    )"""
_STANDING = """
    standing AS MATERIALIZED (
        SELECT (SELECT count(*) FROM $schema.lane WHERE id IN ({lanes}) AND state = 'OPEN') = {count} AS are_open,
            {is_cut} AS is_cut
    )"""
_IS_CUT = f"""(
                (SELECT it FROM is_short_{{number}})
                AND (SELECT count(*) FROM met_{{number}}) = {{most}} + {DEAD_ROWS}
            )"""
_MAY_LEASE = " WHERE (SELECT are_open AND (${is_last}::boolean OR NOT is_cut) FROM standing)"
_LEASE_BY_LANE = f""",
    leased AS ({_LEASE}),
    gone AS (
        DELETE FROM $schema.lane_task WHERE ctid = ANY (ARRAY(
            SELECT place FROM ({{walks}}) AS walk WHERE id = ANY (ARRAY(SELECT id FROM picked)){{dead}}
        ))
    )
    SELECT standing.are_open, standing.is_cut, leased.* FROM standing LEFT JOIN leased ON true
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """The claim over some routes, and what they bind behind the fixed binds. With lanes, one bind more says whether
    this is the claim's last try, and two columns more tell whether the lanes are OPEN and whether to try again."""

    text: str
    binds: tuple[object, ...]
    has_lanes: bool
    is_prepared: bool


def claim(connections: Connections, now: int | None, request: ClaimRequest) -> list[TaskRecord]:
    """Lease the first READY tasks that match, in claim order over all routes (O1-O4). Raises StaleLanes (N3)."""
    if not request.routes or request.limit < 1:
        return []
    statement = statement_for(request.routes, request.limit)
    binds = (request.owner, request.token, now, request.ttl, request.limit, *statement.binds)
    with connections.changing() as session:
        if statement.has_lanes:
            rows = _by_lanes(session, statement, binds)
        else:
            rows = session.rows(statement.text, binds, prepare=statement.is_prepared)
    return sorted(map(read_row, rows), key=attrgetter("order_key"))


def _by_lanes(session: Session, statement: Statement, binds: tuple[object, ...]) -> list[Row]:
    """What is claimed once no lane is cut off by dead rows: then those were deleted, and nothing was leased, since what
    comes behind them may be before the tasks of other routes (O1)."""
    for number in range(TRIES):
        rows = session.rows(statement.text, (*binds, number == TRIES - 1), prepare=statement.is_prepared)
        are_open, is_cut = rows[0][:2]
        if not are_open:
            raise StaleLanes
        leased = [row[2:] for row in rows if row[2] is not None]
        if leased or not is_cut:
            return leased
    return []


def statement_for(routes: tuple[Route, ...], limit: int) -> Statement:
    """The claim over all routes of so many tasks at most."""
    return _statement(routes, 1 << (limit - 1).bit_length())


@lru_cache(maxsize=512)
def _statement(routes: tuple[Route, ...], most: int) -> Statement:
    parts = list(_parts(routes, most))
    text = ",".join(part.fragment.text for part in parts)
    binds = tuple(bind for part in parts for bind in part.fragment.binds)
    is_prepared = not any(isinstance(bind, list) and len(bind) >= _HASHED for bind in binds)
    if any(part.is_lane for part in parts):
        text = f"WITH {text}{_by_lane(parts, len(binds), most)}"
        return Statement(text, binds, has_lanes=True, is_prepared=is_prepared)
    if len(parts) > 1:
        text += "," + _MERGED.format(walks=_union(parts, ORDER), condition="")
    return Statement(f"WITH {text}{_LEASE}", binds, has_lanes=False, is_prepared=is_prepared)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one route adds to the statement; `first` is the number of its first bind, its queue or its lane."""

    number: int
    first: int
    is_lane: bool
    fragment: Fragment


def _parts(routes: tuple[Route, ...], most: int) -> Iterator[_Part]:
    bound = _FIXED_BINDS
    for number, route in enumerate(routes):
        if route.lane is not None:
            fragment = Fragment(_HEAD.format(number=number, lane=bound + 1, most=most), (route.lane,))
        else:
            name = "picked" if len(routes) == 1 else f"walk_{number}"
            condition = WRITER.render(route.predicate, bound + 1)
            text = _WALK.format(name=name, queue=bound + 1, condition=condition.text, most=most)
            fragment = Fragment(text, (route.queue, *condition.binds))
        yield _Part(number, bound + 1, route.lane is not None, fragment)
        bound += len(fragment.binds)


def _by_lane(parts: Sequence[_Part], bound: int, most: int) -> str:
    """What follows the parts when there are lanes among them."""
    lanes = [part for part in parts if part.is_lane]
    standing = _STANDING.format(
        lanes=", ".join(f"${part.first}::bigint" for part in lanes),
        count=len(lanes),
        is_cut=" OR ".join(_IS_CUT.format(number=part.number, most=most) for part in lanes),
    )
    may_lease = _MAY_LEASE.format(is_last=_FIXED_BINDS + bound + 1)
    dead = "".join(f" UNION ALL SELECT place FROM dead_{part.number}" for part in lanes)
    return (
        f",{standing},{_MERGED.format(walks=_union(parts, ORDER), condition=may_lease)}"
        f"{_LEASE_BY_LANE.format(walks=_union(lanes, 'place, id'), dead=dead)}"
    )


def _union(parts: Sequence[_Part], columns: str) -> str:
    return " UNION ALL ".join(f"SELECT {columns} FROM walk_{part.number}" for part in parts)
