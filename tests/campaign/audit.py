"""The audit: whether what the ledgers tell, and what the store holds in the end, can have happened by the rules.

Nothing is taken for wrong that a kill, a lost answer or a step of the clock explains; everything else is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import inf

from tests.campaign.clock import Timeline
from tests.campaign.events import Biography, Changing, Events, Keeping, Leasing
from wiggle_core.tasks.task import LIVE, State, TaskId, TaskRecord


class Wrong(StrEnum):
    """The kinds of findings, and the rules that they break."""

    LOST = "lost (L4)"
    LIVE = "still live after the drain (O4)"
    STRANGE = "never enqueued"
    TWICE = "enqueued or settled twice (L4, L5)"
    DOUBLE = "leased twice at one time (L1)"
    STALE = "stale settlement or extension accepted (L2)"
    EARLY = "taken before it was due (O3)"
    ATTEMPT = "attempts do not add up (L3)"
    HISTORY = "history disagrees with what was told (L2, L6)"


@dataclass(slots=True)
class Verdict:
    """What was found wrong, and what merely happened."""

    findings: dict[Wrong, list[str]] = field(default_factory=lambda: {kind: [] for kind in Wrong})
    figures: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        return not any(self.findings.values())


ENDERS = frozenset({"finish", "requeue", "release", "expire"})
"""The changes that end the lease whose token they name."""


def judge(events: Events, stored: Iterable[TaskRecord], timeline: Timeline) -> Verdict:
    """Hold the ledgers against every task that the store has in the end, live or in history."""
    verdict, found = Verdict(), dict[TaskId, TaskRecord]()
    for task in stored:
        if task.id in found:
            verdict.findings[Wrong.TWICE].append(f"{task.id} is stored twice")
        found[task.id] = task
        if task.id not in events.tasks:
            verdict.findings[Wrong.STRANGE].append(task.id)
    for task_id, biography in sorted(events.tasks.items()):
        trial = Trial(biography, found.get(task_id), timeline, events)
        for kind, text in trial.findings():
            verdict.findings[kind].append(f"{task_id}: {text}")
        _count(verdict.figures, biography, found.get(task_id))
    return verdict


def _count(figures: Counter[str], biography: Biography, task: TaskRecord | None) -> None:
    figures["tasks"] += task is not None
    figures["leases"] += len(biography.leasings)
    figures["extensions held"] += sum(each.held is True for each in biography.keepings)
    for each in biography.changings:
        if each.held:
            figures[f"{each.kind} held"] += 1
        elif each.held is False and each.kind in ENDERS - {"expire"}:
            figures["stale settlements refused"] += 1
    figures["stale extensions refused"] += sum(each.held is False for each in biography.keepings)


Finding = tuple[Wrong, str]


class Trial:
    """One task's biography held against the rules. `task` is what the store has of it in the end."""

    def __init__(self, biography: Biography, task: TaskRecord | None, timeline: Timeline, events: Events) -> None:
        self._of, self._task, self._timeline, self._orphans = biography, task, timeline, events.orphans
        self._revivals = [each for each in biography.changings if each.kind == "revive" and each.held is not False]
        self._leasings = self._in_order(biography.leasings)

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong with it."""
        yield from self._stored()
        yield from self._settled_once()
        yield from self._told()
        yield from self._overlaps()
        yield from self._early()
        yield from self._expired_early()
        yield from self._stale()
        yield from self._attempts()

    def _in_order(self, leasings: Iterable[Leasing]) -> list[Leasing]:
        """The leases in the order in which they were given, as far as it can be known.

        Of two claims under way at one time, the one that read the clock first may have reached the server last; then
        their attempts tell, unless the task was revived meanwhile, or which of them was over while the other was under
        way.
        """
        ordered = sorted(leasings, key=lambda each: (each.at, each.end))
        for end in range(len(ordered), 1, -1):
            for index in range(end - 1):
                before, after = ordered[index : index + 2]
                is_told = before.attempt > after.attempt and not self._may_be_revived(before.start, after.end)
                if before.end > after.start and (is_told or self._was_over_before(after, before)):
                    ordered[index : index + 2] = after, before
        return ordered

    def _was_over_before(self, first: Leasing, second: Leasing) -> bool:
        """Whether the first lease was given up before the second claim was answered, and not the other way round."""
        return self._given_up_at(first) <= second.end and self._given_up_at(second) > first.end

    def _given_up_at(self, lease: Leasing) -> float:
        own = (each for each in self._of.changings if each.token == lease.token and each.kind in ENDERS and each.held)
        return min((each.end for each in own), default=inf)

    # What is stored

    def _stored(self) -> Iterator[Finding]:
        # An answered enqueue leaves the task stored, whether it was new or there already.
        must_exist = self._of.is_told or any(each.held is not None for each in self._of.arrivals)
        if self._task is None:
            if must_exist or self._of.leasings:
                yield Wrong.LOST, "is neither live nor in history"
        elif self._task.state in LIVE:
            yield Wrong.LIVE, f"is {self._task.state}"
        elif not self._of.arrivals:
            yield Wrong.STRANGE, "was never enqueued"
        if sum(each.held is True for each in self._of.arrivals) > 1:
            yield Wrong.TWICE, "was inserted twice under one id"

    def _settled_once(self) -> Iterator[Finding]:
        settling = [each for each in self._of.changings if each.settled is not None]
        held = [each for each in settling if each.held]
        if len(held) > 1 + len(self._revivals):
            yield Wrong.TWICE, f"was settled {len(held)} times and revived at most {len(self._revivals)} times"
        task = self._task
        if task is None or task.state in LIVE:
            return
        if not any(each.held is not False and _leads_to(each, task) for each in settling):
            yield Wrong.HISTORY, f"is {task.state} under {task.token}, which nobody asked for"
        last = max(held, key=lambda each: each.start, default=None)
        is_final = last is not None and not any(each.end > last.start for each in self._revivals)
        if last is not None and is_final and not _leads_to(last, task):
            yield Wrong.HISTORY, f"is {task.state} under {task.token}, but {last} held"

    def _told(self) -> Iterator[Finding]:
        """What a claimer was told to be DONE stays so: nothing revives it."""
        done = {token for token, state in self._of.told_settled if state == State.DONE}
        if len(done) > 1:
            yield Wrong.STALE, f"{sorted(done)} were all told to have finished it"
        for token in done:
            if self._task is not None and (self._task.state, self._task.token) != (State.DONE, token):
                yield Wrong.HISTORY, f"{token} was told to have finished it, but it is {self._task.state}"

    # Leases

    def _overlaps(self) -> Iterator[Finding]:
        for before, after in pairwise(self._leasings):
            if self._can_follow(before, after):
                continue
            # Of two claims under way at one time either may have been the first.
            if before.end > after.start and self._can_follow(after, before):
                continue
            yield Wrong.DOUBLE, f"{after} began while {before} was held"

    def _can_follow(self, before: Leasing, after: Leasing) -> bool:
        """Whether something may have ended the first lease before the second began, and left the task live."""
        possible = (each for each in self._of.changings if each.held is not False and each.start < after.end)
        return any(self._may_end(before, each, after) for each in possible)

    def _may_end(self, lease: Leasing, change: Changing, after: Leasing) -> bool:
        if change.kind == "cancel":
            return self._is_revived(change, after)
        if change.token != lease.token or change.kind not in ENDERS:
            return False
        if change.kind == "expire" and not self._can_have_run_out(lease, change, after.end):
            return False
        return change.settled is None or self._is_revived(change, after)

    def _is_revived(self, change: Changing, after: Leasing) -> bool:
        return any(each.start < after.end and each.end > change.start for each in self._revivals)

    def _can_have_run_out(self, lease: Leasing, expire: Changing, before: int) -> bool:
        """Whether database time can have reached the lease's end while the change was under way."""
        end = min(expire.end, before)
        return self._timeline.latest(expire.start, max(expire.start, end)) >= self._earliest_end(lease, expire.start)

    def _earliest_end(self, lease: Leasing, at: int) -> int:
        """The earliest end that the lease can have had, in database time, as of the extensions made so far."""
        keepings = [each for each in self._of.keepings if each.token == lease.token and each.held is not False]
        answered = (each for each in keepings if each.held and each.end < at)
        sure = max(answered, key=lambda each: each.start, default=None)
        since = lease.start if sure is None else sure.start
        ends = [self._new_end(each) for each in keepings if each is sure or each.end > since]
        return min(ends if sure is not None else [lease.until, *ends])

    def _new_end(self, keeping: Keeping) -> int:
        return self._timeline.earliest(keeping.start, keeping.end) + keeping.ttl

    def _early(self) -> Iterator[Finding]:
        """A task that had to wait was not leased before its time (O3)."""
        first = min(self._leasings, key=lambda each: each.end, default=None)
        arrivals = [each for each in self._of.arrivals if each.held is not False]
        if first is None or not arrivals:
            return
        start, ready_at = min(each.start for each in arrivals), min(each.ready_at for each in arrivals)
        if self._timeline.latest(start, max(start, first.end)) < ready_at:
            yield Wrong.EARLY, f"{first} began before {ready_at}"

    def _expired_early(self) -> Iterator[Finding]:
        by_token = {each.token: each for each in self._leasings}
        for change in self._of.changings:
            lease = by_token.get(change.token or "")
            if lease is None or change.kind != "expire" or not change.held:
                continue
            if not self._can_have_run_out(lease, change, change.end):
                yield Wrong.DOUBLE, f"{change} took {lease} back before it ran out"

    # Fencing

    def _stale(self) -> Iterator[Finding]:
        by_token = {each.token: each for each in self._leasings}
        enders = [each for each in self._of.changings if each.kind in ENDERS and each.held]
        for token, count in Counter(each.token for each in enders).items():
            if count > 1:
                yield Wrong.STALE, f"{token} ended its lease {count} times"
        uses: list[Changing | Keeping] = [*enders, *(each for each in self._of.keepings if each.held)]
        for use in uses:
            lease = by_token.get(use.token or "")
            if lease is None:
                continue
            if any(each.at > lease.at and each.start > lease.end and each.end < use.start for each in self._leasings):
                yield Wrong.STALE, f"{use} was accepted after another lease had begun"
            elif any(self._ended(lease, each) and each.end < use.start for each in self._of.changings):
                yield Wrong.STALE, f"{use} was accepted after the lease had ended"

    def _ended(self, lease: Leasing, change: Changing) -> bool:
        """Whether the change surely ended the lease."""
        if not change.held:
            return False
        is_cancel = change.kind == "cancel" and change.start > lease.end
        return is_cancel or (change.kind in ENDERS and change.token == lease.token)

    # Attempts

    def _attempts(self) -> Iterator[Finding]:
        for before, after in pairwise(self._leasings):
            if before.end > after.start or self._may_be_revived(before.start, after.end):
                continue
            missing = self._unseen_runs(before, after)
            if missing < 0 or missing > self._orphans_between(before.start, after.end):
                yield Wrong.ATTEMPT, f"{after} followed {before}"
        task, last = self._task, self._leasings[-1] if self._leasings else None
        if task is not None and last is not None and not self._may_be_revived(last.start, None):
            beyond = task.attempt - last.attempt
            if not 0 <= beyond <= 1 + self._orphans_between(last.start, None):
                yield Wrong.ATTEMPT, f"ended with attempt {task.attempt} after {last}"
        if task is not None and task.attempt > task.retry.max_attempts:
            yield Wrong.ATTEMPT, f"ended with attempt {task.attempt} of {task.retry.max_attempts}"

    def _unseen_runs(self, before: Leasing, after: Leasing) -> int:
        """How many runs that no ledger tells must lie between two leases; negative when no number would do."""
        own = [each for each in self._of.changings if each.token == before.token and each.kind in ENDERS]
        can_be_released = any(each.kind == "release" and each.held is not False for each in own)
        is_failed = any(each.kind in ("requeue", "expire") and each.held for each in own)
        is_released = any(each.kind == "release" and each.held for each in own)
        grown = after.attempt - before.attempt
        if is_released:
            return grown
        if grown == 0:
            return 0 if can_be_released and not is_failed else -1
        return grown - 1

    def _may_be_revived(self, start: int, end: int | None) -> bool:
        return any(each.end > start and (end is None or each.start < end) for each in self._revivals)

    def _orphans_between(self, start: int, end: int | None) -> int:
        return sum(each.end > start and (end is None or each.start < end) for each in self._orphans)


def _leads_to(change: Changing, task: TaskRecord) -> bool:
    """Whether the change leaves the task in history as it is there."""
    return change.settled == task.state and (change.kind == "cancel" or change.token == task.token)
