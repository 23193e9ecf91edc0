"""Lanes on PostgreSQL: the epoch and its lock, what a claim reads and deletes, and the audit (N1-N5, PG13)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import connect_plainly, fresh_role, fresh_schema, open_url, recorded, with_options
from tests.stores.test_postgres_facts import GATE
from tests.stores.waiting import PATIENCE, goes_on, wait_until
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import QUEUE, claim, ids, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, Predicate
from wiggle_core.criteria.wire import predicate_to_object
from wiggle_core.criteria.written import to_json
from wiggle_core.errors import PermanentStoreError, StaleLanes, TransientStoreError
from wiggle_core.stores.lanes import Lane, LaneRow, LaneState, Placed
from wiggle_core.stores.store import Change, Finish, GiveBack, Promote, Revive, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_postgres import claims
from wiggle_store_postgres.claims import DEAD_ROWS
from wiggle_store_postgres.connections import Session
from wiggle_store_postgres.enqueueing import COPY_FROM
from wiggle_store_postgres.lanes import CLOSED_KEPT
from wiggle_store_postgres.schema import MIGRATIONS
from wiggle_store_postgres.store import PostgresStore

region = Task.attr("region", str)
EU, US = {"region": "eu"}, {"region": "us"}


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as fresh:
        yield fresh


@pytest.fixture
def laned(url: str) -> Iterator[Laned]:
    opened = open_url(url)
    opened.migrate()
    yield Laned.over(opened)
    opened.close()


def store_of(laned: Laned) -> PostgresStore:
    assert isinstance(laned.store, PostgresStore)
    return laned.store


def run(laned: Laned, statement: str, *binds: object) -> int:
    """Change the store's tables by hand."""
    with store_of(laned)._connections.changing() as session:
        return session.run(statement, binds)


def eu_tasks(number: int) -> list[TaskRecord]:
    return [make_task(f"t{each:04d}", created_at=each, attributes=EU) for each in range(number)]


# The epoch


MAKES_READY: dict[str, Callable[[TaskRecord], Change]] = {
    "give back": lambda task: GiveBack(task.lease, EU),
    "promote": lambda task: Promote(task.id, EU),
    "revive": lambda task: Revive(task.id, EU),
}


@pytest.mark.parametrize("bulk", [1, 20, COPY_FROM], ids=["one", "statement", "copy"])
def test_an_enqueue_by_an_old_epoch_is_refused(laned: Laned, bulk: int) -> None:
    """N3: READY tasks that were placed by lanes which have changed since are not stored, SCHEDULED ones are."""
    laned.begin(region == "eu")
    tasks = eu_tasks(bulk)
    with pytest.raises(StaleLanes):
        laned.store.enqueue(tasks, Placed(0))
    assert laned.store.lookup(ids(tasks)) == {}
    waiting = [make_task(f"s{each}", state=State.SCHEDULED) for each in range(bulk)]
    assert len(laned.store.enqueue(waiting, Placed(0))) == bulk
    assert len(laned.enqueue(tasks)) == bulk
    assert laned.enqueue(tasks) == set()


@pytest.mark.parametrize("change", MAKES_READY)
def test_a_change_by_an_old_epoch_is_refused(laned: Laned, change: str) -> None:
    """N3: a change that makes its task READY is not applied by an old epoch, nor is any other one of its call."""
    laned.enqueue([make_task("gone"), make_task("held"), make_task("late", state=State.SCHEDULED, ready_at=1)])
    gone, held = claim(laned.store)
    assert laned.store.apply([Finish(gone.lease, State.FAILED)])
    task = {"give back": held, "promote": make_task("late"), "revive": gone}[change]
    laned.begin(region == "eu")
    before = laned.store.lookup(["gone", "held", "late"])
    for changes in ([MAKES_READY[change](task)], [MAKES_READY[change](task), Finish(held.lease, State.DONE)]):
        with pytest.raises(StaleLanes):
            laned.store.apply(changes, Placed(0))
    assert laned.store.lookup(["gone", "held", "late"]) == before
    assert laned.store.apply([MAKES_READY[change](task)], Placed(1)) == {task.id}


def test_what_makes_no_task_ready_knows_no_epoch(laned: Laned) -> None:
    """N3: settlements go on whatever the lanes do."""
    laned.enqueue(eu_tasks(2))
    one, two = claim(laned.store)
    laned.begin(region == "eu")
    assert laned.store.apply([Finish(one.lease, State.DONE), Finish(two.lease, State.DONE)], Placed(0))


def test_making_tasks_ready_is_one_request(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """N3: the epoch is held, and asked, in the statement that stores the tasks or changes them."""
    laned.open(region == "eu")
    with recorded(monkeypatch) as sent:
        laned.enqueue(eu_tasks(5))
        laned.enqueue([make_task(attributes=EU)])
        laned.release(claim(laned.store, limit=3))
    assert len([statement for statement, _ in sent if "$schema" in statement]) == 4


def test_a_producer_that_stays_in_its_transaction_keeps_nobody_waiting(laned: Laned, url: str) -> None:
    """N3: while a transaction holds the epoch in which it began, lanes are not filled, but everyone else goes on; what
    it brings is in the lanes that open after it."""
    other = open_url(url)
    stalled = make_task("stalled", attributes=EU)
    with ExitStack() as stack:
        session = stack.enter_context(other._connections.transaction())
        _enqueue_in(session, stalled)
        (lane,) = laned.begin(region == "eu")
        began = time.monotonic()
        assert not laned.lanes.drained(lane.epoch, 0.3)
        assert 0.2 < time.monotonic() - began < 5
        laned.book.refresh()
        assert laned.enqueue(eu_tasks(3)) == {"t0000", "t0001", "t0002"}
        laned.release(claim(laned.store, limit=2))
        (second,) = laned.begin(region == "us")
        assert (second.epoch, laned.book.refresh().epoch) == (2, 2)
        assert laned.enqueue([make_task("us", attributes=US)]) == {"us"}
    assert laned.lanes.drained(second.epoch, 10)
    laned.lanes.finish([second.id])
    assert [each.state for each in laned.lanes.read(0).lanes] == [LaneState.FILLING, LaneState.OPEN]
    other.close()


def _enqueue_in(session: Session, task: TaskRecord) -> None:
    """What an enqueue by the first epoch does, in a transaction that stays open."""
    ((ready_no,),) = session.rows("SELECT $schema.hold_epoch(0)")
    session.run("INSERT INTO $schema.payload VALUES ($1, 'null')", (task.id,))
    session.run(
        "INSERT INTO $schema.task (id, queue, step, kind, created_at, ready_at, priority, attempt, state, attributes, "
        "ready_no) VALUES ($1, $2, 's', 'task', 1, 1, 0, 1, 'READY', '{\"region\": \"seu\"}', $3)",
        (task.id, task.queue, ready_no),
    )


def test_tasks_on_their_way_are_in_lanes_that_open_meanwhile(laned: Laned, url: str) -> None:
    """N3: a task that an older epoch's transaction stores after a lane began to fill is found by the filling, since
    that waits for the transaction."""
    other = open_url(url)
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        session = stack.enter_context(other._connections.transaction())
        _enqueue_in(session, make_task("late", attributes=EU))
        opening = pool.submit(laned.open, region == "eu")
        wait_until(lambda: bool(laned.lanes.read(0).lanes))
        assert not opening.done()
        stack.close()
        (lane,) = opening.result(timeout=PATIENCE)
    assert laned.content(lane) == ["late"]
    assert laned.store.audit() == []
    other.close()


def test_the_epoch_is_read_behind_its_lock(laned: Laned, url: str) -> None:
    """N3: the function that holds the epoch answers by what was committed while its statement ran; the statement's own
    snapshot still shows the past."""
    statement = (
        "SELECT kept.epoch, $schema.hold_epoch(0), $schema.hold_epoch(1) IS NOT NULL FROM ("
        "SELECT epoch, pg_advisory_xact_lock(hashtext('$schema'))::text FROM $schema.lane_epoch OFFSET 0) AS kept"
    )

    def ask() -> list[tuple[object, ...]]:
        with store_of(laned)._connections.reading() as session:
            return session.rows(statement)

    with connect_plainly(url) as gate, ThreadPoolExecutor(1) as pool:
        name = f'"{make_url(url).query["schema"]}"'
        gate.execute("SELECT pg_advisory_lock(hashtext(%s))", (name,))
        asking = pool.submit(ask)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE %s"
        wait_until(lambda: bool(gate.execute(waiting, (f"%{name}.hold_epoch(0)%",)).fetchall()))
        laned.begin(region == "eu")
        gate.execute("SELECT pg_advisory_unlock(hashtext(%s))", (name,))
        assert asking.result(timeout=PATIENCE) == [(0, None, True)]


def test_above_read_committed_no_task_is_made_ready(laned: Laned, url: str) -> None:
    """N3: where every statement of a transaction sees the past, an epoch cannot be confirmed: refused by name."""
    strict = open_url(with_options(url, options="-c default_transaction_isolation=repeatable\\ read"))
    with pytest.raises(PermanentStoreError, match="leave default_transaction_isolation at 'read committed'"):
        strict.enqueue(eu_tasks(1))
    strict.close()


def test_locks_of_other_schemas_do_not_matter(laned: Laned, postgres_url: str) -> None:
    """N3: the lock is named by schema and epoch, so two stores in one database do not wait for each other."""
    with fresh_schema(postgres_url) as url:
        other = open_url(url)
        other.migrate()
        with other._connections.transaction() as session:
            assert session.rows("SELECT $schema.hold_epoch(0) IS NOT NULL") == [(True,)]
            (lane,) = laned.begin(region == "eu")
            assert laned.lanes.drained(lane.epoch, 0)
        other.close()


def test_two_openers_make_each_lane_once(laned: Laned) -> None:
    """N3: callers that open the same lanes at once, in any order, wait for each other, and each lane is one's."""
    predicates: list[Predicate] = [region == f"r{number}" for number in range(20)]
    barrier = threading.Barrier(4)

    def open_them(number: int) -> list[Lane]:
        barrier.wait(timeout=PATIENCE)
        return laned.begin(*Random(number).sample(predicates, 20))

    with ThreadPoolExecutor(4) as pool:
        opened = [lane for each in [pool.submit(open_them, number) for number in range(4)] for lane in each.result()]
    present = laned.lanes.read(0)
    assert len(opened) == len({lane.id for lane in opened}) == len(present.lanes) == 20
    assert sorted(lane.id for lane in opened) == [lane.id for lane in present.lanes]
    assert present.epoch == len({lane.epoch for lane in opened}) == 1


# Claims


def test_a_claim_by_a_lane_tests_again_what_it_locks(laned: Laned, url: str) -> None:
    """PG13, PG2: a task that left READY and came back with other attributes between a claim's snapshot and its lock
    has another number, and is not claimed by the row of before; the new row is not deleted."""
    laned.enqueue([make_task(name, created_at=place, attributes=EU) for place, name in enumerate("abc")])
    (lane,) = laned.open(region == "eu")
    role, schema = f"gated_{uuid4().hex[:8]}", str(make_url(url).query["schema"])
    with fresh_role(url, role) as gated_url, connect_plainly(url) as gate:
        gate.execute(f"REVOKE {gate.info.user} FROM {role}".encode())
        gate.execute(GATE.format(schema=schema, role=role).encode())
        gate.execute(store_of(laned).role_sql(role).encode())
        gated = open_url(with_options(gated_url, options="-c wiggle.gated=yes"))
        gate.execute("SELECT pg_advisory_lock(hashtext(%s))", (schema,))
        with ThreadPoolExecutor(1) as pool:
            claiming = pool.submit(claim, gated, by_lane(lane), limit=2)
            wait_until(lambda: _waits_for_advisory_lock(gate, role))
            (moved,) = claim(laned.store, route(TRUE), limit=3)[1:2]
            others = [task for task in laned.store.leased(moved.token or "") if task.id != "b"]
            assert laned.apply([(GiveBack(moved.lease, US), moved)]) == {"b"}
            laned.release(others)
            gate.execute("SELECT pg_advisory_unlock(hashtext(%s))", (schema,))
            held = claiming.result(timeout=PATIENCE)
        assert held == []  # each is READY again, but by another number than that of the row it was found by
        assert laned.content(lane) == ["a", "c"]
        assert laned.store.audit() == []
        gated.close()


def _waits_for_advisory_lock(connection: psycopg.Connection[tuple[object, ...]], role: str) -> bool:
    asked = "SELECT 1 FROM pg_stat_activity WHERE usename = %s AND wait_event = 'advisory'"
    return bool(connection.execute(asked, (role,)).fetchall())


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim that meets dead rows deletes them, however soon it comes behind another one."""
    monkeypatch.setattr(claims, "PRUNING_PAUSE", -1.0)


@pytest.mark.usefixtures("eager")
def test_a_claim_deletes_what_it_leased_and_what_was_dead_before(laned: Laned) -> None:
    """N1: the rows of tasks that a claim leased are gone with it, and the dead ones that it passed by; rows behind the
    last one are left, and so are the rows of other lanes."""
    lane, other = laned.open(region == "eu", region.like("e%"))
    laned.enqueue(eu_tasks(20))
    claim(laned.store, route(TRUE), limit=5)
    assert ids(claim(laned.store, by_lane(lane), limit=3)) == ["t0005", "t0006", "t0007"]
    assert (laned.size(lane), laned.size(other)) == (12, 20)
    claim(laned.store, route(TRUE), limit=12)
    assert claim(laned.store, by_lane(lane)) == []
    assert (laned.size(lane), laned.size(other)) == (0, 20)
    laned.prune()
    assert laned.size(other) == 0


def test_dead_rows_are_deleted_now_and_then(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1, N4: a claim that passes by more than a few dead rows deletes them, once in a while; one that passes by few
    lets them be."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(60))
    claim(laned.store, route(TRUE), limit=5)
    claim(laned.store, by_lane(lane), limit=10)
    assert laned.size(lane) == 50
    with recorded(monkeypatch) as sent:
        for _ in range(3):
            claim(laned.store, route(TRUE), limit=6)
            claim(laned.store, by_lane(lane), limit=10)
    assert [statement for statement, _ in sent].count(claims._PRUNE_HEAD) == 1


def test_rows_that_others_hold_are_neither_claimed_nor_deleted(laned: Laned, url: str) -> None:
    """N1, O4: a row whose task is locked is not dead: it is there when the lock is gone without a change."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(5))
    with connect_plainly(url) as other, other.transaction():
        other.execute(f"SELECT FROM {make_url(url).query['schema']}.task WHERE id < 't0003' FOR UPDATE".encode())
        assert ids(claim(laned.store, by_lane(lane))) == ["t0003", "t0004"]
    assert ids(claim(laned.store, by_lane(lane))) == ["t0000", "t0001", "t0002"]


@pytest.mark.usefixtures("eager")
def test_dead_rows_without_end_hide_nothing(laned: Laned) -> None:
    """N1, N4, O1: however many dead rows lie before the live ones, a claim finds these, in order with those of other
    routes, and reads no more than so many at once."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(1_500))
    laned.enqueue(eu_tasks(3_000)[1_500:])
    laned.enqueue([make_task("other", queue="other", created_at=2_995)])
    for _ in range(3):
        held = claim(laned.store, route(TRUE), limit=990)
        laned.store.apply([Finish(task.lease, State.DONE) for task in held])
    assert (laned.store.explain(by_lane(lane), 10).rows_read or 0) <= 4 * DEAD_ROWS
    held = claim(laned.store, by_lane(lane), Route("other"), limit=28)
    assert ids(held) == [f"t{each}" for each in range(2_970, 2_995)] + ["other", "t2995", "t2996"]
    assert laned.size(lane) == 3


@pytest.mark.parametrize("with_walk", [False, True])
def test_a_claim_by_a_lane_that_is_not_open_leases_nothing(laned: Laned, with_walk: bool) -> None:
    """N3: a lane that is filling, closing, closed or unknown is StaleLanes, and no other route of the claim counts."""
    laned.enqueue([*eu_tasks(3), make_task("other", queue="other")])
    (lane,) = laned.begin(region == "eu")
    others = [Route("other")] if with_walk else []
    unknown = Route(QUEUE, TRUE, 99)
    for each in (by_lane(lane), unknown):
        with pytest.raises(StaleLanes):
            claim(laned.store, *others, each)
    laned.open(region == "eu")
    laned.lanes.finish([lane.id])
    laned.lanes.close([lane.id])
    with pytest.raises(StaleLanes):
        claim(laned.store, by_lane(lane), *others)
    assert laned.store.count(route(TRUE), [State.READY], 10) == 3
    assert laned.store.count(Route("other"), [State.READY], 10) == 1


def test_claims_by_lanes_that_overlap_never_deadlock(laned: Laned) -> None:
    """L7, N1: claims by lanes over the same tasks, releases, prunings and fillings at once: nobody is the victim of a
    deadlock or waits long, each task is held by one at a time, and every lane is exact in the end."""
    predicates: list[Predicate] = [region == "eu", region.like("e%"), Task.step == "charge", region.in_(["eu", "us"])]
    lanes = laned.open(*predicates)
    laned.enqueue(eu_tasks(150))
    held: set[str] = set()
    end, rounds = time.monotonic() + 3, [0] * 4

    def work(number: int) -> None:
        order = Random(number)
        while goes_on(end, min(rounds) > 3):
            taken = claim(laned.store, by_lane(order.choice(lanes)), limit=order.choice([1, 10, 60]))
            assert held.isdisjoint(ids(taken))
            held.update(ids(taken))
            held.difference_update(ids(taken))
            laned.release(taken)
            if order.random() < 0.2:
                laned.lanes.prune(None, 500)
            rounds[number] += 1

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, number) for number in range(4)]:
            each.result()
    assert min(rounds) > 3
    for lane in lanes:
        assert laned.content(lane) == laned.expected(lane)
    assert laned.store.audit() == []


# Filling and closing


def test_no_row_is_put_into_a_lane_that_closes(laned: Laned) -> None:
    """N3: a filler that comes late leaves no row behind in a lane that has closed meanwhile."""
    laned.enqueue(eu_tasks(3))
    (lane,) = laned.begin(region == "eu")
    part = laned.lanes.ready_tasks(QUEUE, [region == "eu"], None, 100)
    rows = [_row(lane, task, ready_no) for task, ready_no in part.tasks]
    laned.lanes.fill(rows[:1])
    laned.lanes.close([lane.id])
    laned.lanes.fill(rows)
    assert laned.size(lane) == 1
    assert laned.lanes.clear([lane.id], 10) == 1
    laned.lanes.fill(rows)
    assert laned.store.audit() == []


def test_a_filling_that_cannot_hold_the_epoch_puts_nothing_in(laned: Laned) -> None:
    """N3: when the lanes change between the filling's look at the epoch and its hold on it, again and again, no row is
    put in, and the caller is told to try again."""
    laned.enqueue(eu_tasks(1))
    (lane,) = laned.begin(region == "eu")
    part = laned.lanes.ready_tasks(QUEUE, [], None, 1)
    run(
        laned,
        "CREATE OR REPLACE FUNCTION $schema.hold_epoch(placed bigint) RETURNS bigint AS 'SELECT NULL::bigint' "
        "LANGUAGE sql",
    )
    with pytest.raises(TransientStoreError, match="change so fast"):
        laned.lanes.fill([_row(lane, task, ready_no) for task, ready_no in part.tasks])
    assert laned.size(lane) == 0


def test_a_filling_and_a_closing_wait_for_each_other(laned: Laned, url: str) -> None:
    """N3: whoever fills holds the epoch, so that a lane which closes meanwhile is not cleared before."""
    laned.enqueue(eu_tasks(3))
    (lane,) = laned.begin(region == "eu")
    with (
        connect_plainly(url) as look,
        connect_plainly(url) as other,
        ThreadPoolExecutor(1) as pool,
        other.transaction(),
    ):
        # A row that is put in by another one at the same time keeps the filling.
        (task, ready_no) = laned.lanes.ready_tasks(QUEUE, [], None, 1).tasks[0]
        insert = f"INSERT INTO {make_url(url).query['schema']}.lane_task (lane, {', '.join(KEY)}, ready_no) VALUES "
        other.execute((insert + "(%s, %s, %s, %s, %s, %s)").encode(), (lane.id, *task.order_key, ready_no))
        filling = pool.submit(laned.lanes.fill, [_row(lane, task, ready_no)])
        wait_until(lambda: _waits_for_a_transaction(look))
        (closing,) = laned.lanes.close([lane.id])
        assert not laned.lanes.drained(closing.epoch, 0.2)
    filling.result(timeout=PATIENCE)
    assert laned.lanes.drained(closing.epoch, 10)
    assert laned.lanes.clear([lane.id], 10) == 1
    assert laned.store.audit() == []


def _row(lane: Lane, task: TaskRecord, ready_no: int) -> LaneRow:
    return LaneRow(lane.id, task.order_key, ready_no)


KEY = ("priority", "created_at", "ready_at", "id")


def _waits_for_a_transaction(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    asked = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE '%lane_task%'"
    return bool(connection.execute(asked).fetchall())


def test_lanes_that_closed_long_ago_are_forgotten(laned: Laned) -> None:
    """N3: the last closed lanes are kept for those who knew them; who knows an older state reads all lanes."""
    old = (
        "INSERT INTO $schema.lane (queue, digest, predicate, reason, is_pinned, state, epoch, revision, opened_at, "
        "used_at, work_at) SELECT 'old', number::text, $1, 'r', false, 'CLOSED', 0, number, 1, 1, 1 "
        "FROM generate_series(1, 1010) AS number"
    )
    run(laned, old, to_json(predicate_to_object(TRUE)))
    run(laned, "UPDATE $schema.lane_epoch SET revision = 1010")
    (lane,) = laned.open(region == "eu")
    laned.close(lane)
    after = laned.lanes.read(0)
    assert (after.is_whole, after.lanes) == (True, ())
    assert laned.lanes.read(10).is_whole
    known = laned.lanes.read(11)
    assert not known.is_whole
    assert len(known.lanes) == CLOSED_KEPT
    assert {each.state for each in known.lanes} == {LaneState.CLOSED}
    assert laned.lanes.read(after.revision + 1).is_whole  # of a database that was put back to an earlier day


def test_what_was_left_unfinished_goes_to_one_caller(laned: Laned) -> None:
    """N3: of several who look for lanes that nobody works on, each gets others; work on them keeps them."""
    begun = laned.begin(*(region == f"r{number}" for number in range(6)))
    assert laned.lanes.unfinished(60_000_000) == []
    with ThreadPoolExecutor(3) as pool:
        found = [each.result() for each in [pool.submit(laned.lanes.unfinished, 0) for _ in range(3)]]
    assert {lane.id for each in found for lane in each} == {lane.id for lane in begun}
    run(laned, "UPDATE $schema.lane SET work_at = work_at - 120000000")
    laned.lanes.note_work([begun[0].id, begun[3].id])
    with ThreadPoolExecutor(3) as pool:
        found = [each.result() for each in [pool.submit(laned.lanes.unfinished, 60_000_000) for _ in range(3)]]
    taken = sorted(lane.id for each in found for lane in each)
    assert taken == [lane.id for lane in begun if lane.id not in (begun[0].id, begun[3].id)]


def test_notes_of_use_add_up(laned: Laned) -> None:
    """N4: hits that several note at once, in any order, are all counted, without a deadlock."""
    lanes = laned.begin(*(region == f"r{number}" for number in range(20)))

    def note(number: int) -> None:
        for _ in range(10):
            laned.lanes.note_use({lane.id: 1 for lane in Random(number).sample(lanes, 20)})

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(note, number) for number in range(4)]:
            each.result()
    assert {lane.hits for lane in laned.lanes.read(0).lanes} == {40}


# The audit


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM $schema.lane_task WHERE id = 't0001'", "task 't0001' is not in lane 1"),
        (
            "UPDATE $schema.task SET attributes = '{\"region\": \"sus\"}' WHERE id = 't0001'",
            "task 't0001' is in lane 1",
        ),
        ("UPDATE $schema.lane_task SET lane = 7 WHERE id = 't0002'", "1 rows are in lane 7, which does not exist"),
        ("UPDATE $schema.lane_task SET ready_no = ready_no - 1 WHERE id = 't0001'", "task 't0001' is not in lane 1"),
        ("UPDATE $schema.lane_task SET ready_at = ready_at + 1 WHERE id = 't0001'", "task 't0001' is in lane 1"),
    ],
    ids=["forgotten", "wrong", "orphan", "dead", "misplaced"],
)
def test_the_audit_finds_what_is_wrong(laned: Laned, damage: str, finding: str) -> None:
    """N1: a READY task without its row, a live row of a task that does not match, and a row of no lane are found."""
    laned.open(region == "eu")
    laned.enqueue(eu_tasks(4))
    assert laned.store.audit() == []
    assert run(laned, damage)
    assert finding in laned.store.audit()


def test_the_audit_is_exact_while_others_write(laned: Laned) -> None:
    """N1: tasks that come, go and come back while lanes open and close are no finding, at any moment."""
    predicates: list[Predicate] = [region == "eu", Task.attempt > 1, region.is_null()]
    end, audits = time.monotonic() + 3, [0]

    def work(number: int) -> None:
        order = Random(number)
        while goes_on(end, audits[0] > 3):
            laned.enqueue([make_task(attributes=order.choice([EU, US, {}])) for _ in range(5)])
            held = claim(laned.store, limit=8)
            moved: list[tuple[Change, TaskRecord]] = [
                (Finish(task.lease, State.DONE) if order.random() < 0.4 else GiveBack(task.lease, US), task)
                for task in held
            ]
            laned.apply(moved)

    def reopen() -> None:
        while goes_on(end, audits[0] > 3):
            lanes = laned.open(*predicates)
            time.sleep(0.1)
            laned.close(*lanes)

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, number) for number in range(3)] + [pool.submit(reopen)]
        while not all(each.done() for each in working):
            assert laned.store.audit() == []
            audits[0] += 1
        for each in working:
            each.result()
    assert audits[0] > 3


# Upgrades


def test_tasks_from_before_there_were_lanes_enter_them(url: str) -> None:
    """N1, N3: tasks that were stored before the migration that brought lanes are filled into them, and live on."""
    store = open_url(url)
    with store._connections.transaction() as session:
        session.run("CREATE SCHEMA $schema")
        session.run(
            'CREATE TABLE $schema.wiggle_migration (name text COLLATE "C" PRIMARY KEY, checksum text NOT NULL, '
            "applied_at bigint NOT NULL)"
        )
        session.run("SET LOCAL search_path = $schema, pg_catalog")
        for statement in MIGRATIONS[0].statements:
            session.run(statement)
        note = "INSERT INTO $schema.wiggle_migration VALUES ($1, $2, 0)"
        session.run(note, (MIGRATIONS[0].name, MIGRATIONS[0].checksum))
        for name, state in (("ready", "READY"), ("waiting", "SCHEDULED")):
            session.run("INSERT INTO $schema.payload VALUES ($1, 'null')", (name,))
            session.run(
                "INSERT INTO $schema.task (id, queue, step, kind, created_at, ready_at, priority, attempt, state, "
                "attributes) VALUES ($1, $2, 's', 'task', 1, 1, 0, 1, $3, '{\"region\": \"seu\"}')",
                (name, QUEUE, state),
            )
    assert store.migrate() == [migration.name for migration in MIGRATIONS[1:]]
    laned = Laned.over(store)
    (lane,) = laned.open(region == "eu")
    assert laned.content(lane) == ["ready"]
    waiting = make_task("waiting", created_at=1, ready_at=1, state=State.SCHEDULED, attributes=EU)
    assert laned.apply([(Promote("waiting", EU), waiting)]) == {"waiting"}
    assert sorted(laned.content(lane)) == ["ready", "waiting"]
    assert store.audit() == []
    store.close()
