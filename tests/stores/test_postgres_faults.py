"""Trouble with the server, the network and what a role may do: the right class of error, a clear sentence, nothing
lost and nothing done twice."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.postgres import LocalPostgres, own_postgres
from tests.servers.proxy import Proxy
from tests.stores.postgres_schemas import connect_plainly, fresh_role, fresh_schema, open_url, with_options
from tests.stores.test_postgres_facts import claim, ids, ready, route
from tests.stores.waiting import PATIENCE, wait_until
from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import ClaimRequest, Finish, GiveBack
from wiggle_core.tasks.task import State
from wiggle_store_postgres.errors import translate
from wiggle_store_postgres.place import read_url
from wiggle_store_postgres.store import PostgresStore

SECRET = "hunter2"


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as fresh:
        yield fresh


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = open_url(url)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """A server of this module's own, which its tests stop and start."""
    try:
        with own_postgres() as started:
            yield started
    except Unavailable as reason:
        skip_or_fail("PostgreSQL of our own", reason)


@pytest.fixture
def own_store(server: LocalPostgres) -> Iterator[PostgresStore]:
    """A store on a server that may be stopped."""
    with fresh_schema(server.url) as fresh:
        opened = open_url(with_options(fresh, connect_timeout="3"))
        opened.migrate()
        yield opened
        opened.close()


def require_plain_words(error: StoreError) -> None:
    """The message shows neither SQL nor a password; the driver's error is the cause."""
    assert not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE|COPY|unnest|json)\b", str(error))
    assert SECRET not in str(error)
    assert error.__cause__ is not None


def fails(kind: type[StoreError], words: str, action: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words) as caught:
        action()
    assert type(caught.value) is kind
    require_plain_words(caught.value)


# The server and the network


@contextmanager
def stuck_claim(store: PostgresStore) -> Iterator[tuple[Future[object], psycopg.Connection[tuple[object, ...]], int]]:
    """A claim that waits in the server for a table, another program's connection, and the claim's backend."""
    url, schema = store._place.url, store._place.schema
    with connect_plainly(url) as other, ThreadPoolExecutor(1) as pool:
        locker = connect_plainly(url)
        locker.execute("BEGIN")
        locker.execute(f"LOCK TABLE {schema}.payload IN ACCESS EXCLUSIVE MODE".encode())
        future: Future[object] = pool.submit(claim, store)
        query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        wait_until(lambda: bool(other.execute(query, (f'%"{schema}"%',)).fetchall()))
        ((backend,),) = other.execute(query, (f'%"{schema}"%',)).fetchall()
        assert isinstance(backend, int)
        yield future, other, backend
        locker.close()


def test_a_backend_terminated_in_mid_claim_is_transient(store: PostgresStore) -> None:
    """The server says that it ended the session, so nothing was applied: a replay claims what is there."""
    store.enqueue([ready("a")])
    with stuck_claim(store) as (claiming, other, backend):
        other.execute("SELECT pg_terminate_backend(%s)", (backend,))
        fails(TransientStoreError, "an administrator ended the connection", lambda: claiming.result(timeout=PATIENCE))
    assert ids(claim(store)) == ["a"]


def test_a_statement_that_takes_too_long_is_transient(store: PostgresStore, url: str) -> None:
    """A claim is cut off at `?statement_timeout=`, with nothing applied."""
    store.enqueue([ready("a")])
    hasty = open_url(with_options(url, statement_timeout="0.2"))
    with connect_plainly(url) as other, other.transaction():
        other.execute(f"LOCK TABLE {store._place.schema}.task IN ACCESS EXCLUSIVE MODE".encode())
        fails(TransientStoreError, r"`\?statement_timeout=SECONDS` gives it more", lambda: claim(hasty))
    assert ids(claim(hasty)) == ["a"]
    hasty.close()


def test_a_server_that_crashes_in_mid_claim_is_ambiguous(server: LocalPostgres, own_store: PostgresStore) -> None:
    """L6: a crash gives no answer, so the outcome is open; the token tells, once the server is back."""
    own_store.enqueue([ready("a")])
    with stuck_claim(own_store) as (claiming, _, _):
        server.stop("immediate")
        fails(
            AmbiguousStoreError,
            "was lost before the answer to a commit came",
            lambda: claiming.result(timeout=PATIENCE),
        )
        fails(TransientStoreError, "cannot be reached|was lost", lambda: own_store.get("a"))
        server.start()
    assert own_store.get("a") is not None
    assert ids(claim(own_store)) == ["a"]
    assert own_store.audit() == []


def answers(store: PostgresStore) -> bool:
    """Whether the server is there."""
    with suppress(TransientStoreError):
        store.get("a")
        return True
    return False


def test_a_backend_killed_in_mid_claim_is_ambiguous(own_store: PostgresStore) -> None:
    """L6: SIGKILL to one backend makes the server end all the others and recover, and work goes on."""
    own_store.enqueue([ready("a")])
    with suppress(psycopg.OperationalError), stuck_claim(own_store) as (claiming, _, backend):
        os.kill(backend, signal.SIGKILL)
        fails(
            AmbiguousStoreError,
            "was lost before the answer to a commit came",
            lambda: claiming.result(timeout=PATIENCE),
        )
    wait_until(lambda: answers(own_store))
    assert ids(claim(own_store)) == ["a"]
    assert own_store.audit() == []


def test_a_killed_postmaster_is_gone_on_with(server: LocalPostgres, own_store: PostgresStore) -> None:
    """L4: what was acknowledged is there after a restart; until then, calls are TRANSIENT."""
    own_store.enqueue([ready("a", 1), ready("b", 2)])
    (held,) = claim(own_store, 1)
    server.kill()
    wait_until(lambda: not answers(own_store))
    fails(TransientStoreError, "cannot be reached|was lost|starting up, shutting down", lambda: own_store.get("a"))
    server.start_again()
    assert own_store.apply([Finish(held.lease, State.DONE)]) == {"a"}
    assert ids(claim(own_store)) == ["b"]
    assert own_store.audit() == []


def test_a_restarted_server_is_gone_on_with(server: LocalPostgres, own_store: PostgresStore) -> None:
    """Connections that died while they lay idle are noticed before they are used: no write meets them."""
    own_store.enqueue([ready("a", 1), ready("b", 2)])
    for mode in ("fast", "immediate"):
        server.stop(mode)
        server.start()
        (held,) = claim(own_store, 1)
        assert own_store.apply([GiveBack(held.lease, {})]) == {"a"}
    server.stop()
    fails(TransientStoreError, "cannot be reached: check that the server runs", lambda: claim(own_store))
    fails(TransientStoreError, "cannot be reached", lambda: own_store.enqueue([ready("c")]))
    server.start()
    assert own_store.enqueue([ready("c")]) == {"c"}


@pytest.fixture
def cut(store: PostgresStore, url: str) -> Iterator[tuple[Proxy, PostgresStore]]:
    """A store behind a line that can be cut."""
    parsed = make_url(url)
    with Proxy(parsed.port or 5432) as proxy:
        through = open_url(parsed.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False))
        yield proxy, through
        through.close()


def test_an_enqueue_whose_answer_is_lost_is_looked_up(cut: tuple[Proxy, PostgresStore], store: PostgresStore) -> None:
    """L6: a commit that was sent and not answered is AMBIGUOUS, and resolved by the ids: neither lost nor double."""
    proxy, through = cut
    for bulk, sent in ((1, b"INSERT INTO"), (300, b"COMMIT\x00")):
        tasks = [ready(f"{bulk} {number}") for number in range(bulk)]
        proxy.cut_at = sent
        fails(AmbiguousStoreError, "lost before the answer to a commit", lambda: through.enqueue(tasks))  # noqa: B023
        assert store.lookup(ids(tasks)).keys() == set(ids(tasks))
        again = [ready(f"again {bulk} {number}") for number in range(bulk)]
        replaying = Replaying(through, sleep=lambda _: setattr(proxy, "cut_at", None))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(replaying.enqueue, again)
            wait_until(lambda: replaying.counts["AmbiguousStoreError"] > 0)  # noqa: B023
            proxy.cut_at = None
            assert answer.result(timeout=PATIENCE) == set(ids(again))
    assert store.audit() == []


def test_a_claim_whose_answer_is_lost_is_found_by_its_token(
    cut: tuple[Proxy, PostgresStore], store: PostgresStore
) -> None:
    """L6: what an unanswered claim got is found by its token, once."""
    proxy, through = cut
    store.enqueue([ready(f"t{number}", number) for number in range(5)])
    proxy.cut_at = b"SKIP LOCKED"
    held = Replaying(through).claim(ClaimRequest("w", "the token", 30_000_000, 3, (route(),)))
    assert ids(held) == ["t0", "t1", "t2"]
    assert ids(claim(store)) == ["t3", "t4"]


def test_a_settlement_whose_answer_is_lost_took_effect_once(
    cut: tuple[Proxy, PostgresStore], store: PostgresStore
) -> None:
    """L6: an unanswered settlement is AMBIGUOUS, and its task's state and token tell that it took effect."""
    proxy, through = cut
    store.enqueue([ready("a")])
    (held,) = claim(through)
    proxy.cut_at = b"DELETE FROM"
    fails(AmbiguousStoreError, "lost before the answer", lambda: through.apply([Finish(held.lease, State.DONE)]))
    proxy.cut_at = None
    assert store.lookup(["a"])["a"].state is State.DONE
    assert through.apply([Finish(held.lease, State.DONE)]) == set()


def test_a_line_cut_before_the_commit_is_transient(cut: tuple[Proxy, PostgresStore], store: PostgresStore) -> None:
    """Inside a transaction nothing is applied before its COMMIT; a question is never AMBIGUOUS."""
    proxy, through = cut
    proxy.cut_at = b"COPY"
    fails(TransientStoreError, "was lost", lambda: through.enqueue([ready(f"t{number}") for number in range(300)]))
    proxy.cut_at = b"SELECT"
    fails(TransientStoreError, "was lost", lambda: through.get("t0"))
    assert store.lookup(["t0"]) == {}


def test_a_pool_that_is_used_up_is_transient(url: str, store: PostgresStore) -> None:
    """Who waits longer than `?pool_timeout=` for one of `?pool_size=` connections hears which option helps."""
    small = open_url(with_options(url, pool_size="1", pool_timeout="0.1"))
    with small._connections.reading():
        fails(TransientStoreError, r"raise `\?pool_size=`", lambda: small.get("a"))
    assert small.get("a") is None
    small.close()


def test_a_full_server_is_transient(url: str, store: PostgresStore) -> None:
    """Too many connections is TRANSIENT: others will go."""
    with fresh_role(url, f"crowd_{uuid4().hex[:8]}") as crowded_url:
        name = make_url(crowded_url).username
        with connect_plainly(url) as other:
            other.execute(f"ALTER ROLE {name} CONNECTION LIMIT 1".encode())
        crowded = open_url(crowded_url)
        with crowded._connections.reading():
            fails(TransientStoreError, "has no connection left", lambda: crowded.get("a"))
        assert crowded.get("a") is None
        crowded.close()


# What a URL and a role may be wrong about


def test_a_wrong_password_is_permanent_and_not_shown(server: LocalPostgres) -> None:
    """A refused password is PERMANENT; neither it nor any part of it is shown."""
    with fresh_role(server.url, "secured"):
        server.write_file(
            "pg_hba.conf", "host all secured 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        )
        wrong = make_url(server.url).set(username="secured", password=SECRET).render_as_string(hide_password=False)
        store = open_url(wrong)
        fails(PermanentStoreError, "refuses the password: check it in the store URL", lambda: store.get("a"))
        missing = open_url(make_url(server.url).set(username="secured").render_as_string())
        fails(PermanentStoreError, "refuses the password", missing.verify)
        server.write_file("pg_hba.conf", "host all secured 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 trust\n")
        fails(PermanentStoreError, "refuses this user: check the user's name, and pg_hba.conf", lambda: store.get("a"))
        server.write_file("pg_hba.conf", "host all all 127.0.0.1/32 trust\n")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"database": "no_such_database"}, PermanentStoreError, "'no_such_database' on .* does not exist: create it"),
        ({"username": "no_such_role"}, PermanentStoreError, "refuses this user"),
        ({"port": 1}, TransientStoreError, "cannot be reached: check that the server runs, and its host and port"),
        ({"host": "no.such.host.invalid"}, TransientStoreError, "is not known: check its name"),
    ],
)
def test_a_url_that_leads_nowhere_says_so(
    postgres_url: str, change: dict[str, object], kind: type[StoreError], words: str
) -> None:
    """A missing database or role is PERMANENT; a server that does not answer may come back."""
    parsed = make_url(postgres_url).set(**change)  # type: ignore[arg-type]  # what the table says
    store = open_url(parsed.render_as_string(hide_password=False))
    fails(kind, words, lambda: store.get("a"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sslmode": "sometimes"}, "check those of the store URL"),
        ({"connect_timeout": "soon"}, "check those of the store URL"),
        ({"sslmode": "verify-full", "sslrootcert": "/no/such/file"}, "do not agree on TLS"),
    ],
)
def test_options_that_libpq_refuses_are_permanent(postgres_url: str, options: dict[str, str], words: str) -> None:
    """A value that libpq does not take is PERMANENT, and blamed on the URL."""
    store = open_url(with_options(postgres_url, **options))
    fails(PermanentStoreError, words, lambda: store.get("a"))


def test_a_missing_schema_names_the_command(url: str) -> None:
    """Only migrate makes a schema; everything else names the command that does, without a password."""
    with_password = make_url(url).set(password=SECRET).render_as_string(hide_password=False)
    store = open_url(with_password)
    command = re.escape(f"`wiggle db upgrade --store {make_url(url).render_as_string()}`")
    uses: list[Callable[[], object]] = [
        store.verify,
        lambda: store.get("a"),
        lambda: claim(store),
        lambda: store.enqueue([ready("a")]),
        lambda: store.enqueue([ready(str(number)) for number in range(300)]),
    ]
    for use in uses:
        with pytest.raises(SchemaError, match=command) as caught:
            use()
        assert SECRET not in str(caught.value)
    store.close()


def test_a_missing_privilege_is_permanent(url: str, store: PostgresStore) -> None:
    """A role without rights hears which ones it needs."""
    with fresh_role(url, f"nobody_{uuid4().hex[:8]}") as poor_url, connect_plainly(url) as other:
        other.execute(f"REVOKE {other.info.user} FROM {make_url(poor_url).username}".encode())
        poor = open_url(poor_url)
        for use in (poor.verify, lambda: poor.get("a"), lambda: claim(poor), lambda: poor.enqueue([ready("a")])):
            fails(PermanentStoreError, "may not do that .*: grant it USAGE on the schema", use)
        other.execute(f"REVOKE CREATE ON DATABASE {other.info.dbname} FROM PUBLIC".encode())
        makes = open_url(with_options(poor_url, schema=f"test_{uuid4().hex[:8]}"))
        fails(PermanentStoreError, "may not do that", makes.migrate)
        poor.close()
        makes.close()


def test_a_read_only_server_is_permanent(url: str, store: PostgresStore) -> None:
    """A standby, or a role held to reading, answers questions and refuses to write, in words."""
    store.enqueue([ready("a")])
    reader = open_url(with_options(url, options="-c default_transaction_read_only=on"))
    reader.verify()
    assert reader.get("a") is not None
    for use in (lambda: claim(reader), lambda: reader.enqueue([ready("b")]), lambda: reader.purge(1, 1)):
        fails(PermanentStoreError, "is read-only, a standby perhaps: name the primary", use)
    reader.close()


CLASSES: dict[str, type[StoreError]] = {
    "40001": TransientStoreError,
    "40P01": TransientStoreError,
    "55P03": TransientStoreError,
    "57014": TransientStoreError,
    "57P01": TransientStoreError,
    "57P03": TransientStoreError,
    "53200": TransientStoreError,
    "53300": TransientStoreError,
    "53100": PermanentStoreError,
    "25006": PermanentStoreError,
    "28P01": PermanentStoreError,
    "42501": PermanentStoreError,
    "42601": PermanentStoreError,
    "22003": PermanentStoreError,
    "23505": PermanentStoreError,
    "54001": PermanentStoreError,
    "XX001": PermanentStoreError,
    "42P01": SchemaError,
    "3F000": SchemaError,
    "42703": SchemaError,
    "57P02": AmbiguousStoreError,
    "08006": AmbiguousStoreError,
    "08007": AmbiguousStoreError,
    "40003": AmbiguousStoreError,
}


@pytest.mark.parametrize("state", CLASSES)
def test_each_state_has_its_class(state: str) -> None:
    """Every SQLSTATE becomes one of three classes; a connection lost is AMBIGUOUS only where a commit was under way."""
    place = read_url(make_url(f"postgresql://user:{SECRET}@host:1/name"))
    error = psycopg.errors.lookup(state)(f"near SELECT: {SECRET}")
    translated = translate(error, place, may_have_applied=True)
    assert type(translated) is CLASSES[state]
    assert "the database 'name' on host:1" in str(translated)
    assert SECRET not in str(translated)
    if CLASSES[state] is AmbiguousStoreError:
        assert type(translate(error, place)) is TransientStoreError


def test_a_session_ended_behind_a_pooler_may_have_committed() -> None:
    """PG7: there the COMMIT goes out with its statement, and the server ends the session only behind both."""
    place = read_url(make_url("postgresql://host/name?pgbouncer=1"))
    ended = psycopg.errors.AdminShutdown()
    assert type(translate(ended, place, may_have_applied=True)) is AmbiguousStoreError
    assert type(translate(ended, place)) is TransientStoreError
