"""The claim order (O1) in SQL, what lies behind a place in it, and rows that are named by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from wiggle_store_mysql.place import Product

ORDER = "priority, created_at, ready_at, id"
"""The columns of the claim order."""

LANE_KEY = f"{ORDER}, ready_no"
"""The columns by which the rows of one lane are in order, and told apart."""

LANE_ROW = f"lane, {LANE_KEY}"
"""The columns of a row of a lane, in the order of its key."""


def of(table: str, columns: str) -> str:
    """The columns as those of one table."""
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


def behind(columns: str, place: Sequence[object] | None) -> tuple[str, list[object]]:
    """The condition for what comes behind a place, and what it binds; for all there is without a place.

    A comparison of rows, `(a, b) > (1, 2)`, would be no range of an index to either product, so it is taken apart into
    the ranges that it consists of.
    """
    if place is None:
        return "true", []
    names = columns.split(", ")
    ranges: list[str] = []
    binds: list[object] = []
    for length in range(len(names), 0, -1):
        tests = [f"{name} = %s" for name in names[: length - 1]] + [f"{names[length - 1]} > %s"]
        ranges.append(f"({' AND '.join(tests)})")
        binds += place[:length]
    return f"({' OR '.join(ranges)})", binds


_TYPES = {"id": "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE $collation", "priority": "INT"}


def keys(columns: str) -> str:
    """The table `given` of keys that are bound as `key_list` has them."""
    types = (f"{name} {_TYPES.get(name, 'BIGINT')}" for name in columns.split(", "))
    return (
        "JSON_TABLE(%s, '$[*]' COLUMNS ("
        + ", ".join(f"{each} PATH '$[{place}]'" for place, each in enumerate(types))
        + ")) AS given"
    )


def named(table: str, columns: str) -> str:
    """The tables of a statement about the rows of `$table`, as `present`, whose keys are given.

    No other row is read, let alone locked. For a list behind IN both products may read the whole of a small table, with
    locks, and no hint keeps them from it: MariaDB was seen to do so for 20 of 100 rows, MySQL for 50, and settlements
    to deadlock then. To delete one by one took twice as long (100 rows: 18 and 8 ms on MySQL, 5 and 4 on MariaDB).
    """
    same = " AND ".join(f"present.{name} = given.{name}" for name in columns.split(", "))
    return f"{keys(columns)} STRAIGHT_JOIN ${table} AS present FORCE INDEX (PRIMARY) ON {same}"


def lock_of(product: Product, table: str) -> str:
    """The clause that locks the rows of one table of a SELECT. MySQL locks none of JSON_TABLE, and wants to be told;
    MariaDB knows no other form than that which locks what can be locked."""
    return f"FOR UPDATE OF {table}" if product is Product.MYSQL else "FOR UPDATE"


def key_list(rows: Iterable[tuple[Any, ...]]) -> str:  # Any: what can be compared, column by column
    """Keys as they are bound, in order (L7)."""
    return json.dumps(sorted(rows), ensure_ascii=False)


def id_list(ids: Iterable[object]) -> str:
    """Likewise, where the key is one column."""
    return key_list((each,) for each in ids)
