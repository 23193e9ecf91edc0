"""When to claim: only for free slots, at once while there is work, ever more rarely while there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Protocol

from wiggle_core.errors import StoreError
from wiggle_core.tasks.task import TaskRecord

_log = logging.getLogger("wiggle.worker")

FIRST_WAIT = 0.1
"""Seconds after the first claim that found nothing; each further one doubles it."""


class Signal(Enum):
    """What a poller may wait for."""

    SLOT = auto()
    """A handler returned."""
    WAKE = auto()
    """A task that matches became READY in this process."""
    STOP = auto()


class Signals(Protocol):
    """Where signals come from; tests bring their own, with a clock in it."""

    def wait(self, timeout: float | None) -> list[Signal]:
        """All that are pending; when none is, those that come within `timeout` seconds (None: for ever)."""
        ...


class SignalQueue:
    """Signals from any thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Signal] = SimpleQueue()
        self._is_woken = False
        self.slot = self._returner()

    def _returner(self) -> Callable[[], None]:
        put = self._queue.put
        return lambda: put(Signal.SLOT)

    def wake(self) -> None:
        """Tell of work. One signal is enough until it is read, however many tasks are enqueued meanwhile."""
        if not self._is_woken:
            self._is_woken = True
            self._queue.put(Signal.WAKE)

    def send(self, signal: Signal) -> None:
        """Any other signal."""
        self._queue.put(signal)

    def wait(self, timeout: float | None) -> list[Signal]:
        """As `Signals.wait`."""
        found: list[Signal] = []
        try:
            found.append(self._queue.get(timeout=timeout) if timeout != 0 else self._queue.get_nowait())
            for _ in range(self._queue.qsize()):
                found.append(self._queue.get_nowait())
        except Empty:
            pass
        # Cleared before the caller looks for work: what comes later signals again.
        self._is_woken = False
        return found


class Backoff:
    """Waits that double from `first` to `longest` seconds until something resets them."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = min(first, longest)
        self._longest = longest
        self._next = self._first

    def next(self) -> float:
        """The wait after one more vain try."""
        wait = self._next
        self._next = min(2 * wait, self._longest)
        return wait

    def reset(self) -> None:
        """Begin with the first wait again."""
        self._next = self._first


class Poller:
    """Claims for free slots until it is told to stop.

    `claim` takes a limit and returns the tasks leased; `dispatch` hands them to the handlers, each of which sends
    SLOT when it is done. `is_clogged` says that outcomes pile up, so that no more work should be taken.
    """

    def __init__(
        self,
        slots: int,
        claim: Callable[[int], Sequence[TaskRecord]],
        dispatch: Callable[[Sequence[TaskRecord]], None],
        *,
        signals: Signals,
        backoff: Backoff,
        clock: Callable[[], float],
        is_clogged: Callable[[], bool] = lambda: False,
    ) -> None:
        self.busy = 0
        self._slots = slots
        self._claim = claim
        self._dispatch = dispatch
        self._signals = signals
        self._backoff = backoff
        self._clock = clock
        self._is_clogged = is_clogged
        self._poll_at = clock()
        self._is_open = True

    def run(self) -> None:
        """Poll until STOP."""
        while self._is_open:
            self.absorb(self._signals.wait(self._pause()))
            if self._is_open and self.busy < self._slots and self._clock() >= self._poll_at:
                self._poll()

    def absorb(self, signals: Sequence[Signal]) -> None:
        """Take note of signals."""
        self.busy -= signals.count(Signal.SLOT)
        if Signal.WAKE in signals:
            self._backoff.reset()
            self._poll_at = self._clock()
        if Signal.STOP in signals:
            self._is_open = False

    def _pause(self) -> float | None:
        """How long there is nothing to do but wait; None until a slot returns."""
        return max(0.0, self._poll_at - self._clock()) if self.busy < self._slots else None

    def _poll(self) -> None:
        if self._is_clogged():
            self._poll_at = self._clock() + FIRST_WAIT
            return
        claimed = self._guarded_claim(self._slots - self.busy)
        if claimed:
            # A short answer is no empty queue (O2): only nothing at all makes the poller wait.
            self._backoff.reset()
            self.busy += len(claimed)
            self._dispatch(claimed)
        else:
            self._poll_at = self._clock() + self._backoff.next()

    def _guarded_claim(self, limit: int) -> Sequence[TaskRecord]:
        """What was claimed; nothing when the store is in trouble, which the worker has to outlive."""
        try:
            return self._claim(limit)
        except StoreError as error:
            _log.warning("claiming failed, and is tried again: %s", error)
        except Exception:
            _log.exception("claiming failed, and is tried again")
        return ()
