"""The demonstration's workers at work: each in a process of its own, or in threads where a store has one process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from queue import Empty
from threading import current_thread, main_thread
from typing import Protocol

from wiggle_core.demo.workers import ROLES, Progress, build_worker, serve
from wiggle_core.engine.engine import Engine
from wiggle_core.errors import WorkerRejected
from wiggle_core.worker.ledger import Counts

_PATIENCE = 30.0
"""Seconds that a worker's process may take to end."""


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C from their first instruction on: it reaches all processes of a
    terminal, and the parent is the one to stop the others."""
    if current_thread() is not main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class Crew(Protocol):
    """All workers of the demonstration."""

    def start(self) -> None: ...

    def counts(self) -> dict[str, Counts]:
        """What each did so far. Raises WorkerRejected when one had to give up."""
        ...

    def stop(self) -> None:
        """End them all; `counts` is final afterwards."""
        ...


def gather_crew(engine: Engine, url: str) -> Crew:
    """Processes where several can share the store, else threads of this one."""
    return ProcessCrew(url) if engine.store.capabilities.processes else ThreadCrew(engine)


class ThreadCrew:
    """Workers in this process."""

    def __init__(self, engine: Engine) -> None:
        self._workers = [build_worker(engine, role) for role in ROLES]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def counts(self) -> dict[str, Counts]:
        return {worker.id: worker.counts for worker in self._workers}

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


class ProcessCrew:
    """Workers in a process each."""

    def __init__(self, url: str) -> None:
        # Spawned, not forked: a forked child would inherit connections that are not its own.
        context = get_context("spawn")
        self._progress = context.Queue()
        self._stopping = context.Event()
        self._counts = {role.name: Counts() for role in ROLES}
        self._processes = [
            context.Process(target=serve, args=(url, role.name, self._progress, self._stopping), name=role.name)
            for role in ROLES
        ]

    def start(self) -> None:
        with _ignoring_interrupts():
            for process in self._processes:
                process.start()

    def counts(self) -> dict[str, Counts]:
        while self._read(0.0):
            pass
        for process in self._processes:
            if process.exitcode not in (None, 0):
                raise WorkerRejected(f"worker {process.name!r} ended with exit code {process.exitcode}")
        return self._counts

    def stop(self) -> None:
        self._stopping.set()
        # Read before joining: a process does not end while what it sent is not read.
        while any(process.is_alive() for process in self._processes):
            self._read(0.05)
        for process in self._processes:
            process.join(_PATIENCE)
        while self._read(0.05):
            pass

    def _read(self, wait: float) -> bool:
        try:
            progress: Progress = self._progress.get(timeout=wait) if wait else self._progress.get_nowait()
        except Empty:
            return False
        if progress.error:
            raise WorkerRejected(f"worker {progress.role!r} gave up: {progress.error}")
        self._counts[progress.role] = progress.counts
        return True
