"""The shapes of criteria that are measured, common and rare, easy and hard to serve by an index."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from benchmarks.claim.data import QUEUE, STEPS, TENANTS, late, region, tenant, tenant_name, total
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Predicate

NONE, FAMILY = "none", "tenant_family"

COMMON = frozenset({"step_common", "corr_prefix", "region_common", "absent_not"})
"""Those that match so many tasks that a walk finds ten soon."""

_DEAREST = Decimal("1999.91")
"""Ten of 200,001 totals are as high: 5 in 100,000 tasks."""


def _deep() -> Predicate:
    """Sixteen levels, AND and OR in turn, so that none can be flattened; 0.15 % match."""
    predicate: Predicate = region == "eu"
    for level in range(15):
        if level % 2 == 0:
            predicate = predicate & (total >= Decimal(1990 - level))
        else:
            predicate = predicate | (Task.correlation_id == f"none-{level}")
    return predicate


def _predicates() -> dict[str, Predicate]:
    is_dear = total >= _DEAREST
    return {
        "step_common": Task.step == STEPS[0],
        "corr_prefix": Task.correlation_id.like("eu-%"),
        "region_common": region == "eu",
        "region_total_rare": (region == "eu") & (total >= 1990),
        "tenant": tenant == tenant_name(17),
        "late_newest": late == "yes",
        "late_range_newest": late >= "x",
        "total_rare": is_dear,
        "not_total_rare": ~(total < _DEAREST),
        "attr_never": region == "nowhere",
        "corr_never": Task.correlation_id == "eu-none",
        "corr_suffix_like": Task.correlation_id.like("%777"),
        "absent_not": ~(late == "yes"),
        "in_20": tenant.in_([tenant_name(number * 50) for number in range(20)]),
        "or_mixed": is_dear | (tenant == tenant_name(99)) | (Task.correlation_id == "eu-1"),
        "deep_16": _deep(),
        "version_new": Task.version == 2,
    }


def tenant_family() -> list[QueueCriteria]:
    """One criteria for every tenant."""
    return [QueueCriteria(QUEUE, tenant == tenant_name(number)) for number in range(TENANTS)]


SHAPES: Mapping[str, list[QueueCriteria]] = {
    NONE: [QueueCriteria(QUEUE)],
    **{name: [QueueCriteria(QUEUE, predicate)] for name, predicate in _predicates().items()},
    FAMILY: tenant_family(),
}
"""The criteria of each shape; claims of a shape with several take one after the other."""

FIVE_RARE = ("region_total_rare", "tenant", "total_rare", "corr_suffix_like", "or_mixed")
"""Whose lanes are open where writing beside five rare lanes is measured."""

BY_HAND = QueueCriteria(QUEUE, (Task.step == STEPS[1]) & (total >= 1995))
"""What the one lane is opened for whose opening is timed; no shape has it."""
