"""The database's time in statements (L1), as an expression.

A statement reads its clock once, when it begins: UTC_TIMESTAMP is the same in all of it.
"""

from __future__ import annotations

# UNIX_TIMESTAMP ends in 2038 on MariaDB. Sessions are in UTC, on which this does not hang.
EPOCH_MICROS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


def moment(injected: int | None) -> str:
    """The time of a statement: the injected one, else the database's. A number cannot be anything else in a text, so
    that it needs no bind."""
    return EPOCH_MICROS if injected is None else f"{injected:d}"
