"""Trouble between a store and a MySQL or MariaDB server: lost answers, ended sessions, locks of others, and threads,
processes and Ctrl-C on our side. Nothing is lost and nothing done twice, and no connection is left in a transaction."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from sqlalchemy import make_url

from tests.servers.proxy import Proxy
from tests.stores.mysql_faults import (
    COPY_AGE,
    SECRET,
    behind_proxy,
    claim,
    fails,
    is_gone,
    locked,
    number,
    require_order,
    require_plain_words,
    waiting,
)
from tests.stores.mysql_prefixes import asked, connect_plainly, fresh_place, open_url, plain
from tests.stores.postgres_schemas import with_options
from tests.stores.test_postgres_facts import TTL, ids, ready, route
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core.errors import AmbiguousStoreError, PermanentStoreError, TransientStoreError
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish, GiveBack, Store
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.place import in_place
from wiggle_store_mysql.store import MySQLStore


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    with fresh_place(mysql_like_url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[MySQLStore]:
    opened = open_url(url)
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


# An answer that is lost


def enqueue(store: Store, _: TaskRecord) -> object:
    return store.enqueue([ready("new", 9)])


def enqueue_many(store: Store, _: TaskRecord) -> object:
    return len(store.enqueue([ready(f"new {each}", 9) for each in range(1500)]))


def claim_next(store: Store, _: TaskRecord) -> object:
    return ids(claim(store, 1, "the token"))


def extend(store: Store, held: TaskRecord) -> object:
    return {lease.task_id for lease in store.extend([held.lease], 2 * TTL)}


def settle(store: Store, held: TaskRecord) -> object:
    return store.apply([Finish(held.lease, State.DONE)])


def give_back(store: Store, held: TaskRecord) -> object:
    return store.apply([GiveBack(held.lease, {})])


DEEDS: dict[Callable[[Store, TaskRecord], object], object] = {
    enqueue: {"new"},
    enqueue_many: 1500,
    claim_next: ["waiting"],
    extend: {"held"},
    settle: {"held"},
    give_back: {"held"},
}
"""What commits something, and its answer."""


@pytest.mark.parametrize("reaches_server", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: str(getattr(deed, "__name__", deed)))
def test_a_commit_without_an_answer_is_looked_up(
    store: MySQLStore, url: str, deed: Callable[[Store, TaskRecord], object], reaches_server: bool
) -> None:
    """L6: a line that is cut behind a COMMIT, or before, leaves the outcome open; ids and tokens tell, and the effect
    is there once. A claim that did not come about found nothing, and the next one finds it."""
    store.enqueue([ready("held", 1), ready("waiting", 2)])
    (held,) = claim(store, 1)
    with behind_proxy(url) as (proxy, through):

        def mend(_: float = 0) -> None:
            proxy.cut_at = proxy.lost_at = None

        replaying = Replaying(through, sleep=mend)
        assert through.get("waiting") is not None  # has its connection
        setattr(proxy, "cut_at" if reaches_server else "lost_at", rb"COMMIT\Z")
        answer = deed(replaying, held)
        mend()
        assert set(replaying.counts) == {"AmbiguousStoreError"}
        if deed is claim_next and not reaches_server:
            assert answer == []
            answer = deed(replaying, held)
        assert answer == DEEDS[deed]
        require_order(through)
    require_done_once(store, deed, held)


def require_done_once(store: MySQLStore, deed: Callable[[Store, TaskRecord], object], held: TaskRecord) -> None:
    expected = {"held": State.RUNNING, "waiting": State.READY}
    if deed in (enqueue, enqueue_many):
        assert store.count(route(), [State.READY], 9999) == (2 if deed is enqueue else 1501)
    elif deed is claim_next:
        expected["waiting"] = State.RUNNING
        assert ids(store.leased("the token")) == ["waiting"]
    elif deed is settle:
        expected["held"] = State.DONE
        assert store.apply([Finish(held.lease, State.DONE)]) == set()
    elif deed is give_back:
        expected["held"] = State.READY
        assert ids(claim(store)) == ["held", "waiting"]
        return
    else:
        present = store.get("held")
        assert present is not None
        assert present.lease_until is not None
        assert held.lease_until is not None
        assert present.lease_until >= held.lease_until + TTL
    assert {task_id: fate.state for task_id, fate in store.lookup(list(expected)).items()} == expected


def test_a_line_that_is_cut_before_the_end_is_transient(store: MySQLStore, url: str) -> None:
    """Nothing is applied without a COMMIT, and a question is never AMBIGUOUS: a replay does it all."""
    store.enqueue([ready("a")])
    deeds: dict[bytes, Callable[[Store], object]] = {
        rb"FOR UPDATE": claim,
        rb"INSERT INTO": lambda through: through.enqueue([ready(f"b {each}") for each in range(300)]),
        rb"payload": lambda through: through.get("a"),
    }
    with behind_proxy(url) as (proxy, through):
        for moment, deed in deeds.items():
            through.get("z")
            proxy.cut_at = moment
            fails(TransientStoreError, "the connection .* was lost", lambda: deed(through))  # noqa: B023
            assert ids(store.find(route(), list(State), 10)) == ["a"]
            assert store.count(route(), [State.READY], 10) == 1
            proxy.cut_at = None
        require_order(through)


def test_a_callers_commit_without_an_answer_may_be_sent_again(store: MySQLStore, url: str) -> None:
    """Section 6, L4: what the caller does not know is enqueued again in a transaction of its own, and is there once."""
    task = TaskRecord("a", "q", "s", 1, 1, State.SCHEDULED)
    for reaches_server in (True, False):
        with behind_proxy(url) as (proxy, _), closing(connect_plainly(url)) as second:
            with closing(_caller(url, proxy)) as first:
                first.begin()
                store.enlist(first, [task])
                setattr(proxy, "cut_at" if reaches_server else "lost_at", b"COMMIT")
                with pytest.raises(pymysql.OperationalError):
                    first.commit()
            assert (store.get("a") is not None) is reaches_server
            second.begin()
            store.enlist(second, [task])
            second.commit()
            assert store.count(route(), list(State), 10) == 1
            with plain(url) as other:
                for table in ("task", "payload"):
                    asked(other, in_place(f"DELETE FROM ${table}", store._place))


def _caller(url: str, proxy: Proxy) -> pymysql.Connection[Any]:
    """Through the proxy, to which TLS would show nothing."""
    through = make_url(url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    return connect_plainly(through, ssl_disabled=True)


# Sessions and statements that others end


@pytest.mark.parametrize("kind", ["KILL QUERY", "KILL"])
def test_a_claim_that_is_ended_between_lease_and_commit(store: MySQLStore, url: str, kind: str) -> None:
    """1317, 1927, L6: whether a commit came first is open; the token tells that it did not, and the task is free."""
    store.enqueue([ready("a")])
    replaying = Replaying(store)
    with ThreadPoolExecutor(1) as pool, plain(url) as killer:
        with locked(store, url, "payload"):  # which a claim reads behind its lease
            claiming = pool.submit(claim, replaying)
            wait_until(lambda: len(waiting(killer, store)) == 1)
            asked(killer, f"{kind} {waiting(killer, store)[0]}")
            wait_until(lambda: replaying.counts.total() > 0)
        assert claiming.result(timeout=PATIENCE) == []
    assert replaying.counts["AmbiguousStoreError"] == 1
    assert ids(claim(store)) == ["a"]


@pytest.mark.parametrize(
    ("table", "deed", "answer"),
    [("task", lambda store, _: store.get("held").id, "held"), ("history", settle, {"held"})],
    ids=["question", "change"],
)
def test_a_statement_that_takes_too_long_is_replayed(
    store: MySQLStore, url: str, table: str, deed: Callable[[Store, TaskRecord], object], answer: object
) -> None:
    """1205, 1969, 3024: questions and changes are cut off by the limits, and go through when others have gone. MariaDB
    ends a packet with a COMMIT by its time limit; that this was applied is looked up."""
    store.enqueue([ready("held")])
    (held,) = claim(store)
    with closing(open_url(with_options(url, statement_timeout="0.3"))) as hasty:
        with locked(store, url, table) as other:
            with pytest.raises((TransientStoreError, AmbiguousStoreError), match=r"`\?statement_timeout=SECONDS`"):
                deed(hasty, held)

            def unlock(_: float) -> None:
                asked(other, "UNLOCK TABLES")

            replaying = Replaying(hasty, sleep=unlock)
            assert deed(replaying, held) == answer
        assert set(replaying.counts) in ({"TransientStoreError"}, {"AmbiguousStoreError"})
        require_order(hasty)


def test_a_row_that_others_lock_too_long_is_waited_for_again(store: MySQLStore, url: str) -> None:
    """1205: the transaction that waited is rolled back as a whole, with the locks that it had, and replayed."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    changes = [Finish(task.lease, State.DONE) for task in claim(store)]
    hasty = open_url(with_options(url, statement_timeout="1"))
    with plain(url) as other, plain(url) as third:
        asked(other, "BEGIN")
        asked(other, in_place("SELECT id FROM $task WHERE id = 'b' FOR UPDATE", store._place))

        def release(_: float) -> None:
            # The connection of the one that failed does not hold on to the first row.
            asked(third, in_place("SELECT id FROM $task WHERE id = 'a' FOR UPDATE NOWAIT", store._place))
            asked(other, "ROLLBACK")

        replaying = Replaying(hasty, sleep=release)
        assert replaying.apply(changes) == {"a", "b"}
    assert replaying.counts == {"TransientStoreError": 1}
    require_order(hasty)
    hasty.close()


def test_the_victim_of_a_deadlock_is_replayed(store: MySQLStore, url: str) -> None:
    """1213, L7: another program that locks our rows in another order makes a settlement the victim, since it has
    written less; the replay settles all."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    changes = [Finish(task.lease, State.DONE) for task in claim(store)]
    replaying = Replaying(store)
    lock = "SELECT id FROM $task WHERE id = '{}' FOR UPDATE"
    with plain(url) as other, plain(url) as looking, ThreadPoolExecutor(1) as pool:
        asked(other, "BEGIN")
        rows = ", ".join(f"('heavy {each}', 'null')" for each in range(500))
        asked(other, in_place(f"INSERT INTO $payload (id, body) VALUES {rows}", store._place))
        asked(other, in_place(lock.format("b"), store._place))
        settling = pool.submit(replaying.apply, changes)
        statement = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE %s"
        waits = partial(asked, looking, statement, f"%`{store._place.prefix}task`%")
        while not waits():
            time.sleep(COPY_AGE)
        asked(other, in_place(lock.format("a"), store._place))  # comes back when the settlement has been sacrificed
        asked(other, "ROLLBACK")
        assert settling.result(timeout=PATIENCE) == {"a", "b"}
    assert replaying.counts == {"TransientStoreError": 1}


@pytest.mark.parametrize("end", ["KILL", "wait_timeout"])
def test_an_idle_connection_that_the_server_ended_is_not_used(store: MySQLStore, url: str, end: str) -> None:
    """4031: what a server says at the end of a session is seen before the next statement, so no write is lost on it."""
    store.enqueue([ready("a")])
    idle = number(store)
    with plain(url) as other:
        if end == "KILL":
            asked(other, f"KILL {idle}")
        else:
            with store._connections.reading() as session:
                session.run("SET SESSION wait_timeout = 1")
        wait_until(lambda: is_gone(other, idle))
    assert store.enqueue([ready("b", 2)]) == {"b"}
    assert number(store) != idle


# Limits of an account


@contextmanager
def account(url: str, limits: str) -> Iterator[str]:
    """The URL for a user who may do all that a store does, within limits."""
    name = f"test_{uuid4().hex[:12]}"
    with plain(url) as other:
        asked(other, f"CREATE USER {name}@'%%' IDENTIFIED BY '{SECRET}' WITH {limits}")
        asked(other, f"GRANT ALL ON `{make_url(url).database}`.* TO {name}@'%%'")
        yield make_url(url).set(username=name, password=SECRET).render_as_string(hide_password=False)
        asked(other, f"DROP USER {name}@'%%'")


def test_a_rollback_that_is_refused_ends_the_connection(store: MySQLStore, url: str) -> None:
    """1226 also meets the ROLLBACK. A connection that stays in its transaction is not lent out again, and the server
    lets its locks go."""
    store.enqueue([ready("a")])
    refused = 0
    for queries in range(4, 30):  # the limit is met at each statement in turn
        with account(url, f"MAX_QUERIES_PER_HOUR {queries}") as limited, closing(open_url(limited)) as poor:
            with suppress(TransientStoreError):
                assert ids(claim(poor)) == ["a"]
                break
            fails(TransientStoreError, "used up what .* raise the limits of the account", lambda: claim(poor))
            wait_until(lambda: ids(claim(store, token="free")) == ["a"])
            store.apply([GiveBack(task.lease, {}) for task in store.leased("free")])
            refused += 1
    assert refused > 3


# Our own threads, processes and signals


def test_more_threads_than_connections_take_turns(store: MySQLStore, url: str) -> None:
    """Sixteen threads with two connections get what is there, once; who waits too long hears which option helps."""
    store.enqueue([ready(f"t{each:03}", each) for each in range(160)])
    small = open_url(with_options(url, pool_size="2", pool_timeout="20"))
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda _: ids(claim(small, 10)), range(16)))
    assert sorted(each for part in taken for each in part) == [f"t{each:03}" for each in range(160)]
    assert small._connections._pool._pools[-1].checkedin() <= 2
    small.close()
    smallest = open_url(with_options(url, pool_size="1", pool_timeout="0.1"))
    with smallest._connections.reading():
        fails(TransientStoreError, r"raise `\?pool_size=`", lambda: smallest.get("a"))
    assert smallest.get("a") is None
    smallest.close()


def test_a_fork_after_use_has_connections_of_its_own(store: MySQLStore) -> None:
    """A child neither uses nor closes what its parent opened, at its end either."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    before = number(store)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = b"failed"
        try:
            told = f"{ids(claim(store, 1))} {number(store) == before}".encode()
            store.close()
        finally:
            os.write(writing, told)
            os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"['a'] False"
    assert number(store) == before
    assert ids(claim(store)) == ["b"]


def test_a_store_that_is_closed_while_claims_run(store: MySQLStore, url: str) -> None:
    """A claim under way comes to its end, its connection is closed behind it, and later ones say what to do."""
    store.enqueue([ready("a")])
    closing_store = open_url(url)
    with ThreadPoolExecutor(1) as pool, plain(url) as looking:
        with locked(store, url, "payload"):
            claiming = pool.submit(claim, closing_store)
            wait_until(lambda: len(waiting(looking, store)) == 1)
            (used,) = waiting(looking, store)
            closing_store.close()
            with pytest.raises(PermanentStoreError, match="was closed by this program: open the store again"):
                claim(closing_store)
        assert ids(claiming.result(timeout=PATIENCE)) == ["a"]
        wait_until(lambda: is_gone(looking, used))


def test_ctrl_c_in_mid_answer_ends_the_connection(store: MySQLStore, url: str) -> None:
    """What was not read would be taken for the next answer. The claim itself may come about, as with a kill: until its
    lease ends, nobody has its task."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with locked(store, url, "payload"), plain(url) as looking:
            before = number(store)

            def interrupt() -> None:
                wait_until(lambda: len(waiting(looking, store)) == 1)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                claim(store, 1, "the token")
            thread.join()
        assert number(store) != before
        with plain(url) as looking:
            wait_until(lambda: is_gone(looking, before))
        held = store.leased("the token")
        assert ids(held) + ids(claim(store)) == ["a", "b"]
    finally:
        signal.signal(signal.SIGINT, handler)


def test_ctrl_c_again_while_a_claim_is_undone(store: MySQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one, before its ROLLBACK is sent, lends no connection out that is still in its transaction."""
    store.enqueue([ready("a")])
    before = number(store)

    def interrupted(_: Session) -> None:
        raise KeyboardInterrupt

    def claim_and_interrupt() -> None:
        with store._connections.transaction() as session:
            session.rows("SELECT id FROM $task WHERE id = 'a' FOR UPDATE")
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Session, "roll_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            claim_and_interrupt()
    assert number(store) != before
    assert ids(claim(store)) == ["a"]
