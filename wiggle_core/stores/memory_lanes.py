"""The lanes of the reference store, under its lock, and written to be read as the meaning of the `Lanes` protocol."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, islice
from operator import itemgetter
from threading import RLock
from typing import NamedTuple

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import StaleLanes
from wiggle_core.stores.lanes import (
    Head,
    Lane,
    LaneChanges,
    LaneId,
    LaneRow,
    LaneState,
    NewLane,
    Placed,
    ReadyTasks,
)
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskId, TaskRecord

CLOSED_KEPT = 1_000
"""How many closed lanes are remembered for those who knew them."""

_ENTERED = frozenset({LaneState.FILLING, LaneState.OPEN})


@lru_cache(maxsize=1024)
def matcher(predicate: Predicate) -> Matcher:
    """The compiled predicate."""
    return compile_predicate(predicate)


class ReadyKey(NamedTuple):
    """The place of a task in the claim order, and the number of its being READY."""

    key: OrderKey
    ready_no: int


@dataclass(slots=True)
class _Entry:
    """A lane, the revision of its last change, and its rows in claim order."""

    lane: Lane
    revision: int
    work_at: int
    rows: list[ReadyKey] = field(default_factory=list)


class MemoryLanes:
    """The `Lanes` of one `MemoryStore`, which tells of each task that becomes READY."""

    def __init__(
        self,
        lock: RLock,
        clock: Clock,
        live: Mapping[TaskId, TaskRecord],
        ready: Mapping[str, list[OrderKey]],
    ) -> None:
        """`live` and `ready` are the store's own: every live task, and the keys of the READY ones by queue."""
        self._lock = lock
        self._clock = clock
        self._live = live
        self._ready = ready
        self._ready_no: dict[TaskId, int] = {}
        self._numbers = count(1)
        self._epoch = self._revision = self._forgotten = self._last_id = 0
        self._entries: dict[LaneId, _Entry] = {}

    # For the store, which holds the lock

    def require(self, placed: Placed) -> None:
        """Raise StaleLanes unless the tasks were placed by the present epoch (N3)."""
        if placed.epoch != self._epoch:
            raise StaleLanes

    def enter(self, task: TaskRecord, lanes: Sequence[LaneId]) -> None:
        """The task has become READY: give it the next number, and its rows."""
        number = self._ready_no[task.id] = next(self._numbers)
        for lane in lanes:
            self._insert(LaneRow(lane, task.order_key, number))

    def forget(self, task_id: TaskId) -> None:
        """The task is gone. Numbers are those of the store, so that one of the same id never gets an old one."""
        self._ready_no.pop(task_id, None)

    def keys(self, lane: LaneId) -> Iterator[OrderKey]:
        """The live rows of an OPEN lane, in claim order. Raises StaleLanes for any other lane, at once."""
        entry = self._entries.get(lane)
        if entry is None or entry.lane.state is not LaneState.OPEN:
            raise StaleLanes
        return (row.key for row in entry.rows if self._is_live(row))

    def drop_dead_head(self, lane: LaneId) -> None:
        """Forget the rows that a claim met: those of the tasks it leased, and those that were dead."""
        rows = self._entries[lane].rows
        dead = next((index for index, row in enumerate(rows) if self._is_live(row)), len(rows))
        del rows[:dead]

    def audit(self) -> list[str]:
        """What is wrong with the rows of open lanes (N1)."""
        found: list[str] = []
        for entry in self._entries.values():
            live = {row for row in entry.rows if self._is_live(row)}
            if entry.lane.state is LaneState.OPEN:
                expected = {
                    ReadyKey(key, self._ready_no[key.id])
                    for key in self._ready.get(entry.lane.queue, ())
                    if matcher(entry.lane.predicate)(self._live[key.id])
                }
                found += [f"task {row.key.id!r} is not in lane {entry.lane.id}" for row in sorted(expected - live)]
                found += [f"task {row.key.id!r} is in lane {entry.lane.id}" for row in sorted(live - expected)]
        return found

    def _is_live(self, row: ReadyKey) -> bool:
        task = self._live.get(row.key.id)
        return task is not None and task.state is State.READY and self._ready_no[task.id] == row.ready_no

    def _insert(self, row: LaneRow) -> None:
        entry, place = self._entries.get(row.lane), ReadyKey(row.key, row.ready_no)
        if entry is not None and entry.lane.state in _ENTERED and place not in self._around(entry, place):
            insort(entry.rows, place)

    def _around(self, entry: _Entry, place: ReadyKey) -> list[ReadyKey]:
        """The row at the place where this one belongs, if there is one."""
        index = bisect_right(entry.rows, place)
        return entry.rows[index - 1 : index] if index else []

    # For the core

    def read(self, since: int) -> LaneChanges:
        with self._lock:
            is_whole = since == 0 or since < self._forgotten
            changed = [each.lane for each in self._entries.values() if is_whole or each.revision > since]
            lanes = [lane for lane in changed if not is_whole or lane.state is not LaneState.CLOSED]
            return LaneChanges(self._epoch, self._revision, is_whole, tuple(lanes))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            present = {
                (entry.lane.queue, entry.lane.predicate): entry.lane.id
                for entry in self._entries.values()
                if entry.lane.state in _ENTERED
            }
            if any((new.queue, new.predicate) not in present for new in wanted):
                self._epoch += 1
            added = []
            for new in wanted:
                if (new.queue, new.predicate) not in present:
                    added.append(self._add(new))
                    present[new.queue, new.predicate] = added[-1].id
                elif new.is_pinned:
                    self._change(present[new.queue, new.predicate], is_pinned=True)
            return added

    def _add(self, new: NewLane) -> Lane:
        now = self._clock()
        self._last_id += 1
        self._revision += 1
        lane = Lane(
            self._last_id, new.queue, new.predicate, LaneState.FILLING, self._epoch, new.reason, new.is_pinned, now, now
        )
        self._entries[lane.id] = _Entry(lane, self._revision, now)
        return lane

    def _change(
        self, lane: LaneId, *, state: LaneState | None = None, epoch: int | None = None, is_pinned: bool | None = None
    ) -> Lane:
        entry = self._entries[lane]
        self._revision += 1
        entry.revision = self._revision
        entry.lane = replace(
            entry.lane,
            state=state or entry.lane.state,
            epoch=epoch or entry.lane.epoch,
            is_pinned=entry.lane.is_pinned if is_pinned is None else is_pinned,
        )
        return entry.lane

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        with self._lock:
            entered = [each for each in sorted(set(ids)) if self._state(each) in _ENTERED]
            if not entered:
                return []
            self._epoch += 1
            for each in entered:  # they are this caller's to clear, and nobody's yet who looks for what was left
                self._entries[each].work_at = self._clock()
            return [self._change(each, state=LaneState.CLOSING, epoch=self._epoch) for each in entered]

    def _state(self, lane: LaneId) -> LaneState | None:
        entry = self._entries.get(lane)
        return None if entry is None else entry.lane.state

    def drained(self, epoch: int, timeout: float) -> bool:
        return True  # who holds a number holds the lock

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        are_matches = [matcher(each) for each in matching]
        with self._lock:
            keys = self._ready.get(queue, [])
            begin = 0 if after is None else bisect_right(keys, after)
            part = keys[begin : begin + size]
            tasks = [self._live[key.id] for key in part]
            found = [
                (replace(task, payload="null"), self._ready_no[task.id])
                for task in tasks
                if not are_matches or any(is_match(task) for is_match in are_matches)
            ]
            return ReadyTasks(tuple(found), part[-1] if len(part) == size else None)

    def fill(self, rows: Sequence[LaneRow]) -> None:
        with self._lock:
            for row in rows:
                self._insert(row)

    def finish(self, ids: Collection[LaneId]) -> None:
        with self._lock:
            for each in ids:
                if self._state(each) is LaneState.FILLING:
                    self._change(each, state=LaneState.OPEN)

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        with self._lock:
            deleted = 0
            for each in ids:
                if self._state(each) is LaneState.CLOSING:
                    rows = self._entries[each].rows
                    part = min(limit - deleted, len(rows))
                    del rows[:part]
                    deleted += part
                    if not rows:
                        self._change(each, state=LaneState.CLOSED)
            self._forget_closed()
            return deleted

    def _forget_closed(self) -> None:
        closed = sorted(
            (entry.revision, each) for each, entry in self._entries.items() if entry.lane.state is LaneState.CLOSED
        )
        for revision, each in closed[: -CLOSED_KEPT or None]:
            self._forgotten = revision
            del self._entries[each]

    def unfinished(self, silence: int) -> list[Lane]:
        with self._lock:
            now = self._clock()
            # The lower bound is for a clock that stepped back: it must not keep a lane unfinished.
            silent = [
                entry
                for entry in self._entries.values()
                if entry.lane.state in (LaneState.FILLING, LaneState.CLOSING) and not 0 <= now - entry.work_at < silence
            ]
            for entry in silent:
                entry.work_at = now
            return [entry.lane for entry in silent]

    def note_work(self, ids: Collection[LaneId]) -> None:
        with self._lock:
            for entry in self._known(ids):
                entry.work_at = self._clock()

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        with self._lock:
            for entry in self._known(hits):
                used_at, more = self._clock(), hits[entry.lane.id]
                entry.lane = replace(entry.lane, used_at=used_at, hits=entry.lane.hits + more)

    def _known(self, ids: Collection[LaneId]) -> list[_Entry]:
        return [self._entries[each] for each in ids if each in self._entries]

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        with self._lock:
            part = list(islice(self._rows_behind(after), size))
            for row in part:
                place = ReadyKey(row.key, row.ready_no)
                if not self._is_live(place):
                    self._entries[row.lane].rows.remove(place)
            return part[-1] if len(part) == size else None

    def _rows_behind(self, after: LaneRow | None) -> Iterator[LaneRow]:
        for each, entry in sorted(self._entries.items(), key=itemgetter(0)):
            if after is None or each >= after.lane:
                is_same = after is not None and each == after.lane
                begin = bisect_right(entry.rows, ReadyKey(after.key, after.ready_no)) if is_same and after else 0
                yield from (LaneRow(each, *row) for row in entry.rows[begin:])

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        with self._lock:
            return {entry.lane.id: min(cap, len(entry.rows)) for entry in self._known(ids)}

    def passed(self, queue: str, head: Head | None) -> int:
        return 0  # what left is gone
