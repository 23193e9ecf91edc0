"""Tasks as JSON objects, taken as given: no extraction, no clock.

The form is that of the conformance cases and of `wiggle criteria match --tasks`: instants as RFC 3339 text, attribute
values as wire literals, an absent value null or left out. The retry policy is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast

from wiggle_core.criteria.builder import check_queue
from wiggle_core.criteria.check import (
    MAX_LONG,
    MIN_LONG,
    check_attribute_name,
    check_text,
    fitting_decimal,
)
from wiggle_core.criteria.instants import format_instant, from_micros, parse_instant, to_micros
from wiggle_core.criteria.tree import Value
from wiggle_core.criteria.wire import value_from_wire, value_to_wire
from wiggle_core.errors import CriteriaError, TaskRejected
from wiggle_core.tasks.task import MAX_ID, MAX_PRIORITY, State, TaskRecord

_INSTANTS = frozenset({"created_at", "ready_at", "lease_until", "finished_at"})
_REQUIRED = ("id", "queue", "step", "created_at", "ready_at")


def task_from_object(obj: object) -> TaskRecord:
    """The task that a JSON object describes, READY unless it says otherwise.

    Raises TaskRejected, naming the key, for an unknown or missing key and for a value that is no such value or is
    beyond the bounds of C7.
    """
    if not isinstance(obj, Mapping):
        raise TaskRejected("task", "an object is expected")
    given = {name: value for name, value in obj.items() if value is not None}
    for name in _REQUIRED:
        if name not in given:
            raise TaskRejected(name, "missing")
    read = {name: _read(name, value) for name, value in given.items()}
    return TaskRecord(**{"instance_id": read["id"]} | read)


def task_to_object(task: TaskRecord) -> dict[str, object]:
    """The JSON object that `task_from_object` reads back; what is absent is left out."""
    written = ((name, _write(name, getattr(task, name))) for name in _READERS)
    return {name: value for name, value in written if value is not None}


def _read(name: object, value: object) -> Any:  # Any: each key has a type of its own, which its reader has checked
    reader = _READERS.get(cast("str", name))
    if reader is None:
        raise TaskRejected(_shown(name), "no such key")
    try:
        return reader(value)
    except CriteriaError as error:
        at = f"attributes{error.path}" if name == "attributes" else str(name)
        raise TaskRejected(at, error.message) from error


def _shown(name: object) -> str:
    """A foreign key, short and printable: with a lone surrogate in it the message could not be written anywhere."""
    text = str(name)[:MAX_ID]
    return text if text.isprintable() else ascii(text)


def _write(name: str, value: object) -> object:
    if name == "attributes":
        return {each: value_to_wire(held) for each, held in cast("Mapping[str, Value]", value).items()}
    if name in _INSTANTS and value is not None:
        return format_instant(from_micros(cast("int", value)))
    return str(value) if isinstance(value, State) else value


def _id(value: object) -> str:
    text = check_text(value, longest=MAX_ID)
    if not text:
        raise CriteriaError("an id has 1 to 64 characters")
    return text


def _whole(value: object, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise CriteriaError(f"a whole number from {lowest} to {highest} is expected")
    return value


def _instant(value: object) -> int:
    try:
        return to_micros(parse_instant(_json_text(value)))
    except ValueError as error:
        raise CriteriaError(str(error)) from error


def _state(value: object) -> State:
    if not isinstance(value, str) or value not in State.__members__:
        raise CriteriaError(f"no state; there are {', '.join(State)}")
    return State(value)


def _json_text(value: object) -> str:
    if not isinstance(value, str):
        raise CriteriaError("text is expected")
    return value


def _attributes(value: object) -> dict[str, Value]:
    if not isinstance(value, Mapping):
        raise CriteriaError("an object is expected")
    return {check_attribute_name(name): _attribute(literal, f"/{name}") for name, literal in value.items()}


def _attribute(literal: object, path: str) -> Value:
    value = value_from_wire(literal, path)
    match value:
        case str():
            return check_text(value, path)
        case bool() | datetime():
            return value
        case int() | Decimal():
            if fitting_decimal(value) is None:
                raise CriteriaError("a number beyond 38 digits or 38 places", path)
            return value


_READERS: dict[str, Callable[[object], object]] = {
    "id": _id,
    "queue": check_queue,
    "workflow": check_text,
    "version": partial(_whole, lowest=MIN_LONG, highest=MAX_LONG),
    "step": check_text,
    "node": check_text,
    "kind": check_text,
    "attempt": partial(_whole, lowest=1, highest=2**31 - 1),
    "correlation_id": check_text,
    "created_at": _instant,
    "ready_at": _instant,
    "priority": partial(_whole, lowest=0, highest=MAX_PRIORITY),
    "attributes": _attributes,
    "payload": _json_text,
    "instance_id": _id,
    "state": _state,
    "owner": check_text,
    "token": check_text,
    "lease_until": _instant,
    "finished_at": _instant,
    "result": _json_text,
    "error": _json_text,
}
"""Every key there may be, in the order of writing, and what reads its value. Readers raise CriteriaError."""
