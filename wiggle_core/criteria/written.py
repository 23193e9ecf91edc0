"""How predicates are written, as JSON objects and as text (section 4 of the contract).

Apart from `wire` and `text`, which read them, because `check` measures what would be written: criteria that no reader
accepts must not be built.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import assert_never

from wiggle_core.criteria.instants import format_instant
from wiggle_core.criteria.tree import (
    And,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Leaf,
    Like,
    Not,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    canonical_decimal,
)

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
MAX_SAFE_INTEGER = 2**53 - 1
"""Beyond it a reader that keeps numbers as doubles would round, so whole numbers are written as text."""


def predicate_to_object(predicate: Predicate) -> dict[str, object]:
    """The predicate as written, in its JSON form; a negated leaf is written as `not` of the leaf."""
    match predicate:
        case And(arguments):
            return {"op": "and", "args": [predicate_to_object(each) for each in arguments]}
        case Or(arguments):
            return {"op": "or", "args": [predicate_to_object(each) for each in arguments]}
        case Not(argument):
            return {"op": "not", "args": [predicate_to_object(argument)]}
        case _:
            leaf = _leaf_to_object(predicate)
            return {"op": "not", "args": [leaf]} if predicate.negated else leaf


def _leaf_to_object(leaf: Leaf) -> dict[str, object]:
    reference = reference_to_object(leaf.reference)
    kind = leaf.reference.type
    match leaf:
        case Compare(_, operator, value):
            return {"op": operator.value, "args": [reference, value_to_wire(value, kind)]}
        case Between(_, low, high):
            return {"op": "between", "args": [reference, value_to_wire(low, kind), value_to_wire(high, kind)]}
        case In(_, values):
            return {"op": "in", "args": [reference, [value_to_wire(value, kind) for value in values]]}
        case Like(_, pattern, None):
            return {"op": "like", "args": [reference, pattern]}
        case Like(_, pattern, escape):
            return {"op": "like", "args": [reference, pattern], "escape": escape}
        case IsNull():
            return {"op": "isNull", "args": [reference]}
        case _:
            assert_never(leaf)


def reference_to_object(reference: Reference) -> dict[str, object]:
    """`{"field": name}` or `{"attr": name, "type": type}`."""
    if isinstance(reference, FieldReference):
        return {"field": reference.name}
    return {"attr": reference.name, "type": reference.type.value}


def value_to_wire(value: Value, kind: ValueType | None = None) -> object:
    """The value as a wire literal. `kind` is the type of its reference, where there is one: DECIMAL has one form."""
    match value:
        case str() | bool():
            return value
        case int() if kind is ValueType.DECIMAL:
            return {"decimal": str(value)}
        case int():
            return value if abs(value) <= MAX_SAFE_INTEGER else {"long": str(value)}
        case Decimal():
            return {"decimal": canonical_decimal(value)}
        case datetime():
            return {"instant": format_instant(value)}
        case _:
            assert_never(value)


def to_json(written: object) -> str:
    """Compact JSON text, characters as they are."""
    return _ENCODER.encode(written)


def written_size(written: object) -> int:
    """The bytes of its JSON text."""
    return len(to_json(written).encode())


def format_text(predicate: Predicate) -> str:
    """The predicate in its text form; `parse_text` gives an equal tree back for every checked predicate."""
    match predicate:
        case And(arguments):
            return _format_list("AND", "TRUE", arguments)
        case Or(arguments):
            return _format_list("OR", "FALSE", arguments)
        case Not(In() | Like() | Between() | IsNull() as worded) if not worded.negated:
            return _format_leaf(worded, "NOT ")
        case Not(argument):
            return f"NOT {_format_operand(argument)}"
        case _ if predicate.negated:
            return format_text(Not(replace(predicate, negated=False)))
        case _:
            return _format_leaf(predicate, "")


def _format_list(word: str, empty: str, arguments: Sequence[Predicate]) -> str:
    if not arguments:
        return empty
    if len(arguments) == 1:
        return f"{word} ({format_text(arguments[0])})"
    return f" {word} ".join(map(_format_operand, arguments))


def _format_operand(predicate: Predicate) -> str:
    """In brackets when it is a list itself: a chain without them would be read as one list."""
    text = format_text(predicate)
    return f"({text})" if isinstance(predicate, (And, Or)) and predicate.arguments else text


def _format_leaf(leaf: Leaf, negation: str) -> str:
    match leaf:
        case Compare(reference, operator, value):
            return f"{_format_reference(reference, [value])} {operator.value} {_format_value(value)}"
        case Between(reference, low, high):
            ends = f"{_format_value(low)} AND {_format_value(high)}"
            return f"{_format_reference(reference, [low, high])} {negation}BETWEEN {ends}"
        case In(reference, values):
            members = ", ".join(map(_format_value, values))
            return f"{_format_reference(reference, values)} {negation}IN ({members})"
        case Like(reference, pattern, escape):
            ending = "" if escape is None else f" ESCAPE {_quote(escape)}"
            return f"{_format_reference(reference, [pattern])} {negation}LIKE {_quote(pattern)}{ending}"
        case IsNull(reference):
            return f"{_format_reference(reference, [])} IS {negation}NULL"
        case _:
            assert_never(leaf)


def _format_reference(reference: Reference, values: Sequence[Value]) -> str:
    """The type is written where the literals, as they are written, would not tell it."""
    if isinstance(reference, FieldReference):
        return reference.name
    told = told_type([_literal_type(_format_value(value), value) for value in values])
    return f"attr.{reference.name}" if told is reference.type else f"attr.{reference.name}:{reference.type.value}"


def _literal_type(written: str, value: Value) -> ValueType:
    match value:
        case str():
            return ValueType.STRING
        case bool():
            return ValueType.BOOLEAN
        case int() | Decimal():
            return ValueType.DECIMAL if "." in written else ValueType.LONG
        case _:
            return ValueType.INSTANT


def told_type(types: Sequence[ValueType]) -> ValueType | None:
    """The type that literals tell of their attribute: one for all, or DECIMAL for numbers of both kinds."""
    told = set(types)
    if told == {ValueType.LONG, ValueType.DECIMAL}:
        return ValueType.DECIMAL
    return told.pop() if len(told) == 1 else None


def _format_value(value: Value) -> str:
    match value:
        case str():
            return _quote(value)
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case Decimal():
            return canonical_decimal(value)
        case _:
            return f"TIMESTAMP '{format_instant(value)}'"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
