"""Saboteurs of epochs (N3): stores in which a lane can open while a call that does not know of it is under way.

The reference store does each call under one lock, so that nobody can stand in the midst of one. `TwoStepStore` is as
right, and its calls hold the epoch for a while before they write, as transactions do elsewhere; the others are made of
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Condition
from time import sleep

from wiggle_core.conformance.lane_saboteurs import LanedStore, with_lanes
from wiggle_core.conformance.saboteurs import PAUSE_SECONDS, Saboteur, in_memory
from wiggle_core.stores.changes import makes_ready
from wiggle_core.stores.lanes import (
    NO_LANES,
    Lane,
    NewLane,
    Placed,
)
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.memory_lanes import MemoryLanes
from wiggle_core.stores.store import (
    Change,
    GiveBack,
)
from wiggle_core.tasks.task import Clock, State, TaskId, TaskRecord


class ChecksNoEpoch(MemoryLanes):
    def require(self, placed: Placed) -> None:
        pass


class RefusesEverything(MemoryStore):
    """Calls that make nothing READY are refused, too."""

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            self._lanes.require(placed)
            return super().enqueue(tasks, placed)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            self._lanes.require(placed)
            return super().apply(changes, placed)


class RefusesHalfOfIt(MemoryStore):
    """What makes nothing READY is applied before the rest of the call is refused."""

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            done = super().enqueue([task for task in tasks if task.state is not State.READY], placed)
            return done | super().enqueue(tasks, placed)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            done = super().apply([change for change in changes if not makes_ready(change)], placed)
            return done | super().apply(changes, placed)


class LooksAtTheFirst(MemoryStore):
    """Only the first task or change of a call decides whether the epoch matters."""

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            is_ready = tasks[0].state is State.READY
            return super().enqueue(tasks, placed if is_ready else replace(placed, epoch=self._lanes.read(0).epoch))

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            is_ready = bool(changes) and makes_ready(changes[0])
            return super().apply(changes, placed if is_ready else replace(placed, epoch=self._lanes.read(0).epoch))


class SparesReleases(MemoryStore):
    """A release is not taken for what makes its task READY."""

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            if all(isinstance(change, GiveBack) for change in changes):
                placed = replace(placed, epoch=self._lanes.read(0).epoch)
            return super().apply(changes, placed)


class TwoStepLanes(MemoryLanes):
    """Lanes whose epochs can be held; whoever drains one waits for those inside."""

    holders: Counter[int]
    changed: Condition

    def drained(self, epoch: int, timeout: float) -> bool:
        with self._lock:
            return self.changed.wait_for(
                lambda: not any(self.holders[each] for each in self.holders if each < epoch), timeout
            )


class TwoStepStore(LanedStore):
    """A right store whose calls hold the epoch, wait for a moment, and write then."""

    KIND = TwoStepLanes
    _lanes: TwoStepLanes

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._lanes.holders = Counter()
        self._lanes.changed = Condition(self._lock)

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        if not any(task.state is State.READY for task in tasks):
            return super().enqueue(tasks, placed)
        with self.holding(placed), self._lock:
            return super().enqueue(tasks, self._present(placed))

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        if not any(map(makes_ready, changes)):
            return super().apply(changes, placed)
        with self.holding(placed), self._lock:
            return super().apply(changes, self._present(placed))

    def _present(self, placed: Placed) -> Placed:
        """As the lower store takes it: whether the epoch was right was decided when it was held."""
        return replace(placed, epoch=self._lanes.read(0).epoch)

    @contextmanager
    def holding(self, placed: Placed | None = None) -> Iterator[None]:
        """Hold the epoch by which a call was placed, the present one without; then wait for a moment."""
        held = self._hold(placed or Placed(self._lanes.read(0).epoch))
        try:
            sleep(PAUSE_SECONDS)
            yield
        finally:
            self._let_go(held)

    def _hold(self, placed: Placed) -> int:
        with self._lock:
            self._lanes.require(placed)
            self._lanes.holders[placed.epoch] += 1
            return placed.epoch

    def _let_go(self, epoch: int) -> None:
        with self._lock:
            self._lanes.holders[epoch] -= 1
            self._lanes.changed.notify_all()


class HoldsNothing(TwoStepStore):
    """The epoch is checked, and not held while the call goes on."""

    def _hold(self, placed: Placed) -> int:
        with self._lock:
            self._lanes.require(placed)
        return -1

    def _let_go(self, epoch: int) -> None:
        pass


class ReadsAnOldSnapshot(TwoStepStore):
    """The epoch is read with the lock in one statement, and so from a snapshot older than the lock."""

    def _hold(self, placed: Placed) -> int:
        with self._lock:
            self._lanes.require(placed)
        sleep(PAUSE_SECONDS)
        with self._lock:
            self._lanes.holders[placed.epoch] += 1
            return placed.epoch


class HoldsThePresentEpoch(TwoStepStore):
    """The lock is named by the epoch that is, while the one that was checked is older."""

    def _hold(self, placed: Placed) -> int:
        with self._lock:
            self._lanes.require(placed)
        sleep(PAUSE_SECONDS)
        with self._lock:
            epoch = self._lanes.read(0).epoch
            self._lanes.holders[epoch] += 1
            return epoch


class _DrainsAtOnce(TwoStepLanes):
    def drained(self, epoch: int, timeout: float) -> bool:
        return True


class FillsBeforeItIsDrained(TwoStepStore):
    KIND = _DrainsAtOnce


class _DrainsTheLast(TwoStepLanes):
    def drained(self, epoch: int, timeout: float) -> bool:
        with self._lock:
            return self.changed.wait_for(lambda: not self.holders[epoch - 1], timeout)


class DrainsTheLastEpochOnly(TwoStepStore):
    """Whoever holds a number older than the last one is not waited for."""

    KIND = _DrainsTheLast


class _MakesOthersWait(TwoStepLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            self.changed.wait_for(lambda: not any(self.holders.values()), 10)
            return super().open(wanted)


class OpensAfterAllOthers(TwoStepStore):
    """An opener waits for those inside before it lets anybody know of the lane."""

    KIND = _MakesOthersWait


EPOCHS: tuple[Saboteur, ...] = (
    Saboteur("checks no epoch", "N3", in_memory(with_lanes(ChecksNoEpoch))),
    Saboteur("refuses what makes nothing READY", "N3", in_memory(RefusesEverything)),
    Saboteur("applies half of what it refuses", "N3", in_memory(RefusesHalfOfIt)),
    Saboteur("looks at the first of a batch for the epoch", "N3", in_memory(LooksAtTheFirst)),
    Saboteur("spares releases the epoch", "N3", in_memory(SparesReleases)),
    Saboteur("checks the epoch without holding it", "N3", in_memory(HoldsNothing)),
    Saboteur("reads the epoch in the locking statement", "N3", in_memory(ReadsAnOldSnapshot)),
    Saboteur("holds another epoch than it checked", "N3", in_memory(HoldsThePresentEpoch)),
    Saboteur("fills before the old epoch is drained", "N3", in_memory(FillsBeforeItIsDrained)),
    Saboteur("drains the last epoch only", "N3", in_memory(DrainsTheLastEpochOnly)),
    Saboteur("opens after all others have gone", "N3", in_memory(OpensAfterAllOthers)),
)
"""The saboteurs of epochs."""

TWO_STEPS = Saboteur("the reference store in two steps", "", in_memory(TwoStepStore))
"""Right, as the reference store is: no check is red because calls take their time."""
