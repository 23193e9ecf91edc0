"""Instants between datetimes, epoch microseconds and RFC 3339 text, exactly (C7, A3)."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiggle_core.criteria.check import check_value
from wiggle_core.criteria.instants import (
    MAX_MICROS,
    MIN_MICROS,
    format_instant,
    from_micros,
    has_lost_digits,
    parse_instant,
    to_micros,
)
from wiggle_core.criteria.tree import ValueType


@given(st.integers(MIN_MICROS, MAX_MICROS), st.integers(-23 * 60 - 59, 23 * 60 + 59))
def test_all_three_forms_hold_the_same(micros: int, offset: int) -> None:
    """C7: to the microsecond, in every year from 1 to 9999, whatever the offset."""
    instant = from_micros(micros)
    assert to_micros(instant) == micros
    assert parse_instant(format_instant(instant)) == instant
    zone = timezone(timedelta(minutes=offset))
    try:
        elsewhere = instant.astimezone(zone)
    except OverflowError:
        return
    text = elsewhere.isoformat(timespec="microseconds")
    assert parse_instant(text) == instant
    assert parse_instant(text).utcoffset() == timedelta(0)
    assert format_instant(elsewhere) == format_instant(instant)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 01:00:00.5+01:00", 500_000),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("0001-01-01T00:00:00Z", MIN_MICROS),
        ("9999-12-31T23:59:59.999999Z", MAX_MICROS),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000_000),
    ],
)
def test_read(text: str, expected: int) -> None:
    """A3: RFC 3339 with an offset; digits after the sixth are dropped."""
    assert to_micros(parse_instant(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-03-05",
        "2026-03-05T12:00Z",
        "2026-03-05T12:00:00",
        "2026-03-05T12:00:00.Z",
        "2026-03-05T12:00:00+02",
        "2026-03-05T12:00:00+0200",
        "2026-03-05T12:00:00+24:00",
        "2026-03-05T12:00:00+02:60",
        "2026-03-05T23:59:60Z",
        "2026-03-05T24:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "12026-03-05T12:00:00Z",
        "2026-03-05T12:00:00Z\n",
        " 2026-03-05T12:00:00Z",
        "２026-03-05T12:00:00Z",
        "20260305T120000Z",
    ],
)
def test_refused(text: str) -> None:
    """C7, A3: no offset, no such day or hour, a leap second, or outside the years 1-9999."""
    with pytest.raises(ValueError, match=r"."):
        parse_instant(text)


def test_lost_digits() -> None:
    """C6: a literal that would be cut is told from one that only has zeros too many."""
    assert has_lost_digits("2026-03-05T12:00:00.0000001Z")
    assert not has_lost_digits("2026-03-05T12:00:00.1234560Z")
    assert not has_lost_digits("2026-03-05T12:00:00Z")
    assert not has_lost_digits("no instant .12345678")


def test_the_machine_s_time_zone_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: instants are written, compared and kept in UTC wherever the process runs."""
    moment = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert format_instant(moment) == "2026-03-05T12:00:00.000000Z"
        elsewhere = moment.astimezone(timezone(timedelta(hours=-8)))
        assert format_instant(elsewhere) == "2026-03-05T12:00:00.000000Z"
        assert repr(check_value(ValueType.INSTANT, elsewhere)) == repr(moment)
        assert parse_instant("2026-03-05T13:00:00+01:00") == moment
        assert from_micros(to_micros(elsewhere)) == moment
    finally:
        monkeypatch.undo()
        time.tzset()
