"""What became of every task, from the claimers' logs and the store's history: the proof that `crashes` gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.ledger import whole_lines
from wiggle_core.tasks.task import State, TaskId, TaskRecord


@dataclass(frozen=True, slots=True, order=True)
class Leasing:
    """One lease as its claimer logged it; times in epoch microseconds of the database."""

    began: int
    until: int
    attempt: int
    token: str


@dataclass(slots=True)
class Logs:
    """All claimers' logs in one."""

    leasings: dict[TaskId, list[Leasing]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[TaskId, list[str]] = field(default_factory=lambda: defaultdict(list))
    dropped: int = 0
    """Settlements refused because the lease had been taken back."""


def read_logs(paths: Iterable[Path]) -> Logs:
    """Every whole line of each claimer's."""
    logs = Logs()
    for path in paths:
        for line in whole_lines(path):
            match line.split(" "):
                case ["L", task_id, token, attempt, began, until]:
                    logs.leasings[task_id].append(Leasing(int(began), int(until), int(attempt), token))
                case ["S", task_id, token]:
                    logs.settled[task_id].append(token)
                case ["X", _, _]:
                    logs.dropped += 1
                case _:
                    raise ValueError(f"{path.name}: {line!r} is no line of a log")
    return logs


@dataclass(slots=True)
class Verdict:
    """What was found wrong, by kind, the first few of each in words, and what merely happened."""

    tasks: int = 0
    lost: list[str] = field(default_factory=list)
    """Expected, and not DONE in history exactly once."""
    overlapping: list[str] = field(default_factory=list)
    """Leased while another lease on the task had neither ended nor been taken back (L1)."""
    settled_twice: list[str] = field(default_factory=list)
    """Settled by more than one lease, or by another than history says (L2)."""
    leases: int = 0
    rerun: int = 0
    """Tasks that were leased more than once, because a lease ran out."""
    dropped: int = 0
    unlogged: int = 0
    """Leases of claimers killed before they could log them, told by the attempt number."""


def judge(expected: Iterable[TaskId], logs: Logs, history: Iterable[TaskRecord], live: int) -> Verdict:
    """Hold the logs against history. `live` is how many tasks the store still counts as such."""
    verdict = Verdict(dropped=logs.dropped)
    missing, found = set(expected), set[TaskId]()
    for task in history:
        if task.id in found:
            verdict.lost.append(f"{task.id} is in history twice")
        elif task.id not in missing:
            verdict.lost.append(f"{task.id} was never enqueued")
        elif task.state is not State.DONE:
            verdict.lost.append(f"{task.id} is {task.state}")
        else:
            _judge_task(verdict, task, sorted(logs.leasings[task.id]), logs.settled[task.id])
        found.add(task.id)
        missing.discard(task.id)
    verdict.tasks = len(found)
    verdict.lost.extend(f"{task_id} is lost" for task_id in sorted(missing))
    if live:
        verdict.lost.append(f"{live} tasks are still live")
    return verdict


def _judge_task(verdict: Verdict, task: TaskRecord, leasings: list[Leasing], settled: list[str]) -> None:
    verdict.leases += len(leasings)
    verdict.rerun += task.attempt > 1
    verdict.unlogged += task.attempt - len(leasings)
    verdict.overlapping.extend(f"{task.id}: {each}" for each in _overlaps(leasings, task))
    if settled not in ([], [task.token]):
        verdict.settled_twice.append(f"{task.id}: settled under {settled}, history says {task.token}")


def _overlaps(leasings: list[Leasing], task: TaskRecord) -> Iterator[str]:
    """A lease but the last ends only by being taken back: not before its end, and with a new attempt (L2, L3)."""
    for before, after in pairwise(leasings):
        if after.began < before.until:
            yield f"{after.token} began {before.until - after.began} us before {before.token} ran out"
        if after.attempt <= before.attempt:
            yield f"{before.token} and {after.token} both had attempt {after.attempt}"
    last = leasings[-1] if leasings else None
    if last is not None and last.attempt > task.attempt:
        yield f"{last.token} began after the task was settled"
    if last is not None and last.attempt == task.attempt and last.token != task.token:
        yield f"{last.token} and {task.token} both had attempt {task.attempt}"
