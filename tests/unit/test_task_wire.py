"""Tasks as JSON objects: what is read, what is written, what is refused (C7)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from wiggle_core.criteria.wire import parse_json
from wiggle_core.errors import TaskRejected
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_core.tasks.wire import task_from_object, task_to_object

CASES: dict[str, Any] = json.loads(  # Any: parsed JSON
    files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text("utf-8")
)
LEAST = {
    "id": "t1",
    "queue": "q",
    "step": "charge",
    "created_at": "2026-03-01T00:00:01Z",
    "ready_at": "2026-03-01T00:01:01.000002+01:00",
}


def test_least_task_takes_the_defaults() -> None:
    """C1: five keys make a task; it is READY on its first attempt, and its instance is its own."""
    first_second = 1_772_323_201_000_000
    assert task_from_object(LEAST) == TaskRecord(
        "t1", "q", "charge", first_second, first_second - 3_540_000_000 + 2, instance_id="t1"
    )


def test_values_keep_their_families() -> None:
    """C5: attributes are read as wire literals: text, booleans, numbers of any size and instants stay apart."""
    attributes = {
        "text": "1",
        "yes": True,
        "one": 1,
        "wide": {"long": "9223372036854775807"},
        "exact": {"decimal": "0.30"},
        "due": {"instant": "2026-03-05T14:00:00+02:00"},
    }
    read = task_from_object(LEAST | {"attributes": attributes}).attributes
    assert read == {
        "text": "1",
        "yes": True,
        "one": 1,
        "wide": 2**63 - 1,
        "exact": Decimal("0.3"),
        "due": datetime(2026, 3, 5, 12, tzinfo=timezone.utc),
    }
    assert (type(read["yes"]), type(read["one"])) == (bool, int)


def test_fractions_are_read_as_written() -> None:
    """C5: a plain fraction is exact when the JSON was read without floating point."""
    read = task_from_object(parse_json(json.dumps(LEAST)[:-1] + ', "attributes": {"x": 0.1}}'))
    assert read.attributes == {"x": Decimal("0.1")}


@pytest.mark.parametrize("case", CASES["tasks"], ids=lambda case: case["id"])
def test_cases_round_trip(case: dict[str, Any]) -> None:  # Any: parsed JSON
    """C8: what is written of a case's task is read back as the same task, after a passage through JSON text."""
    task = task_from_object(case)
    assert task_from_object(parse_json(json.dumps(task_to_object(task)))) == task


def test_a_settled_task_round_trips() -> None:
    """Section 9: everything but the retry policy is written and read back, absent values being left out."""
    task = replace(
        task_from_object(LEAST),
        state=State.FAILED,
        payload='{"a": 1.10}',
        owner="w",
        token="k",
        lease_until=5,
        finished_at=-1,
        error="it's %",
    )
    written = task_to_object(task)
    assert written["finished_at"] == "1969-12-31T23:59:59.999999Z"
    assert written.keys().isdisjoint({"result", "workflow", "node", "retry"})
    assert task_from_object(json.loads(json.dumps(written))) == task


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "x" * 65),
        ("id", 7),
        ("queue", ""),
        ("queue", "a\nb"),
        ("step", 1),
        ("step", "x" * 256),
        ("workflow", "nul\0"),
        ("node", "\ud800"),
        ("correlation_id", True),
        ("version", "1"),
        ("version", True),
        ("version", 2**63),
        ("attempt", 0),
        ("priority", -1),
        ("priority", 2**31),
        ("priority", 1.0),
        ("created_at", "2026-03-01T00:00:00"),
        ("created_at", 5),
        ("ready_at", "2026-02-30T00:00:00Z"),
        ("state", "ready"),
        ("payload", {"a": 1}),
        ("attributes", ["region"]),
        ("colour", "red"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    """C6, C7: a value that is none, or beyond the bounds, is refused with the name of its key."""
    with pytest.raises(TaskRejected) as refused:
        task_from_object(LEAST | {field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    "attributes",
    [
        {"Region": "eu"},
        {"": "eu"},
        {"region": None},
        {"region": ["eu"]},
        {"region": {"decimal": "NaN"}},
        {"region": {"decimal": "1e38"}},
        {"region": {"instant": "2026-03-05T12:00:00"}},
        {"region": {"text": "eu"}},
        {"region": "x" * 256},
        {"region": float("nan")},
    ],
)
def test_a_bad_attribute_is_refused(attributes: object) -> None:
    """C6, C7: an attribute with a bad name, or a value that no literal can be, is refused."""
    with pytest.raises(TaskRejected) as refused:
        task_from_object(LEAST | {"attributes": attributes})
    assert refused.value.field.startswith("attributes")


@pytest.mark.parametrize("name", LEAST)
def test_a_missing_key_is_named(name: str) -> None:
    """C6: each of the five keys that every task needs is missed by name, absent or null."""
    for incomplete in ({key: value for key, value in LEAST.items() if key != name}, LEAST | {name: None}):
        with pytest.raises(TaskRejected) as refused:
            task_from_object(incomplete)
        assert refused.value.field == name


@pytest.mark.parametrize("value", [None, [], "task", 3])
def test_no_object_is_no_task(value: object) -> None:
    """C6: what is no object is refused."""
    with pytest.raises(TaskRejected):
        task_from_object(value)
