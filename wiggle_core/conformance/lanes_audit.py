"""The audit of lanes while they live (N1, N3): producers, claimers, retries, expiries, promotions and cancels at once,
while lanes open and close.

The store audits itself all the time; in the end every task that is READY and every lane that is open is compared with
the evaluator, by claims. The suite runs some seconds of it; `python -m wiggle_core.conformance lanes` a minute, in
several processes where the store has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from wiggle_core.conformance.laned import Laned, require_lanes
from wiggle_core.conformance.lanes_actors import QUEUES, Actor, Tally
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.criteria.evaluate import matches
from wiggle_core.lanes.filling import resume
from wiggle_core.stores.lanes import Lane, LaneState
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Cancel, Route, Store
from wiggle_core.tasks.task import LIVE, State, TaskRecord

PROCESSES = 4
_WAIT = 60
_ALL_TASKS = 1_000_000
_PAGE = 500

_barrier: list[Barrier] = []


@dataclass(frozen=True, slots=True)
class Upheaval:
    """How many act, for how many seconds, and how often lanes open and close."""

    seconds: float
    seed: int
    producers: int = 8
    claimers: int = 8
    interval: float = 0.2

    def workers(self, share: int = 0, of: int = 1) -> list[str]:
        """The names of those who produce, claim and sweep, or of a share of them."""
        names = [f"producer {number}" for number in range(self.producers)]
        names += [f"claimer {number}" for number in range(self.claimers)]
        names += [f"{role} {number}" for number in range(of) for role in ("sweeper", "meddler")]
        return names[share::of]


def run_in_threads(open_one: Callable[[], Store], upheaval: Upheaval) -> Tally:
    """All of it in threads of this process, each with a handle of its own."""
    names = [*upheaval.workers(), "opener", "auditor"]
    return _finished(open_one(), _act([(name, open_one()) for name in names], upheaval))


def run_in_processes(url: str, upheaval: Upheaval) -> Tally:
    """As much of it in other processes as can be; lanes open and close in this one."""
    context = get_context("spawn")  # as on every platform: drivers do not survive a fork
    barrier = context.Barrier(PROCESSES + 1)
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(PROCESSES, context, _begin, (barrier,)))
        runs = [pool.submit(_act_in_process, url, upheaval, number) for number in range(PROCESSES)]
        store = stack.enter_context(closing(open_store(url)))
        barrier.wait(_WAIT)
        tally = _act([("opener", store), ("auditor", store)], upheaval)
        return _finished(store, _together([tally, *(run.result() for run in runs)]))


def _begin(barrier: Barrier) -> None:
    """A barrier reaches another process only while that one is made."""
    _barrier.append(barrier)


def _act_in_process(url: str, upheaval: Upheaval, number: int) -> Tally:
    with closing(open_store(url)) as store:
        _barrier[0].wait(_WAIT)
        return _act([(name, store) for name in upheaval.workers(number, PROCESSES)], upheaval)


def _act(actors: Sequence[tuple[str, Store]], upheaval: Upheaval) -> Tally:
    with ThreadPoolExecutor(len(actors)) as pool:
        runs: list[Future[Tally]] = [
            pool.submit(Actor.begin(name, Replaying(store), upheaval.seed, upheaval.interval).act, upheaval.seconds)
            for name, store in actors
        ]
    return _together([run.result() for run in runs])


def _together(tallies: Sequence[Tally]) -> Tally:
    whole = Tally()
    for each in tallies:
        whole.add(each)
    return whole


# When all is quiet


def _finished(store: Store, tally: Tally) -> Tally:
    """The tally, with what is found in the end."""
    laned = Laned.over(Replaying(store))
    resume(laned.lanes, 0, 30)
    lanes = laned.book.refresh().lanes.values()
    tally.findings += [f"lane {lane.id} is left {lane.state}" for lane in lanes if lane.state is not LaneState.OPEN]
    tally.findings += [f"in the end: {each}" for each in store.audit()]
    ready = {queue: _ready(store, queue) for queue in QUEUES}
    for lane in lanes:
        tally.findings += _compared(laned, lane, ready[lane.queue])
        tally.counts["lanes compared"] += 1
    tally.counts["READY in the end"] = sum(map(len, ready.values()))
    kept = sum(store.count(Route(queue), list(State), _ALL_TASKS) for queue in QUEUES)
    if tally.counts["enqueued"] != kept + tally.counts["forgotten"]:
        tally.findings.append(f"{kept} tasks are there, which is not enqueued less forgotten: {dict(tally.counts)}")
    return tally


def _ready(store: Store, queue: str) -> list[TaskRecord]:
    """All READY tasks of a queue, in claim order, without any predicate."""
    found: list[TaskRecord] = []
    while page := store.find(Route(queue), [State.READY], _PAGE, found[-1].order_key if found else None):
        found += page
    return found


def _compared(laned: Laned, lane: Lane, ready: Sequence[TaskRecord]) -> list[str]:
    """How claims by a lane differ from what the evaluator says (C8)."""
    expected = [task.id for task in ready if matches(lane.predicate, task)]
    got = laned.content(lane)
    if got == expected:
        return []
    missing, surplus = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    return [f"lane {lane.id} of {lane.predicate} lacks {missing} and has {surplus}, of {len(ready)} READY"]


def leave_nothing(store: Store) -> None:
    """Remove lanes and tasks."""
    laned = Laned.over(Replaying(store))
    laned.close(*laned.book.refresh().lanes.values())
    for queue in QUEUES:
        while live := store.find(Route(queue), LIVE, _PAGE):
            store.apply([Cancel(task.id) for task in live])
    while store.purge(store.now() + 1, _PAGE):
        pass


def test_lanes_are_exact_while_everything_changes(store_factory: StoreFactory) -> None:
    """N1, N2, N3: while tasks are produced, claimed, retried, expired, promoted, cancelled and revived, and lanes open
    and close, no claim returns a task that does not match, and no lane lacks one that does, then and in the end."""
    with ExitStack() as stack:
        require_lanes(first := stack.enter_context(closing(store_factory())))
        first.migrate()

        def open_one() -> Store:
            return stack.enter_context(closing(store_factory()))

        tally = run_in_threads(open_one, Upheaval(seconds=3, seed=1, producers=3, claimers=3, interval=0.04))
        assert tally.findings == []
        assert tally.counts["tasks by head"] or not first.capabilities.heads
        wanted = ("tasks by lane", "lanes opened", "lanes closed", "Requeue", "Expire", "Promote", "Cancel", "Revive")
        assert [each for each in wanted if not tally.counts[each]] == []
