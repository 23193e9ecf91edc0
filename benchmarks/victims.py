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
from wiggle_core.tasks.task import LIVE, TaskRecord

QUEUE = "work"
CRITERIA = QueueCriteria(QUEUE)
BATCH = 20
_MICROSECOND = timedelta(microseconds=1)
# Expired runs come back soon, some through SCHEDULED and promotion, and are never given up.
RETRY = RetryPolicy(max_attempts=1000, initial_backoff=timedelta(milliseconds=50), max_backoff=timedelta(seconds=1))


def task_id(number: int) -> str:
    """The id of a task, the same whenever the enqueuer starts again."""
    return f"task-{number:08d}"


def enqueue(url: str, count: int) -> None:
    """Put the tasks on the queue, as if none were there yet, and print how many were new."""
    with open_engine(url) as engine:
        done = engine.enqueue_many(_tasks(count), batch=500)
    print(json.dumps({"inserted": done.inserted, "existing": done.existing}), flush=True)


def _tasks(count: int) -> Iterator[NewTask]:
    for number in range(count):
        yield NewTask(queue=QUEUE, step="work", payload={"number": number}, id=task_id(number), retry=RETRY)


def claim(url: str, owner: str, log: str, lease: float) -> None:
    """Claim and settle until nothing is live."""
    ttl = timedelta(seconds=lease)
    ledger = Ledger(Path(log))
    swept = time.monotonic()
    with open_engine(url) as engine:
        while True:
            tasks = engine.claim(owner, [CRITERIA], limit=BATCH, lease=ttl)
            _settle(engine, tasks, ledger, ttl)
            if not tasks and not _is_anything_live(engine):
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


def _is_anything_live(engine: Engine) -> bool:
    return engine.count(CRITERIA, LIVE, cap=1) > 0


def main(arguments: list[str]) -> None:
    """`enqueue URL COUNT` or `claim URL OWNER LOG LEASE`."""
    match arguments:
        case ["enqueue", url, count]:
            enqueue(url, int(count))
        case ["claim", url, owner, log, lease]:
            claim(url, owner, log, float(lease))
        case _:
            raise SystemExit(main.__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
