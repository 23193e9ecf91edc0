"""When a worker claims: proven by counting claims on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import pytest

from wiggle_core import TransientStoreError
from wiggle_core.tasks.task import TaskRecord
from wiggle_core.worker.polling import Backoff, Poller, Signal, SignalQueue


def break_down() -> None:
    raise KeyError("a bug")


class Script:
    """Signals that come at given times of a clock, which only waiting moves. The last one is STOP."""

    def __init__(self, *events: tuple[float, Signal]) -> None:
        self.now = 0.0
        self.events = sorted(events, key=lambda event: event[0])
        self.waits: list[float | None] = []

    def clock(self) -> float:
        return self.now

    def wait(self, timeout: float | None) -> list[Signal]:
        assert self.events, "the poller waits on after STOP"
        at = self.events[0][0]
        self.waits.append(timeout)
        if timeout is not None and at > self.now + timeout:
            self.now += timeout
            return []
        self.now = max(self.now, at)
        due = [signal for when, signal in self.events if when <= self.now]
        del self.events[: len(due)]
        return due


def task(number: int) -> TaskRecord:
    return TaskRecord(id=str(number), queue="q", step="s", created_at=0, ready_at=0)


class Bench:
    """A poller over a queue of `depth` tasks; every claim is noted with its time and limit."""

    def __init__(self, script: Script, depth: int = 0, slots: int = 1, longest: float = 2.0) -> None:
        self.claims: list[tuple[float, int]] = []
        self.depth = depth
        self.failing: Callable[[], None] = lambda: None
        self.clogged = False
        self.script = script
        self.poller = Poller(
            slots,
            self.claim,
            self.dispatch,
            signals=script,
            backoff=Backoff(0.1, longest),
            clock=script.clock,
            is_clogged=lambda: self.clogged,
        )
        self.returning = 0.0

    def claim(self, limit: int) -> Sequence[TaskRecord]:
        self.claims.append((round(self.script.now, 3), limit))
        self.failing()
        taken = min(limit, self.depth)
        self.depth -= taken
        return [task(number) for number in range(taken)]

    def dispatch(self, tasks: Sequence[TaskRecord]) -> None:
        """Each handler takes `returning` seconds."""
        done = [(self.script.now + self.returning, Signal.SLOT) for _ in tasks]
        self.script.events = sorted([*done, *self.script.events], key=lambda event: event[0])

    def times(self) -> list[float]:
        return [at for at, _ in self.claims]


def test_empty_claims_back_off() -> None:
    """Section 8: every empty claim doubles the wait from 100 ms up to the maximum: nine claims in 9.1 seconds."""
    bench = Bench(Script((9.2, Signal.STOP)))
    bench.poller.run()
    assert bench.times() == [0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]


def test_the_longest_wait_is_a_setting() -> None:
    """Section 8: WIGGLE_SCOPED_FALLBACK_MAX_MILLIS, from 100 ms on."""
    bench = Bench(Script((0.45, Signal.STOP)), longest=0.1)
    bench.poller.run()
    assert bench.times() == [0, 0.1, 0.2, 0.3, 0.4]


def test_a_wake_claims_at_once_and_resets() -> None:
    """Section 8: a matching wake ends the wait, and the back-off begins again."""
    bench = Bench(Script((2.0, Signal.WAKE), (2.5, Signal.STOP)))
    bench.poller.run()
    assert bench.times() == [0, 0.1, 0.3, 0.7, 1.5, 2.0, 2.1, 2.3]


def test_a_claim_resets() -> None:
    """Section 8: tasks found by a fallback claim reset the wait; the next claim comes at once."""
    bench = Bench(Script((2.0, Signal.STOP)))
    original = bench.claim

    def claim(limit: int) -> Sequence[TaskRecord]:
        bench.depth = 1 if bench.script.now > 1 and not any(at > 1 for at, _ in bench.claims) else bench.depth
        return original(limit)

    bench.poller._claim = claim
    bench.poller.run()
    assert bench.times() == [0, 0.1, 0.3, 0.7, 1.5, 1.5, 1.6, 1.8]


def test_only_free_slots_are_claimed_for() -> None:
    """Section 8: `concurrency - in flight`, and no claim while no slot is free."""
    bench = Bench(Script((1.25, Signal.STOP)), depth=5, slots=2)
    bench.returning = 0.5
    bench.poller.run()
    assert bench.claims == [(0, 2), (0.5, 2), (1.0, 2), (1.0, 1), (1.1, 1)]


def test_no_claim_while_every_slot_is_taken() -> None:
    """Section 8: a wake does not make a busy worker claim; it waits for a slot, for ever if need be."""
    bench = Bench(Script((0.1, Signal.WAKE), (50, Signal.WAKE), (99, Signal.STOP)), depth=9)
    bench.returning = 1_000
    bench.poller.run()
    assert bench.claims == [(0, 1)]
    assert None in bench.script.waits


def test_a_slot_that_returns_does_not_cut_the_back_off() -> None:
    """Section 8: the queue was just found empty, and a handler that ends says nothing about it."""
    bench = Bench(Script((0.65, Signal.STOP)), depth=1, slots=3)
    bench.returning = 0.2
    bench.poller.run()
    assert bench.claims == [(0, 3), (0, 2), (0.1, 2), (0.3, 3)]


def test_full_claims_follow_each_other() -> None:
    """Section 8: after a full claim the next comes at once, when slots are free."""
    bench = Bench(Script((0.05, Signal.STOP)), depth=100, slots=10)
    bench.poller.run()
    assert bench.claims == [(0, 10)] * 10 + [(0, 10)]


def test_trouble_backs_off(caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: a database that is away is asked ever more rarely, logged with a reference, and recovered from."""
    bench = Bench(Script((2.0, Signal.STOP)), depth=1)
    bench.returning = 9

    def fail() -> None:
        if bench.script.now < 1:
            raise TransientStoreError("away")

    bench.failing = fail
    bench.poller.run()
    assert bench.times() == [0, 0.1, 0.3, 0.7, 1.5]
    assert caplog.text.count("reference") == 4


def test_a_bug_does_not_end_the_poller(caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: a worker survives whatever a claim raises."""
    bench = Bench(Script((0.15, Signal.STOP)))
    bench.failing = break_down
    bench.poller.run()
    assert len(bench.claims) == 2
    assert "KeyError" in caplog.text


def test_a_clogged_worker_takes_no_more() -> None:
    """Section 8: while outcomes pile up, nothing is claimed."""
    bench = Bench(Script((1.0, Signal.STOP)), depth=5)
    bench.clogged = True
    bench.poller.run()
    assert bench.claims == []
    assert len(bench.script.waits) == pytest.approx(11, abs=1)


def test_a_wake_during_a_claim_is_not_lost() -> None:
    """Section 8: a task enqueued between the claim and its empty answer is found at once."""
    bench = Bench(Script((0.05, Signal.STOP)))

    def enqueue_late() -> None:
        if len(bench.claims) == 1:
            bench.script.events.insert(0, (0.0, Signal.WAKE))

    bench.failing = enqueue_late
    bench.poller.run()
    assert bench.times() == [0, 0]


def test_many_wakes_are_one_signal() -> None:
    """Section 8: a million local enqueues do not fill the memory of a worker that is busy."""
    signals = SignalQueue()
    for _ in range(1_000):
        signals.wake()
    signals.slot()
    assert signals.wait(0) == [Signal.WAKE, Signal.SLOT]
    signals.wake()
    assert signals.wait(None) == [Signal.WAKE]
    assert signals.wait(0) == []


def test_signals_cross_threads() -> None:
    """A waiting poller hears from other threads."""
    signals = SignalQueue()
    thread = Thread(target=lambda: signals.send(Signal.STOP))
    thread.start()
    assert signals.wait(30) == [Signal.STOP]
    thread.join()
