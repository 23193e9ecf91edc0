"""The schema of a SQLite store: how it is made, checked and audited."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.sql.audit import unreadable_policies
from wiggle_core.stores.sql.migrations import TABLE, load_migrations, pending, require_current
from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite import lane_audit
from wiggle_store_sqlite.connections import (
    APPLICATION_ID,
    Connections,
    connect,
    is_ours,
    require_own_or_empty,
    snapshot,
    transaction,
)
from wiggle_store_sqlite.errors import is_busy, is_corrupt, translate
from wiggle_store_sqlite.place import Place

MIGRATIONS = load_migrations("wiggle_store_sqlite")

_BOOK = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (\n"
    "    name TEXT PRIMARY KEY,\n    checksum TEXT NOT NULL,\n    applied_at INTEGER NOT NULL\n) STRICT"
)
_HAS_BOOK = f"SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '{TABLE}'"
_APPLIED = f"SELECT name, checksum FROM {TABLE}"
_NOTE = f"INSERT INTO {TABLE} (name, checksum, applied_at) VALUES (?, ?, ?)"
_MARK = f"PRAGMA application_id = {APPLICATION_ID}"
# Half of SQLite's own. A claim of tasks that lie far apart writes a page of the table and one of the index for each,
# and a page costs in the log what its bytes cost: by a lane over 1,000,000 tasks, 10 of them took 2.2 times what the
# first 10 of the queue took, and so 1.6 times. Bulk inserts and drains are as quick with payloads up to 3,000 bytes,
# and an eighth slower with 20,000. It holds for files that are made new.
_PAGE_SIZE = "PRAGMA page_size = 2048"
_OBJECTS = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"

_UNREADABLE = """
    CASE WHEN json_valid(attributes) THEN json_type(attributes) <> 'object' OR EXISTS (
        SELECT 1 FROM json_each(attributes) AS each
        WHERE each.type <> 'text' OR substr(each.value, 1, 1) NOT IN ('s', 'n', 'b', 't')
    ) ELSE 1 END
"""
_LIVE, _SETTLED = "('SCHEDULED', 'READY', 'RUNNING')", "('DONE', 'FAILED', 'CANCELLED')"
_FINDINGS = (
    ("task", f"state NOT IN {_LIVE}", "is live in a state that is settled or unknown"),
    ("history", f"state NOT IN {_SETTLED}", "is in history in a state that is live or unknown"),
    ("task", "state = 'RUNNING' AND (lease_until IS NULL OR token IS NULL)", "is RUNNING without a lease"),
    ("task", "state <> 'RUNNING' AND lease_until IS NOT NULL", "has a lease but is not RUNNING"),
    ("task", "id IN (SELECT id FROM history)", "is both live and in history"),
    ("task", "number NOT IN (SELECT number FROM payload)", "has no payload"),
    ("history", "number NOT IN (SELECT number FROM payload)", "is in history without its payload"),
    ("task", _UNREADABLE, "has attributes that cannot be read"),
    ("history", _UNREADABLE, "is in history with attributes that cannot be read"),
    ("task", "priority < 0 OR attempt < 1", "has a priority or attempt that no task can have"),
)
_FINDING = "SELECT id FROM {table} WHERE {condition} LIMIT {limit}"
_SHOWN = 20
_POLICIES = "SELECT DISTINCT retry FROM {table} WHERE retry IS NOT NULL"
_ORPHANS = """
    SELECT count(*) FROM payload
    WHERE number NOT IN (SELECT number FROM task) AND number NOT IN (SELECT number FROM history)
"""
_PAUSE_SECONDS = 0.01


def migrate(connections: Connections, clock: Clock) -> list[str]:
    """Create or upgrade the schema; the names of the migrations applied now. Raises SchemaError.

    Only this creates a file. Two processes may do it at once: what is missing is asked under the write lock.
    """
    place = connections.place
    if place.is_memory:
        with connections.reading() as connection:
            return _apply_pending(connection, place, clock)
    is_ours(place)  # raises for a stranger's file, which must not even be opened for writing
    with closing(connect(place, "rwc" if place.mode == "rw" else place.mode)) as connection:
        connection.execute(_PAGE_SIZE)
        applied = _apply_pending(connection, place, clock)
        _use_wal(connection, place)
    return applied


def _apply_pending(connection: sqlite3.Connection, place: Place, clock: Clock) -> list[str]:
    with transaction(connection, place):
        require_own_or_empty(connection, place)
        missing = pending(MIGRATIONS, _applied(connection), str(place))
        if missing:
            connection.execute(_BOOK)
            connection.execute(_MARK)
        for migration in missing:
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute(_NOTE, (migration.name, migration.checksum, clock()))
    return [migration.name for migration in missing]


def _use_wal(connection: sqlite3.Connection, place: Place) -> None:
    """Switch to the write-ahead log, in which readers and the writer do not block each other. It stays with the file.

    The switch needs the file for itself for a moment, and SQLite does not wait for that by itself.
    """
    end = time.monotonic() + place.timeout
    while True:
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            break
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > end:
                raise translate(error, str(place)) from error
            time.sleep(_PAUSE_SECONDS)
    if mode != "wal":
        raise PermanentStoreError(
            f"{place} cannot have a write-ahead log here, as on most network disks: put it on a local disk"
        )


def verify(connections: Connections) -> None:
    """Raise SchemaError, naming the command that helps, unless the schema is the one this version knows."""
    place = connections.place
    with connections.reading() as connection:
        applied = _applied(connection)
        # Asked second: a connection notices a change of the mode when it reads.
        ((mode,),) = connection.execute("PRAGMA journal_mode").fetchall()
    # A migration that was killed between its commit and the switch to WAL is to be run again.
    is_complete = place.is_memory or mode == "wal"
    require_current(MIGRATIONS, applied if is_complete else {}, str(place), place.url)


def _applied(connection: sqlite3.Connection) -> dict[str, str]:
    ((has_book,),) = connection.execute(_HAS_BOOK).fetchall()
    return dict(connection.execute(_APPLIED).fetchall()) if has_book else {}


def audit(connections: Connections) -> list[str]:
    """What is wrong with the file, the schema and the stored data, a sentence each."""
    with connections.reading() as connection:
        found = _damage(connection)
        found = found or _altered_objects(connection)
        if not found:
            with snapshot(connection):  # exact, whoever writes meanwhile
                return _contradictions(connection) + lane_audit.audit(connection)
        return found


def _damage(connection: sqlite3.Connection) -> list[str]:
    """What SQLite itself finds. Some damage it reports as rows, some it stumbles over."""
    try:
        lines = [line for (line,) in connection.execute("PRAGMA quick_check").fetchall()]
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
        lines = [str(error)]
    return [f"the file is damaged: {line}" for line in lines if line != "ok"]


def _altered_objects(connection: sqlite3.Connection) -> list[str]:
    """Tables and indexes that are not as the migrations made them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as pristine:
        _apply_pending(pristine, Place(""), lambda: 0)
        expected = dict(pristine.execute(_OBJECTS).fetchall())
    present = dict(connection.execute(_OBJECTS).fetchall())
    return (
        [f"{name} is missing" for name in sorted(expected.keys() - present.keys())]
        + [f"{name} is not wiggle's" for name in sorted(present.keys() - expected.keys())]
        + [f"{name} was altered" for name in sorted(expected) if present.get(name, expected[name]) != expected[name]]
    )


def _contradictions(connection: sqlite3.Connection) -> list[str]:
    found = []
    for table, condition, message in _FINDINGS:
        query = _FINDING.format(table=table, condition=condition, limit=_SHOWN)
        found += [f"task {task_id!r} {message}" for (task_id,) in connection.execute(query).fetchall()]
    tasks = _FINDING.format(table="{table}", condition="retry = ?", limit=_SHOWN)
    found += unreadable_policies(
        lambda query, binds: connection.execute(query, binds).fetchall(), _POLICIES, tasks, _SHOWN
    )
    ((orphans,),) = connection.execute(_ORPHANS).fetchall()
    return found + ([f"{orphans} payloads belong to no task"] if orphans else [])


def schema_sql() -> str:
    """The statements that `migrate` runs on an empty database, its own book-keeping included."""
    parts = [_PAGE_SIZE, "BEGIN IMMEDIATE", _MARK, _BOOK]
    for migration in MIGRATIONS:
        note = f"('{migration.name}', '{migration.checksum}', CAST(strftime('%s', 'now') AS INTEGER) * 1000000)"
        parts += [*migration.statements, f"INSERT INTO {TABLE} (name, checksum, applied_at) VALUES {note}"]
    return "".join(f"{part};\n\n" for part in [*parts, "COMMIT", "PRAGMA journal_mode = WAL"])
