"""What lanes cost those who write: bulk enqueue, and claim and settle in hundreds, without lanes, beside five rare ones
and beside one for each of a thousand tenants. Each in a store of its own, in turn.

Claims without criteria leave the lane rows of their tasks behind, dead, for the lanes' own claims or for the sweep.
What it takes to delete all of them is part of the cycle here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median

from benchmarks.claim.data import QUEUE, declare, orders
from benchmarks.claim.places import Place, scratch
from benchmarks.claim.shapes import FAMILY, FIVE_RARE, SHAPES
from wiggle_core import Done, Engine, QueueCriteria
from wiggle_core.engine.routes import plan
from wiggle_core.lanes.keeper import PRUNED_ROWS
from wiggle_core.lanes.planner import LanePolicy
from wiggle_core.stores.lanes import LaneState

BATCH = 1_000
HUNDRED = 100
LEASE = timedelta(minutes=5)
_ROUTES = plan([QueueCriteria(QUEUE)])


@dataclass(slots=True)
class Writer:
    """One store, and the seconds of each round."""

    place: Place
    enqueue: list[float] = field(default_factory=list)
    cycle: list[float] = field(default_factory=list)


def measure_writing(url: str, tasks: int, rounds: int, seed: int) -> dict[str, float]:
    """Tasks a second, medians of the rounds, by `enqueue_per_s` and `cycle_per_s`, and the same with `_5_lanes` and
    `_1000_lanes` behind where the store has lanes."""
    five = [each for name in FIVE_RARE for each in SHAPES[name]]
    with ExitStack() as stack:
        writers = {"": Writer(stack.enter_context(scratch(url, LanePolicy.AUTO)))}
        if writers[""].place.has_lanes:
            for suffix, criteria in (("_5_lanes", five), ("_1000_lanes", SHAPES[FAMILY])):
                writers[suffix] = Writer(stack.enter_context(scratch(url, LanePolicy.AUTO)))
                _open(writers[suffix].place.engine, criteria)
        for writer in writers.values():
            declare(writer.place.engine)
        for number in range(-1, rounds):  # the first one is not counted
            _round(list(writers.values()), max(tasks // 10, BATCH) if number < 0 else tasks, number, seed)
        return {
            f"{name}_per_s{suffix}": tasks / median(getattr(writer, name)[1:])
            for suffix, writer in writers.items()
            for name in ("enqueue", "cycle")
        }


def _open(engine: Engine, criteria: Sequence[QueueCriteria]) -> None:
    opened = engine.lanes.open([route for each in criteria for route in plan([each])], "benchmark")
    if any(lane.state is not LaneState.OPEN for lane in opened):
        raise AssertionError("a lane did not open")


def _round(writers: Sequence[Writer], tasks: int, number: int, seed: int) -> None:
    """Everybody fills his queue and drains it; who begins changes at every round."""
    first = number % len(writers)
    for writer in (*writers[first:], *writers[:first]):
        engine, new = writer.place.engine, list(orders(tasks, seed + number, prefix=f"{number}", has_newest=False))
        started = time.perf_counter()
        engine.enqueue_many(new, batch=BATCH)
        filled = time.perf_counter()
        settled = _drain(engine)
        _prune(engine)
        writer.cycle.append(time.perf_counter() - filled)
        writer.enqueue.append(filled - started)
        left = sum(info.size for info in engine.lanes.infos()) if writer.place.has_lanes else 0
        if settled != tasks or left:
            raise AssertionError(f"of {tasks} tasks {settled} were settled, and {left} rows of lanes are left")


def _prune(engine: Engine) -> None:
    lanes = engine.store.lanes
    if lanes is not None:
        after = lanes.prune(None, PRUNED_ROWS)
        while after is not None:
            after = lanes.prune(after, PRUNED_ROWS)


def _drain(engine: Engine) -> int:
    settled = 0
    while claimed := engine.claim_routes("benchmark", _ROUTES, HUNDRED, LEASE):
        settled += len(engine.settle_many([(task, Done()) for task in claimed]))
    return settled
