"""Time passing: scheduled tasks become READY, expired leases are taken back, old history is forgotten.

Any number of nodes sweep at once. Every change is guarded, so two that sweep the same task do it once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic

from wiggle_core.engine.placement import Move, Placement, Placing
from wiggle_core.errors import PermanentStoreError, SchemaError, StoreError
from wiggle_core.stores.store import Expire, Promote, Store, change_id
from wiggle_core.tasks.task import MIN_HISTORY_MICROS, State, TaskId, TaskRecord

_log = logging.getLogger("wiggle.engine")

DEFAULT_LIMIT = 1_000
DUE_BATCH = 100
"""How many tasks are moved at once: they come with their payloads, of up to a megabyte each."""
PURGE_SECONDS = 10.0
"""How often a sweeper thread forgets old history: each time is a write transaction, also when nothing is old."""

FORGET_SECONDS = 300.0
"""How often it forgets workers that died long ago, for which every registration is read."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did. `retried` and `failed` are expired leases, with attempts left and without."""

    promoted: int = 0
    retried: int = 0
    failed: int = 0
    purged: int = 0

    @property
    def moved(self) -> int:
        """How many tasks changed their state."""
        return self.promoted + self.retried + self.failed

    def __add__(self, other: Swept) -> Swept:
        return Swept(
            self.promoted + other.promoted,
            self.retried + other.retried,
            self.failed + other.failed,
            self.purged + other.purged,
        )


def move_due(store: Store, placement: Placement, limit: int = DEFAULT_LIMIT) -> Swept:
    """Promote tasks that are due, or take them back by their retry policy (L3): at most `limit`, in small batches."""
    size, left, swept = min(DUE_BATCH, store.capabilities.max_batch), limit, Swept()
    while left > 0:
        asked = min(left, size)
        late = store.due(asked)
        swept += _move_all(late, placement)
        left = left - len(late) if len(late) >= asked else 0
    return swept


def _move_all(late: Sequence[TaskRecord], placement: Placement) -> Swept:
    placing = placement.placing()
    moves = [_move(task, placing) for task in late]
    applied = _apply(moves, placement)
    done = [move.change for move in moves if change_id(move.change) in applied]
    promoted = sum(isinstance(change, Promote) for change in done)
    failed = sum(isinstance(change, Expire) and change.delay is None for change in done)
    return Swept(promoted, len(done) - promoted - failed, failed)


def _apply(moves: Sequence[Move], placement: Placement) -> set[TaskId]:
    """Apply changes; the ids of those that took effect. One that the store cannot hold is found by halving, logged and
    left out: it must not keep the others from being moved, in this batch and in each one to come."""
    if not moves:
        return set()
    try:
        return placement.apply(moves)
    except SchemaError:  # the fault of no task
        raise
    except PermanentStoreError as error:
        if len(moves) > 1:
            middle = len(moves) // 2
            return _apply(moves[:middle], placement) | _apply(moves[middle:], placement)
        _log.error("task %s is due, but the store refuses its change: %s", change_id(moves[0].change), error)
        return set()


def _move(task: TaskRecord, placing: Placing) -> Move:
    if task.state is State.SCHEDULED:
        return placing.promote(task)
    return placing.expire(task, task.retry.delay(task.attempt) if task.retry.allows_another(task.attempt) else None)


def purge(store: Store, retention: int, limit: int = DEFAULT_LIMIT) -> int:
    """Forget at most `limit` tasks settled more than `retention` microseconds ago, ten minutes at least (L4, L5)."""
    return store.purge(store.now() - max(retention, MIN_HISTORY_MICROS), limit)


class Sweeper:
    """A thread that sweeps every `interval` seconds, give or take a fifth so that nodes do not march in step."""

    def __init__(
        self, sweep: Callable[[], Swept], chores: Sequence[tuple[Callable[[], object], float]], interval: float
    ) -> None:
        """`chores` are done beside the sweeps, each after the seconds beside it have passed again."""
        self._sweep = sweep
        self._chores = chores
        self._interval = interval
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="wiggle-sweeper", daemon=True)

    def start(self) -> None:
        """Begin to sweep."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End after the sweep that is under way, or return after `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        due_at = [monotonic()] * len(self._chores)
        while not self._stopping.wait(self._interval * random.uniform(0.8, 1.2)):
            self._guarded(self._sweep_all)
            for number, (chore, pause) in enumerate(self._chores):
                if monotonic() >= due_at[number]:
                    self._guarded(chore)
                    due_at[number] = monotonic() + pause

    def _sweep_all(self) -> None:
        # A pass that moved tasks may have met its limit: tasks that are due together must not wait for each other.
        while self._sweep().moved and not self._stopping.is_set():
            pass

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except StoreError as error:
            _log.warning("sweeping failed, and is tried again: %s", error)
        except Exception:
            _log.exception("sweeping failed, and is tried again")
