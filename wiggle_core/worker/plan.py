"""What a worker is going to do, checked as a whole before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.check import check_text
from wiggle_core.criteria.text import format_text
from wiggle_core.criteria.tree import Predicate
from wiggle_core.engine.routes import ANY_STEP, with_steps
from wiggle_core.errors import CriteriaError, WorkerRejected
from wiggle_core.stores.store import Route
from wiggle_core.tasks.feasibility import can_match
from wiggle_core.tasks.retry import MAX_DELAY

MAX_CRITERIA = 32


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What was asked for when the worker was made."""

    id: str
    queues: tuple[str, ...] | None
    criteria: tuple[QueueCriteria, ...] | None
    concurrency: int
    prefetch: int
    lease: timedelta
    heartbeat: timedelta
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, found possible: the routes of every claim, handled steps joined."""

    options: WorkerOptions
    criteria: tuple[QueueCriteria, ...]
    steps: tuple[str, ...]
    routes: tuple[Route, ...]


def make_plan(options: WorkerOptions, steps: Sequence[str]) -> Plan:
    """The plan of a worker that handles `steps`. Raises WorkerRejected for what could not work, or never find work."""
    _check_numbers(options)
    if not steps:
        raise WorkerRejected(f"worker {options.id!r} has no handler: register one with @worker.task(step)")
    criteria = _criteria(options)
    routes = tuple(Route(each.queue, _reachable(each, steps)) for each in criteria)
    return Plan(options, criteria, tuple(steps), routes)


def _check_numbers(options: WorkerOptions) -> None:
    try:
        if not check_text(options.id):
            raise WorkerRejected("a worker needs an id")
    except CriteriaError as error:
        raise WorkerRejected(f"the worker's id: {error.message}") from None
    if options.concurrency < 1:
        raise WorkerRejected("concurrency is at least 1")
    if options.prefetch < 0:
        raise WorkerRejected("prefetch is not negative")
    if options.heartbeat <= timedelta(0) or options.grace < timedelta(0):
        raise WorkerRejected("the heartbeat is longer than nothing, and the grace period not negative")
    if options.lease > MAX_DELAY:
        raise WorkerRejected(f"a lease lasts at most {MAX_DELAY.days} days")
    if options.heartbeat >= options.lease:
        raise WorkerRejected(f"a heartbeat of {options.heartbeat} cannot keep a lease of {options.lease}")


def _criteria(options: WorkerOptions) -> tuple[QueueCriteria, ...]:
    if (options.queues is None) == (options.criteria is None):
        raise WorkerRejected("give a worker queues or criteria, one of the two")
    if options.criteria is not None:
        criteria = options.criteria
    else:
        criteria = tuple(QueueCriteria(queue) for queue in options.queues or ())
    if not criteria:
        raise WorkerRejected("a worker needs a queue to take from")
    if len(criteria) > MAX_CRITERIA:
        raise WorkerRejected(f"{len(criteria)} criteria; a worker has at most {MAX_CRITERIA} (C7)")
    queues = [each.queue for each in criteria]
    for queue in queues:
        if queues.count(queue) > 1:
            raise WorkerRejected(f"queue {queue!r} is named twice; join its predicates with |")
    return criteria


def _reachable(criteria: QueueCriteria, steps: Sequence[str]) -> Predicate:
    """The predicate of the route. Raises WorkerRejected when no task can match it."""
    written = "" if criteria.predicate is None else format_text(criteria.predicate)
    if not can_match(criteria.normal):
        raise WorkerRejected(f"the criteria on queue {criteria.queue!r} can never match: {written}")
    joined = with_steps(criteria.normal, steps)
    if ANY_STEP not in steps and not can_match(joined):
        handled = ", ".join(map(repr, steps))
        raise WorkerRejected(f"the criteria on queue {criteria.queue!r} match no handled step ({handled}): {written}")
    return joined
