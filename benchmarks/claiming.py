"""Claims of 10 on a deep and on a shallow queue, without criteria and with one that 30 % of the tasks match, and the
same statements sent by bare sqlite3.

What was claimed is released between, unmeasured, so that depth and order stay as they are. A claim's time is mostly
one sync of the disk; so the work that SQLite does for it is counted too, in steps of its virtual machine.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bare import LEASE, BareClaim, bare_sqlite
from benchmarks.datasets import COMMON, QUEUE, orders
from benchmarks.enqueueing import declare, discard
from benchmarks.report import Contender, Report, alternate, p99
from wiggle_core import Engine, QueueCriteria, Release, open_engine
from wiggle_core.engine.routes import plan
from wiggle_core.stores.store import Route
from wiggle_store_sqlite import claims

LIMIT = 10
EVERYTHING = QueueCriteria(QUEUE)
_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Queue:
    """One file with so many READY tasks, and a bare connection to it with the settings of the store's own."""

    rows: int
    engine: Engine
    connection: sqlite3.Connection
    bare: BareClaim


def run(report: Report, directory: Path, rows: int, shallow: int, repeats: int) -> None:
    """Fill both queues, and claim from them in turn."""
    with _filled(report, directory, rows) as deep, _filled(report, directory, shallow) as flat:
        _times(report, deep, flat, repeats)
        _steps(report, deep, flat)


@contextmanager
def _filled(report: Report, directory: Path, rows: int) -> Iterator[Queue]:
    report.head(f"Filling a queue with {rows:,} READY tasks")
    file = directory / f"claims-{rows}.db"
    with open_engine(f"sqlite:///{file}", migrate=True) as engine:
        declare(engine)
        started = time.perf_counter()
        engine.enqueue_many(orders(rows))
        report.figure(
            "Engine.enqueue_many, making the tasks included", rows / (time.perf_counter() - started), "rows/s"
        )
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            yield Queue(rows, engine, connection, bare_sqlite(connection))
    discard(file)


def _times(report: Report, deep: Queue, flat: Queue, repeats: int) -> None:
    report.head(f"Claiming {LIMIT}, medians of {repeats}, released between")
    contenders: dict[str, Contender] = {
        f"{queue.rows:,} READY, {name}": partial(_claim, queue.engine, criteria)
        for queue in (deep, flat)
        for name, criteria in (("without criteria", EVERYTHING), ("common criteria", COMMON))
    }
    contenders[f"{deep.rows:,} READY, the same statements by bare sqlite3"] = partial(_claim_bare, deep)
    alternate(contenders, _WARM_UP)
    seconds = alternate(contenders, repeats)
    for name, taken in seconds.items():
        report.figure(name, median(taken) * 1e3, "ms")
        report.figure(f"{name}, p99", p99(taken) * 1e3, "ms")
    plain, common, flat_plain, flat_common, bare = map(median, seconds.values())
    _within(report, "common criteria / without criteria", common, plain, 2)
    _within(report, f"without criteria at {deep.rows:,} / at {flat.rows:,}", plain, flat_plain, 2)
    _within(report, f"common criteria at {deep.rows:,} / at {flat.rows:,}", common, flat_common, 2)
    report.at_most("claim without criteria / its statements by bare sqlite3", plain / bare, 1.5)


def _within(report: Report, name: str, one: float, other: float, times: float) -> None:
    """Within so many times of each other, whichever is the slower."""
    report.figure(name, one / other, "x")
    report.at_most(f"{name}, the slower to the quicker", max(one, other) / min(one, other), times)


def _claim(engine: Engine, criteria: QueueCriteria) -> float:
    started = time.perf_counter()
    tasks = engine.claim("benchmark", [criteria], limit=LIMIT, lease=LEASE)
    seconds = time.perf_counter() - started
    if len(tasks) != LIMIT:
        raise AssertionError(f"{len(tasks)} tasks claimed")
    engine.settle_many([(task, Release()) for task in tasks])
    return seconds


def _claim_bare(queue: Queue) -> float:
    seconds, token = queue.bare(QUEUE, LIMIT)
    queue.engine.settle_many([(task, Release()) for task in queue.engine.store.leased(token)])
    return seconds


def _steps(report: Report, deep: Queue, flat: Queue) -> None:
    report.head("The walk of a claim in steps of SQLite's virtual machine, which no load on the machine can change")
    counted = {
        (queue.rows, name): _count_steps(queue.connection, plan([criteria]))
        for queue in (deep, flat)
        for name, criteria in (("without criteria", EVERYTHING), ("common criteria", COMMON))
    }
    for (rows, name), steps in counted.items():
        report.figure(f"{rows:,} READY, {name}", steps, "steps")
    for name in ("without criteria", "common criteria"):
        report.at_most(f"{name}, deep / shallow", counted[deep.rows, name] / counted[flat.rows, name], 2)


def _count_steps(connection: sqlite3.Connection, routes: tuple[Route, ...]) -> int:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    walk = claims.candidates(routes, LIMIT)
    connection.set_progress_handler(count, 1)
    try:
        connection.execute(walk.text, walk.binds).fetchall()
    finally:
        connection.set_progress_handler(None, 0)
    return steps
