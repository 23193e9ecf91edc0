"""How a sweep goes over many tasks: in small batches, and past those that the store refuses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from wiggle_core import Engine, NewTask, PermanentStoreError, QueueCriteria, RetryPolicy, SchemaError, State, TaskRecord
from wiggle_core.engine.sweeper import Swept
from wiggle_core.stores.lanes import NO_LANES, Placed
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Change, change_id

ALL = QueueCriteria("q")
PLAIN = RetryPolicy(max_attempts=3, initial_backoff=timedelta(seconds=10), jitter=0)


class HandClock:
    """A clock that tests move."""

    now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: int) -> None:
        self.now += seconds * 1_000_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


class Refusing(MemoryStore):
    """A store that cannot hold the next state of some tasks, and notes how many it was asked for at once."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.refused: set[str] = set()
        self.asked: list[int] = []

    def due(self, limit: int) -> list[TaskRecord]:
        self.asked.append(limit)
        return super().due(limit)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[str]:
        if self.refused & set(map(change_id, changes)):
            raise PermanentStoreError("too large")
        return super().apply(changes, placed)


def test_a_sweep_moves_small_batches(clock: HandClock) -> None:
    """Section 8: tasks come with payloads of up to a megabyte, so few at a time; the limit is that of the whole."""
    store = Refusing(clock)
    engine = Engine(store)
    engine.enqueue_many(NewTask("q", "s", delay=timedelta(seconds=1)) for _ in range(260))
    clock.pass_seconds(1)
    assert engine.sweep_due(250) == Swept(promoted=250)
    assert store.asked == [100, 100, 50]
    assert engine.sweep() == Swept(promoted=10)
    assert store.asked == [100, 100, 50, 100]


def test_a_change_that_the_store_refuses_holds_up_no_other(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    """L3: the others of its batch are promoted and taken back; the one to blame is named in the log."""
    store = Refusing(clock)
    engine = Engine(store)
    for number in range(8):
        engine.enqueue("q", "s", id=f"t{number}", delay=timedelta(seconds=1) if number < 5 else None, retry=PLAIN)
    engine.claim("w", [ALL], limit=3, lease=timedelta(seconds=1))
    store.refused = {"t3", "t6"}
    clock.pass_seconds(1)
    assert engine.sweep() == Swept(promoted=4, retried=2)
    assert sorted(each.id for each in engine.find(ALL, [State.SCHEDULED, State.RUNNING])) == ["t3", "t5", "t6", "t7"]
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["task t3 is due", "task t6 is due"]
    store.refused = set()
    clock.pass_seconds(5)
    assert engine.sweep() == Swept(promoted=1, retried=1)


def test_a_missing_schema_is_no_fault_of_a_task(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 8: then the sweep fails as a whole, and is not tried with each task."""
    engine = Engine(MemoryStore(clock))
    engine.enqueue_many(NewTask("q", "s", delay=timedelta(seconds=1)) for _ in range(9))
    clock.pass_seconds(1)
    calls: list[int] = []

    def fail(changes: Sequence[Change], placed: Placed) -> set[str]:
        calls.append(len(changes))
        raise SchemaError("the schema is newer")

    monkeypatch.setattr(engine.store, "apply", fail)
    with pytest.raises(SchemaError):
        engine.sweep()
    assert calls == [9]
