"""How far hostile predicates reached: which classes of values their leaves met, and with which answers.

Agreement over a million pairs means little if the pairs are alike; this is the other half of the proof.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal

from wiggle_core.criteria.check import MAX_TEXT
from wiggle_core.criteria.evaluate import matches, present_value
from wiggle_core.criteria.instants import EPOCH
from wiggle_core.criteria.tree import (
    FAMILIES,
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
    Or,
    Predicate,
    Value,
)
from wiggle_core.tasks.task import TaskRecord

TEXT_CLASSES: dict[str, Callable[[str], bool]] = {
    "empty text": lambda text: text == "",
    "text of one space or with a trailing one": lambda text: text.endswith(" "),
    "text with capital letters": lambda text: text != text.lower(),
    "text with % or _": lambda text: "%" in text or "_" in text,
    "text with quotes": lambda text: "'" in text or '"' in text,
    "text with a backslash": lambda text: "\\" in text,
    "text with brackets or globs": lambda text: any(each in text for each in "[]*?"),
    "text with control characters": lambda text: any(unicodedata.category(each) == "Cc" for each in text),
    "text with line breaks": lambda text: "\n" in text,
    "text with combining marks": lambda text: any(unicodedata.combining(each) for each in text),
    "text beyond ASCII": lambda text: not text.isascii(),
    "text beyond the basic plane": lambda text: any(ord(each) > 0xFFFF for each in text),
    "text of 255 code points": lambda text: len(text) == MAX_TEXT,
    "text that looks like a number": lambda text: text in ("1000", "1e3", "-1"),
}
NUMBER_CLASSES: dict[str, Callable[[int | Decimal], bool]] = {
    "zero": lambda number: number == 0,
    "a negative number": lambda number: number < 0,
    "a fraction": lambda number: number != int(number),
    "a number below 1E-30": lambda number: number != 0 and -Decimal("1E-30") < number < Decimal("1E-30"),
    "a number beyond 2^53": lambda number: number > 2**53 or number < -(2**53),
    "a number beyond 64 bits": lambda number: number > 2**64 or number < -(2**64),
    "a whole number as a decimal": lambda number: isinstance(number, Decimal) and number == int(number),
}
INSTANT_CLASSES: dict[str, Callable[[datetime], bool]] = {
    "an instant of the year 1": lambda instant: instant.year == 1,
    "an instant of the year 9999": lambda instant: instant.year == 9999,
    "an instant before the epoch": lambda instant: instant < EPOCH,
    "an instant with microseconds": lambda instant: instant.microsecond != 0,
}
ABSENT_CLASSES = ("absent", "another family")
BOOLEAN_CLASSES = ("true", "false")
VALUE_CLASSES = (*ABSENT_CLASSES, *BOOLEAN_CLASSES, *TEXT_CLASSES, *NUMBER_CLASSES, *INSTANT_CLASSES)
LEAF_CLASSES = tuple(
    f"{kind.__name__} on {family.name}"
    for kind in (Compare, Between, In, Like, IsNull)
    for family in Family
    if (kind is not Like or family is Family.STRING) and (kind is not Between or family is not Family.BOOLEAN)
)


class Reach:
    """Counts, for each class of leaves and of values, how often a leaf held and how often it did not."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, bool]] = Counter()

    def note(self, predicate: Predicate, tasks: Sequence[TaskRecord]) -> None:
        """Count each leaf of the predicate on each task."""
        for leaf in leaves(predicate):
            kind = f"{type(leaf).__name__} on {FAMILIES[leaf.reference.type].name}"
            for task in tasks:
                holds = matches(leaf, task)
                self._seen.update((each, holds) for each in (kind, *_classes(leaf, task)))

    def missed(self) -> list[str]:
        """The classes that no leaf met both with true and with false."""
        return [
            each for each in (*VALUE_CLASSES, *LEAF_CLASSES) if not self._seen[each, True] * self._seen[each, False]
        ]


def leaves(predicate: Predicate) -> Iterator[Leaf]:
    """The leaves, left to right."""
    match predicate:
        case And(arguments) | Or(arguments):
            for argument in arguments:
                yield from leaves(argument)
        case Not(argument):
            yield from leaves(argument)
        case _:
            yield predicate


def _classes(leaf: Leaf, task: TaskRecord) -> list[str]:
    value = present_value(leaf.reference, task)
    if value is not None:
        return _value_classes(value)
    is_stored = not isinstance(leaf.reference, FieldReference) and leaf.reference.name in task.attributes
    return ["another family" if is_stored else "absent"]


def _value_classes(value: Value) -> list[str]:
    match value:
        case str():
            return [name for name, is_in in TEXT_CLASSES.items() if is_in(value)]
        case bool():
            return ["true" if value else "false"]
        case int() | Decimal():
            return [name for name, is_in in NUMBER_CLASSES.items() if is_in(value)]
        case datetime():
            return [name for name, is_in in INSTANT_CLASSES.items() if is_in(value)]
