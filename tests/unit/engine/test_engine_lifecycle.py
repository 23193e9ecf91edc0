"""From claim to history: settling by the retry policy, promotion, expiry, cancel, revival, retention."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from wiggle_core import (
    AttributeMiss,
    CriteriaError,
    Done,
    Engine,
    Fail,
    LeaseLost,
    Miss,
    NewTask,
    QueueCriteria,
    Release,
    Retry,
    RetryPolicy,
    State,
    Task,
    TaskRecord,
    TaskRejected,
)
from wiggle_core.engine.sweeper import Swept
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.tasks.attributes import Attribute

START = 1_800_000_000_000_000
SECOND = 1_000_000
ALL = QueueCriteria("q")
PLAIN = RetryPolicy(max_attempts=3, initial_backoff=timedelta(seconds=10), jitter=0)


class HandClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def engine(clock: HandClock) -> Engine:
    return Engine(MemoryStore(clock))


def claim_one(engine: Engine, criteria: QueueCriteria = ALL) -> TaskRecord:
    (task,) = engine.claim("w", [criteria])
    return task


def stored(engine: Engine, task_id: str) -> TaskRecord:
    task = engine.get(task_id)
    assert task is not None
    return task


def retry_late(engine: Engine, clock: HandClock) -> None:
    engine.settle(claim_one(engine), Retry(delay=timedelta(seconds=1)))
    clock.pass_seconds(1)
    engine.sweep()


def expire(engine: Engine, clock: HandClock) -> None:
    claim_one(engine)
    clock.pass_seconds(30)
    engine.sweep()


def test_done_keeps_the_result(engine: Engine, clock: HandClock) -> None:
    """L5: a settled task is in history with outcome and times."""
    task_id = engine.enqueue("q", "s")
    task = claim_one(engine)
    clock.pass_seconds(1)
    engine.settle(task, Done({"total": 3, "name": "ü"}))
    done = stored(engine, task_id)
    assert (done.state, done.result, done.finished_at) == (State.DONE, '{"total":3,"name":"ü"}', START + SECOND)


@pytest.mark.parametrize("outcome", [Done(), Fail("no"), Retry(), Release()])
def test_a_stale_lease_settles_nothing(engine: Engine, outcome: Any) -> None:
    """L2: a stale token changes nothing, and its holder is told."""
    engine.enqueue("q", "s")
    first = claim_one(engine)
    engine.settle(first, Release())
    second = claim_one(engine)
    with pytest.raises(LeaseLost) as lost:
        engine.settle(first, outcome)
    assert lost.value.task_id == first.id
    assert engine.settle_many([(first, outcome), (second, Done())]) == {second.id}


class BrokenMapping(dict[str, int]):
    """As a lazy row of a database may be."""

    def items(self) -> Any:  # Any: it returns nothing
        raise ConnectionError("the session is closed")


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Done({1}), "result"),
        (Done(float("nan")), "result"),
        (Done(BrokenMapping(a=1)), "result"),
        (Retry(delay=timedelta(-1)), "delay"),
        (Retry(delay=timedelta.max), "delay"),
        (Retry(delay=timedelta(days=36_526)), "delay"),
        (Fail(3), "error"),  # type: ignore[arg-type]  # what is refused
    ],
)
def test_a_bad_outcome_is_refused(engine: Engine, outcome: Any, field: str) -> None:
    """Section 8: a result that is no JSON is a clear error, and the lease is still held."""
    engine.enqueue("q", "s")
    task = claim_one(engine)
    with pytest.raises(TaskRejected) as refused:
        engine.settle(task, outcome)
    assert refused.value.field == field
    engine.settle(task, Done())


def test_retry_follows_the_policy_kept_with_the_task(engine: Engine, clock: HandClock) -> None:
    """L3: attempts grow, back-off doubles, and after the last one the task is FAILED with its error."""
    task_id = engine.enqueue("q", "s", retry=PLAIN)
    for attempt, wait in [(1, 10), (2, 20)]:
        task = claim_one(engine)
        assert task.attempt == attempt
        engine.settle(task, Retry(f"error {attempt}"))
        waiting = stored(engine, task_id)
        assert (waiting.state, waiting.ready_at) == (State.SCHEDULED, clock.now + wait * SECOND)
        assert waiting.error == f"error {attempt}"
        clock.pass_seconds(wait - 1)
        assert engine.sweep().promoted == 0
        clock.pass_seconds(1)
        assert engine.sweep() == Swept(promoted=1)
    engine.settle(claim_one(engine), Retry("error 3"))
    failed = stored(engine, task_id)
    assert (failed.state, failed.error, failed.attempt) == (State.FAILED, "error 3", 3)


def test_an_explicit_delay_goes_before_the_policy(engine: Engine, clock: HandClock) -> None:
    """Section 8: Retry(delay=...) says when; zero is at once."""
    engine.enqueue("q", "s", retry=PLAIN)
    engine.settle(claim_one(engine), Retry(delay=timedelta(0)))
    task = claim_one(engine)
    assert task.attempt == 2
    engine.settle(task, Retry(delay=timedelta(seconds=3)))
    assert stored(engine, task.id).ready_at == clock.now + 3 * SECOND


def test_release_keeps_attempt_and_place(engine: Engine, clock: HandClock) -> None:
    """L3: RELEASE keeps the attempt and ready_at."""
    engine.enqueue("q", "s", id="a")
    clock.pass_seconds(5)
    engine.settle(claim_one(engine), Release())
    released = stored(engine, "a")
    assert (released.state, released.attempt, released.ready_at) == (State.READY, 1, START)


def test_error_text_is_bounded_and_storable(engine: Engine) -> None:
    """C7: no store can hold U+0000 or a lone surrogate, and nobody reads a megabyte of error."""
    engine.enqueue("q", "s", id="a")
    engine.settle(claim_one(engine), Fail("a\0b\ud800c" + "x" * 5_000))
    error = stored(engine, "a").error
    assert error is not None
    assert error.startswith("a\ufffdb?c")
    assert len(error) == 2_000


def test_an_expired_lease_follows_the_policy(engine: Engine, clock: HandClock) -> None:
    """L3: expiry counts as a failed run, by the policy that any node's sweeper finds with the task."""
    engine.enqueue("q", "s", id="a", retry=RetryPolicy(max_attempts=2, initial_backoff=timedelta(0)))
    held = claim_one(engine)
    clock.pass_seconds(29.9)
    assert engine.sweep() == Swept()
    clock.pass_seconds(0.1)
    assert Engine(engine.store).sweep() == Swept(retried=1)
    with pytest.raises(LeaseLost):
        engine.settle(held, Done())
    again = claim_one(engine)
    assert again.attempt == 2
    clock.pass_seconds(30)
    assert engine.sweep() == Swept(failed=1)
    assert (stored(engine, "a").state, stored(engine, "a").error) == (State.FAILED, "the lease ran out")


def test_extend_keeps_a_lease(engine: Engine, clock: HandClock) -> None:
    """L2: extend answers with those that held, and moves their end."""
    engine.enqueue("q", "s")
    task = claim_one(engine)
    clock.pass_seconds(20)
    assert engine.extend([task.lease]) == {task.lease}
    clock.pass_seconds(20)
    assert engine.sweep() == Swept()
    engine.settle(task, Done())
    assert engine.extend([task.lease]) == set()
    assert engine.extend([]) == set()


def test_cancel_takes_any_live_task(engine: Engine) -> None:
    """Section 8: a running one too; its holder finds the lease lost."""
    engine.enqueue("q", "s", id="ready")
    task = claim_one(engine)
    engine.enqueue("q", "s", id="later", delay=timedelta(hours=1))
    assert [engine.cancel("ready"), engine.cancel("later"), engine.cancel("ready"), engine.cancel("none")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(LeaseLost):
        engine.settle(task, Done())
    assert engine.count(ALL) == 0


def test_retry_revives_from_history(engine: Engine, clock: HandClock) -> None:
    """Section 8: `task retry` brings a FAILED or CANCELLED task back, attempt 1, READY now."""
    engine.enqueue("q", "s", id="a", retry=RetryPolicy(max_attempts=1))
    engine.settle(claim_one(engine), Retry("no"))
    clock.pass_seconds(9)
    assert engine.retry("a")
    task = claim_one(engine)
    assert (task.attempt, task.ready_at, task.error) == (1, clock.now, None)
    assert not engine.retry("a")
    engine.settle(task, Done())
    assert not engine.retry("a")
    assert not engine.retry("none")


def test_retention(engine: Engine, clock: HandClock) -> None:
    """L4, L5: history is kept for the retention, and an id for ten minutes whatever it is."""
    engine.enqueue("q", "s", id="a")
    engine.settle(claim_one(engine), Done())
    clock.pass_seconds(24 * 3600)
    assert engine.sweep() == Swept()
    clock.pass_seconds(0.000001)
    assert engine.sweep() == Swept(purged=1)
    assert engine.get("a") is None

    hasty = Engine(engine.store, settings=engine.settings.model_copy(update={"history_retention_seconds": 0}))
    hasty.enqueue("q", "s", id="b")
    hasty.settle(claim_one(hasty), Done())
    clock.pass_seconds(600)
    assert hasty.sweep() == Swept()
    assert hasty.enqueue("q", "s", id="b") == "b"
    assert hasty.count(ALL) == 0
    clock.pass_seconds(0.000001)
    assert hasty.sweep() == Swept(purged=1)


def test_sweep_is_bounded(engine: Engine, clock: HandClock) -> None:
    """Section 8: one pass moves at most `limit`, and two nodes get different tasks."""
    for number in range(5):
        engine.enqueue("q", "s", number, delay=timedelta(seconds=1))
    clock.pass_seconds(1)
    assert [engine.sweep(2).promoted, Engine(engine.store).sweep(2).promoted, engine.sweep(2).promoted] == [2, 2, 1]


def test_claim_is_planned(engine: Engine) -> None:
    """O1: the order holds over all criteria together; a queue twice is refused, what matches nothing is left out."""
    for number, queue in enumerate("abab"):
        engine.enqueue(queue, "s", number, priority=3 - number)
    got = engine.claim("w", [QueueCriteria("a"), QueueCriteria("b", Task.step == "s")], limit=3)
    assert [(task.queue, task.priority) for task in got] == [("b", 0), ("a", 1), ("b", 2)]
    assert engine.claim("w", [QueueCriteria("a", Task.step.in_([]))]) == []
    with pytest.raises(CriteriaError, match="named twice"):
        engine.claim("w", [QueueCriteria("a"), QueueCriteria("a", Task.step == "s")])
    with pytest.raises(ValueError, match="limit"):
        engine.claim("w", [ALL], limit=0)
    for lease in (timedelta(0), timedelta(days=36_526)):
        with pytest.raises(ValueError, match="lease"):
            engine.claim("w", [ALL], lease=lease)


@pytest.mark.parametrize(
    "make_ready",
    [
        pytest.param(lambda engine, clock: engine.settle(claim_one(engine), Retry(delay=timedelta(0))), id="retry"),
        pytest.param(lambda engine, clock: engine.settle(claim_one(engine), Release()), id="release"),
        pytest.param(retry_late, id="promotion"),
        pytest.param(expire, id="expiry"),
        pytest.param(lambda engine, clock: (engine.cancel("a"), engine.retry("a")), id="revival"),
    ],
)
def test_attributes_are_read_each_time_a_task_becomes_ready(
    engine: Engine, clock: HandClock, make_ready: Callable[[Engine, HandClock], object]
) -> None:
    """A2: read every time the step becomes ready, so that a declaration made meanwhile counts; and subscribers who
    match what was read are woken."""
    engine.enqueue("q", "s", {"n": 5}, id="a", workflow="w", version=1, retry=RetryPolicy(initial_backoff=timedelta(0)))
    woken: list[str] = []
    engine.subscribe(QueueCriteria("q", Task.attr("n", int) == 5), lambda: woken.append("n"))
    engine.subscribe(QueueCriteria("q", Task.attr("n", int) == 6), lambda: woken.append("other"))
    Engine(engine.store).declare("w", version=1, attributes=[Attribute("n", int, "n")])
    make_ready(engine, clock)
    task = stored(engine, "a")
    assert (task.state, task.attributes) == (State.READY, {"n": 5})
    assert woken == ["n"]


def test_what_is_declared_and_absent_is_counted(engine: Engine, clock: HandClock) -> None:
    """A3: by workflow version, attribute and reason, each time that a payload is read."""
    declared = [Attribute("n", int, "n"), Attribute("s", str, "s")]
    for version in (1, 2):
        engine.declare("w", version=version, attributes=declared)
    engine.enqueue("q", "s", {"n": 1, "s": "x"}, workflow="w", version=1)
    engine.enqueue("q", "s", {}, workflow="w", version=3)
    assert engine.attribute_misses() == {}
    engine.enqueue_many(NewTask("r", "s", {"n": "x", "s": None}, "w", 1) for _ in range(3))
    before = engine.attribute_misses()
    unfit, unresolved = AttributeMiss("w", 1, "n", Miss.UNFIT), AttributeMiss("w", 1, "s", Miss.UNRESOLVED)
    assert before == {unfit: 3, unresolved: 3}
    engine.enqueue("q", "s", {"s": 1, "n": 1}, workflow="w", version=2, delay=timedelta(seconds=1))
    clock.pass_seconds(1)
    assert engine.sweep() == Swept(promoted=1)
    engine.settle(claim_one(engine, QueueCriteria("r")), Release())
    other = AttributeMiss("w", 2, "s", Miss.UNFIT)
    assert engine.attribute_misses() == {unfit: 4, unresolved: 4, other: 2}
    assert before == {unfit: 3, unresolved: 3}


def test_misses_of_several_threads_are_all_counted(engine: Engine) -> None:
    """A3: an engine is shared by the threads of a process."""
    engine.declare("w", version=1, attributes=[Attribute("n", int, "n")])
    tasks = [NewTask("q", "s", {}, "w", 1) for _ in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(engine.enqueue_many, [tasks] * 8))
    assert engine.attribute_misses() == {AttributeMiss("w", 1, "n", Miss.UNRESOLVED): 1_600}


def test_attributes_given_without_a_declaration_stay(engine: Engine) -> None:
    """A2: where nothing is declared there is nothing to read, and a task put there as given keeps what it has."""
    task = TaskRecord(id="a", queue="q", step="s", created_at=START, ready_at=START, attributes={"n": 5})
    engine.store.enqueue([task])
    engine.settle(claim_one(engine), Release())
    assert stored(engine, "a").attributes == {"n": 5}


def test_a_payload_that_is_no_json_does_not_stop_the_sweep(engine: Engine, clock: HandClock) -> None:
    """A3: never an error: what something else put there loses its attributes, and the others are promoted."""
    engine.declare("w", version=1, attributes=[Attribute("n", int, "n")])
    broken = TaskRecord("a", "q", "s", START, START, State.SCHEDULED, "{n", {"n": 5}, workflow="w", version=1)
    engine.store.enqueue([broken])
    engine.enqueue("q", "s", {"n": 6}, id="b", workflow="w", version=1, delay=timedelta(seconds=1))
    clock.pass_seconds(1)
    assert engine.sweep() == Swept(promoted=2)
    assert [dict(task.attributes) for task in engine.find(ALL)] == [{}, {"n": 6}]


def test_only_those_who_match_are_woken(engine: Engine) -> None:
    """Section 8: a wake only if a new task matches; the attempt that a retry brings is seen; closed ones are silent."""
    calls: list[str] = []
    first = engine.subscribe(QueueCriteria("q", Task.attempt == 1), lambda: calls.append("first"))
    engine.subscribe([QueueCriteria("q", Task.attempt == 2), QueueCriteria("r")], lambda: calls.append("second"))
    engine.enqueue("q", "s", id="a")
    engine.enqueue("q", "s", id="a")
    engine.enqueue("other", "s")
    engine.enqueue("q", "s", delay=timedelta(seconds=1))
    assert calls == ["first"]
    engine.settle(claim_one(engine), Retry(delay=timedelta(0)))
    engine.enqueue("r", "s")
    assert calls == ["first", "second", "second"]
    first.close()
    first.close()
    engine.enqueue("q", "s")
    engine.wake()
    assert calls == ["first", "second", "second", "second"]


def test_a_subscriber_that_fails_harms_nobody(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: the enqueue stands, the others are woken, the log has the cause."""
    calls: list[str] = []
    engine.subscribe(ALL, lambda: calls.remove("missing"))
    engine.subscribe(ALL, lambda: calls.append("woken"))
    assert engine.enqueue("q", "s")
    assert calls == ["woken"]
    assert "ValueError" in caplog.text
