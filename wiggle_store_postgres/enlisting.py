"""Enqueueing inside a transaction of the caller's own, by psycopg or SQLAlchemy (`Enlist`).

The caller's connection is taken as it comes and left as it was. So every name in the statements is qualified, since
its search path is anyone's; the binds are ASCII text, which all client encodings agree on; and of the driver's
adapters, row factories and prepared statements none is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from weakref import WeakSet

import psycopg
from psycopg import RawCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.types.string import StrDumper

from wiggle_core.errors import EnlistRejected, PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.sql.enlisting import connection_in_transaction
from wiggle_core.stores.sql.rows import INSERTED, inserted_values
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_postgres.connections import Connection, Connections, in_schema
from wiggle_store_postgres.errors import DRIVER_ERRORS, DriverError, translate
from wiggle_store_postgres.place import Place
from wiggle_store_postgres.rows import INSERTED_TYPES

# Two servers do not start in the same microsecond; a database's number is its own on its server.
_DATABASE = """
    SELECT
        (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::bigint, oid::bigint
    FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
"""

_COLUMNS = ", ".join(INSERTED)
_QUALIFIED = {"text": "pg_catalog.text", "jsonb": "pg_catalog.jsonb"}  # the others are words of SQL's own
_FIELDS = ", ".join(
    f"(value OPERATOR(pg_catalog.->>) {place})::{_QUALIFIED.get(kind, kind)} AS {name}"
    for place, (name, kind) in enumerate(INSERTED_TYPES.items())
)
_NOW = """
    (SELECT coalesce(
        $2::bigint, (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint
    ))
"""
_VALUES = ", ".join(f"coalesce(ready_at, {_NOW})" if name == "ready_at" else f"given.{name}" for name in INSERTED)
_INSERT = f"""
    WITH given AS (
        SELECT {_FIELDS}, value OPERATOR(pg_catalog.->>) {len(INSERTED)} AS body
        FROM pg_catalog.json_array_elements($1::pg_catalog.json) AS value
    ),
    fresh AS (
        INSERT INTO $schema.payload (id, body) SELECT id, body FROM given ON CONFLICT (id) DO NOTHING RETURNING id
    )
    INSERT INTO $schema.task ({_COLUMNS}) SELECT {_VALUES}
    FROM given JOIN fresh ON given.id OPERATOR(pg_catalog.=) fresh.id
"""

_REASONS = {
    "40001": "it met another one",
    "40P01": "it was the victim of a deadlock",
    "55P03": "it could not have a lock",
    "57014": "a statement of it was cancelled, mostly for its time",
}

_EXPECTED = (
    "a psycopg.Connection, or a Connection or Session of SQLAlchemy's on postgresql+psycopg, none of them asynchronous"
)


class Enlisting:
    """Inserts tasks by connections that belong to others."""

    def __init__(self, connections: Connections) -> None:
        self._own = connections
        self._known: WeakSet[Connection] = WeakSet()
        """Those that were found to lead to the store's own database."""

    def enlist(self, connection: object, tasks: Sequence[TaskRecord], now: int | None) -> None:
        """Insert the tasks whose ids are neither live nor in history, in the transaction that the connection is in, or
        begins now as its first statement would have done."""
        theirs = connection_in_transaction(connection, psycopg.Connection, _require_usable, _EXPECTED)
        place = self._own.place
        try:
            if theirs not in self._known:
                self._require_own_database(theirs)
            rows = json.dumps(list(_rows(tasks)))
            _send(theirs, in_schema(_INSERT, place.quoted_schema), (rows, None if now is None else str(now)))
        except DRIVER_ERRORS as error:
            raise _lost_transaction(error, place) from error

    def _require_own_database(self, theirs: Connection) -> None:
        with self._own.reading() as session:
            own = session.rows(_DATABASE)[0]
        result = _send(theirs, _DATABASE.encode()).pgresult
        if result is None or [result.get_value(0, column) for column in range(2)] != [b"%d" % each for each in own]:
            raise EnlistRejected(
                f"the connection leads to {theirs.info.dbname!r} on {theirs.info.host or 'this machine'}, and not to "
                f"{self._own.place}, where the tasks are kept: name the same server and database in both URLs"
            )
        self._known.add(theirs)


def _rows(tasks: Sequence[TaskRecord]) -> Iterator[list[object]]:
    """What is inserted, of two alike the first one. A task that is due gets its time from the statement: a clock of
    ours might be ahead, and the task would wait."""
    first: dict[TaskId, TaskRecord] = {}
    for task in tasks:
        first.setdefault(task.id, task)
    for task in first.values():
        values = dict(zip(INSERTED, inserted_values(task), strict=True))
        due = {} if task.state is State.SCHEDULED else {"ready_at": None}
        yield [*(values | {"state": State.SCHEDULED.value} | due).values(), task.payload]


def _send(connection: Connection, statement: bytes, binds: Sequence[str | None] = ()) -> RawCursor[object]:
    cursor: RawCursor[object] = RawCursor(connection)
    cursor.adapters.register_dumper(str, StrDumper)
    return cursor.execute(statement, binds, prepare=False, binary=False)


def _lost_transaction(error: DriverError, place: Place) -> StoreError:
    """The error to raise. Whatever it was, the server has given the transaction up."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state == "25006":
        return PermanentStoreError(f"your transaction on {place} is read-only: no task can be enqueued in it")
    translated = translate(error, place)
    if isinstance(translated, TransientStoreError):
        reason = _REASONS.get(state or "", "the server ended it, or its connection")
        return TransientStoreError(f"your transaction on {place} is lost, as {reason}: run all of it again")
    return translated


def _require_usable(connection: Connection) -> None:
    status = connection.info.transaction_status
    if connection.closed:
        raise EnlistRejected("the connection is closed")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise EnlistRejected("the connection is in a pipeline, which tells of errors late: leave it first")
    if status == TransactionStatus.INERROR:
        raise EnlistRejected("the connection's transaction has failed: roll it back first")
    if status == TransactionStatus.ACTIVE:
        raise EnlistRejected("the connection is at work: let its statement end first")
    if connection.autocommit and status == TransactionStatus.IDLE:
        raise EnlistRejected(
            "the connection is in autocommit, and in no transaction that tasks could join: begin one, as "
            "`connection.transaction()` does"
        )
