"""Section 6, `Enlist`: tasks inside the caller's own transaction, whatever the caller's connection is set to."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psycopg
import pymysql
import pytest
import sqlalchemy
from pymysql.constants import CLIENT
from pymysql.converters import encoders
from pymysql.cursors import Cursor, DictCursor, SSCursor, SSDictCursor
from sqlalchemy import make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.stores.mysql_faults import COPY_AGE
from tests.stores.mysql_prefixes import asked, fresh_place, open_url, plain
from tests.stores.postgres_schemas import with_options
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
from wiggle_core.conformance.plugin import make_task
from wiggle_core.engine.routes import route_of
from wiggle_core.stores.lanes import LaneState
from wiggle_core.stores.store import Enlist
from wiggle_store_mysql.enlisting import Enlisting

ALL = QueueCriteria("q")
COMMON = QueueCriteria("q", Task.step == "s")
ONE = [NewTask("q", "s", id="a")]
HOSTILE_TEXT = "ünï→😀'\"\\' $1 %s %% \r\n\t\x1a"
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    with fresh_place(mysql_like_url) as fresh:
        yield fresh


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with open_engine(url, migrate=True) as opened:
        yield opened


@pytest.fixture
def caller(url: str) -> Iterator[pymysql.Connection[Any]]:
    """The caller's connection, as PyMySQL makes it by default."""
    with closing(callers(url)) as connection:
        yield connection


def callers(url: str, *statements: str, **options: Any) -> pymysql.Connection[Any]:  # Any: PyMySQL's own
    place = make_url(url)
    connection = pymysql.connect(
        host=place.host or "127.0.0.1",
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.database,
        **options,
    )
    for statement in statements:
        run(connection, statement)
    return connection


def run(connection: pymysql.Connection[Any], statement: str) -> None:
    Cursor(connection).execute(statement)


def sqlalchemy_engine(url: str, **options: Any) -> sqlalchemy.Engine:  # Any: SQLAlchemy's own
    driver = f"{make_url(url).get_backend_name()}+pymysql"
    return sqlalchemy.create_engine(make_url(url).set(drivername=driver, query={}), **options)


def states(engine: Engine) -> dict[str, State]:
    return {task.id: task.state for task in engine.find(ALL, list(State))}


# Committed or rolled back with what else the caller does


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_task_shares_the_fate_of_pymysqls_transaction(engine: Engine, url: str, level: str, is_kept: bool) -> None:
    """Section 6: at any isolation level, a task is there when the transaction is committed, and only then."""
    with closing(callers(url, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")) as caller:
        assert engine.enlist(caller, ONE) == ["a"]
        assert states(engine) == {}
        (caller.commit if is_kept else caller.rollback)()
    assert states(engine) == ({"a": State.SCHEDULED} if is_kept else {})
    engine.wake()
    assert [task.id for task in engine.claim("w", [ALL])] == (["a"] if is_kept else [])
    assert engine.store.audit() == []


@pytest.mark.parametrize("level", LEVELS[1:])
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


@pytest.fixture
def orders(url: str) -> Iterator[str]:
    """A table of the caller's own."""
    table = f"orders_{uuid4().hex[:8]}"
    with plain(url) as connection:
        run(connection, f"CREATE TABLE {table} (id VARCHAR(20) PRIMARY KEY)")
        yield table
        run(connection, f"DROP TABLE {table}")


def test_a_task_and_the_callers_rows_are_all_or_nothing(engine: Engine, url: str, orders: str) -> None:
    """Section 6: neither an order without its task nor a task without its order; a savepoint takes its own away."""
    own = sqlalchemy_engine(url)
    insert = text(f"INSERT INTO {orders} VALUES (:id)")
    with Session(own) as session, session.begin():
        session.execute(insert, {"id": "kept"})
        engine.enlist(session, [NewTask("q", "s", id="kept")])
        with session.begin_nested() as savepoint:
            engine.enlist(session, [NewTask("q", "s", id="undone")])
            savepoint.rollback()
        with session.begin_nested():
            engine.enlist(session, [NewTask("q", "s", id="nested")])
    with Session(own) as session:
        engine.enlist(session, [NewTask("q", "s", id="lost")])
        with pytest.raises(IntegrityError):
            session.execute(insert, {"id": "kept"})
        session.rollback()
    own.dispose()
    assert states(engine) == {"kept": State.SCHEDULED, "nested": State.SCHEDULED}


def test_a_begun_transaction_of_an_autocommit_connection_is_joined(engine: Engine, url: str) -> None:
    """Section 6: what counts is that there is a transaction, not how it was begun."""
    with closing(callers(url, autocommit=True)) as connection:
        connection.begin()
        engine.enlist(connection, ONE)
        connection.commit()
        run(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        engine.enlist(connection, [NewTask("q", "s", id="b")])
        connection.rollback()
    assert states(engine) == {"a": State.SCHEDULED}


# From SCHEDULED to READY


def test_wake_makes_ready_what_was_committed(engine: Engine, caller: pymysql.Connection[Any]) -> None:
    """Section 6: `wake` promotes all that is due, also more than one sweep does."""
    ids = engine.enlist(caller, (NewTask("q", "s", number) for number in range(2_500)))
    assert len(set(ids)) == 2_500
    engine.wake()
    caller.commit()
    assert engine.count(ALL, [State.READY]) == 0
    engine.wake()
    assert engine.count(ALL, [State.READY]) == 2_500


def test_a_sweep_makes_ready_what_was_committed(engine: Engine, caller: pymysql.Connection[Any]) -> None:
    """Section 6: without a word from the caller, any worker's sweep finds the task."""
    worker, ran = Worker(engine, "w", queues=["q"], concurrency=1), Event()

    @worker.task("s")
    def handle(_: object) -> None:
        ran.set()

    with worker:
        engine.enlist(caller, ONE)
        caller.commit()
        assert ran.wait(PATIENCE)


def test_the_servers_time_makes_a_task_due(engine: Engine, url: str) -> None:
    """L1: a task is due by the server's time, even where this process believes that it is later, or where the caller
    has set another one."""
    store = open_url(url)
    ahead = Engine(store)
    now = store.now()
    store._estimate._offset += 3_600_000_000
    assert store.now() - now >= 3_600_000_000
    with closing(callers(url, "SET timestamp = 2000000000", "SET time_zone = '-11:00'")) as caller:
        ahead.enlist(caller, [*ONE, NewTask("q", "s", id="later", delay=timedelta(hours=1))])
        caller.commit()
    engine.wake()
    assert states(engine) == {"a": State.READY, "later": State.SCHEDULED}
    store.close()


def test_a_task_is_stored_as_any_other(engine: Engine, caller: pymysql.Connection[Any]) -> None:
    """Section 6, A2: every field of an enlisted task is that of an enqueued one."""
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


@pytest.fixture
def sent(caller: pymysql.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent by the caller's connection."""
    noted: list[str] = []
    execute: Any = Cursor.execute

    def noting(cursor: Any, statement: str, *binds: Any) -> Any:  # Any: PyMySQL's own
        if cursor.connection is caller:
            noted.append(statement)
        return execute(cursor, statement, *binds)

    monkeypatch.setattr(Cursor, "execute", noting)
    return noted


def test_ids_are_taken_in_order(engine: Engine, caller: pymysql.Connection[Any], sent: list[str]) -> None:
    """L7: over a whole call, also one that takes several statements, in whatever order the tasks are given."""
    ids = [f"{number:04}" for number in range(2_500)]
    assert engine.enlist(caller, (NewTask("q", "s", id=each) for each in reversed(ids))) == ids[::-1]
    caller.commit()
    for table in ("payload", "task"):
        inserts = [each for each in sent if re.match(rf"INSERT INTO \S*_{table}` ", each)]
        assert [found for each in inserts for found in re.findall(r"\(_utf8mb4'(\d{4})'", each)] == ids


def test_a_known_connection_costs_three_statements(
    engine: Engine, caller: pymysql.Connection[Any], sent: list[str]
) -> None:
    """Section 6: where a connection leads to is asked once, and again when it was made anew."""
    for task_id, statements in (("a", 4), ("b", 3), ("c", 3)):
        sent.clear()
        engine.enlist(caller, [NewTask("q", "s", id=task_id)])
        assert len(sent) == statements
        caller.commit()
    caller.close()
    caller.connect()
    sent.clear()
    engine.enlist(caller, [NewTask("q", "s", id="d")])
    assert len(sent) == 4


# The same id


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("flags", [0, CLIENT.FOUND_ROWS, CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS])
def test_a_known_id_is_left_alone(engine: Engine, url: str, level: str, flags: int) -> None:
    """L4: live, in history, or twice in one transaction: the first task of an id stays what it is, also where the
    caller's snapshot is from before it."""
    with closing(callers(url, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}", client_flag=flags)) as caller:
        run(caller, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        engine.enqueue("q", "first", id="live")
        engine.enqueue("other", "first", id="settled")
        (settled,) = engine.claim("w", [QueueCriteria("other")])
        engine.settle(settled, Done())
        again = [NewTask("q", "second", id=each) for each in ("live", "settled", "new")]
        assert engine.enlist(caller, [*again, NewTask("q", "third", id="new")]) == ["live", "settled", "new", "new"]
        more = [NewTask("q", "fourth", id=each) for each in ("a", "new", "z")]
        engine.enlist(caller, more)
        caller.commit()
    expected = {"live": "first", "new": "second", "a": "fourth", "z": "fourth"}
    assert {each.id: each.step for each in engine.find(ALL)} == expected
    assert engine.get("settled").state is State.DONE  # type: ignore[union-attr]
    assert engine.store.audit() == []


@pytest.mark.parametrize("level", LEVELS[1:])
def test_an_id_taken_at_the_last_moment_is_left_alone(
    engine: Engine, url: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: also one that is enqueued, or enqueued and settled, between the question and the insert."""
    ask = Enlisting._entering

    def late(self: Enlisting, *given: Any) -> Any:  # Any: passed on
        found = ask(self, *given)
        engine.enqueue_many(NewTask("other", "first", id=f"{number:02}") for number in (0, 3, 4, 9))
        engine.settle_many((task, Done()) for task in engine.claim("w", [QueueCriteria("other")], limit=2))
        return found

    monkeypatch.setattr(Enlisting, "_entering", late)
    with closing(callers(url, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")) as caller:
        run(caller, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        engine.enlist(caller, [NewTask("q", "second", id=f"{number:02}") for number in range(10)])
        caller.commit()
    assert states(engine).keys() == {f"{number:02}" for number in (1, 2, 5, 6, 7, 8)}
    assert engine.count(QueueCriteria("other")) == 2
    assert engine.store.audit() == []


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("is_kept", [True, False])
def test_an_id_that_another_transaction_holds_is_waited_for(
    engine: Engine, url: str, level: str, is_kept: bool
) -> None:
    """L4: the id is whose transaction is committed."""
    setting = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"
    with closing(callers(url)) as first, closing(callers(url, setting)) as second, ThreadPoolExecutor(1) as pool:
        engine.enlist(first, [NewTask("q", "first", id="b")])
        waiting = pool.submit(engine.enlist, second, [NewTask("q", "second", id=each) for each in "abc"])
        wait_until(lambda: _waits(second, url), pause=COPY_AGE)
        (first.commit if is_kept else first.rollback)()
        assert waiting.result(PATIENCE) == ["a", "b", "c"]
        second.commit()
    steps = {each.id: each.step for each in engine.find(ALL, [State.SCHEDULED])}
    assert steps == {"a": "second", "b": "first" if is_kept else "second", "c": "second"}
    assert engine.store.audit() == []


def _waits(connection: pymysql.Connection[Any], url: str) -> bool:
    """Whether a connection's statement waits for a lock."""
    return _of_transaction("trx_state", connection.thread_id(), url) == ["LOCK WAIT"]  # type: ignore[no-untyped-call]


def _of_transaction(column: str, thread: int, url: str) -> list[object]:
    """What the server tells of a connection's transaction. MySQL reads the statements of all others with it, and fails
    at one that is no utf8mb3: then it is asked again."""
    while True:
        with plain(url) as other, suppress(pymysql.OperationalError):
            query = f"SELECT {column} FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = %s"
            return [value for (value,) in asked(other, query, thread)]


def test_a_snapshot_that_insists_asks_for_the_transaction_again(
    engine: Engine, caller: pymysql.Connection[Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MY6: where MariaDB lets nobody meet what is newer than the snapshot, the error says what to do, or the id is left
    alone."""
    with suppress(pymysql.OperationalError):  # which says that this server does not know it
        run(caller, "SET SESSION innodb_snapshot_isolation = ON")
    ask = Enlisting._entering

    def late(self: Enlisting, *given: Any) -> Any:  # Any: passed on
        found = ask(self, *given)
        engine.enqueue("q", "first", id="a")
        return found

    run(caller, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    with monkeypatch.context() as patch:
        patch.setattr(Enlisting, "_entering", late)
        outcome = _outcome(lambda: engine.enlist(caller, ONE))
    assert outcome in ("done", "met another one: roll back, and run it again")
    if outcome != "done":
        caller.rollback()
    engine.enlist(caller, [*ONE, NewTask("q", "s", id="b")])
    caller.commit()
    assert {each.id: each.step for each in engine.find(ALL, list(State))} == {"a": "first", "b": "s"}


def test_a_deadlock_of_callers_loses_one_of_them(engine: Engine, url: str) -> None:
    """L7: within a call ids are taken in order; over several calls, who names them crosswise may be the victim."""
    patient = "SET innodb_lock_wait_timeout = 60"
    with (
        closing(callers(url, patient)) as first,
        closing(callers(url, patient)) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        engine.enlist(first, [NewTask("q", "s", id="a")])
        engine.enlist(second, [NewTask("q", "s", id="b")])
        waiting = pool.submit(_outcome, lambda: engine.enlist(first, [NewTask("q", "s", id="b")]))
        wait_until(lambda: _waits(first, url), pause=COPY_AGE)
        outcomes = {_outcome(lambda: engine.enlist(second, [NewTask("q", "s", id="a")]))}
        second.rollback()
        outcomes.add(waiting.result(PATIENCE))
    assert outcomes == {"done", "was the victim of a deadlock: roll back, and run it again"}


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except TransientStoreError as error:
        return str(error).partition(" failed, as it ")[2].partition(" (reference")[0]
    return "done"


def test_what_a_deadlock_ended_is_no_transaction(engine: Engine, url: str, orders: str) -> None:
    """Section 6: in autocommit, a transaction that the server gave up is none to join, although the driver has not
    heard of it: the task would be there at once."""
    with closing(callers(url, autocommit=True)) as first, closing(callers(url)) as second:
        for connection in (first, second):
            connection.begin()
        run(second, f"INSERT INTO {orders} VALUES ('b'), ('c'), ('d'), ('e')")
        run(first, f"INSERT INTO {orders} VALUES ('a')")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run, second, f"INSERT INTO {orders} VALUES ('a')")
            wait_until(lambda: _waits(second, url), pause=COPY_AGE)
            with pytest.raises(pymysql.OperationalError, match="Deadlock"):
                run(first, f"INSERT INTO {orders} VALUES ('b')")
            waiting.result(PATIENCE)
        with pytest.raises(EnlistRejected, match="is in autocommit, and in no transaction"):
            engine.enlist(first, ONE)
    assert states(engine) == {}


# Whatever the caller's connection is set to

SETTINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "ansi": (("SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'",), {}),
    "lenient": (("SET sql_mode = ''",), {}),
    "lenient without escapes": (("SET sql_mode = 'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'",), {}),
    "latin1": ((), {"charset": "latin1"}),
    "gbk": ((), {"charset": "gbk"}),
    "sjis": ((), {"charset": "sjis"}),
    "utf8mb3": (("SET NAMES utf8mb3",), {}),
    "binary": (("SET NAMES binary",), {}),
    "dicts": ((), {"cursorclass": DictCursor}),
    "unbuffered": ((), {"cursorclass": SSCursor}),
    "unbuffered dicts": ((), {"cursorclass": SSDictCursor, "use_unicode": False}),
    "no converters": ((), {"conv": dict(encoders)}),
    "no database": (("USE information_schema",), {}),
    "found rows": ((), {"client_flag": CLIENT.FOUND_ROWS}),
    "multi": ((), {"client_flag": CLIENT.MULTI_STATEMENTS}),
    "bounded": (("SET sql_safe_updates = 1, sql_select_limit = 1, max_error_count = 0, unique_checks = 0",), {}),
}
MARIADBS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "oracle": (("SET sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'",), {}),
    "empty is null": (("SET sql_mode = 'EMPTY_STRING_IS_NULL'",), {}),
}


@pytest.mark.parametrize("name", [*SETTINGS, *MARIADBS])
def test_the_connections_settings_change_nothing(engine: Engine, url: str, name: str) -> None:
    """Section 6: character set, modes of SQL, cursors, converters and flags stay the caller's own, and no value
    depends on them."""
    if name in MARIADBS and make_url(url).get_backend_name() != "mariadb":
        pytest.skip("a mode of MariaDB's only")
    statements, options = (SETTINGS | MARIADBS)[name]
    given = NewTask("q", HOSTILE_TEXT, {"t": HOSTILE_TEXT}, id="é", correlation_id="", node="it's \\")
    with closing(callers(url, *statements, **options)) as connection:
        before = _settings(connection)
        engine.enlist(connection, [given])
        engine.enlist(connection, [NewTask("q", "s", id="b"), given])
        assert _settings(connection) == before
        connection.commit()
        assert _settings(connection) == before
    engine.wake()
    tasks = {task.id: task for task in engine.claim("w", [ALL], limit=10)}
    assert tasks.keys() == {"é", "b"}
    found = tasks["é"]
    assert (found.step, found.correlation_id, found.node) == (HOSTILE_TEXT, "", "it's \\")
    engine.enqueue("other", "s", {"t": HOSTILE_TEXT})
    assert found.payload == engine.claim("w", [QueueCriteria("other")])[0].payload


def _settings(connection: pymysql.Connection[Any]) -> object:
    cursor = Cursor(connection)
    cursor.execute("SET @kept = @@sql_select_limit, sql_select_limit = DEFAULT")
    cursor.execute("SHOW SESSION VARIABLES")
    moving = re.compile("timestamp|last_|_id$|gtid|count$|in_transaction")
    rows = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in cursor.fetchall()]
    values = {name: value for name, value in rows if not moving.search(name)}
    cursor.execute("SET sql_select_limit = @kept")
    assert len(values) > 300
    return values, connection.cursorclass, connection.decoders, connection.charset, connection.get_autocommit()


@pytest.mark.parametrize("mode", ["STRICT_TRANS_TABLES", ""])
def test_nothing_is_cut_short(engine: Engine, url: str, orders: str, mode: str) -> None:
    """Section 6: what does not fit is an error in every mode, and leaves no half of a task behind: who goes on and
    commits has none of it."""
    store = open_url(url)
    with closing(callers(url, f"SET sql_mode = '{mode}'")) as caller:
        run(caller, f"INSERT INTO {orders} VALUES ('kept')")
        tasks = [make_task("a", queue="q"), replace(make_task("b", queue="q"), step="s" * 256)]
        with pytest.raises(PermanentStoreError, match=r"a value is given to .* that it cannot hold"):
            store.enlist(caller, tasks)
        store.enlist(caller, [make_task("c", queue="q")])
        caller.commit()
        assert asked(caller, f"SELECT id FROM {orders}") == [("kept",)]
    assert states(engine).keys() == {"c"}
    assert store.audit() == []
    store.close()


def test_many_long_tasks_are_sent_in_parts(mysql_like_url: str, url: str, engine: Engine) -> None:
    """Section 6: no statement is longer than the caller's server takes, and what is longer by itself costs the caller
    neither the connection nor the transaction."""
    with plain(url) as other, closing(callers(url)) as caller:
        ((room,),) = asked(other, "SELECT @@max_allowed_packet")
        store = open_url(url)
        payload = '"' + "\\n" * (room // 20) + '"'  # twice as long when it is sent
        tasks = [make_task(f"{number:02}", queue="q", payload=payload) for number in range(12)]
        store.enlist(caller, tasks)
        with pytest.raises(PermanentStoreError, match="raise max_allowed_packet"):
            store.enlist(caller, [make_task("z", queue="q"), replace(tasks[0], id="y", payload="é" * (room // 4))])
        caller.commit()
        store.close()
    assert states(engine).keys() == {task.id for task in tasks}
    found = engine.get("11")
    assert found is not None
    assert found.payload == payload


def test_a_user_with_the_printed_grants_may_enlist(engine: Engine, url: str) -> None:
    """Section 6: the caller's user needs what `wiggle db roles` prints; without it, the error says so."""
    name, store = f"caller_{uuid4().hex[:8]}", open_url(url)
    with plain(url) as owner:
        ((host,),) = asked(owner, "SELECT SUBSTRING_INDEX(USER(), '@', -1)")
        run(owner, f"CREATE USER '{name}'@'{host}' IDENTIFIED BY 'secret'")
        try:
            theirs = make_url(url).set(username=name, password="secret", database="information_schema")
            with closing(callers(theirs.render_as_string(hide_password=False))) as connection:
                with pytest.raises(PermanentStoreError, match="may not do that"):
                    engine.enlist(connection, ONE)
                connection.rollback()
                for grant in store.role_sql(f"{name}@{host}").split(";\n")[:-1]:
                    run(owner, grant)
                engine.enlist(connection, ONE)
                connection.commit()
        finally:
            run(owner, f"DROP USER '{name}'@'{host}'")
    store.close()
    assert states(engine) == {"a": State.SCHEDULED}


# What is refused


def _closed(url: str) -> object:
    connection = callers(url)
    connection.close()
    return connection


def _between_results(url: str) -> object:
    connection = callers(url, client_flag=CLIENT.MULTI_STATEMENTS)
    run(connection, "SELECT 1; SELECT 2")
    return connection


def _of_sqlalchemy(url: str, **options: Any) -> object:  # Any: SQLAlchemy's own
    return sqlalchemy_engine(url, poolclass=sqlalchemy.NullPool, **options).connect()


def _closed_of_sqlalchemy(url: str) -> object:
    connection = sqlalchemy_engine(url, poolclass=sqlalchemy.NullPool).connect()
    connection.close()
    return connection


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda url: callers(url, autocommit=True), "is in autocommit, and in no transaction that tasks could join"),
        (lambda url: callers(url, "SET autocommit = 1"), "is in autocommit, and in no transaction"),
        (lambda url: _of_sqlalchemy(url, isolation_level="AUTOCOMMIT"), "is in autocommit"),
        (lambda url: callers(url, "START TRANSACTION READ ONLY"), "the connection's transaction is read-only"),
        (_closed, "the connection is closed"),
        (_closed_of_sqlalchemy, "the connection cannot be used: ResourceClosedError"),
        (_between_results, "has results that were not read"),
        (sqlalchemy_engine, "sqlalchemy's Engine cannot"),
        (lambda _: Session(), r"no connection to give \(UnboundExecutionError\): give `session.connection"),
        (lambda url: Session(sqlalchemy_engine(url), autobegin=False), r"no connection to give \(InvalidRequestError"),
        (lambda _: sqlalchemy.create_engine("sqlite://").connect(), "sqlite3's Connection cannot"),
        (lambda _: sqlite3.connect(":memory:"), "sqlite3's Connection cannot"),
        (lambda _: psycopg.Connection.__new__(psycopg.Connection), "psycopg's Connection cannot"),
        (lambda url: url, "builtins's str cannot"),
        (lambda _: None, "builtins's NoneType cannot"),
    ],
)
@pytest.mark.filterwarnings("ignore:connection <psycopg:ResourceWarning")
def test_a_connection_that_will_not_do_is_refused(
    engine: Engine, url: str, make: Callable[[str], Any], words: str
) -> None:
    """Section 6: what cannot take tasks along is refused in words, and nothing is stored."""
    connection = make(url)
    with pytest.raises(EnlistRejected, match=words) as caught:
        engine.enlist(connection, ONE)
    assert (make_url(url).password or "-") + "@" not in str(caught.value)
    if isinstance(connection, (pymysql.Connection, Session, sqlalchemy.Connection, sqlite3.Connection)):
        with suppress(pymysql.err.Error):  # which says that it was closed before
            connection.close()
    assert states(engine) == {}


def test_a_cursor_is_refused(engine: Engine, caller: pymysql.Connection[Any]) -> None:
    """Section 6: a cursor is refused by name, with what to give instead."""
    with pytest.raises(EnlistRejected, match=r"pymysql's Cursor cannot take tasks along: give a pymysql.Connection"):
        engine.enlist(caller.cursor(), ONE)


def test_what_is_refused_is_left_as_it_was(engine: Engine, url: str) -> None:
    """Section 6: nothing is sent by a connection whose results are not read yet: they are all there."""
    with closing(callers(url)) as connection, closing(SSCursor(connection)) as cursor:
        cursor.execute("SELECT 1 UNION SELECT 2 ORDER BY 1")
        with pytest.raises(EnlistRejected, match="not read"):
            engine.enlist(connection, ONE)
        assert cursor.fetchall() == [(1,), (2,)]
        engine.enlist(connection, ONE)
        connection.commit()
    assert states(engine) == {"a": State.SCHEDULED}


def test_another_server_is_refused(engine: Engine, url: str, mysql_url: str, mariadb_url: str) -> None:
    """Section 6: a server without the store is refused even where tables of that name are, and stays usable."""
    other_url = mysql_url if make_url(url).get_backend_name() == "mariadb" else mariadb_url
    there = with_options(other_url, **{str(name): str(value) for name, value in make_url(url).query.items()})
    other = open_url(there)
    other.migrate()
    with closing(callers(other_url)) as connection:
        with pytest.raises(EnlistRejected, match=r"leads to .*, which is another server than that of the database"):
            engine.enlist(connection, ONE)
        assert asked(connection, "SELECT 1") == [(1,)]
        other.enlist(connection, [make_task("a", queue="q")])
    other.close()
    with fresh_place(there), plain(there) as connection:
        for (name,) in asked(connection, "SHOW TABLES LIKE %s", f"{make_url(url).query['prefix']}%"):
            run(connection, f"DROP TABLE {name}")


def test_a_refused_task_sends_nothing(engine: Engine, caller: pymysql.Connection[Any], sent: list[str]) -> None:
    """C7: one task that is refused keeps all out, and the caller's transaction goes on."""
    with pytest.raises(TaskRejected, match="priority"):
        engine.enlist(caller, [*ONE, NewTask("q", "s", priority=-1)])
    assert sent == []


# Trouble on the way


def test_a_read_only_session_says_so(engine: Engine, url: str) -> None:
    """PERMANENT: the caller asked for transactions that write nothing."""
    with (
        closing(callers(url, "SET SESSION TRANSACTION READ ONLY")) as caller,
        pytest.raises(PermanentStoreError, match=r"your transaction on .* is read-only"),
    ):
        engine.enlist(caller, ONE)


def test_missing_tables_name_the_command(caller: pymysql.Connection[Any], url: str) -> None:
    """Section 6: a schema that is not there is a SchemaError with the command that makes it."""
    store = open_url(url)
    assert isinstance(store, Enlist)
    with pytest.raises(SchemaError, match="wiggle db upgrade"):
        store.enlist(caller, [make_task("a")])
    store.close()


def test_a_lost_connection_loses_the_transaction(engine: Engine, caller: pymysql.Connection[Any], url: str) -> None:
    """TRANSIENT: nothing was committed, so the caller may run the transaction again."""
    engine.enlist(caller, ONE)
    with plain(url) as other:
        run(other, f"KILL {caller.thread_id()}")  # type: ignore[no-untyped-call]
    with pytest.raises(TransientStoreError, match="failed, as the server ended it, or its connection") as caught:
        engine.enlist(caller, [NewTask("q", "s", id="secret id")])
    assert "secret" not in str(caught.value)
    assert "INSERT" not in str(caught.value)
    assert states(engine) == {}


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_callers_own_limits_hold(engine: Engine, url: str, orders: str, is_killed: bool) -> None:
    """TRANSIENT: an id that another transaction holds is waited for as long as the caller allows. Who goes on after the
    error has the rest of the transaction as it was, and nothing of the tasks."""
    limit = f"SET innodb_lock_wait_timeout = {60 if is_killed else 1}"
    with closing(callers(url)) as first, closing(callers(url, limit)) as second, ThreadPoolExecutor(1) as pool:
        engine.enlist(first, [NewTask("q", "s", id="b")])
        run(second, f"INSERT INTO {orders} VALUES ('kept')")
        engine.enlist(second, [NewTask("q", "s", id="before")])
        waiting = pool.submit(engine.enlist, second, [NewTask("q", "s", id=each) for each in "abc"])
        if is_killed:
            wait_until(lambda: _waits(second, url), pause=COPY_AGE)
            with plain(url) as other:
                run(other, f"KILL QUERY {second.thread_id()}")  # type: ignore[no-untyped-call]
        with pytest.raises(TransientStoreError, match=r"could not have a lock|mostly for its time") as caught:
            waiting.result(PATIENCE)
        assert "statement_timeout=" not in str(caught.value)
        second.commit()
        assert asked(second, f"SELECT id FROM {orders}") == [("kept",)]
    assert states(engine).keys() == {"before"}
    assert engine.store.audit() == []


# An open transaction holds up nobody (N3)

PROGRAM = """
import sys
from tests.stores.mysql_prefixes import connect_plainly
from wiggle_core import NewTask, open_engine

url = sys.argv[1]
engine = open_engine(url)
connection = connect_plainly(url, autocommit=False)
engine.enlist(connection, [NewTask("q", "s", id=f"open {number}") for number in range(100)])
engine.enlist(connection, [NewTask("q", "s", id="taken")])
print(connection.thread_id(), flush=True)
sys.stdin.read()
connection.commit()
print("committed", flush=True)
"""


def test_a_producer_stopped_in_its_transaction_holds_up_nobody(engine: Engine, url: str) -> None:
    """N3: with a process stopped inside an open transaction, all others work on, lanes open and close, and an id that
    it was not the first to name is settled and forgotten."""
    engine.enqueue("q", "s", id="taken")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as producer:  # fmt: skip
        assert producer.stdin is not None
        assert producer.stdout is not None
        thread = int(producer.stdout.readline())
        producer.send_signal(signal.SIGSTOP)
        try:
            _work_as_usual(with_options(url, statement_timeout="3"))
            # None on rows but its own new ones, whose locks are not written down until somebody meets them.
            assert _of_transaction("trx_rows_locked", thread, url) == [0]
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
        other.enqueue_many(NewTask("q", "s", id=f"open {number}x") for number in range(100))
        other.enqueue("q", "s", id="late", delay=timedelta(microseconds=1))
        other.declare(f"w{uuid4().hex}", version=1, attributes=[Attribute("n", int, "n")])
        wait_until(lambda: _wake_all(other))
        opened = other.lanes.open([route_of(COMMON)])
        assert [lane.state for lane in opened] == [LaneState.OPEN]
        while claimed := other.claim("w", [COMMON], limit=500):
            assert other.extend([task.lease for task in claimed])
            assert len(other.settle_many((task, Done()) for task in claimed)) == len(claimed)
        other.sweep()
        assert other.store.audit() == []
        assert len(other.lanes.close([lane.id for lane in opened])) == 1
        assert other.store.purge(other.store.now() + 1, 2_000) == 1_602
