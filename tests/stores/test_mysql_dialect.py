"""What MySQL and MariaDB do to the unwary who compare texts and read pages (MY4, MY5, MY9, MY12), on both servers: the
SQL of predicates against the reference evaluator, and the way of questions through the indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.strategies import TEXTS, Hostile
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.instants import from_micros
from wiggle_core.criteria.tree import TRUE, FieldReference, In, Predicate, normalize
from wiggle_core.stores.sql.rows import INSERTED, inserted_values
from wiggle_core.stores.store import Cancel, Route
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_mysql import open_scratch
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.dialect import WRITERS
from wiggle_store_mysql.questions import IDS_AT_ONCE
from wiggle_store_mysql.store import MySQLStore

region = Task.attr("region", str)
LONGEST = 200  # values in a list (C7)


@pytest.fixture(params=["mysql_url", "mariadb_url"])
def store(request: pytest.FixtureRequest) -> Iterator[MySQLStore]:
    opened = open_scratch(make_url(request.getfixturevalue(request.param)))
    yield opened
    opened.close()


@pytest.fixture
def session(store: MySQLStore) -> Iterator[Session]:
    with store._connections.reading() as lent:
        yield lent


def put(session: Session, tasks: Sequence[TaskRecord]) -> None:
    row = f"({', '.join(['%s'] * len(INSERTED))})"
    for task in tasks:
        session.run(f"INSERT INTO $task ({', '.join(INSERTED)}) VALUES {row}", inserted_values(task))


def selected(session: Session, predicate: Predicate) -> list[str]:
    condition = WRITERS[session.server.product].render(normalize(predicate))
    return [row[0] for row in session.rows(f"SELECT id FROM $task WHERE {condition.text} ORDER BY id", condition.binds)]


def ready(task_id: str, **fields: Any) -> TaskRecord:  # Any: fields of TaskRecord
    return TaskRecord(task_id, "q", fields.pop("step", "s"), 1, 1, **fields)


# MySQL's own default, MariaDB's own default, one that pads and one that compares bytes: as a proxy or an init_connect
# might leave them behind.
@pytest.mark.parametrize(
    "collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_unicode_520_nopad_ci"]
)
def test_predicates_mean_what_the_evaluator_says(session: Session, collation: str) -> None:
    """C8, MY4: hostile predicates over hostile tasks select what the evaluator does, by whatever collation the literals
    of the session have."""
    (known,) = session.rows("SELECT count(*) FROM information_schema.collations WHERE collation_name = %s", [collation])
    session.run("SET collation_connection = %s", [collation if known[0] else "utf8mb4_unicode_520_ci"])
    hostile, matched = Hostile(11), 0
    tasks = [hostile.task(f"{number}", "q") for number in range(64)]
    put(session, tasks)
    for _ in range(80):
        predicate = hostile.predicate()
        expected = sorted(task.id for task in tasks if matches(predicate, task))
        assert selected(session, predicate) == expected, predicate
        matched += len(expected)
    assert matched > 500


def test_every_text_equals_and_matches_itself_only(session: Session) -> None:
    """C4, MY4, MY9: no folding, padding or normalisation; the order is that of code points; wildcards, escapes,
    backslashes and quotes stand for themselves; `_` is one code point, beyond the 65,536th too."""
    texts = sorted(set(TEXTS))
    put(session, [ready(f"{each:03}", step=text, attributes={"region": text}) for each, text in enumerate(texts)])
    for each, text in enumerate(texts):
        own, up_to = [f"{each:03}"], [f"{number:03}" for number in range(each + 1)]
        pattern = text.replace("#", "##").replace("%", "#%").replace("_", "#_")
        assert selected(session, Task.step == text) == selected(session, region == text) == own
        assert selected(session, Task.step <= text) == selected(session, region <= text) == up_to
        if len(pattern) <= 255 and text.count("%") + text.count("_") <= 8:
            like = pattern if "#" in pattern else text
            escape = "#" if "#" in pattern else None
            assert selected(session, Task.step.like(like, escape)) == own
            assert selected(session, region.like(like, escape)) == own
    single = [f"{each:03}" for each, text in enumerate(texts) if len(text) == 1]
    assert selected(session, Task.step.like("_")) == selected(session, region.like("_")) == single


def test_a_list_is_as_exact_as_a_comparison(session: Session) -> None:
    """C4, C7, MY4: 200 values, the most that there are, match what each of them does, and nothing that a collation
    takes for it."""
    texts = [*(f"filler {number}" for number in range(LONGEST - 3)), "A", "a ", "\U0001f600"]
    for each in (Task.step.in_(texts), region.in_(texts)):
        assert isinstance(each, In)
        assert len(each.values) == LONGEST
    others = ["a", "A ", "filler 1 ", "\U0001f601", "é"]
    steps = [*texts[-4:], *others]
    put(session, [ready(f"{each}", step=text, attributes={"region": text}) for each, text in enumerate(steps)])
    for listed in (Task.step.in_(texts), region.in_(texts)):
        assert selected(session, listed) == ["0", "1", "2", "3"]
        assert selected(session, ~listed) == ["4", "5", "6", "7", "8"]


def test_no_stored_value_makes_a_comparison_fail(session: Session) -> None:
    """MY5: whatever stands in the column, a key is compared as a text: nothing is converted, and nothing warned of."""
    put(session, [ready("0")])
    number = Task.attr("region", int)
    for stored in (
        '"s"',
        '"1000abc"',
        "1000",
        "1e3",
        "true",
        "null",
        "[]",
        '{"a": 1}',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
    ):
        session.run("UPDATE $task SET attributes = %s", [f'{{"region": {stored}}}'])
        assert selected(session, number == 1000) == selected(session, number <= 1000) == []
        assert selected(session, region == "1000") == []
        assert selected(session, region.in_([f"{each}" for each in range(20)])) == []
        assert session.rows("SHOW WARNINGS") == []


def test_the_longest_key_is_compared_whole(session: Session) -> None:
    """C7, MY4: 256 code points of four bytes each are not cut: the last one still decides."""
    text = "\U0001f600" * 254
    put(session, [ready(end, attributes={"region": text + end, "x" * 63: 1}) for end in "ab"])
    assert selected(session, region == f"{text}a") == selected(session, region < f"{text}b") == ["a"]
    assert selected(session, region.like("%a")) == ["a"]
    assert selected(session, Task.attr("x" * 63, int) == 1) == ["a", "b"]


# How questions are answered


def test_a_page_costs_the_same_at_any_depth(store: MySQLStore) -> None:
    """MY12: a page is read from its place in the index on, without a sort, with many rows of one time before it too."""
    tasks = [
        TaskRecord(f"{number:04}", "q", "s", 10 + number // 700, 1 + number % 7, priority=number % 2)
        for number in range(2_000)
    ]
    store.enqueue(tasks[:1_000])
    store.enqueue(tasks[1_000:])
    ordered = sorted(tasks, key=lambda task: task.order_key)
    for depth in (0, 500, 1_300, 1_985):
        after = ordered[depth].order_key
        read, found = counted(store, partial(store.find, Route("q"), [State.READY], 10, after))
        assert [task.id for task in found] == [task.id for task in ordered[depth + 1 : depth + 11]]
        # Ten places in the index, the payload of each, and the starts of the four ranges behind the place.
        assert read <= 10 + 10 + 8, depth


def counted(store: MySQLStore, ask: Callable[[], Any]) -> tuple[int, Any]:  # Any: what was asked
    """How many rows the server looked at for an answer, and that."""
    asked = "SHOW SESSION STATUS LIKE 'Handler_read%%'"
    with store._connections.reading() as session:
        before = sum(int(value) for _, value in session.rows(asked))
    answer = ask()
    with store._connections.reading() as session:
        return sum(int(value) for _, value in session.rows(asked)) - before, answer


@pytest.mark.parametrize("size", [LONGEST, 2_000])
def test_no_list_makes_a_server_leave_the_index(store: MySQLStore, size: int) -> None:
    """MY1: neither a list of 200, nor one that MariaDB would make a table of, brings a sort or another index."""
    store.enqueue([ready(f"{number:03}", priority=number % 5) for number in range(600)])
    listed = In(FieldReference("priority"), tuple(range(size)))
    created = In(FieldReference("attempt"), tuple(range(size)))
    for predicate in (listed, created, normalize(listed & created), normalize(~listed | created)):
        plan = store.explain(Route("q", predicate), 10).plan
        assert any("table=task " in line and "key=task_dispatch" in line for line in plan), plan
        assert not any("filesort" in line or "temporary" in line for line in plan), plan


def test_running_tasks_are_found_without_the_ready_ones(store: MySQLStore) -> None:
    """L6: what an AMBIGUOUS claim got is asked of the RUNNING tasks of each queue, whatever lies READY."""
    store.enqueue([TaskRecord(f"{number:03}", f"q{number % 3}", "s", 1, 1) for number in range(900)])
    with store._connections.changing() as session:
        session.run("UPDATE $task SET state = 'RUNNING', token = 't', due_at = 1, lease_until = 1 WHERE id < '005'")
        session.run("ANALYZE TABLE $task")
    read, found = counted(store, lambda: store.leased("t"))
    assert [task.id for task in found] == ["000", "001", "002", "003", "004"]
    assert read < 60


def test_sweepers_and_purgers_pass_by_what_others_hold(store: MySQLStore) -> None:
    """Section 6, L7: whoever comes second waits for nothing, and gets the rows behind those that the first has locked,
    however many pages these are."""
    size = 2 * IDS_AT_ONCE + 7
    late = [TaskRecord(f"{number:04}", "q", "s", 1, 1 + number, State.SCHEDULED) for number in range(size)]
    store.enqueue(late[: size // 2])
    store.enqueue(late[size // 2 :])
    with store._connections.rolled_back() as first:
        assert len(first.rows("SELECT id FROM $task WHERE id < %s FOR UPDATE", [late[-4].id])) == size - 4
        assert [task.id for task in store.due(3)] == [task.id for task in late[-4:-1]]
    store.apply([Cancel(task.id) for task in late])
    moment = store.now() + 60_000_000
    with store._connections.rolled_back() as first:
        assert len(first.rows("SELECT id FROM $history WHERE id < %s FOR UPDATE", [late[-4].id])) == size - 4
        assert store.purge(moment, 3) == 3
    assert (store.purge(moment, 10_000), store.purge(moment, 10_000)) == (size - 3, 0)
    with store._connections.reading() as session:
        assert session.rows("SELECT count(*) FROM $payload") == [(0,)]


def test_rows_read_are_counted_one_by_one(store: MySQLStore) -> None:
    """N5: those that the predicate leaves out are counted, whether the server or its storage engine tests it."""
    steps = ["ship", "charge"] * 50
    store.enqueue([ready(f"{number:03}", step=step, priority=number // 50) for number, step in enumerate(steps)])

    def read(predicate: Predicate = TRUE) -> int | None:
        return store.explain(Route("q", normalize(predicate)), 10).rows_read

    assert read() == 10
    assert read(Task.step == "charge") == 20
    assert read(Task.step == "x") == 100
    assert read(region == "x") == 100
    assert read(Task.created_at > from_micros(1)) == 100
    assert store.explain(Route("other"), 10).rows_read == 0
    laned = Laned.over(store)
    (lane,) = laned.open(normalize(Task.step == "charge"), queue="q")
    assert store.explain(by_lane(lane), 10).rows_read == 10 + 10
