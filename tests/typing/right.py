"""Expressions that both type checkers must accept. Checked by tests/unit/criteria/test_typing.py, never run."""

# ruff: noqa: E712, SIM300  # they build predicates

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal

from wiggle_core.criteria import Predicate, QueueCriteria, Task, cb, normalize

region = Task.attr("region", str)
total = Task.attr("total", Decimal)
count = Task.attr("count", int)
vip = Task.attr("vip", bool)
due = Task.attr("due", datetime)
noon = datetime(2026, 3, 5, 12, tzinfo=timezone.utc)

text: list[Predicate] = [
    Task.step == "charge",
    Task.step != "charge",
    Task.step < "d",
    "d" > Task.step,
    region.like("eu-%"),
    region.like("eu!%", escape="!"),
    region.between("a", "f"),
    region.in_(["eu", "us"]),
    Task.node.is_null(),
    Task.workflow.is_not_null(),
]
numbers: list[Predicate] = [
    Task.attempt < 4,
    4 > Task.attempt,
    Task.version == 2,
    count >= 2**60,
    total >= 1000,
    total >= Decimal("0.1"),
    total.between(0, Decimal("0.5")),
    total.in_([1, Decimal("2.5")]),
]
others: list[Predicate] = [
    vip == True,
    vip != False,
    vip.in_([True]),
    vip.is_null(),
    due < noon,
    Task.created_at.between(noon, noon),
]
in_jpa_style: list[Predicate] = [
    cb.equal(Task.step, "charge"),
    cb.not_equal(vip, True),
    cb.less_than(total, 1000),
    cb.less_than_or_equal_to(total, Decimal("0.5")),
    cb.greater_than(due, noon),
    cb.greater_than_or_equal_to(region, "a"),
    cb.between(Task.attempt, 1, 3),
    cb.in_(Task.step, ("charge", "refund")),
    cb.like(Task.correlation_id, "eu-%"),
    cb.like(Task.correlation_id, "eu!%", "!"),
    cb.is_null(vip),
    cb.is_not_null(due),
    cb.and_(Task.step == "charge", cb.not_(vip == True)),
    cb.or_(),
    cb.conjunction(),
    cb.disjunction(),
]
joined: Predicate = (Task.step == "charge") & (region == "eu") | ~(total >= 1000)

eu_large = QueueCriteria("payments", (Task.step == "charge") & (total >= 1000) & (Task.attempt < 4))
everything = QueueCriteria("refunds")
by_function = QueueCriteria.from_("payments").where(
    lambda cb: cb.and_(cb.equal(Task.step, "charge"), cb.not_(cb.less_than(total, 1000)))
)
narrowed = everything.where(Task.step == "refund").where(normalize(joined))
