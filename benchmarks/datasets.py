"""The tasks and criteria that the benchmarks share: orders of a shop, the same for every run of one size."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import TaskRecord

QUEUE, WORKFLOW, VERSION = "payments", "orders", 1
SEED = 20131231
STEPS = ("charge", "charge", "charge", "refund", "capture")
REGIONS = ("eu", "eu", "eu", "us", "us", "us", "us", "apac", "apac", "latam")

ATTRIBUTES = (
    Attribute("region", str, "customer.region"),
    Attribute("tier", str, "customer.tier"),
    Attribute("total", Decimal, "total"),
    Attribute("items", int, "items"),
    Attribute("express", bool, "shipping.express"),
)
"""Five, one of them two levels down in each of two objects: what an order of the README's example carries."""

region = Task.attr("region", str)
tier = Task.attr("tier", str)
total = Task.attr("total", Decimal)
items = Task.attr("items", int)
express = Task.attr("express", bool)

COMMON = QueueCriteria(QUEUE, region == "eu")
"""Matches 30 % of the tasks."""


def order(random: Random) -> dict[str, object]:
    """The payload of one order, about 230 bytes of JSON."""
    return {
        "customer": {
            "id": random.randrange(10**6),
            "region": random.choice(REGIONS),
            "tier": random.choice(("gold", "silver", "basic")),
        },
        "total": random.randrange(100, 500_000) / 100,
        "items": random.randrange(1, 12),
        "shipping": {"express": random.random() < 0.2, "street": f"{random.randrange(1, 200)} Long Street"},
        "note": "leave it with the neighbour if nobody is at home",
    }


def orders(count: int, *, seed: int = SEED) -> Iterator[NewTask]:
    """Tasks as a client would enqueue them."""
    random = Random(seed)
    for number in range(count):
        payload = order(random)
        yield NewTask(
            queue=QUEUE,
            step=random.choice(STEPS),
            payload=payload,
            workflow=WORKFLOW,
            version=VERSION,
            correlation_id=f"{random.choice(REGIONS)}-{number}",
        )


def records(count: int, *, seed: int = SEED) -> list[TaskRecord]:
    """Tasks as a store returns them, with the attributes of `ATTRIBUTES` that evaluation reads."""
    random = Random(seed)
    found = []
    for number in range(count):
        attributes = {
            "region": random.choice(REGIONS),
            "tier": random.choice(("gold", "silver", "basic")),
            "total": Decimal(random.randrange(100, 500_000)) / 100,
            "items": random.randrange(1, 12),
            "express": random.random() < 0.2,
        }
        found.append(
            TaskRecord(
                id=f"{number:012d}",
                queue=QUEUE,
                step=random.choice(STEPS),
                created_at=1_700_000_000_000_000 + number,
                ready_at=1_700_000_000_000_000 + number,
                attributes=attributes,
                attempt=random.randrange(1, 6),
                workflow=WORKFLOW,
                version=VERSION,
                correlation_id=f"{random.choice(REGIONS)}-{number}",
            )
        )
    return found
