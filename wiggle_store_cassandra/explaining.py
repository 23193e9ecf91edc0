"""How a claim is carried out (N5): what it asks, and what the nodes tell of having read, by a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wiggle_core.stores.store import Explanation, Route
from wiggle_store_cassandra.claims import Claiming
from wiggle_store_cassandra.place import in_place
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.shards import Shards

_TOMBSTONES = re.compile(r"Read \d+ live rows and (\d+) tombstone")


def explain(shards: Shards, claiming: Claiming, now: int, route: Route, limit: int) -> Explanation:
    """What a claim by this route would read, and how many rows and tombstones the nodes met; nothing is leased."""
    with shards.connections.tracing() as told:
        found = claiming.candidates(now, route, limit)
    asked: Sequence[Statement] = told.statements
    tombstones = sum(int(number) for line in told.events for number in _TOMBSTONES.findall(line))
    sql = "\n".join(dict.fromkeys(" ".join(in_place(cql, shards.connections.place).split()) for cql, _ in asked))
    way = f"lane {route.lane}" if route.lane is not None else "walk"
    plan = [
        f"{way}: {len(asked)} questions to {shards.count} shards side by side, {found} candidates",
        f"the predicate is tested by the core's evaluator on what was read: {told.rows} rows, {tombstones} tombstones",
    ]
    return Explanation(sql, tuple(asked[0][1]) if asked else (), tuple(plan), told.rows)
