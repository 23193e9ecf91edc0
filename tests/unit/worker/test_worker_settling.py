"""How outcomes reach the store: in groups, again after trouble, never lost in silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from wiggle_core import PermanentStoreError, TransientStoreError
from wiggle_core.tasks.outcome import Done, Fail, Outcome
from wiggle_core.tasks.task import TaskId, TaskRecord
from wiggle_core.worker.context import TaskContext
from wiggle_core.worker.ledger import Counts, Ledger
from wiggle_core.worker.settling import Outbox, Settler


def break_down() -> None:
    raise KeyError("a bug")


class Bench:
    """A settler over a store that does as it is told, on a clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.groups: list[list[TaskId]] = []
        self.trouble: Callable[[Collection[TaskId]], None] = lambda ids: None
        self.gone: set[TaskId] = set()
        self.settled_at: dict[TaskId, float] = {}
        self.counts = Counts()
        self.ledger = Ledger(self.counts)
        self.outbox = Outbox()
        self.settler = Settler(self.outbox, self.ledger, self.report, self.pause, lambda: self.now)

    def report(self, reports: Sequence[tuple[TaskRecord, Outcome]]) -> set[TaskId]:
        ids = [task.id for task, _ in reports]
        self.groups.append(ids)
        self.trouble(ids)
        self.settled_at |= dict.fromkeys(ids, self.now)
        return set(ids) - self.gone

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def finish(self, number: int, outcome: Outcome | None = None, sure_until: float = 30.0) -> TaskContext:
        task = TaskRecord(id=f"{number:03}", queue="q", step="s", created_at=0, ready_at=0, token="t")
        context = TaskContext(task, sure_until)
        self.ledger.add([context])
        self.outbox.put(context, outcome or Done())
        return context

    def run(self) -> None:
        self.outbox.close()
        self.settler.run()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_groups_hold_a_hundred_at_most(bench: Bench) -> None:
    """Section 8: flushed at 100 outcomes; a crash re-runs at most those."""
    for number in range(250):
        bench.finish(number)
    bench.run()
    assert list(map(len, bench.groups)) == [100, 100, 50]
    assert bench.counts.done == 250
    assert len(bench.ledger) == 0


def test_a_lease_that_is_gone_is_counted_as_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: LeaseLost is normal: counted, logged, dropped."""
    bench.gone = {"001"}
    contexts = [bench.finish(number, Fail("no") if number == 2 else None) for number in range(3)]
    bench.run()
    assert (bench.counts.done, bench.counts.failed, bench.counts.lost) == (1, 1, 1)
    assert [context.lease_lost for context in contexts] == [False, True, False]
    assert "001" in caplog.text
    assert len(bench.ledger) == 0


class Charged(Done):
    """An outcome of a user's own kind."""


def test_an_outcome_of_a_kind_of_ones_own_is_counted(bench: Bench) -> None:
    """Section 8: what a handler returns may be a subclass; it is what the store took it for."""
    bench.finish(1, Charged(5))
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (1, 0)


def test_trouble_is_outlasted(bench: Bench) -> None:
    """Section 8: a settlement that fails is tried again, with back-off, and the lease is kept meanwhile."""

    def away(ids: Collection[TaskId]) -> None:
        if bench.now < 5:
            assert len(bench.ledger) == 1
            raise TransientStoreError("away")

    bench.trouble = away
    bench.finish(1)
    bench.run()
    assert bench.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert (bench.counts.done, bench.counts.dropped, bench.counts.errors) == (1, 0, 6)


def test_trouble_beyond_the_lease_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: bounded by the lease, and then an error in the log: the task is run again."""

    def away(ids: Collection[TaskId]) -> None:
        raise TransientStoreError("away")

    bench.trouble = away
    bench.finish(1, sure_until=1.0)
    bench.finish(2, sure_until=4.0)
    bench.run()
    assert bench.counts.dropped == 2
    assert [record.levelname for record in caplog.records].count("ERROR") == 2
    assert bench.groups[-1] == ["002"]
    assert bench.now < 8
    assert len(bench.ledger) == 0


def test_a_stop_bounds_the_tries(bench: Bench) -> None:
    """Section 8: a stop is bounded, also by a store in trouble."""

    def away(ids: Collection[TaskId]) -> None:
        raise TransientStoreError("away")

    bench.trouble = away
    bench.settler.give_up_at = 0.5
    bench.finish(1)
    bench.run()
    assert bench.now < 1
    assert bench.counts.dropped == 1


def test_one_bad_outcome_does_not_hold_up_the_others(bench: Bench) -> None:
    """Section 8: what the store cannot hold is found by halving; the rest is settled."""

    def refuse(ids: Collection[TaskId]) -> None:
        if "013" in ids:
            raise PermanentStoreError("no")

    bench.trouble = refuse
    for number in range(40):
        bench.finish(number, sure_until=1.0)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (39, 1)


def test_a_refused_outcome_waits_for_the_others(bench: Bench) -> None:
    """Section 8: the rest of its group, and the groups behind it, are settled before it is tried again."""

    def refuse(ids: Collection[TaskId]) -> None:
        if {"000", "041"} & set(ids):
            raise PermanentStoreError("no")

    bench.trouble = refuse
    for number in range(300):
        bench.finish(number)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (298, 2)
    last = next(at for at, group in enumerate(bench.groups) if "299" in group)
    assert bench.groups[:last].count(["000"]) == bench.groups[:last].count(["041"]) == 1
    assert bench.settled_at["299"] == 0
    assert 30 <= bench.now < 35


def test_what_was_refused_for_a_while_is_settled(bench: Bench) -> None:
    """Section 8: a table that was full, say, is made larger within the lease."""

    def refuse(ids: Collection[TaskId]) -> None:
        if "001" in ids and bench.now < 5:
            raise PermanentStoreError("no")

    bench.trouble = refuse
    for number in range(3):
        bench.finish(number)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (3, 0)
    assert bench.settled_at == {"000": 0, "001": bench.now, "002": 0}
    assert bench.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])


def test_when_all_is_refused_no_more_is_read(bench: Bench) -> None:
    """Section 8: then the worker claims no more, for the outbox fills."""

    def refuse(ids: Collection[TaskId]) -> None:
        if bench.now < 5:
            assert len(bench.outbox) >= 300
            raise PermanentStoreError("no")

    bench.trouble = refuse
    for number in range(500):
        bench.finish(number)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (500, 0)


def test_a_refused_outcome_is_given_up_though_its_lease_is_kept(bench: Bench) -> None:
    """Section 8: the heartbeat extends the lease, and for ever the other outcomes would wait behind this one."""
    kept = bench.finish(1, sure_until=3.0)

    def refuse(ids: Collection[TaskId]) -> None:
        if "001" in ids:
            kept.sure_until = bench.now + 30
            if bench.now > 100:
                break_down()
            raise PermanentStoreError("no")

    bench.trouble = refuse
    bench.finish(2)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (1, 1)
    assert 30 <= bench.now < 35


def test_a_bug_does_not_end_the_settler(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: a worker survives whatever a settlement raises."""
    bench.trouble = lambda ids: break_down() if "000" in ids else None
    for number in range(101):
        bench.finish(number)
    bench.run()
    assert (bench.counts.done, bench.counts.dropped) == (1, 100)
    assert "KeyError" in caplog.text


def test_a_heartbeat_tells_what_is_lost(bench: Bench) -> None:
    """Section 8: lost at the next heartbeat, unless the outcome is on its way: then the store's answer to it counts."""
    held, lost, settling = (
        TaskContext(TaskRecord(id=name, queue="q", step="s", created_at=0, ready_at=0, token="t"), 1.0)
        for name in ("held", "lost", "settling")
    )
    bench.ledger.add([held, lost, settling])
    bench.outbox.put(settling, Done())
    bench.ledger.confirm(bench.ledger.held(), lambda context: context is held, 50.0)
    assert [each.lease_lost for each in (held, lost, settling)] == [False, True, False]
    assert (held.sure_until, bench.counts.lost) == (50.0, 1)
    bench.run()
    assert (bench.counts.done, bench.counts.lost, bench.ledger.held()) == (1, 1, [held])


def test_a_task_claimed_again_lost_its_first_lease(bench: Bench) -> None:
    """L1: at most one lease a task: the second claim proves that the first was taken back."""
    task = TaskRecord(id="a", queue="q", step="s", created_at=0, ready_at=0, token="t")
    first, second = TaskContext(task), TaskContext(task)
    bench.ledger.add([first])
    bench.ledger.add([second])
    assert (first.lease_lost, second.lease_lost, bench.ledger.held()) == (True, False, [second])
