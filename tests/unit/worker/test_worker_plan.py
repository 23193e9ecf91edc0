"""What a worker is refused for at start, and the criteria that are provably vain."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from wiggle_core import (
    CriteriaError,
    Engine,
    QueueCriteria,
    Task,
    TaskRecord,
    Worker,
    WorkerRejected,
    matches,
)
from wiggle_core.criteria.tree import And, Not, Or, Predicate, normalize
from wiggle_core.engine.routes import with_steps
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.tasks.feasibility import can_match

QUEUE = "q"
region, total, flag = Task.attr("region", str), Task.attr("total", Decimal), Task.attr("flag", bool)
count, text_count = Task.attr("count", int), Task.attr("count", str)


def worker(**options: Any) -> Worker:
    given: dict[str, Any] = {"queues": [QUEUE], **options}
    made = Worker(Engine(MemoryStore()), given.pop("id", "w"), **given)
    made.task("charge")(lambda context: None)
    return made


def on_queue(predicate: Predicate) -> dict[str, Any]:
    return {"queues": None, "criteria": [QueueCriteria(QUEUE, predicate)]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": None}, "queues or criteria"),
        ({"criteria": [QueueCriteria(QUEUE)]}, "queues or criteria"),
        ({"queues": []}, "a queue to take from"),
        ({"queues": None, "criteria": []}, "a queue to take from"),
        ({"queues": ["a", "b", "a"]}, "'a' is named twice"),
        ({"queues": None, "criteria": [QueueCriteria("a"), QueueCriteria("a", Task.attempt == 1)]}, "named twice"),
        ({"queues": [f"q{number}" for number in range(33)]}, "at most 32"),
        ({"concurrency": 0}, "concurrency"),
        ({"prefetch": -1}, "prefetch"),
        ({"lease": timedelta(seconds=10)}, "cannot keep a lease"),
        ({"lease": timedelta(days=36_526)}, "at most 36525 days"),
        ({"heartbeat": timedelta(0)}, "heartbeat"),
        ({"grace": timedelta(-1)}, "grace"),
        ({"id": ""}, "needs an id"),
        ({"id": "a\0"}, "id"),
        (on_queue(Or(())), "can never match"),
        (on_queue((Task.attempt > 3) & (Task.attempt < 3)), "can never match"),
        (on_queue(Task.step == "refund"), "match no handled step"),
        (on_queue((region == "eu") & Task.step.like("ref%")), "match no handled step"),
        (on_queue(~(Task.step == "charge") | (region == "a") & (region == "b")), "match no handled step"),
    ],
)
def test_refused_at_start(options: dict[str, Any], message: str) -> None:
    """Section 8: what could not work, or could never find work, is refused at start and leaves nothing running."""
    made = worker(**options)
    for start in (made.start, made.run):
        with pytest.raises(WorkerRejected, match=message):
            start()
    assert made.engine.workers() == []


def test_one_where_a_list_is_asked_for() -> None:
    """Section 8: the slip is named, not answered by whatever Python says of the value."""
    engine = Engine(MemoryStore())
    slips: tuple[dict[str, Any], ...] = ({"queues": "payments"}, {"criteria": QueueCriteria(QUEUE)})  # Any: wrong types
    for slip in slips:
        with pytest.raises(WorkerRejected, match="is a list"):
            Worker(engine, "w", **slip)


def test_no_handler_is_refused() -> None:
    """Section 8: a worker without a handler could run nothing."""
    with pytest.raises(WorkerRejected, match="no handler"):
        Worker(Engine(MemoryStore()), "w", queues=[QUEUE]).start()


def test_two_handlers_are_refused() -> None:
    """Section 8: which of them should run?"""
    with pytest.raises(WorkerRejected, match="two handlers"):
        worker().task("charge")(lambda context: None)


def test_a_handler_that_comes_too_late_is_refused() -> None:
    """Section 8: a running worker claims by the steps it began with, so it would wait in vain."""
    late = worker()
    with late, pytest.raises(WorkerRejected, match="is running"):
        late.task("late")(lambda context: None)
    late.task("late")(lambda context: None)


@pytest.mark.parametrize("step", ["", "s" * 256, "a\0", 3])
def test_steps_that_no_task_can_have_are_refused(step: Any) -> None:
    """C7: a step's name obeys the text bounds."""
    with pytest.raises(WorkerRejected, match="step"):
        worker().task(step)(lambda context: None)


def test_bad_queue_names_are_refused() -> None:
    """C6: with the path of the offender; one text in place of a list is no list of letters."""
    with pytest.raises(CriteriaError, match="/queue"):
        worker(queues=["a\n"]).start()
    with pytest.raises(WorkerRejected, match="list of names"):
        worker(queues="payments")


def test_running_twice_is_refused() -> None:
    """Section 8: one worker, one shift; after a stop it may start again."""
    made = worker()
    with made, pytest.raises(WorkerRejected, match="is running"):
        made.start()
    with made:
        assert len(made.engine.workers()) == 1


NEVER: list[Predicate] = [
    Or(()),
    Task.step.in_([]),
    Task.kind.is_null(),
    Task.attempt < 1,
    Task.priority < 0,
    Task.priority > 2**31,
    (region == "a") & (region == "b"),
    (region == "a") & ~(region == "a"),
    (region > "a") & ~(region > "a"),
    (region == "a") & region.is_null(),
    (region > "a") & region.is_null(),
    (region == "a") & region.like("b%"),
    region.in_(["a", "b"]) & region.in_(["c", "d"]),
    (total > 5) & (total <= 5),
    (total >= Decimal("5.0000000000000000000000000000000000001")) & (total <= 5),
    total.between(9, 3),
    (count == 5) & (text_count == "5"),
    (count > 5) & text_count.is_not_null(),
    (flag == True) & (flag == False),  # noqa: E712  # it is a predicate
    ((region == "a") | (region == "b")) & ((region == "c") | (region == "d")),
    (Task.created_at > datetime(2030, 1, 1, tzinfo=timezone.utc))
    & (Task.created_at < datetime(2029, 1, 1, tzinfo=timezone.utc)),
    Task.version.is_null() & (Task.version == 1),
]

SOMETIMES: list[Predicate] = [
    And(()),
    Task.attempt == 1,
    Task.attempt <= 1,
    Task.priority.between(2**31 - 1, 2**31 - 1),
    region.is_null() & ~(region == "a"),
    ~(region == "a") & ~(region == "b"),
    (total >= 5) & (total <= 5),
    (count > 5) & text_count.is_null(),
    ~(count > 5) & ~(count <= 5),
    (region == "a") & (Task.attr("other", str) == "b"),
    (total == 5) & (Task.attr("total", int) == 5),
    ((region == "a") | (region == "b")) & ((region == "b") | (region == "c")),
    Task.node.is_null(),
    ~Task.version.is_null(),
    Task.step.like("%"),
]


@pytest.mark.parametrize("predicate", NEVER, ids=str)
def test_plain_contradictions_are_seen(predicate: Predicate) -> None:
    """Section 8: criteria that can never match."""
    assert not can_match(normalize(predicate))


@pytest.mark.parametrize("predicate", SOMETIMES, ids=str)
def test_what_can_match_is_never_refused(predicate: Predicate) -> None:
    """Section 8: a worker with an odd but possible wish starts; negation and absence are as C2 has them."""
    assert can_match(normalize(predicate))


def test_whatever_matches_some_task_can_match() -> None:
    """Section 8: over random predicates and every task of a small world, a refusal is never wrong."""
    values = [None, "a", "b", 1, 2, Decimal("1.5"), True]
    world = [
        TaskRecord(
            id="t",
            queue=QUEUE,
            step=step,
            created_at=0,
            ready_at=0,
            node=node,
            attributes={} if value is None else {"x": value},
        )
        for step, node, value in product(["a", "b"], [None, "a"], values)
    ]
    rng = random.Random(3)
    refused = 0
    for _ in range(3_000):
        predicate = normalize(random_predicate(rng, 3))
        if not can_match(predicate):
            refused += 1
            assert not any(matches(predicate, task) for task in world), predicate
    assert refused > 100


def random_predicate(rng: random.Random, depth: int) -> Predicate:
    if depth and rng.random() < 0.7:
        parts = tuple(random_predicate(rng, depth - 1) for _ in range(rng.choice([2, 2, 3])))
        kinds: list[Predicate] = [And(parts), Or(parts), Not(parts[0])]
        return rng.choice(kinds)
    text: Any = rng.choice([Task.step, Task.node, Task.attr("x", str)])
    number: Any = rng.choice([Task.attr("x", int), Task.attr("x", Decimal)])
    leaves: list[Predicate] = [
        text == rng.choice("ab"),
        text != rng.choice("ab"),
        text < rng.choice("ab"),
        text.like(rng.choice(["a%", "_", "%b", "aa%"])),
        text.in_(rng.sample("abc", 2)),
        text.is_null(),
        number > rng.choice([0, 1, 2]),
        number <= rng.choice([0, 1, 2]),
        number.between(1, rng.choice([0, 1, 2])),
        number.is_null(),
        Task.attr("x", bool) == True,  # noqa: E712  # it is a predicate
    ]
    leaf = rng.choice(leaves)
    return Not(leaf) if rng.random() < 0.3 else leaf


def test_a_predicate_of_many_branches_is_let_pass_soon() -> None:
    """Section 8: what cannot be decided cheaply passes, also where 2^14 ways would have to be looked at."""
    pairs = [(Task.attr(f"a{number}", int) == 1) | (Task.attr(f"b{number}", int) == 1) for number in range(14)]
    assert can_match(normalize(And((*pairs, (region == "a") & (region == "b")))))


def test_more_steps_than_a_list_may_hold() -> None:
    """Section 8: the handled steps join each criteria, however many there are; C7's limits are for what users write."""
    made = worker()
    for number in range(500):
        made.task(f"step {number}")(lambda context: None)
    with made:
        assert len(made.engine.workers()[0].registration.steps) == 501
    joined = with_steps(QueueCriteria(QUEUE, region == "a").normal, [f"step {number}" for number in range(500)])
    task = TaskRecord(id="t", queue=QUEUE, step="step 499", created_at=0, ready_at=0, attributes={"region": "a"})
    assert matches(joined, task)
