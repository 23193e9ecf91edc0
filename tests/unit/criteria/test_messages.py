"""What refusals say: to the letter, since the message is all that a user has to find the mistake by (C6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import pytest

from wiggle_core.criteria import And, AttributeReference, FieldReference, In, IsNull, Like, Or, Task, ValueType
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import check, check_text, check_value, short
from wiggle_core.criteria.fields import value_type
from wiggle_core.criteria.text import parse_text
from wiggle_core.criteria.tree import Between, Compare, Not, Operator, pattern_parts
from wiggle_core.criteria.wire import criteria_from_json, criteria_from_object, predicate_from_object, value_from_wire
from wiggle_core.errors import CriteriaError

FIELDS = "workflow, version, step, node, kind, attempt, correlation_id, created_at, priority"
TYPES = "string, long, decimal, boolean, instant"
NAMING = "a lower-case letter, then up to 62 of a-z, 0-9 and _"
UNSTORABLE = "text with U+0000 or a lone surrogate, which no store can hold"
NO_DECIMAL = "a decimal has at most 38 digits and 38 places, and is finite"
NO_LONG = 'a whole number outside 64 bits; a longer one is written {"decimal": "..."}'
OPERATORS = "=, <>, <, <=, >, >="
OPERAND = "a field, attr.name, NOT, TRUE, FALSE or ( is expected"
TEST = "an operator is expected: = <> < <= > >= !=, [NOT] BETWEEN, IN, LIKE or IS [NOT] NULL"
MISPLACED = "the escape '!' may stand only before %, _ and itself"

TEXT: list[tuple[str, str]] = [
    ("step = 'a' AND", OPERAND),
    ("step", TEST),
    ("attr.n.m = 1", TEST),
    ("step =", "a literal is expected"),
    ("step = NULL", "NULL is no literal: absence is asked with IS NULL"),
    ("step = 'a' 'b'", "AND, OR or the end is expected"),
    ("(step = 'a'", "AND, OR or ) is expected"),
    ("AND (step = 'a'", "AND, OR or ) is expected"),
    ("AND step = 'a'", "AND before a single predicate takes it in brackets"),
    ("OR step = 'a'", "OR before a single predicate takes it in brackets"),
    ('step = "a"', "no such sign"),
    ("step = 'a", "a text without its closing quote"),
    ("step = \t'a", "a text without its closing quote"),
    ("step IS 'a'", "NULL is expected"),
    ("step IN 'a'", "a list in brackets is expected"),
    ("step IN ('a' 'b')", ", or ) is expected"),
    ("attempt IN (" + "1," * 200 + "1)", "more than 200 values in a list"),
    ("step LIKE 5", "a pattern in quotes is expected"),
    ("step LIKE 'a' ESCAPE 5", "an escape in quotes is expected"),
    ("attempt BETWEEN 1 OR 2", "AND and the upper end are expected"),
    ("attr = 1", "attr. takes the name of an attribute"),
    ("attr. = 1", "the name of an attribute is expected"),
    ("attr.n:int = 1", f"a type is expected: {TYPES}"),
    ("attr.n IS NULL", "nothing tells the type of attr.n: write attr.n:string, :long, ..."),
    ("created_at < TIMESTAMP 5", "an instant in quotes is expected"),
    ("created_at < TIMESTAMP '2026-03-05T12:00:00'", "not an RFC 3339 instant with an offset"),
    ("created_at < TIMESTAMP '2026-03-05T12:00:00.0000001Z'", "an instant has at most six digits after the second"),
    ("attempt > 1e9999999999999999999", "a number out of range"),
    ("attempt > " + "9" * 5_000, "a number out of range"),
    ("NOT " * 64 + "TRUE", "nested more than 64 deep"),
    ("step = 'a' OR " * 100 + "step = 'a'", "more than 100 nodes"),
    ("colour = 'red'", f"no task field 'colour'; there are {FIELDS}"),
    ("attr.N = 1", f"'N' is no attribute name: {NAMING}"),
    ("attempt = TRUE", "a long literal is expected, not True"),
    ("created_at = 'x'", "an instant literal is expected, not 'x'"),
    ("step LIKE '!a' ESCAPE '!'", MISPLACED),
]


@pytest.mark.parametrize(("text", "message"), TEXT, ids=[each[0][:40] for each in TEXT])
def test_refused_text_says_why(text: str, message: str) -> None:
    """C6: what the text form says, before the position."""
    with pytest.raises(CriteriaError) as refused:
        parse_text(text)
    assert refused.value.message.partition(" (line ")[0] == message


def test_too_much_text_says_how_much_there_may_be() -> None:
    """C7: the limit is named in characters that are bytes, and in those that are not."""
    for text in (" " * (128 * 1024 + 1), "é" * (64 * 1024 + 1)):
        with pytest.raises(CriteriaError) as refused:
            parse_text(text)
        assert (refused.value.message, refused.value.path) == ("more than 128 KiB of text", "")
    with pytest.raises(CriteriaError, match="is expected"):
        parse_text(" " * 128 * 1024)


STEP = {"field": "step"}
N: dict[str, object] = {"attr": "n", "type": "long"}
DUE = {"attr": "due", "type": "instant"}


def op(name: object, *args: object, **more: object) -> dict[str, object]:
    return {"op": name, "args": list(args), **more}


WIRE: list[tuple[object, str, str]] = [
    ("x", "", "a predicate is a JSON object, not 'x'"),
    (None, "", "a predicate is a JSON object, not null"),
    ({"args": []}, "", "a predicate needs 'op'"),
    ({"op": "and"}, "", "a predicate needs 'args'"),
    (op("and", escape="!"), "/escape", "a predicate has no key 'escape'"),
    (op("and", **{"k" * 40: 1}), f"/{'k' * 40}", f"a predicate has no key {'k' * 40!r}"),
    (op("and", **{"k" * 64: 1}), f"/{'k' * 64}", "a predicate has no key str"),
    (op("and", **{"k" * 65: 1}), "", "a predicate has no key str"),
    (op("and", **{"k\n": 1}), "", "a predicate has no key 'k\\n'"),
    (op("!="), "/op", f"no operator '!='; there are {OPERATORS}, between, in, like, isNull, not, and, or"),
    (op(["="]), "/op", f"no operator list; there are {OPERATORS}, between, in, like, isNull, not, and, or"),
    ({"op": "and", "args": {}}, "/args", "a list is expected"),
    (op("=", STEP), "/args", "= takes 2, not 1"),
    (op("between", N, 1), "/args", "between takes 3, not 2"),
    (op("isNull", N, 1), "/args", "isNull takes 1, not 2"),
    (op("in", STEP, "x"), "/args/1", "a list of literals is expected"),
    (op("in", STEP, ["x"] * 201), "/args/1", "more than 200 values in a list"),
    (op("in", STEP, ["x", ["y"]]), "/args/1/1", "a literal is expected, not list"),
    (op("=", STEP, None), "/args/1", "null is no literal: absence is asked with isNull"),
    (op("between", N, 1, None), "/args/2", "null is no literal: absence is asked with isNull"),
    (op("between", N, 1, "2"), "/args/2", "a long literal is expected, not '2'"),
    (op("like", STEP, 5), "/args/1", "a pattern is text, not 5"),
    (op("like", STEP, "x", escape=None), "/escape", "an escape is one character"),
    (op("like", STEP, "x", escape=1), "/escape", "an escape is one character"),
    (op("like", STEP, "x", escape="xy"), "/escape", "an escape is one character"),
    (op("like", STEP, "!x", escape="!"), "/args/1", MISPLACED),
    (op("=", {"attr": "n"}, 1), "/args/0", "an attribute needs 'type'"),
    (op("=", {"attr": "n", "type": None}, 1), "/args/0/type", f"no attribute type null; there are {TYPES}"),
    (op("=", {"attr": "n", "type": "int"}, 1), "/args/0/type", f"no attribute type 'int'; there are {TYPES}"),
    (op("=", {"attr": "N", "type": "long"}, 1), "/args/0/attr", f"'N' is no attribute name: {NAMING}"),
    (op("=", N | {"path": "x"}, 1), "/args/0/path", "an attribute has no key 'path'"),
    (op("=", STEP | {"type": "string"}, "x"), "/args/0/type", "a field has no key 'type'"),
    (op("=", {"field": "STEP"}, "x"), "/args/0/field", f"no task field 'STEP'; there are {FIELDS}"),
    (op("=", {"field": 5}, "x"), "/args/0/field", f"no task field 5; there are {FIELDS}"),
    (op("=", "step", "x"), "/args/0", '{"field": ...} or {"attr": ..., "type": ...} is expected'),
    (op("=", ["field"], "x"), "/args/0", '{"field": ...} or {"attr": ..., "type": ...} is expected'),
    (op("=", ["attr"], "x"), "/args/0", '{"field": ...} or {"attr": ..., "type": ...} is expected'),
    (op("=", {}, "x"), "/args/0", '{"field": ...} or {"attr": ..., "type": ...} is expected'),
    (op("=", N, {}), "/args/1", 'a literal object has one key: "long", "decimal" or "instant"'),
    (op("=", N, {"int": "1"}), "/args/1/int", 'a literal is "long", "decimal" or "instant", not \'int\''),
    (op("=", N, {"long": 1}), "/args/1/long", "long literals are written as text, not 1"),
    (op("=", N, {"long": "+1"}), "/args/1/long", "'+1' is no whole number of 64 bits"),
    (op("=", N, {"long": "9223372036854775808"}), "/args/1/long", NO_LONG),
    (op("=", N, 2**63), "/args/1", NO_LONG),
    (op("=", N, {"decimal": "sNaN"}), "/args/1/decimal", "'sNaN' is no decimal number"),
    (op("=", N, {"decimal": "1e9999999999999999999"}), "/args/1/decimal", "a decimal out of range"),
    (op("=", N, float("nan")), "/args/1", "a number that is not finite"),
    (op("=", N, Decimal("-Infinity")), "/args/1", "a number that is not finite"),
    (op("=", DUE, {"instant": "x"}), "/args/1/instant", "'x': not an RFC 3339 instant with an offset"),
    (op("=", DUE, {"instant": "2026-02-30T00:00:00Z"}), "/args/1/instant",
     "'2026-02-30T00:00:00Z': day is out of range for month"),
    (op("=", DUE, {"instant": "0001-01-01T00:00:00+00:01"}), "/args/1/instant",
     "'0001-01-01T00:00:00+00:01': outside the years 1-9999"),
    (op("=", DUE, {"instant": "2026-03-05T12:00:00.1234567Z"}), "/args/1/instant",
     "an instant has at most six digits after the second"),
    (op("=", DUE, "x"), "/args/1", "an instant literal is expected, not 'x'"),
    (op("or", *[op("and")] * 100), "/args/99", "more than 100 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "path", "message"), WIRE, ids=range(len(WIRE)))
def test_refused_json_says_why(where: object, path: str, message: str) -> None:
    """C6: what the wire form says, and where, below `/where`, or below what the caller names."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object({"queue": "q", "where": where}) if where else predicate_from_object(where)
    assert (refused.value.path, refused.value.message) == (f"/where{path}", message)
    with pytest.raises(CriteriaError) as refused:
        predicate_from_object(where, "/lanes/7")
    assert (refused.value.path, refused.value.message) == (f"/lanes/7{path}", message)
    assert str(refused.value) == f"/lanes/7{path}: {message}"


def test_levels_are_counted_by_the_reader() -> None:
    """C7: the sixteenth level is read, the one below is refused where it stands."""
    nest = op("and")
    for _ in range(15):
        nest = op("or", nest)
    predicate_from_object(nest)
    with pytest.raises(CriteriaError) as refused:
        predicate_from_object(op("not", nest))
    assert (refused.value.path, refused.value.message) == (f"/where{'/args/0' * 16}", "more than 16 levels")


def test_nodes_are_counted_by_the_reader() -> None:
    """C7: a hundred nodes are read, over all branches; the next one is refused before it is looked at."""
    branches = [op("or", *[op("and")] * 10) for _ in range(9)]
    predicate_from_object(op("and", *branches))
    with pytest.raises(CriteriaError) as refused:
        predicate_from_object(op("and", *branches, "no predicate"))
    assert (refused.value.path, refused.value.message) == ("/where/args/9", "more than 100 nodes")


CRITERIA: list[tuple[object, str, str]] = [
    ([], "", "criteria is a JSON object, not list"),
    ({}, "", "criteria needs 'queue'"),
    ({"queue": "q", "predicate": 1}, "/predicate", "criteria has no key 'predicate'"),
    ({"queue": 5}, "/queue", "a string literal is expected, not 5"),
    ({"queue": ""}, "/queue", "a queue needs a name"),
    ({"queue": "q" * 256}, "/queue", "text of 256 characters; 255 at most"),
    ({"queue": "a\n"}, "/queue", "a queue's name has no control characters"),
    ({"queue": "a\0"}, "/queue", UNSTORABLE),
]


@pytest.mark.parametrize(("criteria", "path", "message"), CRITERIA, ids=range(len(CRITERIA)))
def test_refused_criteria_say_why(criteria: object, path: str, message: str) -> None:
    """C6, C7: queues and keys of criteria."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object(criteria)
    assert (refused.value.path, refused.value.message) == (path, message)


JSON: list[tuple[str | bytes, str]] = [
    ("", "not JSON: Expecting value: line 1 column 1 (char 0)"),
    ("[1,]", "not JSON: Expecting value: line 1 column 4 (char 3)"),
    ("[" * 20_000, "JSON nested too deeply"),
    (b"\xff", "JSON is UTF-8"),
    ('{"queue":"q"}'.encode("utf-16"), "JSON is UTF-8"),
    (" " * (64 * 1024 + 1), "more than 64 KiB of JSON"),
    ("é" * (32 * 1024 + 1), "more than 64 KiB of JSON"),
    (b"\xff" * (64 * 1024 + 1), "more than 64 KiB of JSON"),
    ("9" * 5_000, "a whole number outside 64 bits"),
    ("1e9999999999999999999", "a decimal out of range"),
    ("NaN", "NaN is no JSON"),
    ("-Infinity", "-Infinity is no JSON"),
    ('{"a":1,"a":1}', "the key 'a' stands twice in one object"),
]


@pytest.mark.parametrize(("text", "message"), JSON, ids=range(len(JSON)))
def test_refused_raw_json_says_why(text: str | bytes, message: str) -> None:
    """C6, C7: what is wrong before there is a predicate; no place in the wire form is to blame."""
    with pytest.raises(CriteriaError) as refused:
        criteria_from_json(text)
    assert (refused.value.path, refused.value.message) == ("", message)


def test_64_kib_of_json_are_read() -> None:
    """C7: the limit itself is within it, in characters and in bytes."""
    for filling, count in (("x", 255), ("é", 127)):
        text = '{"queue":"' + filling * count + '"}'
        text += " " * (64 * 1024 - len(text.encode()))
        assert criteria_from_json(text) == criteria_from_json(text.encode()) == QueueCriteria(filling * count)
        with pytest.raises(CriteriaError, match="64 KiB"):
            criteria_from_json(text + " ")


def test_numbers_are_read_whatever_the_decimal_context() -> None:
    """C6: a program that has its arithmetic go on with NaN gets refusals all the same, with their place."""
    with localcontext() as context:
        context.traps[InvalidOperation] = False
        with pytest.raises(CriteriaError) as refused:
            value_from_wire({"decimal": "1e9999999999999999999"}, "/x")
    assert (refused.value.path, refused.value.message) == ("/x/decimal", "a number that is not finite")


def test_a_literal_alone_has_no_place() -> None:
    """C6: without a path the message stands alone."""
    with pytest.raises(CriteriaError) as refused:
        value_from_wire([])
    assert (refused.value.path, str(refused.value)) == ("", "a literal is expected, not list")


unsound: Callable[[Any], Any] = lambda value: value  # noqa: E731  # hides the value's type from the checkers
step, count, vip = Task.step, Task.attr("count", int), Task.attr("vip", bool)
total, due = Task.attr("total", Decimal), Task.attr("due", datetime)

BUILT: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: unsound("x"), "", "a predicate is expected, not str"),
    (lambda: And(unsound("ab")), "/args", "a list of predicates is expected"),
    (lambda: Or((And(()), unsound(5))), "/args/1", "a predicate is expected, not int"),
    (lambda: Not(Not(unsound(5))), "/args/0/args/0", "a predicate is expected, not int"),
    (lambda: IsNull(unsound("step")), "/args/0", "a field or attribute is expected"),
    (lambda: IsNull(FieldReference("id")), "/args/0/field", f"no task field 'id'; there are {FIELDS}"),
    (lambda: IsNull(FieldReference(unsound(5))), "/args/0/field", f"no task field 5; there are {FIELDS}"),
    (lambda: IsNull(AttributeReference("A", ValueType.LONG)), "/args/0/attr", f"'A' is no attribute name: {NAMING}"),
    (lambda: IsNull(AttributeReference("a", unsound(5))), "/args/0/type", f"no attribute type 5; there are {TYPES}"),
    (lambda: Compare(step.reference, unsound("~"), "x"), "/op", f"no operator '~'; there are {OPERATORS}"),
    (lambda: Compare(step.reference, unsound(None), "x"), "/op", f"no operator null; there are {OPERATORS}"),
    (lambda: Compare(vip.reference, Operator.LESS, True), "", "booleans have no order"),
    (lambda: Between(vip.reference, False, True), "", "booleans have no order"),
    (lambda: Like(count.reference, "1%"), "", "like is for text, not for long"),
    (lambda: In(step.reference, unsound("ab")), "/args/1", "a list of literals is expected"),
    (lambda: step.in_(["x"] * 201), "/args/1", "more than 200 values in a list"),
    (lambda: step.in_(["x", unsound(5)]), "/args/1/1", "a string literal is expected, not 5"),
    (lambda: unsound(step) == 5, "/args/1", "a string literal is expected, not 5"),
    (lambda: step == "x" * 256, "/args/1", "text of 256 characters; 255 at most"),
    (lambda: step == "\0", "/args/1", UNSTORABLE),
    (lambda: step.between("a", "\ud800"), "/args/2", UNSTORABLE),
    (lambda: step.like("x" * 257), "/args/1", "text of 257 characters; 256 at most"),
    (lambda: step.like("%" * 9), "/args/1", "more than 8 wildcards"),
    (lambda: step.like("x", "xy"), "/escape", "an escape is one character"),
    (lambda: step.like("x", "x" * 256), "/escape", "text of 256 characters; 255 at most"),
    (lambda: step.like("!x", "!"), "/args/1", MISPLACED),
    (lambda: unsound(count) == "1", "/args/1", "a long literal is expected, not '1'"),
    (lambda: unsound(count) == True, "/args/1", "a long literal is expected, not True"),  # noqa: E712
    (lambda: count == 2**63, "/args/1", "a whole number outside 64 bits"),
    (lambda: unsound(total) == 0.1, "/args/1", "a decimal literal is expected, not 0.1"),
    (lambda: total == 10**38, "/args/1", NO_DECIMAL),
    (lambda: total == -(10**38), "/args/1", NO_DECIMAL),
    (lambda: unsound(vip) == 1, "/args/1", "a boolean literal is expected, not 1"),
    (lambda: unsound(due) == date(2026, 3, 5), "/args/1", "an instant literal is expected, not date"),
    (lambda: due == datetime(2026, 3, 5), "/args/1", "an instant needs an offset (an aware datetime)"),
    (lambda: due == datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "/args/1",
     "an instant outside the years 1-9999"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "path", "message"), BUILT, ids=range(len(BUILT)))
def test_refused_trees_say_why(build: Callable[[], Any], path: str, message: str) -> None:
    """C6: what `check` says of predicates built in Python, and where; `/where` within criteria."""
    for refusing, prefix in ((lambda: QueueCriteria("q", build()), "/where"), (lambda: check(build()), "")):
        with pytest.raises(CriteriaError) as refused:
            refusing()
        assert (refused.value.path, refused.value.message) == (prefix + path, message)


def test_what_is_refused_before_it_is_a_predicate() -> None:
    """C3, C6: mistakes that Python's own operators make easy."""
    with pytest.raises(CriteriaError) as refused:
        step.in_("abc")
    assert (refused.value.path, refused.value.message) == ("/args/1", "in_ takes a list of values, not one text")
    with pytest.raises(CriteriaError) as refused:
        step.in_(unsound(b"abc"))
    assert refused.value.message == "in_ takes a list of values, not one text"
    for kind in (float, unsound([])):
        with pytest.raises(CriteriaError) as refused:
            value_type(kind)
        assert refused.value.message == f"no attribute type {kind!r}: use str, int, Decimal, bool or datetime"
    with pytest.raises(TypeError) as truth:
        bool(step == "x")
    reason = "a predicate has no truth value: combine with & | ~ (in brackets), not with and, or, not"
    assert str(truth.value) == reason


def test_64_kib_are_named() -> None:
    """C7: the size of the JSON form, at the criteria's predicate."""
    big = Or(tuple(In(step.reference, tuple(f"{index:0>250}" for index in range(200))) for _ in range(2)))
    with pytest.raises(CriteriaError) as refused:
        QueueCriteria("q", big)
    assert (refused.value.path, refused.value.message) == ("/where", "more than 64 KiB of JSON")


def test_values_are_checked_alone() -> None:
    """C6: a literal by itself has no path."""
    for kind, value, message in (
        (ValueType.LONG, "x", "a long literal is expected, not 'x'"),
        (ValueType.DECIMAL, Decimal("NaN"), NO_DECIMAL),
        (ValueType.BOOLEAN, 0, "a boolean literal is expected, not 0"),
    ):
        with pytest.raises(CriteriaError) as refused:
            check_value(kind, value)
        assert (refused.value.path, refused.value.message) == ("", message)
    with pytest.raises(CriteriaError) as refused:
        check_text("xx", "/x", 1)
    assert (refused.value.path, refused.value.message) == ("/x", "text of 2 characters; 1 at most")
    with pytest.raises(ValueError, match=r"^the escape '!' may stand only before %, _ and itself$"):
        pattern_parts("a!", "!")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ("x" * 40, repr("x" * 40)),
        ("x" * 41, "str"),
        (2**128 - 1, str(2**128 - 1)),
        (2**128, "int"),
        (True, "True"),
        (Decimal("1." + "1" * 38), "1." + "1" * 38),
        (Decimal("1." + "1" * 39), "Decimal"),
        (0.5, "0.5"),
        (b"x", "bytes"),
        ([], "list"),
    ],
)
def test_values_are_shown_if_they_are_short(value: object, shown: str) -> None:
    """C6: an error does not repeat a megabyte."""
    assert short(value) == shown
