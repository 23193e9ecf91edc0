"""What claims and changes lock on MySQL and MariaDB, and that none waits for another in a circle (MY1, MY3, MY11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from pymysql.constants import ER
from sqlalchemy import make_url

from tests.stores.mysql_faults import COPY_AGE
from tests.stores.mysql_prefixes import asked, fresh_place, migrated, plain, refusals
from tests.stores.postgres_schemas import with_options
from tests.stores.waiting import PATIENCE, goes_on, wait_until
from wiggle_core.conformance.laned import Laned, Moved, by_lane
from wiggle_core.conformance.plugin import QUEUE, TTL, claim, ids, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Cancel, ClaimRequest, GiveBack, Requeue, Route
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_mysql import claims
from wiggle_store_mysql.claims import Candidate, Head, first_statements
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.store import MySQLStore

Connection = pymysql.connections.Connection
region = Task.attr("region", str)
EU = {"region": "eu"}
REGIONS = ("eu", "us", "eu", "ap", "rare")
PRIORITY = Task.priority == 2
ROUTES: dict[str, Callable[[Laned], Route]] = {
    "all": lambda _: Route(QUEUE),
    "column of the index": lambda _: route(PRIORITY),
    "field": lambda _: route(Task.step == "step 2"),
    "attribute": lambda _: route(region == "rare"),
    "lane": lambda laned: by_lane(laned.book.refresh().by_predicate[QUEUE, region == "eu"]),
    "rare lane": lambda laned: by_lane(laned.book.refresh().by_predicate[QUEUE, region == "rare"]),
}


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    with fresh_place(mysql_like_url) as fresh:
        yield with_options(fresh, pool_size="20")


@pytest.fixture
def laned(url: str) -> Iterator[Laned]:
    """300 tasks, a fifth of which is rare, in three lanes that overlap."""
    with migrated(url) as store:
        laned = Laned.over(store)
        laned.open(region == "eu", region == "rare", PRIORITY)
        laned.enqueue(
            [
                make_task(f"t{n:03}", created_at=n, step=f"step {n % 4}", priority=n % 3, attributes={"region": of(n)})
                for n in range(300)
            ]
        )
        yield laned


def of(number: int) -> str:
    return REGIONS[number % len(REGIONS)]


def store_of(laned: Laned) -> MySQLStore:
    assert isinstance(laned.store, MySQLStore)
    return laned.store


def product_of(laned: Laned) -> Product:
    with store_of(laned)._connections.reading() as session:
        return session.server.product


# What is locked


def kept(other: Connection[Any], table: str) -> set[TaskId]:
    """The rows that others have locked, by their ids."""
    asked(other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    everything = asked(other, f"SELECT id FROM {table}")
    free = asked(other, f"SELECT id FROM {table} FORCE INDEX (PRIMARY) FOR UPDATE SKIP LOCKED")
    return {row[0] for row in everything} - {row[0] for row in free}


def records_locked(session: Session, other: Connection[Any]) -> int:
    """How many records of indexes a session has locked, as the server tells."""
    number = session.connection.thread_id()  # type: ignore[no-untyped-call] # so in its stubs
    if session.server.product is Product.MARIADB:
        rows = asked(
            other, "SELECT trx_rows_locked FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %s", number
        )
        return int(rows[0][0]) if rows else 0
    ((count,),) = asked(
        other,
        "SELECT count(*) FROM performance_schema.data_locks JOIN performance_schema.threads USING (THREAD_ID) "
        "WHERE PROCESSLIST_ID = %s AND LOCK_TYPE = 'RECORD'",
        number,
    )
    return int(count)


def expected_records(product: Product, name: str) -> int:
    """Of 10 tasks: those of the primary key, and those of the index or the lane that they were found by. MySQL leaves
    the lane alone; MariaDB the index, where it reads a page first."""
    if name.endswith("lane"):
        return 10 if product is Product.MYSQL else 20
    return 20 if product is Product.MYSQL or name == "all" else 10


@pytest.mark.parametrize("name", ROUTES)
def test_a_claim_locks_what_it_returns_and_no_more(laned: Laned, url: str, name: str) -> None:
    """MY1, MY2, MY11, O2: of the rows that a claim reads, those stay locked that it found; the server counts no other
    lock either."""
    prefix, wanted = make_url(url).query["prefix"], ROUTES[name](laned)
    with plain(url) as other, store_of(laned)._connections.rolled_back() as session:
        product = session.server.product
        statement, *_ = first_statements(product, [wanted], 10)
        found = {row[3] for row in session.rows(*statement)}
        assert len(found) == 10
        assert kept(other, f"{prefix}task") == found
        heads = found if name.endswith("lane") and product is Product.MARIADB else set()
        assert kept(other, f"{prefix}lane_task") == heads
        # MariaDB shows its locks as they were up to 0.1 s ago.
        wait_until(lambda: records_locked(session, other) == expected_records(product, name), pause=COPY_AGE)


@pytest.mark.parametrize("name", ROUTES)
def test_each_of_several_claimers_gets_its_number(laned: Laned, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY1: while all the others sit between their locks and their leases, each of 8 claimers of 7 gets 7, as long as
    there are as many; together they get the first ones."""
    all_locked, locked = threading.Barrier(8), claims._locked

    def wait_behind_locks(session: Session, request: ClaimRequest) -> tuple[list[Candidate], list[Head]]:
        found = locked(session, request)
        all_locked.wait(timeout=30)
        return found

    wanted = ROUTES[name](laned)
    first = ids(laned.store.find(Route(QUEUE, wanted.predicate), [State.READY], 56))
    monkeypatch.setattr(claims, "_locked", wait_behind_locks)
    with ThreadPoolExecutor(8) as pool:
        results = [each.result() for each in [pool.submit(claim, laned.store, wanted, limit=7) for _ in range(8)]]
    assert [len(tasks) for tasks in results] == [7] * 8
    got = [task.id for tasks in results for task in tasks]
    assert len(set(got)) == 56
    assert sorted(got) == sorted(first)


def test_pages_go_on_behind_what_others_hold(laned: Laned) -> None:
    """MY1, O4: however many of the first tasks are held, a claim finds those behind them, in order, and no other."""
    rare = route(region == "rare")
    expected = ids(laned.store.find(rare, [State.READY], 100))
    for free in (60, 59, 13, 10, 3, 1, 0):
        with store_of(laned)._connections.rolled_back() as session:
            taken = expected[: len(expected) - free]
            if taken:
                session.rows("SELECT id FROM $task FORCE INDEX (PRIMARY) WHERE id IN %s FOR UPDATE", [taken])
            held = claim(laned.store, rare, limit=10)
            assert ids(held) == expected[len(taken) :][:10]
        laned.release(held)


# Deadlocks


def in_threads(seconds: float, *work: Callable[[Random], int]) -> list[int]:
    """Do each again and again in a thread of its own; how much each got done."""
    end, done = time.monotonic() + seconds, [0] * len(work)

    def repeat(number: int) -> None:
        order = Random(number)
        while goes_on(end, min(done) > 0):
            done[number] += work[number](order)

    with ThreadPoolExecutor(len(work)) as pool:
        for each in [pool.submit(repeat, number) for number in range(len(work))]:
            each.result()
    return done


def test_claims_by_lanes_that_overlap_do_not_deadlock(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY11: 8 claimers by three lanes over the same tasks, and the changes that put tasks back into the lanes: no
    deadlock, and every task is held by one."""
    held_now: set[TaskId] = set()
    guard = threading.Lock()
    lanes = [by_lane(lane) for lane in laned.lanes.read(0).lanes]

    def work(order: Random) -> int:
        tasks = claim(laned.store, order.choice(lanes), limit=5)
        with guard:
            assert held_now.isdisjoint(ids(tasks))
            held_now.update(ids(tasks))
        time.sleep(order.choice((0, 0.002)))
        with guard:
            held_now.difference_update(ids(tasks))
        laned.release(tasks)
        return len(tasks)

    with refusals(monkeypatch) as numbers:
        done = in_threads(1.5, *[work] * 8)
    assert numbers == []
    assert min(done) > 0
    assert laned.store.audit() == []
    assert laned.store.count(Route(QUEUE), [State.READY], 1_000) == 300


def test_claims_by_lane_and_walk_do_not_deadlock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY1, MY11: some claims find one queue by its lane and the other by walking, others the other way round: what a
    walk passes by is not kept from whoever holds it."""
    with migrated(url) as store:
        laned = Laned.over(store)
        one, two = (laned.open(region == "eu", queue=queue)[0] for queue in ("one", "two"))
        for queue in ("one", "two"):
            laned.enqueue([make_task(queue=queue, created_at=n, attributes={"region": of(n)}) for n in range(120)])
        routes = [(Route("one"), by_lane(two)), (by_lane(one), Route("two"))]

        def work(order: Random) -> int:
            tasks = claim(store, *order.choice(routes), limit=10)
            laned.release(tasks)
            return len(tasks)

        with refusals(monkeypatch) as numbers:
            done = in_threads(2.0, *[work] * 8)
        assert numbers == []
        assert min(done) > 0


def test_changes_of_the_same_tasks_do_not_deadlock(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY3, L7: claims with and without lanes, heartbeats, retries, settlements and cancellations that name the same
    tasks in any order lock them in id order: no deadlock, and no error leaves the store.

    A claim is in claim order, but waits for nobody. MariaDB, though, has it wait for no time at a row that it passes
    by, and may take that moment for a part of a deadlock: there it may come to one, and that is replayed.
    """
    routes = [wanted(laned) for wanted in ROUTES.values()]
    product = product_of(laned)
    laned = Laned.over(Replaying(laned.store))
    shared: list[TaskRecord] = []

    def take(order: Random) -> int:
        tasks = claim(laned.store, order.choice(routes), limit=10)
        shared[:] = [*tasks, *shared][:40]
        return len(tasks)

    def beat(order: Random) -> int:
        some = order.sample(shared, min(20, len(shared)))
        return len(laned.store.extend([task.lease for task in some], TTL))

    def settle(order: Random) -> int:
        some = order.sample(shared, min(20, len(shared)))
        moved: list[Moved] = []
        for task in some:
            after = order.choice((GiveBack(task.lease, task.attributes), Requeue(task.lease, 0, task.attributes)))
            moved.append((after, task))
        return len(laned.apply(moved))

    def come_and_go(order: Random) -> int:
        new = [make_task(f"{uuid4()}", created_at=order.randrange(300), attributes=EU) for _ in range(6)]
        laned.enqueue(new)
        return len(laned.store.apply([Cancel(task_id) for task_id in order.sample(ids(new), 6)]))

    with refusals(monkeypatch) as numbers:
        done = in_threads(2.0, take, take, beat, beat, settle, settle, come_and_go)
    assert set(numbers) <= ({ER.LOCK_DEADLOCK} if product is Product.MARIADB else set())
    assert min(done) > 0
    assert laned.store.audit() == []


def test_enqueues_of_the_same_ids_do_not_deadlock(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY3, L4, L7: statements that insert the same ids in any order wait for each other in id order, and each id is
    stored by one of them."""
    names = [f"new {number:03}" for number in range(200)]
    barrier = threading.Barrier(4)

    def enqueue(number: int) -> set[str]:
        chosen = Random(number).sample(names, 200 if number % 2 else 90)
        barrier.wait(timeout=PATIENCE)
        return laned.store.enqueue([make_task(name, state=State.SCHEDULED) for name in chosen])

    with refusals(monkeypatch) as numbers, ThreadPoolExecutor(4) as pool:
        inserted = [each.result() for each in [pool.submit(enqueue, number) for number in range(4)]]
    assert sorted(name for each in inserted for name in each) == names
    assert set(numbers) <= {ER.DUP_ENTRY}


def test_mixed_claims_lose_nothing(laned: Laned) -> None:
    """MY1, MY11, O4: claims of several routes, some by lane and some by walk, empty the queue between them: each task
    once, and none is left."""
    routes = [wanted(laned) for wanted in ROUTES.values()]
    got: list[TaskId] = []

    def drain(number: int) -> list[TaskId]:
        order, mine, empty = Random(number), list[TaskId](), 0
        while empty < 3:
            chosen = order.sample(routes, 3) if empty == 0 else [Route(QUEUE)]
            tasks = claim(laned.store, *chosen, limit=9)
            empty = 0 if tasks else empty + 1
            mine += ids(tasks)
        return mine

    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(drain, number) for number in range(6)]:
            got += each.result()
    assert len(got) == len(set(got)) == 300
    assert laned.store.find(Route(QUEUE), [State.READY], 1) == []
