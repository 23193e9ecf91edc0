"""What the tests of the SQLite store share: stores in files, and the statements that they send."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from wiggle_core.errors import StoreError
from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import Clock, State, TaskRecord
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


def ready(task_id: str, payload: str = "null") -> TaskRecord:
    """A READY task on the queue `q`."""
    return TaskRecord(task_id, "q", "s", 1, 1, payload=payload)


def ready_ids(store: SqliteStore) -> list[str]:
    """The READY tasks of the queue `q`, in claim order."""
    return [task.id for task in store.find(Route("q"), [State.READY], 1000)]


def require_plain_words(error: StoreError, path: Path) -> None:
    """The message names the file and shows no SQL."""
    assert str(path) in str(error)
    assert not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE|json_each)\b", str(error))
