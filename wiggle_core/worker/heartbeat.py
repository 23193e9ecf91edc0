"""The heartbeat: keeps every lease that the worker holds, and its registration, in one beat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread
from time import monotonic

from wiggle_core.engine.engine import Engine
from wiggle_core.errors import StoreError
from wiggle_core.worker.ledger import Ledger

_log = logging.getLogger("wiggle.worker")

RETRY_SECONDS = 1.0
"""How soon a beat that failed is tried again, if the next one is not due earlier."""


class Heartbeat:
    """A thread that calls `beat` every `interval`, and sooner after a failure."""

    def __init__(self, beat: Callable[[], None], interval: timedelta) -> None:
        self._beat = beat
        self._interval = interval.total_seconds()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="wiggle-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat, the first time after one interval."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End after the beat that is under way, or return after `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = self._interval
        while not self._stopping.wait(wait):
            wait = self._interval if self._guarded_beat() else min(RETRY_SECONDS, self._interval)

    def _guarded_beat(self) -> bool:
        try:
            self._beat()
        except StoreError as error:
            _log.warning("the heartbeat failed, and is tried again: %s", error)
            return False
        except Exception:
            _log.exception("the heartbeat failed, and is tried again")
            return False
        return True


def extend_all(engine: Engine, ledger: Ledger, lease: timedelta, clock: Callable[[], float] = monotonic) -> None:
    """Extend every lease held in one call, and learn which are lost. Raises StoreError."""
    contexts = ledger.held()
    if not contexts:
        return
    until = clock() + lease.total_seconds()
    held = engine.extend([context.task.lease for context in contexts], lease)
    ledger.confirm(contexts, lambda context: context.task.lease in held, until)
