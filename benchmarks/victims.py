"""The processes that `crashes` kills: `enqueue` puts numbered tasks on a queue, `claim` settles them and keeps a log.

The lines of a log: `L id token attempt claimed-at lease-end` for a lease that began, times in epoch microseconds of the
database, `S id token` for a settlement that held, and `X id token` for one whose lease was lost meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from benchmarks.ledger import Ledger
from wiggle_core import Done, Engine, NewTask, QueueCriteria, RetryPolicy, open_engine
from wiggle_core.stores.replay import Replaying
from wiggle_core.tasks.task import LIVE, TaskRecord

_MICROSECOND = timedelta(microseconds=1)
# Expired runs come back soon, some through SCHEDULED and promotion, and are never given up.
RETRY = RetryPolicy(max_attempts=1000, initial_backoff=timedelta(milliseconds=50), max_backoff=timedelta(seconds=1))


def task_id(queue: str, number: int) -> str:
    """The id of a task, the same whenever the enqueuer starts again."""
    return f"{queue}-{number:08d}"


def enqueue(url: str, queue: str, count: int) -> None:
    """Put the tasks on the queue, as if none were there yet, and print how many were new."""
    with open_engine(url) as engine:
        done = engine.enqueue_many(_tasks(queue, count), batch=500)
    print(json.dumps({"inserted": done.inserted, "existing": done.existing}), flush=True)


def _tasks(queue: str, count: int) -> Iterator[NewTask]:
    for number in range(count):
        yield NewTask(queue, "work", {"number": number}, id=task_id(queue, number), retry=RETRY)


def claim(url: str, queue: str, log: str, limit: int, lease: float) -> None:
    """Claim and settle, up to `limit` tasks at a time, until nothing is live; then print how often which class of error
    was replayed inside."""
    ttl, criteria = timedelta(seconds=lease), [QueueCriteria(queue)]
    ledger = Ledger(Path(log))
    owner = Path(log).stem
    swept = time.monotonic()
    with open_engine(url) as engine:
        while True:
            tasks = engine.claim(owner, criteria, limit=limit, lease=ttl)
            _settle(engine, tasks, ledger, ttl)
            if not tasks and not engine.count(criteria[0], LIVE, cap=1):
                counts = engine.store.counts if isinstance(engine.store, Replaying) else {}
                print(json.dumps(counts), flush=True)
                return
            if not tasks or time.monotonic() - swept > lease / 4:
                engine.sweep()
                swept = time.monotonic()
            if not tasks:
                time.sleep(0.05)


def _settle(engine: Engine, tasks: list[TaskRecord], ledger: Ledger, ttl: timedelta) -> None:
    for task in tasks:
        until = task.lease_until or 0
        ledger.write(f"L {task.id} {task.token} {task.attempt} {until - ttl // _MICROSECOND} {until}")
    if not tasks:
        return
    held = engine.settle_many([(task, Done()) for task in tasks])
    for task in tasks:
        ledger.write(f"{'S' if task.id in held else 'X'} {task.id} {task.token}")


def main(arguments: list[str]) -> None:
    """`enqueue URL QUEUE COUNT` or `claim URL QUEUE LOG LIMIT LEASE`."""
    match arguments:
        case ["enqueue", url, queue, count]:
            enqueue(url, queue, int(count))
        case ["claim", url, queue, log, limit, lease]:
            claim(url, queue, log, int(limit), float(lease))
        case _:
            raise SystemExit(main.__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
