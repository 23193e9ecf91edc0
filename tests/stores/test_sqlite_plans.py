"""The plans and the cost of what the SQLite store asks: by an index, in order, at any depth (O1, O3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest

from tests.stores.sqlite_files import connect_plainly, open_file, recorded
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import OrderedField, Task
from wiggle_core.criteria.tree import TRUE, Not, Or, Predicate, normalize
from wiggle_core.lanes.filling import complete
from wiggle_core.stores.lanes import NO_LANES, LaneId, NewLane, Placed
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
from wiggle_store_sqlite.claims import candidates, guarded_lease
from wiggle_store_sqlite.store import SqliteStore

_tokens = count()
REGION = Task.attr("region", str)
SHAPES: dict[str, Predicate] = {
    "all": TRUE,
    "field": Task.step == "charge",
    "attribute": REGION == "eu",
    "range": Task.attr("total", Decimal) >= Decimal(5),
    "prefix": REGION.like("e%"),
    "negated": ~(REGION == "eu"),
    "absent": Task.node.is_null(),
    "urgent": Task.priority == 0,
    "not urgent": Task.priority > 0,
    "between": Task.priority.between(1, 2),
    "some priorities": Task.priority.in_([0, 2]),
    "priority or": (Task.priority == 0) | (Task.priority == 2),
    "priority or step": (Task.priority == 0) | (Task.step == "refund"),
    "long list": REGION.in_([f"r{number}" for number in range(100)] + ["eu"]),
}


LIMIT_OF_BINDS = 32_766
"""SQLite's own default; Debian's build allows more."""


@pytest.mark.parametrize(
    "leaf",
    [
        lambda field: field.in_(range(8)),
        lambda field: field.in_(range(9)),
        lambda field: field != 1,
        lambda field: field.between(1, 2),
    ],
)
@pytest.mark.parametrize("is_negated", [False, True])
def test_the_largest_worker_can_claim(leaf: Callable[[OrderedField[int]], Predicate], is_negated: bool) -> None:
    """C6, C7: 32 criteria of 100 nodes are within what one statement binds, so that none is refused at claim time."""
    leaves = Or(tuple(leaf(Task.attr(f"a{number}", int)) for number in range(98)))
    largest = QueueCriteria("payments", Not(leaves) if is_negated else leaves)
    routes = tuple(Route(f"queue {number}", largest.normal) for number in range(32))
    assert len(candidates(routes, 10).binds) <= LIMIT_OF_BINDS
    assert 4 + len(guarded_lease(routes)[1]) <= LIMIT_OF_BINDS


def fill(
    store: SqliteStore,
    number: int,
    queue: str = "payments",
    state: State = State.READY,
    placed: Placed = NO_LANES,
) -> None:
    first = next(_tokens) * 100_000
    store.enqueue(
        [
            TaskRecord(
                f"{first + each}",
                queue,
                "charge" if each % 2 else "refund",
                created_at=each,
                ready_at=each,
                state=state,
                priority=each % 3,
                attributes={"region": "eu" if each % 10 < 3 else "us", "total": Decimal(each % 10)},
            )
            for each in range(number)
        ],
        placed,
    )


def claim(store: SqliteStore, *routes: Route, limit: int = 10) -> list[TaskRecord]:
    return store.claim(ClaimRequest("worker", f"token {next(_tokens)}", 30_000_000, limit, routes))


def analyze(path: Path) -> None:
    """Statistics that say how few values each column has: what leads planners astray."""
    connection = connect_plainly(path)
    connection.execute("ANALYZE")
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture(params=["no statistics", "statistics", "old statistics"])
def store(path: Path, request: pytest.FixtureRequest) -> Iterator[SqliteStore]:
    """2,000 READY tasks on one queue, few on others, some scheduled, some leased, some settled; with statistics as
    they are after ANALYZE, now or when there was hardly a task."""
    opened = open_file(path)
    opened.migrate()
    fill(opened, 4)
    opened.apply([Finish(task.lease, State.DONE) for task in claim(opened, Route("payments"), limit=1)])
    if request.param == "old statistics":
        analyze(path)
    fill(opened, 2000)
    fill(opened, 5, queue="refunds")
    fill(opened, 300, state=State.SCHEDULED)
    settled = claim(opened, Route("payments"), limit=100)
    opened.apply([Finish(task.lease, State.DONE) for task in settled[:50]])
    if request.param == "statistics":
        analyze(path)
    opened.close()
    opened = open_file(path)
    yield opened
    opened.close()


def plan(store: SqliteStore, statement: str) -> list[str]:
    with store._connections.reading() as connection:
        return [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_walks_the_dispatch_index_in_order(store: SqliteStore, shape: str) -> None:
    """O1: whatever the predicate, the dispatch index serves queue, READY and the whole order; nothing is sorted."""
    steps = store.explain(Route("payments", normalize(SHAPES[shape])), 10).plan
    walks = [step.strip() for step in steps if "task" in step]
    assert walks
    assert all(step.startswith("SEARCH task USING INDEX task_dispatch (queue=?") for step in walks)
    assert not any("TEMP B-TREE" in step for step in steps)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lease_is_written_by_number(store: SqliteStore, shape: str) -> None:
    """O2: the update visits the tasks that were found, and no others of their queue."""
    routes = (Route("payments", normalize(SHAPES[shape])), Route("refunds", normalize(SHAPES[shape])))
    for some in (routes[:1], routes):
        with recorded(store) as statements:
            assert claim(store, *some)
        (update,) = [each for each in statements if "UPDATE task" in each]
        assert "SEARCH task USING INTEGER PRIMARY KEY (rowid=?)" in plan(store, update)


def test_no_statement_passes_over_the_live_tasks(store: SqliteStore) -> None:
    """Every statement of the working day finds its tasks by an index, however many there are (O3)."""
    with recorded(store) as statements:
        _work_a_day(store)
    assert len(statements) > 30
    for statement in statements:
        if statement.lstrip().split(" ", 1)[0] in ("SELECT", "UPDATE", "INSERT", "DELETE"):
            scans = [step for step in plan(store, statement) if step.startswith("SCAN") and "json_each" not in step]
            assert [step for step in scans if "task" in step or "history" in step] == [], statement


def _work_a_day(store: SqliteStore) -> None:
    """Each method that workers and sweepers call often, at least once with effect."""
    fill(store, 20, placed=_work_by_lanes(store))
    one, two, three, four, five, six = claim(store, Route("payments"), limit=6)
    store.extend([one.lease, Lease("unknown", "token")], 1)
    changes: list[Change] = [
        Finish(one.lease, State.FAILED, error="x"),
        Requeue(two.lease, 1000, {}),
        GiveBack(three.lease, {}),
        Cancel(four.id),
        Expire(five.lease, 0, {}),
        Expire(six.lease, None, {}),
        Promote("unknown", {}),
    ]
    placed = Placed(store.lanes.read(0).epoch, [[1]] * len(changes))
    assert store.apply(changes, placed) >= {one.id, two.id, three.id, four.id}
    assert store.apply([Revive(one.id, {})], Placed(placed.epoch, [[1]])) == {one.id}
    assert store.due(5)
    assert store.lookup([two.id, four.id]).keys() == {two.id, four.id}
    assert store.get(two.id)
    assert store.find(Route("payments"), [State.READY], 10)
    assert store.purge(2**62, 1) == 1


def _work_by_lanes(store: SqliteStore) -> Placed:
    """Each method of lanes at least once with effect; how the next tasks are placed."""
    rare = open_lane(store, normalize(Task.attr("total", Decimal) == 9))
    claimed = claim(store, Route("payments", TRUE, rare), Route("refunds"), limit=5)
    placed = Placed(store.lanes.read(0).epoch, [[rare]] * 5)
    assert store.apply([GiveBack(task.lease, task.attributes) for task in claimed], placed)
    claim(store, Route("payments", normalize(Task.attr("total", Decimal) == 9)), limit=5)
    store.lanes.prune(None, 5_000)
    store.lanes.note_use({rare: 5})
    store.lanes.note_work([rare])
    assert store.lanes.sizes([rare], 100)
    closing = open_lane(store, normalize(Task.step == "refund"))
    store.lanes.close([closing])
    assert store.lanes.unfinished(0)
    assert store.lanes.clear([closing], 10) == 10
    return Placed(store.lanes.read(0).epoch, [[rare]] * 20)


def open_lane(store: SqliteStore, predicate: Predicate) -> LaneId:
    opened = store.lanes.open([NewLane("payments", predicate, "a test")])
    assert complete(store.lanes, opened, 1)
    return opened[0].id


@pytest.mark.parametrize("shape", ["attribute", "range", "urgent"])
def test_a_claim_by_a_lane_reads_its_head(store: SqliteStore, shape: str) -> None:
    """N4: whatever the statistics say, the lane is read in order, and each of its tasks is looked up by number."""
    lane = open_lane(store, normalize(SHAPES[shape]))
    told = store.explain(Route("payments", normalize(SHAPES[shape]), lane), 10)
    steps = [step.strip() for step in told.plan]
    assert "SEARCH place USING PRIMARY KEY (lane=?)" in steps
    assert "SEARCH task USING INTEGER PRIMARY KEY (rowid=?)" in steps
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN task") for step in steps)
    assert told.rows_read == 20


def test_lane_rows_are_deleted_by_range(store: SqliteStore) -> None:
    """N1: a claim deletes the rows that it met, and looks at no others of their lanes."""
    lane = open_lane(store, normalize(SHAPES["attribute"]))
    with recorded(store) as statements:
        assert len(claim(store, Route("payments", TRUE, lane))) == 10
    (delete,) = [each for each in statements if "DELETE FROM lane_task" in each]
    by_range = (
        "SEARCH place USING PRIMARY KEY (lane=? AND (priority,created_at,ready_at,id,ready_no,number)<(?,?,?,?,?,?))"
    )
    assert by_range in plan(store, delete)
    (cut,) = [each for each in statements if "LIMIT 1 OFFSET" in each]
    assert by_range in plan(store, cut)


def test_rows_read_are_counted_one_by_one(path: Path) -> None:
    """N5: a walk is told to have read the rows that it passed by and those that it found; a lane, rows and tasks."""
    store = open_file(path)
    store.migrate()
    fill(store, 100)  # in claim order: 34 tasks of priority 0, 33 of 1, 33 of 2; by turns refund and charge
    charges = normalize(Task.step == "charge")
    assert store.explain(Route("payments"), 10).rows_read == 10
    assert store.explain(Route("payments", charges), 10).rows_read == 20
    # The index leads straight to the last third.
    assert store.explain(Route("payments", normalize(Task.priority == 2)), 10).rows_read == 10
    assert store.explain(Route("payments", normalize(Task.step == "x")), 10).rows_read == 100
    assert store.explain(Route("refunds"), 10).rows_read == 0
    lane = open_lane(store, charges)
    route = Route("payments", charges, lane)
    assert store.explain(route, 10).rows_read == 20
    claim(store, Route("payments"), limit=6)
    assert store.explain(route, 10).rows_read == 26
    assert store.find(Route("payments"), [State.RUNNING], 10) != []
    store.close()


def test_a_claim_by_a_lane_costs_the_same_at_any_depth(path: Path) -> None:
    """N4: neither a deep queue, nor a deep lane, nor other lanes make a claim by a lane dearer."""
    store = open_file(path)
    store.migrate()
    fill(store, 100)
    eu = normalize(REGION == "eu")
    route = Route("payments", eu, open_lane(store, eu))

    def claim_and_return() -> None:
        claimed = claim(store, route)
        placed = Placed(store.lanes.read(0).epoch, [[route.lane or 0]] * len(claimed))
        assert store.apply([GiveBack(task.lease, task.attributes) for task in claimed], placed)

    claim_and_return()
    before = steps_of(store, claim_and_return)
    store.lanes.close([open_lane(store, normalize(REGION == "us"))])
    open_lane(store, normalize(Task.step == "charge"))
    epoch = store.lanes.read(0).epoch
    fill(store, 5000, placed=Placed(epoch, [[route.lane or 0]] * 5000))
    fill(store, 5000, queue="a backlog", placed=Placed(epoch))
    assert before > 5
    assert steps_of(store, claim_and_return) <= before * 1.2
    store.close()


def steps_of(store: SqliteStore, action: Callable[[], object]) -> int:
    """How many hundreds of instructions SQLite carries out: unlike time, the same on every machine."""
    ticks = count()
    with store._connections.reading() as connection:
        connection.set_progress_handler(lambda: next(ticks) and 0, 100)
    action()
    with store._connections.reading() as connection:
        connection.set_progress_handler(None, 0)
    return next(ticks)


def test_a_claim_costs_the_same_at_any_depth(path: Path) -> None:
    """O3: neither a deep queue, nor scheduled tasks, nor another queue's backlog, nor history makes a claim dearer."""
    store = open_file(path)
    store.migrate()
    fill(store, 100)
    route = Route("payments", normalize(REGION == "eu"))

    def claim_and_return() -> None:
        assert store.apply([GiveBack(task.lease, task.attributes) for task in claim(store, route)])

    before = steps_of(store, claim_and_return)
    fill(store, 5000)
    fill(store, 5000, state=State.SCHEDULED)
    fill(store, 5000, queue="a backlog")
    assert before > 5
    assert steps_of(store, claim_and_return) <= before * 1.2
    store.close()


def test_an_empty_claim_takes_no_write_lock(path: Path) -> None:
    """O2: a claim that finds nothing answers while another program holds the write lock."""
    store = open_file(path, "?timeout=0")
    store.migrate()
    writer = connect_plainly(path)
    writer.execute("BEGIN IMMEDIATE")
    assert claim(store, Route("payments")) == []
    assert store.due(10) == []
    writer.close()
    store.close()


def test_find_pages_through_a_queue_by_its_index(store: SqliteStore) -> None:
    """A page far behind costs what the first one costs: it is found by the order's own values."""
    first = store.find(Route("payments"), [State.READY], 10)
    with recorded(store) as statements:
        store.find(Route("payments"), [State.READY], 10, after=first[-1].order_key)
    searches = [step for step in plan(store, statements[0]) if "task_dispatch" in step]
    assert searches == [
        "SEARCH task USING INDEX task_dispatch (queue=? AND (priority,created_at,ready_at,id)>(?,?,?,?))"
    ]
