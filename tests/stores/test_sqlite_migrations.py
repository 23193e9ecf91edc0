"""The schema of a SQLite store: made once, checked by name and checksum, audited for what no statement of ours does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.sqlite_files import connect_plainly, open_file
from wiggle_core.errors import SchemaError
from wiggle_core.stores.sql.migrations import Migration
from wiggle_core.stores.store import ClaimRequest, Finish, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_file(path)
    opened.migrate()
    yield opened
    opened.close()


def run(path: Path, *statements: str) -> None:
    """What somebody does by hand."""
    connection = connect_plainly(path)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def require_refusal(store: SqliteStore, message: str) -> None:
    for use in (store.verify, store.migrate):
        with pytest.raises(SchemaError, match=message):
            use()


def test_migrating_again_does_nothing(store: SqliteStore) -> None:
    """Migrations are forward only and applied once."""
    store.enqueue([TaskRecord("a", "q", "s", 1, 1)])
    assert store.migrate() == []
    store.verify()
    assert store.get("a") is not None


def test_a_newer_schema_is_refused(store: SqliteStore, path: Path) -> None:
    """A schema with a migration that this version does not know asks for a newer wiggle."""
    run(path, "INSERT INTO wiggle_migration VALUES ('9999_later', 'x', 1)")
    require_refusal(store, "9999_later, which this version of wiggle does not know: upgrade wiggle-core")


def test_an_altered_migration_is_refused(store: SqliteStore, path: Path) -> None:
    """A schema made by another migration of the same name is refused, naming it."""
    run(path, "UPDATE wiggle_migration SET checksum = 'x'")
    require_refusal(store, "another 0001_tasks than this version's")


def test_an_older_schema_names_the_command(store: SqliteStore, path: Path) -> None:
    """A schema that lacks a migration names `wiggle db upgrade` with the store's URL."""
    run(path, "DELETE FROM wiggle_migration")
    with pytest.raises(SchemaError, match=re.escape(f"run `wiggle db upgrade --store sqlite:///{path}`")):
        store.verify()


def test_a_migration_cut_short_before_the_log_is_run_again(store: SqliteStore, path: Path) -> None:
    """Killed between its commit and the switch to WAL, a migration is completed by the next one."""
    store.close()
    run(path, "PRAGMA journal_mode = DELETE")
    again = open_file(path)
    with pytest.raises(SchemaError, match="wiggle db upgrade"):
        again.verify()
    assert again.migrate() == []
    again.verify()
    again.close()


def test_a_failed_migration_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is one transaction with its entry in the book."""
    broken = Migration("0001_tasks", "CREATE TABLE one (a TEXT) STRICT;\nCREATE TABLE one (a TEXT) STRICT;\n")
    store = open_file(path)
    with monkeypatch.context() as patched:
        patched.setattr("wiggle_store_sqlite.schema.MIGRATIONS", (broken,))
        with pytest.raises(Exception, match="wiggle db check"):
            store.migrate()
    connection = connect_plainly(path)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == []
    connection.close()
    assert store.migrate() == ["0001_tasks", "0002_lanes"]
    store.close()


def test_the_printed_schema_is_the_one_that_is_made(path: Path) -> None:
    """Whoever runs DDL by hand gets a database that verify and audit accept."""
    store = open_file(path)
    connection = connect_plainly(path)
    connection.executescript(store.schema_sql())
    connection.close()
    store.verify()
    assert store.migrate() == []
    assert store.audit() == []
    store.close()


def test_checksums_do_not_depend_on_line_ends() -> None:
    """A checkout with other line ends is the same migration; one with another letter is not."""
    sql = "CREATE TABLE a (b TEXT);\n-- c\n"
    assert Migration("1", sql).checksum == Migration("1", sql.replace("\n", "\r\n")).checksum
    assert Migration("1", sql).checksum != Migration("1", sql.replace("c", "d")).checksum


def test_a_migration_is_cut_into_statements() -> None:
    """Statements end with a semicolon at the end of a line; comment lines are no part of them."""
    sql = "-- one; two;\nCREATE TABLE a (\n    -- why;\n    b TEXT DEFAULT ';'\n);\n\nSELECT 1;  \nSELECT 2"
    expected = ["CREATE TABLE a (\n    b TEXT DEFAULT ';'\n)", "SELECT 1", "SELECT 2"]
    assert Migration("1", sql).statements == expected


def _fill(store: SqliteStore) -> None:
    store.enqueue([TaskRecord(f"t{number}", "q", "s", number, 1) for number in range(4)])
    first, _ = store.claim(ClaimRequest("w", "t", 1, 2, (Route("q"),)))
    store.apply([Finish(first.lease, State.DONE)])


def test_a_sound_store_has_no_findings(store: SqliteStore, path: Path) -> None:
    """An audit of what our own statements made finds nothing, statistics of SQLite's included."""
    _fill(store)
    run(path, "ANALYZE")
    assert store.audit() == []


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE task SET state = 'DONE' WHERE id = 't2'", "task 't2' is live in a state that is settled or unknown"),
        ("UPDATE history SET state = 'READY'", "task 't0' is in history in a state that is live or unknown"),
        ("UPDATE task SET lease_until = NULL WHERE id = 't1'", "task 't1' is RUNNING without a lease"),
        ("UPDATE task SET lease_until = 5 WHERE id = 't2'", "task 't2' has a lease but is not RUNNING"),
        ("UPDATE task SET id = 't0' WHERE id = 't3'", "task 't0' is both live and in history"),
        ("UPDATE task SET attributes = '{' WHERE id = 't2'", "task 't2' has attributes that cannot be read"),
        (
            "UPDATE task SET attributes = '{\"a\": \"x\"}' WHERE id = 't2'",
            "task 't2' has attributes that cannot be read",
        ),
        ("UPDATE history SET attributes = '[]'", "task 't0' is in history with attributes that cannot be read"),
        ("UPDATE task SET priority = -1 WHERE id = 't2'", "task 't2' has a priority or attempt that no task can have"),
        ("UPDATE task SET retry = '[1]' WHERE id = 't2'", "task 't2' has a retry policy that cannot be read"),
        (
            "UPDATE task SET retry = '[\"a\",1,2,3,4]' WHERE id = 't2'",
            "task 't2' has a retry policy that cannot be read",
        ),
        ("UPDATE history SET retry = 'x'", "task 't0' is in history with a retry policy that cannot be read"),
        ("DELETE FROM payload WHERE number = 3", "task 't2' has no payload"),
        ("INSERT INTO payload VALUES (99, 'null')", "1 payloads belong to no task"),
        ("DROP INDEX task_dispatch", "index task_dispatch is missing"),
        ("CREATE INDEX mine ON task (step)", "index mine is not wiggle's"),
        ("ALTER TABLE document ADD COLUMN note TEXT", "table document was altered"),
    ],
)
def test_an_audit_names_what_is_wrong(store: SqliteStore, path: Path, damage: str, finding: str) -> None:
    """`wiggle db check` says in a sentence what no statement of ours can have done."""
    _fill(store)
    run(path, damage)
    assert store.audit() == [finding]


def test_a_damaged_file_is_found(store: SqliteStore, path: Path) -> None:
    """Pages overwritten by something else are found."""
    store.enqueue([TaskRecord(f"t{number}", "q", "s", number, 1, payload='"x"' * 100) for number in range(500)])
    store.close()
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xff" * 4096 * 5)
    again = open_file(path)
    findings = again.audit()
    assert findings
    assert "damaged" in findings[0]
    again.close()
