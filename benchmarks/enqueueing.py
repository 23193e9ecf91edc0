"""Bulk enqueue through the engine beside `executemany` of the same rows into a plain table.

The engine's side is everything from `NewTask` on: checks, an id, the payload's JSON, five attributes extracted from
it, their keys, ids looked up among those known, rows of two tables and two indexes. The plain side gets the same rows
made beforehand and only encodes their two JSON columns, payload and attributes: one table, the id its primary key, no
further index. Both commit every 1,000 rows, in WAL mode with `synchronous` FULL, each time into a new file. Printed
too: a plain side that encodes the payload only, and one with an index like the dispatch index.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.datasets import ATTRIBUTES, VERSION, WORKFLOW, orders
from benchmarks.report import Report, interleave
from wiggle_core import Engine, NewTask, open_engine
from wiggle_core.stores.sql.rows import INSERTED, Values, inserted_values
from wiggle_core.tasks.attributes import Declaration
from wiggle_core.tasks.keys import encode_attributes
from wiggle_core.tasks.submission import admit

BATCH = 1_000
GOAL = 1 / 3
_NUMBERS = {"created_at", "ready_at", "priority", "attempt", "version"}
_COLUMNS = INSERTED
_ATTRIBUTES = _COLUMNS.index("attributes")
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
        "executemany": partial(_insert, directory, prepared, _both),
        "executemany, the payload alone encoded": partial(_insert, directory, prepared, _payload_alone),
        "executemany, with a dispatch index": partial(_insert, directory, prepared, _both, (_DISPATCH,)),
    }
    seconds = interleave(contenders, repeats)
    for name, taken in seconds.items():
        report.figure(name, rows / taken, "rows/s")
    ours, plain, payload_alone, indexed = seconds.values()
    report.at_least("enqueue_many / executemany", plain / ours, GOAL)
    report.figure("enqueue_many / executemany, the payload alone encoded", payload_alone / ours, "x")
    report.figure("enqueue_many / executemany, with a dispatch index", indexed / ours, "x")


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A row as plain code would have it: the columns' values, and what is still to be encoded."""

    values: Values
    payload: object
    keys: dict[str, str]


def _prepare(tasks: Sequence[NewTask]) -> list[Prepared]:
    extract, now = Declaration(ATTRIBUTES).extract, time.time_ns() // 1000
    records = (admit(task, now, lambda _, __, text: extract(text).values) for task in tasks)
    return [
        Prepared(inserted_values(record), task.payload, json.loads(encode_attributes(record.attributes)))
        for record, task in zip(records, tasks, strict=True)
    ]


def _both(row: Prepared) -> tuple[object, ...]:
    values = row.values
    return (*values[:_ATTRIBUTES], json.dumps(row.keys), *values[_ATTRIBUTES + 1 :], json.dumps(row.payload))


def _payload_alone(row: Prepared) -> tuple[object, ...]:
    return (*row.values, json.dumps(row.payload))


def _insert(
    directory: Path,
    rows: Sequence[Prepared],
    encode: Callable[[Prepared], tuple[object, ...]],
    indexes: Sequence[str] = (),
) -> float:
    file = directory / f"plain-{next(_files)}.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for statement in (_CREATE, *indexes):
            connection.execute(statement)
        started = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, map(encode, rows[start : start + BATCH]))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
    discard(file)
    return seconds
