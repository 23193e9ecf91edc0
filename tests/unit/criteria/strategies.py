"""Hostile predicates and tasks: values that look alike, meet at the edges, or belong to another family."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

from hypothesis import strategies as st

from wiggle_core.criteria import (
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
    Reference,
    Value,
    ValueType,
    check,
)
from wiggle_core.criteria.instants import MAX_MICROS, MIN_MICROS, from_micros
from wiggle_core.criteria.tree import FIELDS
from wiggle_core.errors import CriteriaError
from wiggle_core.tasks.task import TaskRecord

NOON = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)
SPECIAL = (
    "%_!'\"\\[]^*?.$(){}|+~/- \t\n\r\u2028\x01\x7faAbBiıİßée\u0301"
    "\ud7ff\ue000\ufffd\uffff\U00010000\U0001f600\U0010ffff"
)
characters = st.sampled_from(SPECIAL) | st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.sampled_from(["", "a", "A", "a ", "eu", "EU", "1", "true", "'", "a'b", "\uffff", "\U0001f600"]) | st.text(
    st.sampled_from("ab%_\n\U0001f600") | characters, max_size=6
)
longs = st.sampled_from([0, 1, -1, 5, 10, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(
    -(2**63), 2**63 - 1
)
decimals = st.sampled_from(
    [Decimal(text) for text in ("0", "-0.0", "1", "1.0", "5", "0.1", "0.3", "-0.3", "1000.00", "1e3", "1e-38", "-1e37")]
    + [Decimal("9" * 38), Decimal("-0." + "9" * 38), Decimal("12345678901234567890123456789012345678")]
) | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6)
booleans = st.booleans()
instants = st.sampled_from(
    [NOON, NOON + timedelta(microseconds=1), from_micros(0), from_micros(-1), from_micros(MIN_MICROS)]
) | st.integers(MIN_MICROS, MAX_MICROS).map(from_micros)
VALUES: dict[ValueType, st.SearchStrategy[Value]] = {
    ValueType.STRING: texts,
    ValueType.LONG: longs,
    ValueType.DECIMAL: decimals | longs,
    ValueType.BOOLEAN: booleans,
    ValueType.INSTANT: instants,
}
NAMES = ("a", "b", "in", "null")
"""Few, so that predicates and tasks meet; two are words of the text form."""

references: st.SearchStrategy[Reference] = st.sampled_from(sorted(FIELDS)).map(FieldReference) | st.builds(
    AttributeReference, st.sampled_from(NAMES), st.sampled_from(ValueType)
)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, str | None]:
    """A LIKE pattern and its escape, valid together."""
    escape = draw(st.none() | st.sampled_from("!\\%_a'"))
    wild = st.sampled_from("%_").filter(lambda sign: sign != escape)
    escaped = st.sampled_from("%_").map(lambda sign: f"{escape}{sign}") if escape else st.nothing()
    doubled = st.just(f"{escape}{escape}") if escape else st.nothing()
    plain = st.sampled_from("ab\n\U0001f600") | characters
    part = plain.filter(lambda sign: sign not in ("%", "_", escape)) | wild | escaped | doubled
    return "".join(draw(st.lists(part, max_size=8))), escape


@st.composite
def leaves(draw: st.DrawFn) -> Predicate:
    reference = draw(references)
    kind = reference.type
    value = VALUES[kind]
    kinds = ["compare", "in", "null"] + ["between"] * (kind is not ValueType.BOOLEAN)
    match draw(st.sampled_from(kinds + ["like"] * (kind is ValueType.STRING))):
        case "compare":
            equality = [Operator.EQUAL, Operator.NOT_EQUAL]
            operators = equality if kind is ValueType.BOOLEAN else list(Operator)
            return Compare(reference, draw(st.sampled_from(operators)), draw(value), draw(st.booleans()))
        case "between":
            return Between(reference, draw(value), draw(value), draw(st.booleans()))
        case "in":
            return In(reference, tuple(draw(st.lists(value, max_size=4))), draw(st.booleans()))
        case "like":
            return Like(reference, *draw(patterns()), draw(st.booleans()))
        case _:
            return IsNull(reference, draw(st.booleans()))


def is_within_limits(predicate: Predicate) -> bool:
    try:
        check(predicate)
    except CriteriaError:
        return False
    return True


unchecked: st.SearchStrategy[Predicate] = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda some: And(tuple(some))),
        st.lists(inner, max_size=4).map(lambda some: Or(tuple(some))),
        inner.map(Not),
    ),
    max_leaves=12,
)
predicates: st.SearchStrategy[Predicate] = unchecked.filter(is_within_limits).map(check)

values: st.SearchStrategy[Value] = st.one_of(*VALUES.values())

tasks: st.SearchStrategy[TaskRecord] = st.builds(
    TaskRecord,
    id=st.just("t1"),
    queue=st.just("q"),
    step=texts,
    created_at=st.sampled_from([0, -1]) | st.integers(MIN_MICROS, MAX_MICROS),
    ready_at=st.just(0),
    attributes=st.dictionaries(st.sampled_from(NAMES), values),
    priority=st.integers(0, 2**31 - 1),
    attempt=st.integers(1, 10),
    workflow=st.none() | texts,
    version=st.none() | longs,
    node=st.none() | texts,
    kind=texts,
    correlation_id=st.none() | texts,
)
