"""Checks of what goes in and what stays (L4, L5): idempotent enqueue, exact round trips, history, revival, purge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
    SECOND,
    START,
    TTL,
    ManualClock,
    claim,
    claim_one,
    enqueue_one,
    ids,
    make_task,
    stored,
)
from wiggle_core.conformance.strategies import Hostile, same_value
from wiggle_core.criteria.instants import MAX_MICROS, MIN_MICROS
from wiggle_core.criteria.tree import Value
from wiggle_core.stores.store import Cancel, Finish, GiveBack, Promote, Requeue, Revive, Store
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.task import MAX_PRIORITY, State, TaskRecord

TOP = 10**38 - 1
MANY_VALUES: dict[str, Value] = {
    "text": "o'brien\"; drop table task; -- %_\\ \U0001f600",
    "empty": "",
    "looks_numeric": "1000",
    "yes": True,
    "no": False,
    "zero": 0,
    "least": -(2**63),
    "most": 2**63 - 1,
    "tenth": Decimal("0.1"),
    "tiny": Decimal("-0.00000000000000000000000000000000000001"),
    "wide": Decimal(TOP),
    "exact": Decimal("12345678901234567.890123456789012345678"),
    "first": datetime(1, 1, 1, tzinfo=timezone.utc),
    "last": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
    "before_epoch": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
}
"""A value of each family at each end of its range; their number is what a workflow may declare (A1)."""

FULL_TASK = make_task(
    'o\'brien "1" %_\\ \U0001f600',
    queue="payments",
    step="charge %",
    created_at=MIN_MICROS,
    ready_at=MAX_MICROS,
    payload='{"text": "it\'s \\u0000 \u00e9e\u0301 \U0001f600", "n": 1.10, "list": [1, 2]}',
    attributes=MANY_VALUES,
    priority=MAX_PRIORITY,
    attempt=7,
    workflow="orders'",
    version=2**63 - 1,
    node="x" * 255,
    kind="\U0001f600" * 255,
    correlation_id="",
    instance_id="another instance",
    retry=RetryPolicy(3, timedelta(microseconds=1), 1.5, timedelta(days=400), 0.125),
)
"""A task that leaves no field at its default."""

SETTLINGS: dict[State, Callable[[TaskRecord], Finish | Cancel]] = {
    State.DONE: lambda held: Finish(held.lease, State.DONE, result="1"),
    State.FAILED: lambda held: Finish(held.lease, State.FAILED, error="no"),
    State.CANCELLED: lambda held: Cancel(held.id),
}


def _assert_same(got: TaskRecord, wanted: TaskRecord) -> None:
    """Equality, with each attribute's family: in Python True equals 1."""
    assert got == wanted
    assert all(same_value(got.attributes[name], value) for name, value in wanted.attributes.items())


# Enqueue


@pytest.mark.parametrize("state", [State.READY, State.SCHEDULED])
def test_every_field_comes_back_exactly(store: Store, state: State) -> None:
    """C5, C7: every field and a value of every family come back as they were put in, by get and by find."""
    task = replace(FULL_TASK, state=state)
    assert store.enqueue([task]) == {task.id}
    _assert_same(stored(store, task.id), task)
    (found,) = store.find(ALL, [state], 10)
    _assert_same(found, task)


def test_fields_survive_a_claim_and_history(store: Store, clock: ManualClock) -> None:
    """C5, L5: a claim, a release and a settlement change state and lease only; attributes are what the release said."""
    store.enqueue([FULL_TASK])
    held = claim_one(store)
    leased = replace(FULL_TASK, state=State.RUNNING, owner=held.owner, token=held.token, lease_until=START + TTL)
    _assert_same(held, leased)
    store.apply([GiveBack(held.lease, FULL_TASK.attributes)])
    _assert_same(stored(store, held.id), replace(FULL_TASK, token=held.token))
    held = claim_one(store)
    store.apply([Finish(held.lease, State.DONE, result='{"n": 1.10}')])
    settled = stored(store, held.id)
    unchanged = replace(settled, owner=None, token=None, lease_until=None, state=State.READY, finished_at=None)
    _assert_same(replace(unchanged, result=None), FULL_TASK)


def test_hostile_tasks_come_back_exactly(store: Store) -> None:
    """C5, C7: tasks with hostile text, numbers at every boundary and odd ids come back value for value."""
    hostile = Hostile(11)
    tasks = [hostile.task(f"h{number}", ALL.queue) for number in range(64)]
    assert store.enqueue(tasks) == set(ids(tasks))
    for task in tasks:
        _assert_same(stored(store, task.id), task)
    for held in claim(store):
        _assert_same(replace(held, state=State.READY, owner=None, token=None, lease_until=None), stored_as(tasks, held))


def stored_as(tasks: list[TaskRecord], held: TaskRecord) -> TaskRecord:
    """The task as it was enqueued."""
    return next(task for task in tasks if task.id == held.id)


def test_absent_fields_stay_absent(store: Store) -> None:
    """C1: workflow, version, node and correlation_id may be absent, which the empty text is not."""
    bare = enqueue_one(store)
    empty = enqueue_one(store, workflow="", node="", correlation_id="", version=0)
    assert stored(store, bare.id) == bare
    assert stored(store, empty.id) == empty


def test_a_large_payload_comes_back_exactly(store: Store) -> None:
    """Section 5: a payload of 1 MiB, of any characters, is kept to the last byte."""
    text = json.dumps({"text": "it's %_\\ \u00e9 \U0001f600 "}, ensure_ascii=False)
    payload = text + " " * (1024 * 1024 - len(text.encode()))
    task = enqueue_one(store, payload=payload)
    assert stored(store, task.id).payload == payload
    assert claim_one(store).payload == payload


def test_enqueue_answers_with_what_it_inserted(store: Store) -> None:
    """L4: the second of two alike in one call, and an id that lives, are left alone; the first payload stays."""
    first = make_task("a", payload='"first"')
    assert store.enqueue([first, make_task("b"), make_task("a", payload='"second"')]) == {"a", "b"}
    assert store.enqueue([make_task("a", payload='"third"'), make_task("c")]) == {"c"}
    assert stored(store, "a") == first
    assert store.enqueue([]) == set()
    assert len(claim(store)) == 3


def test_ids_are_told_apart_exactly(store: Store) -> None:
    """L4, C4: ids that differ in case, trailing space or accent only are different tasks."""
    names = ["a", "A", "a ", "é", "e\u0301", "x" * 64, "x" * 63, "\U0001f600" * 64, "'", "%", "_"]
    assert store.enqueue([make_task(name) for name in names]) == set(names)
    assert set(store.lookup(names)) == set(names)
    assert all(stored(store, name).id == name for name in names)


@pytest.mark.parametrize("outcome", SETTLINGS)
def test_an_id_stays_taken_in_every_state(store: Store, outcome: State) -> None:
    """L4: enqueue with the same id is a no-op while the task is scheduled, ready, running or in history."""
    again = make_task("a", payload='"again"')
    enqueue_one(store, "a", state=State.SCHEDULED)
    assert store.enqueue([again]) == set()
    store.apply([Promote("a", {})])
    assert store.enqueue([again]) == set()
    held = claim_one(store)
    assert store.enqueue([again]) == set()
    store.apply([SETTLINGS[outcome](held)])
    settled = stored(store, "a")
    assert store.enqueue([again, make_task("b")]) == {"b"}
    assert stored(store, "a") == settled
    assert (settled.state, settled.payload) == (outcome, "null")


def test_a_full_batch_is_inserted_once(store: Store) -> None:
    """L4: a batch as large as the store says it takes is inserted in one call, and again is a no-op."""
    tasks = [make_task() for _ in range(min(store.capabilities.max_batch, 500))]
    assert store.enqueue(tasks) == set(ids(tasks))
    assert store.enqueue(tasks) == set()


# History


def test_settled_tasks_are_found_by_their_state(store: Store) -> None:
    """L5: history is found and counted by state, and is not among the live."""
    store.enqueue([make_task(f"{state}-{number}") for state in SETTLINGS for number in range(2)])
    for held in claim(store):
        store.apply([SETTLINGS[State(held.id.split("-")[0])](held)])
    for state in SETTLINGS:
        assert ids(store.find(ALL, [state], 10)) == [f"{state}-0", f"{state}-1"]
        assert store.count(ALL, [state], 10) == 2
    assert store.find(ALL, [State.READY, State.RUNNING, State.SCHEDULED], 10) == []


@pytest.mark.parametrize("outcome", [State.FAILED, State.CANCELLED])
def test_a_task_can_be_revived(store: Store, clock: ManualClock, outcome: State) -> None:
    """Section 8: reviving takes a FAILED or CANCELLED task out of history: READY now, attempt 1, no outcome."""
    task = enqueue_one(store, "a", attempt=4, payload='"kept"', attributes={"n": 1}, priority=3)
    held = claim_one(store)
    store.apply([SETTLINGS[outcome](held)])
    clock.move(50)
    assert store.apply([Revive("a", {"n": 2})]) == {"a"}
    ready = stored(store, "a")
    assert (ready.state, ready.attempt, ready.ready_at, ready.attributes) == (State.READY, 1, clock.now, {"n": 2})
    assert (ready.finished_at, ready.result, ready.error) == (None, None, None)
    assert (ready.owner, ready.lease_until) == (None, None)
    assert (ready.payload, ready.priority, ready.created_at) == (task.payload, task.priority, task.created_at)
    assert store.find(ALL, [outcome], 10) == []
    assert store.apply([Revive("a", {})]) == set()
    assert store.apply([Finish(held.lease, State.DONE)]) == set()
    assert ids(claim(store)) == ["a"]


def test_only_failures_can_be_revived(store: Store) -> None:
    """Section 8: a DONE, live or unknown task is not revived."""
    enqueue_one(store, "done")
    store.apply([Finish(claim_one(store).lease, State.DONE, result="1")])
    enqueue_one(store, "running")
    claim_one(store)
    enqueue_one(store, "ready")
    enqueue_one(store, "scheduled", state=State.SCHEDULED, ready_at=START + SECOND)
    names = ["done", "running", "ready", "scheduled"]
    before = [stored(store, name) for name in names]
    assert store.apply([Revive(name, {}) for name in [*names, "unknown"]]) == set()
    assert [stored(store, name) for name in names] == before


def test_a_revived_task_can_settle_again(store: Store, clock: ManualClock) -> None:
    """L5: after revival the task is claimed and settled as any other, and history has its last outcome only."""
    enqueue_one(store, "a")
    store.apply([Finish(claim_one(store).lease, State.FAILED, error="no")])
    store.apply([Revive("a", {})])
    clock.move(2)
    assert store.apply([Finish(claim_one(store).lease, State.DONE, result="2")]) == {"a"}
    done = stored(store, "a")
    assert (done.state, done.result, done.error, done.finished_at) == (State.DONE, "2", None, clock.now)
    assert store.count(ALL, list(State), 10) == 1


def test_purging_forgets_what_settled_before(store: Store, clock: ManualClock) -> None:
    """L5: purge forgets tasks settled before an instant, at most `limit`, and frees their ids; live ones stay."""
    for number in range(5):
        enqueue_one(store, f"old-{number}")
    for held in claim(store):
        store.apply([Finish(held.lease, State.DONE)])
    border = clock.move(100)
    enqueue_one(store, "new")
    store.apply([Finish(claim_one(store).lease, State.FAILED)])
    enqueue_one(store, "live", created_at=START - SECOND)
    assert store.purge(border, 3) == 3
    assert store.count(ALL, [State.DONE], 10) == 2
    assert store.purge(border, 10) == 2
    assert store.purge(border, 10) == 0
    assert store.lookup(["old-0", "new", "live"]).keys() == {"new", "live"}
    assert store.enqueue([make_task("old-0"), make_task("new")]) == {"old-0"}
    assert store.purge(border + 1, 10) == 1


def test_a_retried_task_remembers_why(store: Store) -> None:
    """Section 8: the error of the last failed run stays with a task that waits for its retry."""
    enqueue_one(store, "a")
    store.apply([Requeue(claim_one(store).lease, SECOND, {}, error="it's \U0001f600")])
    assert stored(store, "a").error == "it's \U0001f600"


def test_a_used_store_audits_clean(store: Store, clock: ManualClock) -> None:
    """Section 9: after every kind of change, an audit of the stored data finds nothing wrong."""
    store.enqueue([make_task(f"t{number}") for number in range(8)])
    store.enqueue([make_task("later", state=State.SCHEDULED, ready_at=START + SECOND)])
    first, second, third, fourth, *_ = claim(store, limit=6)
    store.apply([
        Finish(first.lease, State.DONE),
        Finish(second.lease, State.FAILED),
        Requeue(third.lease, SECOND, {}),
        GiveBack(fourth.lease, {}),
        Cancel("t7"),
    ])  # fmt: skip
    clock.move(5)
    store.due(3)
    store.apply([Promote("later", {}), Revive(second.id, {})])
    assert store.audit() == []


def test_another_handle_sees_the_same(store: Store, open_handle: Callable[[], Store]) -> None:
    """L4: a committed enqueue and a claim are seen by every other handle."""
    other = open_handle()
    task = enqueue_one(store)
    assert stored(other, task.id) == task
    held = claim_one(other)
    assert stored(store, task.id) == held
    assert store.apply([Finish(held.lease, State.DONE)]) == {task.id}
    assert stored(other, task.id).state is State.DONE
