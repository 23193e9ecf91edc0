"""Sweeps of the Cassandra store: what they pass by, what they keep from others, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.stores.cassandra_spaces import fresh_space, migrated
from wiggle_core.conformance.plugin import SECOND, START, ManualClock, claim_one, enqueue_all, ids, make_task
from wiggle_core.errors import StoreError, TransientStoreError
from wiggle_core.stores.store import Finish, Revive
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_cassandra import history
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.history import Kept
from wiggle_store_cassandra.rows import Statement, Stored
from wiggle_store_cassandra.shards import Shards


def _overdue(count: int, *, seconds: int = 1) -> list[TaskRecord]:
    return [make_task(state=State.SCHEDULED, ready_at=START - seconds * SECOND) for _ in range(count)]


def _before_marks_move(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have this happen once, between the look for what is due first and the change of a mark."""
    send, left = Connections.applied, [happens]

    def applied(connections: Connections, statements: Sequence[Statement]) -> bool:
        if "SET mark" in statements[0][0] and left:
            left.pop()()
        return send(connections, statements)

    monkeypatch.setattr(Connections, "applied", applied)


def test_no_mark_passes_by_what_comes_meanwhile(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4, CA1: a task that is written while a sweep moves the place where sweeps begin, is due all the same."""
    clock = ManualClock()
    url = fresh_space(cassandra_url, shards=1)
    late = _overdue(1, seconds=100)
    with migrated(url, clock) as store, migrated(url, clock) as other:
        _before_marks_move(monkeypatch, lambda: enqueue_all(other, late))
        assert ids(store.due(10)) == ids(late)
        clock.move(300)
        with migrated(url, clock) as another:
            assert ids(another.due(10)) == ids(late)


def test_a_sweep_that_fails_keeps_nothing_from_others(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: what is due is reserved last, so that an error does not make it wait."""

    def fail() -> None:
        raise TransientStoreError("no node is there")

    clock = ManualClock()
    with migrated(fresh_space(cassandra_url), clock) as store:
        late = _overdue(4)
        enqueue_all(store, late)
        _before_marks_move(monkeypatch, fail)
        with pytest.raises(TransientStoreError):
            store.due(10)
        assert sorted(ids(store.due(10))) == sorted(ids(late))


def test_what_a_sweep_reserved_it_tells(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: where one shard cannot be asked, what is due in others is told; with none of them the error is."""
    clock = ManualClock()
    send = Connections.applied_all
    broken = {1}

    def applied_all(connections: Connections, batches: Sequence[Sequence[Statement]]) -> Sequence[bool | StoreError]:
        if not batches or "SET reserved_at" not in batches[0][0][0]:
            return send(connections, batches)
        return [
            TransientStoreError("no node is there") if batch[0][1][2] in broken else send(connections, [batch])[0]
            for batch in batches
        ]

    with migrated(fresh_space(cassandra_url), clock) as store:
        late = _overdue(20)
        enqueue_all(store, late)
        there = {task.id for task in late if store._shards.number_of(task.id) == 0}
        monkeypatch.setattr(Connections, "applied_all", applied_all)
        assert set(ids(store.due(50))) == there
        broken.add(0)
        clock.move(60)
        with pytest.raises(TransientStoreError):
            store.due(50)


def test_a_sweep_reads_the_payloads_of_what_it_returns(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: however much is due, one sweep reads about as many tasks as it was asked for."""
    monkeypatch.setattr("wiggle_store_cassandra.questions.READ_AT_ONCE", 15)
    clock = ManualClock()
    read: list[TaskId] = []
    tasks = Shards.tasks

    def noted(shards: Shards, asked: Sequence[TaskId], *, whole: bool = False) -> dict[TaskId, Stored]:
        read.extend(asked if whole else ())
        return tasks(shards, asked, whole=whole)

    with migrated(fresh_space(cassandra_url), clock) as store:
        late = [task for seconds in range(60, 0, -1) for task in _overdue(1, seconds=seconds)]
        enqueue_all(store, late)
        monkeypatch.setattr(Shards, "tasks", noted)
        assert ids(store.due(10)) == ids(late[:10])
        assert len(read) == 15


def test_a_task_comes_back_from_its_last_run_only(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L4: a task that is revived, done, and in history again before another thread revives it, stays DONE."""
    clock = ManualClock()
    get = history.get
    left = [True]
    with migrated(fresh_space(cassandra_url), clock) as store:

        def settle(state: State) -> None:
            assert store.apply([Finish(claim_one(store).lease, state)]) == {"t"}
            store.due(10)

        def get_and_be_late(shards: Shards, asked: Sequence[TaskId], *, whole: bool = False) -> dict[TaskId, Kept]:
            found = get(shards, asked, whole=whole)
            if left:
                left.pop()
                assert store.apply([Revive("t", {})]) == {"t"}
                settle(State.DONE)
            return found

        store.enqueue([make_task("t")])
        settle(State.FAILED)
        monkeypatch.setattr(history, "get", get_and_be_late)
        assert store.apply([Revive("t", {})]) == set()
        assert store.lookup(["t"])["t"].state is State.DONE
        assert store.audit() == []
