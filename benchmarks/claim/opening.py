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
    """How long it took to open lanes, in seconds, and what the other client noticed: the p99 in milliseconds of its
    claims and enqueues, and how many of both there were. None where no other process can come."""

    lanes: int
    seconds: float
    claim_p99_ms: float | None = None
    enqueue_p99_ms: float | None = None
    calls: int = 0


def measure_openings(place: Place, family: Shape | None, quiet_seconds: float) -> list[Opening]:
    """First a time without any lane, then one lane opened by hand, which is closed again, then those of a family, by
    the engine's own decision, and so with its probes.

    The seconds of the first are how long the other client was watched.
    """
    windows: list[tuple[int, tuple[float, float]]] = []
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


def _window(run: Callable[[], object]) -> tuple[float, float]:
    began = time.time()
    run()
    return began, time.time()


def _open_one(place: Place) -> None:
    opened = place.engine.lanes.open([route_of(BY_HAND)], "benchmark", patience=60)
    if [lane.state for lane in opened] != [LaneState.OPEN]:
        raise AssertionError("the lane did not open")


def _opening(lanes: int, window: tuple[float, float], other: OtherClient | None) -> Opening:
    seconds = window[1] - window[0]
    if other is None:
        return Opening(lanes, seconds)
    claims, enqueues = other.within("claim", window), other.within("enqueue", window)
    return Opening(lanes, seconds, _p99_ms(claims), _p99_ms(enqueues), len(claims) + len(enqueues))


def _p99_ms(seconds: list[float]) -> float | None:
    return p99(seconds) * 1e3 if seconds else None
