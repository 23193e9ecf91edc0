"""What became of every task, from the claimers' logs and the store's history: the proof that `crashes` gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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


def judge(expected: Sequence[TaskId], logs: Logs, history: Iterable[TaskRecord], live: int) -> Verdict:
    """Hold the logs against history. `live` is how many tasks the store still counts as such."""
    verdict = Verdict(dropped=logs.dropped)
    found: dict[TaskId, TaskRecord] = {}
    for task in history:
        if task.id in found:
            verdict.lost.append(f"{task.id} is in history twice")
        found[task.id] = task
    verdict.tasks = len(found)
    if live:
        verdict.lost.append(f"{live} tasks are still live")
    for task_id in sorted(found.keys() - set(expected)):
        verdict.lost.append(f"{task_id} was never enqueued")
    for task_id in expected:
        settled = found.get(task_id)
        if settled is None or settled.state is not State.DONE:
            verdict.lost.append(f"{task_id} is {'lost' if settled is None else settled.state}")
        else:
            _judge_task(verdict, settled, sorted(logs.leasings[task_id]), logs.settled[task_id])
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
