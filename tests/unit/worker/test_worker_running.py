"""A worker at work on the memory store: handlers, waking, leases, trouble."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Barrier, Event

import pytest

from tests.unit.worker.at_work import LONG, QUICK, eventually, make, settled
from wiggle_core import (
    Done,
    Engine,
    Fail,
    NewTask,
    PermanentError,
    QueueCriteria,
    Release,
    Retry,
    RetryPolicy,
    State,
    Task,
    TaskContext,
    TaskRecord,
    TransientStoreError,
)
from wiggle_core.settings import Settings
from wiggle_core.stores.lanes import NO_LANES, Placed
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Change, ClaimRequest
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.task import Lease, TaskId


def test_a_handler_gets_its_task(engine: Engine) -> None:
    """Section 8: payload decoded, attributes and the rest; what it returns is the result."""
    engine.declare("w", version=1, attributes=[Attribute("n", int, "n")])
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> object:
        return [
            context.payload,
            dict(context.attributes),
            context.id,
            context.step,
            context.queue,
            context.attempt,
            context.correlation_id,
            context.lease_lost,
        ]

    engine.enqueue("q", "s", {"n": 1}, id="a", workflow="w", version=1, correlation_id="c")
    with worker:
        task = settled(engine, "a")
    assert task.state is State.DONE
    assert task.result == '[{"n":1},{"n":1},"a","s","q",1,"c",false]'
    assert (worker.counts.done, worker.counts.claimed) == (1, 1)


def raising(error: BaseException) -> Callable[[TaskContext], object]:
    def handle(context: TaskContext) -> object:
        raise error

    return handle


UNWRITABLE = "result: cannot be written as JSON: Object of type set is not JSON serializable"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unbound:
    """As the proxy objects of web frameworks are outside a request."""

    @property  # type: ignore[misc]  # object's is no property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # nor can it be set
        raise RuntimeError("no request")


class Empty:
    """A handler that is false where a truth value is asked for."""

    def __call__(self, context: TaskContext) -> str:
        return "worked"

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("handler", "state", "result", "error"),
    [
        (lambda context: None, State.DONE, "null", None),
        (lambda context: Done({"a": 1}), State.DONE, '{"a":1}', None),
        (lambda context: Fail("bad"), State.FAILED, None, "bad"),
        (lambda context: Retry("again"), State.FAILED, None, "again"),
        (raising(ValueError("no\0")), State.FAILED, None, "ValueError: no\ufffd"),
        (raising(ValueError()), State.FAILED, None, "ValueError"),
        (raising(SystemExit(3)), State.FAILED, None, "SystemExit: 3"),
        (raising(PermanentError("never")), State.FAILED, None, "PermanentError: never"),
        (raising(Unprintable()), State.FAILED, None, "Unprintable: (its message raised RuntimeError)"),
        (raising(ValueError("x" * 10_000)), State.FAILED, None, "ValueError: " + "x" * 1_987 + "…"),
        (lambda context: {1, 2}, State.FAILED, None, UNWRITABLE),
        (lambda context: Retry(delay=timedelta(-1)), State.FAILED, None, "delay: is negative"),
        (lambda context: Retry(delay=timedelta.max), State.FAILED, None, "delay: is longer than 36525 days"),
        (lambda context: Unbound(), State.FAILED, None, "RuntimeError: no request"),
        (Empty(), State.DONE, '"worked"', None),
    ],
)  # fmt: skip
def test_how_a_run_ends(
    engine: Engine, handler: Callable[[TaskContext], object], state: State, result: str | None, error: str | None
) -> None:
    """Section 8: a result, an outcome or an exception; with one attempt, a retry is a failure."""
    worker = make(engine)
    worker.task("s")(handler)
    engine.enqueue("q", "s", id="a", retry=RetryPolicy(max_attempts=1))
    with worker:
        task = settled(engine, "a")
    assert (task.state, task.result, task.error) == (state, result, error)


def test_a_permanent_error_is_not_retried(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: PermanentError fails at once, with attempts left; the log has the traceback."""
    worker = make(engine)
    worker.task("s")(raising(PermanentError("never")))
    engine.enqueue("q", "s", id="a")
    with worker:
        task = settled(engine, "a")
    assert (task.state, task.attempt) == (State.FAILED, 1)
    assert "Traceback" in caplog.text


def test_retries_come_back_by_the_sweeper(engine: Engine) -> None:
    """Section 8, L3: the worker's own sweeper promotes what waits for its next attempt."""
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> int:
        if context.attempt < 4:
            raise ValueError
        return context.attempt

    engine.enqueue("q", "s", id="a", retry=RetryPolicy(initial_backoff=timedelta(milliseconds=1)))
    with worker:
        assert settled(engine, "a").result == "4"
    assert (worker.counts.retried, worker.counts.done) == (3, 1)


def test_async_handlers(engine: Engine) -> None:
    """Section 8: `async def` handlers run in the worker's threads, objects with an async call too."""
    worker = make(engine)

    class Callable_:
        async def __call__(self, context: TaskContext) -> str:
            await asyncio.sleep(0)
            return "object"

    @worker.task("s")
    async def handle(context: TaskContext) -> str:
        await asyncio.sleep(0)
        return "function"

    worker.task("t")(Callable_())
    engine.enqueue("q", "s", id="a")
    engine.enqueue("q", "t", id="b")
    with worker:
        assert (settled(engine, "a").result, settled(engine, "b").result) == ('"function"', '"object"')


def test_only_handled_steps_are_claimed(engine: Engine) -> None:
    """Section 8: a worker never claims what it cannot run; `*` takes every other step."""
    worker = make(engine)
    worker.task("s")(lambda context: "s")
    engine.enqueue("q", "t", id="before")
    engine.enqueue("q", "s", id="a")
    with worker:
        settled(engine, "a")
    before = engine.get("before")
    assert before is not None
    assert (before.state, before.token) == (State.READY, None)
    worker.task("*")(lambda context: "any")
    with worker:
        engine.enqueue("q", "s", id="b")
        assert (settled(engine, "before").result, settled(engine, "b").result) == ('"any"', '"s"')


def test_concurrency_is_what_runs_at_once(engine: Engine) -> None:
    """Section 8: as many handlers as slots, no more, and no claim beyond them."""
    together, go = Barrier(4), Event()
    worker = make(engine, concurrency=3)

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        together.wait(LONG)
        go.wait(LONG)

    engine.enqueue_many(NewTask("q", "s") for _ in range(7))
    with worker:
        together.wait(LONG)
        assert engine.count(QueueCriteria("q"), {State.RUNNING}) == 3
        assert engine.count(QueueCriteria("q"), {State.READY}) == 4
        together.reset()
        go.set()
        for _ in range(4):
            together.abort()
        eventually(lambda: engine.count(QueueCriteria("q"), {State.READY}) == 0)


class CountingStore(MemoryStore):
    """Counts claims, and tells of the first empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0
        self.found_nothing = Event()

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        self.claims += 1
        got = super().claim(request)
        if not got:
            self.found_nothing.set()
        return got


def test_a_local_enqueue_wakes_only_for_what_matches() -> None:
    """Section 8: wake on a local enqueue only if a new task matches; proven by counting claims, with a fallback of an
    hour."""
    store = CountingStore()
    engine = Engine(store, settings=Settings(scoped_fallback_max_millis=3_600_000, sweep_interval_millis=3_600_000))
    worker = make(engine, criteria=[QueueCriteria("q", Task.attempt == 1)])
    worker.task("s")(lambda context: None)
    with worker:
        assert store.found_nothing.wait(LONG)
        # The first waits are short: let the poller reach one that outlasts the test.
        eventually(lambda: store.claims >= 5)
        settled_claims = store.claims
        for _ in range(100):
            engine.enqueue("q", "other step")
            engine.enqueue("other queue", "s")
        assert store.claims == settled_claims
        engine.enqueue("q", "s", id="a")
        settled(engine, "a")
        assert store.claims > settled_claims


def test_release_hands_back(engine: Engine) -> None:
    """L3: a handler may give its task back; it comes again in the same attempt."""
    runs: list[int] = []
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> object:
        runs.append(context.attempt)
        return Release() if len(runs) < 3 else None

    engine.enqueue("q", "s", id="a")
    with worker:
        settled(engine, "a")
    assert runs == [1, 1, 1]


def test_a_worker_says_that_it_works(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Section 9: whoever runs one at a terminal sees from which queues it takes, before the first task comes."""
    worker = make(engine, queues=["payments", "refunds"])
    worker.task("s")(lambda context: None)
    with worker:
        assert "worker w takes from payments, refunds" in caplog.text


def test_registration_lasts_as_long_as_the_worker(engine: Engine) -> None:
    """Section 8: each worker registers, and deletes its registration when it stops."""
    worker = make(engine, criteria=[QueueCriteria("q", Task.attempt < 4)])
    worker.task("s")(lambda context: None)
    with worker:
        (info,) = engine.workers()
        assert (info.id, info.is_live, info.registration.pid) == ("w", True, os.getpid())
        assert info.registration.criteria == (QueueCriteria("q", Task.attempt < 4),)
        assert info.registration.steps == ("s",)
    assert engine.workers() == []


def test_the_heartbeat_keeps_leases_and_registration() -> None:
    """Section 8: one beat extends everything in flight, in one call, and refreshes the registration."""

    class Store(MemoryStore):
        extended: list[int] = []  # noqa: RUF012  # one test, one store

        def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
            self.extended.append(len(leases))
            return super().extend(leases, ttl)

    engine, go, together = Engine(Store(), settings=QUICK), Event(), Barrier(4)
    worker = make(engine, concurrency=3, lease=timedelta(seconds=5), heartbeat=timedelta(milliseconds=20))

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        together.wait(LONG)
        go.wait(LONG)

    engine.enqueue_many(NewTask("q", "s") for _ in range(3))
    with worker:
        together.wait(LONG)
        first = [task.lease_until or 0 for task in engine.find(QueueCriteria("q"))]
        eventually(lambda: min(task.lease_until or 0 for task in engine.find(QueueCriteria("q"))) > max(first))
        eventually(lambda: engine.store.list_documents("worker")[0].revision > 2)
        go.set()
    assert set(Store.extended) == {3}
    assert worker.counts.done == 3


def test_a_lost_lease_is_told_and_its_result_dropped(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: the worker learns it at the next heartbeat; the handler sees it; the result is dropped."""
    started, seen = Event(), Event()
    worker = make(engine, heartbeat=timedelta(milliseconds=10))

    @worker.task("s")
    def handle(context: TaskContext) -> str:
        started.set()
        eventually(lambda: context.lease_lost)
        seen.set()
        return "dropped"

    engine.enqueue("q", "s", id="a")
    with worker:
        assert started.wait(LONG)
        engine.cancel("a")
        assert seen.wait(LONG)
    task = engine.get("a")
    assert task is not None
    assert (task.state, task.result) == (State.CANCELLED, None)
    assert (worker.counts.lost, worker.counts.done) == (1, 0)
    assert "was lost" in caplog.text


class FlakyStore(MemoryStore):
    """A database that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.asked_in_vain = 0

    def _check(self) -> None:
        if self.is_away:
            self.asked_in_vain += 1
            raise TransientStoreError("the database is away")

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        self._check()
        return super().claim(request)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        self._check()
        return super().apply(changes, placed)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        self._check()
        return super().extend(leases, ttl)

    def due(self, limit: int) -> list[TaskRecord]:
        self._check()
        return super().due(limit)

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        self._check()
        return super().put_document(kind, key, body, revision)


def test_a_worker_outlives_its_database(caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: while the store is away nothing is lost, outcomes are kept, and work goes on when it is back."""
    store = FlakyStore()
    engine = Engine(store, settings=QUICK)
    worker = make(engine, concurrency=1, heartbeat=timedelta(milliseconds=10))

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        store.is_away = context.payload == 0

    store.is_away = True
    worker.start()
    eventually(lambda: store.asked_in_vain > 2)
    store.is_away = False
    ids = [engine.enqueue("q", "s", number) for number in range(3)]
    eventually(lambda: store.is_away)
    eventually(lambda: store.asked_in_vain > 9)
    store.is_away = False
    for task_id in ids:
        assert settled(engine, task_id).attempt == 1
    eventually(lambda: len(engine.workers()) == 1)
    worker.stop()
    assert worker.counts.done == 3
    assert worker.counts.dropped == 0
    assert "reference" in caplog.text
