"""The demonstration's workers: criteria of every kind, and one slice of the flights that nobody takes.

A flown flight has a `departure_delay`, a cancelled one has none. Note `is_not_null` beside each negation: NOT of a
comparison is true for an absent value, so without it the cancelled flights would match as well (C2).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import Predicate
from wiggle_core.demo.flights import QUEUE
from wiggle_core.engine.engine import Engine, open_engine
from wiggle_core.worker.context import TaskContext
from wiggle_core.worker.ledger import Counts
from wiggle_core.worker.worker import Worker

carrier = Task.attr("carrier", str)
destination = Task.attr("destination", str)
distance = Task.attr("distance", int)
scheduled_hour = Task.attr("scheduled_hour", int)
departure_delay = Task.attr("departure_delay", int)

flown = departure_delay.is_not_null()
long_haul = distance >= 1400
to_a_or_m = destination.like("A%") | destination.like("M%")
late = (departure_delay >= 60) | ((scheduled_hour >= 18) & flown)


@dataclass(frozen=True, slots=True)
class Role:
    """One worker of the demonstration: what it takes, and the kind of predicate that this shows."""

    name: str
    shows: str
    predicate: Predicate


ROLES = (
    Role("long-haul", "range", (distance.between(1400, 5000)) & flown),
    Role("a-and-m", "prefix", to_a_or_m & flown),
    Role("late", "OR", late),
    Role("short-haul", "negation", ~(long_haul | to_a_or_m | late) & flown),
    Role("rebooking", "absence", departure_delay.is_null() & ~(carrier == "WN")),
)
"""Together they take every flight but the cancelled ones of Southwest (WN)."""

CONCURRENCY = 4
PREFETCH = 396
"""Handlers here take microseconds, so what counts is to claim many tasks at once."""


def build_worker(engine: Engine, role: Role) -> Worker:
    """The worker of a role; its handlers only look at the task."""
    criteria = [QueueCriteria(QUEUE, role.predicate)]
    worker = Worker(engine, role.name, criteria=criteria, concurrency=CONCURRENCY, prefetch=PREFETCH)
    for step in ("review", "rebook"):
        worker.task(step)(_look)
    return worker


def leftovers(engine: Engine) -> Worker:
    """A worker for the slice that the others leave: `wiggle worker wiggle_core.demo.workers:leftovers`."""
    return build_worker(engine, Role("leftovers", "absence", departure_delay.is_null() & (carrier == "WN")))


def _look(context: TaskContext) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker did so far, or, with `error`, why it had to give up."""

    role: str
    counts: Counts
    error: str = ""


def serve(url: str, role: str, progress: Queue[Progress], stopping: Event) -> None:
    """The main function of a worker's process: work until told to stop, and report five times a second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it is not inherited from the parent, which stops this one
    chosen, parent = next(each for each in ROLES if each.name == role), parent_process()
    try:
        with open_engine(url) as engine, build_worker(engine, chosen) as worker:
            while not stopping.wait(0.2) and (parent is None or parent.is_alive()):
                progress.put(Progress(role, worker.counts))
            worker.stop()
            progress.put(Progress(role, worker.counts))
    except Exception as error:  # the parent shows it; a traceback of each process would bury it
        progress.put(Progress(role, Counts(), f"{type(error).__name__}: {error}"))
