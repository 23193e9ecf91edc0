"""Checks of claims by a queue's head (N1, N3, N4): a lane with what comes before a bound, and a walk from the bound on,
return together what a walk would, whatever enters before the bound later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from wiggle_core.conformance.criteria import CASE_TASKS, CASES, case_predicate
from wiggle_core.conformance.differential import Round
from wiggle_core.conformance.laned import Laned, by_lane, require_lanes
from wiggle_core.conformance.lanes import ONE, TWO, WAYS, n
from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    START,
    ManualClock,
    are_first,
    claim,
    ids,
    in_order,
    make_task,
    route,
)
from wiggle_core.conformance.strategies import Hostile
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.heads import before, head_of
from wiggle_core.stores.lanes import Head, Lane
from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.task import TaskRecord


@pytest.fixture
def headed(store: Store) -> Laned:
    """The test's store, with lanes. Stores without heads are excused."""
    return require_heads(store)


def require_heads(store: Store) -> Laned:
    """The store as `Laned`; skips the check, by name and reason, where claims know no heads."""
    if not store.capabilities.heads:
        pytest.skip(f"{store.capabilities.name}: capability heads is false, so walks begin at the first task")
    return require_lanes(store)


def open_head(laned: Laned, bound: TaskRecord) -> Head:
    """The head of the bound's queue that has all before it."""
    (lane,) = laned.open(before(bound.priority, bound.created_at), queue=bound.queue)
    head = Head(lane.id, bound.priority, bound.created_at)
    assert head_of(lane) == head
    return head


def by_head(head: Head, predicate: Predicate | None = None, queue: str = QUEUE) -> Route:
    """A claim's route by a head."""
    return replace(ALL if predicate is None else route(predicate, queue), head=head)


# What is returned


def test_every_named_case_by_a_head(headed: Laned) -> None:
    """N1, C1-C8, O1: claims by a head give the expected ids of every named case in claim order, wherever the bound."""
    headed.enqueue(CASE_TASKS[::2])
    bounds = Random(3).sample(CASE_TASKS, 3)
    heads = [open_head(headed, bound) for bound in bounds]
    headed.enqueue(CASE_TASKS[1::2])
    for number, case in enumerate(CASES["cases"]):
        chosen = by_head(heads[number % 3], case_predicate(case), CASE_TASKS[0].queue)
        first = claim(headed.store, chosen, limit=2)
        assert are_first(headed.store, ids(first), case["expect"], 2), (case["name"], case["why"])
        rest = claim(headed.store, chosen)
        assert in_order(first + rest) == case["expect"], (case["name"], case["why"])
        headed.release(first + rest)


def test_hostile_claims_by_heads_agree_with_the_evaluator(headed: Laned) -> None:
    """N1, C8, O1: one claim of any limit over several queues, by a head on some, by a lane or a walk on others, gives
    the evaluator's first matches, merged."""
    hostile = Hostile(47)
    tried = [Round.begin(headed.store, hostile, serial, 24) for serial in range(4)]
    for turn in range(40):
        asked = [(each, hostile.predicate()) for each in tried]
        heads = [open_head(headed, hostile.random.choice(each.tasks)) for each, _ in asked[: 1 + turn % 3]]
        routes = [by_head(head, predicate, each.queue) for head, (each, predicate) in zip(heads, asked, strict=False)]
        others = asked[len(heads) :]
        routes += [by_lane(headed.open(predicate, queue=each.queue)[0]) for each, predicate in others[::2]]
        routes += [route(predicate, each.queue) for each, predicate in others[1::2]]
        limit = hostile.random.randint(1, 96)
        claimed = claim(headed.store, *routes, limit=limit)
        wanted = [task for each, predicate in asked for task in each.tasks if matches(predicate, task)]
        assert are_first(headed.store, ids(claimed), in_order(wanted), limit), asked
        headed.release(claimed)


def test_claims_by_a_head_are_in_order_in_parts(headed: Laned) -> None:
    """N1, O1, O2: claims of any limit by a head pass from its lane over to the rest, each task once, and pass by those
    that do not match; what one leaves the next one finds."""
    tasks = [
        make_task(priority=each % 3, created_at=START + each % 7, attributes={"n": each % 2}) for each in range(160)
    ]
    Random(5).shuffle(tasks)
    headed.enqueue(tasks[:80])
    chosen = by_head(open_head(headed, make_task(priority=1, created_at=START + 3)), n == 1)
    headed.enqueue(tasks[80:])
    wanted = in_order(task for task in tasks if task.attributes["n"] == 1)
    limits = Random(6)
    while wanted:
        limit = limits.randint(1, 9)
        held = ids(claim(headed.store, chosen, limit=limit))
        assert are_first(headed.store, held, wanted, limit)
        wanted = [each for each in wanted if each not in held]
    assert claim(headed.store, chosen) == []
    assert len(claim(headed.store)) == 80


def test_the_bound_itself_is_walked(headed: Laned) -> None:
    """N1, O1: tasks at the very bound, however many, and those around it are returned once each, and the head's lane
    has those before it only."""
    around = [
        make_task(f"{p}{c}{k}", priority=p, created_at=START + c) for p in range(3) for c in range(3) for k in "ab"
    ]
    headed.enqueue(around[::2])
    head = open_head(headed, make_task(priority=1, created_at=START + 1))
    headed.enqueue(around[1::2])
    lane = headed.book.known.lanes[head.lane]
    assert (
        in_order(around)[:8] == headed.content(lane) == [each.id for each in around if head.is_before(each.order_key)]
    )
    assert in_order(claim(headed.store, by_head(head), limit=99)) == in_order(around)


# What enters before the bound


@pytest.mark.parametrize("way", WAYS)
def test_what_becomes_ready_before_the_bound_is_found_first(headed: Laned, clock: ManualClock, way: str) -> None:
    """N1, O4: whichever way a task becomes READY again before the bound, claims by the head find it before the rest."""
    headed.enqueue([make_task("t", attributes=ONE), *(make_task(f"{each}", created_at=START + 9) for each in range(3))])
    chosen = by_head(open_head(headed, make_task(created_at=START + 9)))
    limit = 1 if headed.store.capabilities.strict_order else 4
    for turn in range(3):
        claimed = claim(headed.store, chosen, limit=limit)
        [held] = [task for task in claimed if task.id == "t"]
        headed.release([task for task in claimed if task is not held])
        assert WAYS[way](headed, clock, held, (TWO, ONE)[turn % 2]) == {"t"}
        first = claim(headed.store, chosen, limit=2)
        assert are_first(headed.store, ids(first), ["t", "0", "1", "2"], 2)
        headed.release(first)
    assert headed.store.audit() == []


def test_what_others_enqueue_before_the_bound_is_found_first(headed: Laned, open_handle: Callable[[], Store]) -> None:
    """N1, O1, O4: a more urgent task and one of an older instance, put in by another handle that learns of the head as
    it does, are claimed by it before the rest."""
    headed.enqueue([make_task(f"{each}", priority=1) for each in range(3)])
    chosen = by_head(open_head(headed, make_task(priority=1)))
    other = Laned.over(open_handle())
    other.enqueue([make_task("urgent"), make_task("older", priority=1, created_at=START - 1)])
    held = ids(claim(headed.store, chosen, limit=3))
    assert are_first(headed.store, held, ["urgent", "older", "0", "1", "2"], 3)
    assert len(claim(headed.store, chosen)) == 2


# Heads that are not open


def test_a_head_that_is_not_open_is_refused(headed: Laned) -> None:
    """N3: a claim by a head whose lane is being filled or closed, is gone or never was, gets StaleLanes and leases
    nothing, on the other queues of the claim neither."""
    headed.enqueue([make_task("a"), make_task("b", created_at=START + 1), make_task("c", queue="other")])
    (filling,) = headed.begin(before(0, START + 1))
    assert _is_refused(headed, filling)
    head = open_head(headed, make_task(created_at=START + 2))
    assert in_order(claim(headed.store, by_head(head))) == ["a", "b"]
    lane = headed.book.known.lanes[head.lane]
    headed.lanes.close([head.lane])
    assert _is_refused(headed, lane)
    headed.close(lane)
    assert _is_refused(headed, lane)
    assert _is_refused(headed, replace(lane, id=10**9))


def _is_refused(laned: Laned, lane: Lane) -> bool:
    head = head_of(lane)
    assert head is not None
    for routes in ((by_head(head),), (Route("other"), by_head(head, n == 1))):
        with pytest.raises(StaleLanes):
            claim(laned.store, *routes)
    [free] = claim(laned.store, Route("other"))
    laned.release([free])
    return free.id == "c"
