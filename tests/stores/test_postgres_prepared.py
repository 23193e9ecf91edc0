"""The plans that PostgreSQL keeps for prepared claims: the same whatever the values, the statistics and the number of
executions; and where nothing may be prepared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from psycopg.sql import Literal

from tests.stores.postgres_schemas import open_url, with_options
from tests.stores.test_postgres_plans import REGION, SHAPES, claim, fill, filled_url, require_walk
from wiggle_core.criteria.tree import normalize
from wiggle_core.stores.store import Finish, GiveBack, Route
from wiggle_core.tasks.task import State
from wiggle_store_postgres.claims import statement_for
from wiggle_store_postgres.connections import Session
from wiggle_store_postgres.store import PostgresStore

__all__ = ["filled_url"]  # a fixture

LANE = 17
_LANE_ROWS = """
    INSERT INTO $schema.lane_task (lane, priority, created_at, ready_at, id, ready_no)
    SELECT $1::bigint, priority, created_at, ready_at, id, ready_no FROM $schema.task
    WHERE queue = 'payments' AND state = 'READY' ON CONFLICT DO NOTHING
"""
_KEPT = "SELECT name, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%picked%'"


@pytest.fixture
def store(filled_url: str) -> Iterator[PostgresStore]:
    opened = open_url(with_options(filled_url, pool_size="1"))
    yield opened
    opened.close()


def plan_of(session: Session, name: str, binds: Sequence[object]) -> list[str]:
    """How a prepared statement is carried out."""
    values = ", ".join(Literal(bind).as_string(session.connection) for bind in binds)
    return [line for (line,) in session.rows(f"EXPLAIN EXECUTE {name}({values})")]


def plan_for_all_values(store: PostgresStore, route: Route, limit: int) -> list[str]:
    """The plan that PostgreSQL would keep for claims by a route."""
    statement = statement_for((route,), limit)
    binds = ("worker", "token", None, 30_000_000, limit, *statement.binds)
    with store._connections.rolled_back() as session:
        session.run("SET LOCAL plan_cache_mode = force_generic_plan")
        session.run(f"PREPARE trial AS {statement.text}")
        plan = plan_of(session, "trial", binds)
        session.run("DEALLOCATE trial")
    return plan


@pytest.mark.parametrize("limit", [1, 10, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_plan_for_all_values_is_a_walk_too(store: PostgresStore, shape: str, limit: int) -> None:
    """PG5, PG6: a plan made without its values is the walk by the dispatch index, whatever the statistics."""
    require_walk(plan_for_all_values(store, Route("payments", normalize(SHAPES[shape])), limit))


@pytest.mark.parametrize("shape", ["all", "attribute", "negated", "prefix"])
def test_the_seventh_execution_is_planned_like_the_first(store: PostgresStore, shape: str) -> None:
    """PG6: claims are prepared, and the plan that is kept is the walk."""
    route = Route("payments", normalize(SHAPES[shape]))
    for limit in (8, 6, 7, 8, 8, 5, 8, 8, 8, 8, 8, 8):  # one statement: the power of two above
        held = claim(store, route, limit=limit)
        store.apply([GiveBack(task.lease, task.attributes) for task in held])
    with store._connections.reading() as session:
        ((name, _),) = session.rows(_KEPT)
        binds = ("worker", "token", None, 30_000_000, 8, *statement_for((route,), 8).binds)
        require_walk(plan_of(session, name, binds))


def test_a_claim_without_criteria_is_planned_once(store: PostgresStore) -> None:
    """PG6: PostgreSQL keeps the plan of what has no values to plan for, however deep the queue."""
    for _ in range(14):
        held = claim(store, Route("payments"), limit=10)
        store.apply([GiveBack(task.lease, task.attributes) for task in held])
    with store._connections.reading() as session:
        ((_, plans),) = session.rows(_KEPT)
    assert plans >= 3


def test_enqueues_and_settlements_are_planned_once(store: PostgresStore) -> None:
    """PG5, PG6, L7: the plans kept for the statements of a working day find tasks by their ids alone."""
    for _ in range(14):
        fill(store, 1, queue="day")
        (held,) = claim(store, Route("day"), limit=1)
        store.extend([held.lease], 30_000_000)
        store.apply([Finish(held.lease, State.DONE)])
    with store._connections.reading() as session:
        kept = session.rows("SELECT name, statement, parameter_types, generic_plans FROM pg_prepared_statements")
        assert len(kept) == 4
        for name, statement, types, plans in kept:
            assert plans >= 3, statement
            plan = "\n".join(plan_of(session, name, [None] * len(types)))
            used = set(re.findall(r"Index Scan using (\w+) on task", plan))
            assert used <= {"task_dispatch" if "picked" in statement else "task_id", "task_id"}, plan
            assert "Seq Scan on task" not in plan


def test_a_claim_by_a_lane_is_planned_once(store: PostgresStore) -> None:
    """PG5, PG6: the plan of a claim by a lane reads the lane's head and finds tasks by their ids."""
    with store._connections.changing() as session:
        session.run(_LANE_ROWS, (LANE,))
    route = Route("payments", normalize(REGION == "eu"), LANE)
    text = "\n".join(plan_for_all_values(store, route, 10))
    assert "Seq Scan on task" not in text
    assert "Seq Scan on lane_task" not in text
    assert "Index Scan using task_dispatch" not in text
    head = text.partition("CTE picked")[2].partition("CTE met_0")[0]
    assert "using lane_task_key on lane_task" in head
    assert "Sort" not in head


def test_a_long_list_is_planned_for_its_values(store: PostgresStore) -> None:
    """PG6: a list that is looked up by hash, which takes a plan that knows it, is not prepared."""
    for _ in range(7):
        held = claim(store, Route("payments", normalize(SHAPES["long list"])), limit=2)
        store.apply([GiveBack(task.lease, task.attributes) for task in held])
    with store._connections.reading() as session:
        assert session.rows(_KEPT) == []


@pytest.mark.parametrize(
    "options",
    [{"pgbouncer": "1"}, {"options": "-c enable_sort=on"}, {"options": "-c plan_cache_mode=force_generic_plan"}],
)
def test_nothing_is_prepared_without_our_settings(filled_url: str, options: dict[str, str]) -> None:
    """PG6, PG7, PG16: where the session is not ours or plans by other settings, nothing is prepared."""
    store = open_url(with_options(filled_url, pool_size="1", **options))
    for _ in range(7):
        held = claim(store, Route("payments", normalize(REGION == "eu")), limit=2)
        assert len(held) == 2
        store.apply([GiveBack(task.lease, task.attributes) for task in held])
    with store._connections.reading() as session:
        assert session.rows("SELECT name FROM pg_prepared_statements") == []
    store.close()


def test_a_prepared_claim_outlives_a_change_of_its_table(filled_url: str) -> None:
    """PG6: when a migration adds a column or an index, the statements kept by older sessions are planned again."""
    store = open_url(with_options(filled_url, pool_size="1"))
    fill(store, 20, queue="changed")
    assert len(claim(store, Route("changed"), limit=8)) == 8
    with store._connections.transaction() as session:
        session.run("ALTER TABLE $schema.task ADD COLUMN trial bigint NOT NULL DEFAULT 0")
    assert len(claim(store, Route("changed"), limit=8)) == 8
    with store._connections.transaction() as session:
        session.run("ALTER TABLE $schema.task DROP COLUMN trial")
    assert len(claim(store, Route("changed"), limit=8)) == 4
    store.close()
