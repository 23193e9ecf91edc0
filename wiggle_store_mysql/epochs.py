"""The epoch of lanes in transactions that make tasks READY (N3): held by a shared lock on a row of its own, which is
tried and never waited for.

`$lane_epoch` has a row for the present epoch, and one for each before it that somebody may still hold. Its rows are
read with locks in the order of their numbers. Whoever gets the lock on the row of its epoch, and then meets no row
behind it, holds the present one: an opener that adds the next row from then on finds the lock, and waits for its end.
A row that is locked, by an opener who adds it or who looks whether it is still held, is passed by.
"""

from __future__ import annotations

from wiggle_core.errors import StaleLanes
from wiggle_store_mysql.connections import Answer, Statement
from wiggle_store_mysql.place import Product

# In the order of the numbers, so that the lock comes before the look at what is behind it. A read without a lock would
# be of a snapshot from before it (MY13), and MariaDB has no FOR SHARE.
_HOLD = "SELECT epoch FROM $lane_epoch WHERE epoch >= %s ORDER BY epoch LIMIT 2 {lock} SKIP LOCKED"
_HOLD_ANY = "SELECT epoch FROM $lane_epoch ORDER BY epoch DESC LIMIT 1 {lock} SKIP LOCKED"
_SHARED = {Product.MYSQL: "FOR SHARE", Product.MARIADB: "LOCK IN SHARE MODE"}


def hold(product: Product, epoch: int) -> Statement:
    """The statement that holds an epoch until its transaction ends."""
    return _HOLD.format(lock=_SHARED[product]), (epoch,)


def hold_any(product: Product) -> Statement:
    """The statement that holds one of the last epochs, for work which looks at the lanes themselves behind it."""
    return _HOLD_ANY.format(lock=_SHARED[product]), ()


def require_held(answer: Answer, epoch: int) -> None:
    """Raise StaleLanes unless the statement's answer says that the epoch is held, and is the present one."""
    if answer.rows != [(epoch,)]:
        raise StaleLanes
