"""`Worker`: claims what its criteria match and its handlers can work, and works it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.engine.engine import DEFAULT_LEASE, Engine
from wiggle_core.errors import WorkerRejected
from wiggle_core.worker.handlers import H, Handlers
from wiggle_core.worker.ledger import Counts, Ledger
from wiggle_core.worker.plan import WorkerOptions, make_plan
from wiggle_core.worker.shift import Shift

DEFAULT_HEARTBEAT = timedelta(seconds=10)
DEFAULT_GRACE = timedelta(seconds=30)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPED = b"\0"
_ENDING = {*_STOPPED, *STOP_SIGNALS}


class Worker:
    """Takes tasks from `queues`, or those that `criteria` match, and runs the handler of each task's step.

    At most `concurrency` handlers run at once, each in a thread of its own; `prefetch` more tasks may be claimed
    ahead. A lease lasts `lease` and is extended every `heartbeat`. A stop lets handlers finish for `grace`. What the
    worker is refused for is said by `start` and `run` (WorkerRejected).
    """

    def __init__(
        self,
        engine: Engine,
        id: str,
        *,
        queues: Iterable[str] | None = None,
        criteria: Iterable[QueueCriteria] | None = None,
        concurrency: int | None = None,
        prefetch: int = 0,
        lease: timedelta = DEFAULT_LEASE,
        heartbeat: timedelta = DEFAULT_HEARTBEAT,
        grace: timedelta = DEFAULT_GRACE,
    ) -> None:
        if isinstance(queues, str):
            raise WorkerRejected(f"queues is a list of names, not one text: [{queues!r}]")
        if isinstance(criteria, QueueCriteria):
            raise WorkerRejected("criteria is a list, also of a single one: criteria=[...]")
        self.engine = engine
        self._options = WorkerOptions(
            id,
            None if queues is None else tuple(queues),
            None if criteria is None else tuple(criteria),
            concurrency if concurrency is not None else os.cpu_count() or 1,
            prefetch,
            lease,
            heartbeat,
            grace,
        )
        self._handlers = Handlers()
        self._counts = Counts()
        self._ledger = Ledger(self._counts)
        self._shift: Shift | None = None
        self._lock = Lock()
        self._runs_until: int | None = None

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def id(self) -> str:
        return self._options.id

    @property
    def counts(self) -> Counts:
        """What the worker did so far."""
        return self._ledger.counts()

    def task(self, step: str) -> Callable[[H], H]:
        """Make a function the handler of a step, or of all others with `*`. It gets a TaskContext.

        What it returns is the task's result, unless it is an Outcome; an exception means Retry, PermanentError Fail.
        Raises WorkerRejected when the step has a handler, or the worker runs: what it claims is settled by then.
        """

        def register(handler: H) -> H:
            if self._shift is not None:
                raise WorkerRejected(f"worker {self.id!r} is running: give it the handler of {step!r} before")
            self._handlers.add(step, handler)
            return handler

        return register

    def start(self) -> None:
        """Begin to work in threads, and return. Raises WorkerRejected, or StoreError when the store refuses."""
        self._begin(when_idle=None, runs_until=None)

    def _begin(self, when_idle: Callable[[], None] | None, runs_until: int | None) -> None:
        with self._lock:
            if self._shift is not None:
                raise WorkerRejected(f"worker {self.id!r} is running")
            plan = make_plan(self._options, self._handlers.steps)
            # A new one: what a claim brings that outlasted the last stop is nobody's, and its lease has to run out.
            self._ledger = Ledger(self._counts)
            shift = Shift(self.engine, plan, self._handlers, self._ledger, when_idle)
            # Known before it starts: its first handler may call `stop` at once.
            self._shift, self._runs_until = shift, runs_until
            try:
                shift.start()
            except BaseException:
                self._shift = self._runs_until = None
                raise

    def stop(self, grace: timedelta | None = None) -> None:
        """Stop claiming, let handlers finish for `grace` (else that of the worker), give the rest back, and return.

        No-op when the worker does not run. Called by one of its handlers it returns at once: that one has to finish.
        """
        if self._shift is not None and self._shift.is_run_by(current_thread()):
            Thread(target=self.stop, args=(grace,), name="wiggle-stopper").start()
            return
        with self._lock:
            if self._shift is not None:
                self._shift.stop((self._options.grace if grace is None else grace).total_seconds())
                self._shift = None
                self._end_run()
                self._runs_until = None

    def _end_run(self) -> None:
        if self._runs_until is not None:
            os.write(self._runs_until, _STOPPED)

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop` from another thread. A second signal does not wait for handlers."""
        self._serve(when_idle=None)

    def drain(self) -> None:
        """As `run`, but end as soon as a claim finds nothing while no task of this worker is unsettled.

        Tasks that wait for their time, or are leased to others, are not waited for.
        """
        self._serve(when_idle=self._end_run)

    def _serve(self, when_idle: Callable[[], None] | None) -> None:
        ended, runs_until = os.pipe()
        os.set_blocking(runs_until, False)
        try:
            with self._signals_routed(runs_until):
                self._begin(when_idle, runs_until)
                try:
                    while os.read(ended, 1)[0] not in _ENDING:
                        pass
                finally:
                    self.stop()
        finally:
            os.close(runs_until)
            os.close(ended)

    @contextmanager
    def _signals_routed(self, pipe: int) -> Iterator[None]:
        """Every signal's number goes into the pipe. The system may hand a signal to any thread, and then the main one
        would sleep on in whatever it waits for; and Python's handlers may touch no lock and no queue.

        Elsewhere than in the main thread Python cannot route signals.
        """
        if current_thread() is not main_thread():
            yield
            return
        received = 0

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal received
            received += 1
            if received > 1 and self._shift is not None:
                self._shift.hurry()

        # Any: typeshed's type of handlers
        previous: dict[signal.Signals, Any] = {each: signal.signal(each, on_signal) for each in STOP_SIGNALS}
        previous_pipe = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_pipe)
            for each, handler in previous.items():
                signal.signal(each, handler)
