"""Hostile values, tasks and predicates, the same for the same seed.

Tasks and predicates draw from the same pools, so that comparisons meet equal values, neighbours and values of another
family under one name. A seeded generator and not Hypothesis: a million pairs have to be drawn in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import TypeVar

from wiggle_core.criteria.check import MAX_LONG, MIN_LONG, check
from wiggle_core.criteria.evaluate import family_of
from wiggle_core.criteria.instants import EPOCH, MAX_MICROS, MIN_MICROS, from_micros
from wiggle_core.criteria.tree import (
    FALSE,
    FIELDS,
    TRUE,
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
)
from wiggle_core.errors import CriteriaError
from wiggle_core.tasks.task import MAX_PRIORITY, TaskRecord

T = TypeVar("T")

TEXTS = (
    *("", "", "", " ", "a", "A", "a ", " a", "a\t", "aa", "ab", "aB", "AB", "abc", "abC", "b", "ba", "Z", "z", "~"),
    *("%", "_", "a%b", "a_b", "axb", "a%", "%a", "50%_off", "50%_off!", "!", "!%", "a!b", "!!", "#", "a#b"),
    *("\\", "\\\\", "a\\b", "\\%", "\\_", "'", "''", "o'brien", '"', '""', "`", "[a]", "[^a]%", "[", "]"),
    *("*", "?", "a*", "a?b", "^a$", ".", ".*", "(a|b)", "{}", "$1", ":x", "?1", "%s", "%(a)s", "-- x", "; drop"),
    *("\n", "a\nb", "a\r\nb", "\r", "\x01", "\x1f", "\x7f", "\x85", "\u2028", "\u00a0", "\u200b", "\ufeff", "a\ufeff"),
    *("é", "e\u0301", "e", "É", "ß", "ss", "ẞ", "I", "i", "ı", "İ", "i\u0307", "ﬁ", "fi", "Å", "\u212b", "Ω", "\u2126"),
    *("\ud7ff", "\ue000", "\uff5e", "\uffff", "\U00010000", "\U0001f600", "a\U0001f600b", "\U0001f600\U0001f600"),
    *("\U0010ffff", "\U0001f468\u200d\U0001f469", "日本語", "日本", "\u0645\u0631"),
    *("1000", "1e3", "1000.0", "01000", "-1", "true", "null", "NULL", "nan", "s", "n1", "n2503", "b1", "t0", "0x41"),
    *("x" * 254, "x" * 255, "x" * 254 + "y", "\U0001f600" * 255, "a" * 120 + "%" + "b" * 120),
)
"""Every kind of text that a collation, a quoter, a LIKE or a key might treat as another; the empty one often."""

LONGS = (
    *(0, 1, -1, 2, 3, 5, 9, 10, 11, 99, 100, 999, 1000, 1001, -5, -9, -10, -11, -1000),
    *(2**31 - 1, 2**31, -(2**31), 2**53 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 10**18, -(10**18)),
    *(MAX_LONG, MAX_LONG - 1, MIN_LONG, MIN_LONG + 1),
)

DECIMALS = (
    *map(
        Decimal, ("0", "-0", "0.0", "-0.00", "1.0", "1.50", "1.5", "-1.5", "0.1", "0.2", "0.3", "0.30", "-0.3", "0.09")
    ),
    *map(Decimal, ("999.99", "1000.00", "1E+3", "1000.000001", "-1000.5", "5.0", "9.9", "10.1", "0.5", "99999")),
    *map(Decimal, ("1E-38", "-1E-38", "2E-38", "1.1E-37", "1E-37", "1E+37", "-1E+37", "9" * 38, "-" + "9" * 38)),
    *map(Decimal, ("9" * 37 + "8", "12345678901234567890123456789012345678", "0." + "9" * 38, "0." + "9" * 37 + "8")),
    *map(Decimal, ("12345678901234567.890123456789012345678", "9007199254740992.0", "9007199254740992.5")),
    *map(Decimal, ("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809")),
)
"""Numbers at every boundary, some equal in value and unlike in spelling."""

INSTANTS = tuple(
    from_micros(micros)
    for micros in (
        *(MIN_MICROS, MIN_MICROS + 1, MAX_MICROS, MAX_MICROS - 1, 0, 1, -1, 999_999, 1_000_000, -1_000_000),
        *(1_772_712_000_000_000, 1_772_712_000_000_001, 1_772_711_999_999_999, 951_782_400_000_000, 2**53, -(2**53)),
    )
)
"""Instants of the years 1 and 9999, at the epoch, around one noon and around a leap day, to the microsecond."""

NAMES = ("a", "b", "region", "total", "n", "x" * 63, "select", "key")
"""Attribute names. Each holds values of every family, so that another family's value is often what is stored."""

ESCAPES = ("\\", "!", "%", "_", "'", "a", "\U0001f600", "[", "^")
_OFFSETS = tuple(timezone(timedelta(minutes=minutes)) for minutes in (0, 120, -330, 845))
_ORDERED = (ValueType.STRING, ValueType.LONG, ValueType.DECIMAL, ValueType.INSTANT)
_DEPTHS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 6, 13)


def same_value(left: Value, right: Value) -> bool:
    """Equality that tells families apart: in Python, True equals 1."""
    return family_of(left) is family_of(right) and left == right


class Hostile:
    """A seeded source of hostile tasks and of checked predicates over them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self.random.randrange(len(choices))]

    def _is_chance(self, share: float) -> bool:
        return self.random.random() < share

    # Tasks

    def task(self, prefix: str, queue: str) -> TaskRecord:
        """A READY task whose id begins with `prefix`; few different times, so that the id often decides the order."""
        numbers = (1, 1, 1, 2, 3, 4, 20, 2**31 - 1)
        return TaskRecord(
            f"{prefix} {self._one_of(TEXTS)[:40]}",
            queue,
            step=self._one_of(TEXTS),
            created_at=self._micros(),
            ready_at=self._micros(),
            attributes=self.attributes(),
            priority=self._one_of((0, 0, 0, 0, 1, 2, 10, MAX_PRIORITY)),
            attempt=self._one_of(numbers),
            workflow=self._maybe(lambda: self._one_of(TEXTS)),
            version=self._maybe(lambda: self._one_of(LONGS)),
            node=self._maybe(lambda: self._one_of(TEXTS)),
            kind=self._one_of(TEXTS),
            correlation_id=self._maybe(lambda: self._one_of(TEXTS)),
            instance_id=prefix,
        )

    def queue(self, serial: int) -> str:
        """A queue's name like no other serial's, without control characters."""
        texts = [text for text in TEXTS if text.isprintable()]
        return f"{self._one_of(texts)[:200]}{serial}"

    def attributes(self) -> dict[str, Value]:
        """Values of any family under some of the names."""
        return {name: self.value(self._one_of(tuple(ValueType))) for name in NAMES if self._is_chance(0.7)}

    def _micros(self) -> int:
        return self._one_of((0, 0, 1, -1, 1_772_712_000_000_000, 1_772_712_000_000_001, MIN_MICROS, MAX_MICROS))

    def _maybe(self, make: Callable[[], T]) -> T | None:
        return make() if self._is_chance(0.75) else None

    def value(self, kind: ValueType) -> Value:
        """A value of the type, mostly from the pools and sometimes beside one."""
        match kind:
            case ValueType.STRING:
                return self._one_of(TEXTS)
            case ValueType.LONG:
                return self._one_of(LONGS) if self._is_chance(0.8) else self.random.randint(-1200, 1200)
            case ValueType.DECIMAL:
                return self._one_of(DECIMALS) if self._is_chance(0.8) else Decimal(self._one_of(LONGS))
            case ValueType.BOOLEAN:
                return self._is_chance(0.5)
            case ValueType.INSTANT:
                return self._one_of(INSTANTS)

    # Predicates

    def predicate(self) -> Predicate:
        """A checked predicate, from one leaf to a nest close to the limits."""
        while True:
            try:
                return check(self._tree(self._one_of(_DEPTHS)))
            except CriteriaError:
                continue  # too many nodes or wildcards, or a misplaced escape: what C6 refuses, no store ever sees

    def _tree(self, depth: int) -> Predicate:
        if depth <= 1 or self._is_chance(0.15):
            return self.leaf()
        if self._is_chance(0.25):
            return Not(self._tree(depth - 1))
        if self._is_chance(0.03):
            return TRUE if self._is_chance(0.5) else FALSE
        arguments = tuple(self._tree(depth - 1) for _ in range(self._one_of((1, 2, 2, 2, 3, 4))))
        return And(arguments) if self._is_chance(0.5) else Or(arguments)

    def leaf(self) -> Leaf:
        """One test of a field or attribute, as likely to be a comparison as all other kinds together."""
        if self._is_chance(0.08):
            return IsNull(self._reference(tuple(ValueType)), self._is_chance(0.5))
        if self._is_chance(0.25):
            return self._like(self._reference((ValueType.STRING,)))
        if self._is_chance(0.2):
            return self._between(self._reference(_ORDERED))
        if self._is_chance(0.2):
            return self._in(self._reference(tuple(ValueType)))
        reference = self._reference(tuple(ValueType))
        operators = tuple(Operator) if reference.type is not ValueType.BOOLEAN else (Operator.EQUAL, Operator.NOT_EQUAL)
        return Compare(reference, self._one_of(operators), self._literal(reference))

    def _reference(self, kinds: tuple[ValueType, ...]) -> Reference:
        fields = [name for name, kind in FIELDS.items() if kind in kinds]
        if fields and self._is_chance(0.5):
            return FieldReference(self._one_of(fields))
        return AttributeReference(self._one_of(NAMES), self._one_of(kinds))

    def _literal(self, reference: Reference) -> Value:
        if isinstance(reference, FieldReference) and self._is_chance(0.6):
            if reference.name == "created_at":
                return self._elsewhere(from_micros(self._micros()))
            if reference.name in ("attempt", "priority"):
                return self._one_of((0, 1, 2, 3, 4, 10, 20, MAX_PRIORITY))
        value = self.value(reference.type)
        return self._elsewhere(value) if isinstance(value, datetime) else value

    def _elsewhere(self, instant: datetime) -> datetime:
        """The same instant written with some offset, unless that would leave the years 1-9999."""
        if abs(instant - EPOCH) > timedelta(days=300_000):
            return instant
        return instant.astimezone(self._one_of(_OFFSETS))

    def _between(self, reference: Reference) -> Between:
        return Between(reference, self._literal(reference), self._literal(reference))

    def _in(self, reference: Reference) -> In:
        size = self._one_of((0, 1, 2, 3, 5, 8, 8, 40, 200))
        drawn = [self._literal(reference) for _ in range(min(size, 40))]
        # The pools are smaller than the longest list, which would lose what repeats: the rest are all different.
        drawn += [self._filler(reference.type, number) for number in range(len(drawn), size)]
        self.random.shuffle(drawn)
        return In(reference, tuple(drawn))

    def _filler(self, kind: ValueType, number: int) -> Value:
        match kind:
            case ValueType.STRING:
                return f"filler {number}"
            case ValueType.LONG | ValueType.DECIMAL:
                return 5_000 + number
            case ValueType.BOOLEAN:
                return number % 2 == 0
            case ValueType.INSTANT:
                return EPOCH + timedelta(days=number)

    def _like(self, reference: Reference) -> Like:
        escape = self._one_of(ESCAPES) if self._is_chance(0.5) else None
        characters = list(self._one_of(TEXTS))
        pattern = [self._pattern_character(each, escape) for each in characters]
        for _ in range(self._one_of((0, 1, 1, 2, 3))):
            pattern.insert(self.random.randint(0, len(pattern)), "%")
        if self._is_chance(0.3):
            start, end = sorted(self.random.randint(0, len(pattern)) for _ in range(2))
            pattern[start:end] = ["%"]
        return Like(reference, "".join(pattern), escape)

    def _pattern_character(self, character: str, escape: str | None) -> str:
        if self._is_chance(0.1):
            return "_"
        if escape is not None and character in ("%", "_", escape) and self._is_chance(0.9):
            return escape + character
        return character
