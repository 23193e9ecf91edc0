"""Negation, the normal form and the fingerprint."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiggle_core.criteria import (
    FALSE,
    TRUE,
    And,
    Between,
    Compare,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    QueueCriteria,
    Task,
    cb,
    check,
    fingerprint,
    normalize,
)
from wiggle_core.criteria.tree import normalize_and_fingerprint

from .strategies import predicates

a, b, c = Task.step == "a", Task.step == "b", Task.attempt < 3
total = Task.attr("total", Decimal)
MOMENT = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)


def respelled(predicate: Predicate, chance: random.Random) -> Predicate:
    """Another spelling of the same: shuffled, repeated, wrapped, negated twice."""
    match predicate:
        case And(arguments) | Or(arguments):
            parts = [respelled(each, chance) for each in arguments]
            parts += chance.choices(parts, k=chance.randrange(3)) if parts else []
            chance.shuffle(parts)
            changed: Predicate = replace(predicate, arguments=tuple(parts))
        case Not(argument):
            changed = Not(respelled(argument, chance))
        case In(reference, values):
            changed = In(reference, tuple(chance.sample(values, len(values)) + list(values[:1])))
        case _:
            changed = predicate
    return chance.choice([changed, Not(Not(changed)), And((changed,)), Or((changed, changed))])


def has_not(predicate: Predicate) -> bool:
    return isinstance(predicate, Not) or (isinstance(predicate, (And, Or)) and any(map(has_not, predicate.arguments)))


@settings(max_examples=300, deadline=None)
@given(predicates, st.randoms(use_true_random=False))
def test_spelling_does_not_change_the_fingerprint(predicate: Predicate, chance: random.Random) -> None:
    """Section 4: order, repetition, nesting and double negation are spelling; the normal form is stable."""
    normal = normalize(predicate)
    assert not has_not(normal)
    assert normalize(normal) == normal
    other = respelled(predicate, chance)
    assert fingerprint(other) == fingerprint(normal) == fingerprint(predicate)
    assert normalize_and_fingerprint(other) == (normalize(other), fingerprint(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (a & b, b & a),
        (a & b & c, a & (b & c)),
        (a | a, a),
        (~~a, a),
        (~(a & b), ~a | ~b),
        (a & TRUE, a),
        (a & FALSE, FALSE),
        (a | TRUE, TRUE),
        (~TRUE, FALSE),
        (And((a,)), Or((a,))),
        (total == 1000, total == Decimal("1000.00")),
        (total == 0, total == Decimal("-0.0")),
        (total == 1000, Task.attr("total", int) == 1000),
        (total.in_([1, Decimal("1.0"), 2]), total.in_([2, 1])),
        (Task.step.in_(["a"]), a),
        (Task.step.in_([]), FALSE),
        (~Task.step.in_([]), TRUE),
        (Task.step.like("a"), a),
        (Task.step.like("a!%", "!"), Task.step == "a%"),
        (Task.step.like("a%%b"), Task.step.like("a%b")),
        (Task.step.like("a!%%", "!"), Task.step.like("a\\%%", "\\")),
        (Task.step.is_not_null(), ~Task.step.is_null()),
        (cb.not_equal(Task.step, "a"), Task.step != "a"),
    ],
)
def test_one_meaning_has_one_fingerprint(one: Predicate, other: Predicate) -> None:
    """Section 4: what differs in spelling only has one key for lanes, caches and labels."""
    assert QueueCriteria("q", one).fingerprint == QueueCriteria("p", other).fingerprint


DIFFERENT: list[Predicate] = [
    TRUE,
    FALSE,
    a,
    b,
    c,
    ~a,
    Task.step != "a",
    ~(Task.step != "a"),
    a & b,
    a | b,
    ~(a & b),
    (a & b) | c,
    a & (b | c),
    Task.kind == "a",
    Task.attr("step", str) == "a",
    Task.attr("total", str) == "1000",
    Task.attr("total", Decimal) == 1000,
    Task.attr("total", Decimal) == Decimal("1000.1"),
    Task.attr("total", Decimal) != 1000,
    Task.attr("total", bool) == True,  # noqa: E712  # builds a predicate
    Task.attr("total", str) == "true",
    Task.attr("total", str).is_null(),
    Task.attr("total", int).is_null(),
    Task.step.in_(["a", "b"]),
    Task.step.in_(["a,b"]),
    Task.step.in_(["a','b"]),
    Task.step.between("a", "b"),
    Task.step.between("b", "a"),
    Task.step.like("a%"),
    Task.step.like("a_"),
    Task.step.like("a!%_", "!"),
    Task.step.like("%a"),
    Task.step == "a%",
    Task.step <= "a",
    Task.step < "a",
]


def test_different_predicates_have_different_fingerprints() -> None:
    """Section 4: no two meanings share a key."""
    keys = {QueueCriteria("q", each).fingerprint for each in DIFFERENT}
    assert len(keys) == len(DIFFERENT)


def test_the_fingerprint_is_stable() -> None:
    """Section 4: stored lanes and documents hold it, so it must not change between versions."""
    predicate = (
        (Task.step == "charge")
        & Task.attr("region", str).in_(["eu", "caf\u00e9\U0001f600"])
        & ~(total >= Decimal("1000.50"))
        & (Task.correlation_id.like("eu!%-%", "!") | Task.node.is_not_null())
        & Task.created_at.between(MOMENT, MOMENT)
    )
    assert (
        QueueCriteria("q", predicate).fingerprint == "127249af11233afe63bfa11107deba3eb9254b282944fd4959ac590c6e1ffe0a"
    )
    assert QueueCriteria("q").fingerprint == "0978c4088e34a4c0e9c90f5cf26de1d044305e51ef4273916835397b24f04525"


def test_predicates_have_no_truth_value() -> None:
    """Section 4: `and`, `or`, `not` and chained comparisons raise, and the message names & | ~."""
    with pytest.raises(TypeError, match=r"& \| ~"):
        _ = a and b
    with pytest.raises(TypeError, match=r"& \| ~"):
        _ = not a
    with pytest.raises(TypeError, match=r"& \| ~"):
        _ = 1 < Task.attempt < 4
    for node in (TRUE, FALSE, ~a, Task.step.is_null(), Task.step.like("a"), Task.step.between("a", "b")):
        with pytest.raises(TypeError, match=r"& \| ~"):
            bool(node)


def test_chains_are_one_node() -> None:
    """C7: `a & b & c` counts as one list of three, however long the chain."""
    assert a & b & c == And((a, b, c))
    assert a | b | c == Or((a, b, c))
    assert (a & b) | c == Or((And((a, b)), c))
    assert TRUE & a == And((TRUE, a))
    check(And(()) & a & b)


def test_nodes_combine_with_predicates_only() -> None:
    """C6: `&` and `|` with anything else is an error at once."""
    with pytest.raises(TypeError):
        _ = a & True  # type: ignore[operator]  # the mistake under test
    with pytest.raises(TypeError):
        _ = a | Task.step  # type: ignore[operator]  # the mistake under test


def test_leaves_name_their_parts() -> None:
    """Section 4: the Python spelling builds exactly these nodes."""
    step = Task.step.reference
    assert (Task.step > "a") == Compare(step, Operator.GREATER, "a")
    assert (Task.step >= "a") == Compare(step, Operator.GREATER_OR_EQUAL, "a")
    assert Task.step.between("a", "b") == Between(step, "a", "b")
    assert Task.step.in_(x for x in "ab") == In(step, ("a", "b"))
    assert Task.step.like("a!%", "!") == Like(step, "a!%", "!")
    assert Task.step.is_null() == IsNull(step)
