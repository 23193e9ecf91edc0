"""The ways a worker at work on the memory store stops: what it gives back, and what it waits for."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from threading import Event, Thread
from time import monotonic

import pytest

from tests.unit.worker.at_work import LONG, NEVER, QUICK, eventually, make, settled
from wiggle_core import (
    Done,
    Engine,
    NewTask,
    QueueCriteria,
    Retry,
    RetryPolicy,
    State,
    TaskContext,
    TaskRecord,
    WorkerRejected,
)
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import ClaimRequest


def test_prefetched_tasks_are_released_on_stop(engine: Engine) -> None:
    """Section 8: what was claimed ahead goes back first, with attempt and place kept."""
    started, go = Event(), Event()
    worker = make(engine, concurrency=1, prefetch=3)

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        started.set()
        go.wait(LONG)

    ids = [engine.enqueue("q", "s") for _ in range(5)]
    worker.start()
    assert started.wait(LONG)
    assert engine.count(QueueCriteria("q"), {State.RUNNING}) == 4
    stopping = Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: engine.count(QueueCriteria("q"), {State.READY}) == 4)
    go.set()
    stopping.join(LONG)
    assert settled(engine, ids[0]).state is State.DONE
    assert {task.attempt for task in engine.find(QueueCriteria("q"))} == {1}
    assert (worker.counts.released, worker.counts.done) == (3, 1)


def test_a_stop_is_bounded(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: after the grace period the lease is given back, another worker can take the task, and the late result
    is dropped."""
    started, go = Event(), Event()
    worker = make(engine, grace=timedelta(milliseconds=20))

    @worker.task("s")
    def handle(context: TaskContext) -> str:
        started.set()
        go.wait(LONG)
        return "late" if context.lease_lost else "in time"

    engine.enqueue("q", "s", id="a")
    worker.start()
    assert started.wait(LONG)
    began = monotonic()
    worker.stop()
    assert monotonic() - began < 10
    (again,) = engine.claim("other", [QueueCriteria("q")])
    assert (again.id, again.attempt) == ("a", 1)
    go.set()
    engine.settle(again, Done("other"))
    assert settled(engine, "a").result == '"other"'
    assert "still runs" in caplog.text
    assert worker.counts.done == 0


class Hanging(MemoryStore):
    """A store whose first claim takes a lease, and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.has_claimed, self.go = Event(), Event()

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        claimed = super().claim(request)
        if claimed and not self.has_claimed.is_set():
            self.has_claimed.set()
            assert self.go.wait(LONG)
        return claimed


def test_what_a_claim_brings_after_the_stop_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: nobody would work the task, so the worker, started again, must not keep its lease alive."""
    monkeypatch.setattr("wiggle_core.worker.shift.FLUSH_SECONDS", 0.05)
    store = Hanging()
    engine = Engine(store, settings=QUICK)
    options = {"lease": timedelta(seconds=1), "heartbeat": timedelta(milliseconds=20), "grace": timedelta(0)}
    worker = make(engine, **options)
    worker.task("s")(lambda context: "worked")
    engine.enqueue("q", "s", id="a", retry=RetryPolicy(initial_backoff=timedelta(0)))
    worker.start()
    assert store.has_claimed.wait(LONG)
    worker.stop()
    store.go.set()
    with worker:
        assert settled(engine, "a").attempt == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_run(engine: Engine, number: signal.Signals) -> None:
    """Section 8: graceful stop on SIGTERM and SIGINT: what runs is finished; the handlers before are back after."""
    previous = signal.getsignal(number)
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> str:
        os.kill(os.getpid(), number)
        return "finished"

    engine.enqueue("q", "s", id="a")
    worker.run()
    assert settled(engine, "a").result == '"finished"'
    assert signal.getsignal(number) is previous
    assert engine.workers() == []


def test_a_second_signal_stops_at_once(engine: Engine) -> None:
    """Section 8: the second signal does not wait for handlers; what runs is given back."""
    started, go = Event(), Event()
    worker = make(engine, grace=NEVER)

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        started.set()
        go.wait(LONG)

    def interrupt() -> None:
        assert started.wait(LONG)
        # Two different ones: the system may deliver two of a kind as one.
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    engine.enqueue("q", "s", id="a")
    interrupter = Thread(target=interrupt)
    interrupter.start()
    worker.run()
    go.set()
    interrupter.join()
    task = engine.get("a")
    assert task is not None
    assert (task.state, task.attempt) == (State.READY, 1)


def test_stop_from_another_thread_ends_run(engine: Engine) -> None:
    """Section 8: `stop` ends `run`, which may also run outside the main thread."""
    worker = make(engine)
    worker.task("s")(lambda context: None)
    runner = Thread(target=worker.run)
    runner.start()
    engine.enqueue("q", "s", id="a")
    settled(engine, "a")
    worker.stop()
    runner.join(LONG)
    assert not runner.is_alive()
    worker.stop()


def test_a_worker_that_runs_is_not_run_twice(engine: Engine) -> None:
    """Section 8: the second `run` is refused, and the first one neither stopped nor kept from ending."""
    worker = make(engine)
    worker.task("s")(lambda context: None)
    runner = Thread(target=worker.run)
    runner.start()
    engine.enqueue("q", "s", id="a")
    settled(engine, "a")
    for again in (worker.run, worker.drain, worker.start):
        with pytest.raises(WorkerRejected, match="is running"):
            again()
    engine.enqueue("q", "s", id="b")
    settled(engine, "b")
    worker.stop()
    runner.join(LONG)
    assert not runner.is_alive()


def test_a_handler_may_stop_its_worker(engine: Engine) -> None:
    """Section 8: it is one of those that a graceful stop lets finish."""
    worker = make(engine, grace=NEVER)

    @worker.task("s")
    def handle(context: TaskContext) -> str:
        worker.stop()
        return "finished"

    engine.enqueue("q", "s", id="a")
    worker.run()
    assert settled(engine, "a").result == '"finished"'


def test_drain_ends_when_nothing_is_left(engine: Engine) -> None:
    """Section 8: everything that is ready is settled, what a handler asks to run again at once too; then it returns."""
    engine.enqueue_many(NewTask("q", "s", number) for number in range(50))
    engine.enqueue("q", "s", "later", delay=NEVER)
    ran: list[object] = []
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> object:
        ran.append(context.payload)
        return Retry("once more", delay=timedelta(0)) if context.attempt == 1 and context.payload == 7 else None

    worker.drain()
    assert sorted(map(str, ran)) == sorted([*map(str, range(50)), "7"])
    assert engine.count(QueueCriteria("q"), {State.DONE}) == 50
    assert engine.count(QueueCriteria("q"), {State.SCHEDULED}) == 1


def test_drain_waits_for_a_handler_that_still_runs(engine: Engine) -> None:
    """Section 8: empty claims beside a running handler are no end, for it may enqueue more."""
    engine.enqueue("q", "s", 2)
    worker = make(engine)

    @worker.task("s")
    def handle(context: TaskContext) -> None:
        eventually(lambda: worker.counts.empty_claims >= 1)
        if isinstance(context.payload, int) and context.payload > 0:
            engine.enqueue("q", "s", context.payload - 1)

    worker.drain()
    assert worker.counts.done == 3
