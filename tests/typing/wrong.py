"""Expressions that both type checkers must refuse, each line marked. Checked by tests/unit/criteria/test_typing.py."""

# ruff: noqa: B015, B018  # comparisons without a use are the point

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from wiggle_core.criteria import QueueCriteria, Task, cb

region = Task.attr("region", str)
total = Task.attr("total", Decimal)
count = Task.attr("count", int)
vip = Task.attr("vip", bool)
due = Task.attr("due", datetime)

Task.attempt < "4"  # refused
Task.attempt >= Decimal("4")  # refused
Task.step < 3  # refused
total >= 0.5  # refused
count < 0.5  # refused
due < "2026-03-05"  # refused
due >= date(2026, 3, 5)  # refused
vip < True  # refused
vip.between(False, True)  # refused

Task.attempt.like("x")  # refused
vip.like("x")  # refused
region.like(3)  # refused
region.like("x", escape=1)  # refused

Task.step.in_([1, 2])  # refused
Task.attempt.in_(["1"])  # refused
total.in_([0.5])  # refused
region.between("a", 3)  # refused
Task.attempt.between("1", "3")  # refused

cb.equal(Task.step, 3)  # refused
cb.not_equal(vip, "true")  # refused
cb.less_than(Task.attempt, "4")  # refused
cb.less_than(vip, True)  # refused
cb.less_than_or_equal_to(total, "4")  # refused
cb.greater_than(due, 5)  # refused
cb.greater_than_or_equal_to(region, 5)  # refused
cb.between(Task.attempt, 1, "3")  # refused
cb.in_(Task.step, [1])  # refused
cb.like(Task.attempt, "x")  # refused
cb.is_null("step")  # refused
cb.and_(Task.step)  # refused
cb.not_("step")  # refused
cb.or_(Task.step == 3)  # refused

QueueCriteria("payments", Task.step == 3)  # refused
QueueCriteria("payments", Task.attempt != "3")  # refused
QueueCriteria("payments", vip == "true")  # refused
QueueCriteria("payments", total == 0.5)  # refused
QueueCriteria("payments", True)  # refused
QueueCriteria("payments", Task.step)  # refused
QueueCriteria.from_("payments").where(Task.step == 3)  # refused
QueueCriteria.from_("payments").where(lambda cb: cb.equal(Task.step, 3))  # refused
(Task.step == 3) & (Task.attempt < 4)  # refused
(Task.attempt < 4) | (Task.step == 3)  # refused
~(Task.step == 3)  # refused
Task.attr("x", bytes)  # refused
Task.attr("x", float)  # refused
Task.colour == "red"  # refused
