"""Trouble with the file, the disk and other processes: the right class of error, a clear sentence, nothing lost."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.sqlite_files import open_file, ready, ready_ids, require_plain_words
from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_sqlite.errors import translate
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


# The disk


def test_a_full_disk_is_named_and_nothing_is_applied(store: SqliteStore, path: Path) -> None:
    """Disk full is PERMANENT, the transaction is rolled back, and the store works on when there is space again."""
    store.enqueue([ready("a")])
    with store._connections.reading() as connection:
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(PermanentStoreError, match="the disk is full") as caught:
        store.enqueue([ready("b"), ready("c", '"' + "x" * 100_000 + '"')])
    require_plain_words(caught.value, path)
    assert ready_ids(store) == ["a"]
    with store._connections.reading() as connection:
        assert not connection.in_transaction
        connection.execute("PRAGMA max_page_count = 1000000")
    assert store.enqueue([ready("b")]) == {"b"}


FILE_LIMIT = """
import resource, signal, sys
from wiggle_core.errors import AmbiguousStoreError
from wiggle_core.stores.registry import open_store
from wiggle_core.tasks.task import TaskRecord

def ready(task_id, payload):
    return TaskRecord(task_id, "q", "s", 1, 1, payload=payload)

store = open_store(sys.argv[1])
store.enqueue([ready("a", "null")])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
try:
    store.enqueue([ready("b", '"' + "x" * 500_000 + '"')])
except AmbiguousStoreError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print(sorted(store.lookup(["a", "b"])), store.enqueue([ready("b", "1")]))
"""


def test_a_write_error_at_commit_is_ambiguous(store: SqliteStore, path: Path) -> None:
    """A commit that the operating system cut short is looked up, never replayed blindly (L6): here, not applied."""
    ran = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, f"sqlite:///{path}"], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "['a'] {'b'}\n", ran.stderr
    assert store.audit() == []


@pytest.mark.parametrize(
    ("code", "is_commit", "kind"),
    [
        (sqlite3.SQLITE_BUSY, False, TransientStoreError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False, TransientStoreError),
        (sqlite3.SQLITE_LOCKED, False, TransientStoreError),
        (sqlite3.SQLITE_FULL, True, PermanentStoreError),
        (sqlite3.SQLITE_READONLY_DBMOVED, False, PermanentStoreError),
        (sqlite3.SQLITE_CORRUPT_INDEX, False, PermanentStoreError),
        (sqlite3.SQLITE_IOERR_FSYNC, True, AmbiguousStoreError),
        (sqlite3.SQLITE_IOERR_READ, False, PermanentStoreError),
        (sqlite3.SQLITE_IOERR_LOCK, False, TransientStoreError),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, False, PermanentStoreError),
        (sqlite3.SQLITE_ERROR, False, PermanentStoreError),
    ],
)
def test_each_code_has_its_class(code: int, is_commit: bool, kind: type[StoreError]) -> None:
    """Every error of the driver becomes one of three classes, by its code and where it was met."""
    error = sqlite3.OperationalError("near SELECT: a secret")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "NAME"
    translated = translate(error, "the database 'x'", is_commit=is_commit)
    assert type(translated) is kind
    assert "x" in str(translated)
    assert "secret" not in str(translated)


def test_a_value_that_cannot_be_stored_is_an_error_of_ours(store: SqliteStore) -> None:
    """What the driver cannot bind is PERMANENT, and the connection stays clean."""
    for bad in (ready("\ud800"), TaskRecord("big", "q", "s", 2**63, 1)):
        with pytest.raises(PermanentStoreError):
            store.enqueue([ready("good"), bad])
    assert store.enqueue([ready("good")]) == {"good"}


# Other processes


HOLDER = """
import sys, time
from wiggle_core.stores.registry import open_store
from wiggle_core.tasks.task import TaskRecord

store = open_store(sys.argv[1])
with store._connections.writing() as connection:
    connection.execute("DELETE FROM task")
    print("inside", flush=True)
    sys.stdin.readline()
print("done", flush=True)
"""


@pytest.fixture
def holder(store: SqliteStore, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a write transaction that deletes every task; a line on its stdin lets it commit."""
    store.enqueue([ready("a"), ready("b")])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"sqlite:///{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        yield process
        process.kill()


def test_a_writer_killed_in_its_transaction_leaves_nothing(
    store: SqliteStore, path: Path, holder: subprocess.Popen[str]
) -> None:
    """kill -9 in the middle of a transaction: its changes are gone, its lock is free, and the file is sound."""
    holder.kill()
    holder.wait()
    assert ready_ids(store) == ["a", "b"]
    assert store.enqueue([ready("c")]) == {"c"}
    reopened = open_file(path)
    assert ready_ids(reopened) == ["a", "b", "c"]
    assert reopened.audit() == []
    reopened.close()


def test_a_lock_held_too_long_is_transient(store: SqliteStore, path: Path, holder: subprocess.Popen[str]) -> None:
    """A writer that waits longer than the timeout hears TRANSIENT, with nothing applied; readers are not disturbed."""
    impatient = open_file(path, "?timeout=0.1")
    with pytest.raises(TransientStoreError, match=r"locked by another process .* `\?timeout=SECONDS`") as caught:
        impatient.enqueue([ready("c")])
    require_plain_words(caught.value, path)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert ready_ids(impatient) == ["a", "b"]
    impatient.close()


def test_a_stopped_writer_is_waited_for(store: SqliteStore, path: Path, holder: subprocess.Popen[str]) -> None:
    """A process stopped inside its transaction blocks writers and no reader; when it goes on, so do they."""
    holder.send_signal(signal.SIGSTOP)
    impatient = open_file(path, "?timeout=0.1")
    with pytest.raises(TransientStoreError):
        impatient.enqueue([ready("c")])
    assert ready_ids(impatient) == ["a", "b"]
    holder.send_signal(signal.SIGCONT)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    assert store.enqueue([ready("c")]) == {"c"}
    assert holder.stdout.readline() == "done\n"
    assert ready_ids(impatient) == ["c"]
    impatient.close()


MIGRATOR = """
import sys
from wiggle_core.stores.registry import open_store

sys.stdin.readline()
store = open_store(sys.argv[1])
print(store.migrate(), flush=True)
store.verify()
"""


def test_processes_that_migrate_at_once_all_succeed(path: Path) -> None:
    """Migrations are applied once, under the database's lock, whoever comes first."""
    starting = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATOR, f"sqlite:///{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in starting:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    answers = [process.communicate() for process in starting]
    assert [process.returncode for process in starting] == [0] * 4, answers
    assert sorted(out for out, _ in answers) == ["['0001_tasks', '0002_lanes']\n", "[]\n", "[]\n", "[]\n"]
    store = open_file(path)
    assert store.audit() == []
    store.close()
