"""`wiggle enqueue`: tasks from JSON lines, streamed in batches, with a progress bar for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import STDIN, Line, read_lines
from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import print_json, print_line
from wiggle_core.cli.task_line import new_task
from wiggle_core.engine.engine import Engine, Enqueued
from wiggle_core.errors import TaskRejected
from wiggle_core.tasks.submission import NewTask

BATCH = 1000
BATCH_BYTES = 8 * 1024 * 1024
"""Lines may be large: a thousand payloads of the largest size are a gigabyte."""


class _Item(NamedTuple):
    line: Line
    task: NewTask


def enqueue(
    file: Annotated[
        str, typer.Option("--file", metavar="FILE", help="JSON objects, one task a line; - for stdin.")
    ] = STDIN,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue tasks from JSON lines.

    Keys: queue and step; optional payload, workflow, version, node, kind, correlation_id, id, priority, delay
    (seconds) or ready_at (RFC 3339), retry. A task whose id is known is left alone. The first bad line ends the
    command with code 2; the tasks before it are enqueued.
    """
    with opened_engine(store) as engine, _progress(file, as_json) as progress:
        total = _Intake(engine, progress, progress.add_task("enqueued", total=_size(file), count=0)).take(file)
    if as_json:
        print_json({"inserted": total.inserted, "existing": total.existing})
    else:
        known = f", {total.existing} were known already" if total.existing else ""
        print_line(f"{total.inserted} tasks enqueued{known}")


class _Intake:
    """Enqueues batch by batch and keeps count, so that an end in the middle can say how far it came."""

    def __init__(self, engine: Engine, progress: Progress, bar: TaskID) -> None:
        self._engine = engine
        self._progress = progress
        self._bar = bar
        self._inserted = 0
        self._existing = 0

    def take(self, file: str) -> Enqueued:
        lines = read_lines(file)
        try:
            while True:
                batch, refusal = _next_batch(lines)
                self._enqueue(batch)
                if refusal is not None:
                    raise refusal
                if not batch:
                    return Enqueued(self._inserted, self._existing)
        except BaseException as error:
            known = f" ({self._existing} of them were known already)" if self._existing else ""
            error.add_note(f"{self._inserted + self._existing} tasks were enqueued before{known}")
            raise

    def _enqueue(self, batch: list[_Item]) -> None:
        try:
            self._store([item.task for item in batch])
        except TaskRejected:
            # Nothing of the batch is stored; one by one the offender shows itself, and all before it are taken.
            self._enqueue_singly(batch)
        read = sum(len(item.line.raw) for item in batch)
        self._progress.update(self._bar, advance=read, count=self._inserted + self._existing)

    def _enqueue_singly(self, batch: list[_Item]) -> None:
        for line, task in batch:
            try:
                self._store([task])
            except TaskRejected as error:
                raise InputError(f"{line.place}: {error}") from error

    def _store(self, tasks: list[NewTask]) -> None:
        done = self._engine.enqueue_many(tasks, batch=BATCH)
        self._inserted += done.inserted
        self._existing += done.existing


def _next_batch(lines: Iterator[Line]) -> tuple[list[_Item], InputError | None]:
    """The next tasks, and what was wrong with the line after them, if anything was."""
    batch, size = list[_Item](), 0
    try:
        for line in islice(lines, BATCH):
            batch.append(_Item(line, new_task(line)))
            size += len(line.raw)
            if size >= BATCH_BYTES:
                break
    except InputError as error:
        return batch, error
    return batch, None


def _size(file: str) -> int | None:
    path = Path(file)
    return path.stat().st_size if file != STDIN and path.is_file() else None


def _progress(file: str, as_json: bool) -> Progress:
    """A bar over the bytes of a file; over stdin only a count, for its end is not known."""
    columns = [TextColumn("{task.fields[count]} tasks"), TimeElapsedColumn()]
    if _size(file) is not None:
        columns = [BarColumn(), TaskProgressColumn(), DownloadColumn(), *columns]
    return Progress(*columns, console=Console(stderr=True), disable=as_json or not sys.stderr.isatty())
