"""`python -m benchmarks embedded`: the SQLite store on a file, beside bare sqlite3, huey and litequeue.

Times of day are taken here, waits for the disk included; what is compared runs in turn, so that a slow spell of the
machine hits all alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import claiming, draining, enqueueing
from benchmarks.children import ask
from benchmarks.report import Report

MEBIBYTES = 200


@dataclass(frozen=True, slots=True)
class Scale:
    """How deep, how often: `rows` on the deep queue, `shallow` on the other, `bulk` rows in each bulk enqueue."""

    rows: int = 1_000_000
    shallow: int = 10_000
    bulk: int = 50_000
    claims: int = 300
    drained: int = 20_000
    repeats: int = 5

    @classmethod
    def quick(cls) -> Scale:
        """A look in a minute or two."""
        return cls(rows=100_000, shallow=10_000, bulk=20_000, claims=100, drained=5_000, repeats=3)

    @classmethod
    def tiny(cls) -> Scale:
        """Enough to know that it runs."""
        return cls(rows=300, shallow=200, bulk=100, claims=2, drained=50, repeats=1)


def run(report: Report, directory: Path, scale: Scale) -> None:
    """Every section."""
    enqueueing.run(report, directory, scale.bulk, scale.repeats)
    claiming.run(report, directory, scale.rows, scale.shallow, scale.claims)
    draining.run(report, directory, scale.drained, scale.repeats)
    _resident(report, directory, scale.rows)


def _resident(report: Report, directory: Path, rows: int) -> None:
    report.head(f"Resident memory of a process that enqueues {rows:,} tasks and drains them")
    file = directory / "depth.db"
    answer = ask("depth", f"sqlite:///{file}", rows)
    if not answer["inserted"] == answer["settled"] == rows:
        raise AssertionError(f"of {rows} tasks {answer['inserted']} were inserted and {answer['settled']} settled")
    report.figure("before the first task", answer["start"], "MiB")
    report.figure("after enqueueing all, at most", answer["enqueued"], "MiB")
    report.at_most("after draining all, at most resident", answer["drained"], MEBIBYTES, "MiB")
    for left in directory.glob(f"{file.name}*"):
        left.unlink()
