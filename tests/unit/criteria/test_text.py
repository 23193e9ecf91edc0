"""The text form: the SQL-92 conditional subset, read, refused with a caret, and written back (section 4)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiggle_core.criteria import (
    FALSE,
    TRUE,
    And,
    Not,
    Or,
    Predicate,
    QueueCriteria,
    Task,
    check,
    criteria_to_json,
    format_text,
    parse_text,
)
from wiggle_core.criteria.check import MAX_DEPTH, MAX_NODES
from wiggle_core.criteria.text import MAX_TEXT_BYTES
from wiggle_core.errors import CriteriaError

from .strategies import SPECIAL, predicates

a, b, c = Task.step == "a", Task.step == "b", Task.step == "c"
total, count = Task.attr("total", Decimal), Task.attr("count", int)
region, vip, due = Task.attr("region", str), Task.attr("vip", bool), Task.attr("due", datetime)
NOON = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)


@settings(max_examples=500, deadline=None)
@given(predicates)
def test_text_round_trips(predicate: Predicate) -> None:
    """Section 4: every valid predicate is read back from its text as an equal tree."""
    assert parse_text(format_text(predicate)) == predicate


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        (
            "step = 'charge' AND correlation_id LIKE 'eu-%' AND NOT attr.total >= 1000 AND attr.region:string IS NULL",
            (Task.step == "charge")
            & Task.correlation_id.like("eu-%")
            & ~(Task.attr("total", int) >= 1000)
            & region.is_null(),
        ),
        ("step = 'a' OR step = 'b' AND step = 'c'", Or((a, And((b, c))))),
        ("step = 'a' AND step = 'b' OR step = 'c'", Or((And((a, b)), c))),
        ("step = 'a' AND step = 'b' AND step = 'c'", And((a, b, c))),
        ("(step = 'a' AND step = 'b') AND step = 'c'", And((And((a, b)), c))),
        ("step = 'a' AND (step = 'b' AND step = 'c')", And((a, And((b, c))))),
        ("NOT step = 'a' AND step = 'b'", And((Not(a), b))),
        ("NOT (step = 'a' AND step = 'b')", Not(And((a, b)))),
        ("NOT NOT step = 'a'", Not(Not(a))),
        ("((step = 'a'))", a),
        ("AND (step = 'a')", And((a,))),
        ("OR (AND (step = 'a'))", Or((And((a,)),))),
        ("TRUE", TRUE),
        ("FALSE", FALSE),
        ("TRUE AND FALSE", And((TRUE, FALSE))),
        ("NOT TRUE", Not(TRUE)),
        ("attr.vip = TRUE", vip == True),  # noqa: E712  # builds a predicate
        ("attr.vip <> false", vip != False),  # noqa: E712  # builds a predicate
        ("TRUE AND attr.vip = TRUE OR FALSE", Or((And((TRUE, vip == True)), FALSE))),  # noqa: E712  # as above
        ("attempt<4", Task.attempt < 4),
        ("attempt != 4", Task.attempt != 4),
        ("attempt <> 4", Task.attempt != 4),
        ("attempt <= +4", Task.attempt <= 4),
        ("attr.count > -4", count > -4),
        ("attr.total = 1000", Task.attr("total", int) == 1000),
        ("attr.total = 1000.0", total == 1000),
        ("attr.total = 1e3", total == 1000),
        ("attr.total = .5", total == Decimal("0.5")),
        ("attr.total = 5.", total == 5),
        ("attr.total:decimal = 1000", total == 1000),
        (
            "attr.total:decimal = 12345678901234567890123456789012345678",
            total == 12345678901234567890123456789012345678,
        ),
        ("attr.total : decimal = 1", total == 1),
        ("attr.total IN (1, 2.5)", total.in_([1, Decimal("2.5")])),
        ("attr.count IN (1, 2)", count.in_([1, 2])),
        ("attr.total IN (1E2, 1e+2, .5, 5.)", total.in_([100, 100, Decimal("0.5"), 5])),
        ("attr.total BETWEEN 0 AND 0.5", total.between(0, Decimal("0.5"))),
        ("attr.total BETWEEN 0.5 AND 1 AND step = 'a'", total.between(Decimal("0.5"), 1) & a),
        ("attr.count NOT BETWEEN 1 AND 5", ~count.between(1, 5)),
        ("step IN ('a', 'b')", Task.step.in_(["a", "b"])),
        ("step NOT IN ('a')", ~Task.step.in_(["a"])),
        ("step IN ()", Task.step.in_([])),
        ("attr.region:string IN ()", region.in_([])),
        ("step LIKE 'a!%%' ESCAPE '!'", Task.step.like("a!%%", "!")),
        ("step NOT LIKE '%' ESCAPE ''''", ~Task.step.like("%", "'")),
        ("node IS NULL", Task.node.is_null()),
        ("node IS NOT NULL", Task.node.is_not_null()),
        ("NOT node IS NOT NULL", Not(Task.node.is_not_null())),
        ("attr.vip:boolean is not null", vip.is_not_null()),
        ("attr.due < TIMESTAMP '2026-03-05T12:00:00Z'", due < NOON),
        (
            "created_at < timestamp '2026-03-05 14:00:00.000001+02:00'",
            Task.created_at < NOON + timedelta(microseconds=1),
        ),
        ("step = ''", Task.step == ""),
        ("step = 'it''s'", Task.step == "it's"),
        ("step = ''''", Task.step == "'"),
        ("step = 'a\nb'", Task.step == "a\nb"),
        ("step = 'AND NOT'", Task.step == "AND NOT"),
        ("attr.in IN (1)", Task.attr("in", int).in_([1])),
        ("attr.and = 1 AND attr.null:long IS NULL", (Task.attr("and", int) == 1) & Task.attr("null", int).is_null()),
        ("attr.attr = 1", Task.attr("attr", int) == 1),
        ("Not step In ('a') oR step Is nUll", ~Task.step.in_(["a"]) | Task.step.is_null()),
        ("\r\n\tstep\n=\n'a'\n", a),
        ("step='a'AND(step='b')", And((a, b))),
    ],
)
def test_read(text: str, predicate: Predicate) -> None:
    """Section 4: precedence, types told by literals, keywords in any case, names that are words."""
    assert parse_text(text) == check(predicate)
    assert parse_text(format_text(check(predicate))) == check(predicate)


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (a & ~(count >= 5) & region.is_null(), "step = 'a' AND NOT attr.count >= 5 AND attr.region:string IS NULL"),
        (~Task.step.in_(["a"]) | ~Task.step.like("%!_", "!"), "step NOT IN ('a') OR step NOT LIKE '%!_' ESCAPE '!'"),
        (total >= 1000, "attr.total:decimal >= 1000"),
        (total >= Decimal("0.50"), "attr.total >= 0.5"),
        (region == "a", "attr.region = 'a'"),
        (region.like("a%"), "attr.region LIKE 'a%'"),
        (vip.in_([True, False]), "attr.vip IN (TRUE, FALSE)"),
        (count == -5, "attr.count = -5"),
        (total.in_([1, Decimal("0.5")]), "attr.total IN (1, 0.5)"),
        (due == NOON, "attr.due = TIMESTAMP '2026-03-05T12:00:00.000000Z'"),
        (And((Or((a, b)), And((c,)))), "(step = 'a' OR step = 'b') AND (AND (step = 'c'))"),
        (~(a & b), "NOT (step = 'a' AND step = 'b')"),
        (Or((And(()), Or(()))), "TRUE OR FALSE"),
    ],
)
def test_written(predicate: Predicate, text: str) -> None:
    """Section 4: the type is written where the literals would not tell it, brackets where they are needed."""
    assert format_text(check(predicate)) == text


@given(st.text(SPECIAL, max_size=20))
def test_hostile_text_round_trips(text: str) -> None:
    """Section 4: quotes, line breaks and signs inside a literal stay inside it."""
    predicate = Task.step == text
    assert parse_text(format_text(predicate)) == predicate
    both = Task.step.in_([text, "x"]) & predicate
    assert parse_text(format_text(both)) == both


REFUSED: list[tuple[str, str, int]] = [
    ("", "", 0),
    ("   ", "", 3),
    ("step", "", 4),
    ("step =", "", 6),
    ("= 'a'", "", 0),
    ("step = AND", "", 7),
    ("step == 'a'", "", 6),
    ('step = "a"', "", 7),
    ("step = 'a", "", 7),
    ("step = 'a' AND", "", 14),
    ("step = 'a' 'b'", "", 11),
    ("step = 'a')", "", 10),
    ("(step = 'a'", "", 11),
    ("AND step = 'a'", "", 4),
    ("OR ()", "", 4),
    ("AND (step = 'a', step = 'b')", "", 15),
    ("NOT", "", 3),
    ("step NOT = 'a'", "", 9),
    ("step IS 'a'", "", 8),
    ("step IN 'a'", "", 8),
    ("step IN ('a' 'b')", "", 13),
    ("step IN ('a',)", "", 13),
    ("attempt IN (" + "1," * 200 + "1)", "", 412),
    ("step LIKE 5", "", 10),
    ("step LIKE 'a' ESCAPE !", "", 21),
    ("step = 'a' ESCAPE '!'", "", 11),
    ("attempt BETWEEN 1 OR 2", "", 18),
    ("step = NULL", "", 7),
    ("step # 1", "", 5),
    ("step = 1a", "", 8),
    ("'a' = step", "", 0),
    ("attr = 1", "", 5),
    ("attr. = 1", "", 6),
    ("attr.5 = 1", "", 4),
    ("attr.n:int = 1", "", 7),
    ("attr.n: = 1", "", 8),
    ("attr.n:LONG = 1", "", 7),
    ("attr.n IS NULL", "", 0),
    ("attr.n IN ()", "", 0),
    ("attr.n IN (1, 'a')", "", 0),
    ("attr.n.m = 1", "", 6),
    ("created_at < TIMESTAMP 5", "", 23),
    ("created_at < TIMESTAMP '2026-03-05T12:00:00'", "", 23),
    ("created_at < TIMESTAMP '2026-03-05T12:00:00.0000001Z'", "", 23),
    ("attempt > 1e9999999999999999999", "", 10),
    ("attempt > " + "9" * 5_000, "", 10),
    ("vip", "", 3),
    ("step = 'a'; DROP TABLE task", "", 10),
    ("step = 'a' -- all", "", 11),
    ("colour = 'red'", "/args/0/field", 0),
    ("STEP = 'a'", "/args/0/field", 0),
    ("attr.N = 1", "/args/0/attr", 5),
    ("step = 3", "/args/1", 7),
    ("attempt = '3'", "/args/1", 10),
    ("attempt = 3.0", "/args/1", 10),
    ("attempt = TRUE", "/args/1", 10),
    ("attr.n:long = 5.5", "/args/1", 14),
    ("created_at = '2026-03-05T12:00:00Z'", "/args/1", 13),
    ("attr.vip < TRUE", "", 0),
    ("attempt LIKE '1%'", "", 0),
    ("step LIKE '!a' ESCAPE '!'", "/args/1", 10),
    ("step LIKE 'a' ESCAPE '!!'", "/escape", 21),
    ("step LIKE '%%%%%%%%%'", "/args/1", 10),
    ("step = 'a\0'", "/args/1", 7),
    ("step = '\ud800'", "/args/1", 7),
    ("step = '" + "x" * 256 + "'", "/args/1", 7),
    ("attr.t = 1e38", "/args/1", 9),
    ("attr.t:decimal = 1e999999999", "/args/1", 17),
    ("step IN ('a', 1)", "/args/1/1", 14),
    ("attempt BETWEEN 1 AND 'a'", "/args/2", 22),
    ("attempt BETWEEN 'a' AND 2", "/args/1", 16),
    ("attr.n:long LIKE 'a'", "", 0),
    ("TRUE AND (step = 'a' OR step NOT IN ('b', 5))", "/args/1/args/1/args/0/args/1/1", 42),
    ("NOT attempt < 'a'", "/args/0/args/1", 14),
]


@pytest.mark.parametrize(("text", "path", "offset"), REFUSED, ids=[repr(case[0])[:40] for case in REFUSED])
def test_refused_with_a_caret(text: str, path: str, offset: int) -> None:
    """C6: the message shows the line with a caret under the offender, and the path is that of the JSON form."""
    with pytest.raises(CriteriaError) as refused:
        parse_text(text)
    assert refused.value.path == path
    message, line, caret = str(refused.value).split("\n")
    assert message.endswith(f"(line 1, column {offset + 1})")
    assert caret.index("^") - 2 == min(offset, 60)
    assert len(line) <= 2 + 120
    str(refused.value).encode()


def test_the_caret_finds_its_line() -> None:
    """C6: in text of several lines only the offender's is shown."""
    with pytest.raises(CriteriaError) as refused:
        parse_text("step = 'a'\n  AND attempt\t< 'four'\n  AND TRUE")
    assert refused.value.path == "/args/1/args/1"
    assert refused.value.message == (
        "a long literal is expected, not 'four' (line 2, column 17)\n    AND attempt < 'four'\n                  ^"
    )


@pytest.mark.parametrize(
    "text",
    [
        "(" * 30_000,
        "(" * 30_000 + "TRUE" + ")" * 30_000,
        "NOT " * 30_000 + "TRUE",
        "AND (" * 20_000,
        "TRUE AND " * 10_000 + "TRUE",
        "step = 'a' OR " * 7_000 + "TRUE",
        "step IN (" + "1," * 50_000 + "1)",
        "'" * 100_001,
        " " * (MAX_TEXT_BYTES + 1),
        "é" * (MAX_TEXT_BYTES // 2 + 1),
        "step = '" + "x" * 1_000_000 + "'",
        "attempt = " + "9" * 100_000,
        "attr." + "n" * 100_000 + " = 1",
    ],
    ids=range(13),
)
def test_hostile_text_is_refused(text: str) -> None:
    """C6, C7: no recursion without end and no answer of the input's size."""
    with pytest.raises(CriteriaError) as refused:
        parse_text(text)
    assert len(str(refused.value)) < 500


def test_predicates_at_the_limits_round_trip() -> None:
    """C7: the widest, the deepest, and the text that doubles: as many quotes as 64 KiB of JSON hold."""
    present = Task.node.is_not_null()
    wide: Predicate = And((*[present] * ((MAX_NODES - 1) // 2), a))
    deep: Predicate = a
    for level in range(MAX_DEPTH - 1):
        wrapped: list[Predicate] = [Not(deep), And((b, deep)), Or((deep,))]
        deep = wrapped[level % 3]
    nots: Predicate = a
    for _ in range(MAX_DEPTH - 1):
        nots = Not(nots)
    quotes = Or(tuple(Task.step.in_([f"{index:0>3}" + "'" * 252 for index in range(62)]) for _ in range(4)))
    for predicate in (wide, deep, nots, quotes):
        valid = check(predicate)
        assert parse_text(format_text(valid)) == valid
    assert len(format_text(quotes)) > 64 * 1024 > len(criteria_to_json(QueueCriteria("q", quotes)))


def test_negated_leaves_are_written_as_not() -> None:
    """C2: a normal form has its negations at the leaves; its text says the same."""
    assert format_text(QueueCriteria("q", ~(a & count.between(1, 2))).normal) == (
        "NOT step = 'a' OR attr.count NOT BETWEEN 1 AND 2"
    )
