"""`python -m benchmarks concurrency --store URL`: many claiming processes against one, and what limits them.

Each run has a scratch store of its own, filled beforehand. The claimers, each a process or, with `--processes`, a
thread of one of a few, claim for some seconds and settle nothing, so that at the end every task claimed is RUNNING:
fewer of these than were claimed means that one was claimed twice, more means that one was leased to nobody. CPU time is
that of the claimers in these seconds, and that of the server when it runs on this machine; PostgreSQL is asked ten
times a second what its sessions wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any

from sqlalchemy import make_url

from benchmarks.children import start
from benchmarks.datasets import QUEUE, records
from benchmarks.report import Report
from wiggle_core import Engine, QueueCriteria
from wiggle_core.stores.registry import open_scratch, open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.task import State

GOALS = {1: 3.0, 10: 0.8, 100: 0.8}
"""Tasks/s of all claimers against those of one, by the limit of a claim."""

_SIGNALS = "benchmark"
_LEASE = timedelta(hours=1)
_TASKS_A_SECOND = 80_000
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: rates in tasks/s, CPU in seconds a second, waits as shares of the sessions' time."""

    tasks: float
    claims: float
    p50_ms: float
    p99_ms: float
    empty: int
    client_cpu: float
    server_cpu: float | None
    other_cpu: float
    waits: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Scenario:
    """How many claimers, and tasks a claim; how long a run takes, and how many there are of each."""

    claimers: Sequence[int] = (1, 16)
    limits: Sequence[int] = (1, 10, 100)
    seconds: float = 3.0
    repeats: int = 5
    processes: int | None = None
    """How many at most; the claimers are their threads. As many as claimers by default."""


def run(report: Report, url: str, scenario: Scenario) -> None:
    """Print the figures of each number of claimers at each limit, and the ratio of the most to the fewest."""
    fewest, most = min(scenario.claimers), max(scenario.claimers)
    for limit in scenario.limits:
        report.head(f"Claiming {limit} at a time for {scenario.seconds:g} s, medians of {scenario.repeats}")
        runs: dict[int, list[Figures]] = {number: [] for number in scenario.claimers}
        for repeat in range(scenario.repeats):
            for number in list(scenario.claimers)[:: 1 if repeat % 2 == 0 else -1]:
                runs[number].append(_measure(report, url, number, limit, scenario))
        for number in scenario.claimers:
            _tell(report, f"limit {limit}, {number} claimers", runs[number])
        if most > fewest:
            ratio = _rate(runs[most]) / _rate(runs[fewest])
            name = f"limit {limit}: tasks/s of {most} claimers / of {fewest}"
            report.at_least(name, ratio, GOALS[limit]) if limit in GOALS else report.figure(name, ratio, "x")


def _rate(runs: Sequence[Figures]) -> float:
    return median(run.tasks for run in runs)


def _tell(report: Report, name: str, runs: Sequence[Figures]) -> None:
    report.figure(name, _rate(runs), "tasks/s")
    report.figure(f"{name}, claim p50", median(run.p50_ms for run in runs), "ms")
    report.figure(f"{name}, claim p99", median(run.p99_ms for run in runs), "ms")
    a_claim = [run.client_cpu / run.claims * 1e6 for run in runs]
    report.figure(f"{name}, CPU of the claimers", median(run.client_cpu for run in runs), "cores")
    report.figure(f"{name}, CPU of the claimers a claim", median(a_claim), "us")
    report.figure(f"{name}, CPU of all else on this machine", median(run.other_cpu for run in runs), "cores")
    served = [run.server_cpu for run in runs if run.server_cpu is not None]
    if served:
        of_server = [run.server_cpu / run.claims * 1e6 for run in runs if run.server_cpu is not None]
        report.figure(f"{name}, CPU of the server", median(served), "cores")
        report.figure(f"{name}, CPU of the server a claim", median(of_server), "us")
    waits = sum((run.waits for run in runs), Counter())
    shares = [f"{event} {count / waits.total():.0%}" for event, count in waits.most_common(6)]
    report.note(f"sessions: {', '.join(shares)}" if shares else "no sessions were sampled")
    empty = sum(run.empty for run in runs)
    if empty:
        report.note(f"{empty} claims came back empty though tasks were there")


def _measure(report: Report, url: str, number: int, limit: int, scenario: Scenario) -> Figures:
    seconds, processes = scenario.seconds, min(number, scenario.processes or number)
    threads = [len(range(each, number, processes)) for each in range(processes)]
    with _filled(url, round(seconds * min(_TASKS_A_SECOND, 9_000 * limit))) as (store, scratch_url):
        children = [
            start("concurrency", "--claim", scratch_url, "--limits", limit, "--claimers", share) for share in threads
        ]
        try:
            for child in children:
                assert child.stdout is not None
                if child.stdout.readline() != "ready\n":
                    raise RuntimeError(f"a claimer failed:\n{child.communicate()[1][-2000:]}")
            begin = time.time() + 0.5
            store.put_document(_SIGNALS, "begin", json.dumps({"begin": begin, "end": begin + seconds}))
            time.sleep(max(0.0, begin - time.time()))
            with _sampled(url, scratch_url) as sampled:
                time.sleep(max(0.0, begin + seconds - time.time()))
            store.put_document(_SIGNALS, "leave", "{}")
            answers = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
        finally:
            for child in children:
                child.kill()
        claimed = sum(answer["tasks"] for answer in answers)
        leased = store.count(Route(QUEUE), [State.RUNNING], 10**9)
        report.holds(f"{number} claimers, limit {limit}: {claimed} claimed once each", claimed == leased, f"{leased}")
        if not store.count(Route(QUEUE), [State.READY], 1):
            raise RuntimeError("the queue ran dry: the figures would tell of empty claims")
        taken = [each for answer in answers for each in answer["milliseconds"]]
        client_cpu = sum(answer["cpu"] for answer in answers) / seconds
        return Figures(
            tasks=claimed / seconds,
            claims=len(taken) / seconds,
            p50_ms=median(taken),
            p99_ms=quantiles(taken, n=100)[98],
            empty=sum(answer["empty"] for answer in answers),
            client_cpu=client_cpu,
            server_cpu=sampled.cpu,
            other_cpu=sampled.busy - client_cpu - (sampled.cpu or 0.0),
            waits=sampled.waits,
        )


@contextmanager
def _filled(url: str, rows: int) -> Iterator[tuple[Store, str]]:
    """A scratch store with so many READY tasks, and the URL by which claimers find it."""
    store = open_scratch(url)
    try:
        tasks = records(rows)
        for first in range(0, rows, store.capabilities.max_batch):
            store.enqueue(tasks[first : first + store.capabilities.max_batch])
        yield store, _scratch_url(url, store)
    finally:
        store.close()


def _scratch_url(url: str, store: Store) -> str:
    schema = store._place.schema  # type: ignore[attr-defined] # only PostgreSQL's stores can be shared so far
    return make_url(url).update_query_dict({"schema": schema}).render_as_string(hide_password=False)


# The server


class _Sampled:
    """What a server's sessions waited for, and the seconds of CPU a second where it runs here."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.cpu: float | None = None
        self.busy = 0.0


_SESSIONS = """
    SELECT CASE WHEN state <> 'active' THEN 'between statements' WHEN wait_event IS NULL THEN 'on or for a CPU'
        ELSE wait_event_type || ' ' || wait_event END
    FROM pg_stat_activity WHERE application_name = $1
"""


@contextmanager
def _sampled(url: str, scratch_url: str) -> Iterator[_Sampled]:
    """Ask the server all the while what the claimers' sessions wait for."""
    import psycopg  # noqa: PLC0415 # other stores' benchmarks run without it

    plain = make_url(url).set(drivername="postgresql", query={}).render_as_string(hide_password=False)
    sampled, done = _Sampled(), Event()
    with psycopg.connect(plain, autocommit=True, prepare_threshold=0, application_name="benchmark") as connection:
        postmaster = _postmaster(connection.info.backend_pid)

        def sample() -> None:
            cursor = psycopg.RawCursor(connection)
            while not done.wait(_SAMPLE_SECONDS):
                sampled.waits.update(event for (event,) in cursor.execute(_SESSIONS, (_application(scratch_url),)))

        thread = Thread(target=sample)
        thread.start()
        started, busy, before = time.perf_counter(), _busy(), _server_cpu(postmaster)
        try:
            yield sampled
        finally:
            after, elapsed = _server_cpu(postmaster), time.perf_counter() - started
            sampled.busy = (_busy() - busy) / elapsed
            if after:
                sampled.cpu = sum(used - before.get(process, 0.0) for process, used in after.items()) / elapsed
            done.set()
            thread.join()


def _application(scratch_url: str) -> str:
    return str(make_url(scratch_url).query["schema"])


def _postmaster(backend: int) -> int | None:
    """The parent of a session's process, when that process is one of this machine's."""
    try:
        if not Path(f"/proc/{backend}/cmdline").read_bytes().startswith(b"postgres: "):
            return None
    except OSError:
        return None
    return _parent(backend)


def _server_cpu(postmaster: int | None) -> dict[int, float]:
    """Seconds of CPU that each of the server's processes has used so far. /proc/PID/stat counts ticks of the clock, and
    may miss all of what takes turns with another process."""
    return {} if postmaster is None else {process: _cpu(process) for process in _processes(postmaster)}


def _busy() -> float:
    """Seconds that this machine's cores were not idle so far."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def _processes(parent: int) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and _parent(int(folder.name)) == parent:
                yield int(folder.name)


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _cpu(process: int) -> float:
    """Seconds that the only thread of a process has run."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


# A claimer


def claim(url: str, limit: int, threads: int) -> None:
    """Claim in the time that the document says, and print what came of it."""
    options = {"application_name": _application(url), "pool_size": str(threads)}
    store = open_store(make_url(url).update_query_dict(options).render_as_string(hide_password=False))
    with Engine(Replaying(store)) as engine, ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: engine.claim("claimer", [QueueCriteria("nothing")], limit=limit), range(threads)))
        print("ready", flush=True)
        when = _awaited(store, "begin")
        time.sleep(max(0.0, when["begin"] - time.time()))
        cpu = time.process_time()
        claiming = [pool.submit(_claim_until, engine, limit, when["end"]) for _ in range(threads)]
        taken = [each for claimed in claiming for each in claimed.result()]
        cpu = time.process_time() - cpu
        _awaited(store, "leave")  # until then the server's processes can be looked at
    tasks, milliseconds = [got for got, _ in taken], [each for _, each in taken]
    print(
        json.dumps({"tasks": sum(tasks), "empty": tasks.count(0), "cpu": cpu, "milliseconds": milliseconds}), flush=True
    )


def _claim_until(engine: Engine, limit: int, end: float) -> list[tuple[int, float]]:
    """How many tasks each claim got, and its milliseconds."""
    criteria, taken = [QueueCriteria(QUEUE)], []
    while time.time() < end:
        started = time.perf_counter()
        got = len(engine.claim("claimer", criteria, limit=limit, lease=_LEASE))
        taken.append((got, round((time.perf_counter() - started) * 1000, 3)))
    return taken


def _awaited(store: Store, signal: str) -> Any:  # Any: whatever JSON
    while (found := store.get_document(_SIGNALS, signal)) is None:
        time.sleep(0.05)
    return json.loads(found.body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or be one of the claimers; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks concurrency", description=__doc__)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--store", metavar="URL", help="the database to measure in, in schemas of its own")
    whose.add_argument("--claim", metavar="URL", help=argparse.SUPPRESS)
    usual = Scenario()
    parser.add_argument("--claimers", type=_numbers, default=usual.claimers, metavar="N,N", help="how many (1,16)")
    parser.add_argument("--limits", type=_numbers, default=usual.limits, metavar="N,N", help="of claims (1,10,100)")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="of one run (3)")
    parser.add_argument("--repeats", type=int, default=usual.repeats, help="of each run (5)")
    parser.add_argument("--processes", type=int, metavar="N", help="the claimers are threads of N processes at most")
    given = parser.parse_args(arguments)
    if given.claim:
        claim(given.claim, given.limits[0], given.claimers[0])
        return 0
    report = Report("concurrency", sys.stdout)
    report.machine()
    run(report, given.store, Scenario(given.claimers, given.limits, given.seconds, given.repeats, given.processes))
    return report.verdict()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
