"""Heads of queues: how they are told from other lanes, filled, moved and closed, over the reference store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wiggle_core.conformance.laned import Laned
from wiggle_core.conformance.plugin import START, ManualClock, make_task
from wiggle_core.criteria import QueueCriteria, Task
from wiggle_core.criteria.instants import from_micros
from wiggle_core.criteria.tree import Predicate, normalize
from wiggle_core.engine.engine import Engine
from wiggle_core.engine.routes import route_of
from wiggle_core.lanes import filling, keeper
from wiggle_core.lanes.heads import before, head_of, open_heads
from wiggle_core.lanes.planner import LanePolicy
from wiggle_core.settings import Settings
from wiggle_core.stores.lanes import Head, Lane, LaneId, LaneState, NewLane
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.memory_lanes import MemoryLanes
from wiggle_core.stores.store import Capabilities, ClaimRequest
from wiggle_core.tasks.outcome import Done
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import OrderKey, TaskRecord

ALL = QueueCriteria("q")
BOUND = from_micros(START)


class Uncleaned(MemoryLanes):
    """Lanes of a store in which a walk passes by all that was ever READY on the queue, a page each."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]  # handed on as they came
        self.entered: set[OrderKey] = set()

    def enter(self, task: TaskRecord, lanes: object) -> None:
        self.entered.add(task.order_key)
        super().enter(task, lanes)  # type: ignore[arg-type]  # as above

    def passed(self, queue: str, head: Head | None) -> int:
        first = min(self._ready.get(queue, []), default=None)
        return sum((first is None or key < first) and (head is None or not head.is_before(key)) for key in self.entered)


class UncleanedStore(MemoryStore):
    """It tells by which head each claim went, and may have none."""

    has_heads = True

    def __init__(self) -> None:
        self.moved = ManualClock()
        super().__init__(self.moved)
        self.uncleaned = self._lanes = Uncleaned(self._lock, self._clock, self._live, self._ready)
        self.by_head: list[LaneId | None] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, heads=self.has_heads)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        self.by_head += [None if route.head is None else route.head.lane for route in request.routes]
        return super().claim(request)


class Place:
    """An engine over such a store, and a way through the days."""

    def __init__(self, policy: LanePolicy = LanePolicy.AUTO, store: UncleanedStore | None = None) -> None:
        self.store = store or UncleanedStore()
        self.engine = Engine(self.store, settings=Settings(lanes=policy))

    def work(self, number: int, criteria: QueueCriteria = ALL, limit: int = 50) -> None:
        """Enqueue, claim and finish tasks."""
        self.store.moved.move(1)
        self.engine.enqueue_many(NewTask("q", "s") for _ in range(number))
        while held := self.engine.claim("w", [criteria], limit=limit):
            self.engine.settle_many([(task, Done()) for task in held])

    def care(self) -> list[Lane]:
        """What is open once the keeper has looked."""
        self.engine.lanes._looked_at = float("-inf")
        self.engine.lanes.care()
        return [info.lane for info in self.engine.lanes.infos()]

    def tidy(self) -> list[Lane]:
        self.engine.lanes._tidied_at = float("-inf")
        return self.care()


# What is a head


def lane_of(predicate: Predicate, lane: LaneId = 1, queue: str = "q", state: LaneState = LaneState.OPEN) -> Lane:
    return Lane(lane, queue, normalize(predicate), state, 1, "", False, 0, 0)


@pytest.mark.parametrize("priority", [0, 1, 7, 2**31 - 1])
@pytest.mark.parametrize("created_at", [0, 1, START, 253_402_300_799_999_999])
def test_a_head_is_known_by_its_predicate(priority: int, created_at: int) -> None:
    """PG4: the lane of all before a bound is a head, with that bound."""
    assert head_of(lane_of(before(priority, created_at), 5)) == Head(5, priority, created_at)


@pytest.mark.parametrize(
    "predicate",
    [
        Task.priority < 3,
        (Task.priority < 3) & (Task.created_at < BOUND),
        (Task.priority < 3) | (Task.created_at < BOUND),
        (Task.priority < 3) | ((Task.priority == 4) & (Task.created_at < BOUND)),
        (Task.priority <= 3) | ((Task.priority == 3) & (Task.created_at < BOUND)),
        (Task.priority < 3) | ((Task.priority == 3) & (Task.created_at <= BOUND)),
        (Task.priority < 3) | ((Task.priority == 3) & ~(Task.created_at < BOUND)),
        (Task.attempt < 3) | ((Task.priority == 3) & (Task.created_at < BOUND)),
        (Task.priority < 3) | ((Task.priority == 3) & (Task.created_at < BOUND)) | (Task.step == "s"),
        Task.step == "s",
    ],
    ids=str,
)
def test_other_lanes_are_no_heads(predicate: Predicate) -> None:
    """PG4: a lane that lacks tasks before a bound, or has others, is not taken for a head."""
    assert head_of(lane_of(predicate)) is None


def test_the_last_open_head_counts() -> None:
    """PG4: of several heads of a queue claims go by the one opened last, as soon as it is open."""
    lanes = [
        lane_of(before(0, 9), 3),
        lane_of(before(0, 5), 2),
        lane_of(before(0, 7), 4, state=LaneState.FILLING),
        lane_of(before(0, 1), 5, queue="other"),
        lane_of(Task.step == "s", 6),
    ]
    assert open_heads(lanes) == {"q": Head(3, 0, 9), "other": Head(5, 0, 1)}


def test_filling_a_head_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """PG4: a head is filled by reading the queue as far as its bound; with other lanes, to the end."""
    monkeypatch.setattr(filling, "PART", 10)
    store, read = MemoryStore(ManualClock()), list[OrderKey | None]()
    store.enqueue([make_task(f"{each:03d}", queue="q", created_at=each // 2) for each in range(100)])
    actual = store.lanes.ready_tasks

    def noted(queue: str, matching: list[Predicate], after: OrderKey | None, size: int) -> object:
        read.append(after)
        return actual(queue, matching, after, size)

    monkeypatch.setattr(store.lanes, "ready_tasks", noted)
    filling.complete(store.lanes, store.lanes.open([NewLane("q", before(0, 12), "")]), 1)
    assert (len(read), store.lanes.sizes([1], 99)) == (3, {1: 24})
    others = store.lanes.open([NewLane("q", before(0, 9), ""), NewLane("q", normalize(Task.step == "charge"), "")])
    read.clear()
    filling.complete(store.lanes, others, 1)
    assert (len(read), store.lanes.sizes([2, 3], 999)) == (11, {2: 18, 3: 100})
    assert store.audit() == []


# The keeper


def test_a_head_moves_on_as_much_is_passed_by() -> None:
    """PG4, N5: it opens where walks pass by MOVED_PAGES, with or without criteria, and moves when they do again."""
    place = Place()
    place.work(keeper.MOVED_PAGES - 1)
    assert place.care() == []
    place.work(1)
    [first] = place.care()
    assert first.reason == f"the head of the queue, where walks had passed by {keeper.MOVED_PAGES} pages"
    place.work(keeper.MOVED_PAGES // 2, QueueCriteria("q", Task.step == "s"))
    assert place.care() == [replace(first, used_at=first.used_at)]
    place.work(keeper.MOVED_PAGES)
    [second] = place.care()
    assert second.id > first.id
    assert {first.id, None} <= set(place.store.by_head)
    verdict = place.engine.lanes.verdict(route_of(ALL))
    assert (verdict.plan, verdict.head) == ("walk", head_of(second))
    assert place.store.audit() == []


def test_a_head_is_bound_by_a_ready_task_not_far_behind() -> None:
    """PG4: of many READY tasks those behind HEAD_TASKS of them stay out of it."""
    place = Place()
    place.store.uncleaned.entered.update(OrderKey(0, each, 0, "gone") for each in range(keeper.MOVED_PAGES))
    place.store.enqueue([make_task(f"{each:04d}", queue="q", created_at=START + each) for each in range(900)])
    assert len(place.engine.claim("w", [ALL], limit=5)) == 5
    [lane] = place.care()
    assert head_of(lane) == Head(lane.id, 0, START + 4 + keeper.HEAD_TASKS)
    assert place.store.lanes.sizes([lane.id], 999) == {lane.id: keeper.HEAD_TASKS - 1}


def test_without_a_place_to_end_no_head_opens() -> None:
    """PG4: where no task is READY, and none was claimed since, it is not known how far a head should go."""
    place = Place()
    place.work(keeper.MOVED_PAGES)
    place.engine._planner.walked()
    assert place.engine.claim("w", [ALL], limit=1) == []
    assert place.care() == []


@pytest.mark.parametrize("policy", list(LanePolicy))
@pytest.mark.parametrize("has_heads", [True, False])
def test_heads_are_for_stores_and_policies_that_have_them(
    policy: LanePolicy, has_heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PG4, N4: with the policy `off`, or on a store that does not claim by heads, none is opened or used, not even
    one that was opened by hand."""
    monkeypatch.setattr(UncleanedStore, "has_heads", has_heads)
    place = Place(policy)
    place.work(2 * keeper.MOVED_PAGES)
    wanted = has_heads and policy is not LanePolicy.OFF
    assert bool(place.care()) is wanted
    Place(store=place.store).engine.lanes.open([route_of(QueueCriteria("q", before(0, START)))])
    place.engine.lanes.care()
    place.work(1)
    assert any(place.store.by_head) is wanted
    assert (place.engine.lanes.verdict(route_of(ALL)).head is not None) is wanted


def test_a_head_closes_where_it_spares_nothing() -> None:
    """PG4: when what was passed by is cleaned away the head closes, but not one that was opened by hand."""
    place = Place()
    place.work(keeper.MOVED_PAGES)
    assert len(place.tidy()) == 1
    place.store.uncleaned.entered.clear()
    assert place.tidy() == []
    [kept] = place.engine.lanes.open([route_of(QueueCriteria("q", before(0, START)))])
    assert [lane.id for lane in place.tidy()] == [kept.id]


def test_a_head_in_use_is_not_idle() -> None:
    """PG4, N4: tasks claimed through a head are its hits, and it is in use as long as its queue is walked."""
    place = Place()
    place.work(keeper.MOVED_PAGES)
    [lane] = place.care()
    bound = head_of(lane)
    assert bound is not None
    early = make_task("early", queue="q", created_at=bound.created_at - 1)
    assert Laned.over(place.store).enqueue([early]) == {"early"}
    place.work(1)
    assert place.engine._planner.take_hits() == {lane.id: 1}
    place.engine.claim("w", [ALL], limit=1)
    assert place.engine._planner.take_hits() == {lane.id: 0}
