"""The lease state machine reaches what it is there for, and what it finds is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import pytest
from hypothesis import Phase, settings

from wiggle_core.conformance import machine
from wiggle_core.conformance.model import Model
from wiggle_core.conformance.plugin import ManualClock
from wiggle_core.conformance.saboteurs import ExpiresLate, ReleasesToTheBack
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Change, ClaimRequest, change_id
from wiggle_core.tasks.task import LIVE, SETTLED, Lease, State, TaskId, TaskRecord


class _Counting(Model):
    """The model, counting what was asked of tasks in which state, and whether it took effect."""

    seen: ClassVar[Counter[tuple[object, ...]]] = Counter()

    def enqueue(self, tasks: Iterable[TaskRecord]) -> set[TaskId]:
        asked = list(tasks)
        for task in asked:
            self.seen["enqueue", self.tasks[task.id].state if task.id in self.tasks else "new"] += 1
        return super().enqueue(asked)

    def claim(self, request: ClaimRequest, now: int) -> list[TaskRecord]:
        claimed = super().claim(request, now)
        self.seen["claim", min(len(claimed), 2), len(request.routes)] += 1
        self.seen["claim", "again", any(task.attempt > 1 for task in claimed)] += 1
        return claimed

    def extend(self, leases: Iterable[Lease], ttl: int, now: int) -> set[Lease]:
        asked = list(leases)
        held = super().extend(asked, ttl, now)
        self.seen["extend", bool(held), bool(set(asked) - held)] += 1
        return held

    def _take(self, change: Change, now: int) -> bool:
        state = self.tasks[change_id(change)].state if change_id(change) in self.tasks else "unknown"
        took_effect = super()._take(change, now)
        self.seen[type(change).__name__, state, took_effect] += 1
        return took_effect

    def purge(self, before: int) -> int:
        forgotten = super().purge(before)
        self.seen["purge", forgotten > 0] += 1
        return forgotten


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[object, ...]]:
    """What a run of the machine asked, three times as long as the kit's: the draws are fixed, but by everything that
    is imported, so a count near its bound would depend on which tests run together."""
    _Counting.seen = Counter()
    monkeypatch.setattr(machine, "EXAMPLES", 3 * machine.EXAMPLES)
    monkeypatch.setattr(machine, "Model", _Counting)
    clock = ManualClock()
    store = MemoryStore(clock)
    machine.test_lease_state_machine(lambda: store, clock)
    return _Counting.seen


def test_every_change_meets_every_state(seen: Counter[tuple[object, ...]]) -> None:
    """L2: each kind of change takes effect and is refused; changes by lease come in time, late and to settled tasks."""
    for kind in ("Finish", "Requeue", "GiveBack", "Expire"):
        assert seen[kind, State.RUNNING, True] >= 5, kind
        assert seen[kind, State.RUNNING, False] >= 5, kind  # a stale token, or before the end
        assert sum(seen[kind, state, False] for state in State if state is not State.RUNNING) >= 10, kind
    assert seen["Cancel", State.RUNNING, True] >= 3
    assert sum(seen["Cancel", state, True] for state in LIVE) >= 10
    assert sum(seen["Cancel", state, False] for state in SETTLED) >= 5
    assert seen["Revive", State.FAILED, True] >= 3
    assert seen["Revive", State.CANCELLED, True] >= 3
    assert seen["Revive", State.DONE, False] >= 3
    assert seen["Promote", State.SCHEDULED, True] >= 5
    assert seen["Promote", State.SCHEDULED, False] >= 5


def test_every_answer_is_met(seen: Counter[tuple[object, ...]]) -> None:
    """L4, O1: ids are enqueued again in every state; claims are empty, of one task or several, by one route or two."""
    assert all(seen["enqueue", state] >= 3 for state in State)
    assert seen["enqueue", "new"] >= 20
    assert all(sum(seen["claim", size, routes] for routes in (1, 2)) >= 3 for size in range(3))
    assert all(sum(seen["claim", size, routes] for size in (1, 2)) >= 10 for routes in (1, 2))
    assert seen["claim", "again", True] >= 10
    assert all(seen["extend", held, stale] >= 3 for held, stale in ((True, True), (True, False), (False, True)))
    assert seen["purge", True] >= 3


@pytest.mark.parametrize("wrong", [ExpiresLate, ReleasesToTheBack])
def test_a_wrong_store_is_told_by_its_steps(
    wrong: Callable[[ManualClock], MemoryStore], capsys: pytest.CaptureFixture[str]
) -> None:
    """L2, L3: what the machine finds wrong comes with the steps that lead there, as a program that can be run."""
    clock = ManualClock()
    handles: Sequence[MemoryStore] = [wrong(clock)]
    settings.register_profile("generate only", settings(), phases=[Phase.generate])
    before = settings.get_current_profile_name()
    settings.load_profile("generate only")
    try:
        with pytest.raises(AssertionError) as told:
            machine.test_lease_state_machine(lambda: handles[0], clock)
    finally:
        settings.load_profile(before)
    notes = "\n".join(getattr(told.value, "__notes__", []))
    assert "state.begin_with_some()" in notes + capsys.readouterr().out
