"""`python -m benchmarks soak --store URL`: claims on PostgreSQL beside a transaction that stays open (PG4).

A snapshot that is held keeps every version of a row that was deleted or changed since, and every entry of an index for
it. A claim walks from the head of its queue, over the entries of all tasks that were claimed there before, so it
becomes slower with each of them until the head moves on, as a worker's care for lanes has it do, or the snapshot goes
and they are cleaned away. One process enqueues, claims and settles at an even rate; how long its claims take is told
for the time before, during and after.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from statistics import median, quantiles

import psycopg
from sqlalchemy import make_url

from benchmarks.datasets import ATTRIBUTES, QUEUE, VERSION, WORKFLOW, orders
from benchmarks.report import Report
from wiggle_core import Done, Engine, QueueCriteria
from wiggle_core.engine.routes import route_of
from wiggle_core.stores.registry import open_scratch
from wiggle_core.stores.replay import Replaying
from wiggle_core.worker.repeating import Repeating
from wiggle_core.worker.shift import LANE_CARE_SECONDS

LIMIT = 10
BACKLOG = 1_000
"""How many READY tasks there always are."""
GOAL = 5.0
"""The median claim at the end of the time against that before."""

_PARTS = 5
_LEASE = timedelta(seconds=30)
_MANY = 10_000_000
_PATIENCE = 10.0
_ALL = QueueCriteria(QUEUE)
_HIT = re.compile(r"Buffers: shared hit=(\d+)")
_DEAD = "SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = to_regclass(%s)"


def run(url: str, seconds: float, rate: float) -> int:
    """Work at `rate` tasks a second, for `seconds` beside a held snapshot and for a fifth of it before and after each.
    Prints p50 and p99 of the claims, and the dead rows; the exit code."""
    report = Report("soak", sys.stdout)
    report.machine()
    report.head(f"Claims of {LIMIT} at {rate:g} tasks/s, {BACKLOG:,} READY")
    part = seconds / _PARTS
    store = open_scratch(url)
    with Engine(Replaying(store)) as engine, _connected(url) as beside:
        table = f'"{store._place.schema}".task'  # type: ignore[attr-defined] # PostgreSQL's alone
        load = _Load(engine, beside, table, rate)
        care = Repeating("care for lanes", engine.lanes.care, LANE_CARE_SECONDS)
        care.start()
        load.work(part)  # what is new is slow
        before = load.measure(report, "before", part)
        during = before
        with _held(url):
            for number in range(1, _PARTS + 1):
                during = load.measure(report, f"during, to second {part * number:g}", part)
        beside.execute(f"VACUUM {table}".encode())
        after = load.measure(report, "after, once vacuumed", part)
        care.stop(_PATIENCE)
    report.at_most("claim p50, at the end of the held snapshot / before", during / before, GOAL)
    report.at_most("claim p50, after / before", after / before, 2)
    return report.verdict()


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection]:
    """A connection of another program."""
    plain = make_url(url).set(drivername="postgresql", query={}).render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True, application_name="benchmark") as connection:
        yield connection


@contextmanager
def _held(url: str) -> Iterator[None]:
    """A transaction that has read something, and then does nothing."""
    with _connected(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        yield
        connection.execute("ROLLBACK")


class _Load:
    """One process that enqueues, claims and settles tasks at a rate."""

    def __init__(self, engine: Engine, beside: psycopg.Connection, table: str, rate: float) -> None:
        self._engine, self._beside, self._table, self._rate = engine, beside, table, rate
        self._tasks = orders(_MANY)
        engine.declare(WORKFLOW, version=VERSION, attributes=ATTRIBUTES)
        engine.enqueue_many(islice(self._tasks, BACKLOG))

    def measure(self, report: Report, name: str, seconds: float) -> float:
        """Work, and print how the claims went; their median in milliseconds."""
        taken = self.work(seconds)
        (dead,) = self._beside.execute(_DEAD, (self._table,)).fetchone() or (0,)
        report.figure(f"{name}: claim p50", median(taken), "ms")
        report.figure(f"{name}: claim p99", quantiles(taken, n=100)[98], "ms")
        report.figure(f"{name}: pages that a claim touches", self._pages(), "pages")
        report.figure(f"{name}: dead rows", dead, "rows")
        return median(taken)

    def work(self, seconds: float) -> list[float]:
        """Work so long; the milliseconds of each claim."""
        taken = []
        started = time.perf_counter()
        for turn in range(round(seconds * self._rate / LIMIT)):
            time.sleep(max(0.0, started + turn * LIMIT / self._rate - time.perf_counter()))
            self._engine.enqueue_many(islice(self._tasks, LIMIT))
            began = time.perf_counter()
            claimed = self._engine.claim("soak", [_ALL], limit=LIMIT, lease=_LEASE)
            taken.append((time.perf_counter() - began) * 1000)
            if len(claimed) != LIMIT:
                raise AssertionError(f"{len(claimed)} tasks claimed of {BACKLOG} that are READY")
            self._engine.settle_many([(task, Done()) for task in claimed])
        return taken

    def _pages(self) -> int:
        """What no load on the machine can change."""
        route = route_of(_ALL)
        head = self._engine.lanes.verdict(route).head
        plan = "\n".join(self._engine.store.explain(replace(route, head=head), LIMIT).plan)
        found = _HIT.search(plan)
        return int(found[1]) if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--store", metavar="URL", required=True, help="the PostgreSQL database to measure in")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the snapshot is held (300)")
    parser.add_argument("--rate", type=float, default=300.0, help="tasks a second (300)")
    given = parser.parse_args(arguments)
    return run(given.store, given.seconds, given.rate)


if __name__ == "__main__":
    sys.exit(main())
