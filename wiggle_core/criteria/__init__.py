"""Criteria: which tasks a worker takes, as a typed predicate with one meaning on every store (C1-C8)."""

from __future__ import annotations

from wiggle_core.criteria.builder import CriteriaBuilder, QueueCriteria, cb
from wiggle_core.criteria.check import check
from wiggle_core.criteria.evaluate import Evaluable, Matcher, compile_predicate, matches
from wiggle_core.criteria.fields import Field, OrderedField, Task, TextField
from wiggle_core.criteria.text import format_text, parse_text
from wiggle_core.criteria.tree import (
    FALSE,
    TRUE,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    fingerprint,
    negate,
    normalize,
)
from wiggle_core.criteria.wire import (
    criteria_from_json,
    criteria_from_object,
    criteria_to_json,
    criteria_to_object,
    json_schema,
    predicate_from_object,
    predicate_to_object,
)

__all__ = [
    "FALSE",
    "TRUE",
    "And",
    "AttributeReference",
    "Between",
    "Compare",
    "CriteriaBuilder",
    "Evaluable",
    "Field",
    "FieldReference",
    "In",
    "IsNull",
    "Like",
    "Matcher",
    "Not",
    "Operator",
    "Or",
    "OrderedField",
    "Predicate",
    "QueueCriteria",
    "Reference",
    "Task",
    "TextField",
    "Value",
    "ValueType",
    "cb",
    "check",
    "compile_predicate",
    "criteria_from_json",
    "criteria_from_object",
    "criteria_to_json",
    "criteria_to_object",
    "fingerprint",
    "format_text",
    "json_schema",
    "matches",
    "negate",
    "normalize",
    "parse_text",
    "predicate_from_object",
    "predicate_to_object",
]
