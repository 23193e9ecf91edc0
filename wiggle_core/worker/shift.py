"""One run of a worker, from start to stop: its threads, and what passes between them.

A poller claims and hands tasks to handler threads; these leave outcomes to the settler and give their slot back. A
heartbeat keeps the leases, a sweeper lets time pass, and lanes are opened where they save walks. Between two threads
stands one SimpleQueue and no lock.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep
from uuid import uuid4

from wiggle_core.engine.engine import Engine
from wiggle_core.engine.sweeper import FORGET_SECONDS, PURGE_SECONDS, Sweeper
from wiggle_core.engine.workers import Registration, register, unregister
from wiggle_core.errors import AmbiguousStoreError, StoreError, TransientStoreError
from wiggle_core.tasks.outcome import Release
from wiggle_core.tasks.task import TaskRecord
from wiggle_core.worker.context import TaskContext
from wiggle_core.worker.handlers import Handlers
from wiggle_core.worker.ledger import Ledger
from wiggle_core.worker.plan import Plan
from wiggle_core.worker.polling import FIRST_WAIT, Backoff, Poller, Signal, SignalQueue
from wiggle_core.worker.repeating import Repeating, extend_all
from wiggle_core.worker.settling import Outbox, Settler

_log = logging.getLogger("wiggle.worker")

MAX_UNSETTLED = 1_000
"""With more outcomes waiting than this, no more tasks are claimed."""
FLUSH_SECONDS = 5.0
"""How long a stop goes on reporting outcomes to a store in trouble."""
LANE_CARE_SECONDS = 1.0
"""How often it is asked whether a lane should open; in a thread of its own, for filling one may take long."""
LOOK_SECONDS = 0.05
"""How often a stop looks whether it is to hurry."""
_RELEASE = Release()
_MICROS = 1_000_000


class Shift:
    """The threads of a worker that runs."""

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        handlers: Handlers,
        ledger: Ledger,
        when_idle: Callable[[], None] | None = None,
    ) -> None:
        options, settings = plan.options, engine.settings
        self._engine, self._plan, self._handlers, self._ledger = engine, plan, handlers, ledger
        self._when_idle = when_idle
        self._work: SimpleQueue[TaskContext | None] = SimpleQueue()
        self._signals = SignalQueue()
        self._outbox = Outbox()
        self._is_stopping = self._is_hurried = False
        self._claimed_at = 0.0
        self._registration: Registration | None = None
        self._registration_key = uuid4().hex
        slots = options.concurrency + options.prefetch
        backoff = Backoff(FIRST_WAIT, settings.scoped_fallback_max_millis / 1_000)
        self._poller = Poller(
            slots,
            self._claim,
            self._dispatch,
            signals=self._signals,
            backoff=backoff,
            clock=monotonic,
            is_clogged=self._is_clogged,
        )
        self._settler = Settler(self._outbox, ledger, engine.report, sleep)
        self._heartbeat = Repeating("heartbeat", self._beat, options.heartbeat.total_seconds())
        self._lane_care = Repeating("care for lanes", engine.lanes.care, LANE_CARE_SECONDS)
        chores = (engine.tidy, PURGE_SECONDS), (engine.forget_workers, FORGET_SECONDS)
        self._sweeper = Sweeper(engine.sweep_due, chores, settings.sweep_interval_millis / 1_000)
        self._poller_thread = Thread(target=self._poller.run, name="wiggle-poller", daemon=True)
        self._settler_thread = Thread(target=self._settler.run, name="wiggle-settler", daemon=True)
        self._handler_threads = [
            Thread(target=self._handle, name=f"wiggle-handler-{number}", daemon=True)
            for number in range(options.concurrency)
        ]

    def start(self) -> None:
        """Register and begin to work. A store that is away for a moment does not keep a worker from starting."""
        try:
            self._register()
        except (TransientStoreError, AmbiguousStoreError) as error:
            _log.warning("the worker could not register yet: %s", error)
        self._subscription = self._engine.subscribe_routes(self._plan.routes, self._signals.wake)
        for thread in (*self._handler_threads, self._settler_thread):
            thread.start()
        self._heartbeat.start()
        self._sweeper.start()
        self._lane_care.start()
        self._poller_thread.start()
        _log.info("worker %s takes from %s", self._plan.options.id, ", ".join(each.queue for each in self._plan.routes))

    def is_run_by(self, thread: Thread) -> bool:
        """Whether a handler runs in this thread."""
        return thread in self._handler_threads

    def hurry(self) -> None:
        """Have a stop that is under way wait no longer. A flag and no more: it is set by a signal handler."""
        self._is_hurried = True

    def stop(self, grace: float) -> None:
        """Stop claiming, give back what has not begun, let what runs finish for `grace` seconds, then give it back."""
        deadline = monotonic() + grace
        self._subscription.close()
        self._is_stopping = True
        self._signals.send(Signal.STOP)
        self._await_poller(deadline)
        self._return_unbegun()
        self._await_handlers(deadline)
        self._return_running()
        self._flush()
        self._heartbeat.stop(FLUSH_SECONDS)
        self._sweeper.stop(FLUSH_SECONDS)
        self._lane_care.stop(FLUSH_SECONDS)
        self._note_lanes()
        self._unregister()

    # What the threads do

    def _claim(self, limit: int) -> Sequence[TaskRecord]:
        if self._is_stopping:
            return ()
        options, self._claimed_at = self._plan.options, monotonic()
        was_settled = len(self._ledger) == 0
        try:
            claimed = self._engine.claim_routes(options.id, self._plan.routes, limit, options.lease)
        except StoreError:
            self._ledger.count("errors")
            raise
        self._ledger.count_claim(len(claimed), monotonic() - self._claimed_at)
        if self._when_idle is not None and was_settled and not claimed:
            self._when_idle()
        return claimed

    def _dispatch(self, tasks: Sequence[TaskRecord]) -> None:
        sure_until = self._claimed_at + self._plan.options.lease.total_seconds()
        contexts = [TaskContext(task, sure_until) for task in tasks]
        self._ledger.add(contexts)
        for context in contexts:
            self._work.put(context)

    def _handle(self) -> None:
        run, get, put, give_slot_back = self._handlers.run, self._work.get, self._outbox.put, self._signals.slot
        while (context := get()) is not None:
            if self._is_stopping:
                put(context, _RELEASE)
            elif not context.lease_lost:
                outcome = run(context)
                if not context.lease_lost:
                    put(context, outcome)
            give_slot_back()

    def _is_clogged(self) -> bool:
        return len(self._outbox) > MAX_UNSETTLED

    def _beat(self) -> None:
        extend_all(self._engine, self._ledger, self._plan.options.lease)
        self._register()

    def _register(self) -> None:
        if self._registration is None:
            self._registration = self._describe()
        register(self._engine.store, self._registration_key, self._registration)

    # How it stops

    def _await_poller(self, deadline: float) -> None:
        # Also in a hurry: what a claim under way takes has to be given back.
        began = monotonic()
        until = max(deadline, began + FLUSH_SECONDS)
        while self._poller_thread.is_alive() and monotonic() < until:
            self._poller_thread.join(LOOK_SECONDS)
            if self._is_hurried:
                until = min(until, began + FLUSH_SECONDS)

    def _return_unbegun(self) -> None:
        while True:
            try:
                context = self._work.get_nowait()
            except Empty:
                return
            if context is not None:
                self._outbox.put(context, _RELEASE)
                self._signals.slot()

    def _await_handlers(self, deadline: float) -> None:
        # A poller that hangs in the database still reads the signals; what it may claim yet waits for its lease to end.
        if self._poller_thread.is_alive():
            return
        while self._poller.busy > 0 and not self._is_hurried and (left := deadline - monotonic()) > 0:
            self._poller.absorb(self._signals.wait(min(left, LOOK_SECONDS)))

    def _return_running(self) -> None:
        for context in self._ledger.abandon():
            _log.warning("task %s still runs; its lease is given back and its result will be dropped", context.id)
            self._outbox.put(context, _RELEASE)

    def _flush(self) -> None:
        self._settler.give_up_at = monotonic() + FLUSH_SECONDS
        self._outbox.close()
        self._settler_thread.join(2 * FLUSH_SECONDS)
        for _ in self._handler_threads:
            self._work.put(None)

    def _note_lanes(self) -> None:
        try:
            self._engine.lanes.note_use()
        except StoreError as error:
            _log.warning("what was claimed through lanes at last could not be noted: %s", error)

    def _unregister(self) -> None:
        try:
            unregister(self._engine.store, self._registration_key)
        except StoreError as error:
            _log.warning("the worker could not delete its registration, which will age instead: %s", error)

    def _describe(self) -> Registration:
        options = self._plan.options
        heartbeat = round(options.heartbeat.total_seconds() * _MICROS)
        host, started_at = socket.gethostname(), self._engine.store.now()
        return Registration(options.id, host, os.getpid(), self._plan.criteria, self._plan.steps, heartbeat, started_at)
