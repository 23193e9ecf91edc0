"""The predicate tree: its nodes, negation pushed to the leaves, the normal form and the fingerprint.

A predicate is kept as it was written (with `Not`), because limits count it so and its text must round-trip. Stores
and lanes get the normal form, in which no `Not` stands and a negated leaf means "absent, or the test fails" (C2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum, StrEnum
from hashlib import sha256
from typing import TypeAlias, assert_never, cast

from wiggle_core.criteria.instants import to_micros


class ValueType(StrEnum):
    """The types a reference may be declared with; the names are those of the wire."""

    STRING = "string"
    LONG = "long"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    INSTANT = "instant"


class Family(StrEnum):
    """What compares with what (C5): LONG and DECIMAL are one family. The values are the key tags (section 5)."""

    STRING = "s"
    NUMBER = "n"
    BOOLEAN = "b"
    INSTANT = "t"


FAMILIES = {
    ValueType.STRING: Family.STRING,
    ValueType.LONG: Family.NUMBER,
    ValueType.DECIMAL: Family.NUMBER,
    ValueType.BOOLEAN: Family.BOOLEAN,
    ValueType.INSTANT: Family.INSTANT,
}

Value: TypeAlias = str | int | Decimal | bool | datetime
"""A value as the evaluator sees it; a datetime is aware and in UTC."""


class Operator(StrEnum):
    """The comparison operators, spelled as on the wire."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


FIELDS = {
    "workflow": ValueType.STRING,
    "version": ValueType.LONG,
    "step": ValueType.STRING,
    "node": ValueType.STRING,
    "kind": ValueType.STRING,
    "attempt": ValueType.LONG,
    "correlation_id": ValueType.STRING,
    "created_at": ValueType.INSTANT,
    "priority": ValueType.LONG,
}
"""The task fields that criteria may name, with their types (C1)."""

OPTIONAL_FIELDS = frozenset({"workflow", "version", "node", "correlation_id"})
"""The fields that may be absent (C1)."""


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field built into every task; an unknown name is refused by `check`."""

    name: str

    @property
    def type(self) -> ValueType:
        return FIELDS[self.name]


@dataclass(frozen=True, slots=True)
class AttributeReference:
    """An attribute of the user's, read as the given type (C5)."""

    name: str
    type: ValueType


Reference: TypeAlias = FieldReference | AttributeReference


class _Operators:
    """`&`, `|`, `~` on every node, and a refusal of `and`, `or`, `not`."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> And:
        if not isinstance(other, _Operators):
            return NotImplemented
        return And(_arguments(self, And) + _arguments(other, And))

    def __or__(self, other: Predicate) -> Or:
        if not isinstance(other, _Operators):
            return NotImplemented
        return Or(_arguments(self, Or) + _arguments(other, Or))

    def __invert__(self) -> Not:
        return Not(cast("Predicate", self))

    def __bool__(self) -> bool:
        raise TypeError("a predicate has no truth value: combine with & | ~ (in brackets), not with and, or, not")


@dataclass(frozen=True, slots=True)
class Compare(_Operators):
    """`reference operator value`; false when the reference is absent."""

    reference: Reference
    operator: Operator
    value: Value
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Between(_Operators):
    """`low <= reference <= high`, both ends included; empty when they are reversed."""

    reference: Reference
    low: Value
    high: Value
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In(_Operators):
    """The reference equals one of the values; an empty list matches nothing."""

    reference: Reference
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like(_Operators):
    """The text matches the pattern whole (C4). `escape` is one character, or None for no escape."""

    reference: Reference
    pattern: str
    escape: str | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(_Operators):
    """The reference is absent, or holds a value of another family (C5)."""

    reference: Reference
    negated: bool = False


@dataclass(frozen=True, slots=True)
class And(_Operators):
    """Every argument holds; true without arguments."""

    arguments: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(_Operators):
    """Some argument holds; false without arguments."""

    arguments: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not(_Operators):
    """The argument does not hold. Stands in predicates as written, never in a normal form."""

    argument: Predicate


Leaf: TypeAlias = Compare | Between | In | Like | IsNull
Predicate: TypeAlias = Leaf | And | Or | Not

TRUE = And(())
FALSE = Or(())


def _arguments(node: _Operators, kind: type[And] | type[Or]) -> tuple[Predicate, ...]:
    """A chain `a & b & c` is one node of three, not a nest that grows with its length."""
    if isinstance(node, (And, Or)) and isinstance(node, kind) and node.arguments:
        return node.arguments
    return (cast("Predicate", node),)


def negate(predicate: Predicate) -> Predicate:
    """The negation, pushed to the leaves (C2): no `Not` stands in the result."""
    match predicate:
        case And(arguments):
            return Or(tuple(negate(each) for each in arguments))
        case Or(arguments):
            return And(tuple(negate(each) for each in arguments))
        case Not(argument):
            return push_down(argument)
        case _:
            return replace(predicate, negated=not predicate.negated)


def push_down(predicate: Predicate) -> Predicate:
    """The same predicate with every negation at the leaves."""
    match predicate:
        case And(arguments):
            return And(tuple(push_down(each) for each in arguments))
        case Or(arguments):
            return Or(tuple(push_down(each) for each in arguments))
        case Not(argument):
            return negate(argument)
        case _:
            return predicate


def normalize(predicate: Predicate) -> Predicate:
    """The normal form of a checked predicate: negation at the leaves, nests flattened, arguments sorted and unique,
    constants absorbed, one-value lists and wildcard-free patterns turned into equality. Same meaning (C2)."""
    return _simplify(push_down(predicate))[0]


def fingerprint(predicate: Predicate) -> str:
    """SHA-256 of the normal form, in hexadecimal: equal for predicates that differ in spelling only."""
    return normalize_and_fingerprint(predicate)[1]


def normalize_and_fingerprint(predicate: Predicate) -> tuple[Predicate, str]:
    """Both at the price of one: sorting already spells every argument."""
    normal, spelling = _simplify(push_down(predicate))
    return normal, sha256(spelling.encode("ascii")).hexdigest()


def _simplify(predicate: Predicate) -> tuple[Predicate, str]:
    """The normal form and its canonical spelling."""
    match predicate:
        case And(arguments):
            return _join(And, arguments)
        case Or(arguments):
            return _join(Or, arguments)
        case In():
            simple = _simplify_in(predicate)
        case Like():
            simple = _simplify_like(predicate)
        case _:
            simple = predicate
    return simple, canonical(simple)


def _join(kind: type[And] | type[Or], arguments: tuple[Predicate, ...]) -> tuple[Predicate, str]:
    neutral, absorbing = (TRUE, FALSE) if kind is And else (FALSE, TRUE)
    unique: dict[str, Predicate] = {}
    for argument, spelling in map(_simplify, arguments):
        if argument == absorbing:
            return absorbing, spelling
        if isinstance(argument, (And, Or)) and isinstance(argument, kind):
            unique.update((canonical(part), part) for part in argument.arguments)
        else:
            unique[spelling] = argument
    if not unique:
        return neutral, canonical(neutral)
    if len(unique) == 1:
        [(spelling, only)] = unique.items()
        return only, spelling
    spellings = sorted(unique)
    return kind(tuple(map(unique.__getitem__, spellings))), _canonical_join(kind, spellings)


def _simplify_in(leaf: In) -> Predicate:
    unique = {_canonical_value(value): value for value in leaf.values}
    if not unique:
        return TRUE if leaf.negated else FALSE
    values = tuple(unique[key] for key in sorted(unique))
    if len(values) == 1:
        return Compare(leaf.reference, Operator.EQUAL, values[0], leaf.negated)
    return In(leaf.reference, values, leaf.negated)


def _simplify_like(leaf: Like) -> Predicate:
    parts = pattern_parts(leaf.pattern, leaf.escape)
    if all(isinstance(part, str) for part in parts):
        return Compare(leaf.reference, Operator.EQUAL, "".join(cast("list[str]", parts)), leaf.negated)
    return leaf


class Wildcard(Enum):
    """The wildcards of LIKE (C4). Not text: an escaped `%` in a pattern must not equal the wildcard."""

    ANY_RUN = "%"
    ANY_ONE = "_"


def pattern_parts(pattern: str, escape: str | None) -> list[str | Wildcard]:
    """A LIKE pattern as literal runs and wildcards, escapes resolved, runs of `%` folded into one.

    Raises ValueError when the escape stands before anything but `%`, `_` and itself (C4).
    """
    parts: list[str | Wildcard] = []
    literal: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise ValueError(f"the escape {escape!r} may stand only before %, _ and itself")
            literal.append(escaped)
        elif character in ("%", "_"):
            if literal:
                parts.append("".join(literal))
                literal = []
            if not (character == "%" and parts and parts[-1] is Wildcard.ANY_RUN):
                parts.append(Wildcard(character))
        else:
            literal.append(character)
    if literal:
        parts.append("".join(literal))
    return parts


def canonical(predicate: Predicate) -> str:
    """One unambiguous ASCII spelling of a normal form; `ascii` escapes alike under every Unicode version."""
    match predicate:
        case Compare(reference, operator, value, negated):
            body = f"{operator}({_canonical_reference(reference)},{_canonical_value(value)})"
        case Between(reference, low, high, negated):
            ends = f"{_canonical_value(low)},{_canonical_value(high)}"
            body = f"between({_canonical_reference(reference)},{ends})"
        case In(reference, values, negated):
            body = f"in({_canonical_reference(reference)},{','.join(map(_canonical_value, values))})"
        case Like(reference, pattern, escape, negated):
            body = f"like({_canonical_reference(reference)},{_canonical_pattern(pattern, escape)})"
        case IsNull(reference, negated):
            body = f"null({_canonical_reference(reference)})"
        case And(arguments):
            return _canonical_join(And, map(canonical, arguments))
        case Or(arguments):
            return _canonical_join(Or, map(canonical, arguments))
        case Not():
            raise ValueError("negation has no canonical form: normalize first")
        case _:
            assert_never(predicate)
    return f"!{body}" if negated else body


def _canonical_join(kind: type[And] | type[Or], spellings: Iterable[str]) -> str:
    return f"{'and' if kind is And else 'or'}({','.join(spellings)})"


def _canonical_reference(reference: Reference) -> str:
    if isinstance(reference, FieldReference):
        return reference.name
    return f"{FAMILIES[reference.type]}:{reference.name}"


def _canonical_value(value: Value) -> str:
    match value:
        case str():
            return ascii(value)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return canonical_decimal(value)
        case datetime():
            return f"t{to_micros(value)}"
        case _:
            assert_never(value)


def _canonical_pattern(pattern: str, escape: str | None) -> str:
    parts: Iterable[str | Wildcard] = pattern_parts(pattern, escape)
    return "[" + " ".join(part.value if isinstance(part, Wildcard) else ascii(part) for part in parts) + "]"


def canonical_decimal(value: Decimal) -> str:
    """A finite decimal without exponent, needless zeros or a negative zero: `1000`, `-0.3`, `0`.

    The decimal module's own `normalize` rounds to the context's 28 digits, so the text is trimmed instead.
    """
    text = f"{value:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
