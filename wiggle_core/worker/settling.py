"""Outcomes on their way to the store, in groups: a transaction for each would cost more than the work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeAlias

from wiggle_core.errors import PermanentStoreError, StoreError
from wiggle_core.tasks.outcome import Outcome
from wiggle_core.tasks.task import TaskId, TaskRecord
from wiggle_core.worker.context import TaskContext
from wiggle_core.worker.ledger import Ledger
from wiggle_core.worker.polling import FIRST_WAIT, Backoff

_log = logging.getLogger("wiggle.worker")

Report: TypeAlias = tuple[TaskContext, Outcome]

GROUP = 100
PATIENCE = 0.005
"""Seconds that a group waits for more; with GROUP, what a crash may run again."""
LONGEST_PAUSE = 2.0
_NEVER = 1 << 62
_FOREVER = float("inf")


class Outbox:
    """Outcomes that wait to be settled. `put` costs a handler an append; it rings only when the reader has enough."""

    def __init__(self) -> None:
        self._waiting: deque[Report] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._ring_at = _NEVER
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, context: TaskContext, outcome: Outcome) -> None:
        """Add an outcome. From here on the store's answer to it, not the heartbeat, says whether the lease held."""
        context.is_settling = True
        self._waiting.append((context, outcome))
        if len(self._waiting) >= self._ring_at:
            self._ring_at = _NEVER
            self._bell.put(None)

    def close(self) -> None:
        """Let the reader end when it has read everything."""
        self._is_closed = True
        self._bell.put(None)

    @property
    def is_drained(self) -> bool:
        """Whether it is closed and read to the end."""
        return self._is_closed and not self._waiting

    def next_group(self, longest: float | None = None) -> list[Report]:
        """The next outcomes: when there are 100, or 5 ms after the first. Empty when it is drained, or when none came
        for `longest` seconds."""
        while not self._waiting and not self._is_closed:
            self._await(1, longest)
            if longest is not None:
                break
        if self._waiting:
            self._await(GROUP, PATIENCE)
        return [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]

    def _await(self, enough: int, timeout: float | None) -> None:
        """Wait until `enough` outcomes are there. First the mark is set and then the outcomes are counted, while
        `put` appends first and reads the mark then: one of the two sees the other."""
        while not self._bell.empty():
            self._bell.get_nowait()
        self._ring_at = enough
        if len(self._waiting) < enough and not self._is_closed:
            with suppress(Empty):
                self._bell.get(timeout=timeout)
        self._ring_at = _NEVER


class Settler:
    """Reports groups of outcomes until the outbox is closed, and again when the store is in trouble.

    `report` returns the ids of the tasks whose lease held.
    """

    def __init__(
        self,
        outbox: Outbox,
        ledger: Ledger,
        report: Callable[[Sequence[tuple[TaskRecord, Outcome]]], Collection[TaskId]],
        pause: Callable[[float], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.give_up_at = _FOREVER
        """Not tried again after this time, whatever the leases say: set when the worker stops."""
        self._outbox = outbox
        self._ledger = ledger
        self._report = report
        self._pause = pause
        self._clock = clock
        self._refused: list[tuple[Report, float]] = []
        self._refused_backoff = Backoff(FIRST_WAIT, LONGEST_PAUSE)
        self._refused_due_at = 0.0

    def run(self) -> None:
        """Settle until the outbox is closed and empty."""
        while (group := self._next_group()) or self._refused:
            self._settle_guarded(group, _FOREVER)
            if self._refused and self._clock() >= self._refused_due_at:
                self._try_refused()

    def _next_group(self) -> Sequence[Report]:
        """What to settle next; nothing when it is time to try again what was refused."""
        if not self._refused:
            self._refused_backoff.reset()
            return self._outbox.next_group()
        wait = max(0.0, self._refused_due_at - self._clock())
        # With many refused it is not the outcome that is to blame: read no more, so that no more is claimed.
        if self._outbox.is_drained or len(self._refused) > GROUP:
            self._pause(wait)
            return ()
        return self._outbox.next_group(wait)

    def _settle_guarded(self, group: Sequence[Report], until: float) -> None:
        try:
            self._settle(group, until)
        except Exception:
            _log.exception("%d outcomes could not be settled; their tasks will be run again", len(group))
            self._ledger.give_up(group)

    def _settle(self, group: Sequence[Report], until: float) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_PAUSE)
        while group:
            try:
                accepted = self._report([(context.task, outcome) for context, outcome in group])
            except StoreError as error:
                self._ledger.count("errors")
                _log.warning("settling %d outcomes failed: %s", len(group), error)
                if isinstance(error, PermanentStoreError):
                    self._settle_apart(group, until)
                    return
                group = self._worth_another_try(group, until)
                if group:
                    self._pause(backoff.next())
            else:
                self._ledger.settle(group, accepted)
                return

    def _settle_apart(self, group: Sequence[Report], until: float) -> None:
        """One outcome that the store cannot hold must not keep the others from being settled: it is found by halving,
        and set aside until they are."""
        if len(group) > 1:
            middle = len(group) // 2
            self._settle_guarded(group[:middle], until)
            self._settle_guarded(group[middle:], until)
            return
        # Not for ever, though the heartbeat goes on extending its lease.
        until = min(until, group[0][0].sure_until)
        if self._worth_another_try(group, until):
            self._set_aside(group[0], until)

    def _set_aside(self, report: Report, until: float) -> None:
        if not self._refused:
            self._refused_due_at = self._clock() + self._refused_backoff.next()
        self._refused.append((report, until))

    def _try_refused(self) -> None:
        refused, self._refused = self._refused, []
        for report, until in refused:
            self._settle_guarded([report], until)

    def _worth_another_try(self, group: Sequence[Report], until: float) -> Sequence[Report]:
        """Those whose lease may still be held, before `until`."""
        now, until = self._clock(), min(until, self.give_up_at)
        late = [each for each in group if now >= min(each[0].sure_until, until)]
        for context, _ in late:
            _log.error("the outcome of task %s could not be settled in time; it will be run again", context.id)
        self._ledger.give_up(late)
        return [each for each in group if now < min(each[0].sure_until, until)]
