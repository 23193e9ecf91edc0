"""From the outcome of a run to the change that the store applies, by the retry policy kept with the task (L3)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import assert_never

from wiggle_core.engine.placement import Move, Placing
from wiggle_core.errors import TaskRejected
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.outcome import Done, Fail, Outcome, Release, Retry
from wiggle_core.tasks.payload import MAX_PAYLOAD_BYTES, dump_payload
from wiggle_core.tasks.retry import MAX_DELAY
from wiggle_core.tasks.submission import delay_micros
from wiggle_core.tasks.task import State, TaskRecord

_log = logging.getLogger("wiggle.engine")

MAX_ERROR = 2_000
"""Characters kept of an error's text."""

USED_UP = "no attempt is left"


def settlement(task: TaskRecord, outcome: Outcome, placing: Placing, longest: int = MAX_PAYLOAD_BYTES) -> Move:
    """The move that reports `outcome` for the task's last lease.

    Raises TaskRejected naming `result` when it is no JSON or too large, or `delay` when that is negative or
    longer than a hundred years.
    """
    match outcome:
        case Done(result):
            return Move(Finish(task.lease, State.DONE, result=dump_payload(result, longest, "result")))
        case Fail(error):
            return Move(Finish(task.lease, State.FAILED, error=error_text(error)))
        case Release():
            return placing.give_back(task)
        case Retry():
            return _retry(task, outcome, placing)
        case _:
            assert_never(outcome)


def accepted(task: TaskRecord, outcome: Outcome, placing: Placing, longest: int = MAX_PAYLOAD_BYTES) -> Move:
    """As `settlement`, but an outcome that is refused becomes a failure that says why. It is not retried: the work is
    done, and the next run would return the same."""
    try:
        return settlement(task, outcome, placing, longest)
    except TaskRejected as error:
        _log.warning("task %s failed: its outcome was refused: %s", task.id, error)
        return settlement(task, Fail(str(error)), placing, longest)


def _retry(task: TaskRecord, outcome: Retry, placing: Placing) -> Move:
    error = None if outcome.error is None else error_text(outcome.error)
    delay = task.retry.delay(task.attempt) if outcome.delay is None else _asked_delay(outcome.delay)
    if not task.retry.allows_another(task.attempt):
        return Move(Finish(task.lease, State.FAILED, error=error or USED_UP))
    return placing.requeue(task, delay, error)


def _asked_delay(delay: timedelta) -> int:
    micros = delay_micros(delay)
    if delay > MAX_DELAY:
        raise TaskRejected("delay", f"is longer than {MAX_DELAY.days} days")
    return micros


def error_text(error: object) -> str:
    """Text of an error that every store can hold: at most 2,000 characters, no U+0000, no lone surrogate."""
    if not isinstance(error, str):
        raise TaskRejected("error", f"text is expected, not {type(error).__name__}")
    shown = error if len(error) <= MAX_ERROR else error[: MAX_ERROR - 1] + "…"
    return shown.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
