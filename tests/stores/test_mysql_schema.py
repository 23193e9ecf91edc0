"""The schema of the MySQL and MariaDB store: made, resumed, checked, audited and dropped, on both products."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from sqlalchemy import make_url

from tests.stores.mysql_prefixes import asked, connect_plainly, fresh_place, open_url, plain
from tests.stores.postgres_schemas import with_options
from tests.stores.test_postgres_facts import ready
from tests.stores.waiting import PATIENCE
from wiggle_core.errors import PermanentStoreError, SchemaError, TransientStoreError
from wiggle_core.stores.sql.migrations import TABLE
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_store_mysql import open_scratch
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.place import read_url
from wiggle_store_mysql.schema import MIGRATIONS, TABLES, drop
from wiggle_store_mysql.store import MySQLStore

NAMES = [migration.name for migration in MIGRATIONS]
STATEMENTS = 1 + sum(len(migration.statements) + 1 for migration in MIGRATIONS)
"""How many statements of a first migration change something: the book, and each migration with its note."""


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    with fresh_place(mysql_like_url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    """A store with its tables."""
    with closing(open_url(url)) as opened:
        opened.migrate()
        yield opened


def prefix_of(url: str) -> str:
    return str(make_url(url).query["prefix"])


def shape_of(connection: pymysql.Connection[Any], url: str) -> dict[str, str]:
    """How each table is made, without its prefix, and what its rows are where a migration writes some."""
    prefix, found = prefix_of(url), {}
    for (table,) in asked(connection, "SHOW TABLES LIKE %s", prefix.replace("_", "\\_") + "%"):
        made = str(asked(connection, f"SHOW CREATE TABLE `{table}`")[0][1])
        found[table.removeprefix(prefix)] = re.sub(r" AUTO_INCREMENT=\d+", "", made.replace(prefix, ""))
    for table in found.keys() & {"lane_number", "lane_epoch"}:
        found[f"rows of {table}"] = str(asked(connection, f"SELECT * FROM `{prefix}{table}`"))
    return found


def run_all(connection: pymysql.Connection[Any], text: str) -> None:
    """Run statements, as an administrator would."""
    with connection.cursor() as cursor:
        cursor.execute(text)
        while cursor.nextset():
            pass


# Made


def test_opening_touches_nothing(url: str) -> None:
    """Only migrate makes tables; a store that was merely opened leaves no trace."""
    with closing(open_url(url)) as store, plain(url) as connection:
        with pytest.raises(SchemaError, match="is missing: run `wiggle db upgrade --store m"):
            store.verify()
        assert shape_of(connection, url) == {}


def test_migrating_twice_applies_once(url: str) -> None:
    """The first migration makes everything, the second finds nothing to do."""
    with closing(open_url(url)) as store:
        assert store.migrate() == NAMES
        assert store.migrate() == []
        store.verify()
        assert store.audit() == []


def test_migrations_at_once_all_succeed(url: str) -> None:
    """Migrations are applied once, under the server's lock, whoever comes first."""
    stores = [open_url(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        applied = [each.result() for each in [pool.submit(store.migrate) for store in stores]]
    assert sorted(map(len, applied)) == [0, 0, 0, len(MIGRATIONS)]
    for store in stores:
        store.verify()
        store.close()


def test_a_migration_that_others_are_at_is_waited_for_with_a_bound(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the lock taken waits, and says in the end that another process migrates."""
    at_work, may_go = threading.Event(), threading.Event()
    plain_run = Session.run

    def slow(session: Session, statement: str, binds: tuple[object, ...] = ()) -> int:
        if threading.current_thread() is migrating and "CREATE TABLE" in statement:
            at_work.set()
            may_go.wait(PATIENCE)
        return plain_run(session, statement, binds)

    with closing(open_url(url)) as first, closing(open_url(with_options(url, statement_timeout="1"))) as second:
        migrating = threading.Thread(target=first.migrate, daemon=True)
        monkeypatch.setattr(Session, "run", slow)
        migrating.start()
        assert at_work.wait(PATIENCE)
        with pytest.raises(TransientStoreError, match="another process migrates the database"):
            second.migrate()
        may_go.set()
        migrating.join(30)
        assert second.migrate() == []


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("done", range(STATEMENTS))
def test_a_migration_that_broke_off_goes_on(url: str, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a migration was interrupted, the next one makes the same schema of it, and nothing twice."""
    with fresh_place(url) as other, closing(open_url(other)) as whole, plain(url) as connection:
        whole.migrate()
        expected = shape_of(connection, other)
        run, left = Session.run, done

        def interrupted(session: Session, statement: str, binds: tuple[object, ...] = ()) -> int:
            nonlocal left
            if "SET SESSION" not in statement:
                left -= 1
                if left < 0:
                    raise Killed
            return run(session, statement, binds)

        with closing(open_url(url)) as store:
            with monkeypatch.context() as patched:
                patched.setattr(Session, "run", interrupted)
                with pytest.raises(Killed):
                    store.migrate()
            with pytest.raises(SchemaError, match="run `wiggle db upgrade"):
                store.verify()
            assert set(store.migrate()) <= set(NAMES)
            store.verify()
            assert store.audit() == []
            assert shape_of(connection, url) == expected


DIES = """
import os, sys
from sqlalchemy import make_url
from wiggle_store_mysql import open_store
from wiggle_store_mysql.connections import Session

run = Session.run
def dies(session, statement, binds=()):
    if "$history (" in statement:
        os._exit(9)
    return run(session, statement, binds)
Session.run = dies
open_store(make_url(sys.argv[1])).migrate()
"""


def test_a_migration_whose_process_died_goes_on(url: str) -> None:
    """The lock of a process that is no more is free, and its work is finished by the next one."""
    ran = subprocess.run([sys.executable, "-c", DIES, url], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (9, "")
    with closing(open_url(url)) as store:
        assert store.migrate() == NAMES
        assert store.audit() == []


def test_a_database_that_is_missing_is_made(mysql_like_url: str) -> None:
    """migrate makes the database, too, where the account may; verify names the command before."""
    name = f"test_{uuid4().hex[:12]}"
    url = make_url(mysql_like_url).set(database=name).render_as_string(hide_password=False)
    with plain(mysql_like_url) as connection, closing(open_url(url)) as store:
        try:
            with pytest.raises(SchemaError, match="does not exist: run `wiggle db upgrade --store m"):
                store.verify()
            assert store.migrate() == NAMES
            assert store.audit() == []
        finally:
            asked(connection, f"DROP DATABASE {name}")


def test_the_statements_for_hand_work_make_the_same_schema(url: str) -> None:
    """What `db sql` prints makes a schema that verify and audit accept, and migrate has nothing to add to."""
    with closing(open_url(url)) as store, fresh_place(url) as other, closing(open_url(other)) as whole:
        whole.migrate()
        with plain(url) as connection:
            run_all(connection, store.schema_sql())
        store.verify()
        assert store.migrate() == []
        assert store.audit() == []
        with plain(url) as connection:
            assert shape_of(connection, url) == shape_of(connection, other)


# Refused


def test_another_programs_table_is_left_alone(url: str) -> None:
    """A table with a name of ours that wiggle did not make is refused, and nothing is made beside it."""
    with closing(open_url(url)) as store, plain(url) as connection:
        asked(connection, f"CREATE TABLE {prefix_of(url)}task (id INT)")
        before = shape_of(connection, url)
        for use in (store.migrate, store.verify):
            with pytest.raises(SchemaError, match=r"_task in the database .* belongs to another program: name another"):
                use()
        assert shape_of(connection, url) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("INSERT INTO {book} VALUES ('9999_newer', 'x', 1)", "which this version of wiggle does not know"),
        ("UPDATE {book} SET checksum = 'x'", "was made by another 0001_tasks than this version's"),
        ("DELETE FROM {book}", "run `wiggle db upgrade --store m"),
        ("DELETE FROM {book} WHERE name LIKE '0002%%'", "is older than this version of wiggle"),
    ],
)
def test_a_schema_of_another_version_is_refused(store: MySQLStore, url: str, change: str, message: str) -> None:
    """A newer, altered or unfinished schema is told apart, with what helps."""
    with plain(url) as connection:
        asked(connection, change.format(book=prefix_of(url) + TABLE.removeprefix("wiggle_")).replace("%%", "%"))
    with pytest.raises(SchemaError, match=message):
        store.verify()


@contextmanager
def calling_itself(url: str, version: str) -> Iterator[str]:
    """The URL of the same server, which says that it is of another version."""
    parts = make_url(url)

    def forward(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection((parts.host, parts.port))
            greeting = server.recv(4096)
            behind = greeting.index(0, 5)
            told = greeting[4:5] + version.encode() + greeting[behind:]
            client.sendall(len(told).to_bytes(3, "little") + greeting[3:4] + told)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=forward, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield parts.set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("5.7.44-log", "is MySQL 5.7.44: .*8.0.17"),
        ("8.0.16", "is MySQL 8.0.16: .*8.0.17"),
        ("5.5.5-10.5.29-MariaDB-1:10.5.29", "is MariaDB 10.5.29: .*10.6"),
        ("10.4.3-MariaDB", "is MariaDB 10.4.3: .*10.6"),
    ],
)
def test_a_server_that_is_too_old_is_refused(mysql_url: str, version: str, message: str) -> None:
    """What the statements need came with MySQL 8.0.17 and MariaDB 10.6: an older server is named, and left alone."""
    with calling_itself(mysql_url, version) as url, closing(open_url(url)) as store:
        for use in (store.migrate, store.verify):
            with pytest.raises(PermanentStoreError, match=message):
                use()


@pytest.mark.parametrize(
    ("product", "version"), [("mysql", "8.0.17"), ("mariadb", "5.5.5-10.6.0-MariaDB"), ("mariadb", "11.8.2-MariaDB")]
)
def test_a_server_that_is_old_enough_is_taken(request: pytest.FixtureRequest, product: str, version: str) -> None:
    """The oldest version of each, and MariaDB's since 11, which no longer hide behind another one."""
    with (
        fresh_place(request.getfixturevalue(f"{product}_url")) as fresh,
        calling_itself(fresh, version) as url,
        closing(open_url(url)) as store,
    ):
        assert store.migrate() == NAMES
        assert store.audit() == []


# Audited

FINDINGS = {
    "INSERT INTO {p}history (id, queue, step, kind, created_at, ready_at, finished_at, attempt, priority, state, "
    "attributes) SELECT id, queue, step, kind, 1, 1, 1, 1, 0, 'DONE', '{{}}' FROM {p}task": "'a' is both live",
    "DELETE FROM {p}payload": "task 'a' has no payload",
    "UPDATE {p}task SET attributes = '{{\"x\": 1}}'": "task 'a' has attributes that cannot be read",
    'UPDATE {p}task SET attributes = \'{{"x": "Sx"}}\'': "task 'a' has attributes that cannot be read",
    'UPDATE {p}task SET attributes = \'{{"x": "sx", "y": ["sx"]}}\'': "task 'a' has attributes that cannot be",
    "UPDATE {p}task SET attributes = '[]'": "task 'a' has attributes that cannot be read",
    "UPDATE {p}task SET state = 'LOST'": "task 'a' is live in a state that is settled or unknown",
    "UPDATE {p}task SET state = 'RUNNING'": "task 'a' is RUNNING without a lease",
    "UPDATE {p}task SET lease_until = 1": "task 'a' has a lease but is not RUNNING",
    "UPDATE {p}task SET retry = '[1]'": "task 'a' has a retry policy that cannot be read",
    "UPDATE {p}task SET priority = -1": "task 'a' has a priority or attempt that no task can have",
    "DELETE FROM {p}task": "1 payloads belong to no task",
    "DELETE FROM {p}lane_number": "the number of the present lanes is missing",
    "DELETE FROM {p}lane_epoch": "the number of the present lanes is missing",
    "DROP TABLE {p}lane": "lane is missing",
    "DROP INDEX task_due ON {p}task": "the index task_due (due_at, id) of {p}task is missing, or not as it was made",
    "ALTER TABLE {p}task DROP KEY task_due, ADD KEY task_due (due_at)": "the index task_due (due_at, id) of {p}task",
    "ALTER TABLE {p}lane DROP KEY lane_state, ADD KEY lane_state (state(3))": "the index lane_state (state) of {p}lane",
    "ALTER TABLE {p}payload DROP PRIMARY KEY": "the index PRIMARY (id) of {p}payload is missing",
    "ALTER TABLE {p}task MODIFY step VARCHAR(255) COLLATE utf8mb4_bin NOT NULL": "{p}task.step is not in the collation",
    "ALTER TABLE {p}lane_number ENGINE = MyISAM": "{p}lane_number is kept by MyISAM, not by InnoDB",
}
HIDDEN = {"mysql": "ALTER INDEX task_due INVISIBLE", "mariadb": "ALTER INDEX task_due IGNORED"}


@pytest.mark.parametrize("damage", FINDINGS)
def test_the_audit_finds_what_is_wrong(store: MySQLStore, url: str, damage: str) -> None:
    """`wiggle db check` names each contradiction in the data, and each table, index or column that is not as made."""
    store.enqueue([ready("a")])
    assert store.audit() == []
    with plain(url) as connection:
        asked(connection, damage.format(p=prefix_of(url)))
    expected = FINDINGS[damage].format(p=prefix_of(url))
    assert any(expected in finding for finding in store.audit())


def test_the_audit_finds_an_index_that_is_not_used(store: MySQLStore, url: str) -> None:
    """An index that the planner may not look at is as good as none."""
    with plain(url) as connection:
        asked(connection, f"ALTER TABLE {prefix_of(url)}task {HIDDEN[make_url(url).get_backend_name()]}")
    assert store.audit() == [
        f"the index task_due (due_at, id) of {prefix_of(url)}task is missing, or not as it was made"
    ]


def test_the_audit_reads_what_is_in_order(store: MySQLStore) -> None:
    """Attributes of every kind of character, and a policy of its own, are no findings."""
    attributes = {"a": 'say "x, y" \\ [1]', "b": True, "c": Decimal("-1.5e3"), "d": "", "e": "\U0001f600\n" * 60}
    store.enqueue([ready("a", attributes=attributes, retry=RetryPolicy(max_attempts=2))])
    assert store.audit() == []


# Rights


@contextmanager
def account(url: str) -> Iterator[tuple[str, str]]:
    """An account without any right, for where we come from: its name and host, and the URL with it."""
    name = f"test_{uuid4().hex[:12]}"
    with plain(url) as connection:
        host = asked(connection, "SELECT USER()")[0][0].rpartition("@")[2]
        asked(connection, f"CREATE USER '{name}'@'{host}' IDENTIFIED BY 'secret'")
        try:
            yield (
                f"{name}@{host}",
                make_url(url).set(username=name, password="secret").render_as_string(hide_password=False),
            )
        finally:
            asked(connection, f"DROP USER '{name}'@'{host}'")


def test_an_account_needs_no_more_than_what_roles_prints(store: MySQLStore, url: str) -> None:
    """With the grants of `db roles` an account works with tasks and documents, and runs no DDL."""
    with account(url) as (name, theirs), closing(open_url(theirs)) as used:
        with pytest.raises(PermanentStoreError, match="this user may not use the database"):
            used.verify()
        with plain(url) as connection:
            run_all(connection, store.role_sql(name))
        used.verify()
        assert used.migrate() == []
        assert used.enqueue([ready("a")]) == {"a"}
        assert used.put_document("k", "d", "{}") == 1
        assert used.audit() == []
        with plain(theirs) as connection, pytest.raises(pymysql.MySQLError, match="denied"):
            asked(connection, f"DROP TABLE {prefix_of(url)}task")


def test_a_name_of_an_account_is_quoted(store: MySQLStore) -> None:
    """Whatever is in it; a host may stand behind an @."""
    assert "TO `a``b`@`%`;" in store.role_sql("a`b")
    assert "TO `app`@`10.0.0.%`;" in store.role_sql("app@10.0.0.%")


# Dropped


def test_a_scratch_store_leaves_nothing_behind(mysql_like_url: str) -> None:
    """A scratch store has tables of its own beside the store's, dropped when it is closed, twice too."""
    with closing(connect_plainly(mysql_like_url)) as connection:
        tables = "SHOW TABLES LIKE 'wiggle\\_scratch\\_%'"
        before = set(asked(connection, tables))
        scratch = open_scratch(make_url(mysql_like_url))
        scratch.enqueue([ready("a")])
        assert len(set(asked(connection, tables)) - before) == len(TABLES) + 1
        scratch.close()
        scratch.close()
        assert set(asked(connection, tables)) <= before


def test_only_our_tables_are_dropped(store: MySQLStore, url: str) -> None:
    """A table of another program stays, even where its name begins like ours."""
    with plain(url) as connection:
        other = f"{prefix_of(url)}task_of_others"
        asked(connection, f"CREATE TABLE {other} (id INT)")
        drop(read_url(make_url(url)))
        try:
            assert set(shape_of(connection, url)) == {"task_of_others"}
        finally:
            asked(connection, f"DROP TABLE {other}")
