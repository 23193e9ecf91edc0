"""Opening and closing lanes while everything else goes on (N3).

To open: the store notes the lanes and lets the epoch grow, so that whoever makes tasks READY from now on puts them in.
When nobody is left who does so by an older epoch, the tasks that were READY before are put in too, in one pass of short
parts; then the lanes are OPEN. Closing is the same the other way round. Each step may be repeated, so whoever finds
lanes that nobody works on any more goes on with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from time import monotonic

from wiggle_core.criteria.evaluate import Matcher, compile_predicate
from wiggle_core.lanes.heads import is_filled
from wiggle_core.lanes.matching import LaneIndex
from wiggle_core.stores.lanes import Lane, LaneId, LaneRow, Lanes, LaneState
from wiggle_core.tasks.task import OrderKey

PART = 5_000
"""How many READY tasks are read at once."""
ROWS = 1_000
"""How many rows are put in or deleted in one transaction: they are short, so that others can go on."""
HELD = 50_000
"""How many rows are held back to be put in lane by lane. In the order of the queue each transaction would write a page
of nearly every lane: a thousand lanes over a million tasks on SQLite were 6.4 GB written, and so are 0.6 GB."""
FEW = 8
"""Up to so many predicates are tested by the store, which then returns few tasks; more are told sooner by the index."""
NOTE_SECONDS = 5.0
"""How often it is told that somebody works on these lanes."""


def complete(lanes: Lanes, filling: Sequence[Lane], patience: float) -> bool:
    """Fill lanes that are FILLING and open them; False, with nothing done, if after `patience` seconds somebody still
    makes tasks READY by an older epoch. Raises StoreError."""
    if not filling:
        return True
    if not lanes.drained(max(lane.epoch for lane in filling), patience):
        return False
    by_queue: dict[str, list[Lane]] = defaultdict(list)
    for lane in filling:
        by_queue[lane.queue].append(lane)
    notes = _Notes(lanes, [lane.id for lane in filling])
    for queue, wanted in by_queue.items():
        _fill(lanes, queue, wanted, notes)
    lanes.finish([lane.id for lane in filling])
    return True


def _fill(lanes: Lanes, queue: str, wanted: Sequence[Lane], notes: _Notes) -> None:
    """Put the READY tasks of a queue into its lanes, in one pass from its head, to its end or as far as they go."""
    index = LaneIndex(wanted, _compiled)
    tested = [lane.predicate for lane in wanted] if len(wanted) <= FEW else []
    after: OrderKey | None = None
    rows: list[LaneRow] = []
    while True:
        part = lanes.ready_tasks(queue, tested, after, PART)
        for task, ready_no in part.tasks:
            rows += [LaneRow(lane, task.order_key, ready_no) for lane in index.lanes_of(task)]
        after = None if part.last is None or is_filled(wanted, part.last) else part.last
        if len(rows) >= HELD or after is None:
            _put(lanes, rows, notes)
            rows = []
        notes.tell()
        if after is None:
            return


def _put(lanes: Lanes, rows: list[LaneRow], notes: _Notes) -> None:
    rows.sort(key=attrgetter("lane"))  # and within a lane in the order of the queue, as they are
    for start in range(0, len(rows), ROWS):
        lanes.fill(rows[start : start + ROWS])
        notes.tell()


def _compiled(lane: Lane) -> Matcher:
    return compile_predicate(lane.predicate)


def clear(lanes: Lanes, closing: Sequence[Lane], patience: float) -> bool:
    """Delete the rows of lanes that are CLOSING, until they are CLOSED; False, with nothing done, as in `complete`."""
    if not closing:
        return True
    if not lanes.drained(max(lane.epoch for lane in closing), patience):
        return False
    ids = [lane.id for lane in closing]
    notes = _Notes(lanes, ids)
    while lanes.clear(ids, ROWS):
        notes.tell()
    return True


class _Notes:
    """Tells now and then that somebody works on these lanes."""

    def __init__(self, lanes: Lanes, ids: Sequence[LaneId]) -> None:
        self._lanes = lanes
        self._ids = ids
        self._told_at = monotonic()

    def tell(self) -> None:
        if monotonic() - self._told_at >= NOTE_SECONDS:
            self._lanes.note_work(self._ids)
            self._told_at = monotonic()


def resume(lanes: Lanes, silence: float, patience: float) -> None:
    """Go on with the lanes that nobody has worked on for `silence` seconds."""
    unfinished = lanes.unfinished(round(silence * 1_000_000))
    complete(lanes, [lane for lane in unfinished if lane.state is LaneState.FILLING], patience)
    clear(lanes, [lane for lane in unfinished if lane.state is LaneState.CLOSING], patience)
