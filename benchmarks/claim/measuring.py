"""Claims of ten by every shape of criteria, in one run.

The shapes take turns: each round has one claim of each, in an order drawn anew, so that a slow spell of the machine, a
vacuum or a checkpoint hits all alike. What was claimed is given back by the engine after each claim, unmeasured, which
restores the order; the dead rows that this leaves lie where the next claims look, as in a queue in use. Between rounds
lanes are cared for as a worker does it. Every claim was made before, so caches are warm; Python's garbage collector is
off while a claim runs, for it counts objects of the benchmark too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from benchmarks.bare import LEASE
from benchmarks.claim.data import QUEUE
from benchmarks.claim.places import Place
from benchmarks.claim.shapes import NONE
from wiggle_core import Engine, QueueCriteria, Release
from wiggle_core.engine.routes import plan
from wiggle_core.stores.lanes import LaneId, LaneState
from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import TaskId, TaskRecord

LIMIT = 10
LEAST = 5
"""How many claims are made by the slowest shape."""
EXPLAINED = 9
"""Of how many claims by a shape it is asked what they read."""
REST_SECONDS = 0.2
"""A store may delete the dead rows that a claim met a little later, or the next claim does."""


@dataclass(slots=True)
class Shape:
    """One shape, and what was measured of it: the seconds of each claim, and the tasks that all claimed."""

    name: str
    routes: Sequence[Route]
    plan: str = ""
    seconds: list[float] = field(default_factory=list)
    claimed: int = 0
    rows_read: list[int] = field(default_factory=list)
    """By claims while no others are made, when the dead rows of their lanes are gone."""
    rows_in_turn: list[int] = field(default_factory=list)
    """By claims when it was their turn, dead rows of lanes among them: a task that is claimed another way and given
    back leaves one behind in each of its lanes, and the lane's next claim reads and deletes it. Several shapes here
    take the same tasks."""
    found: dict[Route, list[TaskId]] = field(default_factory=dict)
    """The tasks of the first claim by each route."""


def make_shapes(criteria: dict[str, list[QueueCriteria]]) -> list[Shape]:
    """Shapes to measure, `none` first."""
    return [Shape(name, [route for each in many for route in plan([each])]) for name, many in criteria.items()]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many claims by each shape, and after how many seconds of claiming no more are made by one."""

    claims: int
    seconds: float


def warm_up(engine: Engine, shapes: Sequence[Shape]) -> None:
    """Claim by every criteria once, so that the engine decides which of them get lanes; wait until these are open; and
    claim once more. Raises AssertionError when a claim's tasks are others than before."""
    for shape in shapes:
        claim_by_all(engine, shape)
    settle_lanes(engine)
    for shape in shapes:
        claim_by_all(engine, shape)
        plans = {engine.lanes.verdict(route).plan for route in shape.routes}
        shape.plan = plans.pop() if len(plans) == 1 else "walk"


def claim_by_all(engine: Engine, shape: Shape) -> None:
    """One claim by each criteria of a shape, its tasks given back."""
    for route in shape.routes:
        _, ids = _claim(engine, route)
        if shape.found.setdefault(route, ids) != ids:
            raise AssertionError(f"{shape.name}: {ids} were claimed, and {shape.found[route]} before")


def settle_lanes(engine: Engine) -> None:
    """Care for the lanes, as a worker does again and again, until all that are wanted are open."""
    lanes = engine.store.lanes
    if lanes is None:
        return
    engine.lanes.care()
    while any(lane.state in (LaneState.FILLING, LaneState.CLOSING) for lane in lanes.read(0).lanes):
        time.sleep(0.5)
        engine.lanes.care()


def measure(place: Place, shapes: Sequence[Shape], effort: Effort, seed: int) -> list[float]:
    """Fill in what the shapes are measured for; the seconds of claims by the bare driver, made in the same rounds."""
    random, bare, lanes = Random(seed), list[float](), _open_lanes(place.engine)
    pace = max(1, effort.claims // EXPLAINED)
    with _undisturbed():
        for number in range(effort.claims):
            for shape in random.sample(shapes, len(shapes)):
                if number < LEAST or sum(shape.seconds) < effort.seconds:
                    route = shape.routes[number % len(shape.routes)]
                    if number % pace == 0:
                        shape.rows_in_turn += _rows_read(place.engine, route, lanes)
                    seconds, ids = _claim(place.engine, route)
                    shape.seconds.append(seconds)
                    shape.claimed += len(ids)
                if shape.name == NONE and place.bare is not None:
                    bare.append(_claim_bare(place))
            place.engine.lanes.care()
            gc.collect(0)
    for shape in shapes:
        _read_at_rest(place.engine, shape, lanes)
    return bare


def _read_at_rest(engine: Engine, shape: Shape, lanes: dict[Route, LaneId]) -> None:
    for route in shape.routes[:: max(1, len(shape.routes) // EXPLAINED)]:
        for _ in range(2 if route in lanes else 0):
            _claim(engine, route)
            time.sleep(REST_SECONDS)
        shape.rows_read += _rows_read(engine, route, lanes)


def _open_lanes(engine: Engine) -> dict[Route, LaneId]:
    lanes = engine.store.lanes
    present = () if lanes is None else lanes.read(0).lanes
    return {Route(each.queue, each.predicate): each.id for each in present if each.state is LaneState.OPEN}


def _rows_read(engine: Engine, route: Route, lanes: dict[Route, LaneId]) -> list[int]:
    """How many rows a claim would read now; empty where the store cannot tell."""
    told = engine.store.explain(Route(route.queue, route.predicate, lanes.get(route)), LIMIT)
    return [] if told.rows_read is None else [told.rows_read]


def _claim(engine: Engine, route: Route) -> tuple[float, list[TaskId]]:
    started = time.perf_counter()
    tasks = engine.claim_routes("benchmark", (route,), LIMIT, LEASE)
    seconds = time.perf_counter() - started
    give_back(engine, tasks)
    return seconds, [task.id for task in tasks]


def _claim_bare(place: Place) -> float:
    assert place.bare is not None, "asked before"
    seconds, token = place.bare(QUEUE, LIMIT)
    give_back(place.engine, place.engine.store.leased(token))
    return seconds


def give_back(engine: Engine, tasks: Sequence[TaskRecord]) -> None:
    """Make claimed tasks READY again, where they were. Raises AssertionError if a lease was lost."""
    if len(engine.settle_many([(task, Release()) for task in tasks])) != len(tasks):
        raise AssertionError("a lease was lost")


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
