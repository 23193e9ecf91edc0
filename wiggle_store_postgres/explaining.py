"""How a claim is carried out: the claim itself, run and rolled back, as PostgreSQL tells of it (N5), and how far it has
to go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from wiggle_core.stores.lanes import Head
from wiggle_core.stores.store import Explanation, Route
from wiggle_store_postgres.claims import BEHIND_HEAD, IS_READY, ORDER, statement_for
from wiggle_store_postgres.connections import Connections

_SCAN = re.compile(r"Scan .*\b(?:on|using \w+ on) (?:task|lane_task)\b.* rows=([\d.]+) loops=(\d+)\)")
_NODE = re.compile(r"^\s*(?:->|\w.*\(cost=)")
_REMOVED = re.compile(r"Rows Removed by (?:Filter|Index Recheck): ([\d.]+)")

# The first READY tasks, so that a few that nobody claims do not hide what comes behind them.
_FIRST = 10
_EXPLAIN_PAGES = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"
_WALKED = f"""
    (SELECT count(*) FROM (
        SELECT FROM $schema.task WHERE queue = $1 AND state = 'READY'{{behind}} ORDER BY {ORDER} LIMIT {_FIRST}
    ) AS walked)"""
_READ_HEAD = f"""
    (SELECT count(*) FROM (
        SELECT FROM $schema.lane_task AS head CROSS JOIN LATERAL (
            SELECT FROM $schema.task AS task
            WHERE task.id = head.id AND task.ready_no = head.ready_no AND {IS_READY} LIMIT 1
        ) AS ready
        WHERE head.lane = $4::bigint ORDER BY {", ".join(f"head.{column}" for column in ORDER.split(", "))}
        LIMIT {_FIRST}
    ) AS head)"""


def passed(connections: Connections, queue: str, head: Head | None) -> int:
    """How many pages a walk reads before it finds the first READY tasks, one allowed for each of these."""
    binds: list[object] = [queue]
    read = [_WALKED.format(behind="" if head is None else BEHIND_HEAD.format(2, 3))]
    if head is not None:
        read.append(_READ_HEAD)
        binds += head.priority, head.created_at, head.lane
    with connections.reading() as session:
        ((told,),) = session.rows(f"{_EXPLAIN_PAGES} SELECT {', '.join(read)}", binds)
    pages: int = told[0]["Plan"]["Shared Hit Blocks"] + told[0]["Plan"]["Shared Read Blocks"]
    return max(0, pages - _FIRST)


def explain(connections: Connections, now: int | None, route: Route, limit: int) -> Explanation:
    """The statement of a claim by this route, and what PostgreSQL did for it. Nothing stays claimed."""
    statement = statement_for((route,), limit)
    binds = ("", "", now, 0, limit, *statement.binds)
    with connections.rolled_back() as session:
        lines = [line for (line,) in session.rows(f"EXPLAIN (ANALYZE, BUFFERS) {statement.text}", binds)]
    return Explanation(statement.text, binds, tuple(lines), round(sum(_rows_read(lines))))


def _rows_read(lines: Sequence[str]) -> Iterator[float]:
    """The rows that each scan of tasks and of lanes read, those included that a test then left out. PostgreSQL tells
    both as an average of the loops."""
    loops = 0.0
    for line in lines:
        if _NODE.search(line):
            scan = _SCAN.search(line)
            loops = float(scan[2]) if scan else 0.0
            if scan:
                yield float(scan[1]) * loops
        elif removed := _REMOVED.search(line):
            yield float(removed[1]) * loops
