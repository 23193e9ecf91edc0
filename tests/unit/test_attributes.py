"""Declaring attributes (A1) and reading them from payloads (A2, A3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from importlib.resources import files
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiggle_core.criteria.check import check_value
from wiggle_core.criteria.instants import format_instant
from wiggle_core.criteria.tree import Value, ValueType, canonical_decimal
from wiggle_core.errors import DeclarationError, TaskRejected
from wiggle_core.tasks.attributes import MAX_ATTRIBUTES, Attribute, Declaration, Miss, parse_payload

CASES: dict[str, Any] = json.loads(  # Any: the shape of the cases file
    files("wiggle_core.conformance").joinpath("cases/attributes.json").read_text("utf-8")
)
DECLARED = Declaration(Attribute(each["name"], ValueType(each["type"]), each["path"]) for each in CASES["declare"])

longs = Declaration([Attribute("n", int, "n")])
decimals = Declaration([Attribute("n", Decimal, "n")])


def as_literal(kind: ValueType, value: Value) -> object:
    """The form of the cases file, written independently of the wire module."""
    match value:
        case datetime():
            return {"instant": format_instant(value)}
        case bool() | str():
            return value
        case _ if kind is ValueType.DECIMAL:
            return {"decimal": canonical_decimal(Decimal(value))}
        case _:
            return value


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["why"])
def test_public_cases(case: dict[str, Any]) -> None:  # Any: as above
    """C8, A3: the public cases, each value in the type it was declared with."""
    kinds = {attribute.name: attribute.type for attribute in DECLARED.attributes}
    found = DECLARED.extract(case["context"])
    assert {name: as_literal(kinds[name], value) for name, value in found.values.items()} == case["expect"]
    assert found.values.keys() | found.misses.keys() == kinds.keys()


def test_paths_reach_into_lists_and_objects() -> None:
    """A1: a numeric segment indexes a list, or names a key of an object."""
    declared = Declaration([Attribute("a", int, "x.1.y"), Attribute("b", int, "x.01.y"), Attribute("c", int, "x.-1.y")])
    assert declared.extract('{"x": [{"y": 1}, {"y": 2}]}').values == {"a": 2}
    assert declared.extract('{"x": {"1": {"y": 3}, "01": {"y": 4}, "-1": {"y": 5}}}').values == {"a": 3, "b": 4, "c": 5}
    assert declared.extract('{"x": [0]}').misses["a"] is Miss.UNRESOLVED


@pytest.mark.parametrize("segment", ["9" * 200, "999999999", "1e1", "٣", "1_0", " 1", "+1"])
def test_a_segment_that_is_no_index_finds_nothing(segment: str) -> None:
    """A1: only plain ASCII digits index a list, however Python would read them."""
    assert Declaration([Attribute("a", int, f"x.{segment}")]).extract('{"x": [0, 1, 2, 3]}').values == {}


def test_only_declared_paths_are_copied() -> None:
    """A2: nothing of the payload but the declared paths becomes an attribute."""
    payload = '{"n": 1, "card": "4111"}'
    assert longs.extract(payload).values == {"n": 1}
    assert Declaration([]).extract(payload).values == {}


def test_the_reason_for_absence_is_kept() -> None:
    """A3: a user can ask why an attribute is absent: the path, or the value."""
    assert longs.extract("{}").misses == {"n": Miss.UNRESOLVED}
    assert longs.extract('{"n": null}').misses == {"n": Miss.UNRESOLVED}
    assert longs.extract('{"n": "5"}').misses == {"n": Miss.UNFIT}
    assert longs.extract('{"n": 5}').misses == {}


@pytest.mark.parametrize("context", ["null", "1", '"n"', "[]", "true", "1.5", '[{"n": 1}]'])
def test_a_context_that_is_no_object_has_no_attributes(context: str) -> None:
    """A3: never an error."""
    assert longs.extract(context).values == {}


@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        "1e-400",
        "1e999999999999",
        "-1e999999999999",
        "1e-999999999999",
        "1e99999999999999999999999999",
        "9" * 5000,
        "-" + "9" * 5000,
        "0." + "1" * 5000,
        "1" + "0" * 5000 + ".5",
    ],
    ids=lambda text: text[:30],
)
@pytest.mark.parametrize("declared", [longs, decimals], ids=["long", "decimal"])
def test_hostile_numbers_are_absent_at_once(declared: Declaration, number: str) -> None:
    """A3: what is not finite or out of range is absent, and costs nothing to find out."""
    started = process_time()
    assert declared.extract(f'{{"n": {number}}}').misses == {"n": Miss.UNFIT}
    assert process_time() - started < 0.2


@pytest.mark.parametrize("text", ["0e999999999999", "-0.000", "0e-999999", "0", "-0"])
def test_every_zero_is_zero(text: str) -> None:
    """A3: zero has no sign and no exponent."""
    for declared in (longs, decimals):
        value = declared.extract(f'{{"n": {text}}}').values["n"]
        assert (str(value), value) == ("0", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("9223372036854775807.0", 2**63 - 1),
        ("9.223372036854775807e18", 2**63 - 1),
        ("9.223372036854775808e18", None),
        ("1.0000000000000000000000000000000000000000000000000001", None),
        ("9007199254740993.0", 2**53 + 1),
    ],
)
def test_whole_numbers_are_exact(text: str, expected: int | None) -> None:
    """A3, C7: LONG is 64 bit, exact, however the number is written."""
    assert longs.extract(f'{{"n": {text}}}').values.get("n") == expected


@pytest.mark.parametrize("text", ["9" * 38, "0." + "0" * 37 + "1", "-0." + "9" * 38, "1.5000", "1e37", "10e-39"])
def test_decimals_within_the_limits(text: str) -> None:
    """A3, C7: 38 digits and 38 places fit, exactly."""
    assert decimals.extract(f'{{"n": {text}}}').values == {"n": Decimal(text)}


@pytest.mark.parametrize("text", ["9" * 39, "0." + "0" * 38 + "1", "1." + "9" * 38, "1e38", "12e-39", "11e-39"])
def test_decimals_beyond_the_limits(text: str) -> None:
    """A3, C7: one digit or one place more is absent, never rounded."""
    assert decimals.extract(f'{{"n": {text}}}').misses == {"n": Miss.UNFIT}


@given(st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from([longs, decimals]))
def test_what_is_extracted_is_a_valid_literal(number: Decimal, declared: Declaration) -> None:
    """A3: every extracted value could stand in a predicate: the same limits hold for both."""
    payload = f'{{"n": {number}}}'.replace("E", "e")
    for value in declared.extract(payload).values.values():
        assert check_value(declared.attributes[0].type, value) == number


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "0", "b"]), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from(ValueType), st.sampled_from(["a", "a.0", "0.a", "a.b.0"]))
def test_extraction_never_fails(context: object, kind: ValueType, path: str) -> None:
    """A3: whatever the payload holds, an attribute is present and valid, or absent with a reason."""
    declared = Declaration([Attribute("x", kind, path)])
    found = declared.extract(json.dumps(context))
    assert [*found.values, *found.misses] == ["x"]
    for value in found.values.values():
        check_value(kind, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=timezone.utc)),
        ("0001-01-01T00:00:00+00:01", None),
        ("9999-12-31T23:59:59.999999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc)),
        ("9999-12-31T23:59:59-00:01", None),
        ("0000-01-01T00:00:00Z", None),
        ("2026-03-05t12:00:00z", datetime(2026, 3, 5, 12, tzinfo=timezone.utc)),
        ("2026-03-05T12:00:00+24:00", None),
        ("2026-03-05T12:00:00+0200", None),
        ("2026-03-05T24:00:00Z", None),
        ("2026-03-05T12:00:00Z\n", None),
        ("２０２６-03-05T12:00:00Z", None),
        ("2026-03-05T12:00:00." + "1" * 5000 + "Z", datetime(2026, 3, 5, 12, 0, 0, 111111, timezone.utc)),
    ],
    ids=lambda each: str(each)[:40],
)
def test_instants(text: str, expected: datetime | None) -> None:
    """A3: RFC 3339 with an offset, the years 1-9999, digits after the sixth dropped."""
    declared = Declaration([Attribute("at", datetime, "at")])
    assert declared.extract(json.dumps({"at": text})).values.get("at") == expected


def test_the_last_of_two_equal_keys_counts() -> None:
    """A2: attributes are read as the step reads its payload, and JSON readers take the last of two equal keys."""
    assert longs.extract('{"n": 1, "n": 2}').values == {"n": 2}


def test_deep_nesting_is_refused_at_once() -> None:
    """A payload nested 10,000 levels is refused with the field's name, not a RecursionError."""
    for text in ("[" * 10_000 + "]" * 10_000, '{"n":' * 10_000 + "1" + "}" * 10_000, "[" * 1_000_000):
        started = process_time()
        with pytest.raises(TaskRejected) as refused:
            longs.extract(text)
        assert refused.value.field == "payload"
        assert process_time() - started < 0.5


@pytest.mark.parametrize("text", ["", "{", "{'n': 1}", '{"n": 1} x', "\x00", "nul", '{"n": 01}', "\ufeff{}"])
def test_a_payload_that_is_no_json_is_refused(text: str) -> None:
    """A payload is JSON text; anything else is refused, naming the field."""
    with pytest.raises(TaskRejected, match=r"^payload: "):
        parse_payload(text)


def test_a_huge_key_or_text_is_no_trouble() -> None:
    """A3: a text over 255 code points is absent; so is nothing else because of it."""
    declared = Declaration([Attribute("s", str, "s"), Attribute("n", int, "n")])
    found = declared.extract(json.dumps({"s": "x" * 1_000_000, "y" * 1_000_000: 1, "n": 5}))
    assert (found.values, found.misses) == ({"n": 5}, {"s": Miss.UNFIT})


@pytest.mark.parametrize(
    "build",
    [
        lambda: Attribute("Region", str, "r"),
        lambda: Attribute("", str, "r"),
        lambda: Attribute("a" * 64, str, "r"),
        lambda: Attribute("a.b", str, "r"),
        lambda: Attribute("a\n", str, "r"),
        lambda: Attribute("é", str, "r"),
        lambda: Attribute("region", float, "r"),
        lambda: Attribute("region", "string", "r"),  # type: ignore[arg-type]  # the refusal is what is tested
        lambda: Attribute("region", str, ""),
        lambda: Attribute("region", str, "."),
        lambda: Attribute("region", str, "a..b"),
        lambda: Attribute("region", str, ".a"),
        lambda: Attribute("region", str, "a."),
        lambda: Attribute("region", str, "a\x00b"),
        lambda: Attribute("region", str, "a" * 256),
        lambda: Attribute("region", str, 5),  # type: ignore[arg-type]  # as above
        lambda: Attribute(5, str, "a"),  # type: ignore[arg-type]  # as above
    ],
)
def test_a_bad_declaration_is_refused(build: Callable[[], Attribute]) -> None:
    """A1: names, types and paths are checked when they are declared."""
    with pytest.raises(DeclarationError):
        build()


def test_an_error_does_not_repeat_a_megabyte() -> None:
    """C6: a refusal names the offender, but not at any length."""
    for name, path in (("x" * 1_000_000, "a"), ("x", "a" * 1_000_000)):
        with pytest.raises(DeclarationError) as refused:
            Attribute(name, str, path)
        assert len(str(refused.value)) < 300


def test_sixteen_attributes_and_no_more() -> None:
    """A1: a workflow declares at most 16."""
    many = [Attribute(f"a{index}", str, "a") for index in range(MAX_ATTRIBUTES + 1)]
    assert len(Declaration(many[:16]).attributes) == 16
    with pytest.raises(DeclarationError, match="17 attributes"):
        Declaration(many)


def test_a_name_is_declared_once() -> None:
    """A1: two attributes of one name are refused, naming it."""
    with pytest.raises(DeclarationError) as refused:
        Declaration([Attribute("a", str, "x"), Attribute("a", str, "x")])
    assert refused.value.name == "a"


def test_equal_attributes_are_equal() -> None:
    """Declaring the same again has to be recognised as the same."""
    assert Attribute("a", int, "x") == Attribute("a", ValueType.LONG, "x")
    assert len({Attribute("a", int, "x"), Attribute("a", int, "x"), Attribute("a", str, "x")}) == 2
    assert Attribute("a", int, "x") != Attribute("a", int, "y")
