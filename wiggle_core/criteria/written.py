"""How values and predicates are written on the wire, as plain JSON objects (section 4 of the contract).

Apart from `wire`, which reads them, because `check` measures what would be written: criteria that no reader accepts
must not be built.
"""

from __future__ import annotations

import json
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
    return json.dumps(written, ensure_ascii=False, separators=(",", ":"))
