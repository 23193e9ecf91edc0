"""`python -m benchmarks core | embedded | claim | crashes`: exit code 0 when every goal was met, 1 when one was not.

`python -m benchmarks chart` draws what `claim` measured; `concurrency` and `soak` have options of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

from benchmarks.report import Report
from wiggle_core.lanes.planner import LanePolicy

_APART = ("concurrency", "soak")
"""Benchmarks that read their own options: many claimers against one, and claims beside a held snapshot."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in _APART:
        return int(import_module(f"benchmarks.{words[0]}").main(words[1:]))
    given = _parser().parse_args(words)
    if given.benchmark == "chart":
        from benchmarks.claim import chart  # noqa: PLC0415

        chart.draw(given.results, given.out)
        return 0
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
    if given.benchmark == "claim":
        _run_claim(report, given)
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


def _run_claim(report: Report, given: argparse.Namespace) -> None:
    from rich.console import Console  # noqa: PLC0415

    from benchmarks import claim  # noqa: PLC0415
    from benchmarks.claim.results import write_json  # noqa: PLC0415
    from benchmarks.claim.shapes import SHAPES  # noqa: PLC0415
    from wiggle_core.stores.registry import store_url  # noqa: PLC0415

    shapes = given.shapes.split(",") if given.shapes else list(SHAPES)
    unknown = sorted(set(shapes) - set(SHAPES))
    if unknown:
        sys.exit(f"no shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    asked = claim.Run(
        store_url(given.store), given.depth, LanePolicy(given.lanes), given.seed, shapes, given.claims, given.seconds,
        given.written, given.rounds, given.quiet,
    )  # fmt: skip
    write_json(claim.run(report, asked, Console(width=130)), given.out)


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
    claim = commands.add_parser("claim", help="claims by criteria of every shape, with lanes and without")
    _add_claim(claim)
    chart = commands.add_parser("chart", help="draw what `claim` measured, with lanes and without")
    chart.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="files that `claim --out` wrote")
    chart.add_argument("--out", type=Path, required=True, metavar="FILE", help="the SVG file to write")
    for command in (core, embedded, claim, crashes):
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="also append every figure to FILE, as JSON lines"
        )
    for command in (embedded, crashes):
        command.add_argument("--directory", type=Path, help="where the files go for a while (TMPDIR, else ./build)")
    return parser


def _add_claim(claim: argparse.ArgumentParser) -> None:
    claim.add_argument("--store", help="URL of a store, in which a place is made and dropped (WIGGLE_DATABASE_URL)")
    claim.add_argument("--depth", type=int, default=1_000_000, help="READY tasks of the queue (1,000,000)")
    claim.add_argument("--lanes", choices=[str(each) for each in LanePolicy], default="auto", help="policy (auto)")
    claim.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file to write")
    claim.add_argument("--seed", type=int, default=1, help="of the tasks (1)")
    claim.add_argument("--shapes", metavar="A,B", help="those to measure (all)")
    claim.add_argument("--claims", type=int, default=300, help="by each shape (300)")
    claim.add_argument("--seconds", type=float, default=20.0, help="of claiming by one shape, then no more (20)")
    claim.add_argument("--written", type=int, default=10_000, help="tasks written in a round (10,000)")
    claim.add_argument("--rounds", type=int, default=6, help="of writing (6)")
    claim.add_argument("--quiet", type=float, default=10.0, help="seconds of another client before lanes open (10)")


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
