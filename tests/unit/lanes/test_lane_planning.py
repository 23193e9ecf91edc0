"""Walk or lane (N4): probing, opening, using and closing lanes, over the reference store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from wiggle_core.conformance.plugin import ManualClock
from wiggle_core.criteria import QueueCriteria, Task
from wiggle_core.engine.engine import Engine
from wiggle_core.engine.routes import route_of
from wiggle_core.errors import InvalidSetting, StaleLanes, TransientStoreError
from wiggle_core.lanes import keeper, planner
from wiggle_core.lanes.planner import LanePolicy, Planner
from wiggle_core.settings import Settings
from wiggle_core.stores.lanes import NO_LANES, LaneState, Placed
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import ClaimRequest
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import TaskRecord

RARE = QueueCriteria("q", Task.step == "rare")
COMMON = QueueCriteria("q", Task.step == "common")
DEPTH = 3 * planner.PROBE_ROWS


class Watched(MemoryStore):
    """A store that notes by which lane each claim went."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.by_lane: list[int | None] = []

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        claimed = super().claim(request)
        self.by_lane += [route.lane for route in request.routes]
        return claimed


class Seconds:
    """A monotonic clock that tests move."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Watched:
    return Watched(clock)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """The time of planner and keeper."""
    moved = Seconds()
    monkeypatch.setattr(Planner.__init__, "__defaults__", (moved,))
    monkeypatch.setattr(keeper.LaneKeeper.__init__, "__defaults__", (moved,))
    return moved


@pytest.fixture
def engine_of(store: Watched, seconds: Seconds) -> Callable[[str], Engine]:
    """Engines over the store, by policy."""
    return lambda policy: Engine(store, settings=Settings(lanes=LanePolicy(policy)))


def fill(engine: Engine, depth: int, step: str = "common") -> None:
    engine.enqueue_many(NewTask("q", step) for _ in range(depth))


def claim(engine: Engine, criteria: QueueCriteria = RARE, limit: int = 10) -> list[TaskRecord]:
    return engine.claim("w", [criteria], limit=limit)


def test_a_rare_criteria_in_use_gets_a_lane(
    engine_of: Callable[[str], Engine], store: Watched, seconds: Seconds
) -> None:
    """N4: it walks until its lane is open, and then reads the lane; hits are counted."""
    engine = engine_of("auto")
    fill(engine, DEPTH)
    fill(engine, 12, "rare")
    assert engine.lanes.infos() == []
    engine.lanes.care()
    assert engine.lanes.infos() == [], "nobody uses it"
    assert len(claim(engine)) == 10
    engine.lanes.care()
    (info,) = engine.lanes.infos()
    assert (info.lane.state, info.lane.is_pinned, info.size) == (LaneState.OPEN, False, 2)
    assert info.lane.reason == f"0 of the first {planner.PROBE_ROWS} ready tasks match"
    assert len(claim(engine)) == 2
    assert store.by_lane == [None, info.lane.id]
    seconds.now += keeper.NOTE_SECONDS
    engine.lanes.care()
    assert engine.lanes.infos()[0].lane.hits == 2
    assert store.audit() == []


def test_a_common_criteria_walks(engine_of: Callable[[str], Engine], store: Watched) -> None:
    """N4: where many of the first tasks match, and for everything on a queue, no lane is opened."""
    engine = engine_of("auto")
    fill(engine, DEPTH)
    for criteria in (COMMON, QueueCriteria("q")):
        assert len(claim(engine, criteria)) == 10
        engine.lanes.care()
    assert engine.lanes.infos() == []
    assert engine.lanes.verdict(route_of(COMMON)).plan == "walk"
    assert store.by_lane == [None, None]


def test_a_shallow_queue_is_walked_until_its_claims_become_slow(
    engine_of: Callable[[str], Engine], seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a criteria is probed again when its walks take long, but not all the time."""
    engine = engine_of("auto")
    fill(engine, 100)
    claim(engine)
    engine.lanes.care()
    assert "fewer" in engine.lanes.verdict(route_of(RARE)).reason
    fill(engine, DEPTH)
    claim(engine)
    engine.lanes.care()
    assert engine.lanes.infos() == [], "no claim was slow"
    monkeypatch.setattr(planner, "SLOW_SECONDS", 0.0)
    claim(engine)
    engine.lanes.care()
    assert engine.lanes.infos() == [], "it was probed a moment ago"
    seconds.now += planner.PROBE_AGAIN_SECONDS
    claim(engine)
    engine.lanes.care()
    assert len(engine.lanes.infos()) == 1


def test_with_on_every_criteria_has_a_lane(engine_of: Callable[[str], Engine], store: Watched) -> None:
    """N4: WIGGLE_LANES=on opens a lane for each criteria in use, common ones too."""
    engine = engine_of("on")
    fill(engine, 5)
    claim(engine, COMMON, 1)
    engine.lanes.care()
    assert len(claim(engine, COMMON)) == 4
    assert store.by_lane == [None, 1]
    assert engine.lanes.infos()[0].lane.reason == "WIGGLE_LANES=on"


def test_with_off_everything_walks_and_lanes_stay_exact(engine_of: Callable[[str], Engine], store: Watched) -> None:
    """N4, N1: an engine without lanes opens and reads none, but puts its tasks into those that others opened."""
    on, off = engine_of("on"), engine_of("off")
    claim(on)
    on.lanes.care()
    fill(off, 3, "rare")
    assert store.audit() == []
    assert len(claim(off, RARE, 1)) == 1
    assert len(claim(on, RARE)) == 2
    assert store.by_lane == [None, None, 1]
    off.lanes.care()


@pytest.mark.parametrize("given", ["yes", "AUTO", "2"])
def test_another_policy_is_refused(given: str) -> None:
    with pytest.raises(InvalidSetting, match="WIGGLE_LANES"):
        Settings.from_environment({"WIGGLE_LANES": given})


def test_lanes_without_a_worker_close(
    engine_of: Callable[[str], Engine], store: Watched, clock: ManualClock, seconds: Seconds
) -> None:
    """N4: one in use stays, one without a worker for ten minutes closes, one opened by hand stays."""
    engine = engine_of("on")
    by_hand = QueueCriteria("q", Task.step == "by hand")
    idle = QueueCriteria("q", Task.step == "idle")
    for criteria in (RARE, idle):
        claim(engine, criteria)
    engine.lanes.care()
    engine.lanes.open([route_of(by_hand)])
    for _ in range(12):
        seconds.now += 60
        clock.move(60)
        claim(engine)
        engine.lanes.care()
    assert [info.lane.predicate for info in engine.lanes.infos()] == [RARE.normal, by_hand.normal]
    fill(engine, 1, "idle")
    assert len(claim(engine, idle)) == 1
    assert store.audit() == []


def test_a_lane_that_closed_meanwhile_is_no_empty_queue(engine_of: Callable[[str], Engine], store: Watched) -> None:
    """N3: a claim planned by a lane that is gone is planned anew, and finds its tasks by a walk."""
    engine, other = engine_of("auto"), engine_of("auto")
    fill(engine, 3, "rare")
    (lane,) = engine.lanes.open([route_of(RARE)])
    assert len(claim(engine, RARE, 1)) == 1
    assert [each.id for each in other.lanes.close([lane.id])] == [lane.id]
    assert len(claim(engine)) == 2
    assert store.by_lane == [lane.id, None]


def test_opening_twice_is_opening_once(engine_of: Callable[[str], Engine]) -> None:
    """N3: a lane that is there is pinned and returned; its epoch stays."""
    engine, other = engine_of("on"), engine_of("auto")
    claim(engine)
    engine.lanes.care()
    (first,) = other.lanes.open([route_of(RARE)])
    (second,) = engine.lanes.open([route_of(RARE)])
    assert first == second
    assert (first.is_pinned, first.epoch) == (True, 1)


def test_lanes_beyond_the_limit_walk_and_say_so(
    engine_of: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a queue that has its lanes gets no more."""
    monkeypatch.setattr(planner, "MAX_LANES", 2)
    engine = engine_of("on")
    for number in range(3):
        claim(engine, QueueCriteria("q", Task.step == f"s{number}"))
    for _ in range(2):
        engine.lanes.care()
    assert len(engine.lanes.infos()) == 2
    assert "has 2 lanes" in engine.lanes.verdict(route_of(QueueCriteria("q", Task.step == "s2"))).reason


class AlwaysStale(MemoryStore):
    """A store whose lanes change before every call."""

    calls = 0

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[str]:
        self.calls += 1
        raise StaleLanes


def test_placing_gives_up_at_some_time() -> None:
    """N3: an enqueue does not go on for ever, and nothing was stored."""
    store = AlwaysStale()
    with pytest.raises(TransientStoreError, match="lanes"):
        Engine(store).enqueue("q", "s")
    assert store.calls > 2


def test_claims_stay_in_order_over_lanes_and_walks(engine_of: Callable[[str], Engine]) -> None:
    """O1, N4: one claim over a queue with a lane and one without."""
    engine = engine_of("auto")
    for number in range(20):
        engine.enqueue("q" if number % 2 else "other", "rare", priority=number % 5)
    engine.lanes.open([route_of(RARE)])
    claimed = engine.claim("w", [RARE, QueueCriteria("other")], limit=20)
    assert len(claimed) == 20
    assert all(left.order_key < right.order_key for left, right in pairwise(claimed))
