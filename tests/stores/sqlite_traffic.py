"""A process that keeps the queue `q` of a SQLite file busy: python -m tests.stores.sqlite_traffic FILE NAME SECONDS.

It enqueues, claims by lanes and by walks, settles, retries, releases, cancels and sweeps; prints how often, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import timedelta
from random import Random
from time import monotonic

from wiggle_core import Done, Engine, NewTask, QueueCriteria, Release, Retry, Task, open_engine
from wiggle_core.engine.routes import plan

CHARGES = QueueCriteria("q", Task.step == "charge")
AGAIN = QueueCriteria("q", Task.attempt > 1)
EVERYTHING = QueueCriteria("q")
LEASE = timedelta(milliseconds=50)
_OUTCOMES = (Done(), Retry(delay=timedelta(0)), Retry(delay=timedelta(milliseconds=10)), Release())


def main(file: str, name: str, seconds: float) -> None:
    random, counts = Random(name), Counter[str]()
    with open_engine(f"sqlite:///{file}?synchronous=normal") as engine:
        end = monotonic() + seconds
        while monotonic() < end:
            counts["rounds"] += 1
            counts["enqueued"] += _enqueue(engine, name, random)
            claimed, settled = _work(engine, name, random)
            counts["claimed"] += claimed
            counts["settled"] += settled
            if random.random() < 0.2:
                engine.sweep()
    print(json.dumps(counts))


def _enqueue(engine: Engine, name: str, random: Random) -> int:
    tasks = [NewTask("q", random.choice(("charge", "refund")), {}) for _ in range(random.randrange(6))]
    inserted = engine.enqueue_many(tasks).inserted
    later = engine.enqueue("q", "charge", {}, delay=timedelta(milliseconds=20))
    if random.random() < 0.3:
        engine.cancel(later)
    return inserted + 1


def _work(engine: Engine, name: str, random: Random) -> tuple[int, int]:
    criteria = random.choice((CHARGES, CHARGES, AGAIN, EVERYTHING))
    claimed = engine.claim_routes(name, plan([criteria]), random.randrange(1, 6), LEASE)
    if criteria is CHARGES and any(task.step != "charge" for task in claimed):
        raise AssertionError(f"wrong tasks: {claimed}")
    if criteria is AGAIN and any(task.attempt < 2 for task in claimed):
        raise AssertionError(f"wrong tasks: {claimed}")
    outcomes = [(task, random.choice(_OUTCOMES)) for task in claimed if random.random() < 0.9]
    return len(claimed), len(engine.settle_many(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
