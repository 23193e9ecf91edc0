"""Names, types and limits: what is refused when criteria are built in Python, and the one form of what is not."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from wiggle_core.criteria import (
    TRUE,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    QueueCriteria,
    Task,
    ValueType,
    cb,
    check,
)
from wiggle_core.errors import CriteriaError

STEP, ATTEMPT = FieldReference("step"), FieldReference("attempt")
step, count = Task.step, Task.attr("count", int)
total, due, vip = Task.attr("total", Decimal), Task.attr("due", datetime), Task.attr("vip", bool)


def unsound(value: object) -> Any:  # Any: what a caller without a type checker may pass
    return value


AT_THE_LIMIT: list[Predicate] = [
    Or(tuple(step == str(number) for number in range(99))),
    step.in_([str(number) for number in range(200)]),
    step == "x" * 255,
    step == "\U0001f600" * 255,
    step.like("%" * 8),
    step.like("x" * 256),
    step.like("!%!_!!", "!"),
    count == 2**63 - 1,
    count == -(2**63),
    total == 10**38 - 1,
    total == Decimal("-" + "9" * 38),
    total == Decimal("1e-38"),
    total == Decimal("0." + "9" * 38),
    total == Decimal("1." + "0" * 60),
    total == Decimal("0e-99999"),
    due == datetime(1, 1, 1, tzinfo=timezone.utc),
    due == datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc),
    Task.attr("n" * 63, str) == "x",
    step == "\x01\x7f\u2028\ue000\U0010ffff",
]
BEYOND: list[tuple[Predicate, str]] = [
    (Or(tuple(step == str(number) for number in range(100))), "/args/99"),
    (step.in_([str(number) for number in range(201)]), "/args/1"),
    (step == "x" * 256, "/args/1"),
    (step.in_(["x", "x" * 256]), "/args/1/1"),
    (step.like("%" * 9), "/args/1"),
    (step.like("!%" * 9, "!"), "/args/1"),
    (step.like("x" * 257), "/args/1"),
    (step.like("x", "!!"), "/escape"),
    (step.like("x", ""), "/escape"),
    (step.like("x", "\0"), "/escape"),
    (step.like("x!", "!"), "/args/1"),
    (step.like("!x", "!"), "/args/1"),
    (count == 2**63, "/args/1"),
    (count == -(2**63) - 1, "/args/1"),
    (total == 10**38, "/args/1"),
    (total == Decimal("1e38"), "/args/1"),
    (total == Decimal("1e-39"), "/args/1"),
    (total == Decimal("1." + "0" * 37 + "1"), "/args/1"),
    (total == Decimal("1e999999"), "/args/1"),
    (total == Decimal("NaN"), "/args/1"),
    (total == Decimal("Infinity"), "/args/1"),
    (due == datetime(2026, 3, 5), "/args/1"),
    (due == datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "/args/1"),
    (Task.attr("n" * 64, str) == "x", "/args/0/attr"),
    (Task.attr("", str) == "x", "/args/0/attr"),
    (Task.attr("a.b", str) == "x", "/args/0/attr"),
    (Task.attr("a\n", str) == "x", "/args/0/attr"),
    (step == "a\0", "/args/1"),
    (step == "\udfff", "/args/1"),
    (step.between("a", "\0"), "/args/2"),
]
WRONG: list[tuple[object, str]] = [
    (unsound(step) == 3, "/args/1"),
    (unsound(step) == b"x", "/args/1"),
    (unsound(step) == None, "/args/1"),  # noqa: E711  # builds a predicate
    (unsound(step) == Task.kind, "/args/1"),
    (unsound(count) == True, "/args/1"),  # noqa: E712  # builds a predicate
    (unsound(count) == 1.0, "/args/1"),
    (unsound(count) == Decimal(1), "/args/1"),
    (unsound(count) == "1", "/args/1"),
    (unsound(total) == 0.1, "/args/1"),
    (unsound(total) == True, "/args/1"),  # noqa: E712  # builds a predicate
    (unsound(vip) == 1, "/args/1"),
    (unsound(due) == date(2026, 3, 5), "/args/1"),
    (unsound(due) == "2026-03-05T12:00:00Z", "/args/1"),
    (unsound(step).like(5), "/args/1"),
    (unsound(step).like("x", 5), "/escape"),
    (Like(ATTEMPT, "1%"), ""),
    (Compare(vip.reference, Operator.LESS, True), ""),
    (Between(vip.reference, False, True), ""),
    (Compare(STEP, unsound("~"), "x"), "/op"),
    (Compare(STEP, unsound(None), "x"), "/op"),
    (Compare(FieldReference("colour"), Operator.EQUAL, "x"), "/args/0/field"),
    (Compare(FieldReference("__class__"), Operator.EQUAL, "x"), "/args/0/field"),
    (IsNull(FieldReference("id")), "/args/0/field"),
    (IsNull(FieldReference(unsound(5))), "/args/0/field"),
    (IsNull(AttributeReference("a", unsound("long"))), "/args/0/type"),
    (IsNull(AttributeReference(unsound(5), ValueType.LONG)), "/args/0/attr"),
    (IsNull(unsound("step")), "/args/0"),
    (In(STEP, unsound("abc")), "/args/1"),
    (In(STEP, unsound({"a"})), "/args/1"),
    (And(unsound(None)), "/args"),
    (And(unsound("ab")), "/args"),
    (And((TRUE, unsound(True))), "/args/1"),
    (Or((unsound(Task.step),)), "/args/0"),
    (Not(unsound("x")), "/args/0"),
    (cb.and_(unsound([TRUE])), "/args/0"),
    (Task.step, ""),
    ("step = 'x'", ""),
    (True, ""),
    (lambda: TRUE, ""),
]


@pytest.mark.parametrize("predicate", AT_THE_LIMIT)
def test_limits_are_reached(predicate: Predicate) -> None:
    """C7: what is exactly as large as allowed is taken."""
    assert QueueCriteria("q", predicate).predicate == check(predicate)


@pytest.mark.parametrize(("predicate", "path"), BEYOND)
def test_limits_are_kept(predicate: Predicate, path: str) -> None:
    """C7: one more is refused, with its place."""
    with pytest.raises(CriteriaError) as refused:
        QueueCriteria("q", predicate)
    assert refused.value.path == f"/where{path}"


@pytest.mark.parametrize(("predicate", "path"), WRONG, ids=range(len(WRONG)))
def test_wrong_types_are_refused(predicate: object, path: str) -> None:
    """C5, C6: without a type checker the mistake is found when the criteria is built, never at claim time."""
    with pytest.raises(CriteriaError) as refused:
        QueueCriteria("q", unsound(predicate))
    assert refused.value.path == f"/where{path}"


def test_depth_counts_the_predicate_as_written() -> None:
    """C7: 16 levels, double negations counted, and a leaf marked negated counted as the NOT that is written for it."""
    nest: Predicate = step == "x"
    for _ in range(15):
        nest = ~nest
    assert check(nest) == nest
    for deeper in (~nest, And((nest,))):
        with pytest.raises(CriteriaError, match="16 levels"):
            check(deeper)
    marked: Predicate = Compare(STEP, Operator.EQUAL, "x", negated=True)
    for _ in range(15):
        marked = Or((marked,))
    with pytest.raises(CriteriaError, match="16 levels"):
        check(marked)


def test_no_nest_is_followed_to_its_end() -> None:
    """C7: a nest of 100,000 levels is refused, not walked."""
    nest: Predicate = TRUE
    for _ in range(100_000):
        nest = Not(nest)
    with pytest.raises(CriteriaError, match="16 levels"):
        check(nest)
    # Taken apart from the outside: Python's own destructors would recurse.
    while isinstance(nest, Not):
        nest = nest.argument


def test_nodes_count_negated_leaves_as_written() -> None:
    """C7: `is_not_null` is NOT and a null test, two nodes, in Python as in JSON."""
    assert step.is_not_null() == Not(IsNull(STEP)) == check(IsNull(STEP, negated=True))
    check(And((*[step.is_not_null()] * 49, TRUE)))
    with pytest.raises(CriteriaError, match="100 nodes"):
        check(And(tuple([step.is_not_null()] * 50)))
    with pytest.raises(CriteriaError, match="100 nodes"):
        check(And(tuple([IsNull(STEP, negated=True)] * 50)))


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Stamp(datetime):
    pass


def test_literals_have_one_form() -> None:
    """C5: subclasses become plain values, whole numbers decimals where they must, instants UTC."""
    cest = timezone(timedelta(hours=2))
    predicate = check(
        (step == Colour.RED)
        & (count == Level.HIGH)
        & (total == 1000)
        & (total == Decimal("1000.00"))
        & (due == Stamp(2026, 3, 5, 14, tzinfo=cest))
        & In(STEP, unsound(["a"]))
        & Compare(STEP, unsound("<"), "x")
    )
    assert isinstance(predicate, And)
    values = [leaf.value for leaf in predicate.arguments[:5] if isinstance(leaf, Compare)]
    assert values == ["red", 3, Decimal(1000), Decimal(1000), datetime(2026, 3, 5, 12, tzinfo=timezone.utc)]
    assert list(map(type, values)) == [str, int, Decimal, Decimal, datetime]
    assert str(values[3]) == "1000"
    assert predicate.arguments[5:] == (In(STEP, ("a",)), Compare(STEP, Operator.LESS, "x"))


def test_errors_do_not_repeat_the_input() -> None:
    """C6: a megabyte that is refused does not come back in the message."""
    for refused_one in (
        step == "x" * 1_000_000,
        IsNull(FieldReference("x" * 1_000_000)),
        unsound(count) == "9" * 10**6,
    ):
        with pytest.raises(CriteriaError) as refused:
            check(refused_one)
        assert len(str(refused.value)) < 300


def test_attributes_have_five_types() -> None:
    """C5, C6: an attribute of another Python type is refused where it is named."""
    for kind in (float, bytes, list, None, "str"):
        with pytest.raises(CriteriaError, match="no attribute type"):
            Task.attr("x", unsound(kind))
    with pytest.raises(CriteriaError, match="not one text"):
        step.in_("abc")
