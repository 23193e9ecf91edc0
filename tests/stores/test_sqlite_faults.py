"""Trouble with the file, the disk and other processes: the right class of error, a clear sentence, nothing lost."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tests.stores.sqlite_files import connect_plainly, open_file
from wiggle_core.errors import (
    AmbiguousStoreError,
    InvalidStoreUrl,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_sqlite import open_scratch, open_store
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


def ready(task_id: str, payload: str = "null") -> TaskRecord:
    return TaskRecord(task_id, "q", "s", 1, 1, payload=payload)


def ids(store: SqliteStore) -> list[str]:
    return [task.id for task in store.find(Route("q"), [State.READY], 1000)]


def require_plain_words(error: StoreError, path: Path) -> None:
    """The message names the file and shows no SQL; the driver's error is the cause."""
    assert str(path) in str(error)
    assert not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE|json_each)\b", str(error))


# The file


USES: dict[str, Callable[[SqliteStore], object]] = {
    "verify": lambda store: store.verify(),
    "audit": lambda store: store.audit(),
    "enqueue": lambda store: store.enqueue([ready("a")]),
    "claim": lambda store: store.claim(ClaimRequest("w", "t", 1, 1, (Route("q"),))),
    "get": lambda store: store.get("a"),
}


@pytest.mark.parametrize("use", USES)
def test_a_missing_file_is_not_created(path: Path, use: str) -> None:
    """Only migrate creates a file; everything else names the command that does."""
    store = open_file(path)
    with pytest.raises(SchemaError, match=re.escape(f"`wiggle db upgrade --store sqlite:///{path}`")):
        USES[use](store)
    store.close()
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_can_be_migrated(path: Path) -> None:
    """A file of no bytes is a database without schema."""
    path.touch()
    store = open_file(path)
    with pytest.raises(SchemaError, match="wiggle db upgrade"):
        store.verify()
    assert store.migrate()
    store.verify()
    store.close()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A directory is no database."""
    store = open_file(tmp_path)
    for use in (store.verify, store.migrate):
        with pytest.raises(PermanentStoreError, match="is a directory"):
            use()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """Migrate makes a file, not the directories around it."""
    store = open_file(tmp_path / "no" / "tasks.db")
    with pytest.raises(PermanentStoreError, match="check that its directory exists") as caught:
        store.migrate()
    require_plain_words(caught.value, tmp_path)


def _make_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def _make_text(path: Path) -> None:
    path.write_text("SQLite format 3, said the file.\n" * 100)


def _make_strangers(path: Path) -> None:
    connection = connect_plainly(path)
    connection.execute("CREATE TABLE task (id TEXT)")
    connection.close()


def _make_strangers_with_log(path: Path) -> None:
    connection = connect_plainly(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE task (id TEXT)")
    connection.close()


def _make_marked(path: Path) -> None:
    connection = connect_plainly(path)
    connection.execute("PRAGMA application_id = 1234")
    connection.execute("VACUUM")
    connection.close()


@pytest.mark.parametrize(
    "make",
    [_make_garbage, _make_text, _make_strangers, _make_strangers_with_log, _make_marked],
    ids=lambda make: make.__name__,
)
def test_a_file_that_is_not_ours_stays_as_it_is(path: Path, make: Callable[[Path], None]) -> None:
    """A file that wiggle did not make is refused, and neither changed nor joined by others."""
    make(path)
    before = path.read_bytes()
    for use in (*USES.values(), SqliteStore.migrate):
        store = open_file(path)
        with pytest.raises(PermanentStoreError, match=r"is not a SQLite database|belongs to another program") as caught:
            use(store)
        require_plain_words(caught.value, path)
        store.close()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_read_only_store_answers_questions(store: SqliteStore, path: Path) -> None:
    """`?mode=ro` reads, and refuses to write in words."""
    store.enqueue([ready("a")])
    reader = open_file(path, "?mode=ro")
    assert ids(reader) == ["a"]
    reader.verify()
    assert reader.migrate() == []
    with pytest.raises(PermanentStoreError, match="is read-only") as caught:
        reader.enqueue([ready("b")])
    require_plain_words(caught.value, path)
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert ids(reader) == ["a"]
    reader.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not bind root")
def test_a_read_only_directory_is_named(store: SqliteStore, path: Path) -> None:
    """A file in a directory where this user may not write cannot have its log."""
    store.close()
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermanentStoreError, match=r"permission|write") as caught:
            open_file(path).enqueue([ready("a")])
        require_plain_words(caught.value, path)
    finally:
        path.parent.chmod(0o700)


def test_a_deleted_file_is_noticed(store: SqliteStore, path: Path) -> None:
    """L4: SQLite would go on writing to the deleted file, and a committed enqueue would be lost."""
    store.enqueue([ready("a")])
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with pytest.raises(PermanentStoreError, match="deleted or replaced"):
        store.enqueue([ready("b")])


def test_a_file_with_an_odd_name(tmp_path: Path) -> None:
    """Names that mean something in SQLite's URIs are but names."""
    path = tmp_path / "a%41 #x;é.db"
    store = open_store(URL.create("sqlite", database=str(path)))
    with pytest.raises(SchemaError) as caught:
        store.verify()
    store.migrate()
    assert store.enqueue([ready("a")]) == {"a"}
    store.close()
    assert path.exists()
    (command,) = re.findall(r"--store (.*)`", str(caught.value))
    again = open_store(make_url(command))
    assert ids(again) == ["a"]
    again.close()


def test_a_relative_name_is_of_the_directory_it_was_opened_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its working directory keeps its database."""
    monkeypatch.chdir(tmp_path)
    store = open_store(make_url("sqlite:///tasks.db"))
    with pytest.raises(
        SchemaError, match=r"'tasks\.db' is missing: run `wiggle db upgrade --store sqlite:///tasks\.db`"
    ):
        store.verify()
    monkeypatch.chdir("/")
    assert store.migrate()
    store.close()
    assert (tmp_path / "tasks.db").exists()


# The URL


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://tasks.db", "three|sqlite:///file"),
        (
            "sqlite:///t.db?cache=shared",
            r"no option 'cache'; there are timeout=seconds, synchronous=full\|normal, mode=",
        ),
        ("sqlite:///t.db?timeout=soon", "timeout='soon'"),
        ("sqlite:///t.db?timeout=-1", "timeout='-1'"),
        ("sqlite:///t.db?timeout=nan", "timeout='nan'"),
        ("sqlite:///t.db?timeout=1&timeout=2", "given twice"),
        ("sqlite:///t.db?synchronous=off", "synchronous='off'"),
        ("sqlite:///t.db?mode=rwc", "mode='rwc'"),
        ("sqlite+aiosqlite:///t.db", "aiosqlite"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, message: str) -> None:
    """An unknown option or value is refused with those that there are, not ignored."""
    with pytest.raises(InvalidStoreUrl, match=message):
        open_store(make_url(url))


def test_a_scratch_store_leaves_nothing_behind(path: Path) -> None:
    """A scratch store is a file of its own beside the store's, deleted when it is closed."""
    scratch = open_scratch(make_url(f"sqlite:///{path}"))
    scratch.enqueue([ready("a")])
    assert not path.exists()
    assert list(path.parent.iterdir())
    scratch.close()
    scratch.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_memory_is_born_migrated(url: str) -> None:
    """A store in memory needs no migration, is a database of its own, and is gone when closed."""
    one, other = open_store(make_url(url)), open_store(make_url(url))
    one.verify()
    assert one.enqueue([ready("a")]) == {"a"}
    assert ids(other) == []
    assert one.audit() == []
    one.close()
    with pytest.raises(PermanentStoreError, match="open the store again"):
        one.get("a")
    other.close()


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
    assert ids(store) == ["a"]
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
    assert ids(store) == ["a", "b"]
    assert store.enqueue([ready("c")]) == {"c"}
    reopened = open_file(path)
    assert ids(reopened) == ["a", "b", "c"]
    assert reopened.audit() == []
    reopened.close()


def test_a_lock_held_too_long_is_transient(store: SqliteStore, path: Path, holder: subprocess.Popen[str]) -> None:
    """A writer that waits longer than the timeout hears TRANSIENT, with nothing applied; readers are not disturbed."""
    impatient = open_file(path, "?timeout=0.1")
    with pytest.raises(TransientStoreError, match=r"locked by another process .* `\?timeout=SECONDS`") as caught:
        impatient.enqueue([ready("c")])
    require_plain_words(caught.value, path)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert ids(impatient) == ["a", "b"]
    impatient.close()


def test_a_stopped_writer_is_waited_for(store: SqliteStore, path: Path, holder: subprocess.Popen[str]) -> None:
    """A process stopped inside its transaction blocks writers and no reader; when it goes on, so do they."""
    holder.send_signal(signal.SIGSTOP)
    impatient = open_file(path, "?timeout=0.1")
    with pytest.raises(TransientStoreError):
        impatient.enqueue([ready("c")])
    assert ids(impatient) == ["a", "b"]
    holder.send_signal(signal.SIGCONT)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    assert store.enqueue([ready("c")]) == {"c"}
    assert holder.stdout.readline() == "done\n"
    assert ids(impatient) == ["c"]
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
    assert sorted(out for out, _ in answers) == ["['0001_tasks']\n", "[]\n", "[]\n", "[]\n"]
    store = open_file(path)
    assert store.audit() == []
    store.close()
