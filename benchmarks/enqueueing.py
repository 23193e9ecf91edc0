"""Bulk enqueue through the engine beside `executemany` of the same rows into a plain table.

The engine's side is everything from `NewTask` on: checks, an id, the payload's JSON, five attributes extracted from
it, their keys, ids looked up among those known, three tables' worth of rows and two indexes. The plain side gets every
other column made beforehand and only encodes the payload: one table, the id its primary key, no further index. Both
commit every 1,000 rows, in WAL mode with `synchronous` FULL, each time into a new file.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.datasets import ATTRIBUTES, VERSION, WORKFLOW, orders
from benchmarks.report import Report, interleave
from wiggle_core import Engine, NewTask, open_engine
from wiggle_core.tasks.attributes import Declaration
from wiggle_core.tasks.submission import admit
from wiggle_store_sqlite.rows import INSERTED_COLUMNS, Values, inserted_values

BATCH = 1_000
GOAL = 1 / 3
_NUMBERS = {"created_at", "ready_at", "priority", "attempt", "version"}
_COLUMNS = INSERTED_COLUMNS.split(", ")
_TYPES = ", ".join(
    f"{name} {'INTEGER' if name in _NUMBERS else 'TEXT'}{' PRIMARY KEY' if name == 'id' else ''}" for name in _COLUMNS
)
_CREATE = f"CREATE TABLE plain ({_TYPES}, payload TEXT NOT NULL)"
_INSERT = f"INSERT INTO plain VALUES ({', '.join('?' * (len(_COLUMNS) + 1))})"
_DISPATCH = "CREATE INDEX dispatch ON plain (queue, priority, created_at, ready_at, id)"

_files = count()


def run(report: Report, directory: Path, rows: int, repeats: int) -> None:
    """`rows` in each repeat."""
    report.head(f"Bulk enqueue of {rows:,} tasks, 1,000 a transaction, against executemany of the same rows")
    tasks = list(orders(rows))
    prepared = _prepare(tasks)
    contenders = {
        "Engine.enqueue_many, 5 attributes extracted": partial(_enqueue, directory, tasks),
        "executemany, primary key only": partial(_insert, directory, prepared, ()),
        "executemany, and an index like the dispatch index": partial(_insert, directory, prepared, (_DISPATCH,)),
    }
    seconds = interleave(contenders, repeats)
    for name, taken in seconds.items():
        report.figure(name, rows / taken, "rows/s")
    ours, plain, indexed = seconds.values()
    report.at_least("enqueue_many / executemany, primary key only", plain / ours, GOAL)
    report.figure("enqueue_many / executemany with that index", indexed / ours, "x")


def _enqueue(directory: Path, tasks: Sequence[NewTask]) -> float:
    file = directory / f"enqueue-{next(_files)}.db"
    with open_engine(f"sqlite:///{file}", migrate=True) as engine:
        declare(engine)
        started = time.perf_counter()
        engine.enqueue_many(tasks, batch=BATCH)
        seconds = time.perf_counter() - started
    discard(file)
    return seconds


def declare(engine: Engine) -> None:
    """The attributes of the tasks of `datasets`."""
    engine.declare(WORKFLOW, version=VERSION, attributes=ATTRIBUTES)


def discard(file: Path) -> None:
    """Delete a database with its log."""
    for left in file.parent.glob(f"{file.name}*"):
        left.unlink()


def _prepare(tasks: Sequence[NewTask]) -> list[tuple[Values, object]]:
    """The stored values of each task, with the payload still to be encoded."""
    extract, now = Declaration(ATTRIBUTES).extract, time.time_ns() // 1000
    records = (admit(task, now, lambda _, __, text: extract(text).values) for task in tasks)
    return [(inserted_values(record), task.payload) for record, task in zip(records, tasks, strict=True)]


def _insert(directory: Path, rows: Sequence[tuple[Values, object]], indexes: Sequence[str]) -> float:
    file = directory / f"plain-{next(_files)}.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for statement in (_CREATE, *indexes):
            connection.execute(statement)
        started = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            connection.execute("BEGIN IMMEDIATE")
            part = rows[start : start + BATCH]
            connection.executemany(_INSERT, ((*values, json.dumps(payload)) for values, payload in part))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
    discard(file)
    return seconds
