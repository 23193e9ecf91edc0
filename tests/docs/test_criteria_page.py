"""The page on criteria: its examples are read by the parsers, its table of truth is what the evaluator says."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from wiggle_core.criteria import criteria_from_json, criteria_to_json, format_text, parse_text
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.tree import Value
from wiggle_core.tasks.task import TaskRecord

PAGE = (Path(__file__).parents[2] / "docs" / "criteria.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows_of_truth() -> list[tuple[str, list[bool]]]:
    rows = re.findall(r"^\| `([^`]*attr\.total[^`]*)` \|(.*)\|$", PAGE, re.MULTILINE)
    return [(predicate, ["true" in cell for cell in cells.split("|")]) for predicate, cells in rows]


@pytest.mark.parametrize("text", blocks("sql"))
def test_text_examples_are_read_and_printed(text: str) -> None:
    """Section 4: the text form round-trips."""
    predicate = parse_text(text)
    assert parse_text(format_text(predicate)) == predicate


@pytest.mark.parametrize("text", blocks("json"))
def test_wire_examples_are_read_and_written(text: str) -> None:
    """Section 4: the wire form round-trips."""
    criteria = criteria_from_json(text)
    assert criteria_from_json(criteria_to_json(criteria)) == criteria


@pytest.mark.parametrize(("text", "expected"), rows_of_truth())
def test_the_table_of_truth(text: str, expected: list[bool]) -> None:
    """C2: two-valued logic, as the page says."""
    totals: list[dict[str, Value]] = [{"total": Decimal(1500)}, {"total": Decimal(500)}, {}]
    tasks = [TaskRecord("t", "q", "s", created_at=0, ready_at=0, attributes=total) for total in totals]
    assert [matches(parse_text(text), task) for task in tasks] == expected


def test_there_is_something_to_test() -> None:
    """A page whose examples are not found must not pass."""
    assert (len(blocks("sql")), len(blocks("json")), len(rows_of_truth())) == (3, 1, 5)
