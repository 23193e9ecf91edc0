"""What waits, and what nobody takes: ready tasks that match the criteria of no live worker, and why they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.evaluate import Matcher, compile_predicate, matches
from wiggle_core.criteria.text import format_text
from wiggle_core.criteria.tree import FALSE, And, Not, Or, Predicate, canonical, normalize
from wiggle_core.engine.routes import ANY_STEP, with_steps
from wiggle_core.engine.workers import WorkerInfo, Workers
from wiggle_core.errors import CriteriaError
from wiggle_core.stores.store import Route, Slice, Store
from wiggle_core.tasks.task import State, TaskRecord

DEFAULT_CAP = 10_000
DEFAULT_SAMPLES = 3
_PAGE = 500
_READY = frozenset({State.READY})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one task is not for the workers named: the first condition that it does not meet, as text."""

    workers: tuple[str, ...]
    criteria: str
    failed: str


@dataclass(frozen=True, slots=True)
class UncoveredTask:
    """A task that no live worker takes, with one refusal for each criteria on its queue; none when nobody polls it."""

    task: TaskRecord
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Uncovered:
    """The ready tasks of a queue that no live worker takes: how many (`capped` when there may be more), and a few."""

    queue: str
    count: int
    capped: bool
    samples: tuple[UncoveredTask, ...]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ready tasks by workflow, version and queue, and those that nobody takes. `now` is the store's time.

    What `unreadable_workers` take is not known here: they are named by the keys of their documents.
    """

    now: int
    slices: tuple[Slice, ...]
    uncovered: tuple[Uncovered, ...]
    unreadable_workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Offer:
    """One criteria with the steps handled, and all workers that have just these."""

    criteria: QueueCriteria
    steps: tuple[str, ...]
    accepts: Predicate
    workers: tuple[str, ...]


def read_backlog(store: Store, workers: Workers, cap: int = DEFAULT_CAP, samples: int = DEFAULT_SAMPLES) -> Backlog:
    """The backlog as the live ones among the `workers` cover it. Counts of uncovered tasks stop at `cap`."""
    slices = store.slices()
    offers = _offers(each for each in workers.known if each.is_live)
    found = (_uncovered(store, queue, offers.get(queue, []), cap, samples) for queue in sorted(_queues(slices)))
    return Backlog(store.now(), tuple(slices), tuple(each for each in found if each is not None), workers.unreadable)


def _queues(slices: Iterable[Slice]) -> set[str]:
    return {each.queue for each in slices}


def _offers(workers: Iterable[WorkerInfo]) -> dict[str, list[_Offer]]:
    """What is taken from each queue, alike criteria joined: a thousand equal workers are one offer."""
    found: dict[tuple[str, str], _Offer] = {}
    for worker in workers:
        steps = worker.registration.steps
        for criteria in worker.registration.criteria:
            accepts = with_steps(criteria.normal, steps)
            key = criteria.queue, canonical(accepts)
            known = found[key].workers if key in found else ()
            found[key] = _Offer(criteria, steps, accepts, (*known, worker.id))
    offers: dict[str, list[_Offer]] = {}
    for (queue, _), offer in sorted(found.items(), key=lambda item: item[0]):
        offers.setdefault(queue, []).append(offer)
    return offers


def _uncovered(store: Store, queue: str, offers: Sequence[_Offer], cap: int, samples: int) -> Uncovered | None:
    nobody = normalize(Not(Or(tuple(offer.accepts for offer in offers))))
    if nobody == FALSE:
        return None
    try:
        count, first = _asked(store, Route(queue, nobody), cap, samples)
    except CriteriaError:  # thousands of workers that all differ: more values than one query can bind
        count, first = _walked(store, queue, compile_predicate(nobody), cap, samples)
    if count == 0:
        return None
    explained = tuple(UncoveredTask(task, tuple(_refusal(offer, task) for offer in offers)) for task in first)
    return Uncovered(queue, count, count >= cap, explained)


def _asked(store: Store, route: Route, cap: int, samples: int) -> tuple[int, list[TaskRecord]]:
    """How many ready tasks match, up to `cap`, and the first of them, by the store's own query."""
    count = store.count(route, _READY, cap)
    return count, store.find(route, _READY, samples) if count else []


def _walked(store: Store, queue: str, is_match: Matcher, cap: int, samples: int) -> tuple[int, list[TaskRecord]]:
    """As `_asked`, page by page and tested here."""
    count, first, after = 0, list[TaskRecord](), None
    while count < cap and (page := store.find(Route(queue), _READY, _PAGE, after)):
        found = list(filter(is_match, page))
        count, after = min(cap, count + len(found)), page[-1].order_key
        first += found[: samples - len(first)]
    return count, first


def _refusal(offer: _Offer, task: TaskRecord) -> Refusal:
    written = "everything" if offer.criteria.predicate is None else format_text(offer.criteria.predicate)
    if ANY_STEP not in offer.steps and task.step not in offer.steps:
        failed = f"the step {task.step!r} is not among the handled ones: {', '.join(map(repr, offer.steps))}"
    else:
        unmet = tuple(_unmet(offer.criteria.normal, task))
        failed = format_text(unmet[0] if len(unmet) == 1 else And(unmet))
    return Refusal(offer.workers, written, failed)


def _unmet(predicate: Predicate, task: TaskRecord) -> Iterator[Predicate]:
    """The conditions, joined by AND at the top, that the task does not meet."""
    parts = predicate.arguments if isinstance(predicate, And) else (predicate,)
    return (part for part in parts if not matches(part, task))
