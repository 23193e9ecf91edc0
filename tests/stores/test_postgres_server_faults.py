"""Faults of servers that are set up for them: slow to commit, full, crashing, short of disk, following another one. The
right class of error, nothing lost and nothing done twice."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from benchmarks import crashes
from benchmarks.crashes import Scenario
from benchmarks.report import Report
from tests.campaign.disk import small_disk
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.postgres import LocalPostgres, binaries, own_postgres, standby_of
from tests.stores.postgres_schemas import connect_plainly, fresh_role, fresh_schema, open_url, with_options
from tests.stores.test_postgres_facts import claim, ids, ready
from tests.stores.test_postgres_faults import answers, fails
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core.errors import PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import State
from wiggle_store_postgres.store import PostgresStore

CONNECTIONS = 16


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """A server that syncs, as `commit_delay` needs, and soon has no connection left."""
    try:
        with own_postgres(fsync="on", max_connections=str(CONNECTIONS)) as started:
            yield started
    except Unavailable as reason:
        skip_or_fail("PostgreSQL of our own", reason)


@pytest.fixture
def url(server: LocalPostgres) -> Iterator[str]:
    with fresh_schema(server.url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = open_url(url)
    opened.migrate()
    yield opened
    opened.close()


# Claimers and their ends


def test_killed_claimers_lose_nothing_and_double_nothing(url: str, tmp_path: Path) -> None:
    """L1, L2, L4: `python -m benchmarks crashes --store URL` in small; a million tasks take it minutes."""
    out = io.StringIO()
    report = Report("crashes", out)
    scenario = Scenario(processes=3, tasks=3000, limit=20, kills=2, enqueuer_kills=1, pauses=1, lease=0.5)
    crashes.run(report, tmp_path, scenario, url)
    assert report.verdict() == 0, out.getvalue()
    for proof in ("none lost: every id is DONE, once", "none leased twice at one time", "none settled twice"):
        assert proof in out.getvalue()


# Ends of sessions


def _waiting(schema: str, connection: psycopg.Connection[Any]) -> list[tuple[int]]:  # Any: rows of whatever is asked
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    return connection.execute(query, (f'%"{schema}"%',)).fetchall()


SLOW_COMMITS = "-c commit_delay=100000 -c commit_siblings=0"
"""The server sleeps for 0.1 s within each commit."""


@pytest.mark.parametrize("pooled", ["0", "1"])
@pytest.mark.parametrize("kind", ["enqueue", "enqueue many", "settle"])
def test_a_session_ended_in_mid_commit_is_told_truly(store: PostgresStore, url: str, kind: str, pooled: str) -> None:
    """L6: whatever the moment at which a session is terminated, an answer means applied, TRANSIENT not applied, and
    AMBIGUOUS is resolved by a look."""
    slow = open_url(with_options(url, options=SLOW_COMMITS, application_name="slow", pgbouncer=pooled))
    ended_after = 0
    for number, moment in enumerate((0.0, 0.02, 0.05, 0.08)):
        names = [f"{number} {each}" for each in range(300 if kind == "enqueue many" else 1)]
        action: Callable[[], object] = lambda: slow.enqueue([ready(name) for name in names])  # noqa: E731, B023
        if kind == "settle":
            store.enqueue([ready(names[0])])
            (held,) = claim(store)
            action = lambda: slow.apply([Finish(held.lease, State.DONE)])  # noqa: E731, B023
        told = _ended(action, url, moment)
        fate = store.lookup(names[:1]).get(names[0])
        is_applied = fate is not None and (kind != "settle" or fate.state is State.DONE)
        assert told in (
            {"applied", "AmbiguousStoreError"} if is_applied else {"TransientStoreError", "AmbiguousStoreError"}
        )
        ended_after += is_applied
    assert ended_after > 0
    assert store.audit() == []
    slow.close()


def _ended(action: Callable[[], object], url: str, moment: float) -> str:
    """What is told of a call whose session is terminated a moment after it began to write."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'slow' AND backend_xid IS NOT NULL"
    with connect_plainly(url) as other, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(action)
        wait_until(lambda: bool(other.execute(query).fetchall()) or calling.done())
        time.sleep(moment)
        other.execute(f"SELECT pg_terminate_backend(pid) FROM ({query}) AS writing".encode())
        error = calling.exception(timeout=20)
    return "applied" if error is None else type(error).__name__


# Locks


def test_the_victim_of_a_deadlock_is_replayed(store: PostgresStore, url: str) -> None:
    """L7: another program that locks our rows in another order makes a settlement the victim; it is TRANSIENT, and the
    replay settles all."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    changes = [Finish(task.lease, State.DONE) for task in claim(store)]
    schema = store._place.schema
    # The one whose time comes first looks for deadlocks, and is sacrificed; by then the other one has to wait, too.
    settler = open_url(with_options(url, options="-c deadlock_timeout=2s"))
    replaying = Replaying(settler)
    with connect_plainly(url) as other, connect_plainly(url) as looking, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN")
        other.execute("SET LOCAL deadlock_timeout = '30s'")
        lock = f"SELECT FROM {schema}.task WHERE id = %s FOR UPDATE".encode()
        other.execute(lock, ("b",))
        settling = pool.submit(replaying.apply, changes)
        wait_until(lambda: bool(_waiting(schema, looking)))
        other.execute(lock, ("a",))  # comes back when the settlement has been sacrificed
        other.execute("ROLLBACK")
        assert settling.result(timeout=PATIENCE) == {"a", "b"}
    assert replaying.counts == {"TransientStoreError": 1}
    settler.close()


# Connections


def test_a_server_without_connections_is_transient(store: PostgresStore, url: str) -> None:
    """53300, whose number libpq keeps to itself: those left for superusers, and then none at all."""
    with fresh_role(url, f"crowd_{uuid4().hex[:8]}") as crowd_url, ExitStack() as stack:
        poor = open_url(crowd_url)
        store.get("a")  # has its connection
        _take_all(stack, crowd_url)
        fails(TransientStoreError, "has no connection left", lambda: poor.get("a"))
        _take_all(stack, url)
        rich = open_url(url)
        fails(TransientStoreError, "has no connection left", lambda: rich.get("a"))
        assert store.get("a") is None
        stack.close()
        wait_until(lambda: answers(poor))
        poor.close()
        rich.close()


def _take_all(stack: ExitStack, url: str) -> None:
    """Take connections until there is none."""
    with suppress(psycopg.OperationalError):
        for _ in range(CONNECTIONS + 1):
            stack.enter_context(connect_plainly(url))
        pytest.fail("there were more connections than the server may have")


# A standby


def test_a_standby_answers_and_is_promoted(server: LocalPostgres, store: PostgresStore, url: str) -> None:
    """Writing to a standby is PERMANENT; a question that stands in the way of what it follows is TRANSIENT (40001);
    promoted, it takes work."""
    store.enqueue([ready("a")])
    schema = store._place.schema
    try:
        with standby_of(server, max_connections=str(CONNECTIONS), max_standby_streaming_delay="0") as standby:
            follower = open_url(make_url(url).set(port=standby.port).render_as_string(hide_password=False))
            wait_until(lambda: follower.get("a") is not None)
            for use in (lambda: claim(follower), lambda: follower.enqueue([ready("b")]), lambda: follower.due(1)):
                fails(PermanentStoreError, "is read-only, a standby perhaps: name the primary", use)
            with ThreadPoolExecutor(1) as pool, connect_plainly(standby.url) as looking:
                asking = pool.submit(_ask_slowly, follower)
                wait_until(lambda: _sleeps(looking))
                with connect_plainly(url) as other, other.transaction():
                    other.execute(f"LOCK TABLE {schema}.task IN ACCESS EXCLUSIVE MODE".encode())
                fails(TransientStoreError, "met another one", lambda: asking.result(timeout=PATIENCE))
                looking.execute("SELECT pg_promote()")
            assert ids(claim(follower)) == ["a"]
            follower.close()
    except Unavailable as reason:
        skip_or_fail("PostgreSQL standby", reason)


def _ask_slowly(store: PostgresStore) -> None:
    with store._connections.reading() as session:
        session.rows("SELECT pg_sleep(20) FROM $schema.task")


def _sleeps(connection: psycopg.Connection[Any]) -> bool:  # Any: rows of whatever is asked
    return bool(connection.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'").fetchall())


# The disk

DISK_MEBIBYTES = 128


@pytest.fixture
def cramped() -> Iterator[tuple[LocalPostgres, Callable[[], None], Callable[[], None]]]:
    """A server whose cluster is on a small disk, how to fill it to the last byte, and how to make room."""
    with ExitStack() as stack:
        try:
            server = LocalPostgres(binaries(), {"autovacuum": "off"})
            stack.callback(server.remove)
            disk = stack.enter_context(small_disk(server.data, DISK_MEBIBYTES))
            server.give(server.data)
            server.start()
        except Unavailable as reason:
            skip_or_fail("PostgreSQL of our own", reason)
        except RuntimeError as reason:
            pytest.skip(f"disk full: {reason}")
        yield server, disk.fill, disk.relieve


def test_a_full_disk_under_the_server(cramped: tuple[LocalPostgres, Callable[[], None], Callable[[], None]]) -> None:
    """L4: 53100 is PERMANENT and says what to do; a server that crashes for want of disk leaves calls unanswered. No
    task that was acknowledged is lost, and none that was refused is there; with room again, work goes on."""
    server, fill, relieve = cramped
    with fresh_schema(server.url) as url:
        store = open_url(with_options(url, connect_timeout="3"))
        store.migrate()
        random, stored = Random(1), {"a"}
        store.enqueue([ready("a", 1)])
        fill()
        big = ready("big", payload=f'"{random.randbytes(300_000).hex()}"')
        fails(PermanentStoreError, "the disk under .* is full: free space, then go on", lambda: store.enqueue([big]))
        stored |= store.enqueue([ready("b", 2)])  # for which there is room in the pages of the first one
        with connect_plainly(url) as other, suppress(psycopg.OperationalError):
            other.execute("SELECT pg_switch_wal()")
        refused = {"big"} | _enqueue_until_it_crashes(store, stored)
        relieve()
        wait_until(lambda: answers(store) or _starts(server))
        known = store.lookup([*stored, *refused]).keys()
        assert stored <= known <= stored | refused
        assert "big" not in known
        assert store.enqueue([ready(each, 3) for each in refused]) == refused - known
        (held,) = claim(store, 1)
        assert store.apply([Finish(held.lease, State.DONE)]) == {"a"}
        assert store.audit() == []
        store.close()


def _starts(server: LocalPostgres) -> bool:
    """A server that crashed and has no room to recover in ends; this starts it again. False while there is one yet."""
    with suppress(Unavailable):
        server.start()
        return True
    return False


def _enqueue_until_it_crashes(store: PostgresStore, stored: set[str]) -> set[str]:
    """Enqueue one by one, noting what was acknowledged, until the server is away; what was not acknowledged."""
    refused: set[str] = set()
    for number in range(1000):
        name = f"small {number}"
        try:
            store.enqueue([ready(name, 2)])
            stored.add(name)
        except StoreError as error:
            refused.add(name)
            if not isinstance(error, PermanentStoreError):
                return refused
    raise AssertionError("a server without room for its log went on")
