"""The plans of what the MySQL and MariaDB store asks, and the rows that the servers read for it: by an index, in its
order, whatever they were told about the data (MY1, MY12)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pytest
from sqlalchemy import make_url

from tests.stores.mysql_prefixes import asked, fresh_place, migrated, plain, recorded, rows_read
from tests.stores.postgres_schemas import with_options
from tests.stores.test_postgres_plans import SHAPES
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import QUEUE, TTL, claim, ids, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.stores.store import Finish, Route
from wiggle_core.tasks.task import OrderKey, State, TaskRecord
from wiggle_store_mysql import claims
from wiggle_store_mysql.claims import first_statements
from wiggle_store_mysql.connections import Session, Statement
from wiggle_store_mysql.place import Product
from wiggle_store_mysql.store import MySQLStore

TASKS = 100_000
region = Task.attr("region", str)

# Every fiftieth of the tasks is in the lane. Each queue of the others has few.
_DIGITS = "(SELECT 0 AS d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10)) + ")"
_NUMBERS = " CROSS JOIN ".join(f"{_DIGITS} AS d{place}" for place in range(5))
_NUMBER = " + ".join(f"d{place}.d * {10**place}" for place in range(5))
_FILL = f"""
    INSERT INTO {{prefix}}task (id, queue, state, priority, created_at, ready_at, ready_no, attempt, step, kind,
        attributes)
    SELECT CONCAT('n', LPAD(n, 8, '0')), IF(n % 1000 = 999, CONCAT('queue ', n), '{QUEUE}'), 'READY', n % 3, n, n, 1, 1,
        IF(n % 2, 'charge', 'refund'), 'task', IF(n % 50, '{{{{"region":"sus"}}}}', '{{{{"region":"seu"}}}}')
    FROM (SELECT {_NUMBER} AS n FROM {_NUMBERS}) AS numbers;
    INSERT INTO {{prefix}}payload (id, body) SELECT id, 'null' FROM {{prefix}}task;
    INSERT INTO {{prefix}}lane_task (lane, priority, created_at, ready_at, id, ready_no)
    SELECT {{lane}}, priority, created_at, ready_at, id, ready_no FROM {{prefix}}task
    WHERE queue = '{QUEUE}' AND created_at % 50 = 0
"""
_TABLES = ("task", "payload", "lane_task", "history")
_STATISTICS = {
    "fresh": "ANALYZE TABLE {table}",
    "histograms": "ANALYZE TABLE {table} {histograms}",
    "none": "DELETE FROM mysql.innodb_index_stats WHERE {named}; DELETE FROM mysql.innodb_table_stats WHERE {named}",
    "of a row": "UPDATE mysql.innodb_index_stats SET stat_value = 1 WHERE {named};"
    "UPDATE mysql.innodb_table_stats SET n_rows = 1, clustered_index_size = 1, sum_of_other_index_sizes = 1 "
    "WHERE {named}",
    "of many alike": "UPDATE mysql.innodb_index_stats SET stat_value = IF(index_name = 'PRIMARY', 1000000000, 1) "
    "WHERE {named} AND stat_name LIKE 'n_diff%';"
    "UPDATE mysql.innodb_table_stats SET n_rows = 1000000000, clustered_index_size = 1, "
    "sum_of_other_index_sizes = 100000000 WHERE {named}",
}


class Step(NamedTuple):
    """A line of a plan."""

    kind: str
    table: str
    access: str
    key: str
    extra: str


@pytest.fixture(scope="module")
def filled_url(mysql_like_url: str) -> Iterator[str]:
    """100,000 tasks, nearly all of them on one queue, a fiftieth in a lane."""
    with fresh_place(mysql_like_url) as fresh, plain(fresh) as connection:
        url = with_options(fresh, pool_size="1")
        with migrated(url) as store:
            (lane,) = Laned.over(store).open(region == "eu")
        prefix = make_url(url).query["prefix"]
        for table in _TABLES:
            asked(connection, f"ALTER TABLE {prefix}{table} STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0")
        for statement in _FILL.format(prefix=prefix, lane=lane.id).split(";\n"):
            asked(connection, statement)
        yield url


@pytest.fixture(scope="module", params=_STATISTICS)
def told_url(filled_url: str, request: pytest.FixtureRequest) -> str:
    """The server is told things about the tables that are so, or not."""
    is_mariadb = "mariadb" in filled_url
    prefix, database = make_url(filled_url).query["prefix"], make_url(filled_url).database
    with plain(filled_url) as connection:
        for table in _TABLES:
            name = f"{prefix}{table}"
            columns = {"task": "queue, state, priority", "history": "queue, state"}.get(table, "id")
            histograms = "PERSISTENT FOR ALL" if is_mariadb else f"UPDATE HISTOGRAM ON {columns}"
            named = f"database_name = '{database}' AND table_name = '{name}'"
            asked(connection, f"ANALYZE TABLE {name}")  # what is changed has to be there
            text = _STATISTICS[request.param].format(table=name, histograms=histograms, named=named)
            for statement in text.split(";"):
                asked(connection, statement)
            asked(connection, f"FLUSH TABLES {name}")
    return filled_url


@pytest.fixture
def store(told_url: str) -> Iterator[MySQLStore]:
    with migrated(told_url) as opened:
        yield opened


@pytest.fixture
def plain_store(filled_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MySQLStore]:
    """With whatever statistics; heads of lanes are pruned by the first claim only, so that one can be counted alone."""
    monkeypatch.setattr(claims, "PRUNING_PAUSE", 1e9)
    with migrated(filled_url) as opened:
        yield opened


def plan_of(session: Session, statement: Statement) -> list[Step]:
    form = "FORMAT=TRADITIONAL" if session.server.product is Product.MYSQL else ""
    rows = session.rows(f"EXPLAIN {form} {statement[0]}", statement[1])
    if session.server.product is Product.MYSQL:
        return [Step(*(str(row[place] or "") for place in (1, 2, 4, 6, 11))) for row in rows]
    return [Step(*(str(row[place] or "") for place in (1, 2, 3, 5, 9))) for row in rows]


def require_order(plan: Sequence[Step], key: str) -> None:
    """The rows come from a part of the index, in its order."""
    (first,) = [step for step in plan if step.table in ("task", "head")][:1]
    assert (first.key, first.access in ("ref", "range")) == (key, True), plan
    others = [step for step in plan if step is not first and step.table not in ("", "page", "<derived2>")]
    assert all(step.key == "PRIMARY" for step in others), plan
    assert not any("filesort" in step.extra or "temporary" in step.extra for step in plan), plan


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_walks_the_dispatch_index(store: MySQLStore, shape: str) -> None:
    """MY1, MY12: whatever the predicate and the statistics, the index serves queue, READY and order, so that nothing is
    sorted under locks. Alike for a queue of many tasks, of one and of none."""
    for queue in (QUEUE, "queue 999", "none"):
        walk, predicate = Route(queue), route(SHAPES[shape]).predicate
        with store._connections.rolled_back() as session:
            for limit in (1, 10, 1_000):
                (statement,) = first_statements(session.server.product, [Route(queue, predicate)], limit)
                require_order(plan_of(session, statement), "task_dispatch")
                statement, *_ = first_statements(session.server.product, [walk, Route("x", lane=1)], limit)
                require_order(plan_of(session, statement), "task_dispatch")


def test_a_claim_by_a_lane_walks_its_key(store: MySQLStore) -> None:
    """MY1, MY12: the lane's first rows come in the order of its key, and the task of each from the primary key."""
    with store._connections.rolled_back() as session:
        for limit in (1, 10, 1_000):
            statement, *_ = first_statements(session.server.product, [Route(QUEUE, lane=1)], limit)
            require_order(plan_of(session, statement), "PRIMARY")


# What is read


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_a_claim_reads_what_it_returns(plain_store: MySQLStore, limit: int) -> None:
    """MY1, O3: of 100,000 tasks a claim of 10 reads 10, and each some times more by its key: to lease it, to answer,
    with the payload, and by lane to delete its row there. It is the same for any other number."""
    laned = Laned.over(plain_store)
    (lane,) = laned.lanes.read(0).lanes
    laned.release(claim(plain_store, by_lane(lane), limit=1))
    for wanted, times in ((Route(QUEUE), 6), (by_lane(lane), 12), (Route("queue 999"), 6)):
        held: list[TaskRecord] = []
        read = rows_read(plain_store, partial(_claim_into, held, plain_store, wanted, limit))
        assert len(held) == (1 if wanted.queue == "queue 999" else limit)
        assert len(held) <= read <= times * len(held) + 5
        laned.release(held)


def _claim_into(held: list[TaskRecord], store: MySQLStore, wanted: Route, limit: int) -> None:
    held += claim(store, wanted, limit=limit)


def test_a_claim_that_finds_nothing_reads_nothing(plain_store: MySQLStore) -> None:
    """O3: neither tasks of other queues nor those that are leased or scheduled are read."""
    plain_store.enqueue([make_task(queue="later", state=State.SCHEDULED, ready_at=2**60) for _ in range(200)])
    assert rows_read(plain_store, lambda: claim(plain_store, Route("later"))) <= 1
    assert rows_read(plain_store, lambda: claim(plain_store, Route("none"))) <= 1


@pytest.mark.parametrize("depth", [1, 500, 50_000, 98_000])
def test_a_page_costs_the_same_at_any_depth(plain_store: MySQLStore, depth: int) -> None:
    """MY1, MY12: `find`, and the parts that lanes are filled from, begin at their place in the index."""
    priority, number = divmod(depth, TASKS // 3)
    place = OrderKey(priority, 3 * number, 3 * number, "")
    page: list[str] = []
    read = rows_read(plain_store, lambda: page.extend(ids(plain_store.find(Route(QUEUE), [State.READY], 10, place))))
    assert len(page) == 10
    assert 20 <= read <= 30

    def fill() -> None:
        part = plain_store.lanes.ready_tasks(QUEUE, [region == "eu"], place, 200)
        assert part.last is not None
        assert 2 <= len(part.tasks) <= 6

    # Once for the tasks and once for the last one of them; both servers read the page again as a table in between.
    assert 400 <= rows_read(plain_store, fill) <= 850


def test_a_thousand_ids_are_found_one_by_one(plain_store: MySQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY3: leases and changes find their tasks, and deletions the rows of lanes, by the primary key, however many: no
    other row is read, so none is locked."""
    laned = Laned.over(plain_store)
    (lane,) = laned.lanes.read(0).lanes
    with recorded(monkeypatch) as sent:
        held = claim(plain_store, by_lane(lane))
        assert len(plain_store.extend([task.lease for task in held], TTL)) == len(held) == 1_000
        laned.release(held)
    by_text = {each[0]: each for packet in sent for each in packet if re.search(r"id (IN|=) %s|given", each[0])}
    assert len(by_text) >= 5
    with plain_store._connections.rolled_back() as session:
        for statement in by_text.values():
            require_keys(plan_of(session, statement))
    tasks: list[TaskRecord] = []
    assert rows_read(plain_store, partial(_claim_into, tasks, plain_store, by_lane(lane), 1_000)) <= 12 * 1_000
    assert rows_read(plain_store, lambda: plain_store.extend([task.lease for task in tasks], TTL)) <= 3 * 1_000
    assert rows_read(plain_store, lambda: laned.release(tasks)) <= 5 * 1_000


def require_keys(plan: Sequence[Step]) -> None:
    """Rows come from the primary key alone, by whole keys; a list of keys that the statement brings is read whole."""
    steps = [step for step in plan if step.table != "given" and step.table.strip("<") == step.table != ""]
    assert steps, plan
    assert all(step.key == "PRIMARY" and step.access in ("range", "eq_ref", "const", "ref") for step in steps), plan


@pytest.mark.parametrize("number", [1, 2, 5, 40])
def test_small_tables_are_not_read_whole(mysql_like_url: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """MY3, L7: where a change is of most of the tasks that there are, neither product reads, and locks, the others to
    find them, as both would for a DELETE with a list of ids."""
    with fresh_place(mysql_like_url) as url, migrated(with_options(url, pool_size="1")) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(region == "eu")
        laned.enqueue([make_task(attributes={"region": "eu"}) for _ in range(number + number // 3)])
        held = claim(store, by_lane(lane), limit=number)
        with recorded(monkeypatch) as sent:
            assert len(store.apply([Finish(task.lease, State.DONE) for task in held])) == number
        with store._connections.rolled_back() as session:
            session.rows("ANALYZE TABLE $task, $lane_task")
            changing = [each for packet in sent for each in packet if re.search(r"DELETE|FOR UPDATE", each[0])]
            assert len(changing) >= 2
            for statement in changing:
                require_keys(plan_of(session, statement))
