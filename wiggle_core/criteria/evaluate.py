"""The reference meaning of predicates (C8): `matches`, and the same compiled to a closure for hot use.

`matches` is written to be read, and defines what every store must return. `compile_predicate` generates one Python
function for a predicate; tests hold the two together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol, assert_never, cast

from wiggle_core.criteria.instants import from_micros, to_micros
from wiggle_core.criteria.tree import (
    FAMILIES,
    OPTIONAL_FIELDS,
    And,
    Between,
    Compare,
    Family,
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
    Wildcard,
    normalize,
    pattern_parts,
)


class Evaluable(Protocol):
    """What a predicate can be asked of. `created_at` is the instance's, in epoch microseconds."""

    @property
    def workflow(self) -> str | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def step(self) -> str: ...
    @property
    def node(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def created_at(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def attributes(self) -> Mapping[str, Value]: ...


def matches(predicate: Predicate, task: Evaluable) -> bool:
    """Whether the task matches a checked predicate, as written or normal. Two-valued (C2), exact in types (C5)."""
    match predicate:
        case And(arguments):
            return all(matches(each, task) for each in arguments)
        case Or(arguments):
            return any(matches(each, task) for each in arguments)
        case Not(argument):
            return not matches(argument, task)
        case _:
            return _holds(predicate, task) != predicate.negated


def _holds(leaf: Leaf, task: Evaluable) -> bool:
    value = present_value(leaf.reference, task)
    match leaf:
        case IsNull():
            return value is None
        case Compare(_, operator, literal):
            return value is not None and compare(operator, value, literal)
        case Between(_, low, high):
            return (
                value is not None
                and compare(Operator.GREATER_OR_EQUAL, value, low)
                and compare(Operator.LESS_OR_EQUAL, value, high)
            )
        case In(_, values):
            return value is not None and any(compare(Operator.EQUAL, value, each) for each in values)
        case Like(_, pattern, escape):
            return isinstance(value, str) and like(value, pattern, escape)
        case _:
            assert_never(leaf)


def present_value(reference: Reference, task: Evaluable) -> Value | None:
    """The value a reference stands for, or None when it is absent or of another family (C5)."""
    value: Value | None
    if isinstance(reference, FieldReference):
        value = from_micros(task.created_at) if reference.name == "created_at" else getattr(task, reference.name)
    else:
        value = task.attributes.get(reference.name)
    return value if value is not None and family_of(value) is FAMILIES[reference.type] else None


def family_of(value: Value) -> Family:
    """The family that a value belongs to (C5). A boolean is no number, though Python's bool is an int."""
    match value:
        case str():
            return Family.STRING
        case bool():
            return Family.BOOLEAN
        case int() | Decimal():
            return Family.NUMBER
        case datetime():
            return Family.INSTANT
        case _:
            assert_never(value)


def compare(operator: Operator, left: Value, right: Value) -> bool:
    """One comparison of two values of one family. Python compares text by code point, and int with Decimal exactly."""
    a: Any = left  # Any: the caller has made the two of one family, which no type can say
    b: Any = right
    match operator:
        case Operator.EQUAL:
            return bool(a == b)
        case Operator.NOT_EQUAL:
            return bool(a != b)
        case Operator.LESS:
            return bool(a < b)
        case Operator.LESS_OR_EQUAL:
            return bool(a <= b)
        case Operator.GREATER:
            return bool(a > b)
        case Operator.GREATER_OR_EQUAL:
            return bool(a >= b)
        case _:
            assert_never(operator)


def like(text: str, pattern: str, escape: str | None = None) -> bool:
    """Whether the whole text matches a LIKE pattern (C4)."""
    return pattern_regex(pattern, escape).fullmatch(text) is not None


def pattern_regex(pattern: str, escape: str | None) -> re.Pattern[str]:
    """The pattern as a regular expression that takes time proportional to text x pattern.

    Each run up to the last `%` is an atomic group that takes its leftmost match, which is always right for LIKE; so
    nothing is ever tried twice, whatever a hostile pattern repeats.
    """
    segments: list[str] = [""]
    for part in pattern_parts(pattern, escape):
        if part is Wildcard.ANY_RUN:
            segments.append("")
        else:
            segments[-1] += "." if part is Wildcard.ANY_ONE else re.escape(part)
    if len(segments) == 1:
        return re.compile(segments[0], re.DOTALL)
    first, *middle, last = segments
    return re.compile(first + "".join(f"(?>.*?{segment})" for segment in middle) + ".*" + last, re.DOTALL)


Matcher = Callable[[Evaluable], bool]
_NUMBERS = frozenset({int, Decimal})
_PYTHON_OPERATORS = {Operator.EQUAL: "==", Operator.NOT_EQUAL: "!="}


def compile_predicate(predicate: Predicate) -> Matcher:
    """A function that answers as `matches` does for a checked predicate, some hundred times as fast.

    Literals and names are bound as constants, never written into the source.
    """
    source = _Source()
    expression = source.render(normalize(predicate))
    namespace: dict[str, Any] = dict(source.constants)  # Any: literals of every type
    code = f"def matcher(t):\n    return {expression}\n"
    exec(compile(code, "<predicate>", "exec"), namespace)  # the source holds operators and constant names only
    return cast("Matcher", namespace["matcher"])


class _Source:
    """Renders a normal form as one Python expression over the task `t`; `v` is the value under test."""

    def __init__(self) -> None:
        self.constants: dict[str, object] = {"NUMBERS": _NUMBERS, "datetime": datetime}

    def render(self, predicate: Predicate) -> str:
        match predicate:
            case And(arguments):
                return "(" + " and ".join(map(self.render, arguments)) + ")" if arguments else "True"
            case Or(arguments):
                return "(" + " or ".join(map(self.render, arguments)) + ")" if arguments else "False"
            case Not():
                raise ValueError("no negation stands in a normal form")
            case _:
                test = self._leaf(predicate)
                return f"(not {test})" if predicate.negated else test

    def _leaf(self, leaf: Leaf) -> str:
        if isinstance(leaf.reference, FieldReference):
            return self._field(leaf, leaf.reference)
        return self._attribute(leaf, leaf.reference.name, leaf.reference.type)

    def _field(self, leaf: Leaf, reference: FieldReference) -> str:
        name = f"t.{reference.name}"
        optional = reference.name in OPTIONAL_FIELDS
        if isinstance(leaf, IsNull):
            return f"({name} is None)" if optional else "False"
        literal = self._micros if reference.type is ValueType.INSTANT else self._constant
        if not optional:
            return f"({self._test(leaf, name, literal)})"
        return f"((v := {name}) is not None and {self._test(leaf, 'v', literal)})"

    def _attribute(self, leaf: Leaf, name: str, kind: ValueType) -> str:
        fetched = f"(v := t.attributes.get({self._constant(name)}))"
        guard = _GUARDS[FAMILIES[kind]].format(fetched)
        if isinstance(leaf, IsNull):
            return f"(not {guard})"
        return f"({guard} and {self._test(leaf, 'v', self._constant)})"

    def _test(self, leaf: Leaf, value: str, literal: Callable[[Any], str]) -> str:  # Any: a Value of the leaf's type
        match leaf:
            case Compare(_, operator, operand):
                return f"{value} {_PYTHON_OPERATORS.get(operator, operator.value)} {literal(operand)}"
            case Between(_, low, high):
                return f"{literal(low)} <= {value} <= {literal(high)}"
            case In(_, values):
                return f"{value} in {self._members(values, literal)}"
            case Like(_, pattern, escape):
                return self._like(value, pattern, escape)
            case IsNull():
                raise ValueError("a null test compares nothing")
            case _:
                assert_never(leaf)

    def _members(self, values: tuple[Value, ...], literal: Callable[[Any], str]) -> str:  # Any: as above
        names = [literal(value) for value in values]
        return self._constant(frozenset(self.constants[name] for name in names))

    def _like(self, value: str, pattern: str, escape: str | None) -> str:
        match pattern_parts(pattern, escape):
            case [str(prefix), Wildcard.ANY_RUN]:
                return f"{value}.startswith({self._constant(prefix)})"
            case [Wildcard.ANY_RUN, str(suffix)]:
                return f"{value}.endswith({self._constant(suffix)})"
            case [Wildcard.ANY_RUN, str(part), Wildcard.ANY_RUN]:
                return f"{self._constant(part)} in {value}"
            case _:
                fullmatch = self._constant(pattern_regex(pattern, escape).fullmatch)
                return f"{fullmatch}({value}) is not None"

    def _constant(self, value: object) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def _micros(self, instant: datetime) -> str:
        return self._constant(to_micros(instant))


_GUARDS = {
    Family.STRING: "({}.__class__ is str)",
    Family.NUMBER: "({}.__class__ in NUMBERS)",
    Family.BOOLEAN: "({}.__class__ is bool)",
    Family.INSTANT: "({}.__class__ is datetime)",
}
