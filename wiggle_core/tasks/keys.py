"""Order-preserving text keys for attribute values (section 5): every comparison becomes one of binary text.

The family's tag comes first. Numbers: zero `n1`; positive `n2`, then the decimal exponent + 500 in three digits, then
the significant digits; negative `n0`, then the nines' complement of both, then `~`, so that more digits sort lower.
Instants: `t` and the microseconds since year 1 in 18 digits. The decimal module's context is never asked: it rounds
to 28 digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, assert_never

from wiggle_core.criteria.check import MAX_LONG, MIN_LONG
from wiggle_core.criteria.instants import MIN_MICROS, from_micros, to_micros
from wiggle_core.criteria.tree import Value

_EXPONENT_SHIFT = 500
_BEHIND_FIRST = _EXPONENT_SHIFT - 1
_COMPLEMENT = str.maketrans("0123456789", "9876543210")


def encode_value(value: Value) -> str:
    """The key of a value within the limits of C7: at most 256 code points."""
    match value:
        case str():
            return "s" + value
        case bool():
            return "b1" if value else "b0"
        case int():
            return _encode_whole(value)
        case Decimal():
            return _encode_decimal(value)
        case datetime():
            return f"t{to_micros(value) - MIN_MICROS:018d}"
        case _:
            assert_never(value)


def _encode_whole(value: int) -> str:
    digits = str(abs(value))
    if value > 0:  # the short way for what is met most
        return f"n2{len(digits) + _BEHIND_FIRST}{digits.rstrip('0')}"
    return _encode_number(value < 0, len(digits) - 1, digits)


def _encode_decimal(value: Decimal) -> str:
    # Most numbers have a whole part and no exponent, and for them this is three times as quick as the general way.
    whole, _, fraction = str(value).partition(".")
    if whole.isdigit() and whole[0] != "0" and (fraction.isdigit() or not fraction):
        return f"n2{len(whole) + _BEHIND_FIRST}{(whole + fraction).rstrip('0')}"
    mantissa, _, exponent = f"{value:E}".partition("E")
    return _encode_number(mantissa[0] == "-", int(exponent), mantissa.lstrip("-").replace(".", ""))


def _encode_number(negative: bool, exponent: int, digits: str) -> str:
    significant = digits.rstrip("0")
    if not significant:
        return "n1"
    body = f"{exponent + _EXPONENT_SHIFT:03d}{significant}"
    return f"n0{body.translate(_COMPLEMENT)}~" if negative else f"n2{body}"


def decode_key(key: str) -> Value:
    """The value of a key. A whole number within 64 bits comes back as int, whichever type it was stored as (C5)."""
    tag, body = key[:1], key[1:]
    match tag:
        case "s":
            return body
        case "b":
            return body == "1"
        case "t":
            return from_micros(int(body) + MIN_MICROS)
        case "n":
            return _decode_number(body)
        case _:
            raise ValueError(f"no value key: {key[:20]!r}")


def _decode_number(body: str) -> int | Decimal:
    if body == "1":
        return 0
    negative = body.startswith("0")
    text = body[1:-1].translate(_COMPLEMENT) if negative else body[1:]
    exponent, digits = int(text[:3]) - _EXPONENT_SHIFT, text[3:]
    scale = exponent - len(digits) + 1
    if scale >= 0:
        whole = int(digits) * 10**scale * (-1 if negative else 1)
        return whole if MIN_LONG <= whole <= MAX_LONG else Decimal(whole)
    return Decimal((int(negative), tuple(map(int, digits)), scale))


def encode_attributes(attributes: Mapping[str, Value]) -> str:
    """The JSON object of name -> key that stores keep beside each task."""
    # Names need no escape (A1). A JSON encoder is made for every call, and costs as much as the keys.
    pairs = [f'"{name}":{encode_basestring(encode_value(value))}' for name, value in attributes.items()]
    return "{" + ",".join(pairs) + "}"


def decode_attributes(text: str) -> dict[str, Value]:
    """The attributes that `encode_attributes` wrote."""
    return {name: decode_key(key) for name, key in json.loads(text).items()} if text != "{}" else {}


class StoredAttributes(Mapping[str, Value]):
    """The attributes in a stored text, each decoded when it is asked for.

    Most tasks are claimed by SQL and worked without a look at them, and decoding five attributes of each was measured
    to be a third of what a claim of ten costs in this process. Lanes are filled by one of them, mostly.
    """

    __slots__ = ("_stored", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._stored: dict[str, str] | None = None

    def _keys(self) -> dict[str, str]:
        keys = self._stored
        if keys is None:
            keys = self._stored = json.loads(self._text) if self._text != "{}" else {}
        return keys

    def __getitem__(self, name: str) -> Value:
        return decode_key(self._keys()[name])

    def get(self, name: str, default: Any = None) -> Any:  # Any: as Mapping has it
        """As `Mapping.get`, which would raise and catch an error for each attribute that is absent."""
        key = self._keys().get(name)
        return default if key is None else decode_key(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        return repr(dict(self))
