"""`SqlWriter`: a predicate in normal form as SQL text with bound values, one meaning for every SQL store (C8).

What databases spell differently comes in as the small functions of `SqlDialect`. No value and no attribute name ever
reaches the text. SQL's third truth value cannot leak (C2): the normal form negates leaves only, and a negated leaf is
written `(reference IS NULL OR NOT test)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, assert_never

from wiggle_core.criteria.instants import to_micros
from wiggle_core.criteria.tree import (
    FAMILIES,
    OPTIONAL_FIELDS,
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
    Wildcard,
    pattern_parts,
)
from wiggle_core.errors import CriteriaError
from wiggle_core.tasks.keys import encode_value

Bind: TypeAlias = Callable[[object], str]
"""Takes a value to be bound and returns the placeholder that stands for it in the text."""

LikeParts: TypeAlias = Sequence[str | Wildcard]
"""A LIKE pattern as `pattern_parts` takes it apart: literal runs and wildcards."""

ALWAYS, NEVER = "1 = 1", "1 = 0"
_FAN_OUT = 16
_SHORT_LIST = 8
"""Longer lists are one bind where the database can: 32 criteria of 100 lists then stay below SQLite's 32,766."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of SQL with the values bound in it, in the order of their placeholders."""

    text: str
    binds: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """How one database spells what databases spell differently."""

    attribute: Callable[[str, Bind], str]
    """The expression for an attribute's key (section 5): SQL's NULL when absent. Takes the attribute's name."""
    like: Callable[[str, LikeParts, Bind], str]
    """The test that an expression, to be written once, matches a pattern whole, by code point and case (C4)."""
    placeholder: Callable[[int], str] = lambda _: "?"
    """What stands for the bind of this number, from 1, within one fragment."""
    column: Callable[[str], str] = str
    """The expression for a task field; its comparisons are by code point and exact (C4)."""
    text: Callable[[str, Bind], str] = lambda value, bind: bind(value)
    """A text literal, in the form that the columns and attribute keys have."""
    absent: Callable[[str], str] = "{} IS NULL".format
    """The test that an expression has no value."""
    members: Callable[[Sequence[object], Bind], str] | None = None
    """The right side of `member_test` for a long list, given the values as they are stored; None to bind each."""
    member_test: str = "IN"
    """What stands before `members`."""
    max_binds: int = 32_766
    """How many values one statement can bind."""


class SqlWriter:
    """Renders predicates for one dialect. Stateless, so one serves every thread."""

    def __init__(self, dialect: SqlDialect) -> None:
        self._dialect = dialect

    def render(self, predicate: Predicate, offset: int = 0) -> Fragment:
        """The condition for a predicate in normal form; `offset` placeholders stand before it in its statement.

        Raises CriteriaError when it binds more values than a statement of this database can.
        """
        rendering = _Rendering(self._dialect, offset)
        text = rendering.condition(predicate)
        if len(rendering.binds) > self._dialect.max_binds:
            message = f"{len(rendering.binds)} values in one query; this store binds {self._dialect.max_binds} at most"
            raise CriteriaError(message)
        return Fragment(text, tuple(rendering.binds))


class _Rendering:
    """One predicate on its way into text; collects the binds in the order of their placeholders."""

    def __init__(self, dialect: SqlDialect, offset: int) -> None:
        self.binds: list[object] = []
        self._dialect = dialect
        self._offset = offset

    def bind(self, value: object) -> str:
        self.binds.append(value)
        return self._dialect.placeholder(self._offset + len(self.binds))

    def condition(self, predicate: Predicate) -> str:
        match predicate:
            case And(arguments):
                return _join(" AND ", list(map(self.condition, arguments))) or ALWAYS
            case Or(arguments):
                return _join(" OR ", list(map(self.condition, arguments))) or NEVER
            case Not():
                raise ValueError("no negation stands in a normal form")
            case Compare() | Between() | In() | Like() | IsNull():
                return self._leaf(predicate)
            case _:
                assert_never(predicate)

    def _leaf(self, leaf: Leaf) -> str:
        reference = leaf.reference
        if isinstance(leaf, IsNull):
            return self._absent(reference) if not leaf.negated else self._present(reference)
        if not leaf.negated:
            return self._test(leaf)
        if isinstance(reference, FieldReference) and reference.name not in OPTIONAL_FIELDS:
            return f"NOT ({self._test(leaf)})"
        return f"({self._dialect.absent(self._value(reference))} OR NOT ({self._test(leaf)}))"

    def _test(self, leaf: Compare | Between | In | Like) -> str:
        reference = leaf.reference
        match leaf:
            case Compare(_, operator, value):
                if isinstance(reference, AttributeReference):
                    return self._compare_key(reference, operator, value)
                return f"{self._value(reference)} {operator} {self._literal(reference, value)}"
            case Between(_, low, high):
                # The keys at both ends carry the family's tag, so that they bound the family as well.
                value_text, low_text = self._value(reference), self._literal(reference, low)
                return f"{value_text} BETWEEN {low_text} AND {self._literal(reference, high)}"
            case In(_, values):
                value_text = self._value(reference)
                return f"{value_text} {self._members(reference, values)}"
            case Like(_, pattern, escape):
                return self._like(reference, pattern_parts(pattern, escape))
            case _:
                assert_never(leaf)

    def _compare_key(self, reference: AttributeReference, operator: Operator, value: Value) -> str:
        """A comparison of keys, bounded to the family where the operator would reach beyond it (C5)."""
        key, (lowest, behind) = encode_value(value), _family_bounds(reference)
        match operator:
            case Operator.EQUAL:
                return self._compare(reference, "=", key)
            case Operator.NOT_EQUAL:
                return f"({self._compare(reference, '<>', key)} AND {self._present(reference)})"
            case Operator.LESS:
                return f"({self._compare(reference, '<', key)} AND {self._compare(reference, '>=', lowest)})"
            case Operator.LESS_OR_EQUAL:
                return self._between(reference, lowest, key)
            case Operator.GREATER:
                return f"({self._compare(reference, '>', key)} AND {self._compare(reference, '<', behind)})"
            case Operator.GREATER_OR_EQUAL:
                return self._between(reference, key, behind)
            case _:
                assert_never(operator)

    def _like(self, reference: Reference, parts: list[str | Wildcard]) -> str:
        expression = self._value(reference)
        if isinstance(reference, FieldReference):
            return self._dialect.like(expression, parts, self.bind)
        tag = FAMILIES[reference.type].value
        first, rest = (parts[0], parts[1:]) if parts and isinstance(parts[0], str) else ("", parts)
        return self._dialect.like(expression, [tag + first, *rest], self.bind)

    def _absent(self, reference: Reference) -> str:
        if isinstance(reference, AttributeReference):
            return f"({self._dialect.absent(self._value(reference))} OR NOT ({self._present(reference)}))"
        return self._dialect.absent(self._value(reference)) if reference.name in OPTIONAL_FIELDS else NEVER

    def _present(self, reference: Reference) -> str:
        """A value of the family is there. For an attribute false *or NULL* when not, so it stands unnegated only
        beside a test for absence."""
        if isinstance(reference, AttributeReference):
            return self._between(reference, *_family_bounds(reference))
        return f"NOT ({self._absent(reference)})"

    def _between(self, reference: AttributeReference, low: str, high: str) -> str:
        """Databases evaluate the left side of BETWEEN once, which halves the reading of JSON."""
        value_text, low_text = self._value(reference), self._dialect.text(low, self.bind)
        return f"{value_text} BETWEEN {low_text} AND {self._dialect.text(high, self.bind)}"

    def _compare(self, reference: AttributeReference, operator: str, key: str) -> str:
        return f"{self._value(reference)} {operator} {self._dialect.text(key, self.bind)}"

    def _value(self, reference: Reference) -> str:
        """Each call binds anew, so it must be called in the order in which the text is put together."""
        if isinstance(reference, FieldReference):
            return self._dialect.column(reference.name)
        return self._dialect.attribute(reference.name, self.bind)

    def _members(self, reference: Reference, values: Sequence[Value]) -> str:
        if self._dialect.members is None or len(values) <= _SHORT_LIST:
            return f"IN ({', '.join(self._literal(reference, value) for value in values)})"
        members = self._dialect.members([_stored(reference, value) for value in values], self.bind)
        return f"{self._dialect.member_test} {members}"

    def _literal(self, reference: Reference, value: Value) -> str:
        stored = _stored(reference, value)
        return self._dialect.text(stored, self.bind) if isinstance(stored, str) else self.bind(stored)


def _stored(reference: Reference, value: Value) -> object:
    """The literal as the column or the attributes hold it: a key for an attribute, microseconds for an instant."""
    if isinstance(reference, AttributeReference):
        return encode_value(value)
    return to_micros(value) if isinstance(value, datetime) else value


def _family_bounds(reference: AttributeReference) -> tuple[str, str]:
    """The lowest text that a key of the family can be, and one behind all of them that is no key itself: a tag alone
    is a key for text only, and `s` follows no other family's tag."""
    tag = FAMILIES[reference.type].value
    return tag, chr(ord(tag) + 1)


def _join(operator: str, conditions: list[str]) -> str:
    """The conditions joined in a balanced nest: a flat chain of thousands, as coverage asks, is as many levels deep
    for a parser, and databases bound the depth (SQLite: 1,000)."""
    while len(conditions) > _FAN_OUT:
        groups = [conditions[start : start + _FAN_OUT] for start in range(0, len(conditions), _FAN_OUT)]
        conditions = [_bracket(operator, group) for group in groups]
    return _bracket(operator, conditions)


def _bracket(operator: str, conditions: list[str]) -> str:
    return conditions[0] if len(conditions) == 1 else f"({operator.join(conditions)})" if conditions else ""
