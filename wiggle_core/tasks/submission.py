"""`NewTask`, what is asked for at enqueue, and `admit`, which checks it and makes the stored record of it (C7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from wiggle_core.criteria.builder import check_queue
from wiggle_core.criteria.check import MAX_LONG, MAX_TEXT, MIN_LONG, check_text
from wiggle_core.criteria.instants import MAX_MICROS, to_micros
from wiggle_core.criteria.tree import Value
from wiggle_core.errors import CriteriaError, TaskRejected
from wiggle_core.tasks.ids import new_task_id
from wiggle_core.tasks.payload import MAX_PAYLOAD_BYTES, dump_payload
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy
from wiggle_core.tasks.task import MAX_ID, MAX_PRIORITY, State, TaskRecord

AttributesOf: TypeAlias = Callable[[str | None, int | None, str], Mapping[str, Value]]
"""The attributes of a payload's JSON text, as the workflow and version declare them."""

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to enqueue. `delay` or `ready_at` (an aware datetime), not both, makes it wait; `id` is made when not
    given. Checked when it is enqueued."""

    queue: str
    step: str
    payload: object = None
    workflow: str | None = None
    version: int | None = None
    node: str | None = None
    kind: str = "task"
    correlation_id: str | None = None
    id: str | None = None
    priority: int = 0
    delay: timedelta | None = None
    ready_at: datetime | None = None
    retry: RetryPolicy | None = None


def admit(new: NewTask, now: int, attributes_of: AttributesOf, longest: int = MAX_PAYLOAD_BYTES) -> TaskRecord:
    """The record of a new task at the store's time `now`: READY, or SCHEDULED when it has to wait.

    Raises TaskRejected naming the field that is out of bounds.
    """
    workflow, version = _optional_name("workflow", new.workflow), _version(new.version)
    payload = dump_payload(new.payload, longest)
    ready_at = now if new.delay is None and new.ready_at is None else _ready_at(new, now)
    task_id = new_task_id() if new.id is None else _text("id", new.id, 1, MAX_ID)
    return TaskRecord(
        id=task_id,
        queue=_queue(new.queue),
        step=check_step(new.step),
        created_at=now,
        ready_at=ready_at,
        state=State.READY if ready_at <= now else State.SCHEDULED,
        payload=payload,
        attributes=attributes_of(workflow, version, payload),
        priority=_priority(new.priority),
        workflow=workflow,
        version=version,
        node=_optional_name("node", new.node),
        kind=_name("kind", new.kind, 1),
        correlation_id=_optional_text("correlation_id", new.correlation_id),
        # An instance of its own: `created_at` is that of the instance (C1), and so is now.
        instance_id=task_id,
        retry=DEFAULT_RETRY if new.retry is None else _retry(new.retry),
    )


def _queue(queue: object) -> str:
    if not isinstance(queue, str):
        raise TaskRejected("queue", f"text is expected, not {type(queue).__name__}")
    return _known_queue(queue)


@lru_cache(maxsize=1024)
def _known_queue(queue: str) -> str:
    try:
        return check_queue(queue)
    except CriteriaError as error:
        raise TaskRejected("queue", error.message) from None


def check_step(step: object) -> str:
    """The step's name: text of 1 to 255 code points. Raises TaskRejected."""
    return _name("step", step, 1)


def _optional_text(field: str, value: object) -> str | None:
    return None if value is None else _text(field, value)


def _optional_name(field: str, value: object) -> str | None:
    return None if value is None else _name(field, value)


def _name(field: str, value: object, shortest: int = 0) -> str:
    """Text that many tasks share: found good once, it need not be read again."""
    return _known_name(field, value, shortest) if isinstance(value, str) else _text(field, value, shortest)


@lru_cache(maxsize=1024)
def _known_name(field: str, value: str, shortest: int) -> str:
    return _text(field, value, shortest)


def _text(field: str, value: object, shortest: int = 0, longest: int = MAX_TEXT) -> str:
    # Plain ASCII takes the short way: these checks run for every row of a bulk enqueue.
    if type(value) is str and shortest <= len(value) <= longest and value.isascii() and "\0" not in value:
        return value
    try:
        checked = check_text(value, longest=longest)
    except CriteriaError as error:
        raise TaskRejected(field, error.message) from None
    if len(checked) < shortest:
        raise TaskRejected(field, "is empty")
    return checked


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TaskRejected("priority", f"a whole number is expected, not {type(value).__name__}")
    if not 0 <= value <= MAX_PRIORITY:
        raise TaskRejected("priority", f"from 0, the most urgent, to {MAX_PRIORITY}")
    return int(value)


def _version(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TaskRejected("version", f"a whole number is expected, not {type(value).__name__}")
    if not MIN_LONG <= value <= MAX_LONG:
        raise TaskRejected("version", "a whole number outside 64 bits")
    return int(value)


def _retry(value: object) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise TaskRejected("retry", f"a RetryPolicy is expected, not {type(value).__name__}")
    return value


def _ready_at(new: NewTask, now: int) -> int:
    """When the task is due. A time that has passed is now: nobody gets ahead by asking for yesterday."""
    if new.delay is not None and new.ready_at is not None:
        raise TaskRejected("ready_at", "give delay or ready_at, not both")
    if new.delay is None:
        return max(now, _instant(new.ready_at))
    micros = delay_micros(new.delay)
    if now + micros > MAX_MICROS:
        raise TaskRejected("delay", "ends after the year 9999")
    return now + micros


def delay_micros(delay: object) -> int:
    """Microseconds of a delay. Raises TaskRejected for anything but a timedelta that is not negative."""
    if not isinstance(delay, timedelta):
        raise TaskRejected("delay", f"a timedelta is expected, not {type(delay).__name__}")
    if delay < timedelta(0):
        raise TaskRejected("delay", "is negative")
    return delay // _MICROSECOND


def _instant(value: object) -> int:
    if not isinstance(value, datetime):
        raise TaskRejected("ready_at", f"a datetime is expected, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise TaskRejected("ready_at", "a datetime needs an offset (an aware datetime)")
    return to_micros(value)
