"""The JSON form: round trips, every refusal with its pointer, and input that means harm (C6, C7)."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings

from wiggle_core.criteria import (
    And,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    QueueCriteria,
    Task,
    Value,
    ValueType,
    criteria_from_json,
    criteria_from_object,
    criteria_to_json,
    criteria_to_object,
    predicate_from_object,
    predicate_to_object,
)
from wiggle_core.criteria.check import MAX_DEPTH, MAX_JSON_BYTES, MAX_NODES
from wiggle_core.criteria.tree import normalize
from wiggle_core.criteria.wire import parse_json, stored_predicate, value_from_wire, value_to_wire
from wiggle_core.criteria.written import to_json
from wiggle_core.engine.routes import with_steps
from wiggle_core.errors import CriteriaError

from .strategies import predicates

STEP = {"field": "step"}
N, TOTAL = {"attr": "n", "type": "long"}, {"attr": "total", "type": "decimal"}
DUE, VIP = {"attr": "due", "type": "instant"}, {"attr": "vip", "type": "boolean"}
total = Task.attr("total", Decimal)


def op(name: object, *args: object, **more: object) -> dict[str, object]:
    return {"op": name, "args": list(args), **more}


@settings(max_examples=400, deadline=None)
@given(predicates)
def test_json_round_trips(predicate: Predicate) -> None:
    """Section 4: what is written is read back as an equal tree, through objects and through text."""
    assert predicate_from_object(predicate_to_object(predicate)) == predicate
    criteria = QueueCriteria("payments", predicate)
    assert criteria.predicate == predicate
    assert criteria_from_json(criteria_to_json(criteria)) == criteria
    assert criteria_from_json(json.dumps(criteria_to_object(criteria)).encode()) == criteria


def test_the_contract_s_example() -> None:
    """Section 4: the form as printed there."""
    predicate = (Task.step == "charge") & (total >= 1000)
    text = (
        '{"queue":"payments","where":{"op":"and","args":[{"op":"=","args":[{"field":"step"},"charge"]},'
        '{"op":">=","args":[{"attr":"total","type":"decimal"},{"decimal":"1000"}]}]}}'
    )
    assert criteria_to_json(QueueCriteria("payments", predicate)) == text
    assert criteria_from_json(text) == QueueCriteria("payments", predicate)


@pytest.mark.parametrize("where", [{}, {"where": None}])
def test_no_where_is_everything(where: dict[str, None]) -> None:
    """Section 4: `where` null or absent takes all of the queue."""
    criteria = criteria_from_object({"queue": "payments", **where})
    assert criteria == QueueCriteria("payments")
    assert criteria_to_object(criteria) == {"queue": "payments"}


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        ("a", None, "a"),
        (True, None, True),
        (2**53 - 1, ValueType.LONG, 2**53 - 1),
        (2**53, ValueType.LONG, {"long": "9007199254740992"}),
        (-(2**53), None, {"long": "-9007199254740992"}),
        (5, ValueType.DECIMAL, {"decimal": "5"}),
        (Decimal("1E+3"), None, {"decimal": "1000"}),
        (Decimal("-0.50"), ValueType.DECIMAL, {"decimal": "-0.5"}),
        (datetime(2026, 3, 5, 12, tzinfo=timezone.utc), None, {"instant": "2026-03-05T12:00:00.000000Z"}),
    ],
)
def test_values_are_written_in_one_form(value: Value, kind: ValueType | None, written: object) -> None:
    """Section 4: whole numbers plain up to 2^53-1, decimals and instants tagged."""
    assert value_to_wire(value, kind) == written
    assert value_from_wire(written) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Decimal("0.1")),
        ("1e3", Decimal("1e3")),
        ("-0.0", Decimal("-0.0")),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ('{"long": "-5"}', -5),
        ('{"decimal": "1.50E-3"}', Decimal("0.0015")),
        ('{"decimal": "0.1"}', Decimal("0.1")),
        ('{"instant": "2026-03-05T14:00:00+02:00"}', datetime(2026, 3, 5, 12, tzinfo=timezone.utc)),
        ('{"instant": "2026-03-05T12:00:00.1234560Z"}', datetime(2026, 3, 5, 12, 0, 0, 123456, timezone.utc)),
    ],
)
def test_literals_are_read_exactly(text: str, value: Value) -> None:
    """Section 4: a plain fraction is read as written, whole numbers of 64 bits too."""
    read = value_from_wire(parse_json(text))
    assert read == value
    assert type(read) is type(value)


def test_a_decimal_reference_is_written_as_decimal() -> None:
    """Section 4: a predicate that was never checked too, whose literals are not in one form yet."""
    reference, five, six = {"attr": "total", "type": "decimal"}, {"decimal": "5"}, {"decimal": "6"}
    assert predicate_to_object(total == 5) == op("=", reference, five)
    assert predicate_to_object(total.in_([5, 6])) == op("in", reference, [five, six])
    assert predicate_to_object(total.between(5, 6)) == op("between", reference, five, six)


def test_a_negated_leaf_is_written_as_not_of_the_leaf() -> None:
    """C2, section 4: normal forms have no word for it in JSON."""
    assert predicate_to_object(IsNull(Task.step.reference, negated=True)) == op("not", op("isNull", STEP))
    marked = QueueCriteria("q", ~(Task.step.in_(["a", "b"]))).normal
    assert predicate_to_object(marked) == op("not", op("in", STEP, ["a", "b"]))


def test_floats_of_decoded_objects_are_read_by_their_spelling() -> None:
    """C6: a float that Python decoded is the decimal it prints as; one that is not finite is refused."""
    assert value_from_wire(0.1) == Decimal("0.1")
    assert predicate_from_object(op("=", TOTAL, 0.3)) == (total == Decimal("0.3"))
    for broken in (float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity")):
        with pytest.raises(CriteriaError, match="not finite"):
            value_from_wire(broken)


def test_a_decimal_reference_takes_whole_numbers() -> None:
    """Section 4: plain or long, and they are written as decimals."""
    for literal in (1000, {"long": "1000"}, {"decimal": "1e3"}, 1000.0):
        predicate = predicate_from_object(op("=", TOTAL, literal))
        assert predicate_to_object(predicate) == op("=", TOTAL, {"decimal": "1000"})


DEEP: dict[str, object] = op("=", STEP, "x")
for _ in range(5_000):
    DEEP = op("not", DEEP)
CYCLE: dict[str, Any] = {"op": "not", "args": []}  # Any: it holds itself
CYCLE["args"].append(CYCLE)

REFUSED: list[tuple[str, object, str]] = [
    ("text for a predicate", "x", ""),
    ("true for a predicate", True, ""),
    ("no operator", {"args": []}, ""),
    ("no arguments", {"op": "and"}, ""),
    ("operator not text", op(["="], STEP, "x"), "/op"),
    ("operator in capitals", op("AND"), "/op"),
    ("operator of SQL", op("!=", STEP, "x"), "/op"),
    ("arguments not a list", {"op": "and", "args": {}}, "/args"),
    ("arguments text", {"op": "and", "args": "xy"}, "/args"),
    ("comparison of three", op("=", STEP, "x", "y"), "/args"),
    ("in without a list", op("in", STEP, "x"), "/args/1"),
    ("in with values as arguments", op("in", STEP, "x", "y"), "/args"),
    ("list in a list", op("in", STEP, ["x", ["y"]]), "/args/1/1"),
    ("number in a text list", op("in", STEP, ["x", 1]), "/args/1/1"),
    ("isNull of two", op("isNull", STEP, None), "/args"),
    ("not of two", op("not", op("and"), op("and")), "/args"),
    ("like without a pattern", op("like", STEP), "/args"),
    ("like with a number", op("like", STEP, 5), "/args/1"),
    ("escape on a comparison", op("=", STEP, "x", escape="!"), "/escape"),
    ("escape on and", op("and", escape="!"), "/escape"),
    ("escape null", op("like", STEP, "x", escape=None), "/escape"),
    ("escape empty", op("like", STEP, "x", escape=""), "/escape"),
    ("escape a number", op("like", STEP, "x", escape=1), "/escape"),
    ("escape before a letter", op("like", STEP, "!x", escape="!"), "/args/1"),
    ("key with a slash", op("and", **{"a/b~c": 1}), "/a~1b~0c"),
    ("key that cannot be shown", op("and", **{"\ud800": 1}), ""),
    ("key without end", op("and", **{"x" * 10_000: 1}), ""),
    ("key of another type", {"op": "and", "args": [], 5: 1}, ""),
    ("attribute without type", op("=", {"attr": "n"}, 1), "/args/0"),
    ("attribute with a null type", op("=", {"attr": "n", "type": None}, 1), "/args/0/type"),
    ("type in capitals", op("=", {"attr": "n", "type": "LONG"}, 1), "/args/0/type"),
    ("attribute name a number", op("=", {"attr": 5, "type": "long"}, 1), "/args/0/attr"),
    ("attribute name in capitals", op("=", {"attr": "N", "type": "long"}, 1), "/args/0/attr"),
    ("attribute name of 64", op("=", {"attr": "n" * 64, "type": "long"}, 1), "/args/0/attr"),
    ("attribute with more keys", op("=", {"attr": "n", "type": "long", "path": "x"}, 1), "/args/0/path"),
    ("field with a type", op("=", {"field": "step", "type": "string"}, "x"), "/args/0/type"),
    ("field and attribute", op("=", {"field": "step", "attr": "n"}, "x"), "/args/0/attr"),
    ("field in capitals", op("=", {"field": "STEP"}, "x"), "/args/0/field"),
    ("field not text", op("=", {"field": ["step"]}, "x"), "/args/0/field"),
    ("private field", op("=", {"field": "__class__"}, "x"), "/args/0/field"),
    ("reference missing", op("=", "step", "x"), "/args/0"),
    ("sides swapped", op("=", "x", STEP), "/args/0"),
    ("two references", op("=", STEP, {"field": "kind"}), "/args/1/field"),
    ("literal of two tags", op("=", N, {"long": "1", "decimal": "1"}), "/args/1"),
    ("empty literal", op("=", N, {}), "/args/1"),
    ("unknown tag", op("=", N, {"int": "1"}), "/args/1/int"),
    ("long as a number", op("=", N, {"long": 1}), "/args/1/long"),
    ("long with a fraction", op("=", N, {"long": "1.0"}), "/args/1/long"),
    ("long with a plus", op("=", N, {"long": "+1"}), "/args/1/long"),
    ("long with a space", op("=", N, {"long": " 1"}), "/args/1/long"),
    ("long of other digits", op("=", N, {"long": "١"}), "/args/1/long"),
    ("long with underscores", op("=", N, {"long": "1_0"}), "/args/1/long"),
    ("long below 64 bits", op("=", N, {"long": "-9223372036854775809"}), "/args/1/long"),
    ("long plain above 64 bits", op("=", N, 2**63), "/args/1"),
    ("decimal plain above 64 bits", op("=", TOTAL, 2**63), "/args/1"),
    ("whole fraction for LONG", op("=", N, 5.0), "/args/1"),
    ("whole decimal for LONG", op("=", N, {"decimal": "5"}), "/args/1"),
    ("boolean for DECIMAL", op("=", TOTAL, True), "/args/1"),
    ("text for DECIMAL", op("=", TOTAL, "5"), "/args/1"),
    ("decimal of infinity", op("=", TOTAL, {"decimal": "Infinity"}), "/args/1/decimal"),
    ("decimal signalling", op("=", TOTAL, {"decimal": "sNaN"}), "/args/1/decimal"),
    ("decimal with underscores", op("=", TOTAL, {"decimal": "1_0"}), "/args/1/decimal"),
    ("decimal of 39 places", op("=", TOTAL, {"decimal": "1e-39"}), "/args/1"),
    ("decimal of 10^38", op("=", TOTAL, {"decimal": "1e38"}), "/args/1"),
    ("decimal of a huge exponent", op("=", TOTAL, {"decimal": "1e999999999"}), "/args/1"),
    ("decimal of a tiny exponent", op("=", TOTAL, {"decimal": "1e-999999999"}), "/args/1"),
    ("decimal beyond exponents", op("=", TOTAL, {"decimal": "1e9999999999999999999999"}), "/args/1/decimal"),
    ("decimal of a million digits", op("=", TOTAL, {"decimal": "9" * 1_000_000}), "/args/1"),
    ("number for BOOLEAN", op("=", VIP, 1), "/args/1"),
    ("text for BOOLEAN", op("=", VIP, "true"), "/args/1"),
    ("order on BOOLEAN", op("between", VIP, False, True), ""),
    ("text for INSTANT", op("=", DUE, "2026-03-05T12:00:00Z"), "/args/1"),
    ("epoch for INSTANT", op("=", DUE, 1772712000), "/args/1"),
    ("instant with seven digits", op("=", DUE, {"instant": "2026-03-05T12:00:00.1234567Z"}), "/args/1/instant"),
    ("instant of a leap second", op("=", DUE, {"instant": "2026-03-05T23:59:60Z"}), "/args/1/instant"),
    ("instant of no such day", op("=", DUE, {"instant": "2026-02-30T00:00:00Z"}), "/args/1/instant"),
    ("instant of the year 0", op("=", DUE, {"instant": "0000-01-01T00:00:00Z"}), "/args/1/instant"),
    ("instant before the year 1", op("=", DUE, {"instant": "0001-01-01T00:00:00+00:01"}), "/args/1/instant"),
    ("instant as a date", op("=", DUE, {"instant": "2026-03-05"}), "/args/1/instant"),
    ("lone surrogate", op("=", STEP, "\ud800"), "/args/1"),
    ("text of a megabyte", op("=", STEP, "x" * 1_000_000), "/args/1"),
    ("list of a million", op("in", STEP, ["x"] * 1_000_000), "/args/1"),
    ("a million arguments", op("and", *[op("and")] * 1_000_000), "/args/99"),
    ("second end of between", op("between", N, 1, "2"), "/args/2"),
    ("deep inside", op("and", op("and"), op("not", op("=", STEP, 1))), "/args/1/args/0/args/1"),
    ("5,000 levels", DEEP, "/args/0" * 16),
    ("no end of levels", CYCLE, "/args/0" * 16),
]


@pytest.mark.parametrize(("where", "path"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_with_a_pointer(where: object, path: str) -> None:
    """C6: whatever is not understood is refused when it is read, with the place of the offender."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object({"queue": "payments", "where": where})
    assert refused.value.path == f"/where{path}"
    assert len(str(refused.value)) < 500
    str(refused.value).encode()


@pytest.mark.parametrize(
    ("criteria", "path"),
    [
        ([], ""),
        (None, ""),
        ("payments", ""),
        ({}, ""),
        ({"where": None}, ""),
        ({"queue": "q", "criteria": None}, "/criteria"),
        ({"queue": None}, "/queue"),
        ({"queue": 5}, "/queue"),
        ({"queue": ""}, "/queue"),
        ({"queue": "q" * 256}, "/queue"),
        ({"queue": "a\nb"}, "/queue"),
        ({"queue": "a\x7fb"}, "/queue"),
        ({"queue": "a\u0085b"}, "/queue"),
        ({"queue": "\ud800"}, "/queue"),
        ({"queue": "q", "where": False}, "/where"),
        ({"queue": "q", "where": {}}, "/where"),
    ],
)
def test_refused_criteria(criteria: object, path: str) -> None:
    """C6, C7: a queue has a name without control characters, and criteria have no other keys."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object(criteria)
    assert refused.value.path == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "[" * 10_000 + "]" * 10_000,
        '{"queue":' * 10_000 + "1" + "}" * 10_000,
        '{"queue": "q", "where": ' + '{"op":"not","args":[' * 3_000,
        '{"queue": "' + "x" * 1_000_000 + '"}',
        " " * (MAX_JSON_BYTES - 1) + "{}",
        '{"queue": "' + "é" * (MAX_JSON_BYTES // 2) + '"}',
        '{"queue": "a", "queue": "b"}',
        '{"queue": "q", "where": {"op": "and", "args": [], "args": []}}',
        '{"queue": NaN}',
        '{"queue": -Infinity}',
        '{"queue": "q"} x',
        '{"queue": "a\nb"}',
        '\ufeff{"queue": "q"}',
        '{"queue": "\ud800"}',
        '{"queue": "\\ud800"}',
        '{"queue": ' + "9" * 5_000 + "}",
        '{"queue": ' + "9" * 60_000 + "}",
        '{"queue": 1e9999999999999999999}',
        '{"queue": 1e999999999}',
        '{"queue": 0.' + "1" * 60_000 + "}",
        b'{"queue": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\xed\xa0\x80",
        "{" + ",".join(f'"k{number}":0' for number in range(6_000)) + ',"k5999":0}',
    ],
    ids=range(27),
)
def test_hostile_json_is_refused(text: str | bytes) -> None:
    """C6, C7: no traceback but CriteriaError, and no answer of the input's size."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_json(text)
    assert len(str(refused.value)) < 300
    str(refused.value).encode()


def test_predicates_at_the_limits_round_trip() -> None:
    """C7: what may be built may be written and read again, negated leaves included."""
    present = Task.node.is_not_null()
    wide = And((*[present] * ((MAX_NODES - 1) // 2), Task.step == "x"))
    deep: Predicate = Task.step == "x"
    for _ in range(MAX_DEPTH - 1):
        deep = Not(deep)
    for predicate in (wide, deep):
        criteria = QueueCriteria("q", predicate)
        assert criteria_from_json(criteria_to_json(criteria)) == criteria
    for too_much in (wide & present, Not(deep), And((*[Task.step == "x"] * 98, present))):
        with pytest.raises(CriteriaError):
            QueueCriteria("q", too_much)


def test_what_no_reader_accepts_is_not_built() -> None:
    """C7: 64 KiB of JSON, measured as it would be written and the queue counted in."""
    lists = [In(Task.step.reference, tuple(f"{index:0>250}" for index in range(200)))]
    remaining = MAX_JSON_BYTES - len(criteria_to_json(QueueCriteria("q", Or((*lists, In(Task.step.reference, ()))))))
    filling = [min(255, remaining - start - 3) for start in range(0, remaining, 258)]
    texts = tuple("x" * length for length in filling if length >= 0)
    full = QueueCriteria("q", Or((*lists, In(Task.step.reference, texts))))
    size = len(criteria_to_json(full).encode())
    assert MAX_JSON_BYTES - 5 < size <= MAX_JSON_BYTES
    assert criteria_from_json(criteria_to_json(full)) == full
    with pytest.raises(CriteriaError, match="64 KiB"):
        QueueCriteria("q" * 10, full.predicate)


@settings(max_examples=400, deadline=None)
@given(predicates)
def test_a_stored_normal_form_is_read_back(predicate: Predicate) -> None:
    """N2: a lane's predicate comes back from its store as the same normal form."""
    normal = normalize(predicate)
    assert stored_predicate(to_json(predicate_to_object(normal))) == normal


def test_a_stored_normal_form_may_exceed_what_users_may_write() -> None:
    """N2, C7: negation pushed to each leaf, and the steps of a worker with many handlers, add nodes and values."""
    widest = Not(And(tuple(Task.step == f"step {number}" for number in range(MAX_NODES - 2))))
    normal = with_steps(QueueCriteria("q", widest).normal, [f"step {number}" for number in range(1000)])
    written = to_json(predicate_to_object(normal))
    assert stored_predicate(written) == normal
    with pytest.raises(CriteriaError, match="more than"):
        predicate_from_object(json.loads(written))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"op": "near", "args": []}'])
def test_a_stored_text_that_is_no_predicate_is_refused(text: str) -> None:
    with pytest.raises(CriteriaError):
        stored_predicate(text)
