"""What a predicate may say: names, operators, types and limits (C6, C7), each refusal with a path.

Everything is refused here, when criteria are built or parsed, and nothing at claim time. The result has its literals
in one form: plain text and numbers, Decimal under DECIMAL references, instants in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, assert_never

from wiggle_core.criteria.tree import (
    FIELDS,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Leaf,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    canonical_decimal,
    pattern_parts,
)
from wiggle_core.criteria.written import predicate_to_object, written_size
from wiggle_core.errors import CriteriaError

MAX_NODES = 100
MAX_DEPTH = 16
MAX_VALUES = 200
MAX_PATTERN = 256
MAX_WILDCARDS = 8
MAX_TEXT = 255
MAX_DIGITS = 38
MAX_PLACES = 38
MAX_JSON_BYTES = 64 * 1024
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1
_CERTAINLY_SMALL = 32
"""So many nodes and literals cannot be written as 64 KiB: each takes at most 256 x 6 bytes of text and 200 more."""

ATTRIBUTE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ORDER = frozenset({Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL})
_PLAIN_DECIMAL = re.compile(r"-?[1-9][0-9]*(?:\.[0-9]*[1-9])?")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check(predicate: Predicate, path: str = "", queue: str | None = None) -> Predicate:
    """The predicate as written with its literals in one form; a leaf marked negated becomes `Not` of the leaf.

    Its JSON is measured, that of criteria where `queue` is given: what no reader accepts must not be built. Raises
    CriteriaError with the JSON pointer, below `path`, of the first offender (C6, C7).
    """
    walk = _Walk()
    checked = walk.visit(predicate, path, 1)
    if walk.nodes + walk.literals > _CERTAINLY_SMALL:
        where = predicate_to_object(checked)
        if written_size(where if queue is None else {"queue": queue, "where": where}) > MAX_JSON_BYTES:
            raise CriteriaError(f"more than {MAX_JSON_BYTES // 1024} KiB of JSON", path)
    return checked


@dataclass(slots=True)
class _Walk:
    """One pass from the top: counting on the way down keeps a nest of any depth from being followed."""

    nodes: int = 0
    literals: int = 0

    def visit(self, predicate: Predicate, path: str, depth: int) -> Predicate:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise CriteriaError(f"more than {MAX_NODES} nodes", path)
        if depth > MAX_DEPTH:
            raise CriteriaError(f"more than {MAX_DEPTH} levels", path)
        match predicate:
            case And(arguments):
                return And(self._all(arguments, path, depth))
            case Or(arguments):
                return Or(self._all(arguments, path, depth))
            case Not(argument):
                return Not(self.visit(argument, f"{path}/args/0", depth + 1))
            case Compare() | Between() | In() | Like() | IsNull():
                if predicate.negated:  # counted and kept as its JSON form has it: not of the leaf
                    return Not(self.visit(replace(predicate, negated=False), f"{path}/args/0", depth + 1))
                return self._leaf(predicate, path)
            case _:
                raise CriteriaError(f"a predicate is expected, not {type(predicate).__name__}", path)

    def _all(self, arguments: Sequence[Predicate], path: str, depth: int) -> tuple[Predicate, ...]:
        if not isinstance(arguments, (tuple, list)):
            raise CriteriaError("a list of predicates is expected", f"{path}/args")
        return tuple([self.visit(each, f"{path}/args/{index}", depth + 1) for index, each in enumerate(arguments)])

    def _leaf(self, leaf: Leaf, path: str) -> Leaf:
        kind = check_reference(leaf.reference, f"{path}/args/0")
        at = f"{path}/args/1"
        match leaf:
            case Compare(reference, operator, value):
                self.literals += 1
                known, checked = _check_operator(operator, kind, path), check_value(kind, value, at)
                # Most leaves are in their one form already, and a new one costs more than the rest of its check.
                return leaf if known is operator and checked is value else Compare(reference, known, checked)
            case Between(reference, low, high):
                self.literals += 2
                if kind is ValueType.BOOLEAN:
                    raise CriteriaError("booleans have no order", path)
                return Between(reference, check_value(kind, low, at), check_value(kind, high, f"{path}/args/2"))
            case In(reference, values):
                members = _check_list(kind, values, at)
                self.literals += len(members)
                return In(reference, members)
            case Like(reference, pattern, escape):
                self.literals += 1
                if kind is not ValueType.STRING:
                    raise CriteriaError(f"like is for text, not for {kind}", path)
                return Like(reference, *_check_pattern(pattern, escape, path))
            case IsNull():
                return leaf
            case _:
                assert_never(leaf)


def _check_operator(operator: object, kind: ValueType, path: str) -> Operator:
    try:
        known = operator if isinstance(operator, Operator) else Operator(str(operator))
    except ValueError:
        raise CriteriaError(f"no operator {short(operator)}; there are {', '.join(Operator)}", f"{path}/op") from None
    if kind is ValueType.BOOLEAN and known in _ORDER:
        raise CriteriaError("booleans have no order", path)
    return known


def _check_list(kind: ValueType, values: object, path: str) -> tuple[Value, ...]:
    if not isinstance(values, (tuple, list)):
        raise CriteriaError("a list of literals is expected", path)
    if len(values) > MAX_VALUES:
        raise CriteriaError(f"more than {MAX_VALUES} values in a list", path)
    return tuple(check_value(kind, value, f"{path}/{index}") for index, value in enumerate(values))


def check_reference(reference: Reference, path: str) -> ValueType:
    """The type of the values that a reference stands for. Raises CriteriaError for an unknown field or a bad name."""
    match reference:
        case FieldReference(name):
            if not isinstance(name, str) or name not in FIELDS:
                raise CriteriaError(f"no task field {short(name)}; there are {', '.join(FIELDS)}", f"{path}/field")
            return FIELDS[name]
        case AttributeReference(name, kind):
            check_attribute_name(name, f"{path}/attr")
            if not isinstance(kind, ValueType):
                raise CriteriaError(
                    f"no attribute type {short(kind)}; there are {', '.join(ValueType)}", f"{path}/type"
                )
            return kind
        case _:
            raise CriteriaError("a field or attribute is expected", path)


def check_attribute_name(name: object, path: str = "") -> str:
    """The attribute's name (A1). Raises CriteriaError."""
    if not isinstance(name, str) or ATTRIBUTE_NAME.fullmatch(name) is None:
        raise CriteriaError(
            f"{short(name)} is no attribute name: a lower-case letter, then up to 62 of a-z, 0-9 and _", path
        )
    return name


def check_value(kind: ValueType, value: object, path: str = "") -> Value:
    """The literal in the one form of its type. Raises CriteriaError for another type or a size beyond C7."""
    match kind:
        case ValueType.STRING:
            return check_text(value, path)
        case ValueType.LONG:
            return _check_long(value, path)
        case ValueType.DECIMAL:
            return _check_decimal(value, path)
        case ValueType.BOOLEAN:
            if not isinstance(value, bool):
                raise _wrong_type(kind, value, path)
            return value
        case ValueType.INSTANT:
            return _check_instant(value, path)
        case _:
            assert_never(kind)


def check_text(value: object, path: str = "", longest: int = MAX_TEXT) -> str:
    """Text within the bounds of C7: at most 255 code points, no U+0000, no lone surrogate. Raises CriteriaError."""
    if not isinstance(value, str):
        raise _wrong_type(ValueType.STRING, value, path)
    if len(value) > longest:
        raise CriteriaError(f"text of {len(value)} characters; {longest} at most", path)
    if _UNSTORABLE.search(value):
        raise CriteriaError("text with U+0000 or a lone surrogate, which no store can hold", path)
    return value if type(value) is str else str.__str__(value)


def _check_long(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(ValueType.LONG, value, path)
    if not MIN_LONG <= value <= MAX_LONG:
        raise CriteriaError("a whole number outside 64 bits", path)
    return int(value)


def _check_decimal(value: object, path: str) -> Decimal:
    if not isinstance(value, (int, Decimal)) or isinstance(value, bool):
        raise _wrong_type(ValueType.DECIMAL, value, path)
    decimal = fitting_decimal(value)
    if decimal is None:
        raise CriteriaError(f"a decimal has at most {MAX_DIGITS} digits and {MAX_PLACES} places, and is finite", path)
    return decimal


def fitting_decimal(value: int | Decimal) -> Decimal | None:
    """The number as a plain Decimal if it is finite, below 10^38 and within 38 digits and 38 places; else None."""
    if isinstance(value, int):
        return Decimal(value) if -(10**MAX_DIGITS) < value < 10**MAX_DIGITS else None
    text = str(value)
    # Most numbers are plain and short already, and this is asked of every decimal attribute of a bulk enqueue.
    if len(text) <= MAX_DIGITS and value.__class__ is Decimal and _PLAIN_DECIMAL.fullmatch(text):
        return value
    if not value.is_finite():
        return None
    if not value:
        return Decimal(0)
    if value.adjusted() >= MAX_DIGITS or value.adjusted() < -MAX_PLACES:
        return None
    plain = canonical_decimal(value)
    whole, _, fraction = plain.lstrip("-").partition(".")
    if len(fraction) > MAX_PLACES or len((whole + fraction).lstrip("0")) > MAX_DIGITS:
        return None
    return Decimal(plain)


def _check_instant(value: object, path: str) -> datetime:
    if not isinstance(value, datetime):
        raise _wrong_type(ValueType.INSTANT, value, path)
    if value.utcoffset() is None:
        raise CriteriaError("an instant needs an offset (an aware datetime)", path)
    try:
        moved = value.astimezone(timezone.utc)
    except OverflowError:
        raise CriteriaError("an instant outside the years 1-9999", path) from None
    return datetime.combine(moved.date(), moved.time(), timezone.utc)


def _check_pattern(pattern: object, escape: object, path: str) -> tuple[str, str | None]:
    at = f"{path}/args/1"
    checked = check_text(pattern, at, MAX_PATTERN)
    sign = None if escape is None else check_text(escape, f"{path}/escape")
    if sign is not None and len(sign) != 1:
        raise CriteriaError("an escape is one character", f"{path}/escape")
    if sum(map(checked.count, "%_")) > MAX_WILDCARDS:
        raise CriteriaError(f"more than {MAX_WILDCARDS} wildcards", at)
    try:
        pattern_parts(checked, sign)
    except ValueError as error:
        raise CriteriaError(str(error), at) from None
    return checked, sign


def _wrong_type(kind: ValueType, value: object, path: str) -> CriteriaError:
    article = "an" if kind is ValueType.INSTANT else "a"
    return CriteriaError(f"{article} {kind} literal is expected, not {short(value)}", path)


def short(value: Any) -> str:  # Any: whatever the caller passed
    """The value's own text where that is short, else its type: an error must not repeat a megabyte."""
    if value is None:
        return "null"
    if isinstance(value, str) and len(value) <= 40:
        return repr(value)
    if isinstance(value, int) and value.bit_length() <= 128:
        return repr(value)
    if isinstance(value, (Decimal, float)) and len(text := str(value)) <= 40:
        return text
    return type(value).__name__
