"""`cb`, the JPA-style spelling of predicates, and `QueueCriteria`, a queue with an optional predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from wiggle_core.criteria.check import check, check_text
from wiggle_core.criteria.fields import Field, OrderedField, TextField
from wiggle_core.criteria.tree import (
    FALSE,
    TRUE,
    And,
    Between,
    Compare,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    normalize_and_fingerprint,
)
from wiggle_core.errors import CriteriaError

T = TypeVar("T")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class CriteriaBuilder:
    """The operators of C3 as functions, for those who think in JPA's Criteria API. One instance: `cb`."""

    __slots__ = ()

    def equal(self, field: Field[T], value: T) -> Compare:
        return field == value

    def not_equal(self, field: Field[T], value: T) -> Compare:
        return field != value

    def less_than(self, field: OrderedField[T], value: T) -> Compare:
        return field < value

    def less_than_or_equal_to(self, field: OrderedField[T], value: T) -> Compare:
        return field <= value

    def greater_than(self, field: OrderedField[T], value: T) -> Compare:
        return field > value

    def greater_than_or_equal_to(self, field: OrderedField[T], value: T) -> Compare:
        return field >= value

    def between(self, field: OrderedField[T], low: T, high: T) -> Between:
        return field.between(low, high)

    def in_(self, field: Field[T], values: Iterable[T]) -> In:
        return field.in_(values)

    def like(self, field: TextField, pattern: str, escape: str | None = None) -> Like:
        return field.like(pattern, escape)

    def is_null(self, field: Field[T]) -> IsNull:
        return field.is_null()

    def is_not_null(self, field: Field[T]) -> Not:
        return field.is_not_null()

    def and_(self, *predicates: Predicate) -> And:
        return And(predicates)

    def or_(self, *predicates: Predicate) -> Or:
        return Or(predicates)

    def not_(self, predicate: Predicate) -> Not:
        return Not(predicate)

    def conjunction(self) -> And:
        """True."""
        return TRUE

    def disjunction(self) -> Or:
        """False."""
        return FALSE


cb = CriteriaBuilder()


@dataclass(frozen=True)
class QueueCriteria:
    """Which tasks a worker takes: those of one queue that match a predicate, or all of it without one.

    `predicate` is kept as written, its literals in one form. Raises CriteriaError, with a JSON pointer into the wire
    form, for anything that section 3 of the contract refuses (C6, C7).
    """

    queue: str
    predicate: Predicate | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        if self.predicate is not None:
            object.__setattr__(self, "predicate", check(self.predicate, "/where", self.queue))

    @classmethod
    def from_(cls, queue: str) -> QueueCriteria:
        """Everything on the queue; narrow it with `where`."""
        return cls(queue)

    def where(self, condition: Predicate | Callable[[CriteriaBuilder], Predicate]) -> QueueCriteria:
        """These criteria, narrowed by a predicate or by what a function of `cb` returns."""
        added = check(condition(cb) if callable(condition) else condition, "/where")
        return QueueCriteria(self.queue, added if self.predicate is None else self.predicate & added)

    @property
    def normal(self) -> Predicate:
        """The normal form of the predicate; TRUE without one."""
        return self._normal_and_fingerprint[0]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the normal form, hexadecimal; the queue is not part of it."""
        return self._normal_and_fingerprint[1]

    @cached_property
    def _normal_and_fingerprint(self) -> tuple[Predicate, str]:
        return normalize_and_fingerprint(TRUE if self.predicate is None else self.predicate)


def check_queue(queue: object) -> str:
    """The queue's name: text of 1 to 255 code points without control characters. Raises CriteriaError at /queue."""
    name = check_text(queue, "/queue")
    if not name:
        raise CriteriaError("a queue needs a name", "/queue")
    if _CONTROL.search(name):
        raise CriteriaError("a queue's name has no control characters", "/queue")
    return name
