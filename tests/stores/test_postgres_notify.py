"""Section 6, `Notify`: workers of other processes are woken at once, where the URL asks for it (PG8)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.postgres import LocalPostgres, own_postgres
from tests.servers.proxy import Proxy
from tests.stores.postgres_schemas import connect_plainly, fresh_schema, open_url, with_options
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core import Engine, InvalidStoreUrl, NewTask, QueueCriteria, Release, Retry, Task, open_engine
from wiggle_core.engine import notifying
from wiggle_core.stores.store import Notify
from wiggle_store_postgres.notifying import PostgresLine
from wiggle_store_postgres.place import read_url

ALL = QueueCriteria("q")


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A schema that is there, whose URL turns NOTIFY on."""
    with migrated(postgres_url) as made:
        yield made


@contextmanager
def migrated(server_url: str) -> Iterator[str]:
    with fresh_schema(server_url) as fresh:
        open_engine(fresh, migrate=True).close()
        yield with_options(fresh, notify="1")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with open_engine(url) as opened:
        yield opened


@pytest.fixture
def other(url: str) -> Iterator[Engine]:
    """What another process would have: an engine with connections of its own."""
    with open_engine(url) as opened:
        yield opened


def channel_of(url: str) -> str:
    return str(make_url(url).query["schema"])


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "wiggle-messenger"]


def backends(url: str) -> list[str]:
    """What each of the store's connections to the database did last."""
    with connect_plainly(url) as plain:
        rows = plain.execute(
            "SELECT query FROM pg_stat_activity WHERE application_name = 'wiggle' AND query LIKE %s",
            (f"%{channel_of(url)}%",),
        ).fetchall()
    return [query for (query,) in rows]


class Calls:
    """How often a subscriber was called, and a way to wait for the next time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.count >= count)


def heard(engine: Engine, queue: str = "q") -> Calls:
    """A subscriber, who was called once because the line was opened."""
    calls = Calls()
    engine.subscribe(QueueCriteria(queue), calls)
    calls.wait_for(1)
    return calls


# Across processes

PROGRAM = """
import sys
from wiggle_core import Worker, open_engine

worker = Worker(open_engine(sys.argv[1]), "w", queues=["q"], concurrency=1)

@worker.task("s")
def handle(context):
    print(context.id, flush=True)

@worker.task("first")
def begin(context):
    print("first", flush=True)

worker.run()
"""


@contextmanager
def worker_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that looks for tasks once a minute, unless it is woken, and sweeps once an hour."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "WIGGLE_SCOPED_FALLBACK_MAX_MILLIS": "60000",
        "WIGGLE_SWEEP_INTERVAL_MILLIS": "3600000",
    }
    command = [sys.executable, "-W", "error", "-c", PROGRAM, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


def let_it_wait_long(engine: Engine, process: subprocess.Popen[str]) -> None:
    """Return when the worker has worked, and its waits have grown beyond what this test takes."""
    assert process.stdout is not None
    engine.enqueue("q", "first")
    assert process.stdout.readline() == "first\n"
    time.sleep(3.4)  # its waits were 0.1, 0.2 ... 1.6 s, 3.1 s together, and the one that it is in now takes 3.2 s


def test_a_worker_elsewhere_takes_a_task_at_once(engine: Engine, url: str) -> None:
    """Section 6: an enqueue by one process wakes the worker of another in the middle of a long wait."""
    with worker_process(url) as process:
        let_it_wait_long(engine, process)
        assert process.stdout is not None
        began = time.monotonic()
        engine.enqueue("q", "s", id="a")
        assert process.stdout.readline() == "a\n"
        assert time.monotonic() - began < 2


def test_an_enlisted_task_wakes_elsewhere(engine: Engine, other: Engine, url: str) -> None:
    """Section 6: `wake` after the caller's commit promotes the task here, and so wakes who waits there."""
    calls = heard(other)
    with closing(connect_plainly(url)) as connection, connection.transaction():
        engine.enlist(connection, [NewTask("q", "s", id="a")])
    engine.wake()
    calls.wait_for(2)
    assert [task.id for task in other.claim("w", [ALL])] == ["a"]


def test_a_producer_that_ends_without_closing_has_told(url: str, engine: Engine) -> None:
    """Section 6: a script that enqueues and ends at once still wakes who waits."""
    calls = heard(engine)
    script = "import sys; from wiggle_core import open_engine; open_engine(sys.argv[1]).enqueue('q', 's')"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-W", "error", "-c", script, url], check=True, timeout=300, env=environment)
    calls.wait_for(2)


def test_a_forked_child_tells_by_a_line_of_its_own(engine: Engine, other: Engine) -> None:
    """Section 6: neither the parent's line nor its thread is used by a child, or harmed by its end."""
    calls, own = heard(other), heard(engine)
    engine.enqueue("q", "s")
    calls.wait_for(2)
    child = os.fork()
    if child == 0:  # pragma: no cover # another process
        try:
            engine.enqueue("q", "s")
            engine.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    calls.wait_for(3)
    own.wait_for(3)
    engine.enqueue("q", "s")
    calls.wait_for(4)


def test_a_child_that_was_forked_in_the_telling_ends(engine: Engine) -> None:
    """Section 6: what a child does at its end does not wait for a lock that only the parent's thread could release."""
    heard(engine)
    assert engine._subscriptions._messenger is not None
    post = engine._subscriptions._messenger._post()
    with post._lock:
        child = os.fork()
        if child == 0:  # pragma: no cover # another process
            post.close()  # as `atexit` does
            os._exit(0)
    try:
        wait_until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), 10)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise


# Who is woken, and by what


def test_only_those_of_the_queue_are_woken(engine: Engine, other: Engine) -> None:
    """Section 6: the message names the queue; criteria on another one sleep on."""
    calls, elsewhere = heard(other), Calls()
    other.subscribe(QueueCriteria("elsewhere"), elsewhere)
    engine.enqueue("nobody's", "s")
    engine.enqueue("q", "s")
    calls.wait_for(2)
    engine.enqueue("elsewhere", "s")
    elsewhere.wait_for(1)
    assert (calls.count, elsewhere.count) == (2, 1)


def test_who_told_before_may_hear(engine: Engine, other: Engine) -> None:
    """Section 6: a process that only enqueued hears nothing; its first subscriber changes that."""
    calls = heard(other)
    engine.enqueue("q", "s")
    calls.wait_for(2)
    late = heard(engine)
    other.enqueue("q", "s")
    late.wait_for(2)


def test_a_queue_may_have_any_name(engine: Engine, other: Engine) -> None:
    """C7: 255 code points of four bytes each reach the others as they are."""
    name = "😀" * 254 + "'"
    calls = heard(other, name)
    engine.enqueue(name, "s")
    calls.wait_for(2)


def test_all_that_makes_ready_wakes(engine: Engine, other: Engine) -> None:
    """Section 6: a retry, a release, a promotion and a revival are heard as an enqueue is; a SCHEDULED task is not."""
    calls = heard(other)
    engine.enqueue("q", "s", id="a")
    calls.wait_for(2)
    engine.settle(engine.claim("w", [ALL])[0], Retry(delay=timedelta(0)))
    calls.wait_for(3)
    engine.settle(engine.claim("w", [ALL])[0], Release())
    calls.wait_for(4)
    engine.cancel("a")
    engine.retry("a")
    calls.wait_for(5)
    engine.cancel("a")
    engine.enqueue("q", "s", id="b", delay=timedelta(milliseconds=1))
    time.sleep(0.01)
    assert calls.count == 5
    engine.wake()
    calls.wait_for(6)


def test_an_engine_does_not_hear_itself(engine: Engine, other: Engine) -> None:
    """Section 8: within a process only a task that matches wakes; its own message must not undo that."""
    rare, later, calls = Calls(), Calls(), heard(other)
    engine.subscribe(QueueCriteria("q", Task.step == "rare"), rare)
    engine.subscribe(QueueCriteria("later"), later)
    rare.wait_for(1)
    engine.enqueue("q", "common")
    calls.wait_for(2)
    other.enqueue("later", "s")  # messages come in order
    later.wait_for(1)
    assert rare.count == 1


def test_a_message_that_comes_while_telling_is_heard(url: str) -> None:
    """Section 6: what the server sends along with its answer to a statement is not lost."""
    place = read_url(make_url(url))
    with closing(PostgresLine(place, hears=True)) as line, closing(PostgresLine(place, hears=False)) as teller:
        teller.tell(["a"])
        assert select.select([line], [], [], 20)[0] == [line]
        line.tell(["b"])
        assert line.heard() == {"a"}
        assert line.heard() == set()


def test_many_tasks_are_told_together(engine: Engine, url: str) -> None:
    """PG8: however many tasks become READY, a queue is named a hundred times a second at most."""
    with closing(connect_plainly(url)) as listener:
        listener.execute(f"LISTEN {channel_of(url)}".encode())
        began = time.monotonic()
        for number in range(300):
            engine.enqueue("q", "s", number)
        engine.close()
        most = (time.monotonic() - began) / notifying.TELL_PAUSE + 2
        listener.execute("SELECT 1")
        messages = [each.payload for each in listener.notifies(timeout=0.2)]
    assert set(messages) == {"q"}
    assert len(messages) <= most
    assert len(messages) < 300


# Lost lines


def test_a_lost_line_is_opened_again(engine: Engine, other: Engine, url: str) -> None:
    """Section 6: after its connection was ended, everyone is woken once, and hears again."""
    calls = heard(other)
    _end_lines(url)
    calls.wait_for(2)
    engine.enqueue("q", "s")
    calls.wait_for(3)


def _end_lines(url: str) -> None:
    with connect_plainly(url) as plain:
        plain.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s",
            (f"LISTEN%{channel_of(url)}%",),
        )


def test_what_was_to_be_told_survives_a_lost_line(engine: Engine, other: Engine, url: str) -> None:
    """Section 6: a line that is lost in the telling is opened again, and the queue is named then."""
    with Proxy(make_url(url).port or 5432) as proxy:
        through = open_engine(make_url(url).set(port=proxy.port).render_as_string(hide_password=False))
        calls = heard(other)
        proxy.cut_at = b"pg_notify"
        through.enqueue("q", "s")
        calls.wait_for(2)
        proxy.cut_at = None
        calls.wait_for(3)
        through.close()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """A server of this module's own, which its tests stop and start."""
    try:
        with own_postgres() as started:
            yield started
    except Unavailable as reason:
        skip_or_fail("PostgreSQL of our own", reason)


def test_a_server_that_comes_back_is_heard_again(server: LocalPostgres, caplog: pytest.LogCaptureFixture) -> None:
    """Section 6: with the server away the line is tried again, ever more rarely; then everyone is woken."""
    with migrated(server.url) as url, open_engine(with_options(url, connect_timeout="3")) as engine:
        calls = heard(engine)
        server.stop("immediate")
        time.sleep(0.3)
        server.start()
        calls.wait_for(2)
        with open_engine(url) as other:
            other.enqueue("q", "s")
            calls.wait_for(3)
    tries = [record for record in caplog.records if "cannot be reached" in record.message]
    assert 1 <= len(tries) < 10  # 0.1 s apart, then 0.2 s, 0.4 s ...


def test_a_session_may_be_idle_for_long(engine: Engine, postgres_url: str, url: str) -> None:
    """Section 6: a line is not ended for being idle, whatever the server allows to sessions."""
    impatient = with_options(url, options="-c idle_session_timeout=100")
    with open_engine(impatient) as other:
        calls = heard(other)
        time.sleep(0.5)
        assert calls.count == 1
        engine.enqueue("q", "s")
        calls.wait_for(2)


# Ends


def test_close_ends_the_thread_and_its_connection(url: str) -> None:
    """Section 6: after `close` nothing of it is left, neither here nor at the server."""
    files = len(os.listdir("/dev/fd"))
    engine = open_engine(url)
    heard(engine)
    assert len(threads()) == 1
    assert any(query.startswith("LISTEN") for query in backends(url))
    engine.close()
    engine.close()
    assert threads() == []
    wait_until(lambda: not backends(url))
    assert len(os.listdir("/dev/fd")) == files


def test_close_does_not_wait_for_a_server_that_is_away(server: LocalPostgres) -> None:
    """Section 6: what cannot be told any more does not hold up the end of a program."""
    with migrated(server.url) as url:
        engine = open_engine(url)
        heard(engine)
        server.stop("immediate")
        assert engine._subscriptions._messenger is not None
        engine._subscriptions._messenger.tell(["q"])
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < 3
        assert threads() == []
        server.start()


def test_a_subscriber_may_close_the_engine(url: str, other: Engine) -> None:
    """Section 6: also in the thread that hears, `close` returns and ends it."""
    engine = open_engine(url)
    is_open = threading.Event()
    engine.subscribe(ALL, lambda: engine.close() if is_open.is_set() else is_open.set())
    assert is_open.wait(PATIENCE)
    other.enqueue("q", "s")
    wait_until(lambda: len(threads()) == 1)  # the other engine's


def test_what_cannot_be_told_harms_no_enqueue(
    engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Section 6: without a thread to tell of it, the task is stored all the same; the next one tells of both."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = heard(other)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert engine.enqueue("q", "s")
    assert "not told of tasks yet: can't start new thread" in caplog.text
    engine.enqueue("elsewhere", "s")
    calls.wait_for(2)


def test_a_line_holds_one_connection(engine: Engine, url: str) -> None:
    """Section 6: telling and hearing take one connection together, and none of the pool's."""
    heard(engine)
    small = with_options(url, pool_size="1", pool_timeout="1")
    with open_engine(small) as busy:
        heard(busy)
        for number in range(20):
            busy.enqueue("q", "s", number)
        assert len([query for query in backends(url) if query.startswith(("LISTEN", "SELECT pg_notify"))]) <= 2


# Off by default, and where it cannot be on


def test_it_is_off_by_default(url: str) -> None:
    """PG8: without `?notify=1` there is no thread, no connection and no NOTIFY."""
    silent = make_url(url).difference_update_query(["notify"]).render_as_string(hide_password=False)
    assert not read_url(make_url(silent)).notifies
    with closing(connect_plainly(url)) as listener, open_engine(silent) as engine:
        listener.execute(f"LISTEN {channel_of(url)}".encode())
        calls = Calls()
        engine.subscribe(QueueCriteria("another"), calls)
        engine.enqueue("q", "s")
        assert threads() == []
        assert list(listener.notifies(timeout=0.2)) == []
        assert calls.count == 0


def test_a_pooler_cannot_be_between() -> None:
    """PG7: LISTEN belongs to a session, which a pooler in transaction mode does not give: refused with the reason."""
    with pytest.raises(InvalidStoreUrl, match="notify=1 does not go with pgbouncer=1: who LISTENs needs a session"):
        open_engine("postgresql://h/n?notify=1&pgbouncer=1")
    assert isinstance(open_url("postgresql://h/n?notify=1"), Notify)


def test_telling_is_no_part_of_the_enqueue(engine: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG8: an enqueue sends one statement, as without NOTIFY; another thread tells of it."""
    sent: list[tuple[threading.Thread, str]] = []
    calls = heard(other)
    engine.enqueue("q", "s")
    calls.wait_for(2)
    _note_statements(monkeypatch, sent)
    engine.enqueue("q", "s")
    calls.wait_for(3)
    assert [text for thread, text in sent if "pg_notify" in text and thread.name == "wiggle-messenger"] != []
    (own,) = [text for thread, text in sent if thread is threading.current_thread()]
    assert "notify" not in own.lower()


def test_telling_waits_for_no_disk(url: str) -> None:
    """PG8: NOTIFY's lock is held until its commit is flushed, so a line's commits are not, and all others are."""
    asked = "SHOW synchronous_commit"
    store = open_url(url)
    with closing(PostgresLine(read_url(make_url(url)), hears=False)) as line:
        assert line._connection.execute(asked).fetchall() == [("off",)]
    with store._connections.reading() as session:
        assert session.rows(asked) == [("on",)]
    store.close()


def _note_statements(monkeypatch: pytest.MonkeyPatch, sent: list[tuple[threading.Thread, str]]) -> None:
    execute: Any = psycopg.Cursor.execute

    def noting(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:  # Any: psycopg's own
        sent.append((threading.current_thread(), query.decode() if isinstance(query, bytes) else str(query)))
        return execute(cursor, query, *arguments, **options)

    for kind in (psycopg.Cursor, psycopg.RawCursor):
        monkeypatch.setattr(kind, "execute", noting)
