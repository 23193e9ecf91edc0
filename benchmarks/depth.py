"""Enqueues and drains a deep queue in this process and prints its largest resident size: a child of `embedded`."""

from __future__ import annotations

import json
import resource
import sys
from datetime import timedelta
from pathlib import Path

from benchmarks.datasets import ATTRIBUTES, QUEUE, VERSION, WORKFLOW, orders
from wiggle_core import Done, Engine, QueueCriteria, open_engine

BATCH = 500
EVERYTHING = QueueCriteria(QUEUE)


def main(url: str, count: int) -> dict[str, object]:
    """Figures in MiB, at the start, after enqueueing and at the end; the largest so far, which never shrinks."""
    with open_engine(url, migrate=True) as engine:
        engine.declare(WORKFLOW, version=VERSION, attributes=ATTRIBUTES)
        start = _resident()
        done = engine.enqueue_many(orders(count))
        enqueued = _resident()
        settled = _drain(engine)
    return {"inserted": done.inserted, "settled": settled, "start": start, "enqueued": enqueued, "drained": _resident()}


def _drain(engine: Engine) -> int:
    settled = 0
    while tasks := engine.claim("depth", [EVERYTHING], limit=BATCH, lease=timedelta(minutes=5)):
        settled += len(engine.settle_many([(task, Done()) for task in tasks]))
    return settled


def _resident() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: Linux keeps that across exec, so that a child begins with the size of its parent.
        [line] = [line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    # macOS counts bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
