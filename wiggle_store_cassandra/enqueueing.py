"""Putting new tasks into their shards: where an id is unique (L4), and where lanes are held to (N3)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import time_ns

from wiggle_core.errors import AmbiguousStoreError, StaleLanes, TransientStoreError
from wiggle_core.stores.lanes import LaneId, Placed
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_cassandra import history
from wiggle_store_cassandra.book import Book
from wiggle_store_cassandra.rows import Statement, Stored, inserted, new_version
from wiggle_store_cassandra.shards import TRIES, Shards, Statics, Write

TASKS_AT_ONCE = 50
"""How many tasks one batch inserts: beyond it costs what another batch does."""
BYTES_AT_ONCE = 1_000_000
"""A mutation is refused beyond half of a segment of the commit log, 16 MiB as Cassandra is set up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A task to be inserted, and the lanes that it enters if it is READY; one that comes back from history as it is
    there."""

    task: TaskRecord
    lanes: Sequence[LaneId]
    revived: history.Kept | None = None

    @property
    def is_ready(self) -> bool:
        return self.task.state is State.READY


def enqueue(shards: Shards, book: Book, tasks: Sequence[TaskRecord], placed: Placed) -> set[TaskId]:
    """Insert tasks; the ids inserted now. Raises StaleLanes."""
    wanted: dict[TaskId, Wanted] = {}
    for index, task in enumerate(tasks):
        wanted.setdefault(task.id, Wanted(task, placed.of(index)))
    if any(each.is_ready for each in wanted.values()):
        book.require_epoch(placed.epoch)
    done: set[TaskId] = set()
    with told_whole(done):
        return Inserting(shards, placed.epoch, done).insert(list(wanted.values()))


@contextmanager
def told_whole(done: Collection[TaskId]) -> Iterator[None]:
    """Raise AmbiguousStoreError in place of TRANSIENT where something has been done."""
    try:
        yield
    except TransientStoreError as error:
        if done:
            raise AmbiguousStoreError("a part of what was to be done is done, and a part is not") from error
        raise


def next_ready_no(last: int = 0) -> int:
    """A number that grows each time a task becomes READY, and that no later task of the same id ever gets (N1)."""
    return max(last + 1, (time_ns() // 1000 << 10) + random.getrandbits(10))


class Inserting:
    """One call's insertions, again and again until each task is there or known to be there. `done` is what the call
    has done so far, and grows."""

    def __init__(self, shards: Shards, epoch: int, done: set[TaskId]) -> None:
        self._shards = shards
        self._epoch = epoch
        self._done = done

    def insert(self, wanted: Sequence[Wanted], known_by: Mapping[int, Statics] | None = None) -> set[TaskId]:
        """Insert these, side by side in as many batches as it takes; the ids inserted now. `known_by` are the statics
        that were known before history was read for those who come back from it. Raises StaleLanes."""
        shards = self._shards
        by_id = {each.task.id: each for each in wanted}
        numbers = {number: [by_id[each] for each in ids] for number, ids in shards.by_number(list(by_id)).items()}
        statics = {number: known_by[number] if known_by else shards.statics(number) for number in numbers}
        # Behind the statics: what moves to history from now on, their guard tells.
        known = history.known(shards, [each.task.id for each in wanted if each.revived is None])
        inserted: set[TaskId] = set()
        failures = 0
        while failures < TRIES:
            parts = [
                (number, part)
                for number, each in numbers.items()
                for part in _parts([one for one in each if one.task.id not in known])
            ]
            # One batch a shard at a time: side by side they would only get into each other's way.
            turn = dict(reversed(parts))
            if not turn:
                return inserted
            writes = [self._write(number, statics[number], part) for number, part in turn.items()]
            outcomes = dict(zip(turn, shards.write(writes), strict=True))
            for number, part in turn.items():
                if outcomes[number]:
                    inserted.update(one.task.id for one in part)
                    self._done.update(inserted)
                    numbers[number] = [one for one in numbers[number] if one.task.id not in inserted]
            failed = [number for number, is_done in outcomes.items() if not is_done]
            if failed:
                failures += 1
                known |= self._look_again(failed, statics, numbers)
        raise TransientStoreError(f"the shards of {shards.connections.place} change so fast that nothing can be added")

    def _write(self, number: int, statics: Statics, part: Sequence[Wanted]) -> Write:
        shards = self._shards
        expected = {"moved": statics.moved, "mark": statics.mark}
        generations = {
            each: shards.some_generations(number, each) for each in {one.task.queue for one in part if one.is_ready}
        }
        if generations:
            expected["epoch"] = self._epoch
        statements: list[Statement] = [shards.guard(number, **expected)]
        statements += [shards.guard_open(number, queue, each) for queue, each in generations.items()]
        new = [_stored(one, statics.mark, generations[one.task.queue].open if one.is_ready else 0) for one in part]
        statements += [each for stored in new for each in inserted(shards.space, number, stored)]
        return Write(number, statements, None, new[0])

    def _look_again(
        self, failed: Sequence[int], statics: dict[int, Statics], numbers: dict[int, list[Wanted]]
    ) -> set[TaskId]:
        """What stood against these batches; the ids that are known already. Raises StaleLanes."""
        shards = self._shards
        before = {number: statics[number].moved for number in failed}
        statics.update(shards.reread(failed))
        found: set[TaskId] = set()
        asked: list[Wanted] = []
        for number in failed:
            ids = [one.task.id for one in numbers[number]]
            for queue in {one.task.queue for one in numbers[number]}:
                shards.forget_generations(number, queue)
            found |= shards.tasks(ids).keys()
            asked += numbers[number] if statics[number].moved != before[number] else []
            if any(one.is_ready for one in numbers[number]):
                catch_up(shards, number, statics, self._epoch, self._done)
        kept = history.get(shards, [one.task.id for one in asked])
        return found | {one.task.id for one in asked if not _is_as_it_was(one, kept.get(one.task.id))}


def _is_as_it_was(one: Wanted, kept: history.Kept | None) -> bool:
    """Whether history has of this task what it had: nothing, or the run that is to come back."""
    if one.revived is None or kept is None:
        return one.revived is None and kept is None
    return one.revived.name == kept.name


def catch_up(shards: Shards, number: int, statics: dict[int, Statics], epoch: int, done: set[TaskId]) -> None:
    """Have a shard hold to the epoch by which tasks are placed. Raises StaleLanes when it knows a later one."""
    if statics[number].epoch > epoch:
        raise StaleLanes(frozenset(done))
    if statics[number].epoch < epoch:
        shards.raise_epoch(number, epoch)
        statics[number] = shards.statics(number)


def _stored(one: Wanted, mark: int, generation: int) -> Stored:
    task = replace(one.task, attributes=dict(one.task.attributes))
    if one.is_ready:
        back_from = None if one.revived is None else one.revived.name
        return Stored(task, new_version(), next_ready_no(), generation, tuple(one.lanes), back_from=back_from)
    return Stored(task, new_version(), due=max(task.ready_at, mark))


def _parts(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    part: list[Wanted] = []
    size = 0
    for each in wanted:
        length = len(each.task.payload)
        if part and (len(part) == TASKS_AT_ONCE or size + length > BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part
