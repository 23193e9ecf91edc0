"""The epoch of lanes in statements that make tasks READY (N3): held, and asked, in the statement's own round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wiggle_core.errors import StaleLanes
from wiggle_core.stores.lanes import LaneId
from wiggle_store_postgres.connections import Row


def held_epoch(placeholder: str) -> str:
    """The part `epoch` of a statement: its `ready_no` is for the tasks that become READY, NULL when their placing is
    stale. What is bound is the epoch that they were placed by, None when none becomes READY.

    All that the statement writes must depend on it, and its answer must have a row whatever it says.
    """
    return f"""epoch AS MATERIALIZED (
        SELECT CASE WHEN {placeholder}::bigint IS NULL THEN 0 ELSE $schema.hold_epoch({placeholder}::bigint) END
            AS ready_no
    )"""


EPOCH_LOCK = "hashtextextended('wiggle lanes $schema', {})"
"""The key of the lock on an epoch, as the function `hold_epoch` has it."""


def require_held(rows: Iterable[Row]) -> None:
    """Raise StaleLanes if the first column of an answer, `ready_no`, says so."""
    if any(row[0] is None for row in rows):
        raise StaleLanes


def lane_array(lanes: Sequence[LaneId]) -> str | None:
    """Lanes as PostgreSQL writes an array of bigint; None for no lane."""
    return f"{{{','.join(map(str, lanes))}}}" if lanes else None
