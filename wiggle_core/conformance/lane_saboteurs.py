"""Saboteurs of lanes (N1, N3-N5): stores that lose rows, revive dead ones, or let lanes change behind others' backs.

Those that are wrong about epochs are in `epoch_saboteurs`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from wiggle_core.conformance.saboteurs import Saboteur, in_memory
from wiggle_core.criteria.tree import Predicate
from wiggle_core.errors import StaleLanes
from wiggle_core.stores.changes import makes_ready
from wiggle_core.stores.lanes import (
    NO_LANES,
    Lane,
    LaneChanges,
    LaneId,
    LaneRow,
    LaneState,
    NewLane,
    Placed,
    ReadyTasks,
)
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.memory_lanes import MemoryLanes, ReadyKey
from wiggle_core.stores.store import (
    Change,
    ClaimRequest,
    Expire,
    Explanation,
    Promote,
    Requeue,
    Route,
    change_id,
)
from wiggle_core.tasks.task import Clock, OrderKey, State, TaskId, TaskRecord


class LanedStore(MemoryStore):
    """The reference store, with lanes of a kind of the saboteur's own."""

    KIND: type[MemoryLanes] = MemoryLanes

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._lanes = self.KIND(self._lock, self._clock, self._live, self._ready)


def with_lanes(kind: type[MemoryLanes]) -> type[LanedStore]:
    return type(kind.__name__, (LanedStore,), {"KIND": kind})


# Rows


class ForgetsAtRetry(MemoryStore):
    def _take_effect(self, change: Change, now: int, lanes: Sequence[LaneId]) -> bool:
        return super()._take_effect(change, now, () if isinstance(change, Requeue) else lanes)


class ForgetsAtExpiry(MemoryStore):
    def _take_effect(self, change: Change, now: int, lanes: Sequence[LaneId]) -> bool:
        return super()._take_effect(change, now, () if isinstance(change, Expire) else lanes)


class ForgetsAtPromotion(MemoryStore):
    def _take_effect(self, change: Change, now: int, lanes: Sequence[LaneId]) -> bool:
        return super()._take_effect(change, now, () if isinstance(change, Promote) else lanes)


class ForgetsOfManyLanes(MemoryStore):
    def _put(self, task: TaskRecord, lanes: Sequence[LaneId] = ()) -> TaskRecord:
        return super()._put(task, lanes[:1])


class MixesUpABatch(MemoryStore):
    """Lanes go by the place in the batch as it is applied, in id order, instead of as it was given."""

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        with self._lock:
            if any(map(makes_ready, changes)):
                self._lanes.require(placed)
            now, ordered = self.now(), sorted(changes, key=change_id)
            return {
                change_id(each) for index, each in enumerate(ordered) if self._take_effect(each, now, placed.of(index))
            }


class NumbersNothing(MemoryLanes):
    """A row is live whenever its task is READY: there is no `ready_no`."""

    def _is_live(self, row: ReadyKey) -> bool:
        task = self._live.get(row.key.id)
        return task is not None and task.state is State.READY


class NumbersNoRelease(MemoryStore):
    def _put(self, task: TaskRecord, lanes: Sequence[LaneId] = ()) -> TaskRecord:
        before = self._live.get(task.id)
        number = self._lanes._ready_no.get(task.id)
        super()._put(task)
        is_released = before is not None and before.state is State.RUNNING and before.attempt == task.attempt
        if is_released and task.state is State.READY and number is not None:
            self._lanes._ready_no[task.id] = number
        for lane in lanes:
            self._lanes._insert(LaneRow(lane, task.order_key, self._lanes._ready_no[task.id]))
        return task


class NumbersFromOneAgain(MemoryLanes):
    """Each task has numbers of its own, which a purge forgets."""

    def enter(self, task: TaskRecord, lanes: Sequence[LaneId]) -> None:
        number = self._ready_no[task.id] = self._ready_no.get(task.id, 0) + 1
        for lane in lanes:
            self._insert(LaneRow(lane, task.order_key, number))


class ReturnsTheDead(MemoryLanes):
    def keys(self, lane: LaneId) -> Iterator[OrderKey]:
        super().keys(lane)
        return (row.key for row in self._entries[lane].rows if row.key.id in self._live)


class KeepsTheDead(MemoryLanes):
    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return None

    def drop_dead_head(self, lane: LaneId) -> None:
        pass


class PrunesOnePartOnly(MemoryLanes):
    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        super().prune(after, size)
        return None


class PrunesTheLiving(MemoryLanes):
    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        with self._lock:
            for row in list(self._rows_behind(after))[:size:10]:
                self._entries[row.lane].rows.remove(ReadyKey(row.key, row.ready_no))
            return super().prune(after, size)


class DropsWhatItPasses(MemoryLanes):
    """A claim deletes the rows that it looked at, leased or not."""

    def drop_dead_head(self, lane: LaneId) -> None:
        super().drop_dead_head(lane)
        del self._entries[lane].rows[:1]


class OrdersById(MemoryLanes):
    def keys(self, lane: LaneId) -> Iterator[OrderKey]:
        return iter(sorted(super().keys(lane), key=lambda key: key.id))


class InsertsTwice(MemoryLanes):
    def _around(self, entry: object, place: ReadyKey) -> list[ReadyKey]:
        return []


class SkipsAtTheBorder(MemoryLanes):
    """The next part begins one behind where it should."""

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        part = super().ready_tasks(queue, matching, after, size)
        keys = self._ready.get(queue, [])
        if part.last is None or part.last == keys[-1]:
            return part
        return replace(part, last=keys[bisect_left(keys, part.last) + 1])


class EndsWhereNoneMatches(MemoryLanes):
    """A part in which no task matches is taken for the end."""

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        part = super().ready_tasks(queue, matching, after, size)
        return part if part.tasks else replace(part, last=None)


class FillsByTheFirst(MemoryLanes):
    """Of several predicates only the first decides which tasks are returned."""

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return super().ready_tasks(queue, matching[:1], after, size)


class FillsWithTheNumberOfNow(MemoryLanes):
    """A filler's row gets the number that its task has by then, whatever it was when it was read."""

    def fill(self, rows: Sequence[LaneRow]) -> None:
        with self._lock:
            super().fill([replace(row, ready_no=self._ready_no.get(row.key.id, row.ready_no)) for row in rows])


class FillsTheFirstRowOnly(MemoryLanes):
    """A part that has a row which is there already is taken for filled."""

    def fill(self, rows: Sequence[LaneRow]) -> None:
        with self._lock:
            is_there = any(ReadyKey(row.key, row.ready_no) in self._entries[row.lane].rows for row in rows)
            if not is_there:
                super().fill(rows)


# Claims and changes of lanes


class AnswersEmpty(MemoryLanes):
    """A claim by a lane that is not open finds nothing, instead of being refused."""

    def keys(self, lane: LaneId) -> Iterator[OrderKey]:
        with suppress(StaleLanes):
            return super().keys(lane)
        return iter(())

    def drop_dead_head(self, lane: LaneId) -> None:
        if lane in self._entries:
            super().drop_dead_head(lane)


class AnswersWhileFilling(MemoryLanes):
    def keys(self, lane: LaneId) -> Iterator[OrderKey]:
        if self._state(lane) is LaneState.FILLING:
            return (row.key for row in self._entries[lane].rows if self._is_live(row))
        return super().keys(lane)


class LeasesBeforeItRefuses(MemoryStore):
    """Routes before the one whose lane is not open are leased all the same."""

    def _first(self, request: ClaimRequest) -> list[OrderKey]:
        for index, route in enumerate(request.routes):
            try:
                self._keys(route)
            except StaleLanes:
                self.claim(replace(request, routes=request.routes[:index]))
                raise
        return super()._first(request)


class LeavesRowsAtTheEnd(MemoryLanes):
    """A closed lane keeps its rows."""

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        with self._lock:
            for each in ids:
                if self._state(each) is LaneState.CLOSING:
                    self._change(each, state=LaneState.CLOSED)
            return 0


class ClearsAtOnce(MemoryLanes):
    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        return super().clear(ids, 1_000_000)


class ClearsWhatIsOpen(MemoryLanes):
    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        with self._lock:
            rows = [self._entries[each].rows for each in ids if self._state(each) is LaneState.OPEN]
            for each in rows:
                del each[:limit]
            return sum(map(len, rows)) + super().clear(ids, limit)


class UsesIdsAgain(MemoryLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            for each in [each for each in self._entries if self._state(each) is LaneState.CLOSED]:
                del self._entries[each]
            self._last_id = max(self._entries, default=0)
            return super().open(wanted)


class BumpsForEachLane(MemoryLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        return [lane for each in wanted for lane in super(BumpsForEachLane, self).open([each])]


class BumpsAlways(MemoryLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            added = super().open(wanted)
            self._epoch += not added
            return added


class OpensWithoutAnEpoch(MemoryLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            epoch = self._epoch
            added = super().open(wanted)
            self._epoch = epoch
            return added


class ClosesWithoutAnEpoch(MemoryLanes):
    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        with self._lock:
            epoch = self._epoch
            closing = super().close(ids)
            self._epoch = epoch
            return closing


class OpensTwice(MemoryLanes):
    """Lanes that are there are opened once more."""

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        with self._lock:
            self._epoch += 1
            return [self._add(new) for new in wanted]


class TellsNoEnd(MemoryLanes):
    """Who knew a lane never hears that it is closed."""

    def read(self, since: int) -> LaneChanges:
        told = super().read(since)
        return replace(told, lanes=tuple(lane for lane in told.lanes if lane.state is not LaneState.CLOSED))


class TellsNoOpening(MemoryLanes):
    """The step from FILLING to OPEN is no change to be read."""

    def finish(self, ids: Collection[LaneId]) -> None:
        with self._lock:
            for each in ids:
                if self._state(each) is LaneState.FILLING:
                    self._entries[each].lane = replace(self._entries[each].lane, state=LaneState.OPEN)


class FinishesWhatCloses(MemoryLanes):
    """A filler that is late opens a lane that was closed meanwhile."""

    def finish(self, ids: Collection[LaneId]) -> None:
        with self._lock:
            for each in ids:
                if self._state(each) not in (None, LaneState.OPEN):
                    self._change(each, state=LaneState.OPEN)


class ForgetsThePin(MemoryLanes):
    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        return super().open([replace(new, is_pinned=False) for new in wanted])


class NamesTheLeftToEverybody(MemoryLanes):
    """Two who look for unfinished lanes get the same ones."""

    def unfinished(self, silence: int) -> list[Lane]:
        with self._lock:
            at = {each: entry.work_at for each, entry in self._entries.items()}
            found = super().unfinished(silence)
            for lane in found:
                self._entries[lane.id].work_at = at[lane.id]
            return found


class NamesTheBusy(MemoryLanes):
    def note_work(self, ids: Collection[LaneId]) -> None:
        pass


class NamesNoClosing(MemoryLanes):
    """What a dead closer left is nobody's."""

    def unfinished(self, silence: int) -> list[Lane]:
        return [lane for lane in super().unfinished(silence) if lane.state is LaneState.FILLING]


class CountsTheLastUse(MemoryLanes):
    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        with self._lock:
            for entry in self._known(hits):
                entry.lane = replace(entry.lane, used_at=self._clock(), hits=hits[entry.lane.id])


class ExplainsAWalk(MemoryStore):
    def explain(self, route: Route, limit: int) -> Explanation:
        return super().explain(replace(route, lane=None), limit)


LANES: tuple[Saboteur, ...] = (
    Saboteur("forgets lanes at a retry", "N1", in_memory(ForgetsAtRetry)),
    Saboteur("forgets lanes at an expiry", "N1", in_memory(ForgetsAtExpiry)),
    Saboteur("forgets lanes at a promotion", "N1", in_memory(ForgetsAtPromotion)),
    Saboteur("puts a task into the first of its lanes", "N1", in_memory(ForgetsOfManyLanes)),
    Saboteur("mixes up the lanes of a batch", "N1", in_memory(MixesUpABatch)),
    Saboteur("has no ready_no", "N1", in_memory(with_lanes(NumbersNothing))),
    Saboteur("keeps ready_no at a release", "N1", in_memory(NumbersNoRelease)),
    Saboteur("counts ready_no anew after a purge", "N1", in_memory(with_lanes(NumbersFromOneAgain))),
    Saboteur("returns dead rows", "N1", in_memory(with_lanes(ReturnsTheDead))),
    Saboteur("deletes no dead rows", "N1", in_memory(with_lanes(KeepsTheDead))),
    Saboteur("prunes the first part only", "N1", in_memory(with_lanes(PrunesOnePartOnly))),
    Saboteur("prunes live rows", "N1", in_memory(with_lanes(PrunesTheLiving))),
    Saboteur("deletes rows of tasks that it does not return", "N1", in_memory(with_lanes(DropsWhatItPasses))),
    Saboteur("orders lanes by id", "N1", in_memory(with_lanes(OrdersById))),
    Saboteur("inserts duplicates", "N1", in_memory(with_lanes(InsertsTwice))),
    Saboteur("misses a task at the border of a part", "N1", in_memory(with_lanes(SkipsAtTheBorder))),
    Saboteur("ends filling where none matches", "N1", in_memory(with_lanes(EndsWhereNoneMatches))),
    Saboteur("fills many lanes by the first predicate", "N1", in_memory(with_lanes(FillsByTheFirst))),
    Saboteur("fills with the number of now", "N1", in_memory(with_lanes(FillsWithTheNumberOfNow))),
    Saboteur("fills no part that was begun", "N3", in_memory(with_lanes(FillsTheFirstRowOnly))),
    Saboteur("answers by a lane that is not open", "N3", in_memory(with_lanes(AnswersEmpty))),
    Saboteur("answers by a lane that is being filled", "N3", in_memory(with_lanes(AnswersWhileFilling))),
    Saboteur("leases before it refuses", "N3", in_memory(LeasesBeforeItRefuses)),
    Saboteur("leaves rows in a closed lane", "N3", in_memory(with_lanes(LeavesRowsAtTheEnd))),
    Saboteur("clears more than it was told", "N3", in_memory(with_lanes(ClearsAtOnce))),
    Saboteur("clears lanes that are open", "N3", in_memory(with_lanes(ClearsWhatIsOpen))),
    Saboteur("uses ids of lanes again", "N3", in_memory(with_lanes(UsesIdsAgain))),
    Saboteur("takes an epoch for each lane", "N3", in_memory(with_lanes(BumpsForEachLane))),
    Saboteur("takes an epoch for nothing", "N3", in_memory(with_lanes(BumpsAlways))),
    Saboteur("opens without a new epoch", "N3", in_memory(with_lanes(OpensWithoutAnEpoch))),
    Saboteur("closes without a new epoch", "N3", in_memory(with_lanes(ClosesWithoutAnEpoch))),
    Saboteur("opens a lane twice", "N3", in_memory(with_lanes(OpensTwice))),
    Saboteur("tells nobody that a lane is closed", "N3", in_memory(with_lanes(TellsNoEnd))),
    Saboteur("tells nobody that a lane is open", "N3", in_memory(with_lanes(TellsNoOpening))),
    Saboteur("opens what was closed meanwhile", "N3", in_memory(with_lanes(FinishesWhatCloses))),
    Saboteur("forgets who asked by hand", "N3", in_memory(with_lanes(ForgetsThePin))),
    Saboteur("names unfinished lanes to everybody", "N3", in_memory(with_lanes(NamesTheLeftToEverybody))),
    Saboteur("names lanes that are worked on", "N3", in_memory(with_lanes(NamesTheBusy))),
    Saboteur("names no lane that was left closing", "N3", in_memory(with_lanes(NamesNoClosing))),
    Saboteur("keeps the last use only", "N4", in_memory(with_lanes(CountsTheLastUse))),
    Saboteur("explains a walk for a lane", "N5", in_memory(ExplainsAWalk)),
)
"""The saboteurs of lanes."""
