"""Faults of MySQL and MariaDB servers of our own: killed, stopped, slow to commit, full, read-only, with settings that
nobody would choose. The right class of error, nothing lost and nothing done twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from random import Random
from uuid import uuid4

import pymysql
import pytest
from sqlalchemy import make_url

from tests.campaign.disk import small_disk
from tests.servers import mariadb, mysql
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.mariadb import own_mariadb
from tests.servers.mysql import own_mysql
from tests.servers.mysql_process import LocalMySQL
from tests.servers.processes import give
from tests.stores.mysql_faults import (
    behind_proxy,
    claim,
    fails,
    locked,
    number,
    require_order,
    require_plain_words,
    waiting,
)
from tests.stores.mysql_prefixes import asked, connect_plainly, fresh_place, open_url, plain
from tests.stores.postgres_schemas import with_options
from tests.stores.test_postgres_facts import ids, ready, route
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core.errors import PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Expire, Finish, Requeue
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_mysql import place
from wiggle_store_mysql.store import MySQLStore

CONNECTIONS = 14
PACKET = 2**20
ODD = {
    "sql_mode": "ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,IGNORE_SPACE",
    "transaction_isolation": "SERIALIZABLE",
    "default_time_zone": "+05:00",
    "completion_type": "CHAIN",
    "autocommit": "0",
    "loose_innodb_snapshot_isolation": "ON",  # of MariaDB's alone (MY6)
    "character_set_server": "latin1",
}
"""What sessions begin with on a server that is set up for other programs."""
HOSTILE_TEXT = "ünï→😀'\"\\' $1 %s %% \r\n\t\x1a"
ADVICE = "raise max_allowed_packet there, or give payloads of less"
READ_ONLY = "is read-only, a replica perhaps: name the primary"


@pytest.fixture(scope="module", params=[own_mysql, own_mariadb], ids=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[LocalMySQL]:
    """A server with odd settings and narrow limits, which tests stop and start."""
    own: Callable[..., AbstractContextManager[LocalMySQL]] = request.param
    limits = {"max_connections": str(CONNECTIONS), "max_allowed_packet": str(PACKET)}
    try:
        with own(**ODD, **limits, log_bin="binlog") as started:  # commits wait for it when they are told to
            yield started
    except Unavailable as reason:
        skip_or_fail(own.__name__, reason)


@pytest.fixture
def url(server: LocalMySQL) -> Iterator[str]:
    with fresh_place(server.url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    opened = open_url(with_options(url, connect_timeout="3"))
    opened.migrate()
    yield opened
    require_order(opened)
    opened.close()


@pytest.fixture(autouse=True)
def _plain_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What `Replaying` writes to the log is as discreet as an error."""
    yield
    for record in caplog.get_records("call"):
        require_plain_words(record.getMessage())


def is_mysql(server: LocalMySQL) -> bool:
    return make_url(server.url).get_backend_name() == "mysql"


def answers(store: MySQLStore) -> bool:
    with suppress(TransientStoreError):
        store.get("a")
        return True
    return False


# Ends of the server


def test_a_server_that_is_killed_between_lock_and_lease(store: MySQLStore, url: str, server: LocalMySQL) -> None:
    """L4, L6: a packet with a COMMIT was on its way, so the outcome is open; by the token nothing was leased, and the
    task is free."""
    store.enqueue([ready("a")])
    with behind_proxy(url) as (proxy, through):
        replaying = Replaying(through, sleep=lambda _: server.start_again())
        assert through.get("a") is not None  # has its connection

        def kill() -> None:
            proxy.lost_at = None
            server.kill()

        proxy.lost_at, proxy.upon_loss = b"RUNNING", kill
        assert claim(replaying) == []
        assert set(replaying.counts) == {"AmbiguousStoreError", "TransientStoreError"}
    assert ids(claim(store)) == ["a"]


def test_a_server_that_is_killed_between_lease_and_commit(store: MySQLStore, url: str, server: LocalMySQL) -> None:
    """L4, L6: likewise. What was not committed is undone when the server recovers."""
    store.enqueue([ready("a")])
    replaying = Replaying(store, sleep=lambda _: wait_until(lambda: answers(store)))
    with ThreadPoolExecutor(1) as pool, closing(connect_plainly(url)) as looking:
        with locked(store, url, "payload"):  # which a claim reads behind its lease
            claiming = pool.submit(claim, replaying)
            wait_until(lambda: len(waiting(looking, store)) == 1)
            server.kill()
            server.start_again()
        assert claiming.result(timeout=2 * PATIENCE) == []
    assert replaying.counts["AmbiguousStoreError"] == 1
    assert ids(claim(store)) == ["a"]


@contextmanager
def slow_commits(server: LocalMySQL) -> Iterator[None]:
    """Each commit waits for others for a second, for which the products have different names. A restart ends it."""
    with plain(server.url) as connection:
        if is_mysql(server):
            asked(connection, "SET GLOBAL binlog_group_commit_sync_delay = 1000000")
        else:
            asked(connection, "SET GLOBAL binlog_commit_wait_count = 100, binlog_commit_wait_usec = 1000000")
    yield


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.35])
def test_a_server_that_is_killed_in_mid_commit(store: MySQLStore, server: LocalMySQL, moment: float) -> None:
    """L4, L6: whatever the moment, an acknowledged task is there, an answer tells what is stored, and nothing was done
    twice."""
    store.enqueue([ready("held", 1), ready("waiting", 2)])
    (held,) = claim(store, 1)
    deeds: dict[str, Callable[[Replaying], object]] = {
        "settle": lambda replaying: replaying.apply([Finish(held.lease, State.DONE)]),
        "claim": lambda replaying: ids(claim(replaying, 1, "the token")),
        "enqueue": lambda replaying: replaying.enqueue([ready("new", 3)]),
    }
    told = {name: _killed_in_commit(store, server, deed, moment) for name, deed in deeds.items()}
    assert told["settle"] == {"held"}
    assert told["enqueue"] == {"new"}
    assert told["claim"] == ids(store.leased("the token"))
    states = {each: fate.state for each, fate in store.lookup(["held", "waiting", "new"]).items()}
    waiting = State.RUNNING if told["claim"] else State.READY
    assert states == {"held": State.DONE, "waiting": waiting, "new": State.READY}
    assert store.apply([Finish(held.lease, State.DONE)]) == set()


def _killed_in_commit(
    store: MySQLStore, server: LocalMySQL, deed: Callable[[Replaying], object], moment: float
) -> object:
    """The answer of a call whose server is killed a moment after its commit began, and started again."""
    restarted: Future[None] = Future()  # which the call may ask for before the server's end is known here
    replaying = Replaying(store, sleep=lambda _: restarted.result(timeout=2 * PATIENCE))
    with ThreadPoolExecutor(1) as pool, slow_commits(server):
        with closing(connect_plainly(server.url)) as looking:
            calling = pool.submit(deed, replaying)
            commits = "SELECT count(*) FROM information_schema.PROCESSLIST WHERE INFO = 'COMMIT'"
            wait_until(lambda: asked(looking, commits) == [(1,)])
        time.sleep(moment)
        server.kill()
        server.start_again()
        restarted.set_result(None)
        answer = calling.result(timeout=2 * PATIENCE)
    assert replaying.counts["AmbiguousStoreError"] == 1
    return answer


def test_a_server_that_comes_back_is_gone_on_with(store: MySQLStore, server: LocalMySQL) -> None:
    """L4: connections that died while they lay idle are noticed before they are used; until the server is back, calls
    are TRANSIENT."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    (held,) = claim(store, 1)
    for end in (server.kill, server.stop):
        end()
        server.start_again()
        assert len(store.extend([held.lease], 30_000_000)) == 1  # a write, and the first that meets the new server
    server.kill()
    fails(TransientStoreError, "cannot be reached: check that the server runs", lambda: claim(store))
    fails(TransientStoreError, "cannot be reached", lambda: store.enqueue([ready("c")]))
    server.start_again()
    assert store.apply([Finish(held.lease, State.DONE)]) == {"a"}
    assert ids(claim(store)) == ["b"]


def test_a_server_that_is_stopped_is_given_up(
    store: MySQLStore, url: str, server: LocalMySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer is waited for without end. What the server does with a packet when it goes on is looked up, and what
    it had begun without a COMMIT is undone."""
    monkeypatch.setattr(place, "ANSWER_MARGIN", 0)
    store.enqueue([ready("a")])
    (held,) = claim(store)
    hasty = open_url(with_options(url, statement_timeout="2", connect_timeout="2"))
    assert hasty.get("a") is not None
    try:
        os.kill(server.pid, signal.SIGSTOP)
        fails(TransientStoreError, "was lost", lambda: claim(hasty))
        fails(TransientStoreError, "cannot be reached|while it was made", lambda: hasty.get("a"))
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: answers(hasty))
        replaying = Replaying(hasty, sleep=lambda _: os.kill(server.pid, signal.SIGCONT))
        os.kill(server.pid, signal.SIGSTOP)
        assert {lease.task_id for lease in replaying.extend([held.lease], 30_000_000)} == {"a"}
        os.kill(server.pid, signal.SIGSTOP)
        assert replaying.enqueue([ready("b", 2)]) == {"b"}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert replaying.counts["AmbiguousStoreError"] >= 1
    assert ids(claim(store)) == ["b"]
    require_order(hasty)
    hasty.close()


# Limits of the server


def test_a_payload_beyond_the_packet_is_permanent(store: MySQLStore) -> None:
    """1153: what is too long is not sent, nor is anything beside it, and the connection goes on. Just below the limit
    it is stored, character by character, and comes back with an error as long."""
    used = number(store)
    big = ready("big", 2, payload=f'"{"x" * PACKET}"')
    for tasks in ([big], [ready("small"), big], [*(ready(f"t{each}") for each in range(1500)), big]):
        fails(PermanentStoreError, ADVICE, partial(store.enqueue, tasks))
        assert store.lookup(ids(tasks)) == {}
    assert number(store) == used
    for kind, room in (("x", 200), ("\\\\", 200), ("😀", 200)):
        size = len(kind.encode()) * (2 if kind == "\\\\" else 1)
        body = f'"{kind * ((PACKET - room) // size)}"'
        task = ready(f"fits {kind}", 1, payload=body)
        assert store.enqueue([task]) == {task.id}
        (held,) = claim(store)
        assert held.payload == body
        error = "e" * (PACKET - 2_000)
        assert store.apply([Requeue(held.lease, 0, {}, error)]) == {task.id}
        (held,) = claim(store)
        assert (held.payload, held.error) == (body, error)
        assert store.apply([Finish(held.lease, State.DONE)]) == {task.id}
    assert number(store) == used


def test_what_needs_many_packets_is_one_transaction(store: MySQLStore, url: str) -> None:
    """Tasks of 10 MB go in by ten packets and more, all or none; so do their settlements, with long results."""
    tasks = [ready(f"t{each:03}", each, payload=f'"{HOSTILE_JSON}{each}{"x" * 30_000}"') for each in range(330)]
    with closing(connect_plainly(url)) as other:
        asked(other, "BEGIN")
        asked(other, place.in_place("INSERT INTO $payload (id, body) VALUES ('t329', 'null')", store._place))
        with ThreadPoolExecutor(1) as pool:  # the last one has to wait for its id, and is refused
            enqueueing = pool.submit(store.enqueue, tasks)
            time.sleep(0.5)
            assert store.lookup(ids(tasks)) == {}
            asked(other, "COMMIT")
            assert enqueueing.result(timeout=2 * PATIENCE) == set(ids(tasks[:-1]))
        asked(other, place.in_place("DELETE FROM $payload WHERE id = 't329'", store._place))
        asked(other, "COMMIT")
    assert store.enqueue(tasks) == {"t329"}
    held = claim(store, 1000)
    assert [task.payload for task in held] == [task.payload for task in tasks]
    results = [f'"{HOSTILE_JSON}{"r" * 30_000}{each}"' for each in range(330)]
    changes = [Finish(task.lease, State.DONE, result) for task, result in zip(held, results, strict=True)]
    assert store.apply(changes) == set(ids(tasks))
    found = [store.get(task.id) for task in tasks[:3]]
    assert [task and task.result for task in found] == results[:3]


HOSTILE_JSON = "ünï→😀' %s %% $1"


def test_a_server_without_connections_is_transient(store: MySQLStore, server: LocalMySQL, url: str) -> None:
    """1040: who has a connection goes on, and others go on when some are free."""
    store.get("a")
    newcomer = open_url(url)
    with ExitStack() as stack:
        _take_all(stack, server.url)
        fails(TransientStoreError, "has no connection left", lambda: newcomer.get("a"))
        assert store.enqueue([ready("a")]) == {"a"}
    wait_until(lambda: answers(newcomer))
    require_order(newcomer)
    newcomer.close()


def _take_all(stack: ExitStack, url: str) -> None:
    """Take connections until there is none."""
    with suppress(pymysql.OperationalError):
        for _ in range(CONNECTIONS + 2):
            stack.enter_context(closing(connect_plainly(url)))
        pytest.fail("there were more connections than the server may have")


# Settings of the server


@contextmanager
def setting(server: LocalMySQL, *names: str) -> Iterator[None]:
    with plain(server.url) as connection:
        for name in names:
            asked(connection, f"SET GLOBAL {name} = 1")
        try:
            yield
        finally:
            for name in reversed(names):
                asked(connection, f"SET GLOBAL {name} = 0")


@contextmanager
def plain_user(url: str) -> Iterator[str]:
    """The URL for a user whom `read_only` holds for."""
    name = f"test_{uuid4().hex[:8]}"
    with plain(url) as other:
        asked(other, f"CREATE USER {name}@'%%' IDENTIFIED BY 'x'")
        asked(other, f"GRANT ALL ON wiggle.* TO {name}@'%%'")
        asked(other, f"GRANT PROCESS ON *.* TO {name}@'%%'")
        yield make_url(url).set(username=name, password="x").render_as_string(hide_password=False)
        asked(other, f"DROP USER {name}@'%%'")


def test_a_read_only_server_is_permanent(store: MySQLStore, server: LocalMySQL, url: str) -> None:
    """1290: questions are answered, changes are refused in words, and taken when the server takes them again. MySQL's
    `super_read_only` holds for those, too, whom `read_only` does not."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    (held,) = claim(store, 1)
    with plain_user(url) as poor_url, closing(open_url(poor_url)) as poor:
        for reader, names in ((poor, ("read_only",)), (store, ("read_only", "super_read_only"))):
            if reader is store and not is_mysql(server):
                continue
            with setting(server, *names):
                deeds: list[Callable[[], object]] = [
                    lambda: claim(reader),  # noqa: B023
                    lambda: reader.enqueue([ready("c")]),  # noqa: B023
                    lambda: reader.enqueue([ready(f"c {each}") for each in range(300)]),  # noqa: B023
                    lambda: reader.apply([Finish(held.lease, State.DONE)]),  # noqa: B023
                    lambda: reader.extend([held.lease], 1),  # noqa: B023
                    lambda: reader.put_document("kind", "key", "{}"),  # noqa: B023
                ]
                for deed in deeds:
                    fails(PermanentStoreError, READ_ONLY, deed)
                assert reader.get("a") is not None
                assert [task.state for task in reader.find(route(), list(State), 9)] == [State.RUNNING, State.READY]
        require_order(poor)
        assert poor.apply([Finish(held.lease, State.DONE)]) == {"a"}
        assert ids(claim(poor)) == ["b"]


def test_settings_of_the_server_change_nothing(store: MySQLStore, server: LocalMySQL, url: str) -> None:
    """MY2, MY9: a session sets all that a meaning hangs on: texts come back as they were, what was acknowledged is seen
    by others and outlives the server, and a claim gets all that it asked for."""
    with plain(server.url) as connection:
        asked(connection, "SET GLOBAL sql_select_limit = 1")
    with closing(open_url(url)) as other:
        texts = [HOSTILE_TEXT, HOSTILE_TEXT[::-1], "\\", "'", "%", "\\'; --", "a" * 10 + "\\"]
        tasks = [ready(f"{each} {text}"[:40], each, attributes={"region": text}) for each, text in enumerate(texts)]
        assert other.enqueue(tasks) == set(ids(tasks))
        assert store.lookup(ids(tasks)).keys() == set(ids(tasks))
        other.put_document("kind", "key", "{}")
        assert other.delete_document("kind", "key")  # by a statement that commits by itself
        server.kill()
        server.start_again()
        assert store.get_document("kind", "key") is None
        held = claim(other)
        assert [(task.id, task.attributes) for task in held] == [(task.id, task.attributes) for task in tasks]
        assert other.apply([Expire(held[0].lease, None, {})]) == set()  # it has not ended yet
        require_order(other)
    with plain(server.url) as connection:
        asked(connection, "SET GLOBAL sql_select_limit = DEFAULT")


# The disk

DISK_MEBIBYTES = 400


@pytest.fixture(params=[mysql, mariadb], ids=["mysql", "mariadb"])
def cramped(request: pytest.FixtureRequest) -> Iterator[tuple[LocalMySQL, Callable[[], None], Callable[[], None]]]:
    """A server whose data is on a small disk, how to fill it to the last byte, and how to make room."""
    with ExitStack() as stack:
        try:
            started = LocalMySQL(request.param.programs(), {})
            stack.callback(started.remove)
            disk = stack.enter_context(small_disk(started.data, DISK_MEBIBYTES))
            give(started.data)
            started.start()
        except Unavailable as reason:
            skip_or_fail(request.param.__name__, reason)
        except RuntimeError as reason:
            pytest.skip(f"disk full: {reason}")
        yield started, disk.fill, disk.relieve


def test_a_full_disk_under_the_server(cramped: tuple[LocalMySQL, Callable[[], None], Callable[[], None]]) -> None:
    """L4: 1114 is PERMANENT and says what to do; MariaDB rather ends itself, when there is no room to roll back in. No
    task that was acknowledged is lost, and none that was refused is there; with room again, work goes on."""
    server, fill, relieve = cramped
    with fresh_place(server.url) as url, closing(open_url(url)) as store:
        store.migrate()
        store.enqueue([ready("a", 1)])
        fill()
        stored, refused = _enqueue_until_refused(store)
        if is_mysql(server):
            fails(PermanentStoreError, "the disk under .* is full: free space", lambda: store.enqueue([refused]))
        relieve()
        if not answers(store):
            server.kill()  # there may be the rest of it
            server.start_again()
        known = store.lookup([*stored, refused.id]).keys()
        assert stored <= known <= stored | {refused.id}
        assert store.enqueue([refused]) == {refused.id} - known
        (held,) = claim(store, 1)
        assert store.apply([Finish(held.lease, State.DONE)]) == {"a"}
        require_order(store)


def _enqueue_until_refused(store: MySQLStore) -> tuple[set[str], TaskRecord]:
    """What was acknowledged, and the first that was not: by an error that says so, or by none that can."""
    random, stored = Random(1), {"a"}
    for each in range(1000):
        task = ready(f"big {each}", 2, payload=f'"{random.randbytes(150_000).hex()}"')
        try:
            stored |= store.enqueue([task])
        except StoreError:
            return stored, task
    raise AssertionError("a server without room went on")
