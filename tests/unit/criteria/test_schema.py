"""The published JSON Schema: everything that is written passes it, and it refuses what a schema can."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from wiggle_core.criteria import Predicate, criteria_from_object, json_schema, predicate_to_object
from wiggle_core.errors import CriteriaError

from .strategies import predicates
from .test_wire import REFUSED

SCHEMA = Draft202012Validator(json_schema())
HUGE = re.compile("levels|million")
"""A schema walks all of these: a minute each."""

BEYOND_A_SCHEMA = {
    "escape before a letter",
    "whole fraction for LONG",  # to a schema 5.0 is an integer
    "long below 64 bits",
    "decimal plain above 64 bits",
    "decimal of 39 places",
    "decimal of 10^38",
    "decimal of a huge exponent",
    "decimal of a tiny exponent",
    "decimal beyond exponents",
    "instant of a leap second",
    "instant of no such day",
    "instant of the year 0",
    "instant before the year 1",
    "lone surrogate",
}


def is_valid(criteria: Any) -> bool:  # Any: JSON of any shape
    return bool(SCHEMA.is_valid(criteria))


def test_the_schema_is_a_schema() -> None:
    """Section 4: JSON Schema 2020-12; each call gives a fresh one, which the caller may change."""
    Draft202012Validator.check_schema(json_schema())
    json_schema().clear()
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@settings(max_examples=100, deadline=None)
@given(predicates)
def test_what_is_written_is_valid(predicate: Predicate) -> None:
    """Section 4: a client that trusts the schema can read everything."""
    assert is_valid({"queue": "q", "where": predicate_to_object(predicate)})


@pytest.mark.parametrize(("name", "where"), [case[:2] for case in REFUSED if not HUGE.search(case[0])])
def test_what_a_schema_can_refuse_it_refuses(name: str, where: object) -> None:
    """C6: a client may check before it sends; the listed rest is beyond a schema."""
    assert is_valid({"queue": "q", "where": where}) == (name in BEYOND_A_SCHEMA)


@pytest.mark.parametrize(
    "criteria",
    [{}, [], {"queue": ""}, {"queue": 5}, {"queue": "q" * 256}, {"queue": "q", "x": 1}, {"queue": "q", "where": 0}],
)
def test_refused_criteria(criteria: object) -> None:
    """C6: the frame around the predicate is checked too."""
    assert not is_valid(criteria)
    with pytest.raises(CriteriaError):
        criteria_from_object(criteria)
