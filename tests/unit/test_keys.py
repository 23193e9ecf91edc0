"""Order-preserving value keys (section 5): the order of keys is the order of values, and nothing is lost."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal, localcontext
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiggle_core.criteria.check import MAX_LONG, MIN_LONG
from wiggle_core.criteria.evaluate import family_of
from wiggle_core.criteria.tree import Family, Value
from wiggle_core.tasks.keys import StoredAttributes, decode_attributes, decode_key, encode_attributes, encode_value

NINES = 10**38 - 1
FIRST = datetime(1, 1, 1, tzinfo=timezone.utc)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc)

LIMITS: list[Value] = [
    "",
    "\x01",
    " ",
    "a",
    "a ",
    "a~",
    "A",
    "é",
    "e\u0301",
    "\uff5e",
    "\U0001f600",
    "\U0010ffff" * 255,
    "x" * 255,
    "n1",
    0,
    1,
    -1,
    9,
    10,
    -9,
    -10,
    MIN_LONG,
    MIN_LONG + 1,
    MAX_LONG,
    MAX_LONG - 1,
    2**53 - 1,
    2**53 + 1,
    Decimal("0"),
    Decimal("-0.00"),
    Decimal("0.1"),
    Decimal("0.10"),
    Decimal("-0.1"),
    Decimal("-0.11"),
    Decimal("0.3"),
    Decimal("1E+3"),
    Decimal("999.99"),
    Decimal("1000.00"),
    Decimal("1000.01"),
    Decimal("1E-38"),
    Decimal("-1E-38"),
    Decimal(NINES),
    Decimal(-NINES),
    Decimal(NINES).scaleb(-38),
    Decimal("-0.12345678901234567890123456789012345678"),
    False,
    True,
    FIRST,
    LAST,
    datetime(1970, 1, 1, tzinfo=timezone.utc),
    datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc),
    datetime(1970, 1, 1, 0, 0, 0, 1, timezone.utc),
]
"""Every limit of C7 and its neighbours."""

texts = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=255)
longs = st.integers(MIN_LONG, MAX_LONG)
instants = st.datetimes(timezones=st.just(timezone.utc))


@st.composite
def decimals(draw: st.DrawFn) -> Decimal:
    """Decimals of up to 38 digits and 38 places, with and without needless zeros."""
    digits = draw(st.integers(-NINES, NINES))
    places = draw(st.integers(0, 38))
    with localcontext() as context:
        context.prec = 80
        return Decimal(digits).scaleb(-places)


values = st.one_of(texts, longs, decimals(), st.booleans(), instants, st.sampled_from(LIMITS))
FAMILY_ORDER = [Family.BOOLEAN, Family.NUMBER, Family.STRING, Family.INSTANT]


def precedes(left: Value, right: Value) -> bool:
    """The order that keys must have: by family first, then by value, as the evaluator compares."""
    families = FAMILY_ORDER.index(family_of(left)), FAMILY_ORDER.index(family_of(right))
    if families[0] != families[1]:
        return families[0] < families[1]
    return left < right  # type: ignore[operator]  # both are of one family


def assert_ordered(left: Value, right: Value) -> None:
    one, other = encode_value(left), encode_value(right)
    assert (one < other) is precedes(left, right), (left, right)
    assert (one > other) is precedes(right, left), (left, right)
    # A store compares UTF-8 bytes, which have the order of code points.
    assert (one.encode() < other.encode()) is (one < other)


def test_every_pair_of_limits_is_in_order() -> None:
    """Section 5: key order = value order at every limit of C7, across families too."""
    for left, right in combinations(LIMITS, 2):
        assert_ordered(left, right)


@given(values, values)
def test_every_pair_is_in_order(left: Value, right: Value) -> None:
    """Section 5: key order = value order for every pair, across families too."""
    assert_ordered(left, right)


@given(st.one_of(longs, decimals()), st.integers(-2, 2), st.integers(0, 38))
def test_near_numbers_are_in_order(number: int | Decimal, units: int, place: int) -> None:
    """Section 5: neighbours differ in the last digit only, where a rounding context would merge them."""
    with localcontext() as context:
        context.prec = 120
        near = Decimal(number) + Decimal(units).scaleb(-place)
    if abs(near) <= NINES:
        assert_ordered(number, near)


@given(st.integers(-(10**18), 10**18 - 1))
def test_a_long_and_an_equal_decimal_have_one_key(number: int) -> None:
    """C5: LONG and DECIMAL compare by value, so equal values share a key, however they are written."""
    with localcontext() as context:
        context.prec = 80
        spellings = [Decimal(number), Decimal(number).scaleb(5).scaleb(-5), Decimal(f"{number}.000")]
    assert {encode_value(each) for each in spellings} == {encode_value(number)}


@given(values)
def test_keys_decode_to_their_value(value: Value) -> None:
    """Section 5: nothing is lost; the family stays, and so does every digit."""
    decoded = decode_key(encode_value(value))
    assert decoded == value
    assert family_of(decoded) is family_of(value)


@pytest.mark.parametrize("value", LIMITS, ids=repr)
def test_limits_decode_to_their_value(value: Value) -> None:
    """C7: every limit survives a round trip."""
    decoded = decode_key(encode_value(value))
    assert (decoded, family_of(decoded)) == (value, family_of(value))


@given(values)
def test_keys_are_short(value: Value) -> None:
    """Section 5: a key is at most 256 code points, so at most 1,021 bytes, which indexes can hold."""
    key = encode_value(value)
    assert len(key) <= 256
    assert len(key.encode()) <= 1021
    assert not isinstance(value, Decimal) or len(key) <= 44


def test_a_foreign_context_changes_no_key() -> None:
    """Section 5: the decimal module's context, which rounds, is never asked."""
    value = Decimal("-12345678901234567890.123456789012345678")
    expected = encode_value(value)
    with localcontext() as context:
        context.prec = 3
        assert encode_value(value) == expected
        assert str(decode_key(expected)) == "-12345678901234567890.123456789012345678"


def test_an_instant_of_another_zone_is_the_same_key() -> None:
    """C7: instants are compared in UTC."""
    utc = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)
    assert encode_value(utc.astimezone(timezone(timedelta(hours=5, minutes=30)))) == encode_value(utc)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,62}", fullmatch=True), values, max_size=16))
def test_attributes_survive_storage(attributes: dict[str, Value]) -> None:
    """Section 5: the JSON object on the task row gives back the attributes that went in."""
    text = encode_attributes(attributes)
    assert decode_attributes(text) == attributes
    stored = StoredAttributes(text)
    assert stored == attributes
    assert repr(stored) == repr(dict(stored.items()))
    assert json.loads(text) == {name: encode_value(value) for name, value in attributes.items()}


@pytest.mark.parametrize("key", ["", "x", "z1"])
def test_what_is_no_key_is_refused(key: str) -> None:
    """Section 5: a tag that no family has is an error, not a guess."""
    with pytest.raises(ValueError, match="no value key"):
        decode_key(key)


@pytest.mark.parametrize("whole", [0, 5, -5, 10, 12345, 12300, MIN_LONG, MAX_LONG])
def test_whole_numbers_of_64_bits_come_back_as_int(whole: int) -> None:
    """C5: whichever of the two types they were stored as; beyond 64 bits, and with a fraction, as Decimal."""
    for stored in (whole, Decimal(whole), Decimal(f"{whole}.0")):
        decoded = decode_key(encode_value(stored))
        assert (decoded, type(decoded)) == (whole, int)


@pytest.mark.parametrize("number", [MIN_LONG - 1, MAX_LONG + 1, NINES, Decimal("0.5"), Decimal("-12.25")])
def test_other_numbers_come_back_as_decimal(number: int | Decimal) -> None:
    """C5: nothing is rounded to fit."""
    decoded = decode_key(encode_value(number))
    assert (decoded, type(decoded)) == (number, Decimal)


@pytest.mark.parametrize("key", ["", "abc"])
def test_the_error_shows_the_key(key: str) -> None:
    """Section 5: what is no key is shown, cut to twenty characters."""
    with pytest.raises(ValueError, match=f"^no value key: {key!r}$"):
        decode_key(key)
    with pytest.raises(ValueError, match=r"^no value key: 'xxxxxxxxxxxxxxxxxxxx'$"):
        decode_key("x" * 30)
