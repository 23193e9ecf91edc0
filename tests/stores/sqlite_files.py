"""What the tests of the SQLite store share: stores in files, and the statements that they send."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite import open_store
from wiggle_store_sqlite.store import SqliteStore


def open_file(path: Path, options: str = "", clock: Clock | None = None) -> SqliteStore:
    """A store on the file, which need not be there."""
    return open_store(make_url(f"sqlite:///{path}{options}"), clock=clock)


def connect_plainly(path: Path) -> sqlite3.Connection:
    """Another program's connection to the file, in autocommit."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


@contextmanager
def recorded(store: SqliteStore) -> Iterator[list[str]]:
    """The statements that the store sends meanwhile, values filled in. For one thread, which has one connection."""
    statements: list[str] = []
    with store._connections.reading() as connection:
        connection.set_trace_callback(statements.append)
    yield statements
    with store._connections.reading() as connection:
        connection.set_trace_callback(None)
