"""From what a caller has, a connection of SQLAlchemy's or its driver's, to the driver's connection in a transaction of
the caller's (`Enlist`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import InvalidRequestError

from wiggle_core.errors import EnlistRejected

D = TypeVar("D")


def connection_in_transaction(
    connection: object, driver: type[D], require_usable: Callable[[D], None], expected: str
) -> D:
    """The driver's connection, of the type `driver`. Raises EnlistRejected unless it is in a transaction, or begins one
    by itself, which `require_usable` decides; `expected` tells what to give instead of what is of no use."""
    if isinstance(connection, driver):
        require_usable(connection)
        return connection
    alchemys = connection if isinstance(connection, Connection) else _of_session(connection, expected)
    try:
        found = alchemys.connection.driver_connection
    except InvalidRequestError as error:
        raise EnlistRejected(f"the connection cannot be used: {type(error).__name__}") from error
    if not isinstance(found, driver):
        raise _unknown(found, expected)
    require_usable(found)
    # SQLAlchemy has to know, or its `commit` would find nothing to do. This is what its first statement does, too.
    if not alchemys.in_transaction():
        alchemys.begin()
    return found


def _of_session(session: object, expected: str) -> Connection:
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415 # 45 ms, which who has a session paid already

    if not isinstance(session, (Session, scoped_session)):
        raise _unknown(session, expected)
    try:
        return session.connection()
    except InvalidRequestError as error:
        raise EnlistRejected(
            f"the session has no connection to give ({type(error).__name__}): give `session.connection(...)` instead"
        ) from error


def _unknown(found: object, expected: str) -> EnlistRejected:
    kind = f"{type(found).__module__.partition('.')[0]}'s {type(found).__name__}"
    return EnlistRejected(f"{kind} cannot take tasks along: give {expected}")
