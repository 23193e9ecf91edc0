"""What each operator builds, node by node. Everything is built inside the tests, none of it as they are loaded."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from hashlib import sha256

import pytest

from wiggle_core.criteria import (
    FALSE,
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
)
from wiggle_core.criteria.check import check_value
from wiggle_core.criteria.fields import Field, OrderedField, TextField
from wiggle_core.criteria.tree import (
    canonical,
    canonical_decimal,
    fingerprint,
    negate,
    normalize,
    pattern_parts,
    push_down,
)

STEP, ATTEMPT = FieldReference("step"), FieldReference("attempt")


def test_python_operators_build_their_nodes() -> None:
    """C3: the operators of Python."""
    assert (Task.step == "a") == Compare(STEP, Operator.EQUAL, "a")
    assert (Task.step != "a") == Compare(STEP, Operator.NOT_EQUAL, "a")
    assert (Task.attempt < 4) == Compare(ATTEMPT, Operator.LESS, 4)
    assert (Task.attempt <= 4) == Compare(ATTEMPT, Operator.LESS_OR_EQUAL, 4)
    assert (Task.attempt > 4) == Compare(ATTEMPT, Operator.GREATER, 4)
    assert (Task.attempt >= 4) == Compare(ATTEMPT, Operator.GREATER_OR_EQUAL, 4)
    assert Task.attempt.between(1, 2) == Between(ATTEMPT, 1, 2)
    assert Task.attempt.in_(iter([1, 2])) == In(ATTEMPT, (1, 2))
    assert Task.step.like("a!%") == Like(STEP, "a!%")
    assert Task.step.like("a!%", "!") == Like(STEP, "a!%", "!")
    assert Task.step.is_null() == IsNull(STEP)
    assert Task.step.is_not_null() == Not(IsNull(STEP))


def test_builder_functions_build_their_nodes() -> None:
    """C3: the same by the names of JPA."""
    assert cb.equal(Task.step, "a") == Compare(STEP, Operator.EQUAL, "a")
    assert cb.not_equal(Task.step, "a") == Compare(STEP, Operator.NOT_EQUAL, "a")
    assert cb.less_than(Task.attempt, 4) == Compare(ATTEMPT, Operator.LESS, 4)
    assert cb.less_than_or_equal_to(Task.attempt, 4) == Compare(ATTEMPT, Operator.LESS_OR_EQUAL, 4)
    assert cb.greater_than(Task.attempt, 4) == Compare(ATTEMPT, Operator.GREATER, 4)
    assert cb.greater_than_or_equal_to(Task.attempt, 4) == Compare(ATTEMPT, Operator.GREATER_OR_EQUAL, 4)
    assert cb.between(Task.attempt, 1, 2) == Between(ATTEMPT, 1, 2)
    assert cb.in_(Task.attempt, [1, 2]) == In(ATTEMPT, (1, 2))
    assert cb.like(Task.step, "a!%") == Like(STEP, "a!%")
    assert cb.like(Task.step, "a!%", "!") == Like(STEP, "a!%", "!")
    assert cb.is_null(Task.step) == IsNull(STEP)
    assert cb.is_not_null(Task.step) == Not(IsNull(STEP))
    assert cb.and_(TRUE, FALSE) == And((TRUE, FALSE))
    assert cb.or_(TRUE, FALSE) == Or((TRUE, FALSE))
    assert cb.not_(TRUE) == Not(TRUE)
    assert (cb.conjunction(), cb.disjunction()) == (And(()), Or(()))


def test_chains_are_one_node() -> None:
    """C7: `a & b & c` is a list of three; TRUE, FALSE and lists of the other kind stay nodes of their own."""
    a, b, c, d = (Task.step == name for name in "abcd")
    assert (a & b & c) == ((a & b) & c) == (a & (b & c)) == And((a, b, c))
    assert (a | b | c | d) == ((a | b) | (c | d)) == Or((a, b, c, d))
    assert ((a | b) & c) == And((Or((a, b)), c))
    assert ((a & b) | c) == Or((And((a, b)), c))
    assert (a & (b | c)) == And((a, Or((b, c))))
    assert (a | (b & c)) == Or((a, And((b, c))))
    assert (TRUE & a) == And((TRUE, a))
    assert (a & TRUE) == And((a, TRUE))
    assert (FALSE | a) == Or((FALSE, a))
    assert (a | FALSE) == Or((a, FALSE))
    assert ~(a & b) == Not(And((a, b)))


def test_a_predicate_joins_with_predicates_only() -> None:
    """C6: Python's own error for `predicate & True`."""
    a = Task.step == "a"
    for joining in (lambda: a & True, lambda: a | "x", lambda: a & Task.step):  # type: ignore[operator]  # meant
        with pytest.raises(TypeError, match="unsupported operand"):
            joining()


@pytest.mark.parametrize(
    ("python_type", "kind", "field"),
    [
        (str, ValueType.STRING, TextField),
        (int, ValueType.LONG, OrderedField),
        (Decimal, ValueType.DECIMAL, OrderedField),
        (bool, ValueType.BOOLEAN, Field),
        (datetime, ValueType.INSTANT, OrderedField),
    ],
)
def test_attributes_have_what_their_type_can(python_type: type, kind: ValueType, field: type) -> None:
    """C3: like is for text, booleans have no order."""
    reference = AttributeReference("name", kind)
    attribute = Task.attr("name", python_type)
    assert type(attribute) is field
    assert attribute.reference == reference
    assert repr(attribute) == f"Field({reference!r})"
    assert hash(attribute) == hash(reference) != hash(Task.step)
    assert attribute.is_null() == IsNull(reference)


def test_negation_is_pushed_to_the_leaves() -> None:
    """C2: De Morgan; a negated leaf is marked, and marked twice it is as it was."""
    a, b = Task.step == "a", Task.attempt < 3
    not_a = Compare(STEP, Operator.EQUAL, "a", negated=True)
    not_b = Compare(ATTEMPT, Operator.LESS, 3, negated=True)
    assert negate(a) == not_a
    assert negate(not_a) == a
    assert negate(And((a, Not(b)))) == Or((not_a, b))
    assert negate(Or((a, b))) == And((not_a, not_b))
    assert push_down(Not(Or((a, Not(And((a, b))))))) == And((not_a, And((a, b))))
    assert push_down(And((Not(a), Or((Not(Not(b)),))))) == And((not_a, Or((b,))))


def test_normal_forms() -> None:
    """Section 4: flat, sorted, unique, constants absorbed, the simplest node for each leaf."""
    a, b, c = (Task.step == name for name in "abc")
    assert normalize(And((b, And((c, a)), a))) == And((a, b, c))
    assert normalize(Or((Or((b, a)), c, b))) == Or((a, b, c))
    assert normalize(And((a, Or((b,)), TRUE))) == And((a, b))
    assert normalize(And((a, FALSE))) == FALSE
    assert normalize(Or((a, TRUE))) == TRUE
    assert normalize(And((TRUE, TRUE))) == TRUE
    assert normalize(Or((FALSE,))) == FALSE
    assert normalize(In(STEP, ("b", "a", "b"))) == In(STEP, ("a", "b"))
    assert normalize(In(STEP, ("b", "b"), negated=True)) == Compare(STEP, Operator.EQUAL, "b", negated=True)
    assert (normalize(In(STEP, ())), normalize(Not(In(STEP, ())))) == (FALSE, TRUE)
    assert normalize(Like(STEP, "a!_b!!", "!", negated=True)) == Compare(STEP, Operator.EQUAL, "a_b!", negated=True)
    assert normalize(Like(STEP, "a_b")) == Like(STEP, "a_b")
    assert normalize(Like(STEP, "")) == Compare(STEP, Operator.EQUAL, "")


def test_criteria_keep_their_parts() -> None:
    """Section 1: what is given is what is there, literals in one form."""
    moment = datetime(2026, 3, 5, 14, tzinfo=timezone.utc)
    criteria = QueueCriteria("q", Task.created_at < moment)
    assert (criteria.queue, criteria.predicate) == ("q", Compare(FieldReference("created_at"), Operator.LESS, moment))
    assert QueueCriteria.from_("q").where(TRUE).where(FALSE) == QueueCriteria("q", And((TRUE, FALSE)))
    assert QueueCriteria.from_("p") == QueueCriteria("p", None)
    total = Task.attr("total", Decimal)
    kept = QueueCriteria("q", total == 5).predicate
    assert repr(kept) == repr(Compare(total.reference, Operator.EQUAL, Decimal(5)))
    assert QueueCriteria("q", IsNull(STEP, negated=True)).predicate == Not(IsNull(STEP))


def test_patterns_come_apart() -> None:
    """C4: runs of `%` are one, an escape may stand before `%`, `_` and itself."""
    wild = [part if isinstance(part, str) else part.name for part in pattern_parts("a%%b__!%!!c%_", "!")]
    assert wild == ["a", "ANY_RUN", "b", "ANY_ONE", "ANY_ONE", "%!c", "ANY_RUN", "ANY_ONE"]
    assert pattern_parts("", None) == []
    assert pattern_parts("a!b", None) == ["a!b"]
    with pytest.raises(ValueError, match="may stand only before"):
        pattern_parts("!a", "!")
    with pytest.raises(ValueError, match="may stand only before"):
        pattern_parts("a!", "!")


def test_the_spelling_under_the_fingerprint() -> None:
    """Section 4: fingerprints are kept in databases, so what they are made of may never change."""
    name, vip = AttributeReference("name", ValueType.STRING), AttributeReference("vip", ValueType.BOOLEAN)
    total, due = AttributeReference("total", ValueType.DECIMAL), AttributeReference("due", ValueType.INSTANT)
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    spelled: list[tuple[Predicate, str]] = [
        (TRUE, "and()"),
        (FALSE, "or()"),
        (Compare(STEP, Operator.EQUAL, "it's \u00e9\U0001f600\n"), '=(step,"it\'s \\xe9\\U0001f600\\n")'),
        (Compare(ATTEMPT, Operator.LESS_OR_EQUAL, -3, negated=True), "!<=(attempt,-3)"),
        (Compare(vip, Operator.NOT_EQUAL, True), "<>(b:vip,true)"),
        (In(vip, (True, False)), "in(b:vip,false,true)"),
        (Between(total, Decimal("1E+3"), Decimal("0.50")), "between(n:total,1000,0.5)"),
        (Compare(due, Operator.GREATER, moment), ">(t:due,t1000000)"),
        (Like(name, "a!%%b_", "!"), "like(s:name,['a%' % 'b' _])"),
        (IsNull(name), "null(s:name)"),
        (And((Or((IsNull(name), IsNull(due))), IsNull(vip))), "and(null(b:vip),or(null(s:name),null(t:due)))"),
    ]
    for predicate, spelling in spelled:
        assert canonical(normalize(predicate)) == spelling
        assert fingerprint(predicate) == sha256(spelling.encode()).hexdigest()
    with pytest.raises(ValueError, match=r"^negation has no canonical form: normalize first$"):
        canonical(Not(TRUE))


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        ("5", "5"),
        ("5.0", "5"),
        ("5.50", "5.5"),
        ("100", "100"),
        ("100.00", "100"),
        ("1E+3", "1000"),
        ("1E-2", "0.01"),
        ("-0.30", "-0.3"),
        ("0", "0"),
        ("-0", "0"),
        ("0.00", "0"),
        ("-0.0", "0"),
        ("9" * 38, "9" * 38),
    ],
)
def test_decimals_have_one_spelling(number: str, spelled: str) -> None:
    """Section 4: no exponent, no needless zero, no negative zero."""
    assert canonical_decimal(Decimal(number)) == spelled


def test_wildcards_are_the_only_ones_counted() -> None:
    """C7: eight `%` and `_` together, whatever else the pattern holds."""
    assert QueueCriteria("q", Task.step.like("X" * 248 + "%_" * 4)).predicate == Like(STEP, "X" * 248 + "%_" * 4)


class Money(Decimal):
    """A kind of number that a program may have made its own."""


@pytest.mark.parametrize("number", [Money("5.5"), Money("5.50"), Money("-0"), 5, -(10**38) + 1])
def test_decimals_become_plain(number: Decimal | int) -> None:
    """C5: literals have one form, whichever class they came as."""
    checked = check_value(ValueType.DECIMAL, number)
    assert (checked, type(checked)) == (number, Decimal)
