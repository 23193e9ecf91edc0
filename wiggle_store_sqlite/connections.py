"""Connections to one SQLite database: opened only if it is ours, pooled for readers, one at a time for writers.

SQLite has one writer. Threads of this process queue at a lock of ours; between processes there is nothing better than
to pause and try again. A write transaction always begins IMMEDIATE: a read that turns into a write fails at once,
without waiting (SQ1).
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, cast

from sqlalchemy.pool import QueuePool

from wiggle_core.errors import PermanentStoreError, SchemaError, TransientStoreError
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_store_sqlite.errors import DRIVER_ERRORS, is_busy, translate
from wiggle_store_sqlite.place import Place
from wiggle_store_sqlite.turns import Turns

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection

APPLICATION_ID = 0x77696767  # "wigg"

_POOLED = 8
_PAUSE_SECONDS, _LONG_PAUSE = 0.003, 0.02
_BRISK_SECONDS = 2.0
"""How long to wait for another process's transaction before pausing longer: by then it was stopped, or is a big one."""
_CACHED_STATEMENTS = 512
# The log is brought home by whoever commits when it has so many pages, 8,000 being 16 MB: with the usual 1,000, every
# fiftieth claim of scattered tasks paid for it, and their 99th percentile was six times that of plain claims.
_SETTINGS = """
    PRAGMA synchronous = {synchronous};
    PRAGMA cache_size = -8192;
    PRAGMA wal_autocheckpoint = 8000;
    PRAGMA journal_size_limit = 67108864;
    PRAGMA trusted_schema = OFF
"""


class Connections:
    """Gives out connections for reading and for write transactions; every driver error leaves as a StoreError."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._process = os.getpid()
        self._is_closed = False
        self._file: tuple[int, int] | None = None
        # Writers do other things between two transactions, so nobody starves at Python's own lock; in turns a busy
        # worker was a fifth slower.
        self._writers = Lock()
        # In memory the database is the connection: whoever has it has the database for himself.
        self._owners = Turns() if place.is_memory else None
        size, more = (1, 0) if place.is_memory else (_POOLED, -1)
        self._pool = QueuePool(
            lambda: cast("DBAPIConnection", self._open()),
            pool_size=size,
            max_overflow=more,
            timeout=place.timeout,
            use_lifo=True,
            reset_on_return=None,
        )

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection outside any transaction: each statement sees the latest commit."""
        self._require_use()
        with self._owned():
            pooled = self._pool.connect()
            connection = cast("sqlite3.Connection", pooled.driver_connection)
            try:
                yield connection
            except DRIVER_ERRORS as error:
                raise translate(error, str(self.place)) from error
            finally:
                if connection.in_transaction or self._is_closed:
                    pooled.invalidate()
                pooled.close()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """In memory, the database for oneself. The pool would give its only connection to whoever comes just then."""
        if self._owners is None:
            yield
            return
        if not self._owners.acquire(self.place.timeout):
            raise self._kept_busy()
        try:
            yield
        finally:
            self._owners.release()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a write transaction, committed at the end, rolled back on any exception."""
        with self.reading() as connection, self.writing_on(connection):
            yield connection

    @contextmanager
    def writing_on(self, connection: sqlite3.Connection) -> Iterator[None]:
        """A write transaction on a connection that `reading` gave."""
        # The connection comes before the lock, for everybody: the other way round two could wait for each other.
        if not self._writers.acquire(timeout=self.place.timeout):
            raise self._kept_busy()
        try:
            self._require_same_file()
            with transaction(connection, self.place):
                yield
        finally:
            self._writers.release()

    def close(self) -> None:
        """Close all connections. In a forked child nothing is closed: they are the parent's."""
        self._is_closed = True
        if os.getpid() == self._process:
            self._pool.dispose()

    def _require_use(self) -> None:
        if self._is_closed:
            raise PermanentStoreError(f"{self.place} was closed by this program: open the store again")
        if os.getpid() != self._process:
            raise PermanentStoreError(
                f"{self.place} was opened before this process was forked, and SQLite's locks do not survive that: "
                "open the store after the fork"
            )

    def _kept_busy(self) -> TransientStoreError:
        return TransientStoreError(f"{self.place} is kept busy by other threads of this process")

    def _require_same_file(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced, and what it commits there is lost (L4)."""
        if self._file is not None and _identity(self.place.path) != self._file:
            raise PermanentStoreError(
                f"{self.place} was deleted or replaced while it was open: put it back, and start this program again"
            )

    def _open(self) -> sqlite3.Connection:
        """A new connection for the pool; called by it within `reading`."""
        if not self.place.is_memory:
            require_ours(self.place)
        connection = connect(self.place, self.place.mode)
        if not self.place.is_memory:
            self._file = self._file or _identity(self.place.path)
        return connection


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """A read transaction: all statements see what the first one saw."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        with suppress(sqlite3.Error):  # it may have been ended by the error that is on its way
            connection.execute("ROLLBACK")


@contextmanager
def transaction(connection: sqlite3.Connection, place: Place) -> Iterator[None]:
    """A write transaction, committed at the end, rolled back on any exception. Raises StoreError."""
    is_commit = False
    try:
        _begin(connection, place.timeout)
        yield
        is_commit = True
        connection.execute("COMMIT")
    except DRIVER_ERRORS as error:
        raise translate(error, str(place), is_commit=is_commit) from error
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # what is still open then is thrown away with the connection
                connection.execute("ROLLBACK")


def _begin(connection: sqlite3.Connection, timeout: float) -> None:
    """Begin a write transaction, trying again and again at short random intervals until the timeout.

    SQLite's own waiting pauses longer and longer, so that whoever waits longest loses to whoever comes last: of 8
    processes that claimed, the unluckiest waited 1.7 s for its turn, 0.3 s this way.
    """
    end = time.monotonic() + timeout
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                left = end - time.monotonic()
                if not is_busy(error) or left <= 0:
                    raise
            time.sleep(random.uniform(0.2, 1) * (_PAUSE_SECONDS if left > timeout - _BRISK_SECONDS else _LONG_PAUSE))
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(timeout * 1000)}")


def connect(place: Place, mode: str) -> sqlite3.Connection:
    """A connection with our settings, in autocommit. Raises StoreError."""
    try:
        connection = sqlite3.connect(
            place.uri(mode),
            uri=True,
            timeout=place.timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
    except DRIVER_ERRORS as error:
        raise translate(error, str(place)) from error
    try:
        for pragma in _SETTINGS.format(synchronous=place.synchronous).split(";"):
            connection.execute(pragma)
    except DRIVER_ERRORS as error:
        connection.close()
        raise translate(error, str(place)) from error
    return connection


def require_ours(place: Place) -> None:
    """Raise StoreError unless the file is a database that wiggle made; the message names the command that helps."""
    if not is_ours(place):
        raise SchemaError(f"the schema of {place} is missing: run `{upgrade_command(place.url)}`")


def is_ours(place: Place) -> bool:
    """Whether wiggle made the file; False for none and for an empty one. Changes nothing, not even of a stranger.

    Raises SchemaError for another program's database, PermanentStoreError for a directory or no database at all.
    """
    if not os.path.lexists(place.path):
        return False
    if os.path.isdir(place.path):
        raise PermanentStoreError(f"{place} is a directory: name a file in the store URL")
    # `immutable` keeps SQLite from making files beside a stranger's database, and from recovering it. Reading the
    # header ourselves would not do: closing the file drops the locks of every other connection of this process.
    # But it takes no lock either, and a checkpoint under way looks like damage: what has a log is opened as usual.
    is_in_use = _has_log(place)
    try:
        uri = place.uri("ro", "" if is_in_use else "&immutable=1")
        with closing(sqlite3.connect(uri, uri=True, timeout=place.timeout)) as connection:
            return require_own_or_empty(connection, place)
    except DRIVER_ERRORS as error:
        if not is_in_use and _has_log(place):  # somebody began to use it meanwhile
            return is_ours(place)
        raise translate(error, str(place)) from error


def _has_log(place: Place) -> bool:
    return os.path.exists(f"{place.path}-wal")


def require_own_or_empty(connection: sqlite3.Connection, place: Place) -> bool:
    """Whether wiggle made the database that is open; False for an empty one. Raises SchemaError for a stranger's."""
    ((mark,),) = connection.execute("PRAGMA application_id").fetchall()
    if mark == APPLICATION_ID:
        return True
    ((objects,),) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    if mark or objects:
        raise SchemaError(f"{place} belongs to another program: name another file in the store URL")
    return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
