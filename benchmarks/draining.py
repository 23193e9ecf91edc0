"""A worker that does nothing, beside huey and litequeue doing nothing, each in a process of its own.

Every library runs as it comes, SQLite in WAL mode: wiggle and huey with `synchronous` FULL, so that what was
acknowledged survives a power cut; litequeue with NORMAL, its own choice, so that it may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.children import ask
from benchmarks.report import Report, alternate

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_files = count()


@dataclass(slots=True)
class Drain:
    """One library as a contender. `tuning` is wiggle's: handlers and prefetch."""

    name: str
    module: str
    tuning: str = ""
    concurrency: int = 0
    durability: str = "FULL"

    def run(self, directory: Path, tasks: int) -> float:
        """Fill and drain a new file; the seconds of the drain."""
        file = directory / f"drain-{next(_files)}.db"
        place = f"sqlite:///{file}" if self.module == "peers.wiggle_drain" else file
        answer = ask(self.module, place, tasks, self.tuning)
        if answer["tasks"] != tasks:
            raise AssertionError(f"{self.name} ran {answer['tasks']} of {tasks} tasks")
        self.concurrency = answer["concurrency"]
        self.durability = _SYNCHRONOUS[answer.get("synchronous", 2)]
        for left in directory.glob(f"{file.name}*"):
            left.unlink()
        return float(answer["seconds"])


def run(report: Report, directory: Path, tasks: int, repeats: int) -> None:
    """Drain `tasks` no-op tasks with each library, `repeats` times in turn."""
    report.head(f"Draining {tasks:,} no-op tasks, one process each, medians of {repeats}")
    # A no-op costs nothing, so what counts is how many tasks are claimed at once: as many as there are free slots,
    # handlers and prefetch together.
    ours = Drain("wiggle, 32 handlers", "peers.wiggle_drain", "32+0")
    single = Drain("wiggle, one handler, 31 prefetched", "peers.wiggle_drain", "1+31")
    huey = Drain("huey, one thread", "peers.huey_drain")
    litequeue = Drain("litequeue", "peers.litequeue_drain")
    drains = (
        ours,
        single,
        Drain("wiggle, nothing set", "peers.wiggle_drain", "0+0"),
        huey,
        litequeue,
    )
    seconds = alternate({each.name: partial(each.run, directory, tasks) for each in drains}, repeats)
    rates = {name: tasks / median(taken) for name, taken in seconds.items()}
    for each in drains:
        report.figure(f"{each.name} ({each.concurrency} at a time, {each.durability})", rates[each.name], "tasks/s")
    for mine in (ours, single):
        for peer in (huey, litequeue):
            report.at_least(f"{mine.name} / {peer.name}", rates[mine.name] / rates[peer.name], 1)
