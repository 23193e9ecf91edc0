"""What the kit cannot know of: torn and damaged lines, kill -9, a full disk, compaction, files that are not ours."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance.plugin import claim, enqueue_one, ids, make_task
from wiggle_core.errors import (
    AmbiguousStoreError,
    InvalidStoreUrl,
    PermanentStoreError,
    SchemaError,
    TransientStoreError,
)
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import State
from wiggle_store_journal import open_scratch, open_store
from wiggle_store_journal.entries import seal
from wiggle_store_journal.journal import FORMAT, HEADER, VERSION
from wiggle_store_journal.store import JournalStore

_ENQUEUER = """
from itertools import count
for number in count():
    store.enqueue([make_task(f"{name}-{number:06d}", payload='"' + "x" * 5000 + '"')])
    print(f"{name}-{number:06d}", flush=True)
"""
_TORN = """
whole = os.pwrite
def tear(file, data, offset):
    whole(file, data[: len(data) // 2], offset)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwrite = tear
store.enqueue([make_task("torn")])
"""
_CLAIMER = """
while claimed := claim(store, limit=3, owner=name):
    print(*ids(claimed), flush=True)
    store.apply([Finish(task.lease, State.DONE) for task in claimed])
"""
_FORKED = """
if os.fork() == 0:
    try:
        store.get("a")
    except PermanentStoreError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(store.get("a"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.journal"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., JournalStore]]:
    """Opens handles on the test's journal, which exists; closes them at the end."""
    handles: list[JournalStore] = []

    def open_one(timeout: int = 30) -> JournalStore:
        handles.append(open_store(make_url(f"journal:///{path}?timeout={timeout}")))
        return handles[-1]

    open_one().migrate()
    yield open_one
    for handle in handles:
        handle.close()


def _start(path: Path, code: str, name: str = "p") -> subprocess.Popen[str]:
    """A process of its own that runs the code on an open store."""
    opening = (
        "import os, signal\n"
        "from sqlalchemy import make_url\n"
        "from wiggle_core.conformance.plugin import claim, ids, make_task\n"
        "from wiggle_core.errors import PermanentStoreError\n"
        "from wiggle_core.stores.store import Finish\n"
        "from wiggle_core.tasks.task import State\n"
        "from wiggle_store_journal import open_store\n"
        f"store, name = open_store(make_url('journal:///{path}')), {name!r}\n"
    )
    return subprocess.Popen([sys.executable, "-c", opening + code], stdout=subprocess.PIPE, text=True)


# Killed and torn


def test_a_torn_last_line_never_happened(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L4: wherever the last line is cut, what was committed before it is there, and what comes after it is too."""
    store = opened()
    enqueue_one(store, "before")
    whole = path.read_bytes()
    enqueue_one(store, "cut")
    cut = path.read_bytes()[len(whole) :]
    for kept in (*range(0, len(cut), 29), len(cut) - 1):
        path.write_bytes(whole + cut[:kept])
        reader, writer = opened(), opened()
        assert (reader.get("cut"), reader.audit()) == (None, [])
        enqueue_one(writer, "after")
        assert sorted(reader.lookup(["before", "cut", "after"])) == ["after", "before"]
        assert reader.audit() == []


def test_damage_is_told_not_skipped(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L4: a line that is damaged while whole ones follow is no torn one: all work is refused."""
    store = opened()
    enqueue_one(store, "one")
    enqueue_one(store, "two")
    damaged = path.read_bytes().replace(b"charge", b"change", 1)
    path.write_bytes(damaged)
    with pytest.raises(PermanentStoreError, match="is damaged before byte"):
        opened().get("two")
    assert "is damaged before byte" in "".join(opened().audit())
    assert path.read_bytes() == damaged


def test_a_process_killed_in_mid_append_leaves_nothing(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L4: kill -9 between the halves of one line: the line never happened, and its lock is free."""
    store = opened()
    enqueue_one(store, "a")
    size = path.stat().st_size
    killed = _start(path, _TORN)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert path.stat().st_size > size
    enqueue_one(store, "b")
    assert sorted(opened().lookup(["a", "b", "torn"])) == ["a", "b"]


def test_what_was_acknowledged_survives_kills(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L4: enqueuers killed at random moments lose nothing that they were told was committed."""
    store, acknowledged = opened(), []
    for number in range(4):
        enqueuer = _start(path, _ENQUEUER, f"p{number}")
        assert enqueuer.stdout is not None
        acknowledged += [enqueuer.stdout.readline().strip() for _ in range(5 + number * 7)]
        enqueuer.kill()
        acknowledged += enqueuer.communicate()[0].split()
    assert store.lookup(acknowledged).keys() == set(acknowledged)
    assert store.audit() == []


def test_processes_take_each_task_once(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L1, O4: processes that claim at once take every task, none twice."""
    tasks = [make_task() for _ in range(150)]
    store = opened()
    store.enqueue(tasks)
    claimers = [_start(path, _CLAIMER, f"p{number}") for number in range(3)]
    taken = [each for claimer in claimers for each in claimer.communicate(timeout=60)[0].split()]
    assert sorted(taken) == sorted(ids(tasks))
    assert {store.lookup([task.id])[task.id].state for task in tasks} == {State.DONE}


def test_a_handle_is_not_for_a_forked_child(path: Path, opened: Callable[[], JournalStore]) -> None:
    """L1: parent and child would share one lock, so the child is refused."""
    told = _start(path, _FORKED).communicate(timeout=30)[0]
    assert "before this process was forked" in told
    assert told.endswith("None\n")


# Failure classes


def test_a_lock_that_is_kept_is_transient(path: Path, opened: Callable[..., JournalStore]) -> None:
    """Section 3: who waits for a lock longer than the timeout is told so, and nothing was applied."""
    store = opened(timeout=0)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TransientStoreError, match="timeout"):
            store.enqueue([make_task("a")])
    assert store.get("a") is None


@contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_grow_is_permanent(path: Path, opened: Callable[[], JournalStore]) -> None:
    """Section 3: when the system takes a part of a line only, nothing was applied, and later work goes on."""
    store = opened()
    enqueue_one(store, "a")
    with _file_size_limit(path.stat().st_size + 100), pytest.raises(PermanentStoreError, match="cannot grow"):
        store.enqueue([make_task("b")])
    assert store.get("b") is None
    enqueue_one(store, "c")
    assert sorted(opened().lookup(["a", "b", "c"])) == ["a", "c"]


def test_a_commit_without_an_answer_is_ambiguous(
    opened: Callable[[], JournalStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 3, L6: an fsync that fails may have been carried out; the engine's replay sees to it by the id."""
    store, fails = opened(), iter([True, False, True])
    whole = os.fsync

    def sync(file: int) -> None:
        if next(fails, False):
            raise OSError(errno.EIO, "it is broken")
        whole(file)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(AmbiguousStoreError):
        store.enqueue([make_task("a")])
    assert store.enqueue([make_task("b")]) == {"b"}
    assert Replaying(store).enqueue([make_task("c")]) == {"c"}
    assert sorted(opened().lookup(["b", "c"])) == ["b", "c"]
    assert store.audit() == []


# Compaction


def test_compaction_changes_nothing_but_the_size(path: Path, opened: Callable[[], JournalStore]) -> None:
    """Section 6: a purge rewrites a journal of bygones; handles that were open go on with the new file."""
    store, other = opened(), opened()
    (path.parent / f"{path.name}.compact").write_bytes(b"left by one who was killed")
    store.put_document("worker", "w1", "1")
    for _ in range(4):
        store.enqueue([make_task() for _ in range(1000)])
        store.apply([Finish(task.lease, State.DONE) for task in claim(store)])
    kept, size = enqueue_one(other, "kept"), path.stat().st_size
    assert store.purge(store.now() + 1, 10_000) == 4000
    assert path.stat().st_size < size / 1000
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]
    for handle in (other, store, opened()):
        assert handle.get("kept") == kept
        assert len(handle.list_documents("worker")) == 1
    held = claim(other)
    assert store.apply([Finish(task.lease, State.DONE) for task in held]) == {"kept"}
    assert store.audit() == []


# Schema


def test_only_migrate_makes_the_file(path: Path) -> None:
    """Section 9: a missing journal is not made by use, and the message names the command that makes it."""
    store = open_store(make_url(f"journal:///{path}"))
    with pytest.raises(SchemaError, match=f"wiggle db upgrade --store journal:///{path}"):
        store.verify()
    assert not path.exists()
    assert store.migrate() == ["0001_header"]
    assert store.migrate() == []
    store.verify()
    store.close()


def test_one_of_two_migrates(path: Path) -> None:
    """Section 6: two that migrate at once make one journal."""
    stores = [open_store(make_url(f"journal:///{path}")) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(JournalStore.migrate, stores)) == [[], [], [], ["0001_header"]]
    assert path.read_bytes() == HEADER
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "another program"),
        (b"something else\n" * 100, "another program"),
        (seal({"format": FORMAT, "version": VERSION + 1}), "install a wiggle-store-journal that knows it"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(path: Path, content: bytes, message: str) -> None:
    """Section 6: another program's file and a newer journal are refused, and left as they are."""
    path.write_bytes(content)
    store = open_store(make_url(f"journal:///{path}"))
    for work in (store.migrate, store.verify, lambda: store.enqueue([make_task()])):
        with pytest.raises(SchemaError, match=message):
            work()
    store.close()
    assert path.read_bytes() == content


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """Section 3: what cannot be a journal is PERMANENT trouble."""
    store = open_store(make_url(f"journal:///{tmp_path}"))
    for work in (store.migrate, store.verify):
        with pytest.raises(PermanentStoreError, match="is a directory"):
            work()


@pytest.mark.parametrize("rest", ["", "/", "host/file", "me:secret@/file", "/file?mode=ro", "/file?timeout=soon"])
def test_strange_urls_are_refused(rest: str) -> None:
    """Section 9: a URL that names no file, or an option that there is not, is refused, and no password is shown."""
    with pytest.raises(InvalidStoreUrl) as refused:
        open_store(make_url(f"journal://{rest}"))
    assert "secret" not in str(refused.value)


def test_a_scratch_store_leaves_nothing(tmp_path: Path) -> None:
    """Section 6: a scratch store is empty, migrated, in a file of its own, and gone when closed."""
    url = make_url(f"journal:///{tmp_path}/tasks.journal")
    scratch, beside = open_scratch(url), open_scratch(url)
    enqueue_one(scratch, "a")
    assert beside.get("a") is None
    scratch.close()
    beside.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PermanentStoreError, match="closed"):
        scratch.get("a")
