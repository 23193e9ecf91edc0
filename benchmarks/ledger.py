"""Ledgers of processes that may be killed, and what the store has to be held against them.

A ledger is opened for appending and gets one `write` a line, so that all that was written survives SIGKILL; each
process writes one of its own. `crashes` and the fault campaign of the tests share this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from wiggle_core.stores.store import Route, Store
from wiggle_core.tasks.task import LIVE, SETTLED, OrderKey, TaskRecord

PAGE = 50_000
"""Settled tasks read at once. History has no index in claim order, so that each page may cost a look at all of it."""


class Ledger:
    """Appends lines to a file, from any thread. `longest` is the size in bytes from which on it goes on in another
    file (path.1, path.2, ...), for processes whose files must not grow."""

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self._path, self._longest = path, longest
        self._files = self._size = 0
        self._lock = Lock()
        self._file = _open(path)

    def write(self, line: str) -> None:
        """Append one line, whole or, when the process is killed in it, without its line break."""
        data = f"{line}\n".encode()
        with self._lock:
            if self._longest is not None and self._size + len(data) > self._longest:
                os.close(self._file)
                self._files, self._size = self._files + 1, 0
                self._file = _open(self._path.with_name(f"{self._path.name}.{self._files}"))
            self._size += len(data)
            written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"{self._path} took {written} of {len(data)} bytes")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)


def whole_lines(path: Path) -> list[str]:
    """Every whole line; a line that a kill cut off is no line."""
    return path.read_text("utf-8").split("\n")[:-1]


def read_history(store: Store, queue: str) -> Iterator[TaskRecord]:
    """Every settled task, page by page."""
    after: OrderKey | None = None
    while page := store.find(Route(queue), SETTLED, PAGE, after):
        yield from page
        after = page[-1].order_key


def count_live(store: Store, queue: str) -> int:
    """How many tasks the store counts as live, up to a million."""
    return store.count(Route(queue), LIVE, 1_000_000)
