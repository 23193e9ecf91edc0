"""What the tests of the PostgreSQL store share: stores in schemas of their own, and plain connections beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from wiggle_core.tasks.task import Clock
from wiggle_store_postgres import open_store
from wiggle_store_postgres.connections import Session
from wiggle_store_postgres.store import PostgresStore


def with_options(url: str, **options: str) -> str:
    """The URL with more options."""
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


def open_url(url: str, clock: Clock | None = None) -> PostgresStore:
    """A store, whose schema need not be there."""
    return open_store(make_url(url), clock=clock)


def connect_plainly(url: str) -> psycopg.Connection[Any]:  # Any: rows of whatever is asked
    """Another program's connection to the database, in autocommit."""
    plain = make_url(url).set(query={})
    return psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)


@contextmanager
def fresh_schema(url: str) -> Iterator[str]:
    """A URL that names a schema which is not there yet, and is dropped at the end."""
    schema = f"test_{uuid4().hex[:12]}"
    yield with_options(url, schema=schema)
    with connect_plainly(url) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@contextmanager
def fresh_role(url: str, name: str, *settings: str) -> Iterator[str]:
    """The URL of a role of its own, which may do what the first one may, with settings of its own."""
    quoted = '"' + name.replace('"', '""') + '"'
    with connect_plainly(url) as connection:
        owner = connection.info.user
        connection.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD 'secret'".encode())
        connection.execute(f"GRANT {owner} TO {quoted}".encode())
        for setting in settings:
            connection.execute(f"ALTER ROLE {quoted} SET {setting}".encode())
        try:
            yield make_url(url).set(username=name, password="secret").render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP OWNED BY {quoted}".encode())
            connection.execute(f"DROP ROLE {quoted}".encode())


@contextmanager
def fresh_database(url: str, name: str, options: str) -> Iterator[str]:
    """The URL of a database of its own."""
    with connect_plainly(url) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}".encode())
        try:
            yield make_url(url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Sequence[object]]]]:
    """The statements that stores send meanwhile, with what they bind."""
    sent: list[tuple[str, Sequence[object]]] = []
    with monkeypatch.context() as patch:
        for name in ("rows", "run"):
            patch.setattr(Session, name, _noting(getattr(Session, name), sent))
        yield sent


def _noting(method: Callable[..., Any], sent: list[tuple[str, Sequence[object]]]) -> Callable[..., Any]:
    # Any: whatever the method takes besides, and says
    def send(session: Session, statement: str, binds: Sequence[object] = (), **options: Any) -> Any:
        sent.append((statement, binds))
        return method(session, statement, binds, **options)

    return send
