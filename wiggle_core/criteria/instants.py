"""Instants: between aware datetimes, epoch microseconds and RFC 3339 text, exactly.

Floating-point timestamps lose microseconds, so every conversion here is in whole numbers.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
MIN_MICROS = (datetime(1, 1, 1, tzinfo=timezone.utc) - EPOCH) // _MICROSECOND
MAX_MICROS = (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc) - EPOCH) // _MICROSECOND

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))"
)


def to_micros(instant: datetime) -> int:
    """Epoch microseconds of an aware datetime."""
    return (instant - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The UTC datetime of epoch microseconds. Raises OverflowError outside the years 1-9999."""
    return EPOCH + timedelta(microseconds=micros)


def parse_instant(text: str) -> datetime:
    """The UTC datetime of RFC 3339 text with an offset; digits after the sixth are dropped (A3).

    Raises ValueError for anything else: no offset, no such day, a leap second, outside the years 1-9999.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("not an RFC 3339 instant with an offset")
    year, month, day, hour, minute, second, digits, zulu, sign, offset_hours, offset_minutes = found.groups()
    micros = int((digits or "0")[:6].ljust(6, "0"))
    local = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), micros, timezone.utc)
    if zulu:
        return local
    if int(offset_hours) > 23 or int(offset_minutes) > 59:
        raise ValueError("no such offset")
    offset = timedelta(hours=int(offset_hours), minutes=int(offset_minutes))
    try:
        return local - offset if sign == "+" else local + offset
    except OverflowError as error:
        raise ValueError("outside the years 1-9999") from error


def has_lost_digits(text: str) -> bool:
    """Whether the instant's text has non-zero digits after the sixth, which parsing drops."""
    found = _RFC3339.fullmatch(text)
    return found is not None and (found[7] or "")[6:].strip("0") != ""


def format_instant(instant: datetime) -> str:
    """RFC 3339 text in UTC with six digits and a Z."""
    return instant.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
