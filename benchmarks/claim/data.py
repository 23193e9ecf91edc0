"""The tasks that claims are measured on: one queue of orders, the same for every run of one seed and depth.

Whoever looks for the newest tasks finds them behind all others: only the newest hundredth is late, and only the newest
hundred have version 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from random import Random

from wiggle_core import Engine
from wiggle_core.criteria.fields import Task
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.submission import NewTask

QUEUE = WORKFLOW = "orders"
STEPS = ("charge", "refund", "capture", "ship")
TENANTS = 1_000
MAX_CENTS = 200_000
NEWEST = 100
"""How many tasks have version 2."""

ATTRIBUTES = (
    Attribute("region", str, "customer.region"),
    Attribute("tenant", str, "customer.tenant"),
    Attribute("total", Decimal, "total"),
    Attribute("late", str, "late"),
    Attribute("vip", bool, "customer.vip"),
    Attribute("due", datetime, "due"),
)

region = Task.attr("region", str)
tenant = Task.attr("tenant", str)
total = Task.attr("total", Decimal)
late = Task.attr("late", str)

_FIRST_DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)


def tenant_name(number: int) -> str:
    """The tenant of a number from 0 to 999."""
    return f"tenant-{number:03d}"


def declare(engine: Engine) -> None:
    """The attributes of both versions."""
    for version in (1, 2):
        engine.declare(WORKFLOW, version=version, attributes=ATTRIBUTES)


def orders(depth: int, seed: int, *, prefix: str = "order", has_newest: bool = True) -> Iterator[NewTask]:
    """So many tasks, oldest first. Without `has_newest` none is late and all have version 1, as in the middle of the
    queue; `prefix` begins their ids."""
    random = Random(seed)
    late_from, new_from = (depth - depth // 100, depth - NEWEST) if has_newest else (depth, depth)
    for number in range(depth):
        yield NewTask(
            queue=QUEUE,
            step=random.choice(STEPS),
            payload=_payload(random, is_late=number >= late_from),
            workflow=WORKFLOW,
            version=2 if number >= new_from else 1,
            correlation_id=_correlation_id(random, number),
            id=f"{prefix}-{number:08d}",
        )


def _payload(random: Random, *, is_late: bool) -> dict[str, object]:
    due = _FIRST_DAY + timedelta(minutes=random.randrange(365 * 24 * 60))
    payload: dict[str, object] = {
        "customer": {
            "region": _one_of(random, "eu", "us", "ap"),
            "tenant": tenant_name(random.randrange(TENANTS)),
            "vip": random.random() < 0.05,
        },
        "total": random.randint(0, MAX_CENTS) / 100,
        "due": due.isoformat(),
        "street": f"{random.randrange(1, 200)} Long Street",
    }
    return payload | {"late": "yes"} if is_late else payload


def _one_of(random: Random, first: str, second: str, third: str) -> str:
    """The first one in 30 % of the cases, the others in 35 % each."""
    drawn = random.random()
    return first if drawn < 0.3 else second if drawn < 0.65 else third


def _correlation_id(random: Random, number: int) -> str | None:
    if random.random() < 0.1:
        return None
    # A third of the remaining nine tenths.
    return f"{random.choice(('eu', 'us', 'ap'))}-{number}"
