"""Checks of what lanes hold (N1, N2): claims by a lane return what a walk would, whatever became of tasks meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from typing import TypeAlias

import pytest

from wiggle_core.conformance.criteria import CASE_TASKS, CASES, case_predicate
from wiggle_core.conformance.differential import Round, compare
from wiggle_core.conformance.laned import Laned, by_lane, require_lanes
from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    SECOND,
    START,
    TTL,
    ManualClock,
    are_first,
    claim,
    drain,
    ids,
    in_order,
    make_task,
    route,
    stored,
)
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.evaluate import compile_predicate, matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Value
from wiggle_core.engine.engine import Engine
from wiggle_core.lanes.matching import LaneIndex
from wiggle_core.lanes.planner import LanePolicy
from wiggle_core.settings import Settings
from wiggle_core.stores.lanes import Lane, LaneRow, LaneState
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Cancel, Expire, Finish, GiveBack, Promote, Requeue, Revive, Route, Store
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.outcome import Release, Retry
from wiggle_core.tasks.task import State, TaskId, TaskRecord

n = Task.attr("n", int)
ONE, TWO = {"n": 1}, {"n": 2}


def require_exact(laned: Laned, *lanes: Lane) -> None:
    """Fail unless these lanes hold what the evaluator says, and the store finds no fault with itself."""
    for lane in lanes:
        assert laned.content(lane) == laned.expected(lane), lane
    assert laned.store.audit() == []


# The meaning of criteria, by lanes


@pytest.mark.parametrize("is_filled", [False, True], ids=["placed", "filled"])
def test_every_named_case_by_its_lane(laned: Laned, is_filled: bool) -> None:
    """N1, C1-C8: claims by a lane give the expected ids of every named case in claim order, whether the tasks came
    before the lane or after it."""
    predicates = [case_predicate(case) for case in CASES["cases"]]
    queue = CASE_TASKS[0].queue
    if is_filled:
        laned.enqueue(CASE_TASKS)
    lanes = laned.open(*predicates, queue=queue)
    if not is_filled:
        laned.enqueue(CASE_TASKS)
    for case, lane in zip(CASES["cases"], lanes, strict=True):
        first = claim(laned.store, by_lane(lane), limit=2)
        assert are_first(laned.store, ids(first), case["expect"], 2), (case["name"], case["why"])
        rest = claim(laned.store, by_lane(lane))
        assert in_order(first + rest) == case["expect"], (case["name"], case["why"])
        laned.release(first + rest)


@pytest.mark.parametrize("seed", range(2))
def test_hostile_claims_by_lanes_agree_with_the_evaluator(laned: Laned, seed: int) -> None:
    """N1, C8: claims of any limit by the lanes of hostile predicates give the evaluator's first matches, in order."""
    findings = compare(laned.store, pairs=64 * 150, seed=seed, tasks=64, by_lanes=True)
    assert findings.disagreements == [], [each.to_object() for each in findings.disagreements[:3]]
    assert findings.by_lanes > 10


def test_walks_and_lanes_merge_in_one_claim(laned: Laned) -> None:
    """N1, O1: one claim over several queues, by a walk on some and by a lane on others, gives the evaluator's matches,
    merged."""
    hostile = Hostile(43)
    tried = [Round.begin(laned.store, hostile, serial, 24) for serial in range(4)]
    for _ in range(20):
        asked = [(each, hostile.predicate()) for each in tried]
        lanes = [laned.open(predicate, queue=each.queue)[0] for each, predicate in asked[::2]]
        walks = [route(predicate, each.queue) for each, predicate in asked[1::2]]
        limit = hostile.random.randint(1, 96)
        claimed = claim(laned.store, *map(by_lane, lanes), *walks, limit=limit)
        wanted = [task for each, predicate in asked for task in each.tasks if matches(predicate, task)]
        assert are_first(laned.store, ids(claimed), in_order(wanted), limit), asked
        laned.release(claimed)


def test_lanes_come_back_as_they_were_asked_for(laned: Laned) -> None:
    """N2, C8: lanes of hostile predicates are read back with the same predicate, so that the index over them names the
    lanes that the evaluator does."""
    hostile = Hostile(8)
    predicates = [hostile.predicate() for _ in range(150)]
    queue = hostile.queue(1)
    opened = laned.open(*predicates, queue=queue)
    lanes = {lane.id: lane for lane in laned.lanes.read(0).lanes}
    assert [lanes[lane.id].predicate for lane in opened] == [lane.predicate for lane in opened]
    assert {lane.queue for lane in lanes.values()} == {queue}
    index = LaneIndex(lanes.values(), lambda lane: compile_predicate(lane.predicate))
    for each in range(150):
        task = hostile.task(f"t{each}", queue)
        assert sorted(index.lanes_of(task)) == [lane for lane in sorted(lanes) if matches(lanes[lane].predicate, task)]


# Whatever becomes of a task

Way: TypeAlias = Callable[[Laned, ManualClock, TaskRecord, Mapping[str, Value]], set[TaskId]]


def _promoted(laned: Laned, clock: ManualClock, task: TaskRecord, attributes: Mapping[str, Value]) -> set[TaskId]:
    assert laned.apply([(Requeue(task.lease, SECOND, {"n": 7}), task)])
    clock.move(1)
    return laned.apply([(Promote(task.id, attributes), stored(laned.store, task.id))])


def _expired(laned: Laned, clock: ManualClock, task: TaskRecord, attributes: Mapping[str, Value]) -> set[TaskId]:
    clock.move(TTL / SECOND)
    return laned.apply([(Expire(task.lease, 0, attributes), task)])


def _revived(laned: Laned, _: ManualClock, task: TaskRecord, attributes: Mapping[str, Value]) -> set[TaskId]:
    assert laned.apply([(Finish(task.lease, State.FAILED), task)])
    return laned.apply([(Revive(task.id, attributes), stored(laned.store, task.id))])


def _cancelled(laned: Laned, _: ManualClock, task: TaskRecord, attributes: Mapping[str, Value]) -> set[TaskId]:
    laned.release([task])
    assert laned.apply([(Cancel(task.id), task)])
    return laned.apply([(Revive(task.id, attributes), stored(laned.store, task.id))])


WAYS: dict[str, Way] = {
    "retry": lambda laned, _, task, attributes: laned.apply([(Requeue(task.lease, 0, attributes), task)]),
    "release": lambda laned, _, task, attributes: laned.apply([(GiveBack(task.lease, attributes), task)]),
    "expiry": _expired,
    "promotion": _promoted,
    "revival": _revived,
    "cancel and revival": _cancelled,
}
"""How a claimed task becomes READY again, with other attributes."""


@pytest.mark.parametrize("is_claimed_by_lane", [False, True], ids=["walk", "lane"])
@pytest.mark.parametrize("way", WAYS)
def test_a_task_moves_from_lane_to_lane(laned: Laned, clock: ManualClock, way: str, is_claimed_by_lane: bool) -> None:
    """N1, A2: whichever way a task becomes READY again, it is in the lanes that its new attributes match, and in no
    other, however it was claimed; its old rows stay dead."""
    one, two, tried_once = laned.open(n == 1, n == 2, Task.attempt == 1)
    laned.enqueue([make_task("t", attributes=ONE)])
    for turn in range(3):
        before, after = (one, two) if turn % 2 == 0 else (two, one)
        _require_content(laned, before, after, tried_once)
        [held] = claim(laned.store, by_lane(before) if is_claimed_by_lane else ALL)
        assert laned.content(before) == laned.content(after) == []
        assert WAYS[way](laned, clock, held, TWO if after is two else ONE) == {"t"}
        _require_content(laned, after, before, tried_once)


def _require_content(laned: Laned, holding: Lane, empty: Lane, tried_once: Lane) -> None:
    assert laned.content(empty) == []
    assert laned.content(holding) == ["t"]
    require_exact(laned, holding, empty, tried_once)


def test_old_rows_never_live_again(laned: Laned) -> None:
    """N1: rows that walks left behind stay dead when their task becomes READY at the same place in the order, with and
    without a row of its own; `prune` gets rid of them."""
    (one,) = laned.open(n == 1)
    laned.enqueue([make_task("t", attributes=ONE)])
    for attributes in (TWO, ONE, ONE, TWO, TWO):
        [held] = claim(laned.store)
        laned.apply([(GiveBack(held.lease, attributes), held)])
        assert laned.store.audit() == []
        if attributes is TWO:
            assert claim(laned.store, by_lane(one)) == []
    [held] = claim(laned.store)
    laned.apply([(GiveBack(held.lease, ONE), held)])
    assert laned.content(one) == ["t"]
    [held] = claim(laned.store)
    laned.prune()
    assert laned.size(one) == 0
    assert laned.store.audit() == []


def test_a_forgotten_id_begins_anew(laned: Laned, clock: ManualClock) -> None:
    """N1: when a task was purged and its id is enqueued again, the rows of the first one are dead."""
    (one,) = laned.open(n == 1)
    for attributes in (ONE, TWO, ONE, TWO):
        # The same place in the order each time: only the number tells the rows apart.
        laned.enqueue([make_task("t", attributes=attributes)])
        assert laned.expected(one) == (["t"] if attributes is ONE else [])
        assert laned.content(one) == laned.expected(one)
        assert laned.store.apply([Cancel("t")]) == {"t"}
        assert laned.content(one) == []
        clock.move(1)
        assert laned.store.purge(clock.now, 10) == 1
    laned.prune()
    assert laned.size(one) == 0


def test_a_cancelled_task_leaves_its_lanes(laned: Laned) -> None:
    """N1, L5: a READY task that is cancelled is returned by no claim through its lanes, others are."""
    (one,) = laned.open(n == 1)
    laned.enqueue([make_task(f"t{each}", attributes=ONE) for each in range(5)])
    assert laned.store.apply([Cancel("t0"), Cancel("t3")]) == {"t0", "t3"}
    assert laned.content(one) == ["t1", "t2", "t4"]
    require_exact(laned, one)


def test_a_task_is_in_every_lane_that_it_matches(laned: Laned) -> None:
    """N1: a task is in all lanes that it matches, and once claimed by one of them, or by a walk, in none."""
    lanes = laned.open(n == 1, n >= 1, Task.step == "charge", Task.attempt < 4)
    laned.enqueue([make_task(f"t{each}", attributes=ONE) for each in range(8)])
    left = [f"t{each}" for each in range(8)]
    for lane in (*lanes, *lanes):
        [held] = claim(laned.store, by_lane(lane), limit=1)
        assert are_first(laned.store, [held.id], left, 1)
        left.remove(held.id)
        assert [laned.content(each) for each in lanes] == [left] * len(lanes)
    laned.enqueue([make_task("t8", attributes=ONE)])
    assert ids(claim(laned.store, ALL)) == ["t8"]
    require_exact(laned, *lanes)


def test_a_scheduled_task_is_in_no_lane(laned: Laned, clock: ManualClock) -> None:
    """N1, O3: a task enters its lanes when it is promoted, not before."""
    (one,) = laned.open(n == 1)
    task = make_task("t", attributes=ONE, state=State.SCHEDULED, ready_at=START + SECOND)
    laned.enqueue([task, make_task("r", attributes=ONE)])
    assert laned.content(one) == ["r"]
    clock.move(1)
    assert laned.content(one) == ["r"]
    assert laned.apply([(Promote("t", ONE), task)]) == {"t"}
    assert laned.content(one) == ["r", "t"]


def test_a_task_enqueued_twice_is_in_its_lanes_once(laned: Laned) -> None:
    """N1, L4: an id that is known adds no row, whatever the second call says of it; every insert ignores duplicates."""
    one, two = laned.open(n == 1, n == 2)
    laned.enqueue([make_task("t", attributes=ONE), make_task("t", attributes=TWO)])
    assert laned.enqueue([make_task("t", attributes=TWO)]) == set()
    rows = laned.lanes.ready_tasks(QUEUE, [], None, 10).tasks
    for _ in range(2):
        laned.lanes.fill([LaneRow(one.id, task.order_key, ready_no) for task, ready_no in rows])
    assert (laned.content(one), laned.content(two)) == (["t"], [])
    assert laned.size(two) == 0
    laned.prune()
    assert laned.size(one) == 1


def test_claims_by_a_lane_are_in_order_in_parts(laned: Laned) -> None:
    """N1, O1, O2: claims of any limit by a lane take its tasks in claim order, whatever the order they came in, each
    once; what one leaves the next one finds."""
    random = Random(5)
    (odd,) = laned.open(n == 1)
    tasks = [
        make_task(f"{each:03d}", priority=each % 3, created_at=START - each % 7, attributes={"n": each % 2})
        for each in range(160)
    ]
    random.shuffle(tasks)
    for start in range(0, 160, 20):
        laned.enqueue(tasks[start : start + 20])
    wanted = laned.expected(odd)
    taken: list[TaskId] = []
    assert len(wanted) == 80
    while len(taken) < 80:
        limit = random.randint(1, 9)
        held = ids(claim(laned.store, by_lane(odd), limit=limit))
        assert are_first(laned.store, held, [each for each in wanted if each not in taken], limit)
        taken += held
    assert claim(laned.store, by_lane(odd)) == []
    assert len(claim(laned.store)) == 80


def test_racing_claims_by_a_lane_take_each_task_once(open_handle: Callable[[], Store]) -> None:
    """N1, L1, O4: handles that claim by a lane, by another one of the same tasks and by a walk at once take every task,
    none twice."""
    laned = require_lanes(open_handle())
    one, two = laned.open(n == 1, Task.step == "charge")
    laned.enqueue([make_task(attributes=ONE) for _ in range(600)])
    chosen = [by_lane(one), by_lane(two), by_lane(one), ALL]
    handles = [Replaying(open_handle()) for _ in chosen]

    def take(handle: Store, by: Route) -> list[TaskId]:
        return [task.id for claimed in drain(handle, by, limit=3) for task in claimed]

    with ThreadPoolExecutor(len(chosen)) as pool:
        shares = list(pool.map(take, handles, chosen))
    taken = [each for share in shares for each in share]
    taken += ids(claim(laned.store))  # left by one whose claim came back empty while others held the rest
    assert len(taken) == len(set(taken)) == 600
    assert laned.content(one) == laned.content(two) == []


# The engine


def test_the_engine_places_tasks_whenever_they_become_ready(store: Store, clock: ManualClock) -> None:
    """N2, A2: at enqueue, retry, release, promotion, expiry and revival the engine puts a task into the lanes that the
    evaluator says, by the attributes and the attempt of the run to come."""
    laned = require_lanes(store)
    engine = Engine(store, settings=Settings(lanes=LanePolicy.ON))
    engine.declare("orders", version=1, attributes=[Attribute("region", str, "region")])
    region = Task.attr("region", str)
    first, later, french = laned.open(
        (region == "eu") & (Task.attempt == 1), (region == "eu") & (Task.attempt >= 2), region == "fr"
    )
    everything = [QueueCriteria(QUEUE)]
    names = [f"t{each}" for each in range(5)]
    for name in names:
        engine.enqueue(QUEUE, "s", {"region": "eu"}, workflow="orders", version=1, id=name)
    engine.enqueue(QUEUE, "s", {"region": "fr"}, workflow="orders", version=1, id="later", delay=timedelta(seconds=5))
    assert (laned.content(first), laned.content(later), laned.content(french)) == (names, [], [])
    held = {task.id: task for task in engine.claim("w", everything, limit=9, lease=timedelta(seconds=3))}
    engine.settle(held["t0"], Retry(delay=timedelta(0)))
    engine.settle(held["t1"], Retry(delay=timedelta(seconds=2)))
    engine.settle(held["t2"], Release())
    engine.settle(held["t4"], Release())
    assert (laned.content(first), laned.content(later)) == (["t2", "t4"], ["t0"])
    clock.move(5)
    engine.sweep()
    assert [laned.content(lane) for lane in (first, later, french)] == [["t2", "t4"], ["t0", "t1"], ["later"]]
    clock.move(600)
    engine.sweep()
    assert laned.content(later) == ["t0", "t1", "t3"]
    assert engine.cancel("t1")
    assert engine.retry("t1")
    assert (laned.content(first), laned.content(later)) == (["t2", "t4", "t1"], ["t0", "t3"])
    require_exact(laned, first, later, french)


def test_claims_of_the_engine_go_by_lanes(store: Store) -> None:
    """N4, O1: with the policy `on` a criteria in use gets a lane, and claims by it return what they did by a walk."""
    laned = require_lanes(store)
    engine = Engine(store, settings=Settings(lanes=LanePolicy.ON))
    criteria = QueueCriteria(QUEUE, Task.step == "ship")
    for each in range(12):
        engine.enqueue(QUEUE, "ship" if each % 4 == 0 else "charge", id=f"{each:02d}")
    wanted = ["00", "04", "08"]
    [first] = ids(engine.claim("w", [criteria], limit=1))
    assert are_first(store, [first], wanted, 1)
    wanted.remove(first)
    engine.lanes.care()
    [lane] = laned.book.refresh().lanes.values()
    assert (lane.state, laned.content(lane)) == (LaneState.OPEN, wanted)
    assert sorted(ids(engine.claim("w", [criteria], limit=5))) == wanted
    assert claim(store, by_lane(lane)) == []


@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_by_a_lane_reads_few_rows(laned: Laned, limit: int) -> None:
    """N4, N5: how a claim by a lane is carried out is told, it leases nothing, and it reads about as many rows as it
    returns, however many tasks of the queue or of the lane there are."""
    (rare,) = laned.open(n == 1)
    tasks = [make_task(attributes=ONE if each > 400 else TWO) for each in range(500)]
    for start in range(0, 500, 100):
        laned.enqueue(tasks[start : start + 100])
    told = laned.store.explain(by_lane(rare), limit)
    assert told.plan
    assert told.rows_read is None or told.rows_read <= 5 * limit
    assert len(laned.content(rare)) == 99
