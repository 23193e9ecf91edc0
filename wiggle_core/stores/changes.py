"""What each change asks of a task and makes of it, for stores that decide this in the process.

SQL stores say the same in their statements. A store calls these while it holds whatever keeps others from the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from wiggle_core.criteria.tree import Value
from wiggle_core.stores.store import Cancel, Change, Expire, Finish, GiveBack, Promote, Requeue, Revive
from wiggle_core.tasks.task import LIVE, State, TaskRecord


def permits(task: TaskRecord, change: Change, now: int) -> bool:
    """Whether the task is in the state that the change names: its guard. A stale token permits nothing (L2)."""
    match change:
        case Finish(lease) | Requeue(lease) | GiveBack(lease):
            return is_leased(task, lease.token)
        case Expire(lease):
            return is_leased(task, lease.token) and task.lease_until is not None and task.lease_until <= now
        case Promote():
            return task.state is State.SCHEDULED and task.ready_at <= now
        case Cancel():
            return task.state in LIVE
        case Revive():
            return task.state in (State.FAILED, State.CANCELLED)
        case _:
            assert_never(change)


def changed(task: TaskRecord, change: Change, now: int) -> TaskRecord:
    """What a permitted change makes of the task. The last token stays with it, whatever happens (L6)."""
    match change:
        case Finish(_, state, result, error):
            return replace(task, state=state, finished_at=now, result=result, error=error)
        case Requeue(_, delay, attributes, error):
            return _waiting(task, now, delay, attributes, error)
        case GiveBack(_, attributes):
            return replace(task, state=State.READY, attributes=dict(attributes), owner=None, lease_until=None)
        case Expire(_, delay, attributes, error):
            if delay is None:
                return replace(task, state=State.FAILED, finished_at=now, error=error)
            return _waiting(task, now, delay, attributes, error)
        case Promote(_, attributes):
            return replace(task, state=State.READY, ready_at=now, attributes=dict(attributes))
        case Cancel():
            return replace(task, state=State.CANCELLED, finished_at=now)
        case Revive(_, attributes):
            return _revived(task, now, attributes)
        case _:
            assert_never(change)


def makes_ready(change: Change) -> bool:
    """Whether a task is READY once this change took effect, so that the lanes it enters matter (N3)."""
    match change:
        case Requeue(_, delay) | Expire(_, delay):
            return delay is not None and delay <= 0
        case GiveBack() | Promote() | Revive():
            return True
        case Finish() | Cancel():
            return False
        case _:
            assert_never(change)


def is_leased(task: TaskRecord, token: str) -> bool:
    """Whether the task runs under this token; a lease that ran out is held until it is taken back (L2)."""
    return task.state is State.RUNNING and task.token == token


def _waiting(task: TaskRecord, now: int, delay: int, attributes: Mapping[str, Value], error: str | None) -> TaskRecord:
    return replace(
        task,
        state=State.SCHEDULED if delay > 0 else State.READY,
        attempt=task.attempt + 1,
        ready_at=now + delay,
        attributes=dict(attributes),
        error=error,
        owner=None,
        lease_until=None,
    )


def _revived(task: TaskRecord, now: int, attributes: Mapping[str, Value]) -> TaskRecord:
    return replace(
        task,
        state=State.READY,
        attempt=1,
        ready_at=now,
        attributes=dict(attributes),
        finished_at=None,
        result=None,
        error=None,
        owner=None,
        lease_until=None,
    )
