"""Which lanes a task enters (N2): an index over the predicates of a queue's lanes, asked for every task made READY.

A predicate that can only hold where one reference equals one of some constants is found by the task's own value of that
reference, so that a thousand lanes which differ in a constant cost a task one look-up. The rest are tried one by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from wiggle_core.criteria.evaluate import Evaluable, Matcher, present_value
from wiggle_core.criteria.tree import (
    FAMILIES,
    And,
    Compare,
    Family,
    FieldReference,
    In,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
)
from wiggle_core.stores.lanes import Lane, LaneId

_Term: TypeAlias = tuple[Reference, tuple[Value, ...]]
"""A reference, and the constants one of which it has to equal."""

_Entry: TypeAlias = tuple[LaneId, Matcher]


class LaneIndex:
    """The lanes of one queue, ready to be asked. Immutable, so safe to share between threads."""

    __slots__ = ("_by_value", "_others")

    def __init__(self, lanes: Iterable[Lane], matcher_of: Callable[[Lane], Matcher]) -> None:
        """`matcher_of` compiles a lane's predicate, or remembers that it did."""
        terms = {lane: list(_terms(lane.predicate)) for lane in lanes}
        shared = Counter(_identity(reference) for each in terms.values() for reference, _ in each)
        tables: dict[tuple[str, str, Family], tuple[Reference, dict[Value, list[_Entry]]]] = {}
        self._others: list[_Entry] = []
        for lane, found in terms.items():
            entry = lane.id, matcher_of(lane)
            if not found:
                self._others.append(entry)
                continue
            # The reference that most lanes ask for tells most of them apart, with one look-up for all of them.
            reference, values = max(found, key=lambda term: (shared[_identity(term[0])], -len(term[1])))
            _, table = tables.setdefault(_identity(reference), (reference, defaultdict(list)))
            for value in set(values):
                table[value].append(entry)
        self._by_value = [(reference, dict(table)) for reference, table in tables.values()]

    def lanes_of(self, task: Evaluable) -> Sequence[LaneId]:
        """The lanes whose predicates match the task, as the reference evaluator decides (C8)."""
        found = [lane for lane, is_match in self._others if is_match(task)]
        for reference, table in self._by_value:
            value = present_value(reference, task)
            if value is not None:
                found += [lane for lane, is_match in table.get(value, ()) if is_match(task)]
        return found


def _identity(reference: Reference) -> tuple[str, str, Family]:
    """What tells references apart: LONG and DECIMAL of one attribute read the same values (C5)."""
    kind = "field" if isinstance(reference, FieldReference) else "attribute"
    return kind, reference.name, FAMILIES[reference.type]


def _terms(predicate: Predicate) -> Iterator[_Term]:
    """The equalities without which the predicate of a normal form cannot hold."""
    match predicate:
        case And(arguments):
            for argument in arguments:
                yield from _terms(argument)
        case Or(arguments):
            yield from _common_terms(arguments)
        case Compare(reference, Operator.EQUAL, value) if not predicate.negated:
            yield reference, (value,)
        case In(reference, values) if not predicate.negated:
            yield reference, values
        case _:
            return


def _common_terms(arguments: Sequence[Predicate]) -> Iterator[_Term]:
    """The terms of a disjunction: those on a reference that every branch has one on, with the constants of all."""
    branches = [{_identity(reference): (reference, values) for reference, values in _terms(each)} for each in arguments]
    if not branches:
        return
    for identity, (reference, values) in branches[0].items():
        others = [branch.get(identity) for branch in branches[1:]]
        if all(other is not None for other in others):
            yield reference, (*values, *(value for other in others if other is not None for value in other[1]))
