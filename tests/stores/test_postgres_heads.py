"""Claims by a head on PostgreSQL (PG4): planned by the bound whatever the statistics, and quick beside a transaction
that holds an old snapshot, for as long as it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from uuid import uuid4

import pytest

from tests.stores.postgres_schemas import connect_plainly, fresh_role, fresh_schema, open_url, with_options
from tests.stores.test_postgres_plans import AS_SHIPPED, HOSTILE, REGION, SHAPES, filled_url, store
from tests.stores.test_postgres_prepared import plan_for_all_values
from wiggle_core.conformance.heads import open_head
from wiggle_core.conformance.laned import Laned
from wiggle_core.conformance.plugin import make_task
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.tree import normalize
from wiggle_core.engine.engine import Engine
from wiggle_core.engine.routes import route_of
from wiggle_core.lanes import keeper
from wiggle_core.lanes.heads import head_of
from wiggle_core.stores.lanes import Lane, LaneState
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import ClaimRequest, Explanation, GiveBack, Route
from wiggle_core.tasks.outcome import Done
from wiggle_core.tasks.submission import NewTask
from wiggle_store_postgres.store import PostgresStore

__all__ = ["filled_url", "store"]  # fixtures

QUEUE = "payments"


def by_head(store: PostgresStore, shape: str = "all") -> Route:
    head = open_head(Laned.over(store), make_task(queue=QUEUE, priority=1, created_at=3_000))
    return Route(QUEUE, normalize(SHAPES[shape]), head=head)


def require_head(plan: Sequence[str]) -> None:
    """What is before the bound comes from the lane's key in its order, with each task by its id; the dispatch index is
    entered at the bound, and read in its order."""
    text = "\n".join(plan)
    assert "Seq Scan on task" not in text, text
    assert "Seq Scan on lane_task" not in text, text
    head, _, after = text.partition("CTE head_0")[2].partition("CTE walk_0")
    assert re.findall(r"Index Scan using (\w+)", head) == ["lane_task_key", "task_id"], text
    assert "Sort" not in head, text
    walk, _, lease = after.partition("CTE picked")
    assert re.findall(r"Index Scan using (\w+)", walk) == ["task_dispatch"], text
    assert re.search(r"Index Cond: \(\(queue = .+\) AND \(ROW\(priority, created_at\) >= ROW\(", walk), text
    assert "Sort" not in walk.partition("->  Index Scan using task_dispatch")[0], text
    assert set(re.findall(r"Scan using (\w+) on task", lease)) == {"task_id"}, text


@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_by_a_head_enters_the_index_at_the_bound(store: PostgresStore, shape: str) -> None:
    """PG4, PG5: whatever the predicate and the statistics, what is before the bound is not visited by the walk."""
    for limit in (1, 10, 100):
        require_head(store.explain(by_head(store, shape), limit).plan)


@pytest.mark.parametrize("limit", [1, 10, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_plan_for_all_values_enters_it_there_too(store: PostgresStore, shape: str, limit: int) -> None:
    """PG4, PG6: so does a plan that is kept for any bound."""
    require_head(plan_for_all_values(store, by_head(store, shape), limit))


@pytest.mark.parametrize("switches", HOSTILE)
def test_planner_switches_of_the_role_do_not_matter(store: PostgresStore, filled_url: str, switches: str) -> None:
    """PG5: switches that were set for the role or the database give way to ours."""
    chosen = by_head(store, "attribute")
    with (
        fresh_role(filled_url, f"hostile_{uuid4().hex[:8]}", *HOSTILE[switches]) as url,
        closing(open_url(url)) as other,
    ):
        require_head(other.explain(chosen, 10).plan)


def test_behind_a_pooler_a_claim_brings_its_settings(store: PostgresStore, filled_url: str) -> None:
    """PG7, PG16: where no session is ours, the planner is held to the index all the same."""
    chosen = by_head(store, "attribute")
    with closing(open_url(with_options(filled_url, pgbouncer="1", options=AS_SHIPPED))) as pooled:
        require_head(pooled.explain(chosen, 10).plan)


def test_heads_that_moved_share_a_plan(filled_url: str) -> None:
    """PG6: claims by one head and by the next are one prepared statement, planned once."""
    with closing(open_url(with_options(filled_url, pool_size="1"))) as opened:
        laned = Laned.over(opened)
        for turn in range(14):
            head = open_head(laned, make_task(queue=QUEUE, priority=0, created_at=100 + turn))
            held = opened.claim(ClaimRequest("w", uuid4().hex, 1_000, 10, (Route(QUEUE, head=head),)))
            laned.apply([(GiveBack(task.lease, task.attributes), task) for task in held])
            laned.close(laned.book.known.lanes[head.lane])
        with opened._connections.reading() as session:
            ((plans,),) = session.rows(
                "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '%head_0%'"
            )
        assert plans >= 3


def test_lanes_beside_a_head_keep_their_rules(store: PostgresStore) -> None:
    """N4, O1: a claim by a head on one queue, a lane on another and a walk on a third is one statement."""
    laned = Laned.over(store)
    (lane,) = laned.open(REGION == "eu", queue="refunds")
    chosen = (by_head(store), Route("refunds", lane.predicate, lane.id), Route("none"))
    held = store.claim(ClaimRequest("w", uuid4().hex, 30_000_000, 50, chosen))
    assert [task.order_key for task in held] == sorted(task.order_key for task in held)
    assert len(held) == 50
    assert {task.queue for task in held} == {QUEUE, "refunds"}
    laned.release(held)


# Beside a held snapshot

BATCH = 500


class Day:
    """An engine at work on a queue of its own schema, and what its keeper did."""

    def __init__(self, url: str) -> None:
        self.store = open_url(url)
        self.engine = Engine(Replaying(self.store))
        self.criteria = QueueCriteria("q")

    def work(self, batches: int, *, backlog: int = 0) -> None:
        """Enqueue, claim and finish batches of tasks, with so many READY in the end."""
        self.engine.enqueue_many(NewTask("q", "s", priority=1) for _ in range(backlog))
        for _ in range(batches):
            self.engine.enqueue_many(NewTask("q", "s", priority=1) for _ in range(BATCH))
            held = self.engine.claim("w", [self.criteria], limit=BATCH)
            assert len(held) == BATCH
            self.engine.settle_many([(task, Done()) for task in held])

    def heads(self) -> list[Lane]:
        return [info.lane for info in self.engine.lanes.infos() if head_of(info.lane) is not None]

    def explained(self) -> Explanation:
        route = route_of(self.criteria)
        head = self.engine.lanes.verdict(route).head
        return self.store.explain(Route(route.queue, route.predicate, head=head), 10)

    def passed(self) -> tuple[int, int]:
        """The pages that walks pass by as they go now, and as they would without a head."""
        head = self.engine.lanes.verdict(route_of(self.criteria)).head
        return self.store.lanes.passed("q", head), self.store.lanes.passed("q", None)


@pytest.fixture
def new_day(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Day]]:
    """Opens one engine after another on one schema. Their keepers look at heads whenever they are called."""
    monkeypatch.setattr(keeper, "HEAD_SECONDS", 0.0)
    days: list[Day] = []
    with fresh_schema(postgres_url) as url:
        with closing(open_url(url)) as first:
            first.migrate()

        def open_one() -> Day:
            days.append(Day(url))
            return days[-1]

        yield open_one
        for day in days:
            day.engine.close()


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """A transaction that has read something, and then does nothing."""
    with connect_plainly(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("backlog", [300, 0], ids=["behind", "keeping up"])
def test_the_head_of_a_queue_moves_on(new_day: Callable[[], Day], postgres_url: str, backlog: int) -> None:
    """PG4, N1: while a snapshot is held, a worker's care opens a head once walks pass by much, moves it when they do
    again, and closes the one before; claims find all that a walk would, and pass by little. When the snapshot is gone
    and the table vacuumed, the head closes."""
    day = new_day()
    with held_snapshot(postgres_url):
        day.work(1, backlog=backlog)
        day.engine.lanes.care()
        assert day.heads() == []
        seen: list[Lane] = []
        for _ in range(3):
            day.work(14)
            by_now, without = day.passed()
            assert by_now >= keeper.MOVED_PAGES
            day.engine.lanes.care()
            [lane] = day.heads()
            assert (lane.state, "walks had passed by" in lane.reason) == (LaneState.OPEN, True)
            assert lane.id not in [each.id for each in seen]
            seen.append(lane)
            by_now, again = day.passed()
            assert by_now < keeper.MOVED_PAGES / 3 < without <= again
        urgent = day.engine.enqueue("q", "s", priority=0)
        day.engine.enqueue("q", "s", priority=2)
        held = day.engine.claim("w", [day.criteria], limit=1_000)
        assert len(held) == backlog + 2
        assert held[0].id == urgent
        assert day.store.audit() == []
        day.engine.lanes.note_use()
        assert [lane.hits > 0 for lane in day.heads()] == [True]
    with connect_plainly(postgres_url) as connection:
        connection.execute(f"VACUUM {day.store._place.schema}.task".encode())
    day.engine.lanes._tidied_at = float("-inf")
    day.engine.lanes.care()
    assert day.heads() == []


def test_several_workers_move_one_head(new_day: Callable[[], Day], postgres_url: str) -> None:
    """PG4, N3: the head that one worker opened is used by the others, who do not move it again; one that they opened
    at once is closed but for the last."""
    one, two = new_day(), new_day()
    with held_snapshot(postgres_url):
        one.work(14, backlog=300)
        two.work(1)
        one.engine.lanes.care()
        [lane] = one.heads()
        two.engine.lanes.care()
        assert [each.id for each in two.heads()] == [lane.id]
        assert two.passed() == one.passed()
        assert "head_0" in two.explained().sql
        open_head(Laned.over(two.store), make_task(queue="q"))
        two.work(14)
        two.engine.lanes.care()
        [last] = two.heads()
        assert last.id > lane.id + 1
        one.work(1)
        assert one.store.audit() == []
