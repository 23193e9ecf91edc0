"""What MySQL and MariaDB do to the unwary, line by line (MY2, MY4-MY7, MY9, MY10), and that the store survives it, on
servers whose own settings are the worst. Locks, plans and lanes have files of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from random import Random

import pymysql
import pytest
from sqlalchemy import make_url

from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.mariadb import own_mariadb
from tests.servers.mysql import own_mysql
from tests.stores.mysql_prefixes import asked, fresh_place, migrated, open_url, plain, recorded, refusals
from tests.stores.postgres_schemas import with_options
from tests.stores.waiting import goes_on
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import QUEUE, TTL, claim, ids, make_task, route
from wiggle_core.conformance.strategies import TEXTS
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Predicate, Value
from wiggle_core.errors import PermanentStoreError, TransientStoreError
from wiggle_core.stores.store import Cancel, Change, Finish, GiveBack, Requeue, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_mysql import connections
from wiggle_store_mysql.errors import translate
from wiggle_store_mysql.place import read_url
from wiggle_store_mysql.store import MySQLStore

region = Task.attr("region", str)
MODES = "NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT"
WORST = {
    "sql_mode": MODES,
    "transaction_isolation": "SERIALIZABLE",
    "default_time_zone": "+11:30",
    "character_set_server": "latin1",
    "collation_server": "latin1_german2_ci",
    "completion_type": "CHAIN",
    "innodb_lock_wait_timeout": "1",
    "div_precision_increment": "0",
}
OWN = {
    "mysql": (own_mysql, {"sql_generate_invisible_primary_key": "ON", "explain_format": "TREE"}),
    "mariadb": (own_mariadb, {"innodb_snapshot_isolation": "ON", "sql_mode": f"{MODES},EMPTY_STRING_IS_NULL"}),
}


@pytest.fixture(scope="module", params=OWN)
def hostile_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of each product that does everything by default as we do not want it."""
    start, settings = OWN[request.param]
    try:
        with start(durable=False, **WORST | settings) as server:
            yield server.url
    except Unavailable as reason:
        skip_or_fail(request.param, reason)


@pytest.fixture
def url(hostile_url: str) -> Iterator[str]:
    with fresh_place(hostile_url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    with migrated(url) as opened:
        yield opened


def found(store: MySQLStore, predicate: Predicate) -> list[str]:
    """The tasks that `find` and a claim return, which are the same."""
    tasks = claim(store, route(predicate))
    assert store.apply([GiveBack(task.lease, task.attributes) for task in tasks]) == set(ids(tasks))
    assert ids(store.find(route(predicate), [State.READY], 1_000)) == ids(tasks)
    return ids(tasks)


# Sessions


def test_a_session_is_ours_whatever_the_server_begins_it_with(store: MySQLStore, url: str) -> None:
    """MY2, MY9: isolation, mode, time zone and collation are set with the connection, and are those of every statement
    of it; the server's own are others."""
    names = ("sql_mode", "time_zone", "character_set_client", "character_set_results", "completion_type")
    asking = f"SELECT {', '.join(f'@@{name}' for name in names)}"
    with plain(url) as other, store._connections.transaction() as session:
        ((mode, *rest),) = session.rows(asking)
        assert set(mode.split(",")) == set(connections.SQL_MODE.split(","))
        assert rest == ["+00:00", "utf8mb4", "utf8mb4", "NO_CHAIN"]
        assert asked(other, asking)[0][:2] != (mode, "+00:00")
        isolation = connections._ISOLATION_NAME[session.server.product]
        assert session.rows(f"SELECT @@{isolation}") == [("READ-COMMITTED",)]
        assert asked(other, f"SELECT @@{isolation}") == [("SERIALIZABLE",)]
        assert session.rows("SELECT @@collation_connection") == [(session.server.product.collation,)]


def test_a_question_of_two_statements_sees_what_was_committed_between(store: MySQLStore, url: str) -> None:
    """MY2: READ COMMITTED: no snapshot outlives its statement, and a read locks nothing that another one changes."""
    store.enqueue([make_task("a")])
    other = open_url(url)
    with store._connections.transaction() as session:
        assert session.rows("SELECT state FROM $task") == [("READY",)]
        assert ids(claim(other)) == ["a"]
        assert session.rows("SELECT state FROM $task") == [("RUNNING",)]
    other.close()


def test_a_server_that_keeps_to_its_isolation_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY2: where the isolation is not what was asked for, as behind a proxy that drops the statement, nothing is
    opened."""
    lines = connections._SET_UP.split(";")
    monkeypatch.setattr(connections, "_SET_UP", ";".join(line for line in lines if "ISOLATION" not in line))
    opened = open_url(url)
    with pytest.raises(PermanentStoreError, match="begins sessions as SERIALIZABLE and keeps to it: READ-COMMITTED"):
        opened.now()
    opened.close()


def test_times_are_the_databases_in_utc_to_the_microsecond(store: MySQLStore, url: str) -> None:
    """MY9, L1: neither the time zone of the server, nor that of a session, nor rounding moves the end of a lease."""
    store.enqueue([make_task(f"t{number:02}") for number in range(20)])
    clock = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    ends = []
    with plain(url) as other:
        for _ in range(20):
            ((before,),) = asked(other, clock)
            (task,) = claim(store, limit=1)
            ((after,),) = asked(other, clock)
            ends.append((task.lease_until or 0) - TTL)
            assert before <= ends[-1] <= after
    assert abs(ends[-1] - time.time_ns() // 1_000) < 60_000_000
    assert len({end % 1_000 for end in ends}) > 1
    with store._connections.reading() as session:
        session.run("SET time_zone = '-09:30'")
    assert abs(store.now() - ends[-1]) < 60_000_000


# Texts


def test_texts_are_told_apart_exactly(store: MySQLStore) -> None:
    """MY4: neither case, accents, spaces at the end nor the server's collation make two ids, queues, fields, attributes
    or documents one; they sort by code point."""
    names = ["a", "a ", "A", "ä", "Ä", "á", "a\u0301", "ß", "ss", "a\t", "\U0001f600", "\U0001f601", "ａ"]
    tasks = [make_task(name, queue=name, step=name, attributes={"region": name}) for name in names]
    assert store.enqueue(tasks) == set(names)
    for name in names:
        assert ids(store.find(Route(name, region == name), [State.READY], 10)) == [name]
        assert store.lookup([name]).keys() == {name}
        store.put_document(name, name, json.dumps(name), 0)
    assert [each.queue for each in store.slices()] == sorted(names)
    for name in names:
        assert [document.key for document in store.list_documents(name)] == [name]
        assert ids(claim(store, Route(name))) == [name]
    same = [make_task(f"{name}x", step=name, attributes={"region": name}) for name in names]
    store.enqueue(same)
    for name in names:
        assert found(store, Task.step == name) == found(store, region == name) == [f"{name}x"]
        above = [f"{each}x" for each in sorted(names) if each > name]
        assert sorted(found(store, Task.step > name)) == sorted(found(store, region > name)) == sorted(above)


def test_a_text_is_never_a_number(store: MySQLStore) -> None:
    """MY5: '1000abc' and 1000, and ids that begin alike, are strangers, in predicates and in lists of ids."""
    values: list[Value] = ["1000abc", "1000", " 1000", "1e3", "0", "", "true", 1000, Decimal("1000.5"), True, False]
    store.enqueue([make_task(f"t{place:02}", attributes={"region": value}) for place, value in enumerate(values)])
    assert found(store, region == "1000") == ["t01"]
    assert found(store, Task.attr("region", int) == 1000) == ["t07"]
    assert found(store, Task.attr("region", Decimal) >= Decimal(1000)) == ["t07", "t08"]
    assert found(store, Task.attr("region", bool) == True) == ["t09"]  # noqa: E712 # the builder's spelling
    assert found(store, region.in_(["0", ""])) == ["t04", "t05"]
    store.enqueue([make_task(name) for name in ("1", "1abc", "01", "1.0", "1 ")])
    assert store.lookup(["1"]).keys() == {"1"}
    assert store.apply([Cancel("1"), Cancel("01")]) == {"1", "01"}
    assert store.lookup(["1abc", "1.0", "1 "]).keys() == {"1abc", "1.0", "1 "}


def test_wildcards_and_escapes_mean_what_was_written(store: MySQLStore) -> None:
    """MY9: LIKE goes by its own escape, whether or not a backslash is one to the server."""
    texts = ["a%b", "a_b", "axb", "a\\b", "a\\%b", "a!b", "a'b", 'a"b', "a\nb"]
    store.enqueue([make_task(f"t{place}", step=text) for place, text in enumerate(texts)])
    every = [f"t{place}" for place in range(len(texts))]
    assert found(store, Task.step.like("a_b")) == [each for each in every if each != "t4"]
    assert found(store, Task.step.like("a%b")) == every
    assert found(store, Task.step.like("a\\%b")) == ["t3", "t4"]
    assert found(store, Task.step.like("a#%b", "#")) == ["t0"]
    assert found(store, Task.step.like("a\\%b", "\\")) == ["t0"]
    assert found(store, Task.step.like("a!b")) == ["t5"]


HOSTILE = sorted(
    {text for text in TEXTS if text}
    | {"$task", "`$task`", "%s%s%%", "%(id)s", "'; DROP TABLE $task; -- ", "*/ /*!50000 x */", "\\' OR 1 = 1 -- "}
    | {"".join(map(chr, range(1, 32))), "\\\\'\"`%_$;#", "{}{0}{condition}", "\U0001f600'\\%\U0010ffff", "\x1a\\Z\\0"}
)


@pytest.mark.parametrize("size", [1, 500])
def test_every_text_comes_back_as_it_was(store: MySQLStore, size: int) -> None:
    """MY9, and what a driver would have to escape: quotes, backslashes, `%s`, comments, our own names of tables and
    characters of four bytes come back exactly from every place that takes a text, one by one or many at once."""
    tasks = [full_of(text, number) for number, text in enumerate(HOSTILE)]
    for start in range(0, len(tasks), size):
        assert store.enqueue(tasks[start : start + size]) == set(ids(tasks[start : start + size]))
    held = claim(store, *{task.queue: Route(task.queue) for task in tasks}.values())
    by_id = {task.id: task for task in held}
    for task in tasks:
        got = by_id[task.id]
        for field in ("queue", "step", "kind", "workflow", "node", "correlation_id", "payload", "attributes"):
            assert getattr(got, field) == getattr(task, field), field
    assert store.extend([task.lease for task in held], TTL) == {task.lease for task in held}
    store.apply([Requeue(task.lease, 0, task.attributes, error=task.step) for task in held])
    assert {task.id: task.error for task in find_all(store, tasks)} == {task.id: task.step for task in tasks}
    held = [task for queue in {task.queue for task in tasks} for task in claim(store, Route(queue))]
    done: list[Change] = [Finish(task.lease, State.DONE, result=task.payload, error=task.step) for task in held]
    for start in range(0, len(done), size):
        assert len(store.apply(done[start : start + size])) == len(done[start : start + size])
    for task in tasks:
        kept = store.get(task.id)
        assert kept is not None
        assert (kept.result, kept.error, kept.attributes) == (task.payload, task.step, task.attributes)
        store.put_document(task.queue, task.step, task.payload)
        assert store.put_document(task.queue, task.step, task.payload, 1) == 2
        document = store.get_document(task.queue, task.step)
        assert document is not None
        assert (document.kind, document.key, document.body) == (task.queue, task.step, task.payload)
    assert store.audit() == []


def full_of(text: str, number: int) -> TaskRecord:
    """A task with the text wherever a text can be."""
    return make_task(
        f"{number}{text}"[:64],
        queue=text[:200],
        step=text[:255],
        kind=text[:255],
        workflow=text[:255],
        version=number,
        node=text[:255],
        correlation_id=text[:255],
        payload=json.dumps({text: [text]}, ensure_ascii=False),
        attributes={"region": text[:255]},
        instance_id=f"{number}{text}"[:64],
    )


def find_all(store: MySQLStore, tasks: list[TaskRecord]) -> list[TaskRecord]:
    return [task for queue in {task.queue for task in tasks} for task in store.find(Route(queue), list(State), 1_000)]


# Sizes and counts


def test_the_longest_names_fit_every_index(store: MySQLStore, url: str) -> None:
    """MY10: ids of 64 and queues of 255 characters, four bytes each, are kept, ordered and found whole; no index comes
    near the limit of 3,072 bytes."""
    wide = "\U0001f600"
    names = [f"{wide * 63}{end}" for end in "abc"]
    queue = wide * 254 + "q"
    laned = Laned.over(store)
    (lane,) = laned.open(region == "eu", queue=queue)
    tasks = [make_task(name, queue=queue, step=wide * 255, attributes={"region": "eu"}) for name in names]
    assert laned.enqueue(tasks) == set(names)
    assert laned.content(lane) == laned.expected(lane) == names
    assert ids(store.find(Route(queue), [State.READY], 10, tasks[0].order_key)) == names[1:]
    assert ids(claim(store, Route(queue, (Task.step == wide * 255)))) == names
    place = make_url(url)
    with plain(url) as other:
        lengths = asked(
            other,
            "SELECT SUM(COALESCE(CHARACTER_OCTET_LENGTH, 8)) FROM information_schema.STATISTICS "
            "JOIN information_schema.COLUMNS USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME) "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME LIKE %s GROUP BY TABLE_NAME, INDEX_NAME",
            place.database,
            f"{place.query['prefix']}%",
        )
    assert max(length for (length,) in lengths) <= 3_072


def test_a_lease_that_already_ends_then_is_held(url: str) -> None:
    """MY7: an UPDATE that sets what was there tells that it found its row."""
    with migrated(url, clock=lambda: 1_000_000) as store:
        store.enqueue([make_task("a")])
        (task,) = claim(store)
        for _ in range(3):
            assert store.extend([task.lease], TTL) == {task.lease}
        store.put_document("k", "n", "1", 0)
        assert [store.put_document("k", "n", "1", revision) for revision in (1, 2)] == [2, 3]


def test_a_claim_asks_for_what_both_products_have(store: MySQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY10: leasing, reading and committing are one round trip, so that nothing has to return the rows it changes; a
    claim is two."""
    store.enqueue([make_task() for _ in range(20)])
    for wanted in (Route(QUEUE), route(Task.step == "charge")):
        with recorded(monkeypatch) as sent:
            assert len(claim(store, wanted, limit=10)) == 10
        assert len(sent) == 2
        assert "RETURNING" not in str(sent)


# Snapshots


def test_a_record_that_changed_is_no_fault(hostile_url: str) -> None:
    """MY6: where MariaDB refuses a record that changed since a transaction's snapshot, that is TRANSIENT."""
    with plain(hostile_url) as one, plain(hostile_url) as two:
        if not asked(one, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
            pytest.skip("MySQL has no innodb_snapshot_isolation")
        asked(one, "CREATE TABLE changed (id INT PRIMARY KEY, n INT) ENGINE = InnoDB")
        asked(one, "INSERT INTO changed VALUES (1, 0)")
        asked(one, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        asked(one, "SET SESSION completion_type = 'NO_CHAIN'")
        asked(one, "BEGIN")
        assert asked(one, "SELECT n FROM changed") == [(0,)]
        asked(two, "UPDATE changed SET n = 1")
        with pytest.raises(pymysql.OperationalError) as caught:
            asked(one, "UPDATE changed SET n = 2 WHERE id = 1")
        assert caught.value.args[0] == 1020
        assert isinstance(translate(caught.value, read_url(make_url(hostile_url))), TransientStoreError)
        asked(two, "DROP TABLE changed")


def test_the_working_day_meets_no_refusal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY2, MY3, MY6: under the server's worst settings, snapshots that may not change among them, producers, claimers
    and settlers of the same few tasks get no error, and the server counts no deadlock."""
    counted = "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'"
    with plain(url) as other, migrated(with_options(url, pool_size="10")) as store:
        before = asked(other, counted)
        laned = Laned.over(store)
        (lane,) = laned.open(region == "eu")
        end, done = time.monotonic() + 2.5, [0] * 6

        def work(number: int) -> None:
            order = Random(number)
            while goes_on(end, min(done) > 0):
                laned.enqueue([make_task(attributes={"region": order.choice(("eu", "us"))}) for _ in range(6)])
                held = claim(
                    store, *order.choice(((by_lane(lane),), (Route(QUEUE),), (route(region == "us"),))), limit=9
                )
                order.shuffle(held)
                settled: list[Change] = [Finish(task.lease, State.DONE) for task in held[2:]]
                done[number] += len(store.apply([*settled, *(Cancel(task.id) for task in held[:1])]))
                done[number] += len(laned.apply([(GiveBack(task.lease, task.attributes), task) for task in held[1:2]]))

        with refusals(monkeypatch) as numbers, ThreadPoolExecutor(6) as pool:
            for each in [pool.submit(work, number) for number in range(6)]:
                each.result()
        assert numbers == []
        assert min(done) > 0
        assert asked(other, counted) == before
        assert store.audit() == []
