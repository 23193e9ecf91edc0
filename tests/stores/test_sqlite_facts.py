"""What SQLite does to the unwary (SQ1-SQ5), and that the store survives it. Each test shows the fact, then the cure."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from threading import Thread, Timer

import pytest

from tests.stores.sqlite_files import connect_plainly, open_file, recorded
from wiggle_core.conformance.plugin import START, ManualClock
from wiggle_core.criteria.check import check
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import And, Or, Predicate, Value, normalize
from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.store import Cancel, ClaimRequest, Finish, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_sqlite.store import SqliteStore

READY = [State.READY]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_file(path)
    opened.migrate()
    yield opened
    opened.close()


def ready(task_id: str, attributes: dict[str, Value] | None = None, correlation_id: str | None = None) -> TaskRecord:
    return TaskRecord(task_id, "q", "s", START, START, attributes=attributes or {}, correlation_id=correlation_id)


def found(store: SqliteStore, predicate: Predicate) -> list[str]:
    return [task.id for task in store.find(Route("q", normalize(check(predicate))), READY, 10_000)]


def test_a_write_waits_for_another_program(store: SqliteStore, path: Path) -> None:
    """SQ1: a read that turns into a write fails at once whatever the timeout; every write here begins as one."""
    writer, reader = connect_plainly(path), connect_plainly(path)
    writer.execute("BEGIN IMMEDIATE")
    reader.execute("PRAGMA busy_timeout = 30000")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM task").fetchall()
    writer.execute("INSERT INTO document VALUES ('k', 'k', 1, '{}', 1)")
    release = Timer(0.2, lambda: writer.execute("COMMIT"))
    release.start()
    assert store.enqueue([ready("waited")]) == {"waited"}
    release.join()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        reader.execute("INSERT INTO document VALUES ('l', 'l', 1, '{}', 1)")
    reader.close()
    writer.close()


def test_every_write_begins_immediate(store: SqliteStore) -> None:
    """SQ1: no statement that writes stands outside a transaction that took the write lock first."""
    with recorded(store) as statements:
        store.enqueue([ready("a"), ready("b")])
        (task,) = store.claim(ClaimRequest("w", "t", 1, 1, (Route("q"),)))
        store.extend([task.lease], 1)
        store.apply([Finish(task.lease, State.DONE), Cancel("b")])
        store.put_document("k", "k", "{}")
        store.delete_document("k", "k")
        store.purge(2**62, 10)
    is_inside = False
    for statement in map(str.strip, statements):
        if statement.startswith("BEGIN"):
            assert statement == "BEGIN IMMEDIATE"
        is_inside = statement == "BEGIN IMMEDIATE" or (is_inside and statement != "COMMIT")
        assert is_inside or statement.startswith(("SELECT", "PRAGMA busy_timeout", "COMMIT")), statement
    assert statements.count("COMMIT") == 7


def test_one_writer_in_the_process(store: SqliteStore) -> None:
    """SQ1: threads of one process queue at a lock, and each gets its turn."""
    threads = [
        Thread(target=lambda first=first: [store.enqueue([ready(f"{first}-{each}")]) for each in range(20)])
        for first in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count(Route("q"), READY, 1000) == 160


def test_like_minds_the_case(store: SqliteStore) -> None:
    """SQ2: SQLite's LIKE ignores ASCII case, and its GLOB has classes; the predicate's LIKE does neither (C4)."""
    texts = [
        "eu-1",
        "EU-1",
        "a*b",
        "aXb",
        "a?b",
        "[ab]",
        "a",
        "a\nb",
        "\U0001f600",
        "\U0001f600\U0001f600",
        "é",
        "e\u0301",
    ]
    store.enqueue([ready(f"{number:02}", {"a": text}, text) for number, text in enumerate(texts)])
    patterns = ["eu-%", "EU-_", "a*b", "a?b", "[ab]", "_", "__", "a%b", "%*%", "[%", "%]", "%"]
    for pattern in patterns:
        for field in (Task.correlation_id, Task.attr("a", str)):
            predicate = field.like(pattern)
            expected = [
                f"{number:02}" for number, text in enumerate(texts) if matches(predicate, ready("x", {"a": text}, text))
            ]
            assert found(store, predicate) == expected, pattern
    assert found(store, Task.correlation_id.like("eu-%")) == ["00"]


def test_types_are_exact(store: SqliteStore) -> None:
    """SQ2: column affinity, REAL and JSON's true blur types; keys do not (C5)."""
    values: dict[str, Value] = {
        "text": "1000",
        "number": 1000,
        "true": True,
        "one": 1,
        "sum": Decimal("0.1") + Decimal("0.2"),
        "odd": 9007199254740993,
        "even": 9007199254740992,
    }
    store.enqueue([ready(name, {"a": value}) for name, value in values.items()])
    number, text = Task.attr("a", Decimal), Task.attr("a", str)
    assert found(store, text == "1000") == ["text"]
    assert found(store, number == Decimal(1000)) == ["number"]
    assert found(store, number == Decimal(1)) == ["one"]
    assert found(store, Task.attr("a", bool) == True) == ["true"]  # noqa: E712
    assert found(store, number == Decimal("0.3")) == ["sum"]
    assert found(store, Task.attr("a", int) == 9007199254740993) == ["odd"]
    assert found(store, text.is_null()) == sorted(values.keys() - {"text"})


def test_whole_numbers_at_the_edges_of_a_list(store: SqliteStore) -> None:
    """SQ2: a long list travels as JSON, and its numbers arrive to the last digit, its text to the last character."""
    edges = [-(2**63), -(2**63) + 1, -1, 0, 2**53 + 1, 2**63 - 1]
    versions = [TaskRecord(f"{number}", "q", "s", START, START, version=edge) for number, edge in enumerate(edges)]
    store.enqueue(versions)
    others = list(range(100, 130))
    for number, edge in enumerate(edges):
        assert found(store, Task.version.in_([edge, *others])) == [f"{number}"]
    store.enqueue([ready("text", {}, 'q"\\\U0001f600\n')])
    assert found(store, Task.correlation_id.in_(['q"\\\U0001f600\n', *map(str, others)])) == ["text"]


def test_tables_are_strict(store: SqliteStore, path: Path) -> None:
    """SQ2: every table is STRICT, so that no column takes a value of another type."""
    plain = connect_plainly(path)
    tables = plain.execute("SELECT name, strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite%'").fetchall()
    ours = {"task", "payload", "history", "document", "counter", "lane", "lane_task", "wiggle_migration"}
    assert {name for name, _ in tables} == ours
    assert all(strict for _, strict in tables)
    plain.close()


def _nest(depth: int) -> Predicate:
    """AND and OR in turn, negated attributes at the leaves, to the depth and size that C7 allows."""
    leaf: Predicate = ~(Task.attr("a", str) < "m")
    for level in range(depth - 2):
        combine = And if level % 2 else Or
        leaf = combine((~Task.attr(f"b{level}", Decimal).between(1, 2), ~(Task.node != "n"), leaf))
    return leaf


@pytest.mark.parametrize("depth", [3, 10, 16])
def test_the_deepest_predicate_is_parsed(store: SqliteStore, depth: int) -> None:
    """SQ3: SQLite's parser overflows at deep nests; what C7 allows stays below that, over 32 routes too."""
    predicate = normalize(check(_nest(depth)))
    store.enqueue([ready("a", {"a": "z"}), ready("b", {"a": "a"})])
    expected = [each for each, text in (("a", "z"), ("b", "a")) if matches(predicate, ready(each, {"a": text}))]
    assert found(store, predicate) == expected
    routes = (Route("q", predicate), *(Route(f"q{number}", predicate) for number in range(31)))
    claimed = store.claim(ClaimRequest("w", "t", 1, 10, routes))
    assert [task.id for task in claimed] == expected


def test_thousands_of_conditions_make_one_query(store: SqliteStore) -> None:
    """SQ3: a chain as long as coverage asks (no live worker takes it) is a balanced nest, not one level each."""
    region = Task.attr("region", str)
    uncovered = And(tuple(~((region == f"r{number}") & (Task.step == "s")) for number in range(4000)))
    store.enqueue([ready("covered", {"region": "r77"}), ready("uncovered", {"region": "nowhere"})])
    assert [task.id for task in store.find(Route("q", normalize(uncovered)), READY, 10)] == ["uncovered"]


def test_hostile_patterns_take_no_time(store: SqliteStore) -> None:
    """SQ3: matching may be quadratic, but the limits of C7 keep it to moments."""
    store.enqueue([ready(f"{number:04}", {"a": "a" * 255}) for number in range(500)])
    begun = time.perf_counter()
    assert found(store, Task.attr("a", str).like("%" + "a%" * 7 + "b")) == []
    assert found(store, Task.attr("a", str).like("%a" * 4 + "_" * 4 + "b" * 200)) == []
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_commits_survive_a_power_failure_by_default(path: Path, options: str, level: int) -> None:
    """SQ4: NORMAL may lose the last commits on power loss, so FULL is the default; the log is kept by WAL."""
    store = open_file(path, options)
    store.migrate()
    with store._connections.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchall() == [(level,)]
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    store.close()


def test_a_forked_child_is_told_to_open_the_store_itself(store: SqliteStore) -> None:
    """SQ4: SQLite's locks do not survive a fork; the child is refused, and the parent's store goes on."""
    store.enqueue([ready("before")])
    child = os.fork()
    if child == 0:
        told = False
        try:
            store.enqueue([ready("child")])
        except PermanentStoreError as error:
            told = "open the store after the fork" in str(error)
        finally:
            os._exit(0 if told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.enqueue([ready("after")]) == {"after"}
    assert found(store, Task.step == "s") == ["after", "before"]


def test_time_is_in_microseconds(store: SqliteStore) -> None:
    """SQ5: SQLite 3.40 has no clock below a second; the machine's clock is bound, one for all its processes (L1)."""
    before = time.time_ns() // 1000
    store.enqueue([ready("a")])
    (task,) = store.claim(ClaimRequest("w", "t", 7, 1, (Route("q"),)))
    assert task.lease_until is not None
    assert before + 7 <= task.lease_until <= time.time_ns() // 1000 + 7


def test_the_clock_is_read_under_the_lock(path: Path) -> None:
    """SQ5, L1: a claim that had to wait for the write lock is leased from when it got it."""
    clock = ManualClock()
    store = open_file(path, clock=clock)
    store.migrate()
    store.enqueue([ready("a")])
    writer = connect_plainly(path)
    writer.execute("BEGIN IMMEDIATE")

    def release() -> None:
        clock.move(100)
        writer.execute("COMMIT")

    timer = Timer(0.2, release)
    timer.start()
    (task,) = store.claim(ClaimRequest("w", "t", 5, 1, (Route("q"),)))
    timer.join()
    assert task.lease_until == START + 100_000_000 + 5
    writer.close()
    store.close()


def test_instants_before_the_epoch(store: SqliteStore) -> None:
    """SQ5: instants are whole microseconds, negative ones too."""
    old = datetime(1, 1, 1, tzinfo=timezone.utc)
    store.enqueue([TaskRecord("a", "q", "s", -62135596800000000, START)])
    assert found(store, Task.created_at == old) == ["a"]
    assert found(store, Task.created_at < old) == []
