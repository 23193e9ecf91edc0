"""`python -m benchmarks claim`: what a claim by each shape of criteria costs on a store, with lanes and without.

In one run, in an empty store of its own: load the tasks, open lanes beside another client, claim by all shapes in turn,
write beside lanes. Goals are ratios within the run, since machines are not alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from benchmarks.claim.data import declare, orders
from benchmarks.claim.measuring import Effort, Shape, make_shapes, measure, warm_up
from benchmarks.claim.opening import Opening, measure_openings
from benchmarks.claim.places import Place, scratch
from benchmarks.claim.results import Results, judge
from benchmarks.claim.shapes import FAMILY, NONE, SHAPES
from benchmarks.claim.table import show
from benchmarks.claim.writing import measure_writing
from benchmarks.report import Report
from wiggle_core.lanes.planner import LanePolicy


@dataclass(frozen=True, slots=True)
class Run:
    """What is asked for. `claims` by each shape, but none after `seconds` of claiming by one; `written` tasks in each
    of `rounds`; `quiet` seconds of the other client before any lane is opened."""

    url: str
    depth: int
    policy: LanePolicy = LanePolicy.AUTO
    seed: int = 1
    shapes: Sequence[str] = tuple(SHAPES)
    claims: int = 300
    seconds: float = 20.0
    written: int = 10_000
    rounds: int = 6
    quiet: float = 10.0


def run(report: Report, asked: Run, console: Console) -> Results:
    """Measure, print and judge. Raises as `open_store` does."""
    report.head(f"Loading {asked.depth:,} tasks")
    with scratch(asked.url, asked.policy) as place:
        load_per_s = _load(place, asked)
        report.figure("Engine.enqueue_many, making the tasks included", load_per_s, "tasks/s")
        shapes = make_shapes({name: SHAPES[name] for name in SHAPES if name in {NONE, *asked.shapes}})
        openings = _open(report, place, asked, shapes)
        report.note("claiming by every shape in turn")
        warm_up(place.engine, shapes)
        bare = measure(place, shapes, Effort(asked.claims, asked.seconds), asked.seed)
        name, server, settings, has_lanes = place.name, place.server, place.settings, place.has_lanes
        is_judged = place.engine.store.capabilities.durable
    report.note("writing beside lanes")
    write = measure_writing(asked.url, asked.written, asked.rounds, asked.seed)
    results = Results(
        name, server, settings, asked.depth, asked.seed, asked.policy, has_lanes, is_judged, load_per_s,
        shapes, bare, openings, write,
    )  # fmt: skip
    show(report, console, results)
    judge(report, results)
    return results


def _load(place: Place, asked: Run) -> float:
    declare(place.engine)
    started = time.perf_counter()
    place.engine.enqueue_many(orders(asked.depth, asked.seed))
    return asked.depth / (time.perf_counter() - started)


def _open(report: Report, place: Place, asked: Run, shapes: Sequence[Shape]) -> list[Opening]:
    if not place.has_lanes:
        report.note(f"the store {place.name} has no lanes: every claim walks")
    if not place.has_lanes or asked.policy is LanePolicy.OFF:
        return []
    report.note("opening lanes beside another client")
    return measure_openings(place, next((shape for shape in shapes if shape.name == FAMILY), None), asked.quiet)
