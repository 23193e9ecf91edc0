"""Checks of claim order and claim answers (O1-O4), and of `find` and `count`, which answer in the same order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    SECOND,
    START,
    TTL,
    ManualClock,
    are_first,
    claim,
    claim_one,
    drain,
    enqueue_all,
    enqueue_one,
    find_by_pages,
    ids,
    in_order,
    make_task,
    route,
    stored,
)
from wiggle_core.criteria.builder import cb
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.instants import MAX_MICROS, MIN_MICROS
from wiggle_core.stores.store import Cancel, ClaimRequest, Finish, Route, Slice, Store
from wiggle_core.tasks.task import LIVE, MAX_PRIORITY, SETTLED, State, TaskRecord

READY = [State.READY]


def _tied_tasks() -> list[TaskRecord]:
    """Every combination of few priorities and times, so that each part of the order decides somewhere, shuffled."""
    parts = list(product((0, 1, 10), (START, START + 1, START - SECOND), (START, START + 2), "abZ"))
    tasks = [
        make_task(f"{letter}-{number}", priority=priority, created_at=created_at, ready_at=ready_at)
        for number, (priority, created_at, ready_at, letter) in enumerate(parts)
    ]
    Random(7).shuffle(tasks)
    return tasks


def _drain(store: Store, *routes: Route, limit: int) -> list[str]:
    """The ids of claim after claim, until one comes back empty; in claim order, where that is not strict."""
    drained = [task for claimed in drain(store, *routes, limit=limit) for task in claimed]
    return ids(drained) if store.capabilities.strict_order else in_order(drained)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_claims_follow_priority_instance_readiness_and_id(store: Store, limit: int) -> None:
    """O1: claim order is priority, instance created_at, ready_at, id, whatever the limit."""
    tasks = _tied_tasks()
    store.enqueue(tasks)
    assert _drain(store, limit=limit) == in_order(tasks)


def test_order_holds_at_the_extremes(store: Store) -> None:
    """O1, C7: the order holds for the least and greatest priority and for instants of the years 1 and 9999."""
    times = (MIN_MICROS, MIN_MICROS + 1, -1, 0, 1, MAX_MICROS - 1, MAX_MICROS)
    extremes = product((0, MAX_PRIORITY), times, (MIN_MICROS, MAX_MICROS))
    tasks = [make_task(priority=priority, created_at=created, ready_at=ready) for priority, created, ready in extremes]
    store.enqueue(tasks)
    assert ids(store.find(ALL, READY, 1000)) == in_order(tasks)
    assert _drain(store, limit=4) == in_order(tasks)


def test_ids_break_ties_by_code_point(store: Store) -> None:
    """O1, C4: ids that tie on everything else are ordered by code point, not by a locale or by UTF-16 units."""
    names = ["a", "B", "b", "a ", "a-", "A", "é", "e\u0301", "\uff5e", "\U0001f600", "~", "1", "10", "2", "ß", "ss"]
    store.enqueue([make_task(name) for name in names])
    assert ids(store.find(ALL, READY, 100)) == sorted(names)
    assert _drain(store, limit=3) == sorted(names)


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_one_claim_merges_its_routes(store: Store, limit: int) -> None:
    """O1: one claim over several queues takes what one claim over their merged matching tasks would take."""
    tasks = [
        make_task(f"{queue}-{number}", queue=queue, priority=number % 3, created_at=START + number % 5, step=step)
        for queue in ("one", "two", "three")
        for number, step in enumerate(("charge", "refund") * 10)
    ]
    store.enqueue(tasks)
    routes = (route(Task.step == "charge", "three"), Route("one"), route(Task.priority < 2, "two"))
    wanted = [
        task
        for task in tasks
        if task.queue == "one"
        or (task.queue == "two" and task.priority < 2)
        or (task.queue == "three" and task.step == "charge")
    ]
    if limit == 5:
        first = ids(claim(store, *reversed(routes), limit=limit))
        assert are_first(store, first, in_order(wanted), limit)
        wanted = [task for task in wanted if task.id not in first]
    assert _drain(store, *routes, limit=limit) == in_order(wanted)


def test_a_claim_leases_what_it_returns(store: Store, clock: ManualClock) -> None:
    """L1, L2: a claimed task is RUNNING with the claim's owner and token until now + ttl, and otherwise unchanged."""
    task = enqueue_one(store, attempt=3, priority=2)
    clock.move(5)
    (claimed,) = store.claim(ClaimRequest("worker-9", "token-9", TTL, 1, (ALL,)))
    assert (claimed.state, claimed.owner, claimed.token) == (State.RUNNING, "worker-9", "token-9")
    assert claimed.lease_until == clock.now + TTL
    assert claimed.order_key == task.order_key
    assert claimed.attempt == 3
    assert stored(store, task.id) == claimed


def test_a_claim_locks_nothing_else(store: Store, open_handle: Callable[[], Store]) -> None:
    """O2: once a claim has answered, another handle gets all the rest at once."""
    tasks = [make_task() for _ in range(30)]
    store.enqueue(tasks)
    first, rest = claim(store, limit=3), claim(open_handle())
    assert are_first(store, ids(first), in_order(tasks), 3)
    assert in_order(first + rest) == in_order(tasks)


def test_no_task_is_claimed_twice(store: Store) -> None:
    """L1: two claims get disjoint tasks, and a third finds nothing."""
    store.enqueue([make_task() for _ in range(10)])
    first, second = ids(claim(store, limit=5)), ids(claim(store, limit=100))
    assert len(first) == len(second) == 5
    assert set(first).isdisjoint(second)
    assert claim(store) == []


def test_scheduled_tasks_are_never_claimed(store: Store, clock: ManualClock) -> None:
    """O3: a SCHEDULED task is not claimed, even when it is due, and is not reported as READY."""
    late = make_task("late", state=State.SCHEDULED, ready_at=START + SECOND)
    store.enqueue([late, make_task("ready")])
    clock.move(3600)
    assert ids(claim(store)) == ["ready"]
    assert store.find(ALL, READY, 10) == []
    assert ids(store.find(ALL, [State.SCHEDULED], 10)) == ["late"]


def test_a_match_behind_others_is_found(store: Store) -> None:
    """O4: matching tasks behind 300 that do not match are claimed, all of them and in order."""
    others = [make_task(created_at=START - 10, step="refund") for _ in range(300)]
    matching = [make_task(created_at=START + number % 4) for number in range(12)]
    enqueue_all(store, others + matching)
    assert _drain(store, route(Task.step == "charge"), limit=5) == in_order(matching)
    assert store.count(ALL, READY, 1000) == 300


def test_draining_takes_exactly_what_matches(store: Store) -> None:
    """O4: claims by a predicate take every match and nothing else; the rest is still there for others."""
    tasks = [make_task(attributes={"n": number % 7}, attempt=1 + number % 3) for number in range(60)]
    store.enqueue(tasks)
    n = Task.attr("n", int)
    wanted = [task for task in tasks if task.attributes["n"] in (2, 5) or task.attempt == 3]
    assert _drain(store, route(n.in_([2, 5]) | (Task.attempt == 3)), limit=4) == in_order(wanted)
    taken = {task.id for task in wanted}
    assert _drain(store, limit=50) == in_order(task for task in tasks if task.id not in taken)


def test_queues_are_told_apart_exactly(store: Store) -> None:
    """C4: a queue's name is compared by code point: case, trailing spaces and accents make another queue."""
    queues = ["q", "Q", "q ", " q", "é", "e\u0301", "q%", "q_", "q'\"\\", "\U0001f600"]
    store.enqueue([make_task(f"on {queue}", queue=queue) for queue in queues])
    for queue in queues:
        assert ids(store.find(Route(queue), READY, 10)) == [f"on {queue}"]
        assert store.count(Route(queue), READY, 10) == 1
        assert ids(claim(store, Route(queue))) == [f"on {queue}"]


def test_nothing_to_claim_is_an_empty_answer(store: Store) -> None:
    """O2: a claim on an unknown queue, or by a predicate that nothing matches, is empty and changes nothing."""
    task = enqueue_one(store)
    assert claim(store, Route("nowhere")) == []
    assert claim(store, route(Task.step == "none")) == []
    assert claim(store, route(cb.disjunction())) == []
    assert stored(store, task.id) == task


def test_pages_join_without_gap_or_repeat(store: Store) -> None:
    """O1: pages of `find`, each beginning behind the last key of the one before, give the whole order."""
    tasks = _tied_tasks()
    store.enqueue(tasks)
    found = find_by_pages(store, route(Task.priority <= 1), 5)
    assert ids(found) == in_order(task for task in tasks if task.priority <= 1)


def test_find_and_count_take_any_mix_of_states(store: Store) -> None:
    """O1: `find` and `count` answer for any states, live and settled together, in one order."""
    tasks = {state: [make_task(f"{state}-{n}", priority=n % 2) for n in range(4)] for state in State}
    _bring_to_their_states(store, tasks)
    for states in ([State.READY], [State.RUNNING, State.DONE], list(LIVE), list(SETTLED), list(State), []):
        wanted = in_order(stored(store, task.id) for state in states for task in tasks[state])
        assert ids(store.find(ALL, states, 100)) == wanted
        assert store.count(ALL, states, 100) == len(wanted)
        assert (
            ids(store.find(route(Task.priority == 1), states, 3))
            == [each for each in wanted if stored(store, each).priority == 1][:3]
        )


def _bring_to_their_states(store: Store, tasks: dict[State, list[TaskRecord]]) -> None:
    scheduled = [make_task(task.id, state=State.SCHEDULED, priority=task.priority) for task in tasks[State.SCHEDULED]]
    store.enqueue([task for state in (State.RUNNING, State.DONE, State.FAILED) for task in tasks[state]])
    claimed = {task.id: task.lease for task in claim(store)}
    for state in (State.DONE, State.FAILED):
        store.apply([Finish(claimed[task.id], state) for task in tasks[state]])
    store.enqueue(scheduled + tasks[State.READY] + tasks[State.CANCELLED])
    store.apply([Cancel(task.id) for task in tasks[State.CANCELLED]])
    for state, members in tasks.items():
        assert {stored(store, task.id).state for task in members} == {state}


def test_counts_stop_at_their_cap(store: Store) -> None:
    """Section 6: `count` counts up to its cap and no further."""
    store.enqueue([make_task() for _ in range(20)])
    assert [store.count(ALL, READY, cap) for cap in (1, 19, 20, 21, 10_000)] == [1, 19, 20, 20, 20]


def test_found_tasks_bring_their_payload(store: Store) -> None:
    """Section 6: `find` and `claim` return whole tasks, payload included."""
    task = enqueue_one(store, payload='{"n": 1.10}', attributes={"region": "eu"})
    assert store.find(ALL, READY, 1) == [task]
    assert claim_one(store).payload == '{"n": 1.10}'


def test_slices_count_what_is_ready(store: Store) -> None:
    """Section 8: `slices` counts the READY tasks by workflow, version and queue, with the oldest one's time."""
    store.enqueue([make_task(ready_at=START + number, workflow="orders", version=1) for number in (5, 3, 4)])
    store.enqueue([make_task(workflow="orders", version=10), make_task(workflow="orders", version=2, queue="other")])
    store.enqueue([make_task(ready_at=START - 7)])
    store.enqueue([make_task(state=State.SCHEDULED, ready_at=START - 99, workflow="orders", version=1)])
    claim(store, route((Task.workflow == "orders") & (Task.version == 10)))
    slices = store.slices()
    assert sorted(slices, key=lambda each: (each.workflow or "", each.version or 0)) == [
        Slice(None, None, QUEUE, 1, START - 7),
        Slice("orders", 1, QUEUE, 3, START + 3),
        Slice("orders", 2, "other", 1, START),
    ]


def test_explaining_claims_nothing(store: Store) -> None:
    """N5: an explanation shows a plan and leaves every task where it is."""
    task = enqueue_one(store)
    explanation = store.explain(route(Task.step == "charge"), 10)
    assert explanation.plan
    assert all(isinstance(line, str) for line in explanation.plan)
    assert stored(store, task.id) == task
