"""What PostgreSQL does to the unwary, line by line (PG1-PG16), and that the store survives it. Plans have a file of
their own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from tests.servers.proxy import Proxy
from tests.stores.postgres_schemas import (
    connect_plainly,
    fresh_database,
    fresh_role,
    fresh_schema,
    open_url,
    with_options,
)
from tests.stores.waiting import PATIENCE, goes_on, wait_until
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.instants import from_micros
from wiggle_core.criteria.tree import TRUE, Predicate, normalize
from wiggle_core.errors import PermanentStoreError, TransientStoreError
from wiggle_core.stores.store import Cancel, Change, ClaimRequest, Finish, GiveBack, Route
from wiggle_core.tasks.task import Lease, State, TaskRecord
from wiggle_store_postgres.store import PostgresStore

REGION = Task.attr("region", str)
TTL = 30_000_000


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


def ready(task_id: str, number: int = 1, **fields: object) -> TaskRecord:
    return TaskRecord(task_id, "q", "s", number, 1, **fields)  # type: ignore[arg-type]  # fields of TaskRecord


def route(predicate: Predicate = TRUE) -> Route:
    return Route("q", normalize(predicate))


def claim(store: PostgresStore, limit: int = 10, predicate: Predicate = TRUE) -> list[TaskRecord]:
    return store.claim(ClaimRequest("w", uuid4().hex, TTL, limit, (route(predicate),)))


def ids(tasks: list[TaskRecord]) -> list[str]:
    return [task.id for task in tasks]


# PG2: a row-level policy is asked of each row as it is scanned, and so can hold a claim between snapshot and lock.

GATE = """
    CREATE FUNCTION {schema}.gate(id text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF id = 'a' AND current_setting('wiggle.gated', true) = 'yes' THEN
            PERFORM pg_advisory_lock_shared(hashtext('{schema}'));
            PERFORM pg_advisory_unlock_shared(hashtext('{schema}'));
        END IF;
        RETURN true;
    END $$;
    ALTER TABLE {schema}.task ENABLE ROW LEVEL SECURITY;
    CREATE POLICY gate ON {schema}.task USING ({schema}.gate(id));
    GRANT USAGE ON SCHEMA {schema} TO {role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
"""


def test_a_row_that_changed_before_its_lock_is_tested_again(store: PostgresStore, url: str) -> None:
    """PG2, O4: a task that stopped matching between the claim's snapshot and its lock is not claimed; a batch may be
    short, and what else matches still comes."""
    store.enqueue([ready(name, place, attributes={"region": "eu"}) for place, name in enumerate("abc")])
    role, schema = f"gated_{uuid4().hex[:8]}", str(make_url(url).query["schema"])
    with fresh_role(url, role) as gated_url, connect_plainly(url) as gate:
        gate.execute(f"REVOKE {gate.info.user} FROM {role}".encode())
        gate.execute(GATE.format(schema=schema, role=role).encode())
        gated = open_url(with_options(gated_url, options="-c wiggle.gated=yes"))
        gate.execute("SELECT pg_advisory_lock(hashtext(%s))", (schema,))
        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(claim, gated, 2, REGION == "eu")
            wait_until(lambda: _waits_for_advisory_lock(gate, role))
            changed = claim(store, 1, Task.created_at == from_micros(1))
            assert ids(changed) == ["b"]
            store.apply([GiveBack(changed[0].lease, {"region": "us"})])
            gate.execute("SELECT pg_advisory_unlock(hashtext(%s))", (schema,))
            held = claiming.result(timeout=PATIENCE)
        assert ids(held) == ["a"] or ids(held) == ["a", "c"]
        assert ids(claim(store)) == sorted({"b", "c"} - set(ids(held)))
        gated.close()


def _waits_for_advisory_lock(connection: psycopg.Connection[tuple[object, ...]], role: str) -> bool:
    return bool(
        connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE usename = %s AND wait_event = 'advisory'", (role,)
        ).fetchall()
    )


def _is_in(name: str) -> Predicate:
    return Task.attr("region", str) == name


def test_attributes_that_change_under_claims_are_never_missold(store: PostgresStore) -> None:
    """PG2, O4: while tasks change sides again and again, a claim gets only what matches as it is then."""
    store.enqueue([ready(f"t{number:03d}", number, attributes={"region": "eu"}) for number in range(40)])
    end, taken = time.monotonic() + 2, [0] * 4

    def trade(number: int, mine: str, other: str) -> None:
        while goes_on(end, min(taken) > 0):
            held = claim(store, 7, _is_in(mine))
            assert all(task.attributes["region"] == mine for task in held)
            store.apply([GiveBack(task.lease, {"region": other}) for task in held])
            taken[number] += len(held)

    with ThreadPoolExecutor(4) as pool:
        sides = [("eu", "us"), ("us", "eu"), ("eu", "us"), ("us", "eu")]
        for each in [pool.submit(trade, number, *side) for number, side in enumerate(sides)]:
            each.result()
    assert min(taken) > 0
    assert store.count(route(), [State.READY], 100) == 40


def test_questions_see_what_others_hold(store: PostgresStore, url: str) -> None:
    """PG3: find, count and slices skip no row that another transaction has locked; only claims do."""
    store.enqueue([ready(f"t{number}", number) for number in range(5)])
    with connect_plainly(url) as other, other.transaction():
        other.execute(f"SELECT FROM {make_url(url).query['schema']}.task WHERE id < 't3' FOR UPDATE".encode())
        assert ids(store.find(route(), [State.READY], 10)) == [f"t{number}" for number in range(5)]
        assert store.count(route(), [State.READY], 10) == 5
        assert [each.ready for each in store.slices()] == [5]
        assert ids(claim(store)) == ["t3", "t4"]
    assert ids(claim(store)) == ["t0", "t1", "t2"]


def test_no_stored_value_makes_a_comparison_fail(store: PostgresStore) -> None:
    """PG9: values of other types under the name of a number are absent to it, whatever order the tests run in."""
    values = ["abc", "", "1e5", "NaN", True, Decimal(7), 7, 2**63 - 1, "n2501"]
    store.enqueue([ready(f"t{place}", place, attributes={"total": value}) for place, value in enumerate(values)])
    total = Task.attr("total", Decimal)
    assert ids(store.find(route(total >= Decimal(7)), [State.READY], 20)) == ["t5", "t6", "t7"]
    assert ids(store.find(route((Task.step == "s") & (total < Decimal(8))), [State.READY], 20)) == ["t5", "t6"]


@pytest.fixture(params=["LOCALE 'C'", "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"], ids=["C", "en-US"])
def foreign_url(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of another locale than the cluster's."""
    try:
        with fresh_database(postgres_url, f"locale_{uuid4().hex[:8]}", f"ENCODING 'UTF8' {request.param}") as url:
            yield url
    except psycopg.errors.FeatureNotSupported as reason:
        pytest.skip(f"this PostgreSQL server: {reason}")


def test_the_locale_of_the_database_does_not_matter(foreign_url: str) -> None:
    """PG10: text compares, sorts and matches by code point in a database that would fold or reorder it."""
    store = open_url(foreign_url)
    store.migrate()
    names = ["B", "a", "Z", "é", "e\u0301", "ｚ", "\U0001f600", "a b", "ab", "A"]
    store.enqueue([TaskRecord(name, "q", name, 1, 1) for name in names])
    assert ids(store.find(route(), [State.READY], 20)) == sorted(names)
    assert ids(store.find(route(Task.step > "Z"), [State.READY], 20)) == sorted(n for n in names if n > "Z")
    assert ids(store.find(route(Task.step.like("_")), [State.READY], 20)) == sorted(n for n in names if len(n) == 1)
    assert ids(store.find(route(Task.step == "a"), [State.READY], 20)) == ["a"]
    assert store.audit() == []
    store.close()


@pytest.mark.parametrize("bulk", [1, 300], ids=["statement", "copy"])
@pytest.mark.parametrize("bad", ["\x00", "\ud800"], ids=["U+0000", "surrogate"])
def test_text_that_cannot_be_stored_is_an_error_of_ours(store: PostgresStore, bad: str, bulk: int) -> None:
    """PG11: what PostgreSQL's text cannot hold is PERMANENT, nothing of its batch is stored, and the store works on."""
    good = [ready(f"t{number}") for number in range(bulk)]
    for broken in (TaskRecord(f"x{bad}", "q", "s", 1, 1), TaskRecord("x", "q", bad, 1, 1)):
        with pytest.raises(PermanentStoreError, match="that it cannot hold"):
            store.enqueue([*good, broken])
    assert store.count(route(), [State.READY], 10) == 0
    assert len(store.enqueue(good)) == bulk
    assert store.audit() == []


def test_numbers_beyond_their_columns_are_an_error_of_ours(store: PostgresStore) -> None:
    """PG11: a number that no column holds is PERMANENT."""
    with pytest.raises(PermanentStoreError, match="that it cannot hold"):
        store.enqueue([TaskRecord("x", "q", "s", 2**63, 1)])


@pytest.mark.parametrize("pgbouncer", ["0", "1"])
def test_a_claim_is_one_round_trip(store: PostgresStore, url: str, pgbouncer: str) -> None:
    """PG12, PG7: a claim, and a group of settlements of one kind, are one request and one answer: no transaction stays
    open in between for a client that stops."""
    store.enqueue([ready(f"t{number:03d}", number) for number in range(100)])
    parsed = make_url(url)
    with Proxy(parsed.port or 5432) as proxy:
        parsed = parsed.set(host="127.0.0.1", port=proxy.port).update_query_dict({"pgbouncer": pgbouncer})
        through = open_url(parsed.render_as_string(hide_password=False))
        through.get("warm up")

        def requests_of(action: Callable[[], object]) -> int:
            proxy.await_answer()
            before = proxy.requests
            action()
            return proxy.requests - before

        assert requests_of(lambda: claim(through, 10)) == 1
        held = claim(through, 50)
        assert requests_of(lambda: through.extend([task.lease for task in held], TTL)) == 1
        assert requests_of(lambda: through.apply([Finish(task.lease, State.DONE) for task in held])) == 1
        assert requests_of(lambda: through.enqueue([ready("new")])) == 1
        assert requests_of(lambda: through.due(10)) == 1
        through.close()


def test_sessions_have_their_settings_from_the_start(store: PostgresStore) -> None:
    """PG12: time limits, UTC and a name in pg_stat_activity come with the connection, without a round trip."""
    with store._connections.reading() as session:
        names = ("application_name", "TimeZone", "statement_timeout", "idle_in_transaction_session_timeout")
        shown = [session.rows("SELECT current_setting($1)", (name,))[0][0] for name in names]
        (isolation,) = session.rows("SELECT current_setting('default_transaction_isolation')")
    assert shown == ["wiggle", "UTC", "30s", "1min"]
    assert isolation == ("read committed",)


def test_a_client_that_stops_in_a_transaction_is_cut_off(store: PostgresStore, url: str) -> None:
    """PG12: whoever idles inside a transaction loses it after the limit; others take what is free meanwhile."""
    store.enqueue([ready("a", 1), ready("b", 2)])
    stopped = open_url(with_options(url, options="-c idle_in_transaction_session_timeout=1000"))

    def stop_inside() -> None:
        with stopped._connections.transaction() as session:
            session.run("UPDATE $schema.task SET step = 'lost' WHERE id = 'a'")
            assert ids(claim(store)) == ["b"]
            wait_until(lambda: ids(claim(store)) == ["a"])
            session.run("SELECT 1")

    with pytest.raises(TransientStoreError):
        stop_inside()
    task = store.get("a")
    assert task is not None
    assert task.step == "s"
    stopped.close()


def test_settlements_and_heartbeats_do_not_deadlock(store: PostgresStore) -> None:
    """PG14, L7: groups that name the same tasks in any order, for heartbeats, settlements of one kind or of several,
    lock them in id order: none is ever the victim of a deadlock."""
    store.enqueue([ready(f"t{number:03d}", number) for number in range(60)])
    held = claim(store, 60)
    end, rounds = time.monotonic() + 3, [0] * 6

    def work(number: int) -> None:
        order = random.Random(number)
        while goes_on(end, min(rounds) > 5):
            some = order.sample(held, 30)
            # By another token: such settlements lock their tasks as any, and leave them for the next round.
            stale = [Lease(task.id, "stale") for task in some]
            changes: tuple[list[Change], ...] = (
                [Finish(lease, State.DONE) for lease in stale],
                [Finish(lease, State.DONE) if int(lease.task_id[1:]) % 2 else GiveBack(lease, {}) for lease in stale],
                [GiveBack(lease, {}) if int(lease.task_id[1:]) % 2 else Finish(lease, State.DONE) for lease in stale],
            )
            assert len(store.extend([task.lease for task in some], TTL)) == 30
            assert store.apply(changes[number % 3]) == set()
            rounds[number] += 1

    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(work, number) for number in range(6)]:
            each.result()
    assert min(rounds) > 5
    assert len(store.apply([Finish(task.lease, State.DONE) for task in held])) == 60


def test_enqueues_of_the_same_ids_do_not_deadlock(store: PostgresStore) -> None:
    """L4, L7: statements and COPY streams that insert the same ids in any order wait for each other in id order."""
    names = [f"t{number:04d}" for number in range(400)]
    barrier = threading.Barrier(4)

    def enqueue(number: int) -> set[str]:
        chosen = names if number % 2 else names[:150]
        barrier.wait(timeout=PATIENCE)
        return store.enqueue([ready(name) for name in random.Random(number).sample(chosen, len(chosen))])

    with ThreadPoolExecutor(4) as pool:
        inserted = [each.result() for each in [pool.submit(enqueue, number) for number in range(4)]]
    assert sorted(name for each in inserted for name in each) == names
    assert store.audit() == []


def test_an_id_on_its_way_into_history_is_taken(store: PostgresStore, url: str) -> None:
    """L4: an enqueue that waits for a task just being settled finds the id taken afterwards, by COPY too."""
    store.enqueue([ready("a")])
    (held,) = claim(store)
    for bulk in (1, 300):
        schema = str(make_url(url).query["schema"])
        with connect_plainly(url) as other, ThreadPoolExecutor(1) as pool, other.transaction():
            # The one row that decides about the id, locked as a purge or an enqueue would.
            other.execute(f"SELECT FROM {schema}.payload WHERE id = 'a' FOR UPDATE".encode())
            others = [ready(f"{bulk} {number}") for number in range(bulk)]
            inserted = pool.submit(store.enqueue, [ready("a"), *others]).result(timeout=PATIENCE)
        assert inserted == set(ids(others))
    assert store.apply([Finish(held.lease, State.DONE)]) == {"a"}
    assert store.enqueue([ready("a")]) == set()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_utf8_is_refused(postgres_url: str, encoding: str) -> None:
    """PG15: where LIKE's `_` would be a byte, or text could not be stored, nothing is made and nothing is opened."""
    options = f"ENCODING '{encoding}' LOCALE 'C'"
    with fresh_database(postgres_url, f"encoding_{uuid4().hex[:8]}", options) as url:
        store = open_url(url)
        for use in (store.migrate, store.verify):
            with pytest.raises(
                PermanentStoreError, match=f"has the encoding {encoding}: create one with ENCODING 'UTF8'"
            ):
                use()
        with connect_plainly(url) as connection:
            assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'wiggle'").fetchall() == []
        store.close()


def test_nothing_hangs_on_the_session(store: PostgresStore, url: str) -> None:
    """PG16: with every setting reset and another search path, as a pooler may leave a session, all goes on."""
    store.close()
    reset = open_url(with_options(url, pool_size="1"))
    with reset._connections.reading() as session:
        session.run("DISCARD ALL")
        session.run("RESET ALL")
        session.run("SET search_path = ''")
        session.run("SET TimeZone = 'Pacific/Chatham'")
        session.run("SET DateStyle = 'SQL, DMY'")
    before = time.time_ns() // 1000
    assert reset.enqueue([ready(f"t{number:03d}", number) for number in range(250)])
    held = claim(reset, 5)
    assert ids(held) == [f"t{number:03d}" for number in range(5)]
    assert all(abs((task.lease_until or 0) - TTL - before) < 60_000_000 for task in held)
    assert reset.extend([held[0].lease], TTL) == {held[0].lease}
    assert reset.apply([Finish(held[0].lease, State.DONE), GiveBack(held[1].lease, {}), Cancel("t004")]) == {
        "t000",
        "t001",
        "t004",
    }
    assert abs(reset.now() - before) < 60_000_000
    assert reset.audit() == []
    reset.close()


def test_the_databases_clock_decides(store: PostgresStore, url: str) -> None:
    """L1: without an injected clock, leases end by the database's time, in microseconds of the epoch."""
    store.enqueue([ready("a")])
    with connect_plainly(url) as other:
        clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ((before,),) = other.execute(clock).fetchall()
        (task,) = claim(store)
        estimate = store.now()
        ((after,),) = other.execute(clock).fetchall()
    assert before <= (task.lease_until or 0) - TTL <= after
    assert before - 50_000 <= estimate <= after + 50_000
