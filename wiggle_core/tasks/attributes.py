"""Attributes: what a workflow declares (A1), and how values are read from a task's payload (A2, A3).

Extraction reads the payload's JSON text, not the Python objects that were enqueued, so that it sees what the step
will receive, with fractions exactly as written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from wiggle_core.criteria.check import (
    MAX_DIGITS,
    MAX_LONG,
    MAX_PLACES,
    MAX_TEXT,
    MIN_LONG,
    check_attribute_name,
    check_text,
    fitting_decimal,
)
from wiggle_core.criteria.fields import value_type
from wiggle_core.criteria.instants import parse_instant
from wiggle_core.criteria.tree import Value, ValueType
from wiggle_core.errors import CriteriaError, DeclarationError, TaskRejected

MAX_ATTRIBUTES = 16
_INDEX = re.compile(r"0|[1-9][0-9]*")
_LONGEST_LONG = 20
_SHOWN = 63
_ABSENT = object()


class Attribute:
    """One declared attribute: a name, a type (str, int, Decimal, bool, datetime) and a dotted path into the payload.

    A numeric segment indexes a list, or names a key of an object (A1). Raises DeclarationError.
    """

    __slots__ = ("name", "path", "type")

    def __init__(self, name: str, type: type | ValueType, path: str) -> None:
        try:
            self.name = check_attribute_name(name)
            self.type = type if isinstance(type, ValueType) else value_type(type)
            self.path = check_text(path)
        except CriteriaError as error:
            raise DeclarationError(f"attribute {str(name)[:_SHOWN]!r}: {error}", str(name)) from None
        if not all(path.split(".")):
            raise DeclarationError(f"attribute {name!r}: the path {path!r} has an empty segment", name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attribute) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Attribute({self.name!r}, {self.type.value!r}, {self.path!r})"

    def _key(self) -> tuple[str, str, str]:
        return self.name, self.type, self.path


class Miss(StrEnum):
    """Why an attribute is absent (A3)."""

    UNRESOLVED = "the path does not resolve"
    UNFIT = "the value does not fit the declared type"


@dataclass(frozen=True, slots=True)
class Extracted:
    """The values found, by name, and the reason for each that is absent."""

    values: Mapping[str, Value]
    misses: Mapping[str, Miss] = field(default_factory=dict)


class Declaration:
    """The attributes of one workflow version, ready to extract. Raises DeclarationError for what A1 refuses."""

    __slots__ = ("_steps", "attributes")

    def __init__(self, attributes: Iterable[Attribute]) -> None:
        self.attributes = tuple(attributes)
        if len(self.attributes) > MAX_ATTRIBUTES:
            raise DeclarationError(f"{len(self.attributes)} attributes; a workflow declares at most {MAX_ATTRIBUTES}")
        names = [attribute.name for attribute in self.attributes]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"attribute {name!r} is declared twice", name)
        self._steps = [(each.name, tuple(each.path.split(".")), _FITS[each.type]) for each in self.attributes]

    def extract(self, payload: str) -> Extracted:
        """The attributes of a payload's JSON text. What does not resolve or fit is absent, never an error (A3).

        Raises TaskRejected when the text is no JSON at all.
        """
        if not self._steps:
            return Extracted({})
        context = parse_payload(payload)
        values: dict[str, Value] = {}
        misses: dict[str, Miss] = {}
        for name, path, fit in self._steps:
            found: Any = context  # Any: JSON of any shape
            for segment in path:
                found = found.get(segment, _ABSENT) if found.__class__ is dict else _element(found, segment)
            if found is _ABSENT or found is None:
                misses[name] = Miss.UNRESOLVED
            elif (value := fit(found)) is not None:
                values[name] = value
            else:
                misses[name] = Miss.UNFIT
        return Extracted(values, misses)


def parse_payload(text: str) -> object:
    """The payload with fractions as Decimal, exactly as written. Raises TaskRejected when it is no JSON."""
    try:
        found, end = _scan(text)
    except (ValueError, ArithmeticError, RecursionError):
        return _parse_oddity(text)
    return found if end == len(text) else _parse_oddity(text)


def _parse_oddity(text: str) -> object:
    """As `parse_payload`, for text with numbers beyond what int() and Decimal() read, with blanks around it, or that
    is no JSON."""
    try:
        return _decode_oddity(text)
    except RecursionError:
        raise TaskRejected("payload", "nested too deeply") from None
    except ValueError as error:
        raise TaskRejected("payload", f"no JSON: {error}") from None


def _whole(text: str) -> int | Decimal:
    # int() refuses texts of more than 4,300 digits; a Decimal of that size is unfit, as it has to be.
    return int(text) if len(text) < 100 else Decimal(text)


def _fraction(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _not_finite(_: str) -> Decimal:
    return Decimal("NaN")


# Made once: json.loads makes a decoder for every call that names a parser, 1.2 of the 3.1 us of a small payload. And
# numbers are read by C code until one is met that it refuses: a Python function for each takes as long as the rest.
_scan = json.JSONDecoder(parse_float=Decimal, parse_constant=_not_finite).raw_decode
_decode_oddity = json.JSONDecoder(parse_float=_fraction, parse_int=_whole, parse_constant=_not_finite).decode


def _element(of: object, segment: str) -> object:
    """What a segment of a path finds in anything but an object."""
    if isinstance(of, list) and _INDEX.fullmatch(segment) and len(segment) < 10 and int(segment) < len(of):
        return of[int(segment)]
    return _ABSENT


def _fit_string(value: object) -> str | None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return None
    if value.isascii() and "\0" not in value:
        return value
    try:
        return check_text(value)
    except CriteriaError:
        return None


def _fit_long(value: object) -> int | None:
    if isinstance(value, Decimal):
        if not value:
            return 0  # before the exponent is looked at: 0e99 is zero too
        if not value.is_finite() or value.adjusted() > _LONGEST_LONG or value != int(value):
            return None
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if MIN_LONG <= value <= MAX_LONG else None


def _fit_decimal(value: object) -> Decimal | None:
    if not isinstance(value, (int, Decimal)) or isinstance(value, bool):
        return None
    return value if isinstance(value, Decimal) and _is_plain(value) else fitting_decimal(value)


def _is_plain(value: Decimal) -> bool:
    """Whether the number plainly fits as it is: a fraction without needless zeros, as almost all are."""
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and -MAX_PLACES <= exponent < 0 != digits[-1] and len(digits) <= MAX_DIGITS


def _fit_boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _fit_instant(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_instant(value)
    except ValueError:
        return None


_FITS: dict[ValueType, Callable[[object], Value | None]] = {
    ValueType.STRING: _fit_string,
    ValueType.LONG: _fit_long,
    ValueType.DECIMAL: _fit_decimal,
    ValueType.BOOLEAN: _fit_boolean,
    ValueType.INSTANT: _fit_instant,
}
