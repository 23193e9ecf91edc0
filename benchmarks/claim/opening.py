"""What opening lanes costs: one over the whole depth, a thousand in one pass, and others who claim and enqueue then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.claim.measuring import LIMIT, Shape, claim_by_all, settle_lanes
from benchmarks.claim.other import OtherClient, other_client
from benchmarks.claim.places import Place
from benchmarks.claim.shapes import BY_HAND
from benchmarks.report import p99
from wiggle_core.engine.routes import route_of
from wiggle_core.stores.lanes import LaneState


@dataclass(frozen=True, slots=True)
class Opening:
    """How long it took to open lanes, in seconds, how much of that this process computed, and what the other client
    noticed: the p99 in milliseconds of its claims and enqueues, and how many of both there were. None where no other
    process can come."""

    lanes: int
    seconds: float
    own_cpu_seconds: float
    claim_p99_ms: float | None = None
    enqueue_p99_ms: float | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, in seconds of the epoch, and the seconds that this process computed in it."""

    since: float
    until: float
    cpu: float


def measure_openings(place: Place, family: Shape | None, quiet_seconds: float) -> list[Opening]:
    """First a time without any lane, then one lane opened by hand, which is closed again, then those of a family, by
    the engine's own decision, and so with its probes.

    The seconds of the first are how long the other client was watched.
    """
    windows: list[tuple[int, Window]] = []
    with _beside(place) as other:
        windows.append((0, _window(lambda: time.sleep(quiet_seconds))))
        windows.append((1, _window(lambda: _open_one(place))))
        place.engine.lanes.close([info.lane.id for info in place.engine.lanes.infos()])
        if family is not None:
            claim_by_all(place.engine, family)
            windows.append((len(family.routes), _window(lambda: settle_lanes(place.engine))))
            family.found.clear()  # the other client had some of the tasks
    return [_opening(lanes, window, other) for lanes, window in windows]


@contextmanager
def _beside(place: Place) -> Iterator[OtherClient | None]:
    if place.url is None:
        yield None
        return
    with other_client(place.url, LIMIT) as other:
        yield other


def _window(run: Callable[[], object]) -> Window:
    began, cpu = time.time(), time.process_time()
    run()
    return Window(began, time.time(), time.process_time() - cpu)


def _open_one(place: Place) -> None:
    opened = place.engine.lanes.open([route_of(BY_HAND)], "benchmark", patience=60)
    if [lane.state for lane in opened] != [LaneState.OPEN]:
        raise AssertionError("the lane did not open")


def _opening(lanes: int, window: Window, other: OtherClient | None) -> Opening:
    seconds = window.until - window.since
    if other is None:
        return Opening(lanes, seconds, window.cpu)
    claims, enqueues = (other.within(kind, window.since, window.until) for kind in ("claim", "enqueue"))
    return Opening(lanes, seconds, window.cpu, _p99_ms(claims), _p99_ms(enqueues), len(claims) + len(enqueues))


def _p99_ms(seconds: list[float]) -> float | None:
    return p99(seconds) * 1e3 if seconds else None
