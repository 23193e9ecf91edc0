"""One line of `wiggle enqueue`: a JSON object with the fields of `NewTask`, checked by a model, the payload's text kept
as written."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import Line
from wiggle_core.cli.output import printable
from wiggle_core.criteria.check import MAX_JSON_BYTES
from wiggle_core.criteria.instants import parse_instant
from wiggle_core.tasks.ids import new_task_id
from wiggle_core.tasks.payload import JsonText
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy
from wiggle_core.tasks.submission import NewTask

MAX_SECONDS = 10**10
"""Some 300 years: below what a timedelta holds, above what anybody waits for."""
LONGEST_WHOLE = 4000
MOST_KEYS = 100
"""Far more than there are: a line of millions is left after so many."""


def _seconds(value: object) -> timedelta:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"a number of seconds from 0 to {MAX_SECONDS} is expected")
    return timedelta(seconds=value)


def _instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("RFC 3339 text with an offset is expected")
    return parse_instant(value)


Seconds = Annotated[timedelta, BeforeValidator(_seconds)]
Instant = Annotated[datetime, BeforeValidator(_instant)]


class RetryLine(BaseModel):
    """A retry policy; times in seconds."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    max_attempts: int = DEFAULT_RETRY.max_attempts
    initial_backoff: Seconds = DEFAULT_RETRY.initial_backoff
    multiplier: float = DEFAULT_RETRY.multiplier
    max_backoff: Seconds = DEFAULT_RETRY.max_backoff
    jitter: float = DEFAULT_RETRY.jitter


class TaskLine(BaseModel):
    """The keys of a line and their types, `payload` apart; bounds are for the engine to check."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    queue: str
    step: str
    workflow: str | None = None
    version: int | None = None
    node: str | None = None
    kind: str = "task"
    correlation_id: str | None = None
    id: str | None = None
    priority: int = 0
    delay: Seconds | None = None
    ready_at: Instant | None = None
    retry: RetryLine | None = None


_PAYLOAD = "payload"
_KEYS = frozenset({*TaskLine.model_fields, _PAYLOAD})


def new_task(line: Line) -> NewTask:
    """The task that a line describes, with an id. Raises InputError with file and line."""
    try:
        members = split_members(line.text())
        _check_bounds(members)
        payload = JsonText(members.pop(_PAYLOAD)[1]) if _PAYLOAD in members else None
        read = TaskLine.model_validate({name: value for name, (value, _) in members.items()})
        retry = None if read.retry is None else RetryPolicy(**dict(read.retry))
    except ValidationError as error:
        raise InputError(f"{line.place}: {_first(error)}") from None
    except ValueError as error:
        raise InputError(f"{line.place}: {error}") from None
    # The id is made here, so that a batch can be stored again after it was refused.
    task_id = new_task_id() if read.id is None else read.id
    return NewTask(**dict(read) | {"payload": payload, "id": task_id, "retry": retry})


def _check_bounds(members: dict[str, tuple[Any, str]]) -> None:  # Any: JSON of any shape
    """Refuse what the model would take seconds to refuse: it lists every fault of a line full of unknown keys."""
    for name, (_, text) in members.items():
        if name not in _KEYS:
            raise ValueError(f"{printable(name[:80])}: no such key")
        if name != _PAYLOAD and len(text) > MAX_JSON_BYTES:
            raise ValueError(f"{name}: more than {MAX_JSON_BYTES // 1024} KiB of JSON")


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = printable(".".join(map(str, first["loc"]))[:80])
    return f"{name}: {'no such key' if first['type'] == 'extra_forbidden' else first['msg']}"


def split_members(text: str) -> dict[str, tuple[Any, str]]:  # Any: JSON of any shape
    """The members of a JSON object: each decoded, and as written. Raises ValueError for anything else."""
    members: dict[str, tuple[Any, str]] = {}  # Any: as above
    try:
        at = _expect("{", text, 0)
        if text[at : at + 1] != "}":
            at = _member(text, at, members)
            while text[at : at + 1] == ",":
                at = _member(text, _skip(text, at + 1), members)
        if _expect("}", text, at) != len(text):
            raise ValueError("more text after the object")
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.pos + 1}") from None
    return members


def _member(text: str, at: int, members: dict[str, tuple[Any, str]]) -> int:  # Any: as above
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("a key in double quotes is expected", text, at)
    name, after = _decoder.raw_decode(text, at)
    start = _expect(":", text, _skip(text, after))
    value, end = _decoder.raw_decode(text, start)
    if name in members:
        raise ValueError(f"the key {name[:40]!r} stands twice")
    if len(members) == MOST_KEYS:
        raise ValueError(f"more than {MOST_KEYS} keys")
    members[name] = value, text[start:end]
    return _skip(text, end)


def _expect(sign: str, text: str, at: int) -> int:
    if text[at : at + 1] != sign:
        raise json.JSONDecodeError(f"{sign!r} is expected", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _whole(text: str) -> int:
    if len(text) > LONGEST_WHOLE:  # int() refuses some thousand digits, and a reader of the payload would too
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_int=_whole, parse_constant=_refuse_constant)
