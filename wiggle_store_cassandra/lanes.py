"""The lanes of a Cassandra store (design N1-N3).

Every shard keeps the epoch that its tasks are placed by, and each batch that makes tasks READY there is conditional on
it. So nobody has to be waited for: once the new epoch is in a shard, no task is placed there by an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from wiggle_core.criteria.tree import Predicate
from wiggle_core.stores.lanes import (
    Head,
    Lane,
    LaneChanges,
    LaneId,
    LaneRow,
    LaneState,
    NewLane,
    ReadyTasks,
)
from wiggle_core.tasks.task import Clock, OrderKey
from wiggle_store_cassandra import lane_rows
from wiggle_store_cassandra.book import Book, Edit, Entry, lanes_of
from wiggle_store_cassandra.shards import Shards

_ENTERED = (LaneState.FILLING, LaneState.OPEN)
_UNFINISHED = (LaneState.FILLING, LaneState.CLOSING)


class CassandraLanes:
    """The `Lanes` of one `CassandraStore`."""

    def __init__(self, shards: Shards, book: Book, clock: Clock) -> None:
        self._shards = shards
        self._book = book
        self._clock = clock

    def read(self, since: int) -> LaneChanges:
        numbers = self._book.numbers()
        if since and since == numbers.revision:
            return LaneChanges(numbers.epoch, numbers.revision, False, ())
        numbers, entries = self._book.read()
        is_whole = since == 0 or since < numbers.forgotten
        told = [
            each
            for each in entries.values()
            if (each.lane.state is not LaneState.CLOSED if is_whole else each.revision > since)
        ]
        return LaneChanges(numbers.epoch, numbers.revision, is_whole, tuple(lanes_of(told)))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        now = self._clock()

        def opened(edit: Edit) -> list[Lane]:
            present = {
                (each.lane.queue, each.lane.predicate): each.lane
                for each in edit.entries.values()
                if each.lane.state in _ENTERED
            }
            missing: dict[tuple[str, Predicate], NewLane] = {}
            for new in wanted:
                name = new.queue, new.predicate
                lane = present.get(name)
                if lane is None:
                    missing[name] = replace(
                        new, is_pinned=new.is_pinned or (name in missing and missing[name].is_pinned)
                    )
                elif new.is_pinned and not lane.is_pinned:
                    present[name] = edit.put(replace(lane, is_pinned=True))
            if not missing:
                return []
            epoch = edit.next_epoch()
            return [
                edit.put(
                    Lane(
                        edit.next_id(), new.queue, new.predicate, LaneState.FILLING, epoch, new.reason, new.is_pinned,
                        now, now,
                    ),
                    work_at=now,
                )
                for new in missing.values()
            ]  # fmt: skip

        return self._book.edit(opened)

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        now = self._clock()

        def closed(edit: Edit) -> list[Lane]:
            entered = _states(edit, ids, _ENTERED)
            if not entered:
                return []
            epoch = edit.next_epoch()
            return [edit.put(replace(each.lane, state=LaneState.CLOSING, epoch=epoch), work_at=now) for each in entered]

        return self._book.edit(closed)

    def drained(self, epoch: int, timeout: float) -> bool:
        for number in range(self._shards.count):
            self._shards.raise_epoch(number, epoch)
        return True

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return lane_rows.ready_tasks(self._shards, queue, matching, after, size)

    def fill(self, rows: Sequence[LaneRow]) -> None:
        found = self._book.some({row.lane for row in rows})
        lane_rows.fill(self._shards, rows, {each for each, entry in found.items() if entry.lane.state in _ENTERED})

    def finish(self, ids: Collection[LaneId]) -> None:
        def finished(edit: Edit) -> None:
            for each in _states(edit, ids, (LaneState.FILLING,)):
                edit.put(replace(each.lane, state=LaneState.OPEN))

        self._book.edit(finished)

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        found = self._book.some(ids)
        closing = sorted(each for each, entry in found.items() if entry.lane.state is LaneState.CLOSING)
        cleared = 0
        for each in closing:
            cleared += lane_rows.clear(self._shards, found[each].lane, limit - cleared)
        empty = [each for each in closing if lane_rows.is_empty(self._shards, found[each].lane)]
        if empty:

            def ended(edit: Edit) -> None:
                for each in _states(edit, empty, (LaneState.CLOSING,)):
                    edit.put(replace(each.lane, state=LaneState.CLOSED))

            self._book.edit(ended)
        return cleared

    def unfinished(self, silence: int) -> list[Lane]:
        now = self._clock()
        _, entries = self._book.read()
        silent = [
            each
            for each in entries.values()
            # The lower bound is for a clock that stepped back: it must not keep a lane unfinished.
            if each.lane.state in _UNFINISHED and not 0 <= now - each.work_at < silence
        ]
        self._book.note([each.lane.id for each in silent], lambda entry: replace(entry, work_at=now))
        return lanes_of(silent)

    def note_work(self, ids: Collection[LaneId]) -> None:
        self._book.note(ids, _worked_at(self._clock()))

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        now = self._clock()

        def used(entry: Entry) -> Entry:
            lane = entry.lane
            return replace(entry, lane=replace(lane, used_at=now, hits=lane.hits + hits[lane.id]))

        self._book.note(list(hits), used)

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return None  # a row changes with its task, in one batch: none is dead

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        found = self._book.some(ids)
        return {each: lane_rows.size_of(self._shards, found[each].lane, cap) for each in sorted(found)}

    def passed(self, queue: str, head: Head | None) -> int:
        return 0  # walks begin behind what left: see the generations of `shards`


def _states(edit: Edit, ids: Collection[LaneId], states: Sequence[LaneState]) -> list[Entry]:
    found = (edit.entries.get(each) for each in sorted(set(ids)))
    return [each for each in found if each is not None and each.lane.state in states]


def _worked_at(now: int) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, work_at=now)
