"""A process dies at any of its writes: nothing is lost, nothing is there twice, and others go on (issue 7, L4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.stores.cassandra_spaces import dying, fresh_space, migrated, open_url
from wiggle_core.conformance.laned import Laned
from wiggle_core.conformance.plugin import ALL, SECOND, START, TTL, ManualClock, claim, ids, make_task
from wiggle_core.criteria.fields import Task
from wiggle_core.lanes.book import LaneBook
from wiggle_core.lanes.filling import resume
from wiggle_core.stores.lanes import Placed
from wiggle_core.stores.store import Cancel, Expire, Finish, GiveBack, Promote, Requeue, Revive, Store
from wiggle_core.tasks.task import State, TaskRecord

N = Task.attr("n", int)
NAMES = [f"t{number}" for number in range(8)]


def _nothing(store: Store, clock: ManualClock) -> None:
    """The queue is empty."""


def _tasks(store: Store, clock: ManualClock) -> None:
    """Half of them match the lane."""
    Laned.over(store).enqueue([make_task(name, attributes={"n": number % 2}) for number, name in enumerate(NAMES)])


def _claim(store: Store, clock: ManualClock) -> None:
    claim(store, limit=100)


def _held(store: Store, clock: ManualClock) -> None:
    _tasks(store, clock)
    _claim(store, clock)


def _overdue(store: Store, clock: ManualClock) -> None:
    _held(store, clock)
    clock.move(2 * TTL / SECOND)


def _scheduled(store: Store, clock: ManualClock) -> None:
    store.enqueue([make_task(name, state=State.SCHEDULED, ready_at=START + SECOND) for name in NAMES])
    clock.move(2)


def _settled(store: Store, clock: ManualClock) -> None:
    _held(store, clock)
    store.apply([Finish(task.lease, State.FAILED) for task in _running(store)])


def _in_history(store: Store, clock: ManualClock) -> None:
    _settled(store, clock)
    store.due(100)


def _laned(store: Store, clock: ManualClock) -> None:
    Laned.over(store).open(N == 1)
    _tasks(store, clock)


def _running(store: Store) -> list[TaskRecord]:
    return store.find(ALL, [State.RUNNING], 100)


def _extend(store: Store, clock: ManualClock) -> None:
    store.extend([task.lease for task in _running(store)], 2 * TTL)


def _finish(store: Store, clock: ManualClock) -> None:
    store.apply([Finish(task.lease, State.DONE) for task in _running(store)])


def _cancel(store: Store, clock: ManualClock) -> None:
    store.apply([Cancel(name) for name in NAMES])


def _retry(store: Store, clock: ManualClock) -> None:
    Laned.over(store).apply([(Requeue(task.lease, 0, {"n": 1}), task) for task in _running(store)])


def _release(store: Store, clock: ManualClock) -> None:
    Laned.over(store).apply([(GiveBack(task.lease, {"n": 1}), task) for task in _running(store)])


def _promote(store: Store, clock: ManualClock) -> None:
    Laned.over(store).apply([(Promote(task.id, {}), task) for task in store.due(100)])


def _expire(store: Store, clock: ManualClock) -> None:
    Laned.over(store).apply([(Expire(task.lease, 0, {"n": 1}), task) for task in store.due(100)])


def _move(store: Store, clock: ManualClock) -> None:
    store.due(100)


def _revive(store: Store, clock: ManualClock) -> None:
    store.apply([Revive(name, {}) for name in NAMES], Placed(LaneBook(store).refresh().epoch))


def _open(store: Store, clock: ManualClock) -> None:
    Laned.over(store).open(N == 1)


def _close(store: Store, clock: ManualClock) -> None:
    laned = Laned.over(store)
    laned.close(*laned.book.refresh().lanes.values())


Act: TypeAlias = Callable[[Store, ManualClock], None]
ACTS: dict[str, tuple[Act, Act]] = {
    "enqueue": (_nothing, _tasks),
    "claim": (_tasks, _claim),
    "claim from lanes": (_laned, _claim),
    "extend": (_held, _extend),
    "finish": (_held, _finish),
    "cancel": (_laned, _cancel),
    "retry": (_held, _retry),
    "release": (_held, _release),
    "promote": (_scheduled, _promote),
    "expire": (_overdue, _expire),
    "move to history": (_settled, _move),
    "revive what moved": (_in_history, _revive),
    "revive": (_settled, _revive),
    "open a lane": (_tasks, _open),
    "close a lane": (_laned, _close),
}
"""What is there before, and what the process does as it dies."""


@pytest.mark.parametrize("is_sent", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("act", ACTS)
def test_a_process_may_die_at_any_write(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch, act: str, is_sent: bool
) -> None:
    """L4, L5, N1: wherever a process dies, each task is found once, in one state, the audit finds nothing, and another
    process brings all of them to an end."""
    prepare, do = ACTS[act]
    step, came = 0, True
    while came:
        url, clock = fresh_space(cassandra_url, shards=2), ManualClock()
        with migrated(url, clock) as store:
            prepare(store, clock)
            with dying(monkeypatch, step, is_sent=is_sent) as died:
                do(store, clock)
            came = died()
        _check(url, clock, is_enqueue=act == "enqueue")
        step += 1
    assert step > 1, "nothing was written"


def _check(url: str, clock: ManualClock, *, is_enqueue: bool) -> None:
    """What another process finds, and that it can go on."""
    store = open_url(url, clock)
    try:
        assert store.audit() == []
        found = ids(store.find(ALL, list(State), 100))
        if is_enqueue:
            _tasks(store, clock)  # as whoever got no answer does
        else:
            assert sorted(found) == NAMES
        clock.move(600)
        laned = Laned.over(store)
        resume(laned.lanes, 0, 30)
        laned.book.refresh()
        _bring_to_an_end(laned)
        assert store.audit() == []
        settled = store.find(ALL, [State.DONE, State.FAILED, State.CANCELLED], 100)
        assert sorted(ids(settled)) == NAMES
    finally:
        store.close()


def _bring_to_an_end(laned: Laned) -> None:
    store = laned.store
    for lane in laned.book.known.lanes.values():
        assert laned.content(lane) == laned.expected(lane)
    for _ in range(3):
        for task in store.due(100):
            change = Promote(task.id, {}) if task.state is State.SCHEDULED else Expire(task.lease, 0, {})
            laned.apply([(change, task)])
        store.apply([Finish(task.lease, State.DONE) for task in claim(store, limit=100)])


@pytest.mark.parametrize("is_sent", [False, True], ids=["before a write", "after a write"])
def test_a_process_may_die_while_it_seals_a_generation(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """CA1: a generation that was sealed by a process that died hides nothing."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 2)
    step, came = 0, True
    while came:
        url, clock = fresh_space(cassandra_url, shards=1), ManualClock()
        with migrated(url, clock) as store:
            _tasks(store, clock)
            with dying(monkeypatch, step, is_sent=is_sent) as died:
                for _ in range(2):
                    for task in claim(store, limit=3):
                        Laned.over(store).apply([(GiveBack(task.lease, {"n": 1}), task)])
            came = died()
        _check(url, clock, is_enqueue=False)
        step += 1
    assert step > 1


def test_shards_are_those_that_were_made(cassandra_url: str) -> None:
    """Issue 7: the number of shards is the space's, whatever a URL says later: ids lead to shards."""
    url = fresh_space(cassandra_url, shards=2)
    with migrated(url) as store:
        assert store._shards.count == 2
    with migrated(url.replace("shards=2", "shards=7")) as store:
        assert store._shards.count == 2
