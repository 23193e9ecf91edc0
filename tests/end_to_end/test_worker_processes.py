"""Workers as processes on one SQLite file: killed, stopped, side by side, and locked out for a while."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from wiggle_core import Engine, NewTask, QueueCriteria, State, TaskContext, Worker, open_engine
from wiggle_core.settings import Settings
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.replay import Replaying

PATIENCE = 60.0
"""Seconds after which a test that waits in vain fails."""
QUEUE = QueueCriteria("q")

PROGRAM = """
import os, sys, time
from datetime import timedelta
from wiggle_core import Worker, open_engine

url, name, log, concurrency, prefetch, hang_from, pause, lease = sys.argv[1:]
worker = Worker(open_engine(url), name, queues=["q"], concurrency=int(concurrency), prefetch=int(prefetch),
                lease=timedelta(seconds=float(lease)), heartbeat=timedelta(milliseconds=200))
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@worker.task("s")
def handle(context):
    os.write(log, f"{context.id} {context.attempt} {name}\\n".encode())
    time.sleep(float(pause) if context.payload < int(hang_from) else 1_000)

worker.run()
"""


class Bench:
    """A database, the log that all handlers write to, and the processes to be ended."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory}/wiggle.db"
        self.log = directory / "log"
        self.log.touch()
        self.engine = open_engine(self.url, migrate=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        name: str,
        *,
        concurrency: int = 2,
        prefetch: int = 0,
        hang_from: int = 1_000_000,
        pause: float = 0.0,
        lease: float = PATIENCE,
    ) -> subprocess.Popen[bytes]:
        """A worker process; from task number `hang_from` on, its handler never returns. A short lease is for those that
        die: on a machine that is busy, it would end under others, too."""
        options = map(str, (concurrency, prefetch, hang_from, pause, lease))
        environment = {
            **os.environ,
            "WIGGLE_SCOPED_FALLBACK_MAX_MILLIS": "100",
            "WIGGLE_SWEEP_INTERVAL_MILLIS": "100",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, self.url, name, str(self.log), *options], env=environment
        )
        self.processes.append(process)
        return process

    def enqueue(self, count: int) -> list[str]:
        self.engine.enqueue_many(NewTask("q", "s", number, id=f"{number:05}") for number in range(count))
        return [f"{number:05}" for number in range(count)]

    def runs(self) -> list[tuple[str, int, str]]:
        """What the handlers wrote: id, attempt and worker of each run."""
        rows = (line.split() for line in self.log.read_text().splitlines())
        return [(task_id, int(attempt), name) for task_id, attempt, name in rows]

    def live(self) -> int:
        return self.engine.count(QUEUE)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.engine.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def eventually(condition: Callable[[], object]) -> None:
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline
        Event().wait(0.02)


def test_a_killed_worker_loses_nothing(bench: Bench) -> None:
    """L3, L4: after kill -9 every task is run to its end, those in flight in their second attempt."""
    ids = bench.enqueue(60)
    victim = bench.start("victim", hang_from=40, concurrency=4, lease=3)
    eventually(lambda: len(bench.runs()) == 44)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert bench.live() > 0

    bench.start("heir", concurrency=4)
    eventually(lambda: bench.live() == 0)
    assert {task.state for task in map(bench.engine.get, ids) if task is not None} == {State.DONE}
    assert bench.engine.count(QUEUE, {State.DONE}) == 60
    assert {task_id for task_id, _, _ in bench.runs()} == set(ids)
    again = {task_id for task_id, attempt, name in bench.runs() if attempt == 2 and name == "heir"}
    assert {f"{number:05}" for number in range(40, 44)} <= again
    assert bench.engine.store.audit() == []


def test_two_workers_share_one_file(bench: Bench) -> None:
    """L1, section 8: no task runs twice while nobody dies, and both get work."""
    bench.start("one", pause=0.005)
    bench.start("two", pause=0.005)
    eventually(lambda: len(bench.engine.workers()) == 2)
    ids = bench.enqueue(400)
    assert bench.engine.backlog().uncovered == ()
    eventually(lambda: bench.live() == 0)
    runs = bench.runs()
    assert Counter(task_id for task_id, _, _ in runs) == Counter(ids)
    assert {attempt for _, attempt, _ in runs} == {1}
    assert {name for _, _, name in runs} == {"one", "two"}


def test_sigterm_stops_gracefully(bench: Bench) -> None:
    """Section 8: what runs is finished, what was prefetched is given back untouched, the registration is gone."""
    bench.enqueue(50)
    process = bench.start("w", concurrency=2, prefetch=6, pause=0.3)
    eventually(lambda: len(bench.runs()) >= 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    begun = {task_id for task_id, _, _ in bench.runs()}
    left = bench.engine.find(QUEUE)
    assert {task.state for task in left} == {State.READY}
    assert {task.attempt for task in left} == {1}
    assert begun == {f"{number:05}" for number in range(50)} - {task.id for task in left}
    assert bench.engine.workers() == []


def test_a_second_signal_gives_back_at_once(bench: Bench) -> None:
    """Section 8: a handler that hangs does not keep a process that is asked twice."""
    bench.enqueue(3)
    process = bench.start("w", concurrency=2, hang_from=0)
    eventually(lambda: len(bench.runs()) == 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert {(task.state, task.attempt) for task in bench.engine.find(QUEUE)} == {(State.READY, 1)}
    assert bench.live() == 3


def test_a_worker_waits_for_a_locked_database(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: while another holds the file's lock nothing is lost; work goes on when it lets go."""
    settings = Settings(scoped_fallback_max_millis=100)
    with Engine(Replaying(open_store(f"{bench.url}?timeout=0.02")), settings=settings) as engine:
        worker = Worker(engine, "w", queues=["q"], concurrency=4, lease=timedelta(minutes=5))
        begun, locked = Event(), Event()

        @worker.task("s")
        def handle(context: TaskContext) -> None:
            if context.payload == 10:
                begun.set()
                assert locked.wait(PATIENCE)

        with closing(sqlite3.connect(bench.url.removeprefix("sqlite:///"), isolation_level=None)) as rival, worker:
            ids = bench.enqueue(40)
            assert begun.wait(PATIENCE)
            rival.execute("BEGIN IMMEDIATE")
            locked.set()
            eventually(lambda: worker.counts.errors >= 2)
            rival.execute("COMMIT")
            eventually(lambda: bench.live() == 0)
        assert (worker.counts.done, worker.counts.dropped) == (40, 0)
    assert {task.attempt for task in map(bench.engine.get, ids) if task is not None} == {1}
    assert bench.engine.count(QUEUE, {State.DONE}) == 40
    assert "reference" in caplog.text
