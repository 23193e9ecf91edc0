"""Which files a SQLite store opens, makes and refuses, and which URLs."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tests.stores.sqlite_files import connect_plainly, open_file, ready, ready_ids, require_plain_words
from wiggle_core.errors import InvalidStoreUrl, PermanentStoreError, SchemaError
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_store_sqlite import open_scratch, open_store
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
    assert ready_ids(reader) == ["a"]
    reader.verify()
    assert reader.migrate() == []
    with pytest.raises(PermanentStoreError, match="is read-only") as caught:
        reader.enqueue([ready("b")])
    require_plain_words(caught.value, path)
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert ready_ids(reader) == ["a"]
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
    assert ready_ids(again) == ["a"]
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
    assert ready_ids(other) == []
    assert one.audit() == []
    one.close()
    with pytest.raises(PermanentStoreError, match="open the store again"):
        one.get("a")
    other.close()
