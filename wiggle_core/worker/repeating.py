"""What a worker does again and again in a thread of its own: the heartbeat, and the care for lanes."""

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
"""How soon what failed is tried again, if the next time is not due earlier."""


class Repeating:
    """A thread that calls `action` every `interval` seconds, and sooner after a failure; `name` is for the log."""

    def __init__(self, name: str, action: Callable[[], None], interval: float) -> None:
        self._name = name
        self._action = action
        self._interval = interval
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"wiggle-{name.replace(' ', '-')}", daemon=True)

    def start(self) -> None:
        """Begin, the first time after one interval."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End after the call that is under way, or return after `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = self._interval
        while not self._stopping.wait(wait):
            wait = self._interval if self._is_done() else min(RETRY_SECONDS, self._interval)

    def _is_done(self) -> bool:
        try:
            self._action()
        except StoreError as error:
            _log.warning("the %s failed, and is tried again: %s", self._name, error)
            return False
        except Exception:
            _log.exception("the %s failed, and is tried again", self._name)
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
