"""Whether any task could ever match a predicate, as far as that is plain to see.

A worker with criteria that match nothing would poll for ever and look healthy. What is refused here is proven to
match nothing; what cannot be decided cheaply passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any, TypeAlias

from wiggle_core.criteria.evaluate import compare, matches
from wiggle_core.criteria.instants import to_micros
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
)
from wiggle_core.tasks.task import MAX_PRIORITY, TaskRecord

MAX_BRANCHES = 1_000
"""How many ways of meeting the predicate are looked at; one with more passes."""

_Name: TypeAlias = tuple[type, str]
_STUB = TaskRecord(id="stub", queue="stub", step="stub", created_at=0, ready_at=0)
_ATTEMPT, _PRIORITY = FieldReference("attempt"), FieldReference("priority")
_ALWAYS: tuple[Leaf, ...] = (
    Compare(_ATTEMPT, Operator.GREATER_OR_EQUAL, 1),
    Between(_PRIORITY, 0, MAX_PRIORITY),
)


def can_match(predicate: Predicate) -> bool:
    """Whether some task could match a predicate in normal form. False is certain, True is not."""
    branches = list(islice(_branches(predicate), MAX_BRANCHES + 1))
    if len(branches) > MAX_BRANCHES:
        return True
    return any(map(_is_consistent, branches))


def _branches(predicate: Predicate) -> Iterator[tuple[Leaf, ...]]:
    """The leaves that hold together, for each way of meeting the predicate (its disjunctive form)."""
    match predicate:
        case And(arguments):
            for parts in product(*(_bounded(each) for each in arguments)):
                yield tuple(chain.from_iterable(parts))
        case Or(arguments):
            yield from chain.from_iterable(map(_branches, arguments))
        case Not():
            raise ValueError("no negation stands in a normal form")
        case _:
            yield (predicate,)


def _bounded(predicate: Predicate) -> list[tuple[Leaf, ...]]:
    # `product` reads its arguments whole; one branch too many is enough to know that there are too many.
    return list(islice(_branches(predicate), MAX_BRANCHES + 1))


def _is_consistent(leaves: Iterable[Leaf]) -> bool:
    grouped: dict[_Name, list[Leaf]] = {}
    for leaf in leaves:
        grouped.setdefault((type(leaf.reference), leaf.reference.name), []).append(leaf)
    return all(map(_can_hold, grouped.values()))


def _can_hold(leaves: list[Leaf]) -> bool:
    """Whether one field or attribute could meet all these leaves at once."""
    reference = leaves[0].reference
    leaves = leaves + [leaf for leaf in _ALWAYS if leaf.reference == reference]
    if _may_be_absent(reference) and _holds_with(leaves, None):
        return True
    needed = [leaf for leaf in leaves if _needs_value(leaf)]
    families = {FAMILIES[leaf.reference.type] for leaf in needed or leaves}
    if len(families) > 1 or _denies_itself(leaves, families):
        return False
    listed = next((values for leaf in needed if (values := _listed(leaf))), None)
    if listed is not None:
        return any(_holds_with(leaves, value) for value in listed)
    return not _is_empty_range(needed)


def _denies_itself(leaves: Sequence[Leaf], families: Collection[Family]) -> bool:
    """Whether a present value of the family cannot do: a leaf asks for absence, or for the contrary of another."""
    if any(
        isinstance(leaf, IsNull) and not leaf.negated and FAMILIES[leaf.reference.type] in families for leaf in leaves
    ):
        return True
    return any(replace(leaf, negated=not leaf.negated) in leaves for leaf in leaves)


def _may_be_absent(reference: Reference) -> bool:
    return not isinstance(reference, FieldReference) or reference.name in OPTIONAL_FIELDS


def _needs_value(leaf: Leaf) -> bool:
    """Whether the leaf is false on absence (C2)."""
    return isinstance(leaf, IsNull) == leaf.negated


def _listed(leaf: Leaf) -> tuple[Value, ...]:
    """The only values that meet the leaf, where it lists them."""
    match leaf:
        case Compare(_, Operator.EQUAL, value):
            return (value,)
        case In(_, values):
            return values
        case _:
            return ()


def _holds_with(leaves: Sequence[Leaf], value: Value | None) -> bool:
    """Whether all leaves, which are about one field or attribute, hold when it has this value."""
    reference = leaves[0].reference
    if isinstance(reference, FieldReference):
        changes: dict[str, Any] = {reference.name: value}  # Any: the value is of the field's own type
        if reference.name == "created_at":
            changes = {"created_at": to_micros(changes["created_at"])}
        task = replace(_STUB, **changes)
    else:
        task = replace(_STUB, attributes={} if value is None else {reference.name: value})
    return all(matches(leaf, task) for leaf in leaves)


def _is_empty_range(needed: Iterable[Leaf]) -> bool:
    """Whether the ranges that a value has to lie in have nothing in common, ends that are excluded included."""
    lows: list[tuple[Value, bool]] = []
    highs: list[tuple[Value, bool]] = []
    for leaf in needed:
        match leaf:
            case Between(_, low, high):
                lows.append((low, False))
                highs.append((high, False))
            case Compare(_, Operator.GREATER | Operator.GREATER_OR_EQUAL as operator, value):
                lows.append((value, operator is Operator.GREATER))
            case Compare(_, Operator.LESS | Operator.LESS_OR_EQUAL as operator, value):
                highs.append((value, operator is Operator.LESS))
            case Compare() | In() | Like() | IsNull():
                pass
    return any(_exclude(low, high) for low in lows for high in highs)


def _exclude(low: tuple[Value, bool], high: tuple[Value, bool]) -> bool:
    if compare(Operator.GREATER, low[0], high[0]):
        return True
    return compare(Operator.EQUAL, low[0], high[0]) and (low[1] or high[1])
