"""The plans of what lanes ask of PostgreSQL, taken from EXPLAIN: rows are found by their keys, and few are read,
whatever the planner was told about the data and about itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import connect_plainly, fresh_role, fresh_schema, open_url, recorded, with_options
from tests.stores.test_postgres_plans import AS_SHIPPED, HOSTILE
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import QUEUE, claim, make_task
from wiggle_core.criteria.fields import Task
from wiggle_core.stores.lanes import Lane, LaneRow
from wiggle_core.stores.store import Cancel, Change, ClaimRequest, Finish, GiveBack, Promote, Requeue, Revive, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_postgres.claims import statement_for
from wiggle_store_postgres.store import PostgresStore

region = Task.attr("region", str)
STATISTICS = ("none", "stale", "fresh", "of another lane")
SWITCHES: dict[str, tuple[str, ...]] = {**HOSTILE, "no tid scans": ("enable_tidscan = off",)}
ROWS_READ = 50
"""What a claim of 10 by a lane may read, at any depth."""


def tasks_of(number: int, first: int = 0) -> list[TaskRecord]:
    return [
        make_task(created_at=each, priority=each % 3, attributes={"region": "eu" if each % 50 == 0 else "us"})
        for each in range(first, first + number)
    ]


@pytest.fixture(scope="module", params=STATISTICS)
def lane_url(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Two lanes, one with a fiftieth of 10,000 tasks, one with the others; with statistics as they are after ANALYZE,
    when there was hardly a row, or when all rows were of the other lane."""
    with fresh_schema(postgres_url) as url:
        store = open_url(url)
        store.migrate()
        with connect_plainly(url) as connection:
            for table in ("task", "lane_task"):
                name = f"{make_url(url).query['schema']}.{table}"
                connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)".encode())
        _fill_and_analyze(Laned.over(store), url, request.param)
        store.close()
        yield url


def _fill_and_analyze(laned: Laned, url: str, statistics: str) -> None:
    laned.open(region == "eu", region == "us")
    before = {"stale": tasks_of(3), "of another lane": [make_task(attributes={"region": "us"}) for _ in range(900)]}
    laned.enqueue(before.get(statistics, []))
    if statistics in before:
        _analyze(url)
    for first in range(0, 10_000, 1_000):
        laned.enqueue(tasks_of(1_000, first))
    if statistics == "fresh":
        _analyze(url)


def _analyze(url: str) -> None:
    schema = make_url(url).query["schema"]
    with connect_plainly(url) as connection:
        connection.execute(f"ANALYZE {schema}.task, {schema}.lane_task, {schema}.lane, {schema}.payload".encode())


@pytest.fixture
def laned(lane_url: str) -> Iterator[Laned]:
    opened = open_url(lane_url)
    found = Laned.over(opened)
    found.book.refresh()
    yield found
    opened.close()


def rare(laned: Laned) -> Lane:
    return next(lane for lane in laned.lanes.read(0).lanes if lane.predicate == (region == "eu"))


def require_lane(laned: Laned, plan: tuple[str, ...] | list[str]) -> None:
    """The candidates come from the lane's key in its order, their tasks one by one from the primary key."""
    text = "\n".join(plan)
    assert "Seq Scan" not in text, text
    head, _, after = text.partition("CTE picked")[2].partition("CTE met_0")
    assert re.findall(r"Index Scan using (\w+)", head) == ["lane_task_key", "task_id"], text
    assert re.search(r"Index Cond: \(lane = ", head), text
    assert re.search(r"Index Cond: \(id = (head|lane_task)\.id\)", head), text
    assert "Sort" not in head, text
    used = re.findall(r"(?:Index|Index Only) Scan (?:using|on) (\w+)", after)
    assert used == ["lane_task_key", "task_id", "payload_id"], text
    assert re.findall(r"Scan on lane_task", after) == ["Scan on lane_task"], text


def plan_of(laned: Laned, limit: int = 10) -> tuple[str, ...]:
    return laned.store.explain(by_lane(rare(laned)), limit).plan


def test_a_claim_reads_the_head_of_its_lane(laned: Laned) -> None:
    """PG5, N4: whatever the statistics, a claim by a lane finds its rows by the key, and each task by its id."""
    for limit in (1, 10, 100):
        require_lane(laned, plan_of(laned, limit))


@pytest.mark.parametrize("switches", SWITCHES)
def test_planner_switches_of_the_role_do_not_matter(lane_url: str, switches: str) -> None:
    """PG5: switches that were set for the role or the database give way to ours."""
    with fresh_role(lane_url, f"hostile_{uuid4().hex[:8]}", *SWITCHES[switches]) as url:
        store = open_url(url)
        require_lane(Laned.over(store), plan_of(Laned.over(store)))
        store.close()


def test_behind_a_pooler_a_claim_brings_its_settings(lane_url: str) -> None:
    """PG7, PG16: where no session is ours, the planner is held to the keys all the same."""
    store = open_url(with_options(lane_url, pgbouncer="1", options=f"{AS_SHIPPED} -c enable_tidscan=off"))
    require_lane(Laned.over(store), plan_of(Laned.over(store)))
    store.close()


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_the_seventh_execution_is_planned_like_the_first(lane_url: str, mode: str) -> None:
    """PG6: nothing is prepared, so no execution can fall back to a plan that was made without its values."""
    store = open_url(with_options(lane_url, pool_size="1", options=f"-c plan_cache_mode={mode}"))
    laned = Laned.over(store)
    lane = rare(laned)
    for _ in range(7):
        laned.release(claim(store, by_lane(lane), limit=2))
    require_lane(laned, plan_of(laned))
    with store._connections.reading() as session:
        assert session.rows("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    store.close()


# What is read


def read_by(store: PostgresStore, route: Route, limit: int) -> float:
    """The rows that a claim reads of tasks and lanes, from EXPLAIN's JSON."""
    statement = statement_for((route,), 10)
    binds = ("", "", None, 0, limit, *statement.binds)
    with store._connections.rolled_back() as session:
        ((plan,),) = session.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}", binds)
    return sum(_rows_read(plan))


def _rows_read(plan: object) -> Iterator[float]:
    if isinstance(plan, list):
        for each in plan:
            yield from _rows_read(each)
    if isinstance(plan, dict):
        if plan.get("Relation Name") in ("task", "lane_task") and "Scan" in plan["Node Type"]:
            removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
            yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
        for each in plan.values():
            yield from _rows_read(each)


def test_a_claim_by_a_lane_reads_few_rows(laned: Laned) -> None:
    """N4, N5: a claim of 10 reads 50 rows at most, at any depth and from any lane, and `explain` says how many."""
    assert isinstance(laned.store, PostgresStore)
    for lane in laned.lanes.read(0).lanes:
        read = read_by(laned.store, by_lane(lane), 10)
        assert 10 <= read <= ROWS_READ
        assert laned.store.explain(by_lane(lane), 10).rows_read == read
    walk = Route(QUEUE, rare(laned).predicate)
    assert laned.store.explain(walk, 10).rows_read == read_by(laned.store, walk, 10) > 10 * ROWS_READ / 2


def test_what_a_claim_did_not_lease_it_does_not_keep(laned: Laned) -> None:
    """N5: explaining a claim leases nothing and deletes nothing."""
    before = laned.size(rare(laned)), laned.content(rare(laned))
    laned.store.explain(by_lane(rare(laned)), 100)
    assert (laned.size(rare(laned)), laned.content(rare(laned))) == before


def _work_a_day(laned: Laned) -> None:
    """Each way in which rows of lanes are written, read or deleted, with effect."""
    laned.enqueue([make_task(queue="day", attributes={"region": "day"})])
    laned.enqueue([make_task(queue="day", attributes={"region": "day"}) for _ in range(8)])
    laned.enqueue([make_task("late", queue="day", state=State.SCHEDULED, ready_at=1)])
    (lane,) = laned.open(region == "day", queue="day")
    one, two, three, four = claim(laned.store, by_lane(lane), limit=4)
    moved: list[tuple[Change, TaskRecord]] = [
        (Finish(one.lease, State.FAILED), one),
        (Requeue(two.lease, 0, two.attributes), two),
        (GiveBack(three.lease, three.attributes), three),
        (Promote("late", {"region": "day"}), make_task("late", queue="day", state=State.SCHEDULED, ready_at=1)),
    ]
    assert len(laned.apply(moved)) == 4
    assert laned.apply([(Revive(one.id, one.attributes), one)]) == {one.id}
    claimed = laned.store.claim(ClaimRequest("w", uuid4().hex, 1_000_000, 3, (Route("day"),)))
    part = laned.lanes.ready_tasks("day", [region == "day"], claimed[0].order_key, 2)
    laned.lanes.fill([LaneRow(lane.id, task.order_key, ready_no) for task, ready_no in part.tasks])
    laned.prune()
    laned.lanes.prune(LaneRow(lane.id, claimed[0].order_key, 1), 5)
    laned.lanes.note_use({lane.id: 3})
    laned.lanes.note_work([lane.id])
    laned.lanes.unfinished(1)
    assert laned.size(lane) > 3
    laned.close(lane)
    laned.store.apply(
        [Cancel(task.id) for task in [*claimed, four, *laned.store.find(Route("day"), [State.READY], 99)]]
    )


def test_no_statement_passes_over_tasks_or_rows_of_lanes(laned: Laned, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG5: every statement that lanes are kept by finds tasks and rows by an index or their place."""
    with recorded(monkeypatch) as sent:
        _work_a_day(laned)
    seen = 0
    assert isinstance(laned.store, PostgresStore)
    for statement, binds in sent:
        if "$schema.task" not in statement and "$schema.lane_task" not in statement:
            continue
        with laned.store._connections.reading() as session:
            plan = [line for (line,) in session.rows(f"EXPLAIN {statement}", binds)]
        assert [line for line in plan if re.search(r"Seq Scan on (task|payload|lane_task)", line)] == [], plan
        by_key = [place for place, line in enumerate(plan) if re.search(r"using (task_id|payload_id)", line)]
        assert all("Index Cond" in plan[place + 1] for place in by_key), "\n".join(plan)
        seen += 1
    assert seen > 15
