"""Payloads and results as JSON text: what is refused, and the one spelling that stores keep."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from wiggle_core.errors import TaskRejected

MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_PAYLOAD_DEPTH = 500
"""Python's decoder gives up near 1,000 levels, counted from wherever the reader's stack stands."""

# Circles are met as too many levels: looking for them would cost every payload a tenth of its encoding.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


@dataclass(frozen=True, slots=True)
class JsonText:
    """A payload that is JSON text already and is kept as written, so that no fraction passes through a float."""

    text: str


def dump_payload(value: object, longest: int = MAX_PAYLOAD_BYTES, field: str = "payload") -> str:
    """The value as compact JSON text; a `JsonText` as it stands.

    Raises TaskRejected, naming `field`, for what JSON cannot say (NaN too), for a lone surrogate, for more than
    `longest` bytes of UTF-8 or for more than 500 levels.
    """
    if value is None:
        return "null"
    text = _dump(value, field)
    size = len(text) if text.isascii() else _utf8_size(text, field)
    if size > longest:
        raise TaskRejected(field, f"{size} bytes of JSON; {longest} at most")
    if text.count("[") + text.count("{") > MAX_PAYLOAD_DEPTH and _depth(text) > MAX_PAYLOAD_DEPTH:
        raise TaskRejected(field, f"more than {MAX_PAYLOAD_DEPTH} levels")
    return text


def _dump(value: object, field: str) -> str:
    try:
        return _verified(value.text) if isinstance(value, JsonText) else _encode(value)
    except RecursionError:
        raise TaskRejected(field, f"more than {MAX_PAYLOAD_DEPTH} levels") from None
    except Exception as error:  # a mapping of the caller's own class, such as a lazy row, may raise anything
        raise TaskRejected(field, f"cannot be written as JSON: {error}") from error


def _verified(text: str) -> str:
    json.loads(text, parse_constant=_refuse_constant)
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _utf8_size(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise TaskRejected(field, "text with a lone surrogate, which no store can hold") from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _STRING_OR_BRACKET.findall(text):
        if token in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token in ("]", "}"):
            depth -= 1
    return deepest
