"""Connections to PostgreSQL: pooled, in autocommit. Claims, changes and enqueues are prepared where the session is
ours, since no value can change their plans; everything else is sent unprepared, and planned for its values (PG6, PG16).

A single statement is its own transaction, which saves the round trips of BEGIN and COMMIT; what needs more statements
asks for a transaction. Statements name the schema as `$schema`: a search path would not survive a pooler.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeAlias, cast

import psycopg
from psycopg import RawCursor
from psycopg.pq import ConnStatus, TransactionStatus

from wiggle_core.stores.sql.pool import ProcessPool
from wiggle_store_postgres.errors import DRIVER_ERRORS, translate, translate_refusal
from wiggle_store_postgres.place import PLANNER, Place

Row: TypeAlias = tuple[Any, ...]  # Any: the driver's types are those of the columns
Connection: TypeAlias = psycopg.Connection[Row]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
PREPARE_FROM = 5
"""Which execution in a session prepares a statement. That one takes a round trip more."""
PREPARED = 40
"""How many statements a session keeps, the last ones used: each takes the server 0.1 MB, one with a lane 0.3 MB."""


class Session:
    """A connection that is lent out, and the ways to send it statements.

    Behind a pooler each statement brings its settings along: BEGIN, settings, statement and COMMIT go out together and
    are answered together, so that this is one round trip still (PG7).
    """

    def __init__(self, connection: Connection, place: Place) -> None:
        self.connection = connection
        self._place = place
        self._cursor = RawCursor(connection)
        self._is_alone = place.is_pooled

    def rows(self, statement: str, binds: Sequence[object] = (), *, prepare: bool = False) -> list[Row]:
        """Run a statement that answers with rows. With `prepare`, one that comes often is kept by the server,
        where the session is ours."""
        return self._executed(statement, binds, prepare=prepare).fetchall()

    def run(self, statement: str, binds: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it touched."""
        return self._executed(statement, binds).rowcount

    def begin(self) -> None:
        """Begin a transaction. READ COMMITTED, so that each statement sees what was committed while it waited."""
        self._is_alone = False
        self.run(BEGIN)
        if self._place.is_pooled:
            self.rows(*_local_settings(self._place))

    def _executed(self, statement: str, binds: Sequence[object], *, prepare: bool = False) -> RawCursor[Row]:
        text = in_schema(statement, self._place.quoted_schema)
        if not self._is_alone:
            return self._cursor.execute(text, binds, prepare=None if prepare else False)
        setting, values = _local_settings(self._place)
        with self.connection.pipeline():
            RawCursor(self.connection).execute(BEGIN)
            RawCursor(self.connection).execute(setting.encode(), values)
            self._cursor.execute(text, binds)
            RawCursor(self.connection).execute("COMMIT")
        return self._cursor

    def copy(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Stream rows into a COPY statement."""
        with self._cursor.copy(in_schema(statement, self._place.quoted_schema)) as stream:
            for row in rows:
                stream.write_row(row)


def _local_settings(place: Place) -> tuple[str, list[str]]:
    """The statement that makes our settings for the rest of a transaction, and what it binds."""
    names = [f"set_config('{name}', ${number}, true)" for number, name in enumerate(place.settings, 1)]
    return f"SELECT {', '.join(names)}", list(place.settings.values())


@lru_cache(maxsize=1024)
def in_schema(statement: str, quoted_schema: str) -> bytes:
    """The statement with its schema filled in, ready to be sent."""
    return statement.replace("$schema", quoted_schema).encode()


class Connections:
    """Gives out sessions; every driver error leaves as a StoreError."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pool: ProcessPool[Connection] = ProcessPool(
            place, self._open, _is_alive, size=place.pool_size, timeout=place.pool_timeout
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """For statements that change nothing, each with a snapshot of its own."""
        with self._session(may_have_applied=False) as session:
            yield session

    @contextmanager
    def changing(self) -> Iterator[Session]:
        """For one statement that changes something and commits by itself."""
        with self._session(may_have_applied=True) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """For several statements: committed at the end, rolled back on any exception."""
        with self._session(may_have_applied=False) as session:
            session.begin()
            yield session
            try:
                session.run("COMMIT")
            except DRIVER_ERRORS as error:
                raise translate(error, self.place, may_have_applied=True) from error

    @contextmanager
    def rolled_back(self) -> Iterator[Session]:
        """For statements that are to change nothing in the end."""
        with self._session(may_have_applied=False) as session:
            session.begin()
            yield session

    def close(self) -> None:
        """Close all connections. In a forked child nothing is closed: they are the parent's."""
        self._pool.close()

    @contextmanager
    def _session(self, *, may_have_applied: bool) -> Iterator[Session]:
        pooled = self._pool.lend()
        connection = cast("Connection", pooled.driver_connection)
        session = Session(connection, self.place)
        try:
            yield session
        except DRIVER_ERRORS as error:
            raise translate(error, self.place, may_have_applied=may_have_applied) from error
        finally:
            _roll_back(session)
            is_clean = connection.info.transaction_status == TransactionStatus.IDLE
            self._pool.take_back(pooled, is_clean=is_clean)

    def _open(self) -> Connection:
        connection = connect(self.place)
        if not self.place.is_pooled and _holds_settings(connection, self.place):
            connection.prepare_threshold = PREPARE_FROM - 1
            connection.prepared_max = PREPARED
        return connection


def connect(place: Place) -> Connection:
    """A connection of its own, in autocommit. Raises StoreError."""
    try:
        return psycopg.connect(autocommit=True, prepare_threshold=None, **_arguments(place))
    except psycopg.Error as error:
        raise translate_refusal(error, place) from error


def _holds_settings(connection: Connection, place: Place) -> bool:
    """Whether the session plans by our settings. A pooler that nobody told us of drops them, and may give what follows
    a prepared statement to another session; other options in the URL may have replaced them."""
    names = ", ".join(f"current_setting('{name}')" for name in PLANNER)
    try:
        row = connection.execute(f"SELECT {names}".encode(), prepare=False).fetchone()
    except psycopg.Error as error:
        connection.close()
        raise translate(error, place) from error
    return row == tuple(PLANNER.values())


def _arguments(place: Place) -> dict[str, Any]:  # Any: psycopg types its keyword arguments so
    return dict(place.connection_parameters())


def _is_alive(connection: Connection) -> bool:
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    try:
        while poll.poll(0):  # a farewell comes first, and only behind it the end
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return connection.pgconn.status == ConnStatus.OK


def _roll_back(session: Session) -> None:
    """Undo what was begun and not committed; where that fails, the connection is thrown away and the server does it."""
    if session.connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            session.connection.execute("ROLLBACK", prepare=False)
