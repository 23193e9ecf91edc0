"""The plans of what the PostgreSQL store asks, taken from EXPLAIN: by an index, in order, whatever the planner was
told about the data and about itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import (
    connect_plainly,
    fresh_role,
    fresh_schema,
    open_url,
    recorded,
    with_options,
)
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, Predicate, normalize
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Route,
)
from wiggle_core.tasks.task import Lease, State, TaskRecord
from wiggle_store_postgres.store import PostgresStore

_serial = count()
REGION = Task.attr("region", str)
SHAPES: dict[str, Predicate] = {
    "all": TRUE,
    "field": Task.step == "charge",
    "attribute": REGION == "eu",
    "never": REGION == "nowhere",
    "range": Task.attr("total", Decimal) >= Decimal(5),
    "prefix": REGION.like("e%"),
    "negated": ~(REGION == "eu"),
    "absent": Task.node.is_null(),
    "urgent": Task.priority == 0,
    "not urgent": Task.priority > 0,
    "oldest id": Task.workflow.is_null() & (Task.priority == 0),
    "some priorities": Task.priority.in_([0, 2]),
    "between": Task.priority.between(1, 2),
    "priority or": (Task.priority == 0) | (Task.priority == 2),
    "priority or step": (Task.priority == 0) | (Task.step == "refund"),
    "long list": REGION.in_([f"r{number}" for number in range(100)] + ["eu"]),
}
STATISTICS = ("none", "stale", "fresh", "of another queue", "all absent")

# The planner as PostgreSQL ships it.
AS_SHIPPED = (
    "-c enable_seqscan=on -c enable_bitmapscan=on -c enable_mergejoin=on -c plan_cache_mode=auto -c jit=on "
    "-c random_page_cost=4 -c max_parallel_workers_per_gather=2"
)
HOSTILE = {
    "no index scans": ("enable_indexscan = off", "enable_indexonlyscan = off"),
    "no nested loops": ("enable_nestloop = off",),
    "no other joins": ("enable_hashjoin = off", "enable_mergejoin = off", "enable_material = off"),
    "dear pages": ("random_page_cost = 1000", "enable_seqscan = on"),
    "no sorts": ("enable_sort = off", "enable_incremental_sort = off"),
}


def fill(store: PostgresStore, number: int, queue: str = "payments", state: State = State.READY) -> None:
    first = next(_serial) * 100_000
    tasks = [
        TaskRecord(
            f"{first + each:012d}",
            queue,
            "charge" if each % 2 else "refund",
            created_at=each,
            ready_at=each,
            state=state,
            priority=each % 3,
            attributes={"region": "eu" if each % 10 < 3 else "us", "total": Decimal(each % 10)},
        )
        for each in range(number)
    ]
    for start in range(0, number, 1000):
        store.enqueue(tasks[start : start + 1000])


def claim(store: PostgresStore, *routes: Route, limit: int = 10) -> list[TaskRecord]:
    return store.claim(ClaimRequest("worker", uuid4().hex, 30_000_000, limit, routes))


def analyze(url: str) -> None:
    schema = make_url(url).query["schema"]
    with connect_plainly(url) as connection:
        connection.execute(f"ANALYZE {schema}.task, {schema}.history, {schema}.payload".encode())


@pytest.fixture(scope="module", params=STATISTICS)
def filled_url(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """12,000 READY tasks on one queue, few on others, some scheduled, leased and settled; with statistics as they are
    after ANALYZE, when there was hardly a task, when all were on another queue, or when none had what they have now."""
    with fresh_schema(postgres_url) as url:
        store = open_url(url)
        store.migrate()
        with connect_plainly(url) as connection:
            for table in ("task", "history", "payload"):
                name = f"{make_url(url).query['schema']}.{table}"
                connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)".encode())
        _fill_and_analyze(store, url, request.param)
        store.close()
        yield url


def _fill_and_analyze(store: PostgresStore, url: str, statistics: str) -> None:
    match statistics:
        case "stale":
            fill(store, 3)
            analyze(url)
        case "of another queue":
            fill(store, 3000, queue="archive")
            analyze(url)
        case "all absent":
            store.enqueue([TaskRecord(f"bare {number}", "payments", "s", number, 1) for number in range(1000)])
            analyze(url)
        case _:
            pass
    fill(store, 12_000)
    fill(store, 5, queue="refunds")
    fill(store, 300, state=State.SCHEDULED)
    settled = claim(store, Route("payments"), limit=100)
    store.apply([Finish(task.lease, State.DONE) for task in settled[:50]])
    if statistics == "fresh":
        analyze(url)


@pytest.fixture
def store(filled_url: str) -> Iterator[PostgresStore]:
    opened = open_url(filled_url)
    yield opened
    opened.close()


def require_walk(plan: tuple[str, ...] | list[str]) -> None:
    """The candidates come from the dispatch index in its order, and are then updated by their ids."""
    text = "\n".join(plan)
    assert "Seq Scan" not in text, text
    walk, _, lease = text.partition("CTE picked")[2].partition("InitPlan")
    assert re.findall(r"Index Scan using (\w+)", walk) == ["task_dispatch"], text
    assert re.search(r"Index Cond: \(+queue = ", walk), text
    assert "Sort" not in walk, text
    used = re.findall(r"Index Scan (?:using|on) (\w+)", lease)
    assert used == ["task_id", "payload_id"], text
    assert "Index Cond: (id = ANY (" in lease, text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_walks_the_dispatch_index(store: PostgresStore, shape: str) -> None:
    """PG5, O1: whatever the predicate and the statistics, the dispatch index serves queue, READY and order."""
    require_walk(store.explain(Route("payments", normalize(SHAPES[shape])), 10).plan)


@pytest.mark.parametrize("switches", HOSTILE)
def test_planner_switches_of_the_role_do_not_matter(filled_url: str, switches: str) -> None:
    """PG5: switches that were set for the role or the database give way to ours."""
    with fresh_role(filled_url, f"hostile_{uuid4().hex[:8]}", *HOSTILE[switches]) as url:
        hostile = open_url(url)
        for shape in SHAPES.values():
            require_walk(hostile.explain(Route("payments", normalize(shape)), 10).plan)
        hostile.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_behind_a_pooler_a_claim_brings_its_settings(filled_url: str, shape: str) -> None:
    """PG7, PG16: where no session is ours, the planner is held to the index all the same."""
    pooled = open_url(with_options(filled_url, pgbouncer="1", options=AS_SHIPPED))
    require_walk(pooled.explain(Route("payments", normalize(SHAPES[shape])), 10).plan)
    pooled.close()


def test_several_routes_are_walked_alike(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """O1: each route reads its own part of the index in order; only what they found is sorted."""
    routes = [Route("payments", normalize(REGION == "eu")), Route("refunds"), Route("none")]
    with recorded(monkeypatch) as sent:
        held = claim(store, *routes)
    store.apply([GiveBack(task.lease, task.attributes) for task in held])
    with store._connections.reading() as session:
        text = "\n".join(line for (line,) in session.rows(f"EXPLAIN {sent[0][0]}", sent[0][1]))
    assert text.count("Index Scan using task_dispatch") == 3
    assert text.count("LockRows") == 3
    walks = text.partition("CTE picked")[0]
    assert "Sort" not in walks


def _work_a_day(store: PostgresStore) -> None:
    """Each method that workers and sweepers call often, with effect."""
    fill(store, 20, queue="day")
    one, two, three, four, five, six = claim(store, Route("day"), limit=6)
    changes: list[Change] = [
        Finish(one.lease, State.FAILED, error="x"),
        Requeue(two.lease, 1000, {}),
        GiveBack(three.lease, {}),
        Cancel(four.id),
        Expire(five.lease, 0, {}),
        Expire(six.lease, None, {}),
        Promote("unknown", {}),
    ]
    assert store.extend([one.lease, Lease("unknown", "token")], 1) == {one.lease}
    assert store.apply(changes) >= {one.id, two.id, three.id, four.id}
    assert store.apply([Revive(one.id, {})]) == {one.id}
    assert store.due(5)
    assert store.lookup([two.id, four.id]).keys() == {two.id, four.id}
    assert store.get(two.id)
    assert store.find(Route("day"), [State.READY], 10)
    assert store.purge(2**62, 1) == 1
    store.apply([Cancel(task.id) for task in store.find(Route("day"), [State.READY, State.SCHEDULED], 100)])


def test_no_statement_passes_over_the_live_tasks(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """O3, PG5: every statement of the working day finds its tasks by an index, however many there are."""
    with recorded(monkeypatch) as sent:
        _work_a_day(store)
    seen = 0
    for statement, binds in sent:
        if "$schema" not in statement:
            continue
        with store._connections.reading() as session:
            plan = [line for (line,) in session.rows(f"EXPLAIN {statement}", binds)]
        assert [line for line in plan if re.search(r"Seq Scan on (task|payload)", line)] == [], plan
        by_key = [place for place, line in enumerate(plan) if re.search(r"using (task_id|payload_id)", line)]
        assert all("Index Cond" in plan[place + 1] for place in by_key), "\n".join(plan)
        seen += 1
    assert seen > 15


def test_changes_find_their_tasks_by_id(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """L7, PG14: rows are found by the primary key alone, and locked behind a sort by id."""
    held = claim(store, Route("payments"), limit=20)
    with recorded(monkeypatch) as sent:
        store.extend([task.lease for task in held], 30_000_000)
        store.apply([GiveBack(task.lease, task.attributes) for task in held])
    assert len(sent) == 2
    for statement, binds in sent:
        with store._connections.reading() as session:
            ((plan,),) = session.rows(f"EXPLAIN (FORMAT JSON) {statement}", binds)
        assert _indexes(plan) == {"task_id"}
        (locking,) = _nodes(plan, "LockRows")
        (below,) = _nodes(locking["Plans"], "Sort")
        assert locking["Plans"] == [below]
        assert re.search(r"change\.id.*COLLATE \"C\"", str(below["Sort Key"]))


def _nodes(plan: object, kind: str) -> list[dict[str, object]]:  # the plan as EXPLAIN's JSON
    if isinstance(plan, list):
        return [node for each in plan for node in _nodes(each, kind)]
    if not isinstance(plan, dict):
        return []
    found = [node for value in plan.values() for node in _nodes(value, kind)]
    return [plan, *found] if plan.get("Node Type") == kind else found


def _indexes(plan: object) -> set[str]:
    return set(re.findall(r'"Index Name": "(\w+)"', json.dumps(plan)))


@pytest.mark.parametrize(
    "switches",
    ["-c enable_hashjoin=off -c enable_mergejoin=off -c enable_material=off", "-c enable_nestloop=off", AS_SHIPPED],
)
def test_a_claim_never_takes_more_than_its_limit(filled_url: str, switches: str) -> None:
    """PG1: with any join, and statistics that lie, a claim locks and leases no more than it was asked for."""
    store = open_url(with_options(filled_url, options=switches))
    fill(store, 60, queue="limited")
    seen: list[str] = []
    while held := claim(store, Route("limited"), limit=7):
        assert len(held) <= 7
        seen += [task.id for task in held]
        store.apply([Cancel(task.id) for task in held])
    assert len(seen) == len(set(seen)) == 60
    store.close()


def test_find_pages_through_a_queue_by_its_index(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page far behind costs what the first one costs: it is found by the order's own values."""
    first = store.find(Route("payments"), [State.READY], 10)
    with recorded(monkeypatch) as sent:
        store.find(Route("payments"), [State.READY], 10, after=first[-1].order_key)
    with store._connections.reading() as session:
        text = "\n".join(line for (line,) in session.rows(f"EXPLAIN {sent[0][0]}", sent[0][1]))
    assert "Index Scan using task_dispatch" in text
    assert "Sort" not in text
    assert re.search(r"Index Cond: \(\(queue = .*ROW\(priority, created_at, ready_at, id\) > ROW\(", text), text
