"""The check of a head that moves (N1, N3) while tasks are enqueued before and behind its bound, claimed and given
back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from time import monotonic, sleep

from wiggle_core.conformance.heads import require_heads
from wiggle_core.conformance.laned import Laned, Moved
from wiggle_core.conformance.lanes import require_exact
from wiggle_core.conformance.plugin import ALL, START, claim, drain, ids, make_task
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.heads import before
from wiggle_core.stores.lanes import Lane
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish, GiveBack, Store
from wiggle_core.tasks.task import State, TaskId, TaskRecord

_SECONDS = 2.0
_MOVED_SECONDS = 0.05


@dataclass(slots=True)
class _Crowd:
    """What those who work while the head moves did: the tasks that are held, and how often each was finished."""

    end: float
    lock: Lock = field(default_factory=Lock)
    enqueued: list[TaskId] = field(default_factory=list)
    held: set[TaskId] = field(default_factory=set)
    finished: Counter[TaskId] = field(default_factory=Counter)
    by_head: int = 0

    def turns(self) -> Iterator[int]:
        number = 0
        while monotonic() < self.end:
            yield number
            number += 1

    def take(self, tasks: list[TaskRecord]) -> None:
        with self.lock:
            assert self.held.isdisjoint(ids(tasks)), "a task was claimed twice"
            self.held.update(ids(tasks))

    def leave(self, tasks: list[TaskRecord]) -> None:
        with self.lock:
            self.held.difference_update(ids(tasks))


def _work(crowd: _Crowd, laned: Laned, name: str) -> None:
    """Enqueue with any priority, claim by whatever head is known, and finish some of it and give back the rest."""
    random = Random(name)
    for number in crowd.turns():
        tasks = [make_task(f"{name} {number} {each}", priority=random.randrange(4)) for each in range(4)]
        with crowd.lock:
            crowd.enqueued += sorted(laned.enqueue(tasks))
        (chosen,) = laned.book.with_lanes([ALL])
        held: list[TaskRecord] = []
        with suppress(StaleLanes):
            held = claim(laned.store, chosen, limit=random.randint(1, 8))
            crowd.by_head += chosen.head is not None
        crowd.take(held)
        done, back = held[::2], held[1::2]
        moved: list[Moved] = [(Finish(task.lease, State.DONE), task) for task in done]
        moved += [(GiveBack(task.lease, task.attributes), task) for task in back]
        crowd.leave(held)
        assert laned.apply(moved) == set(ids(held))
        with crowd.lock:
            crowd.finished.update(ids(done))
        laned.book.refresh()


def _move(crowd: _Crowd, laned: Laned, present: list[Lane]) -> None:
    """Open a head somewhere else, and close those before."""
    random = Random(1)
    for _ in crowd.turns():
        opened = laned.open(before(random.randrange(4), START + random.randrange(2)))
        kept = {lane.id for lane in opened}
        laned.close(*(lane for lane in present if lane.id not in kept))
        present = opened
        sleep(_MOVED_SECONDS)


def test_a_moving_head_loses_nothing(open_handle: Callable[[], Store]) -> None:
    """N1, N3, L1: while four handles enqueue with any priority, claim by the head that they know, finish and give back,
    and the head moves all the time, no task is claimed by two at once, none is lost, and the store audits itself
    exact."""
    laned = require_heads(open_handle())
    others = [Laned.over(Replaying(open_handle())) for _ in range(5)]
    begun = laned.open(before(1, START))
    crowd = _Crowd(monotonic() + _SECONDS)
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(_work, crowd, others[each], f"worker {each}") for each in range(4)]
        runs.append(pool.submit(_move, crowd, others[4], begun))
        while not all(run.done() for run in runs):
            assert laned.store.audit() == []
            sleep(0.02)
        for run in runs:
            run.result()
    laned.book.refresh()
    (chosen,) = laned.book.with_lanes([ALL])
    assert chosen.head is not None
    assert crowd.by_head > 10
    require_exact(laned, laned.book.known.lanes[chosen.head.lane])
    crowd.finished.update(task.id for claimed in drain(laned.store, chosen, limit=50) for task in claimed)
    assert crowd.finished == Counter(crowd.enqueued)
