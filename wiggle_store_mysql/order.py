"""The claim order (O1) in SQL, and what lies behind a place in it."""

from __future__ import annotations

from collections.abc import Sequence

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


def matching(columns: str, rows: Sequence[Sequence[object]]) -> tuple[str, list[object]]:
    """The condition for exactly these rows, and what it binds. A list of rows behind IN is no range to MariaDB."""
    test = f"({' AND '.join(f'{name} = %s' for name in columns.split(', '))})"
    return f"({' OR '.join([test] * len(rows))})", [value for row in rows for value in row]
