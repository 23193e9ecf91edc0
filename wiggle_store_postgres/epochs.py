"""The epoch of lanes in statements that make tasks READY (N3): held, and asked, in the statement's own round trip.

Such a statement calls `hold_epoch` once, with the epoch that its tasks were placed by, or NULL when none becomes READY.
What it answers is their `ready_no`; NULL says that they were placed by lanes which have changed since, and then the
statement must do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiggle_core.errors import StaleLanes
from wiggle_core.stores.lanes import LaneId
from wiggle_store_postgres.connections import Session

EPOCH_LOCK = "hashtextextended('wiggle lanes $schema', {})"
"""The key of the lock on an epoch, as the function `hold_epoch` has it."""

_EPOCH = "SELECT epoch FROM $schema.lane_epoch"


def hold_epoch(placeholder: str) -> str:
    """The call. A sub-select without a FROM is evaluated once, however many rows use it."""
    return f"(SELECT $schema.hold_epoch({placeholder}::bigint))"


def require_current(session: Session, epoch: int | None) -> None:
    """Raise StaleLanes if the epoch is over. For a statement that touched no row: it may have had nothing to do, or
    may have found this. Epochs only grow, so one that is not over now was not over then."""
    if epoch is not None and session.rows(_EPOCH) != [(epoch,)]:
        raise StaleLanes


def lane_array(lanes: Sequence[LaneId]) -> str | None:
    """Lanes as PostgreSQL writes an array of bigint; None for no lane."""
    return f"{{{','.join(map(str, lanes))}}}" if lanes else None
