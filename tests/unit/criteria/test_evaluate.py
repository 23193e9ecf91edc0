"""The reference evaluator and its compiled twin (C2-C5, C8)."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiggle_core.criteria import Not, Predicate, Task, Value, compile_predicate, matches, negate, normalize
from wiggle_core.criteria.evaluate import like, pattern_regex
from wiggle_core.criteria.tree import Wildcard, pattern_parts
from wiggle_core.tasks.task import TaskRecord

from .strategies import characters, patterns, predicates, tasks


def task(attempt: int = 1, correlation_id: str | None = None, **attributes: Value) -> TaskRecord:
    return TaskRecord(
        id="t1",
        queue="q",
        step="charge",
        created_at=0,
        ready_at=0,
        attempt=attempt,
        correlation_id=correlation_id,
        attributes=attributes,
    )


@settings(max_examples=400, deadline=None)
@given(predicates, tasks)
def test_every_form_of_a_predicate_means_the_same(predicate: Predicate, hostile: TaskRecord) -> None:
    """C8: compiled, normal and negated-twice forms answer as `matches` does on the predicate as written."""
    expected = matches(predicate, hostile)
    assert compile_predicate(predicate)(hostile) is expected
    assert matches(normalize(predicate), hostile) is expected
    assert matches(Not(predicate), hostile) is not expected
    assert matches(negate(predicate), hostile) is not expected
    assert compile_predicate(Not(predicate))(hostile) is not expected


@pytest.mark.parametrize(
    "predicate",
    [
        Task.correlation_id == "x",
        Task.correlation_id != "x",
        Task.correlation_id < "x",
        Task.correlation_id >= "",
        Task.correlation_id.between("", "z"),
        Task.correlation_id.in_(["x"]),
        Task.correlation_id.in_([]),
        Task.correlation_id.like("%"),
        Task.attr("gone", Decimal) != 0,
        Task.attr("gone", bool) == False,  # noqa: E712  # builds a predicate
    ],
)
def test_absence_is_false_and_its_negation_true(predicate: Predicate) -> None:
    """C2: every comparison on an absent value is false, `<>` too, and NOT of it is true: no third value."""
    absent = task()
    for form in (matches, lambda each, of: compile_predicate(each)(of)):
        assert form(predicate, absent) is False
        assert form(~predicate, absent) is True


@pytest.mark.parametrize(
    ("predicate", "value", "expected"),
    [
        (Task.attr("a", Decimal) == 1, 1, True),
        (Task.attr("a", int) == 1, Decimal("1.00"), True),
        (Task.attr("a", Decimal) == 1, True, False),
        (Task.attr("a", int).in_([0, 1]), True, False),
        (Task.attr("a", bool) == True, 1, False),  # noqa: E712  # builds a predicate
        (Task.attr("a", bool).in_([True]), Decimal(1), False),
        (Task.attr("a", str) == "1000", 1000, False),
        (Task.attr("a", int) == 1000, "1000", False),
        (Task.attr("a", int).is_null(), "1000", True),
        (Task.attr("a", Decimal) == Decimal("0.3"), Decimal("0.1") + Decimal("0.2"), True),
        (Task.attr("a", int) < 2**53 + 1, 2**53, True),
        (Task.attr("a", Decimal).in_([Decimal("1.50")]), Decimal("1.5"), True),
        (Task.attr("a", str) > "\uffff", "\U0001f600", True),
        (Task.attr("a", str) > "\ud7ff", "\ue000", True),
        (Task.attr("a", str) == "é", "e\u0301", False),
    ],
)
def test_types_are_exact(predicate: Predicate, value: Value, expected: bool) -> None:
    """C4, C5: a value of another family is absent; numbers compare by value, text by code point."""
    assert matches(predicate, task(a=value)) is expected
    assert compile_predicate(predicate)(task(a=value)) is expected


def like_by_table(text: str, pattern: str, escape: str | None) -> bool:
    """LIKE as the table of all prefixes of both: plain, and without any going back."""
    reached = [True] + [False] * len(text)
    for part in pattern_parts(pattern, escape):
        for sign in [part] if isinstance(part, Wildcard) else part:
            if sign is Wildcard.ANY_RUN:
                reached = [any(reached[: end + 1]) for end in range(len(text) + 1)]
            else:
                here = [sign is Wildcard.ANY_ONE or character == sign for character in text]
                reached = [False] + [reached[end] and here[end] for end in range(len(text))]
    return reached[-1]


@settings(max_examples=400, deadline=None)
@given(patterns(), st.text(st.sampled_from("ab\n\U0001f600") | characters, max_size=8))
def test_like_agrees_with_a_table(pattern: tuple[str, str | None], text: str) -> None:
    """C4: `%` any run, `_` one code point, escapes literal, nothing else special."""
    assert like(text, *pattern) is like_by_table(text, *pattern)


@settings(max_examples=300, deadline=None)
@given(st.text("ab%_", max_size=9), st.text("ab", max_size=12))
def test_like_agrees_with_a_table_on_repeats(pattern: str, text: str) -> None:
    """C4: the leftmost match of each run is right also where runs repeat and overlap."""
    assert like(text, pattern) is like_by_table(text, pattern, None)


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "expected"),
    [
        ("", "", None, True),
        ("", "%", None, True),
        ("a\n", "a", None, False),
        ("a\r\nb", "a%b", None, True),
        ("\n", "_", None, True),
        ("\U0001f600", "_", None, True),
        ("e\u0301", "_", None, False),
        ("A", "a", None, False),
        ("a ", "a", None, False),
        ("[a]", "[a]", None, True),
        ("a", "[a]", None, False),
        ("a\\b", "a\\b", None, True),
        ("a.b", "a_b", None, True),
        ("50%", "50!%", "!", True),
        ("50x", "50!%", "!", False),
        ("%", "%%", "%", True),
        ("x", "%%", "%", False),
    ],
)
def test_like_case_by_case(text: str, pattern: str, escape: str | None, expected: bool) -> None:
    """C4: exact text, whole, with line breaks, and no classes."""
    assert like(text, pattern, escape) is expected
    asked = task(correlation_id=text)
    assert compile_predicate(Task.correlation_id.like(pattern, escape))(asked) is expected


def test_a_hostile_pattern_is_not_tried_again_and_again() -> None:
    """C7: 8 wildcards over 255 characters end; going back would take 255^8 steps, so the child is given a minute."""
    program = "from wiggle_core.criteria.evaluate import like; print(like('a' * 254 + 'b', '%a%a%a%a%a%a%a%a'))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout == "False\n"
    assert pattern_regex("%a%_b%c", None).pattern.count("(?>") == 2


def test_hostile_literals_are_bound_never_spliced() -> None:
    """C8: names and literals are constants of the compiled function, whatever they contain."""
    bait = "') or True or ('"
    assert compile_predicate(Task.correlation_id == bait)(task(correlation_id=bait))
    assert not compile_predicate(Task.correlation_id == bait)(task(correlation_id="x"))
    assert not compile_predicate(Task.attr("a", str).like(f"%{bait}_"))(task(a="x"))


LIKES: list[tuple[str, str | None, list[str], list[str]]] = [
    ("%x%", None, ["x", "axb"], ["", "ab"]),
    ("x%", None, ["x", "xa"], ["", "ax"]),
    ("%x", None, ["x", "ax"], ["", "xa"]),
    ("%", None, ["", "a"], []),
    ("a_c", None, ["abc", "a%c"], ["ac", "abbc"]),
    ("a!_b%c", "!", ["a_bc", "a_bxc"], ["axbc", "a!_bc"]),
    ("%!%%", "!", ["%", "a%b"], ["", "ab"]),
    ("%a%b%", None, ["ab", "xaybz"], ["ba"]),
]


@pytest.mark.parametrize(("pattern", "escape", "matching", "failing"), LIKES)
def test_each_kind_of_pattern_is_compiled(
    pattern: str, escape: str | None, matching: list[str], failing: list[str]
) -> None:
    """C4: prefixes, suffixes and parts, which have a quick way of their own, and all the others."""
    compiled = compile_predicate(Task.attr("name", str).like(pattern, escape))
    assert [text for text in matching + failing if compiled(task(name=text))] == matching
    assert [text for text in matching + failing if like(text, pattern, escape)] == matching
