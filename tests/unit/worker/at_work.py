"""What tests of a worker at work share: how to make one, and to wait for what it does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from time import monotonic
from typing import Any

from wiggle_core import Engine, TaskRecord, Worker
from wiggle_core.settings import Settings

LONG = 60.0
"""Seconds after which a test that waits in vain fails."""
NEVER = timedelta(hours=1)
QUICK = Settings(sweep_interval_millis=10, scoped_fallback_max_millis=100)


def settled(engine: Engine, task_id: str) -> TaskRecord:
    """The task once it is settled; the wait ends with the event, not with a time."""
    deadline = monotonic() + LONG
    while (task := engine.get(task_id)) is None or task.finished_at is None:
        assert monotonic() < deadline, f"{task} is not settled"
        Event().wait(0.002)
    return task


def eventually(condition: Callable[[], object]) -> None:
    deadline = monotonic() + LONG
    while not condition():
        assert monotonic() < deadline
        Event().wait(0.002)


def make(engine: Engine, **options: Any) -> Worker:
    given = {"queues": None if "criteria" in options else ["q"], "concurrency": 2, "heartbeat": timedelta(seconds=10)}
    return Worker(engine, "w", **{**given, **options})
