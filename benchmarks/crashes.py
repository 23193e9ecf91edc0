"""`python -m benchmarks crashes`: claimers and the enqueuer are killed with SIGKILL, and every task accounted for.

What is proven: each task settled, none lost, none leased twice at one time (L1, L2, L4). The enqueuer is killed in
mid-batch and started again with the same ids; then claimers drain the queue while one after another is killed, at
moments drawn at random, and replaced. Now and then half of them are stopped instead (SIGSTOP) until their
leases have run out and been taken back, and then go on with what they believe they hold (L2).
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from random import Random
from uuid import uuid4

from benchmarks.children import ask, start
from benchmarks.ledger import count_live, read_history
from benchmarks.report import Report
from benchmarks.verdict import Verdict, judge, read_logs
from benchmarks.victims import task_id
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.store import Store

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """How many processes, tasks and kills, and how many tasks a claim takes; `lease` in seconds, short so that those
    of the killed run out meanwhile."""

    processes: int = 16
    tasks: int = 200_000
    limit: int = 20
    kills: int = 20
    enqueuer_kills: int = 3
    pauses: int = 3
    lease: float = 3.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where it happens: a queue of its own in a store, and a directory for the logs."""

    url: str
    store: Store
    queue: str
    directory: Path

    def count_live(self) -> int:
        return count_live(self.store, self.queue)


def run(report: Report, directory: Path, scenario: Scenario, url: str | None = None) -> None:
    """Both halves, and the verdict, on the store that `url` names, else on an SQLite file in the directory.

    Every task of that store is part of its own audit, and the settled ones stay in its history.
    """
    url = url or f"sqlite:///{directory / 'crashes.db'}"
    store = open_store(url)
    place = _Place(url, store, f"crashes-{uuid4().hex[:8]}", directory)
    try:
        store.migrate()
        _kill_enqueuers(report, place, scenario)
        logs = _kill_claimers(report, place, scenario)
        expected = (task_id(place.queue, number) for number in range(scenario.tasks))
        verdict = judge(expected, read_logs(logs), read_history(store, place.queue), place.count_live())
        _tell(report, verdict, scenario)
        again = ask("victims", "enqueue", url, place.queue, scenario.tasks)
        report.holds("enqueueing all again, after they settled, adds nothing (L4)", again["inserted"] == 0)
        wrong = store.audit()
        report.holds("the store's own audit finds nothing", not wrong, "; ".join(wrong[:SHOWN]))
    finally:
        store.close()


def _kill_enqueuers(report: Report, place: _Place, scenario: Scenario) -> None:
    report.head(
        f"Enqueueing {scenario.tasks:,} tasks; the enqueuer is killed {scenario.enqueuer_kills} times in mid-batch"
    )
    random = Random(scenario.seed)
    started = time.perf_counter()
    for threshold in sorted(random.sample(range(1, scenario.tasks), scenario.enqueuer_kills)):
        enqueuer = start("victims", "enqueue", place.url, place.queue, scenario.tasks)
        while place.count_live() < threshold and enqueuer.poll() is None:
            time.sleep(0.02)
        _kill(enqueuer)
        report.note(f"killed after {place.count_live():,} tasks")
    last = ask("victims", "enqueue", place.url, place.queue, scenario.tasks)
    report.figure("enqueueing, with every restart", time.perf_counter() - started, "s")
    complete = last["inserted"] + last["existing"] == scenario.tasks == place.count_live()
    report.holds("every id is there exactly once", complete, json.dumps(last))


@dataclass(slots=True)
class _Claimers:
    """The claimers that run now, and the logs of all that ever ran."""

    place: _Place
    scenario: Scenario
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    replayed: Counter[str] = field(default_factory=Counter)

    def add(self) -> None:
        """Start one more, with a log of its own."""
        place, scenario = self.place, self.scenario
        log = place.directory / f"claimer-{len(self.logs)}.log"
        log.touch()
        self.running.append(start("victims", "claim", place.url, place.queue, log, scenario.limit, scenario.lease))
        self.logs.append(log)

    def replace(self, index: int) -> None:
        """Kill one and start another."""
        _kill(self.running.pop(index))
        self.add()

    def pause(self, index: int) -> None:
        """Stop half of them until their leases have run out and others had the time to take these back.

        One that is stopped with the write lock in hand makes all the others wait, and their leases run out as well.
        """
        stopped = self.running[index % 2 :: 2]
        for claimer in stopped:
            claimer.send_signal(signal.SIGSTOP)
        time.sleep(2 * self.scenario.lease)
        for claimer in stopped:
            claimer.send_signal(signal.SIGCONT)

    def settled(self) -> int:
        """About how many tasks are settled: half of the lines of all logs, which are of like length."""
        a_task = task_id(self.place.queue, 0)
        lines = f"L {a_task} {'t' * 36} 1 {10**15} {10**15}\nS {a_task} {'t' * 36}\n"
        return sum(log.stat().st_size for log in self.logs) // len(lines)

    def wait(self) -> None:
        """Until all have ended by themselves."""
        for claimer in self.running:
            output, errors = claimer.communicate()
            if claimer.returncode != 0:
                self.failed.append(errors[-500:])
            else:
                self.replayed.update(json.loads(output))

    def stop(self) -> None:
        """End what still runs, after a failure of the benchmark itself."""
        for claimer in self.running:
            _kill(claimer)


def _kill_claimers(report: Report, place: _Place, scenario: Scenario) -> list[Path]:
    report.head(
        f"{scenario.processes} claimers of {scenario.limit} tasks at a time; {scenario.kills} are killed, half of them "
        f"paused {scenario.pauses} times"
    )
    claimers = _Claimers(place, scenario)
    random = Random(scenario.seed + 1)
    started = time.perf_counter()
    try:
        for _ in range(scenario.processes):
            claimers.add()
        strokes = [_Claimers.replace] * scenario.kills + [_Claimers.pause] * scenario.pauses
        moments = sorted(((random.uniform(0.02, 0.9), stroke) for stroke in strokes), key=itemgetter(0))
        hits = sum(_strike(claimers, int(moment * scenario.tasks), stroke, random) for moment, stroke in moments)
        claimers.wait()
    finally:
        claimers.stop()
    seconds = time.perf_counter() - started
    report.figure("from the first start to the last settlement", seconds, "s")
    report.figure("tasks claimed and settled a second", scenario.tasks / seconds, "")
    replayed = sum(claimers.replayed.values())
    report.figure("passing errors replayed inside, deadlocks among them", replayed, "")
    report.holds("every stroke hit a process at work", hits == len(strokes), f"{hits} of {len(strokes)}")
    report.holds("no claimer failed by itself", not claimers.failed, "; ".join(claimers.failed[:1]))
    return claimers.logs


def _strike(claimers: _Claimers, threshold: int, stroke: Callable[[_Claimers, int], None], random: Random) -> bool:
    """Kill or pause a random claimer once so many tasks are settled; whether there was one at work."""
    while claimers.settled() < threshold:
        if all(claimer.poll() is not None for claimer in claimers.running):
            return False
        time.sleep(0.005)
    # A moment that no step of the claimer's loop is tied to.
    time.sleep(random.uniform(0, 0.02))
    working = [index for index, claimer in enumerate(claimers.running) if claimer.poll() is None]
    if working:
        stroke(claimers, random.choice(working))
    return bool(working)


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _tell(report: Report, verdict: Verdict, scenario: Scenario) -> None:
    report.head("The logs of all claimers held against history")
    report.figure("leases logged", verdict.leases, "")
    report.figure("leases of killed claimers that never reached a log", verdict.unlogged, "")
    report.figure("tasks run again after a lease ran out", verdict.rerun, "")
    report.figure("results dropped because the lease had been taken back", verdict.dropped, "")
    report.holds("tasks settled", verdict.tasks == scenario.tasks, f"{verdict.tasks:,}")
    for name, wrong in (
        ("none lost: every id is DONE, once", verdict.lost),
        ("none leased twice at one time", verdict.overlapping),
        ("none settled twice", verdict.settled_twice),
    ):
        report.holds(name, not wrong, f"{len(wrong)} wrong" if wrong else "")
        for line in wrong[:SHOWN]:
            report.note(line)
