"""Another client beside the one that opens lanes: a process that claims and enqueues, and notes how long each took.

It reads the store's URL from its standard input, where no other user of the machine can see it, and ends with that.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from subprocess import PIPE
from threading import Event, Thread
from typing import TypeAlias

from benchmarks.bare import LEASE
from benchmarks.children import start
from benchmarks.claim.data import QUEUE, orders
from wiggle_core import Engine, QueueCriteria, Release, open_engine

PAUSE_SECONDS = 0.002
"""Between two calls: others have to get at the machine, too."""

Samples: TypeAlias = dict[str, list[tuple[float, float]]]
"""By `claim` and `enqueue`: when each call began, in seconds of the epoch, and how many seconds it took."""


class OtherClient:
    """A running one. `samples` are there once it has ended."""

    def __init__(self) -> None:
        self.samples: Samples = {"claim": [], "enqueue": []}

    def within(self, kind: str, since: float, until: float) -> list[float]:
        """The seconds of the calls that touched a stretch of time."""
        return [seconds for began, seconds in self.samples[kind] if began < until and began + seconds > since]


@contextmanager
def other_client(url: str, limit: int) -> Iterator[OtherClient]:
    """One that works until the block ends. Raises RuntimeError when it failed."""
    child = start("claim.other", limit, stdin=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    client = OtherClient()
    try:
        child.stdin.write(f"{url}\n")
        child.stdin.flush()
        child.stdout.readline()  # it works
        yield client
    except BaseException:
        child.kill()
        raise
    finally:
        output, errors = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the other client ended with {child.returncode}:\n{errors[-2000:]}")
    client.samples = json.loads(output)


def main(limit: int) -> None:
    """Work until the standard input ends, then print the samples."""
    url, ended = sys.stdin.readline().strip(), Event()
    Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    samples: Samples = {"claim": [], "enqueue": []}
    with open_engine(url) as engine:
        _claim(engine, limit)
        print("ready", flush=True)
        for number in count():
            samples["claim"].append(_claim(engine, limit))
            time.sleep(PAUSE_SECONDS)
            samples["enqueue"].append(_enqueue(engine, number))
            if ended.wait(PAUSE_SECONDS):
                break
    print(json.dumps(samples), flush=True)


def _wait_for_end(ended: Event) -> None:
    sys.stdin.read()
    ended.set()


def _claim(engine: Engine, limit: int) -> tuple[float, float]:
    began, started = time.time(), time.perf_counter()
    tasks = engine.claim("other", [QueueCriteria(QUEUE)], limit=limit, lease=LEASE)
    seconds = time.perf_counter() - started
    engine.settle_many([(task, Release()) for task in tasks])
    return began, seconds


def _enqueue(engine: Engine, number: int) -> tuple[float, float]:
    """Enqueue a task like those that are there, and cancel it, so that the queue stays as it is."""
    [task] = orders(1, number, prefix=f"other-{number}", has_newest=False)
    began, started = time.time(), time.perf_counter()
    engine.enqueue_many([task])
    seconds = time.perf_counter() - started
    engine.cancel(str(task.id))
    return began, seconds


if __name__ == "__main__":
    main(int(sys.argv[1]))
