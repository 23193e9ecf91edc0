"""Who acts in the audit of lanes: producers, claimers, a sweeper, a meddler and an opener, each a step at a time.

Every call goes through the `Store` and `Lanes` protocols only. Attributes are drawn anew whenever a task becomes READY,
so that it leaves lanes and enters others all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic, sleep

from wiggle_core.conformance.laned import Laned, Moved, by_lane, new_lane
from wiggle_core.conformance.plugin import ids, make_task
from wiggle_core.criteria.builder import cb
from wiggle_core.criteria.evaluate import matches
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, Predicate, Value, normalize
from wiggle_core.errors import StaleLanes, TransientStoreError
from wiggle_core.lanes.filling import clear, complete, resume
from wiggle_core.lanes.heads import before
from wiggle_core.stores.lanes import Lane, LaneRow, LaneState
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Route,
    Store,
)
from wiggle_core.tasks.task import State, TaskRecord

QUEUES = ("first", "second")
TTL_MICROS = 400_000
"""Leases are short, and some claimers die: tasks expire all the time."""
DEEP = 400
"""From so many READY tasks on, producers wait for claimers: what is deep is slow to audit."""
REFRESH_SECONDS = 0.05
PATIENCE_SECONDS = 20.0
SILENCE_SECONDS = 0.5

_region, _tenant, _late = Task.attr("region", str), Task.attr("tenant", int), Task.attr("late", bool)
_WRITTEN: tuple[Predicate, ...] = (
    *(_tenant == tenant for tenant in range(6)),
    *(_tenant.in_([0, 3, 5]), _tenant.between(2, 4), ~(_tenant >= 2), _tenant.is_null()),
    *(_region == "eu", _region.like("e%") & (Task.attempt == 1), (_region == "us") | (_tenant == 1)),
    *(Task.attempt >= 3, ~(Task.step == "charge"), cb.equal(_late, True) & (Task.priority == 0)),
)
PREDICATES = tuple(map(normalize, _WRITTEN))
"""What lanes are opened for: equalities that an index tells apart, and others; some by what changes with a run."""


@dataclass(slots=True)
class Tally:
    """What an actor did, and what it found wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.findings += other.findings


@dataclass(slots=True)
class Actor:
    """One of them: a handle of its own, or one shared with other threads, and a source of chance."""

    name: str
    laned: Laned
    random: Random
    interval: float = 0.2
    """How often the opener opens and closes, in seconds."""
    tally: Tally = field(default_factory=Tally)
    serial: int = 0
    refreshed_at: float = 0.0
    pruned: LaneRow | None = None
    known_lanes: set[int] = field(default_factory=set)

    @classmethod
    def begin(cls, name: str, store: Store, seed: int, interval: float) -> Actor:
        return cls(name, Laned.over(store), Random(f"{seed} {name}"), interval)

    @property
    def store(self) -> Store:
        return self.laned.store

    def act(self, seconds: float) -> Tally:
        """Its steps, until the time is over. One that is given up by the engine's rules is taken for normal."""
        step, end = STEPS[self.name.partition(" ")[0]], monotonic() + seconds
        while monotonic() < end:
            try:
                step(self)
            except TransientStoreError:
                self.tally.counts["calls given up"] += 1
        return self.tally

    def is_chance(self, share: float) -> bool:
        return self.random.random() < share

    def attributes(self) -> dict[str, Value]:
        """Those of a run to come."""
        drawn: dict[str, Value] = {"region": self.random.choice(("eu", "us", "ap"))}
        if self.is_chance(0.8):
            drawn["tenant"] = self.random.randrange(6)
        if self.is_chance(0.3):
            drawn["late"] = self.is_chance(0.5)
        return drawn

    def wrong(self, told: str) -> None:
        self.tally.findings.append(f"{self.name}: {told}")

    def apply(self, moved: Sequence[Moved]) -> None:
        """Apply changes, counted by their kind as far as they took effect."""
        done = self.laned.apply(moved)
        self.tally.counts.update(type(change).__name__ for change, task in moved if task.id in done)


def _produce(actor: Actor) -> None:
    queue = actor.random.choice(QUEUES)
    if actor.store.count(Route(queue), [State.READY], DEEP) >= DEEP:
        sleep(0.02)
        return
    now, tasks = actor.store.now(), []
    for _ in range(actor.random.randint(1, 12)):
        actor.serial += 1
        # An id of one's own from before: known still, or forgotten by now and free again.
        number = actor.random.randrange(actor.serial) if actor.is_chance(0.1) else actor.serial
        delay = actor.random.randrange(10_000, 150_000) if actor.is_chance(0.2) else 0
        tasks.append(
            make_task(
                f"{actor.name} {number}",
                queue=queue,
                step=actor.random.choice(("charge", "ship")),
                priority=actor.random.randrange(3),
                created_at=now,
                ready_at=now + delay,
                state=State.SCHEDULED if delay else State.READY,
                attributes=actor.attributes(),
            )
        )
    actor.tally.counts["enqueued"] += len(actor.laned.enqueue(tasks))


def _claim(actor: Actor) -> None:
    book = actor.laned.book
    if monotonic() - actor.refreshed_at > REFRESH_SECONDS:
        book.refresh()
        actor.refreshed_at = monotonic()
    queues = actor.random.sample(QUEUES, actor.random.randint(1, 2))
    predicates = {queue: actor.random.choice((*PREDICATES, *_with_lanes(actor, queue), TRUE)) for queue in queues}
    routes = book.with_lanes([Route(queue, predicate) for queue, predicate in predicates.items()])
    limit, token = actor.random.randint(1, 8), f"{actor.random.getrandbits(128):032x}"
    try:
        held = actor.store.claim(ClaimRequest(actor.name, token, TTL_MICROS, limit, routes))
    except StaleLanes:
        actor.tally.counts["claims refused"] += 1
        actor.refreshed_at = 0.0
        return
    actor.tally.counts["claims by lane" if any(route.lane for route in routes) else "claims by walk"] += 1
    _judge(actor, held, {route.queue: route for route in routes}, limit)
    actor.apply([(change, task) for task in held if (change := _outcome(actor, task)) is not None])


def _with_lanes(actor: Actor, queue: str) -> list[Predicate]:
    """The predicates that have an open lane, which are to be tried often."""
    return [lane.predicate for lane in actor.laned.book.known.lanes.values() if lane.queue == queue] * 2


def _judge(actor: Actor, held: Sequence[TaskRecord], routes: dict[str, Route], limit: int) -> None:
    for task in held:
        route = routes[task.queue]
        by = "a walk" if route.lane is None else f"lane {route.lane}"
        actor.tally.counts["tasks by walk" if route.lane is None else "tasks by lane"] += 1
        actor.tally.counts["tasks by head"] += route.head is not None
        if not matches(route.predicate, task):
            what = f"{task.id!r} with {task.attributes}, attempt {task.attempt}"
            actor.wrong(f"{by} of {route.predicate} returned {what}")
    if len(held) > limit or len(set(ids(held))) < len(held):
        actor.wrong(f"a claim of {limit} returned {ids(held)}")
    if actor.store.capabilities.strict_order and list(held) != sorted(held, key=lambda task: task.order_key):
        actor.wrong(f"a claim by {list(routes.values())} is out of order: {ids(held)}")


def _outcome(actor: Actor, task: TaskRecord) -> Change | None:
    """What becomes of a run; None for one whose worker dies."""
    chance, lease = actor.random.random(), task.lease
    if chance < 0.3:
        return Finish(lease, State.DONE)
    if chance < 0.4:
        return Finish(lease, State.FAILED)
    if chance < 0.6:
        return Requeue(lease, 0, actor.attributes())
    if chance < 0.7:
        return Requeue(lease, actor.random.randrange(5_000, 80_000), actor.attributes())
    return GiveBack(lease, actor.attributes()) if chance < 0.93 else None


def _sweep(actor: Actor) -> None:
    moved: list[Moved] = []
    for task in actor.store.due(50):
        if task.state is State.SCHEDULED:
            moved.append((Promote(task.id, actor.attributes()), task))
        else:
            delay = actor.random.choice((0, 0, 20_000, None))
            moved.append((Expire(task.lease, delay, actor.attributes()), task))
    actor.apply(moved)
    actor.pruned = actor.laned.lanes.prune(actor.pruned, 200)
    resume(actor.laned.lanes, SILENCE_SECONDS, PATIENCE_SECONDS)
    sleep(0.01)


def _meddle(actor: Actor) -> None:
    """Cancel, bring back and forget."""
    for queue in QUEUES:
        cancelled = actor.store.find(Route(queue, actor.random.choice(PREDICATES)), [State.READY], 3)
        cancelled += actor.store.find(Route(queue), [State.RUNNING], 1)
        actor.apply([(Cancel(task.id), task) for task in cancelled])
        ended = actor.store.find(Route(queue), [State.FAILED, State.CANCELLED], 20)
        chosen = actor.random.sample(ended, min(4, len(ended)))
        actor.apply([(Revive(task.id, actor.attributes()), task) for task in chosen])
    actor.tally.counts["forgotten"] += actor.store.purge(actor.store.now() - 200_000, 20)
    sleep(0.01)


def _open_and_close(actor: Actor) -> None:
    """Open some lanes and close others; now and then die in the midst of it, and leave it to the sweeper."""
    laned, began = actor.laned, monotonic()
    present = [lane for lane in laned.book.refresh().lanes.values() if lane.state is LaneState.OPEN]
    queue, wanted = actor.random.choice(QUEUES), actor.random.sample(PREDICATES, actor.random.randint(1, 5))
    wanted.append(before(actor.random.randrange(3), actor.store.now() - actor.random.randrange(200_000)))
    filling = laned.lanes.open([new_lane(each, queue) for each in wanted])
    _note(actor, filling)
    if actor.is_chance(0.9) and not complete(laned.lanes, filling, PATIENCE_SECONDS):
        actor.wrong(f"lanes could not be filled: an old epoch was held for {PATIENCE_SECONDS} s")
    some = [lane.id for lane in present if actor.is_chance(0.4)]
    closing = laned.lanes.close(some)
    actor.tally.counts["lanes closed"] += len(closing)
    _refused(actor, closing)
    if actor.is_chance(0.9):
        if not clear(laned.lanes, closing, PATIENCE_SECONDS):
            actor.wrong(f"lanes could not be cleared: an old epoch was held for {PATIENCE_SECONDS} s")
        _refused(actor, closing)
    laned.book.refresh()
    sleep(max(0.0, began + actor.interval - monotonic()))


def _note(actor: Actor, filling: Sequence[Lane]) -> None:
    actor.tally.counts["lanes opened"] += len(filling)
    for lane in filling:
        if lane.id in actor.known_lanes:
            actor.wrong(f"lane {lane.id} was another one before")
        actor.known_lanes.add(lane.id)
    _refused(actor, filling)


def _refused(actor: Actor, lanes: Sequence[Lane]) -> None:
    """A claim by a lane that is not OPEN is refused, never answered."""
    for lane in lanes[:1]:
        try:
            held = actor.store.claim(ClaimRequest(actor.name, f"{lane.id} refused", TTL_MICROS, 1, (by_lane(lane),)))
        except StaleLanes:
            actor.tally.counts["claims refused"] += 1
        else:
            told = {each.id: each.state for each in actor.laned.lanes.read(0).lanes}
            if told.get(lane.id) is LaneState.OPEN:
                continue  # so slow was this one that another took the lane for left, and filled it
            actor.wrong(f"a claim by lane {lane.id}, which is not open, returned {ids(held)}")


def _audit(actor: Actor) -> None:
    """What the store itself finds, while everything goes on."""
    for each in actor.store.audit():
        actor.wrong(each)
    actor.tally.counts["audits"] += 1
    sleep(0.02)


STEPS: dict[str, Callable[[Actor], None]] = {
    "producer": _produce,
    "claimer": _claim,
    "sweeper": _sweep,
    "meddler": _meddle,
    "opener": _open_and_close,
    "auditor": _audit,
}
