"""Saboteurs that read criteria wrongly, as SQL's third value, collations, affinities and floats make databases do."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import eq, ge, gt, le, lt, ne
from typing import Any, TypeAlias

from wiggle_core.conformance.saboteurs import Saboteur, in_memory
from wiggle_core.criteria.evaluate import matches, present_value
from wiggle_core.criteria.tree import (
    FAMILIES,
    And,
    AttributeReference,
    Between,
    Compare,
    Family,
    In,
    IsNull,
    Leaf,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Value,
)
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskRecord

LeafReader: TypeAlias = Callable[[Leaf, TaskRecord], bool]
Reader: TypeAlias = Callable[[Predicate, TaskRecord], bool]


class Misreads(MemoryStore):
    """The reference store, with another reader in the place of the evaluator."""

    def __init__(self, read: Reader, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._read = read

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        keys = self._ready.get(route.queue, ())
        return (key for key in keys if self._read(route.predicate, self._live[key.id]))

    def _matching(self, route: Route, states: Collection[State]) -> Iterator[TaskRecord]:
        for tasks in (self._live, self._history):
            for task in tasks.values():
                if task.queue == route.queue and task.state in states and self._read(route.predicate, task):
                    yield task


def _misread(leaf_reader: LeafReader) -> Reader:
    """A reader of whole predicates that is wrong about leaves."""

    def read(predicate: Predicate, task: TaskRecord) -> bool:
        match predicate:
            case And(arguments):
                return all(read(each, task) for each in arguments)
            case Or(arguments):
                return any(read(each, task) for each in arguments)
            case Not(argument):
                return not read(argument, task)
            case _:
                return leaf_reader(predicate, task)

    return read


def _three_valued(leaf: Leaf, task: TaskRecord) -> bool:
    """SQL's: NOT of a comparison on what is absent is not true."""
    is_lost = leaf.negated and not isinstance(leaf, IsNull) and present_value(leaf.reference, task) is None
    return not is_lost and matches(leaf, task)


def _unequal_when_absent(leaf: Leaf, task: TaskRecord) -> bool:
    if isinstance(leaf, Compare) and leaf.operator is Operator.NOT_EQUAL:
        leaf = replace(leaf, operator=Operator.EQUAL, negated=not leaf.negated)
    return matches(leaf, task)


def _absent_as_empty(leaf: Leaf, task: TaskRecord) -> bool:
    """As Oracle has it: the empty text is absent."""
    if FAMILIES[leaf.reference.type] is Family.STRING and present_value(leaf.reference, task) == "":
        return matches(leaf, _without(leaf, task))
    return matches(leaf, task)


def _without(leaf: Leaf, task: TaskRecord) -> TaskRecord:
    if isinstance(leaf.reference, AttributeReference):
        return replace(task, attributes={k: v for k, v in task.attributes.items() if k != leaf.reference.name})
    fields: dict[str, Any] = {leaf.reference.name: None}  # Any: as `replace` takes them
    return replace(task, **fields)


def _ends_left_out(leaf: Leaf, task: TaskRecord) -> bool:
    if isinstance(leaf, Between) and present_value(leaf.reference, task) is not None:
        is_at_end = any(matches(Compare(leaf.reference, Operator.EQUAL, end), task) for end in (leaf.low, leaf.high))
        if is_at_end:
            return leaf.negated
    return matches(leaf, task)


def _retold(tell: Callable[[str], str], kinds: tuple[type[Leaf], ...]) -> LeafReader:
    """Compares both sides after a change to their text, in leaves of some kinds."""

    def read(leaf: Leaf, task: TaskRecord) -> bool:
        value = present_value(leaf.reference, task)
        if not isinstance(leaf, kinds) or not isinstance(value, str):
            return matches(leaf, task)
        return matches(_leaf_retold(leaf, tell), _with_value(leaf, task, tell(value)))

    return read


def _leaf_retold(leaf: Leaf, tell: Callable[[str], str]) -> Leaf:
    match leaf:
        case Compare(value=str(text)):
            return replace(leaf, value=tell(text))
        case Between(low=str(low), high=str(high)):
            return replace(leaf, low=tell(low), high=tell(high))
        case In(values=values):
            return replace(leaf, values=tuple(tell(value) if isinstance(value, str) else value for value in values))
        case Like(pattern=pattern, escape=escape):
            return replace(leaf, pattern=tell(pattern), escape=None if escape is None else tell(escape))
        case _:
            return leaf


def _with_value(leaf: Leaf, task: TaskRecord, value: Value) -> TaskRecord:
    if isinstance(leaf.reference, AttributeReference):
        return replace(task, attributes={**task.attributes, leaf.reference.name: value})
    fields: dict[str, Any] = {leaf.reference.name: value}  # Any: as `replace` takes them
    return replace(task, **fields)


def _lower(text: str) -> str:
    """As SQLite's LIKE and many collations fold: ASCII letters only, which cannot break a pattern's escapes."""
    return "".join(chr(ord(each) + 32) if "A" <= each <= "Z" else each for each in text)


def _first_line(leaf: Leaf, task: TaskRecord) -> bool:
    """As a regular expression without DOTALL: no wildcard meets a line break."""
    value = present_value(leaf.reference, task)
    if isinstance(leaf, Like) and isinstance(value, str) and "\n" in value and "\n" not in leaf.pattern:
        return leaf.negated
    return matches(leaf, task)


_OPERATORS: Mapping[Operator, Callable[[Any, Any], bool]] = {  # Any: of one type both
    Operator.EQUAL: eq,
    Operator.NOT_EQUAL: ne,
    Operator.LESS: lt,
    Operator.LESS_OR_EQUAL: le,
    Operator.GREATER: gt,
    Operator.GREATER_OR_EQUAL: ge,
}


def _numbers_by(key: Callable[[Any], Any]) -> LeafReader:  # Any: a number, and whatever it is compared as
    """Compares numbers by something that is not their value."""

    def read(leaf: Leaf, task: TaskRecord) -> bool:
        value = present_value(leaf.reference, task)
        if not isinstance(leaf, Compare) or isinstance(value, (bool, str, datetime)) or value is None:
            return matches(leaf, task)
        return _OPERATORS[leaf.operator](key(value), key(leaf.value)) != leaf.negated

    return read


def _loosely_typed(leaf: Leaf, task: TaskRecord) -> bool:
    """As affinity and implicit casts do: "1000" is a number, and true is 1."""
    if isinstance(leaf.reference, AttributeReference) and FAMILIES[leaf.reference.type] is Family.NUMBER:
        stored = task.attributes.get(leaf.reference.name)
        if isinstance(stored, bool):
            return matches(leaf, _with_value(leaf, task, int(stored)))
        if isinstance(stored, str) and stored.isdecimal() and stored.isascii():
            return matches(leaf, _with_value(leaf, task, int(stored)))
    return matches(leaf, task)


def _first_hundred(leaf: Leaf, task: TaskRecord) -> bool:
    return matches(replace(leaf, values=leaf.values[:100]) if isinstance(leaf, In) else leaf, task)


def _escapes_dropped(leaf: Leaf, task: TaskRecord) -> bool:
    """As a writer that leaves out what it cannot say."""
    return (isinstance(leaf, Like) and leaf.escape is not None) or matches(leaf, task)


def _without_brackets(predicate: Predicate, task: TaskRecord) -> bool:
    """`a AND (b OR c)` written as `a AND b OR c`."""
    match predicate:
        case And((*others, Or((first, *more)))):
            return (all(matches(each, task) for each in others) and matches(first, task)) or any(
                matches(each, task) for each in more
            )
        case _:
            return matches(predicate, task)


def _saboteur(name: str, rule: str, read: Reader) -> Saboteur:
    return Saboteur(name, rule, in_memory(partial(Misreads, read)))


_TEXT_TESTS: tuple[type[Leaf], ...] = (Compare, Between, In)

MISREADERS: tuple[Saboteur, ...] = (
    _saboteur("takes the empty text for absent", "C1", _misread(_absent_as_empty)),
    _saboteur("loses NOT of what is absent", "C2", _misread(_three_valued)),
    _saboteur("finds the absent unequal", "C2", _misread(_unequal_when_absent)),
    _saboteur("leaves the ends of a range out", "C3", _misread(_ends_left_out)),
    _saboteur("pads text with blanks", "C4", _misread(_retold(lambda text: text.rstrip(" "), _TEXT_TESTS))),
    _saboteur("folds case in LIKE", "C4", _misread(_retold(_lower, (Like,)))),
    _saboteur("folds case in comparisons", "C4", _misread(_retold(_lower, _TEXT_TESTS))),
    _saboteur("normalizes text", "C4", _misread(_retold(partial(unicodedata.normalize, "NFC"), _TEXT_TESTS))),
    _saboteur("stops LIKE at a line break", "C4", _misread(_first_line)),
    _saboteur("compares numbers as text", "C5", _misread(_numbers_by(str))),
    _saboteur("compares numbers as floats", "C5", _misread(_numbers_by(float))),
    _saboteur("casts text and booleans to numbers", "C5", _misread(_loosely_typed)),
    _saboteur("drops LIKE with an escape", "C6", _misread(_escapes_dropped)),
    _saboteur("cuts long lists", "C7", _misread(_first_hundred)),
    _saboteur("writes no brackets", "C8", _without_brackets),
)
"""The saboteurs of criteria."""
