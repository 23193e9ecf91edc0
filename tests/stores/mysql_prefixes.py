"""What the tests of the MySQL and MariaDB store share: stores in tables of their own, and plain connections beside
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import make_url

from tests.stores.postgres_schemas import with_options
from wiggle_core.conformance.lanes_openers import HoldEpoch
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import Clock
from wiggle_store_mysql import open_store
from wiggle_store_mysql.connections import Answer, Session, Statement
from wiggle_store_mysql.epochs import hold, require_held
from wiggle_store_mysql.place import read_url
from wiggle_store_mysql.schema import drop
from wiggle_store_mysql.store import MySQLStore


def open_url(url: str, clock: Clock | None = None) -> MySQLStore:
    """A store, whose tables need not be there."""
    return open_store(make_url(url), clock=clock)


def connect_plainly(url: str, **arguments: Any) -> pymysql.Connection[Any]:  # Any: the driver's arguments and rows
    """Another program's connection to the database, in autocommit."""
    place = make_url(url)
    return pymysql.connect(
        host=place.host or "127.0.0.1",
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.database,
        charset="utf8mb4",
        **({"autocommit": True, "client_flag": CLIENT.MULTI_STATEMENTS} | arguments),
    )


def asked(connection: pymysql.Connection[Any], statement: str, *binds: object) -> list[tuple[Any, ...]]:
    """The rows that a statement answers with."""
    with connection.cursor() as cursor:
        cursor.execute(statement, binds or None)
        return list(cursor.fetchall())


@contextmanager
def fresh_place(url: str) -> Iterator[str]:
    """A URL with a prefix of which there are no tables yet; they are dropped at the end."""
    fresh = with_options(url, prefix=f"test_{uuid4().hex[:12]}_")
    yield fresh
    drop(read_url(make_url(fresh)))


@contextmanager
def migrated(url: str, clock: Clock | None = None) -> Iterator[MySQLStore]:
    """A store with tables, closed at the end."""
    with closing(open_url(url, clock)) as store:
        store.migrate()
        yield store


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Statement]]]:
    """What stores send meanwhile: the statements of each round trip, with what they bind."""
    sent: list[list[Statement]] = []
    send = Session._sent

    def note(session: Session, statements: Sequence[Statement]) -> list[Answer]:
        sent.append(list(statements))
        return send(session, statements)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_sent", note)
        yield sent


@contextmanager
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of the errors that sessions of stores get meanwhile, whatever becomes of them: the victim of a
    deadlock is always told, by 1213."""
    numbers: list[int] = []
    send = Session._sent

    def note(session: Session, statements: Sequence[Statement]) -> list[Answer]:
        try:
            return send(session, statements)
        except pymysql.MySQLError as error:
            numbers.append(error.args[0])
            raise

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_sent", note)
        yield numbers


def rows_read(store: MySQLStore, action: Callable[[], object]) -> int:
    """How many rows, of tables and indexes, the server looked at for what the store does by its one connection."""
    with store._connections.reading() as session:
        session.run("FLUSH STATUS")
    action()
    with store._connections.reading() as session:
        return sum(int(value) for _, value in session.rows("SHOW SESSION STATUS LIKE 'Handler\\_read\\_%%'"))


@contextmanager
def plain(url: str) -> Iterator[pymysql.Connection[Any]]:
    """`connect_plainly`, closed at the end."""
    with closing(connect_plainly(url)) as connection:
        yield connection


def epoch_holder() -> HoldEpoch:
    """N3: a transaction that has placed its tasks, and goes on no further for a while."""

    @contextmanager
    def held(store: Store) -> Iterator[None]:
        assert isinstance(store, MySQLStore)
        epoch = store.lanes.read(0).epoch
        with store._connections.transaction() as session:
            require_held(session.batch([hold(session.server.product, epoch)])[0], epoch)
            yield

    return held
