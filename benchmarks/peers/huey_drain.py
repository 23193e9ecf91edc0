"""Drains a SqliteHuey with one worker thread, the setting its documentation gives for SQLite, and results off.

huey deletes a task before it runs it, so that a crash loses what was running; wiggle settles it afterwards.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from huey import SqliteHuey  # type: ignore[import-untyped]  # no py.typed


def drain(path: str, count: int) -> dict[str, object]:
    """Enqueue, then time from the consumer's start to the end of the last task."""
    queue = SqliteHuey("benchmark", filename=path, results=False)
    finished = threading.Event()
    seen = 0

    @queue.task()  # type: ignore[untyped-decorator]  # huey has no types
    def handle(payload: dict[str, object]) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            finished.set()

    for number in range(count):
        handle({"number": number, "to": "someone@example.org"})
    consumer = queue.create_consumer(workers=1, worker_type="thread", periodic=False)
    started = time.perf_counter()
    consumer.start()
    finished.wait()
    seconds = time.perf_counter() - started
    consumer.stop(graceful=True)
    storage: Any = queue.storage  # Any: huey declares every kind of storage here
    [(synchronous,)] = storage.sql("pragma synchronous", results=True)
    return {"seconds": seconds, "tasks": seen, "synchronous": synchronous, "concurrency": 1}


if __name__ == "__main__":
    print(json.dumps(drain(sys.argv[1], int(sys.argv[2]))))
