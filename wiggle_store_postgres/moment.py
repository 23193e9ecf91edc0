"""The database's time in statements (L1), as an expression."""

from __future__ import annotations

EPOCH_MICROS = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def moment(placeholder: str) -> str:
    """The time of a statement, the same in all of it: the injected one that is bound there, else the database's."""
    return f"(SELECT coalesce({placeholder}::bigint, {EPOCH_MICROS}))"
