"""Who works on a store, and what nobody takes."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Any

import pytest

from wiggle_core import CriteriaError, Engine, NewTask, QueueCriteria, State, Task
from wiggle_core.criteria.tree import canonical
from wiggle_core.engine.workers import Registration, forget_silent, list_workers, register, unregister
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Route
from wiggle_core.tasks.attributes import Attribute

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
HEARTBEAT = 10 * SECOND
amount = Task.attr("total", Decimal)
GOOD = Registration("new", "host", 7, (QueueCriteria("r", Task.step == "s"),), ("*",), HEARTBEAT, START).dump()


class HandClock:
    """A clock that tests move."""

    now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def engine(clock: HandClock) -> Engine:
    engine = Engine(MemoryStore(clock))
    engine.declare("orders", version=1, attributes=[Attribute("total", Decimal, "total")])
    return engine


def enqueue(engine: Engine, queue: str = "q", step: str = "charge", total: Any = None) -> str:
    return engine.enqueue(queue, step, {"total": total}, workflow="orders", version=1)


def join(engine: Engine, id: str, criteria: list[QueueCriteria], steps: tuple[str, ...] = ("*",)) -> None:
    registration = Registration(id, "host", 7, tuple(criteria), steps, HEARTBEAT, engine.store.now())
    register(engine.store, f"key of {id}", registration)


def test_registrations_round_trip(engine: Engine) -> None:
    """Section 8: id, host, criteria, handled steps and heartbeat time are known cluster-wide."""
    criteria = [QueueCriteria("q", (amount >= Decimal("1000.50")) & ~(Task.step == "ü'\"")), QueueCriteria("r")]
    join(engine, "b", criteria, ("charge", "refund"))
    join(engine, "a", criteria[:1])
    first, second = engine.workers()
    assert (first.id, second.id) == ("a", "b")
    assert second.registration.criteria == tuple(criteria)
    assert second.registration.steps == ("charge", "refund")
    assert (second.heartbeat_at, second.is_live) == (START, True)


def test_a_worker_is_live_for_three_heartbeats(engine: Engine, clock: HandClock) -> None:
    """Section 8: judged by the store's clock; a refresh makes it live again."""
    join(engine, "a", [QueueCriteria("q")])
    clock.now += 3 * HEARTBEAT - 1
    assert engine.workers()[0].is_live
    clock.now += 1
    assert not engine.workers()[0].is_live
    join(engine, "a", [QueueCriteria("q")])
    assert [worker.is_live for worker in engine.workers()] == [True]


def test_the_dead_are_forgotten(engine: Engine, clock: HandClock) -> None:
    """Section 8: a worker that was killed leaves no document for ever; one that stops leaves none at all."""
    join(engine, "a", [QueueCriteria("q")])
    join(engine, "b", [QueueCriteria("q")])
    unregister(engine.store, "key of b")
    clock.now += 360 * HEARTBEAT
    assert forget_silent(engine.store) == 0
    clock.now += 1
    assert engine.forget_workers() == 1
    assert list_workers(engine.store) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[" * 9_999,
        "{}",
        '{"heartbeat": "often"}',
        GOOD.replace('"="', '"of a newer version"'),
        GOOD.replace('["*"]', '[["*"]]'),
        GOOD.replace('"new"', "null"),
    ],
)
def test_a_registration_that_cannot_be_read_harms_nobody(
    engine: Engine, clock: HandClock, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    """Section 8: one of a newer version, or that something else wrote, is left out, named, and forgotten in time."""
    engine.store.put_document("worker", "of another", GOOD)
    assert [each.id for each in engine.workers()] == ["new"]
    engine.store.put_document("worker", "of another", body)
    assert body != GOOD
    join(engine, "a", [QueueCriteria("q")])
    enqueue(engine)
    engine.enqueue("r", "s")
    assert [each.id for each in engine.workers()] == ["a"]
    backlog = engine.backlog()
    assert ([each.queue for each in backlog.uncovered], backlog.unreadable_workers) == (["r"], ("of another",))
    assert "the registration 'of another' of a worker cannot be read" in caplog.text
    clock.now += 360 * HEARTBEAT
    assert engine.forget_workers() == 0
    clock.now += 1
    assert engine.forget_workers() == 2
    assert engine.store.list_documents("worker") == []


def test_without_workers_everything_is_uncovered(engine: Engine) -> None:
    """Section 8: the backlog by slice, and what nobody takes."""
    first = enqueue(engine)
    engine.enqueue("r", "s")
    backlog = engine.backlog(samples=1)
    assert [(each.workflow, each.version, each.queue, each.ready) for each in backlog.slices] == [
        (None, None, "r", 1),
        ("orders", 1, "q", 1),
    ]
    assert [(each.queue, each.count, each.capped) for each in backlog.uncovered] == [("q", 1, False), ("r", 1, False)]
    assert [(each.task.id, each.refusals) for each in backlog.uncovered[0].samples] == [(first, ())]


def test_covered_tasks_are_not_reported(engine: Engine, clock: HandClock) -> None:
    """Section 8: covered by any live worker, never by a dead one; `*` handles every step."""
    enqueue(engine, total=5)
    join(engine, "low", [QueueCriteria("q", amount < 10)], ("charge",))
    join(engine, "other", [QueueCriteria("r")])
    assert engine.backlog().uncovered == ()
    clock.now += 3 * HEARTBEAT
    assert [each.count for each in engine.backlog().uncovered] == [1]
    join(engine, "all", [QueueCriteria("q")])
    assert engine.backlog().uncovered == ()


def test_the_reason_is_told(engine: Engine) -> None:
    """Section 8: which condition of which criteria a task does not meet, or that its step is not handled. An absent
    value is under NOT (C2): covered by neither side of a range."""
    enqueue(engine, total=None)
    enqueue(engine, total=10)
    enqueue(engine, step="refund", total=5)
    low, high = QueueCriteria("q", (amount < 10) & (Task.attempt >= 1)), QueueCriteria("q", amount > 10)
    join(engine, "low", [low], ("charge",))
    join(engine, "low too", [low], ("charge",))
    join(engine, "high", [high], ("charge", "ship"))
    (found,) = engine.backlog().uncovered
    assert found.count == 3
    told = [
        {(refusal.workers, refusal.criteria): refusal.failed for refusal in each.refusals} for each in found.samples
    ]
    low_key = (("low", "low too"), "attr.total:decimal < 10 AND attempt >= 1")
    high_key = (("high",), "attr.total:decimal > 10")
    assert told[0] == told[1] == {low_key: "attr.total:decimal < 10", high_key: "attr.total:decimal > 10"}
    assert told[2] == {
        low_key: "the step 'refund' is not among the handled ones: 'charge'",
        high_key: "the step 'refund' is not among the handled ones: 'charge', 'ship'",
    }


def test_counts_are_capped(engine: Engine) -> None:
    """Section 8: a count stops at the cap, and says so."""
    engine.enqueue_many([])
    for _ in range(5):
        enqueue(engine)
    (found,) = engine.backlog(cap=3, samples=2).uncovered
    assert (found.count, found.capped, len(found.samples)) == (3, True, 2)


def test_equal_workers_are_asked_for_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 8: alike criteria are joined, however many workers have them and however they spell them."""
    enqueue(engine, total=50)
    for number in range(40):
        spelled = (amount < 10) & (Task.step == "charge") if number % 2 else (Task.step == "charge") & (amount < 10)
        join(engine, f"w{number:02}", [QueueCriteria("q", spelled)], ("charge",))
    (found,) = engine.backlog().uncovered
    (refusal,) = found.samples[0].refusals
    assert len(refusal.workers) == 40


def test_many_different_criteria(engine: Engine) -> None:
    """Section 8: a cluster whose workers all differ is still answered."""
    for number in range(400):
        join(engine, f"w{number}", [QueueCriteria("q", (amount == number) | (Task.node == f"n{number}"))])
    enqueue(engine, total=399)
    enqueue(engine, total=400)
    (found,) = engine.backlog().uncovered
    assert found.count == 1
    assert found.samples[0].task.attributes == {"total": 400}


class Narrow(MemoryStore):
    """A store whose queries are refused beyond a size, as those of a database are."""

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        if len(canonical(route.predicate)) > 1_000:
            raise CriteriaError("too many values in one query")
        return super().count(route, states, cap)


@pytest.mark.parametrize("cap", [2, 1_100, 10_000])
def test_more_criteria_than_one_query_takes(clock: HandClock, cap: int) -> None:
    """Section 8: then the tasks are looked at one by one, and the answer is the same."""
    narrow, wide = Engine(Narrow(clock)), Engine(MemoryStore(clock))
    told = []
    for engine in (narrow, wide):
        engine.declare("orders", version=1, attributes=[Attribute("total", Decimal, "total")])
        for number in range(100):
            join(engine, f"w{number}", [QueueCriteria("q", amount == number)])
        payloads = [{"total": number} for number in range(1_200)]
        engine.enqueue_many(NewTask("q", "s", each, "orders", 1, id=f"{each['total']:04}") for each in payloads)
        backlog = engine.backlog(cap=cap)
        told.append([(each.count, each.capped, [one.task.id for one in each.samples]) for each in backlog.uncovered])
    assert told[0] == told[1] == [(min(cap, 1_100), cap <= 1_100, ["0100", "0101", "0102"])]
    narrow.cancel("1199")
    for number in range(1_200):
        join(narrow, f"w{number}", [QueueCriteria("q", amount == number)])
    assert narrow.backlog(cap=cap).uncovered == ()
