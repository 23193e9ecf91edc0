"""`python -m benchmarks core | embedded | crashes`: exit code 0 when every goal was met, 1 when one was not."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    given = _parser().parse_args(arguments)
    with _lines(given.json) as lines:
        report = Report(given.benchmark, sys.stdout, lines)
        report.machine()
        _run(report, given)
        return report.verdict()


def _run(report: Report, given: argparse.Namespace) -> None:
    # Imported here: each benchmark needs other packages, and children of `crashes` start quicker without them.
    if given.benchmark == "core":
        from benchmarks import core  # noqa: PLC0415

        core.run(report)
        return
    with _directory(given.directory) as directory:
        if given.benchmark == "embedded":
            from benchmarks import embedded  # noqa: PLC0415

            embedded.run(report, directory, embedded.Scale.quick() if given.quick else embedded.Scale(given.rows))
        else:
            from benchmarks import crashes  # noqa: PLC0415

            scenario = crashes.Scenario(
                given.processes, given.tasks, given.limit, given.kills, lease=given.lease, seed=given.seed
            )
            crashes.run(report, directory, scenario, given.store)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    core = commands.add_parser("core", help="predicates in the process, beside rule-engine and SQLAlchemy")
    embedded = commands.add_parser("embedded", help="the SQLite store, beside bare sqlite3, huey and litequeue")
    embedded.add_argument("--rows", type=int, default=1_000_000, help="READY tasks of the deep queue (1,000,000)")
    embedded.add_argument("--quick", action="store_true", help="100,000 rows and fewer repeats: a look, not a proof")
    crashes = commands.add_parser("crashes", help="kill claiming processes and account for every task")
    crashes.add_argument("--store", help="URL of a store (an SQLite file of its own)")
    crashes.add_argument("--processes", type=int, default=16, help="claimers at one time (16)")
    crashes.add_argument("--tasks", type=int, default=200_000, help="tasks to settle (200,000)")
    crashes.add_argument("--limit", type=int, default=20, help="tasks of a claim, settled as a group (20)")
    crashes.add_argument("--kills", type=int, default=20, help="claimers killed with SIGKILL (20)")
    crashes.add_argument("--lease", type=float, default=3.0, help="seconds of a lease (3)")
    crashes.add_argument("--seed", type=int, default=1, help="of the moments of the kills (1)")
    for command in (core, embedded, crashes):
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="also append every figure to FILE, as JSON lines"
        )
    for command in (embedded, crashes):
        command.add_argument("--directory", type=Path, help="where the files go for a while (TMPDIR, else ./build)")
    return parser


@contextmanager
def _lines(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    with path.open("a", encoding="utf-8") as lines:
        yield lines


@contextmanager
def _directory(chosen: Path | None) -> Iterator[Path]:
    """A directory of its own, removed afterwards. Not /tmp by default: that may be memory, which syncs nothing."""
    parent = chosen or Path(os.environ.get("TMPDIR") or "build")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=parent) as name:
        yield Path(name)


if __name__ == "__main__":
    sys.exit(main())
