"""Section 6, `Enlist`: tasks inside the caller's own transaction, whatever the caller's connection is set to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from psycopg import ClientCursor, IsolationLevel, RawCursor
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row
from sqlalchemy import make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.stores.postgres_schemas import connect_plainly, fresh_database, fresh_role, fresh_schema, with_options
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core import (
    Attribute,
    Done,
    Engine,
    EnlistRejected,
    NewTask,
    PermanentStoreError,
    QueueCriteria,
    SchemaError,
    State,
    Task,
    TaskRejected,
    TransientStoreError,
    Worker,
    open_engine,
)
from wiggle_core.engine.routes import route_of
from wiggle_core.stores.lanes import LaneState
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.store import Enlist, Grants

ALL = QueueCriteria("q")
COMMON = QueueCriteria("q", Task.step == "s")
ONE = [NewTask("q", "s", id="a")]
HOSTILE_TEXT = "ünï→😀'\"\\ $1 %s\r\n\t"


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as fresh:
        yield fresh


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with open_engine(url, migrate=True) as opened:
        yield opened


@pytest.fixture
def caller(url: str) -> Iterator[psycopg.Connection[Any]]:
    """The caller's connection, as psycopg makes it by default."""
    with closing(plain(url)) as connection:
        yield connection


def plain(url: str, **options: Any) -> psycopg.Connection[Any]:  # Any: psycopg's own
    return psycopg.connect(make_url(url).set(query={}).render_as_string(hide_password=False), **options)


def sqlalchemy_engine(url: str, **options: Any) -> sqlalchemy.Engine:  # Any: SQLAlchemy's own
    return sqlalchemy.create_engine(make_url(url).set(drivername="postgresql+psycopg", query={}), **options)


def states(engine: Engine) -> dict[str, State]:
    return {task.id: task.state for task in engine.find(ALL, list(State))}


# Committed or rolled back with what else the caller does


@pytest.mark.parametrize("level", list(IsolationLevel), ids=lambda level: level.name)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_task_shares_the_fate_of_psycopgs_transaction(
    engine: Engine, caller: psycopg.Connection[Any], level: IsolationLevel, is_kept: bool
) -> None:
    """Section 6: at any isolation level, a task is there when the transaction is committed, and only then."""
    caller.isolation_level = level
    assert engine.enlist(caller, ONE) == ["a"]
    assert states(engine) == {}
    (caller.commit if is_kept else caller.rollback)()
    assert states(engine) == ({"a": State.SCHEDULED} if is_kept else {})
    engine.wake()
    assert [task.id for task in engine.claim("w", [ALL])] == (["a"] if is_kept else [])


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("kind", ["connection", "begun connection", "session", "scoped session"])
def test_a_task_shares_the_fate_of_sqlalchemys_transaction(
    engine: Engine, url: str, kind: str, level: str, is_kept: bool
) -> None:
    """Section 6: the same by way of SQLAlchemy, also when `enlist` is the first thing that its transaction does."""
    own = sqlalchemy_engine(url, isolation_level=level)
    made: Any = own.connect() if "connection" in kind else Session(own)
    if kind == "begun connection":
        made.begin()
    if kind == "scoped session":
        made = scoped_session(sessionmaker(own))
    engine.enlist(made, ONE)
    assert states(engine) == {}
    (made.commit if is_kept else made.rollback)()
    made.close()
    own.dispose()
    assert states(engine) == ({"a": State.SCHEDULED} if is_kept else {})


def test_a_task_and_the_callers_rows_are_all_or_nothing(engine: Engine, url: str) -> None:
    """Section 6: neither an order without its task nor a task without its order; a savepoint takes its own away."""
    own = sqlalchemy_engine(url)
    table = f"orders_{uuid4().hex[:8]}"
    with own.begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id text PRIMARY KEY)"))
    insert = text(f"INSERT INTO {table} VALUES (:id)")
    try:
        with Session(own) as session, session.begin():
            session.execute(insert, {"id": "kept"})
            engine.enlist(session, [NewTask("q", "s", id="kept")])
            with session.begin_nested() as savepoint:
                engine.enlist(session, [NewTask("q", "s", id="undone")])
                savepoint.rollback()
        with Session(own) as session:
            engine.enlist(session, [NewTask("q", "s", id="lost")])
            with pytest.raises(IntegrityError):
                session.execute(insert, {"id": "kept"})
            session.rollback()
        assert states(engine) == {"kept": State.SCHEDULED}
    finally:
        with own.begin() as connection:
            connection.execute(text(f"DROP TABLE {table}"))
        own.dispose()


def test_a_block_of_an_autocommit_connection_is_a_transaction(engine: Engine, url: str) -> None:
    """Section 6: what counts is that there is a transaction, not how it was begun."""
    with closing(plain(url, autocommit=True)) as connection:
        with connection.transaction(), connection.transaction():
            engine.enlist(connection, ONE)
        with connection.transaction(force_rollback=True):
            engine.enlist(connection, [NewTask("q", "s", id="b")])
    assert states(engine) == {"a": State.SCHEDULED}


# From SCHEDULED to READY


def test_wake_makes_ready_what_was_committed(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """Section 6: `wake` promotes all that is due, also more than one sweep does, then calls the subscribers."""
    ready_at_call: list[int] = []
    subscription = engine.subscribe(QueueCriteria("other"), lambda: ready_at_call.append(engine.count(ALL)))
    ids = engine.enlist(caller, (NewTask("q", "s", number) for number in range(2_500)))
    assert len(set(ids)) == 2_500
    engine.wake()
    caller.commit()
    assert engine.count(ALL, [State.READY]) == 0
    engine.wake()
    assert engine.count(ALL, [State.READY]) == 2_500
    assert ready_at_call == [0, 2_500]
    subscription.close()


def test_a_sweep_makes_ready_what_was_committed(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """Section 6: without a word from the caller, any worker's sweep finds the task."""
    worker, ran = Worker(engine, "w", queues=["q"], concurrency=1), Event()

    @worker.task("s")
    def handle(_: object) -> None:
        ran.set()

    with worker:
        engine.enlist(caller, ONE)
        caller.commit()
        assert ran.wait(PATIENCE)


def test_the_databases_time_makes_a_task_due(engine: Engine, caller: psycopg.Connection[Any], url: str) -> None:
    """L1: a task is due by the time of the statement, even where this process believes that it is later."""
    store = open_store(url)
    ahead = Engine(store)
    now = store.now()
    store._estimate._offset += 3_600_000_000  # type: ignore[attr-defined]  # the PostgreSQL store's own
    assert store.now() - now >= 3_600_000_000
    ahead.enlist(caller, [*ONE, NewTask("q", "s", id="later", delay=timedelta(hours=1))])
    caller.commit()
    engine.wake()
    assert states(engine) == {"a": State.READY, "later": State.SCHEDULED}
    store.close()


def test_attributes_are_read_at_enlist_and_at_promotion(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """A2: a SCHEDULED task has its attributes; one whose workflow was declared meanwhile has them when READY."""
    engine.declare("known", version=1, attributes=[Attribute("n", int, "n")])
    tasks = [NewTask("q", "s", {"n": 5}, workflow=each, version=1, id=each) for each in ("known", "late")]
    engine.enlist(caller, tasks)
    caller.commit()
    found = {task.id: dict(task.attributes) for task in engine.find(ALL, [State.SCHEDULED])}
    assert found == {"known": {"n": 5}, "late": {}}
    engine.declare("late", version=1, attributes=[Attribute("n", int, "n")])
    engine.wake()
    found = {task.id: dict(task.attributes) for task in engine.find(ALL, [State.READY])}
    assert found == {"known": {"n": 5}, "late": {"n": 5}}


def test_a_task_is_stored_as_any_other(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """Section 6: every field of an enlisted task is that of an enqueued one."""
    engine.declare("w", version=1, attributes=[Attribute("t", str, "t")])
    fields: dict[str, Any] = {
        "payload": {"t": HOSTILE_TEXT}, "workflow": "w", "version": 1, "node": HOSTILE_TEXT,
        "kind": "k", "correlation_id": HOSTILE_TEXT, "priority": 7,
    }  # fmt: skip
    engine.enlist(caller, [NewTask("q", HOSTILE_TEXT, id="enlisted", **fields)])
    caller.commit()
    engine.wake()
    engine.enqueue("q", HOSTILE_TEXT, id="enqueued", **fields)
    kept = [{
        "step": task.step, "payload": task.payload, "attributes": dict(task.attributes), "priority": task.priority,
        "names": (task.workflow, task.version, task.node, task.kind, task.correlation_id), "retry": task.retry,
        "attempt": task.attempt, "state": task.state, "alone": task.instance_id == task.id,
    } for task in engine.find(ALL)]  # fmt: skip
    assert len(kept) == 2
    assert kept[0] == kept[1]
    assert kept[0]["attributes"] == {"t": HOSTILE_TEXT}


def test_ids_are_taken_in_order(engine: Engine, caller: psycopg.Connection[Any], url: str) -> None:
    """L7: over a whole call, also one that takes several statements, in whatever order the tasks are given."""
    ids = [f"{number:04}" for number in range(2_500)]
    given = reversed(ids)
    assert engine.enlist(caller, (NewTask("q", "s", id=each) for each in given)) == ids[::-1]
    caller.commit()
    with connect_plainly(url) as other:
        for table in ("payload", "task"):
            stored = f"SELECT id FROM {make_url(url).query['schema']}.{table} ORDER BY ctid"
            assert [row[0] for row in other.execute(stored.encode()).fetchall()] == ids


def test_a_known_connection_costs_one_statement(
    engine: Engine, caller: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 6: where a connection leads to is asked once."""
    sent: list[object] = []
    execute: Any = RawCursor.execute

    def noting(cursor: Any, *given: Any, **how: Any) -> Any:  # Any: psycopg's own
        sent.append(cursor.connection)
        return execute(cursor, *given, **how)

    monkeypatch.setattr(RawCursor, "execute", noting)
    for task_id, statements in (("a", 2), ("b", 1), ("c", 1)):
        sent.clear()
        engine.enlist(caller, [NewTask("q", "s", id=task_id)])
        assert sent.count(caller) == statements
        caller.commit()


# The same id


def test_a_known_id_is_left_alone(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """L4: live, in history, or twice in one transaction: the first task of an id stays what it is."""
    engine.enqueue("q", "first", id="live")
    engine.enqueue("other", "first", id="settled")
    (settled,) = engine.claim("w", [QueueCriteria("other")])
    engine.settle(settled, Done())
    again = [NewTask("q", "second", id=each) for each in ("live", "settled", "new")]
    assert engine.enlist(caller, [*again, NewTask("q", "third", id="new")]) == ["live", "settled", "new", "new"]
    engine.enlist(caller, [NewTask("q", "fourth", id="new")])
    caller.commit()
    assert {each.id: each.step for each in engine.find(ALL)} == {"live": "first", "new": "second"}
    assert engine.get("settled").state is State.DONE  # type: ignore[union-attr]


def test_a_conflict_that_the_snapshot_hides_asks_for_the_transaction_again(
    engine: Engine, caller: psycopg.Connection[Any]
) -> None:
    """L4: at REPEATABLE READ, an id taken since the transaction began loses it, and the error says what to do."""
    caller.isolation_level = IsolationLevel.REPEATABLE_READ
    caller.execute("SELECT 1")
    engine.enqueue("q", "s", id="a")
    with pytest.raises(TransientStoreError, match="is lost, as it met another one: run all of it again") as caught:
        engine.enlist(caller, ONE)
    assert isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)
    with pytest.raises(EnlistRejected, match="has failed: roll it back first"):
        engine.enlist(caller, ONE)
    caller.rollback()
    assert engine.enlist(caller, ONE) == ["a"]
    caller.commit()


def test_a_deadlock_of_callers_loses_one_of_them(engine: Engine, url: str) -> None:
    """L7: within a call ids are taken in order; over several calls, who names them crosswise may be the victim."""
    bounded = {"options": "-c lock_timeout=30s"}
    with closing(plain(url, **bounded)) as first, closing(plain(url)) as second, ThreadPoolExecutor(1) as pool:
        engine.enlist(first, [NewTask("q", "s", id="a")])
        engine.enlist(second, [NewTask("q", "s", id="b")])
        waiting = pool.submit(_outcome, lambda: engine.enlist(first, [NewTask("q", "s", id="b")]))
        wait_until(lambda: _held_up_by(second.info.backend_pid, url) == {first.info.backend_pid})
        outcomes = {_outcome(lambda: engine.enlist(second, [NewTask("q", "s", id="a")]))}
        second.rollback()
        outcomes.add(waiting.result(PATIENCE))
    assert outcomes == {"done", "the victim of a deadlock: run all of it again"}


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except TransientStoreError as error:
        return str(error).partition(" as it was ")[2].partition(" (reference")[0]
    return "done"


def _held_up_by(process: int, url: str) -> set[int]:
    """The server's processes that wait for a lock which another one of them holds."""
    with connect_plainly(url) as other:
        rows = other.execute(
            "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", (process,)
        ).fetchall()
    return {pid for (pid,) in rows}


# Whatever the caller's connection is set to


class RefusesAll(Dumper):
    def dump(self, obj: object) -> bytes:
        raise AssertionError("the caller's adapters are not ours to use")


class ReadsNothing(Loader):
    def load(self, data: object) -> object:
        raise AssertionError("the caller's adapters are not ours to use")


_TRAPS = (
    "CREATE FUNCTION {s}.json_array_elements(json, OUT value json) RETURNS SETOF json RETURN '[]'::json",
    "CREATE FUNCTION {s}.clock_timestamp() RETURNS timestamptz RETURN 'epoch'::timestamptz",
    "CREATE FUNCTION {s}.pg_postmaster_start_time() RETURNS timestamptz RETURN 'epoch'::timestamptz",
    "CREATE FUNCTION {s}.current_database() RETURNS name RETURN 'another'::name",
    "CREATE FUNCTION {s}.never(text, text) RETURNS boolean RETURN false",
    "CREATE OPERATOR {s}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.never)",
    "CREATE FUNCTION {s}.never(name, name) RETURNS boolean RETURN false",
    "CREATE OPERATOR {s}.= (LEFTARG = name, RIGHTARG = name, FUNCTION = {s}.never)",
    "CREATE FUNCTION {s}.nothing(json, integer) RETURNS text RETURN 'trapped'::pg_catalog.text",
    "CREATE OPERATOR {s}.->> (LEFTARG = json, RIGHTARG = integer, FUNCTION = {s}.nothing)",
    "CREATE FUNCTION {s}.zero(numeric, numeric) RETURNS numeric RETURN 0::numeric",
    "CREATE OPERATOR {s}.* (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = {s}.zero)",
    "CREATE DOMAIN {s}.text AS pg_catalog.text CHECK (VALUE IS NULL)",
    "CREATE DOMAIN {s}.json AS pg_catalog.json CHECK (VALUE IS NULL)",
    "CREATE DOMAIN {s}.jsonb AS pg_catalog.jsonb CHECK (VALUE IS NULL)",
    "CREATE TABLE {s}.pg_database (oid oid, datname name)",
    "CREATE TABLE {s}.task (id pg_catalog.text)",
    "CREATE TABLE {s}.payload (id pg_catalog.text)",
)


@pytest.fixture
def trapped_path(url: str) -> Iterator[str]:
    """A search path on which other things come first by the names that the statements use."""
    schema = f"trap_{uuid4().hex[:8]}"
    with connect_plainly(url) as owner:
        owner.execute(f"CREATE SCHEMA {schema}".encode())
        for trap in _TRAPS:
            owner.execute(trap.format(s=schema).encode())
        yield f"{schema}, pg_catalog"
        owner.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def test_a_hostile_search_path_changes_nothing(
    engine: Engine, trapped_path: str, caller: psycopg.Connection[Any]
) -> None:
    """Section 6: the caller's search path is neither used nor changed."""
    caller.execute(f"SET search_path = {trapped_path}".encode())
    engine.enlist(caller, [NewTask("q", "s", {"n": 1}, id="a")])
    assert caller.execute("SHOW search_path").fetchone() == (trapped_path,)
    caller.commit()
    (waiting,) = engine.find(ALL, [State.SCHEDULED])
    assert abs(waiting.ready_at - engine.store.now()) < 60_000_000
    engine.wake()
    (task,) = engine.claim("w", [ALL])
    assert (task.id, task.payload) == ("a", '{"n":1}')


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII", "EUC_JP", "WIN1252"])
def test_the_connections_settings_change_nothing(engine: Engine, url: str, encoding: str) -> None:
    """Section 6: encoding, rows, cursors, adapters, preparation and time zone stay the caller's own."""
    with closing(
        plain(
            url,
            row_factory=dict_row,
            cursor_factory=ClientCursor,
            prepare_threshold=0,
            options="-c timezone=Asia/Kathmandu -c datestyle=SQL,DMY -c standard_conforming_strings=off",
            client_encoding=encoding,
        )
    ) as connection:
        for kind in (str, int, bytes, type(None)):
            connection.adapters.register_dumper(kind, RefusesAll)
        for kind_name in ("text", "int8", "bool"):
            connection.adapters.register_loader(kind_name, ReadsNothing)
        before = _settings(connection)
        engine.enlist(connection, [NewTask("q", HOSTILE_TEXT, {"t": HOSTILE_TEXT}, id="é")])
        engine.enlist(connection, [NewTask("q", "s", id="b")])
        assert _settings(connection) == before
        connection.commit()
        assert _settings(connection) == before
    engine.wake()
    assert {task.id: task.step for task in engine.claim("w", [ALL], limit=10)} == {"é": HOSTILE_TEXT, "b": "s"}


def _settings(connection: psycopg.Connection[Any]) -> object:
    asked = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'transaction%' ORDER BY name"
    raw = connection.pgconn.exec_(asked.encode())
    prepared = connection.pgconn.exec_(b"SELECT name FROM pg_prepared_statements")
    values = [(raw.get_value(row, 0), raw.get_value(row, 1)) for row in range(raw.ntuples)]
    connection_values = (connection.autocommit, connection.row_factory, connection.cursor_factory)
    return values, prepared.ntuples, connection_values, connection.prepare_threshold, connection.isolation_level


def test_a_role_with_the_printed_grants_may_enlist(engine: Engine, url: str, postgres_url: str) -> None:
    """Section 6: the caller's role needs what `wiggle db roles` prints; without it, the error says so."""
    with fresh_role(postgres_url, f"caller_{uuid4().hex[:8]}") as role_url, connect_plainly(url) as owner:
        name = make_url(role_url).username or ""
        owner.execute(f"REVOKE {owner.info.user} FROM {name}".encode())
        with closing(plain(role_url)) as connection:
            with pytest.raises(PermanentStoreError, match="may not do that"):
                engine.enlist(connection, ONE)
            connection.rollback()
            store = open_store(url)
            assert isinstance(store, Grants)
            owner.execute(store.role_sql(name).encode())
            store.close()
            engine.enlist(connection, ONE)
            connection.commit()
    assert states(engine) == {"a": State.SCHEDULED}


def test_a_pooler_between_changes_nothing(engine: Engine, pgbouncer_url: str) -> None:
    """PG7: the caller may come by way of pgbouncer in transaction mode, transaction after transaction."""
    with closing(plain(pgbouncer_url, prepare_threshold=None)) as connection:
        for task_id in "abc":
            engine.enlist(connection, [NewTask("q", "s", id=task_id)])
            connection.commit()
    assert states(engine).keys() == {"a", "b", "c"}


# What is refused


def _closed(url: str) -> object:
    connection = plain(url)
    connection.close()
    return connection


def _failed(url: str) -> object:
    connection = plain(url)
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT 1 / 0")
    return connection


def _copying(url: str) -> object:
    connection = plain(url)
    connection.pgconn.exec_(b"COPY (SELECT 1) TO STDOUT")
    return connection


def _of_sqlalchemy(url: str, **options: Any) -> object:  # Any: SQLAlchemy's own
    return sqlalchemy_engine(url, poolclass=sqlalchemy.NullPool, **options).connect()


def _closed_of_sqlalchemy(url: str) -> object:
    connection = sqlalchemy_engine(url, poolclass=sqlalchemy.NullPool).connect()
    connection.close()
    return connection


def _sqlite(_: str) -> object:
    return sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.NullPool).connect()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda url: plain(url, autocommit=True), "is in autocommit, and in no transaction that tasks could join"),
        (lambda url: _of_sqlalchemy(url, isolation_level="AUTOCOMMIT"), "is in autocommit"),
        (_closed, "the connection is closed"),
        (_closed_of_sqlalchemy, "the connection cannot be used: ResourceClosedError"),
        (_failed, "has failed: roll it back first"),
        (_copying, "is at work: let its statement end first"),
        (sqlalchemy_engine, "sqlalchemy's Engine cannot"),
        (lambda _: Session(), r"no connection to give \(UnboundExecutionError\): give `session.connection"),
        (_sqlite, "sqlite3's Connection cannot"),
        (lambda url: url, "builtins's str cannot"),
        (lambda _: None, "builtins's NoneType cannot"),
    ],
)
def test_a_connection_that_will_not_do_is_refused(
    engine: Engine, url: str, make: Callable[[str], Any], words: str
) -> None:
    """Section 6: what cannot take tasks along is refused in words, and nothing is stored."""
    connection = make(url)
    with pytest.raises(EnlistRejected, match=words):
        engine.enlist(connection, ONE)
    if hasattr(connection, "close"):
        connection.close()
    assert states(engine) == {}


def test_a_cursor_is_refused(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """Section 6: a cursor is refused by name, with what to give instead."""
    with pytest.raises(EnlistRejected, match=r"psycopg's Cursor cannot take tasks along: give a psycopg.Connection"):
        engine.enlist(caller.cursor(), ONE)


def test_an_asynchronous_connection_is_refused(engine: Engine, url: str) -> None:
    """Section 6: psycopg's asynchronous connections are refused by name."""

    async def use() -> None:
        parsed = make_url(url).set(query={}).render_as_string(hide_password=False)
        connection = await psycopg.AsyncConnection.connect(parsed)
        try:
            with pytest.raises(EnlistRejected, match=r"psycopg's AsyncConnection cannot .* none of them asynchronous"):
                engine.enlist(connection, ONE)
        finally:
            await connection.close()

    asyncio.run(use())


def test_a_pipeline_is_refused(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """Section 6: in a pipeline, the error of an earlier statement would pass for ours."""
    with caller.pipeline(), pytest.raises(EnlistRejected, match="is in a pipeline"):
        engine.enlist(caller, ONE)


def test_another_database_is_refused(engine: Engine, postgres_url: str, url: str) -> None:
    """Section 6: a database without the store is refused even where a schema of that name is, and stays usable."""
    with fresh_database(postgres_url, f"other_{uuid4().hex[:8]}", "ENCODING 'UTF8'") as other_url:
        schema = str(make_url(url).query["schema"])
        open_engine(with_options(other_url, schema=schema), migrate=True).close()
        with closing(plain(other_url)) as connection:
            with pytest.raises(EnlistRejected, match=r"leads to 'other_.*' on .*, and not to the database"):
                engine.enlist(connection, ONE)
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_refused_task_sends_nothing(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """C7: one task that is refused keeps all out, and the caller's transaction goes on."""
    with pytest.raises(TaskRejected, match="priority"):
        engine.enlist(caller, [*ONE, NewTask("q", "s", priority=-1)])
    caller.commit()
    assert states(engine) == {}


# Trouble on the way


def test_a_read_only_transaction_says_so(engine: Engine, caller: psycopg.Connection[Any]) -> None:
    """PERMANENT: the caller asked for a transaction that writes nothing."""
    caller.read_only = True
    with pytest.raises(PermanentStoreError, match=r"your transaction on .* is read-only"):
        engine.enlist(caller, ONE)


def test_a_missing_schema_names_the_command(engine: Engine, caller: psycopg.Connection[Any], url: str) -> None:
    """Section 6: a schema that is gone is a SchemaError with the command that makes it."""
    with connect_plainly(url) as owner:
        owner.execute(f"DROP SCHEMA {make_url(url).query['schema']} CASCADE".encode())
    store = open_store(url)
    assert isinstance(store, Enlist)
    with pytest.raises(SchemaError, match="wiggle db upgrade"):
        store.enlist(caller, [])
    store.close()


def test_a_lost_connection_loses_the_transaction(engine: Engine, caller: psycopg.Connection[Any], url: str) -> None:
    """TRANSIENT: nothing was committed, so the caller may run the transaction again."""
    engine.enlist(caller, ONE)
    with connect_plainly(url) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (caller.info.backend_pid,))
    with pytest.raises(TransientStoreError, match="is lost, as the server ended it, or its connection: run all of it"):
        engine.enlist(caller, ONE)
    assert states(engine) == {}


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_the_callers_own_limits_hold(engine: Engine, url: str, setting: str) -> None:
    """TRANSIENT: an id that another transaction holds is waited for as long as the caller allows, in its own words."""
    with closing(plain(url)) as first, closing(plain(url, options=f"-c {setting}=100")) as second:
        engine.enlist(first, ONE)
        with pytest.raises(TransientStoreError, match=r"could not have a lock|mostly for its time") as caught:
            engine.enlist(second, ONE)
        assert "statement_timeout=" not in str(caught.value)


# An open transaction holds up nobody (N3)

PROGRAM = """
import sys, time
import psycopg
from wiggle_core import NewTask, open_engine

url, plain = sys.argv[1:]
engine = open_engine(url)
connection = psycopg.connect(plain)
engine.enlist(connection, [NewTask("q", "s", id=f"open {number}") for number in range(100)])
print(connection.info.backend_pid, flush=True)
sys.stdin.read()
connection.commit()
print("committed", flush=True)
"""


def test_a_producer_stopped_in_its_transaction_holds_up_nobody(engine: Engine, url: str) -> None:
    """N3, PG12: with a process stopped inside an open transaction, all others work on, lanes open and close, and nobody
    waits for a lock."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, url, make_url(url).set(query={}).render_as_string(False)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        process = int(producer.stdout.readline())
        producer.send_signal(signal.SIGSTOP)
        try:
            _work_as_usual(with_options(url, statement_timeout="5"))
            assert _held_up_by(process, url) == set()
            assert _locks_that_stop_others(process, url) == set()
        finally:
            producer.send_signal(signal.SIGCONT)
        producer.stdin.close()
        assert producer.stdout.readline() == "committed\n"
    engine.lanes.open([route_of(COMMON)])
    engine.wake()
    assert engine.count(ALL, [State.READY]) == 100
    assert engine.store.audit() == []
    assert len(engine.claim("w", [COMMON], limit=200)) == 100


def _wake_all(engine: Engine) -> bool:
    """Whether all that is known is READY. What is due by our idea of the server's time is so by its own soon."""
    engine.wake()
    return engine.count(ALL, [State.SCHEDULED]) == 0


def _work_as_usual(url: str) -> None:
    """All that others do, under a time limit that any wait would run into."""
    with open_engine(url, migrate=True) as other:
        other.enqueue_many(NewTask("q", "s", number) for number in range(1_500))
        other.enqueue("q", "s", id="late", delay=timedelta(microseconds=1))
        other.declare(f"w{uuid4().hex}", version=1, attributes=[Attribute("n", int, "n")])
        wait_until(lambda: _wake_all(other))
        opened = other.lanes.open([route_of(COMMON)])
        assert [lane.state for lane in opened] == [LaneState.OPEN]
        claimed = other.claim("w", [COMMON], limit=500)
        assert len(claimed) == 500
        assert other.extend([task.lease for task in claimed])
        assert len(other.settle_many((task, Done()) for task in claimed)) == 500
        while claimed := other.claim("w", [ALL], limit=500):
            other.settle_many((task, Done()) for task in claimed)
        other.sweep()
        assert other.store.audit() == []
        assert len(other.lanes.close([lane.id for lane in opened])) == 1


def _locks_that_stop_others(process: int, url: str) -> set[object]:
    """What a process of the server holds beyond what each insert does: advisory locks, and stronger ones on tables."""
    with connect_plainly(url) as other:
        rows = other.execute(
            "SELECT locktype, mode FROM pg_locks WHERE pid = %s AND (locktype = 'advisory' "
            "OR locktype = 'relation' AND mode NOT IN ('AccessShareLock', 'RowExclusiveLock'))",
            (process,),
        ).fetchall()
        held = other.execute("SELECT count(*) FROM pg_locks WHERE pid = %s", (process,)).fetchall()
    assert held != [(0,)], "the producer is in no transaction"
    return set(rows)
