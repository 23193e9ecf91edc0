"""The JSON form of criteria, used by every client language: read strictly, written in one way (section 4).

Every refusal is a CriteriaError with a JSON pointer (RFC 6901) to the offender. Reading bounds itself: whatever is
given, nothing is followed deeper or counted further than the limits of C7.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from typing import Any, NoReturn, cast

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import (
    MAX_DEPTH,
    MAX_JSON_BYTES,
    MAX_LONG,
    MAX_NODES,
    MAX_VALUES,
    MIN_LONG,
    check,
    short,
)
from wiggle_core.criteria.instants import has_lost_digits, parse_instant
from wiggle_core.criteria.tree import (
    FIELDS,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    normalize,
)
from wiggle_core.criteria.written import predicate_to_object, to_json, value_to_wire
from wiggle_core.errors import CriteriaError

__all__ = [
    "criteria_from_json",
    "criteria_from_object",
    "criteria_to_json",
    "criteria_to_object",
    "json_schema",
    "parse_json",
    "predicate_from_object",
    "predicate_to_object",
    "stored_predicate",
    "value_from_wire",
    "value_to_wire",
]

_LONG = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ARITIES: dict[str, int] = {operator.value: 2 for operator in Operator}
_ARITIES.update({"between": 3, "in": 2, "like": 2, "isNull": 1, "not": 1})
_OPERATORS = (*_ARITIES, "and", "or")


def criteria_from_json(text: str | bytes) -> QueueCriteria:
    """Criteria from at most 64 KiB of JSON. Raises CriteriaError (C6, C7)."""
    return criteria_from_object(parse_json(text))


def criteria_from_object(obj: object) -> QueueCriteria:
    """Criteria from decoded JSON; `where` null or absent means everything on the queue. Raises CriteriaError."""
    members = _object(obj, "", {"queue"}, {"where"}, "criteria")
    where = members.get("where")
    predicate = None if where is None else _Reader().predicate(where, "/where", 1)
    return QueueCriteria(cast("str", members["queue"]), predicate)  # QueueCriteria checks both


def criteria_to_object(criteria: QueueCriteria) -> dict[str, object]:
    """The criteria in their JSON form, the predicate as written."""
    if criteria.predicate is None:
        return {"queue": criteria.queue}
    return {"queue": criteria.queue, "where": predicate_to_object(criteria.predicate)}


def criteria_to_json(criteria: QueueCriteria) -> str:
    """The criteria as compact JSON text."""
    return to_json(criteria_to_object(criteria))


def predicate_from_object(obj: object, path: str = "/where") -> Predicate:
    """The checked predicate of decoded JSON. Raises CriteriaError with a pointer below `path`."""
    return check(_Reader().predicate(obj, path, 1), path)


def stored_predicate(text: str) -> Predicate:
    """The normal form that was written by `to_json(predicate_to_object(...))`, whatever its size.

    It is ours: a normal form that was checked when it was built, but which may exceed what users may write (C7), since
    pushing negation down and joining the steps of a worker adds nodes. Raises CriteriaError for any other text.
    """
    try:
        obj = json.loads(text, parse_float=_exact_fraction, parse_constant=_refuse_constant)
    except ValueError as error:
        raise CriteriaError(f"not JSON: {error}") from None
    return normalize(_Reader(_OURS).predicate(obj, "", 1))


def json_schema() -> dict[str, Any]:  # Any: a JSON Schema is JSON of any shape
    """The published JSON Schema (2020-12) of the wire form. It is necessary, not sufficient: `check` decides."""
    text = files("wiggle_core.criteria").joinpath("criteria.schema.json").read_text(encoding="utf-8")
    return cast("dict[str, Any]", json.loads(text))


def parse_json(text: str | bytes) -> object:
    """Decoded JSON, strictly: fractions as Decimal exactly as written, no NaN, no key twice, 64 KiB at most.

    Raises CriteriaError.
    """
    if len(text) > MAX_JSON_BYTES or len(_encoded(text)) > MAX_JSON_BYTES:
        raise CriteriaError(f"more than {MAX_JSON_BYTES // 1024} KiB of JSON")
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            parse_float=_exact_fraction,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_members,
        )
    except RecursionError:
        raise CriteriaError("JSON nested too deeply") from None
    except UnicodeDecodeError:
        raise CriteriaError("JSON is UTF-8") from None
    except json.JSONDecodeError as error:
        raise CriteriaError(f"not JSON: {error}") from None
    except ValueError:  # int() refuses more than some thousand digits
        raise CriteriaError("a whole number outside 64 bits") from None


def value_from_wire(obj: object, path: str = "") -> Value:
    """The value of a wire literal: text, boolean, whole number, `{"long"}`, `{"decimal"}`, `{"instant"}` or a fraction.

    Raises CriteriaError with the path.
    """
    match obj:
        case str() | bool():
            return obj
        case int():
            return _whole_number(obj, path)
        case Decimal():
            return _finite(obj, path)
        case float():
            return _finite(Decimal(repr(obj)), path)
        case dict():
            return _tagged_value(obj, path)
        case None:
            raise CriteriaError("null is no literal: absence is asked with isNull", path)
        case _:
            raise CriteriaError(f"a literal is expected, not {short(obj)}", path)


@dataclass(frozen=True, slots=True)
class _Limits:
    """How much is read."""

    nodes: int = MAX_NODES
    depth: int = MAX_DEPTH
    values: int = MAX_VALUES


_USERS = _Limits()
_OURS = _Limits(nodes=100_000, depth=100, values=1_000_000)


@dataclass(slots=True)
class _Reader:
    """Reads one predicate, counting nodes on the way down as `check` does, so that a nest of any depth is left."""

    limits: _Limits = _USERS
    nodes: int = 0

    def predicate(self, obj: object, path: str, depth: int) -> Predicate:
        self.nodes += 1
        if self.nodes > self.limits.nodes:
            raise CriteriaError(f"more than {self.limits.nodes} nodes", path)
        if depth > self.limits.depth:
            raise CriteriaError(f"more than {self.limits.depth} levels", path)
        optional = {"escape"} if isinstance(obj, dict) and obj.get("op") == "like" else set[str]()
        members = _object(obj, path, {"op", "args"}, optional, "a predicate")
        operator = _operator(members["op"], f"{path}/op")
        arguments = _arguments(operator, members["args"], f"{path}/args")
        if operator in ("and", "or", "not"):
            return self._connective(operator, arguments, f"{path}/args", depth)
        return _leaf(operator, arguments, members, path, self.limits.values)

    def _connective(self, operator: str, arguments: list[object], path: str, depth: int) -> Predicate:
        read = tuple(self.predicate(each, f"{path}/{index}", depth + 1) for index, each in enumerate(arguments))
        if operator == "not":
            return Not(read[0])
        return And(read) if operator == "and" else Or(read)


def _leaf(operator: str, arguments: list[object], members: dict[str, object], path: str, longest: int) -> Predicate:
    reference = _reference(arguments[0], f"{path}/args/0")
    match operator:
        case "isNull":
            return IsNull(reference)
        case "in":
            return In(reference, _list(arguments[1], f"{path}/args/1", longest))
        case "between":
            low, high = (value_from_wire(arguments[index], f"{path}/args/{index}") for index in (1, 2))
            return Between(reference, low, high)
        case "like":
            return Like(reference, *_pattern(arguments[1], members, path))
        case _:
            return Compare(reference, Operator(operator), value_from_wire(arguments[1], f"{path}/args/1"))


def _operator(operator: object, path: str) -> str:
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise CriteriaError(f"no operator {short(operator)}; there are {', '.join(_OPERATORS)}", path)
    return operator


def _arguments(operator: str, arguments: object, path: str) -> list[object]:
    if not isinstance(arguments, list):
        raise CriteriaError("a list is expected", path)
    arity = _ARITIES.get(operator, len(arguments))
    if len(arguments) != arity:
        raise CriteriaError(f"{operator} takes {arity}, not {len(arguments)}", path)
    return arguments


def _reference(obj: object, path: str) -> Reference:
    if isinstance(obj, dict) and "field" in obj:
        name = _object(obj, path, {"field"}, set(), "a field")["field"]
        if not isinstance(name, str) or name not in FIELDS:
            raise CriteriaError(f"no task field {short(name)}; there are {', '.join(FIELDS)}", f"{path}/field")
        return FieldReference(name)
    if isinstance(obj, dict) and "attr" in obj:
        members = _object(obj, path, {"attr", "type"}, set(), "an attribute")
        kind = members["type"]
        if not isinstance(kind, str) or kind not in list(ValueType):
            raise CriteriaError(f"no attribute type {short(kind)}; there are {', '.join(ValueType)}", f"{path}/type")
        return AttributeReference(cast("str", members["attr"]), ValueType(kind))  # check refuses a bad name
    raise CriteriaError('{"field": ...} or {"attr": ..., "type": ...} is expected', path)


def _list(obj: object, path: str, longest: int) -> tuple[Value, ...]:
    if not isinstance(obj, list):
        raise CriteriaError("a list of literals is expected", path)
    if len(obj) > longest:
        raise CriteriaError(f"more than {longest} values in a list", path)
    return tuple(value_from_wire(each, f"{path}/{index}") for index, each in enumerate(obj))


def _pattern(obj: object, members: dict[str, object], path: str) -> tuple[str, str | None]:
    escape = members.get("escape")
    if "escape" in members and not isinstance(escape, str):
        raise CriteriaError("an escape is one character", f"{path}/escape")
    if not isinstance(obj, str):
        raise CriteriaError(f"a pattern is text, not {short(obj)}", f"{path}/args/1")
    return obj, cast("str | None", escape)


def _object(obj: object, path: str, required: set[str], optional: set[str], what: str) -> dict[str, object]:
    """The members of a JSON object with exactly these keys."""
    if not isinstance(obj, dict):
        raise CriteriaError(f"{what} is a JSON object, not {short(obj)}", path)
    for key in obj:
        if key not in required and key not in optional:
            raise CriteriaError(f"{what} has no key {short(key)}", _pointer(path, key))
    for key in sorted(required):
        if key not in obj:
            raise CriteriaError(f"{what} needs {key!r}", path)
    return obj


def _pointer(path: str, key: object) -> str:
    """The pointer to a member; to its object where the key is nothing to show."""
    if not isinstance(key, str) or len(key) > 64 or not key.isprintable():
        return path
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _whole_number(number: int, path: str) -> int:
    if not MIN_LONG <= number <= MAX_LONG:
        raise CriteriaError('a whole number outside 64 bits; a longer one is written {"decimal": "..."}', path)
    return number


def _finite(number: Decimal, path: str) -> Decimal:
    if not number.is_finite():
        raise CriteriaError("a number that is not finite", path)
    return number


def _tagged_value(obj: dict[Any, object], path: str) -> Value:  # Any: keys of any type may be given directly
    if len(obj) != 1:
        raise CriteriaError('a literal object has one key: "long", "decimal" or "instant"', path)
    [(tag, text)] = obj.items()
    if tag not in ("long", "decimal", "instant"):
        raise CriteriaError(f'a literal is "long", "decimal" or "instant", not {short(tag)}', _pointer(path, tag))
    at = f"{path}/{tag}"
    if not isinstance(text, str):
        raise CriteriaError(f"{tag} literals are written as text, not {short(text)}", at)
    if tag == "instant":
        return _instant(text, at)
    return _long(text, at) if tag == "long" else _decimal(text, at)


def _long(text: str, path: str) -> int:
    if _LONG.fullmatch(text) is None:
        raise CriteriaError(f"{short(text)} is no whole number of 64 bits", path)
    return _whole_number(int(text), path)


def _decimal(text: str, path: str) -> Decimal:
    if _DECIMAL.fullmatch(text) is None:
        raise CriteriaError(f"{short(text)} is no decimal number", path)
    try:
        return _finite(Decimal(text), path)
    except InvalidOperation:  # an exponent beyond what the decimal module holds
        raise CriteriaError("a decimal out of range", path) from None


def _instant(text: str, path: str) -> Value:
    if has_lost_digits(text):
        raise CriteriaError("an instant has at most six digits after the second", path)
    try:
        return parse_instant(text)
    except ValueError as error:
        raise CriteriaError(f"{short(text)}: {error}", path) from None


def _encoded(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _exact_fraction(text: str) -> Decimal:
    return _decimal(text, "")


def _refuse_constant(name: str) -> NoReturn:
    raise CriteriaError(f"{name} is no JSON")


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise CriteriaError(f"the key {short(name)} stands twice in one object")
        members[name] = value
    return members
