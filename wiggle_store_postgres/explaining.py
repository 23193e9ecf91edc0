"""How a claim is carried out: the claim itself, run and rolled back, as PostgreSQL tells of it (N5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from wiggle_core.stores.store import Explanation, Route
from wiggle_store_postgres.claims import statement_for
from wiggle_store_postgres.connections import Connections

_SCAN = re.compile(r"Scan .*\b(?:on|using \w+ on) (?:task|lane_task)\b.* rows=([\d.]+) loops=(\d+)\)")
_NODE = re.compile(r"^\s*(?:->|\w.*\(cost=)")
_REMOVED = re.compile(r"Rows Removed by (?:Filter|Index Recheck): ([\d.]+)")


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
