"""The public cases of the contract (C8), by the evaluator and by the compiled form."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, TypeAlias

import pytest

from wiggle_core.criteria import (
    compile_predicate,
    criteria_from_object,
    criteria_to_object,
    format_text,
    matches,
    parse_text,
)
from wiggle_core.errors import CriteriaError
from wiggle_core.tasks.wire import task_from_object

from .test_schema import is_valid

Case: TypeAlias = dict[str, Any]  # Any: JSON of the cases file

CASES = json.loads(files("wiggle_core.conformance").joinpath("cases/criteria.json").read_text(encoding="utf-8"))
IN_CLAIM_ORDER = sorted(map(task_from_object, CASES["tasks"]), key=lambda task: task.order_key)
BEYOND_A_SCHEMA = {
    "long out of range": "the size of a number written as text",
    "decimal too long": "the same",
    "escape before an ordinary character": "where the escape stands",
    "escape at the end": "where the escape stands",
    "too many wildcards": "counting characters",
    "too deep": "counting levels",
}
"""The refused cases that only `check` can tell, with what a schema cannot do."""


def named(case: Case) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", CASES["cases"], ids=named)
def test_case(case: Case) -> None:
    """C8: the ids that the case expects, in claim order (O1), from every form of the predicate."""
    assert is_valid({"queue": "payments", "where": case["where"]})
    criteria = criteria_from_object({"queue": "payments", "where": case["where"]})
    predicate = criteria.normal if criteria.predicate is None else criteria.predicate
    for form in (predicate, criteria.normal, parse_text(format_text(predicate))):
        compiled = compile_predicate(form)
        assert [task.id for task in IN_CLAIM_ORDER if matches(form, task)] == case["expect"]
        assert [task.id for task in IN_CLAIM_ORDER if compiled(task)] == case["expect"]
    written = criteria_to_object(criteria)
    assert is_valid(written)
    assert criteria_from_object(written) == criteria


@pytest.mark.parametrize("case", CASES["refused"], ids=named)
def test_refused_case(case: Case) -> None:
    """C6: refused with a path; by the published schema too, where a schema can tell."""
    criteria = {"queue": "payments", "where": case["where"]}
    with pytest.raises(CriteriaError) as refused:
        criteria_from_object(criteria)
    assert refused.value.path.startswith("/where")
    assert is_valid(criteria) == (case["name"] in BEYOND_A_SCHEMA)
