"""Both spellings build the same criteria."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from wiggle_core.criteria import FALSE, TRUE, And, Or, Predicate, QueueCriteria, Task, cb
from wiggle_core.errors import CriteriaError

total, vip = Task.attr("total", Decimal), Task.attr("vip", bool)
MOMENT = datetime(2026, 3, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("in_jpa_style", "in_python"),
    [
        (cb.equal(Task.step, "a"), Task.step == "a"),
        (cb.not_equal(Task.step, "a"), Task.step != "a"),
        (cb.less_than(Task.attempt, 4), Task.attempt < 4),
        (cb.less_than_or_equal_to(Task.version, 4), Task.version <= 4),
        (cb.greater_than(total, 4), total > 4),
        (cb.greater_than_or_equal_to(Task.created_at, MOMENT), Task.created_at >= MOMENT),
        (cb.between(Task.priority, 1, 2), Task.priority.between(1, 2)),
        (cb.in_(Task.kind, ["a"]), Task.kind.in_(["a"])),
        (cb.like(Task.workflow, "a!%", "!"), Task.workflow.like("a!%", "!")),
        (cb.is_null(vip), vip.is_null()),
        (cb.is_not_null(Task.node), Task.node.is_not_null()),
        (cb.and_(TRUE, FALSE), And((TRUE, FALSE))),
        (cb.or_(TRUE, FALSE), TRUE | FALSE),
        (cb.not_(TRUE), ~TRUE),
        (cb.conjunction(), And(())),
        (cb.disjunction(), Or(())),
    ],
)
def test_both_spellings_agree(in_jpa_style: Predicate, in_python: Predicate) -> None:
    """C3: every operator has both spellings, and they build equal trees."""
    assert in_jpa_style == in_python


def test_where_narrows() -> None:
    """Section 1: `where` takes a predicate or a function of `cb`, and adds to what is there."""
    charge, large = Task.step == "charge", total >= 1000
    criteria = QueueCriteria.from_("payments").where(charge).where(lambda cb: cb.greater_than_or_equal_to(total, 1000))
    assert criteria == QueueCriteria("payments", charge & large)
    assert QueueCriteria("payments").where(lambda cb: cb.conjunction()).predicate == TRUE


def test_where_refuses_what_is_no_predicate() -> None:
    """C6: at once, with the path, also when it would be added to another predicate."""
    true: Any = True  # Any: what a caller without a type checker may pass
    conditions: list[Any] = [true, lambda cb: true, lambda cb: None]
    for criteria in (QueueCriteria("q"), QueueCriteria("q", TRUE)):
        for condition in conditions:
            with pytest.raises(CriteriaError) as refused:
                criteria.where(condition)
            assert refused.value.path == "/where"


def test_criteria_are_values() -> None:
    """Section 2: equal when written alike, usable as keys; the fingerprint does not know the queue."""
    one, other = QueueCriteria("q", Task.step == "a"), QueueCriteria("q", Task.step == "a")
    assert one == other
    assert len({one, other, QueueCriteria("p", Task.step == "a")}) == 2
    assert one.fingerprint == QueueCriteria("p", Task.step == "a").fingerprint
    assert QueueCriteria("q").normal == TRUE


@pytest.mark.parametrize("queue", ["", "a\nb", "a\0", "\ud800", "q" * 256, "\x7f", "\x85", None, 5])
def test_queue_names(queue: Any) -> None:  # Any: what a caller without a type checker may pass
    """C7: 1 to 255 code points that can be stored and printed."""
    with pytest.raises(CriteriaError) as refused:
        QueueCriteria(queue)
    assert refused.value.path == "/queue"


def test_queue_names_may_be_of_any_script() -> None:
    """C7: 255 code points, spaces and astral characters included."""
    assert QueueCriteria("\U0001f600" * 255).queue == "\U0001f600" * 255
    assert QueueCriteria("my queue/ü").queue == "my queue/ü"
