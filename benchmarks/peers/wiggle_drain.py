"""Drains wiggle with one worker process, as its README says: `Worker`, a handler, nothing tuned but the concurrency."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from wiggle_core import NewTask, TaskContext, Worker, open_engine


def drain(url: str, count: int, concurrency: int, prefetch: int) -> dict[str, object]:
    """Enqueue, then time from the worker's start until it has stopped, when every outcome is stored.

    `concurrency` 0 leaves the worker its default, the number of CPUs.
    """
    finished = threading.Event()
    lock = threading.Lock()
    seen = 0
    with open_engine(url, migrate=True) as engine:
        engine.enqueue_many(
            NewTask(queue="work", step="handle", payload={"number": number, "to": "someone@example.org"})
            for number in range(count)
        )
        worker = Worker(engine, "drain", queues=["work"], concurrency=concurrency or None, prefetch=prefetch)

        @worker.task("handle")
        def handle(context: TaskContext) -> None:
            nonlocal seen
            with lock:
                seen += 1
                if seen == count:
                    finished.set()

        started = time.perf_counter()
        worker.start()
        finished.wait()
        worker.stop()
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "tasks": seen, "concurrency": concurrency or os.cpu_count()}


if __name__ == "__main__":
    print(json.dumps(drain(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3].split("+")))))
