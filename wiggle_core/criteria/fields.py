"""Typed references, the Python spelling of predicates: `Task.step == "charge"`, `Task.attr("total", Decimal) >= 1000`.

The classes exist for the type checkers: only text has `like`, booleans have no order, and a comparison with a value
of another type has a result that no predicate accepts. At run time `check` decides, when a criteria is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar, overload

from wiggle_core.criteria.tree import (
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Reference,
    ValueType,
)
from wiggle_core.errors import CriteriaError

T = TypeVar("T")


class NotAPredicate:
    """The static type of `field == value` for a value of the wrong type: nothing accepts it."""


class Field(Generic[T]):
    """A reference whose values are of type T: equality, lists and null tests."""

    __slots__ = ("reference",)

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    @overload  # type: ignore[override]  # a comparison builds a predicate; object's answers bool
    def __eq__(self, other: T, /) -> Compare: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __eq__(self, other: object, /) -> NotAPredicate: ...
    def __eq__(self, other: Any, /) -> Any:  # Any: the overloads above are the signature
        return Compare(self.reference, Operator.EQUAL, other)

    @overload  # type: ignore[override]  # as above
    def __ne__(self, other: T, /) -> Compare: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __ne__(self, other: object, /) -> NotAPredicate: ...
    def __ne__(self, other: Any, /) -> Any:  # Any: the overloads above are the signature
        return Compare(self.reference, Operator.NOT_EQUAL, other)

    def __hash__(self) -> int:
        return hash(self.reference)

    def __repr__(self) -> str:
        return f"Field({self.reference!r})"

    def in_(self, values: Iterable[T]) -> In:
        """True when the value is one of `values` (at most 200). A bare text is refused: it is no list."""
        if isinstance(values, (str, bytes)):
            raise CriteriaError("in_ takes a list of values, not one text", "/args/1")
        members: tuple[Any, ...] = tuple(values)  # Any: T is checked as a Value when the criteria is built
        return In(self.reference, members)

    def is_null(self) -> IsNull:
        """True when the reference is absent."""
        return IsNull(self.reference)

    def is_not_null(self) -> Not:
        """True when the reference is present. Two nodes, as in the JSON form."""
        return Not(IsNull(self.reference))


class OrderedField(Field[T]):
    """A reference whose values have an order: text, numbers and instants (C3)."""

    __slots__ = ()

    def __lt__(self, other: T) -> Compare:
        return self._compare(Operator.LESS, other)

    def __le__(self, other: T) -> Compare:
        return self._compare(Operator.LESS_OR_EQUAL, other)

    def __gt__(self, other: T) -> Compare:
        return self._compare(Operator.GREATER, other)

    def __ge__(self, other: T) -> Compare:
        return self._compare(Operator.GREATER_OR_EQUAL, other)

    def between(self, low: T, high: T) -> Between:
        """True when `low <= value <= high`."""
        bounds: tuple[Any, Any] = (low, high)  # Any: T is checked as a Value when the criteria is built
        return Between(self.reference, *bounds)

    def _compare(self, operator: Operator, other: Any) -> Compare:  # Any: as above
        return Compare(self.reference, operator, other)


class TextField(OrderedField[str]):
    """A reference whose values are text."""

    __slots__ = ()

    def like(self, pattern: str, escape: str | None = None) -> Like:
        """True when the whole text matches: `%` any run, `_` one code point (C4). No escape unless given."""
        return Like(self.reference, pattern, escape)


_VALUE_TYPES: dict[type, ValueType] = {
    str: ValueType.STRING,
    int: ValueType.LONG,
    Decimal: ValueType.DECIMAL,
    bool: ValueType.BOOLEAN,
    datetime: ValueType.INSTANT,
}


def value_type(python_type: type) -> ValueType:
    """The value type that a Python type stands for. Raises CriteriaError for any other type."""
    try:
        return _VALUE_TYPES[python_type]
    except (KeyError, TypeError):
        raise CriteriaError(f"no attribute type {python_type!r}: use str, int, Decimal, bool or datetime") from None


class Task:
    """The fields of a task (C1), and `attr` for the attributes that its workflow declares."""

    workflow = TextField(FieldReference("workflow"))
    version = OrderedField[int](FieldReference("version"))
    step = TextField(FieldReference("step"))
    node = TextField(FieldReference("node"))
    kind = TextField(FieldReference("kind"))
    attempt = OrderedField[int](FieldReference("attempt"))
    correlation_id = TextField(FieldReference("correlation_id"))
    created_at = OrderedField[datetime](FieldReference("created_at"))
    priority = OrderedField[int](FieldReference("priority"))

    @overload
    @staticmethod
    def attr(name: str, type: type[str]) -> TextField: ...
    @overload
    @staticmethod
    def attr(name: str, type: type[bool]) -> Field[bool]: ...  # type: ignore[overload-overlap]  # bool before int
    @overload
    @staticmethod
    def attr(name: str, type: type[int]) -> OrderedField[int]: ...
    @overload
    @staticmethod
    def attr(name: str, type: type[Decimal]) -> OrderedField[Decimal | int]: ...
    @overload
    @staticmethod
    def attr(name: str, type: type[datetime]) -> OrderedField[datetime]: ...
    @staticmethod
    def attr(name: str, type: type) -> Field[Any]:  # Any: the overloads above are the signature
        """An attribute read as `type`: str, int (64 bit), Decimal, bool or datetime (aware).

        A stored value of another family is absent for it (C5). Raises CriteriaError for another type.
        """
        kind = value_type(type)
        reference = AttributeReference(name, kind)
        if kind is ValueType.STRING:
            return TextField(reference)
        return Field(reference) if kind is ValueType.BOOLEAN else OrderedField(reference)
