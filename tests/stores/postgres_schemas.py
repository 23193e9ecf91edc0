"""What the tests of the PostgreSQL store share: stores in schemas of their own, and plain connections beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import make_url

from wiggle_core.tasks.task import Clock
from wiggle_store_postgres import open_store
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
