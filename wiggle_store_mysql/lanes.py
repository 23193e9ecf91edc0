"""The registry of lanes, and the numbers by which changes of them are noticed (N3): the `Lanes` protocol. What is about
the rows of lanes is in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wiggle_core.criteria.tree import Predicate
from wiggle_core.stores.lanes import Head, Lane, LaneChanges, LaneId, LaneRow, LaneState, NewLane, ReadyTasks
from wiggle_core.stores.sql.lanes import LANE_COLUMNS, lane_values, read_lanes, unique_lanes, wait_until_free
from wiggle_core.tasks.task import OrderKey
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Connections, Session
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.order import key_list, named, of

CLOSED_KEPT = 1_000
"""How many closed lanes are remembered for those who knew them."""

_READ = f"""
    SELECT now.epoch, now.revision, now.is_whole, {of("lane", LANE_COLUMNS)}
    FROM (
        SELECT epoch, revision, %s = 0 OR %s < forgotten OR %s > revision AS is_whole FROM $lane_number
    ) AS now LEFT JOIN $lane AS lane
    ON lane.revision > CASE WHEN now.is_whole THEN 0 ELSE %s END AND NOT (now.is_whole AND lane.state = 'CLOSED')
"""
_LOCK = "SELECT epoch, revision FROM $lane_number FOR UPDATE"
_NEXT = "UPDATE $lane_number SET epoch = %s, revision = %s"
_NEXT_EPOCH = "INSERT INTO $lane_epoch (epoch) VALUES (%s)"
_PRESENT = "SELECT queue, digest, id FROM $lane WHERE (queue, digest) IN %s AND state IN ('FILLING', 'OPEN')"
_PIN = "UPDATE $lane SET is_pinned = true, revision = %s WHERE id IN %s AND NOT is_pinned"
_ADD = """
    INSERT INTO $lane (queue, digest, predicate, reason, is_pinned, state, epoch, revision, opened_at, used_at, work_at)
    VALUES (%s, %s, %s, %s, %s, 'FILLING', %s, %s, {now}, {now}, {now})
"""
_CHANGED = f"SELECT {LANE_COLUMNS} FROM $lane WHERE revision = %s AND state = %s"
_BEGIN_TO_CLOSE = """
    UPDATE $lane SET state = 'CLOSING', epoch = %s, revision = %s, work_at = {now}
    WHERE id IN %s AND state IN ('FILLING', 'OPEN')
"""
_BECOME = "UPDATE $lane SET state = %s, revision = %s WHERE id IN %s AND state = %s"
_FORGOTTEN = "SELECT id, revision FROM $lane WHERE state = 'CLOSED' ORDER BY revision DESC, id DESC LIMIT %s, 1000000"
_FORGET = "DELETE FROM $lane WHERE id = %s"
_NOTE_FORGOTTEN = "UPDATE $lane_number SET forgotten = greatest(forgotten, %s)"

_EPOCHS = "SELECT epoch FROM $lane_epoch WHERE epoch < %s"
_FREE_EPOCHS = "SELECT epoch FROM $lane_epoch WHERE epoch < %s ORDER BY epoch FOR UPDATE SKIP LOCKED"
_DRAINED = f"DELETE present FROM {named('lane_epoch', 'epoch')}"

# The lower bound is for a clock that stepped back: it must not keep a lane unfinished.
_SILENT = """
    SELECT id FROM $lane WHERE state IN ('FILLING', 'CLOSING') AND NOT {now} - work_at BETWEEN 0 AND %s - 1
    FOR UPDATE SKIP LOCKED
"""
_NOTE_WORK = "UPDATE $lane SET work_at = {now} WHERE id IN %s ORDER BY id"
_NAMED = f"SELECT {LANE_COLUMNS} FROM $lane WHERE id IN %s"
_NOTE_USE = "UPDATE $lane SET used_at = {now}, hits = hits + %s WHERE id = %s"


@dataclass(frozen=True, slots=True)
class _Change:
    """A transaction that changes lanes, and the numbers that it may give to what it changes."""

    session: Session
    epoch: int
    revision: int

    def commit(self, *, has_epoch: bool = False) -> None:
        """Commit it under its numbers; under the epoch only if tasks are to be placed otherwise from now on."""
        epoch = self.epoch if has_epoch else self.epoch - 1
        added = [(_NEXT_EPOCH, (epoch,))] if has_epoch else []
        self.session.commit([(_NEXT, (epoch, self.revision)), *added])


class MySQLLanes:
    """The `Lanes` of one `MySQLStore`."""

    def __init__(self, connections: Connections, injected: Callable[[], int | None]) -> None:
        """`injected` is the time that statements are to go by; None for the database's own (L1)."""
        self._connections = connections
        self._injected = injected

    def read(self, since: int) -> LaneChanges:
        with self._connections.reading() as session:
            rows = session.rows(_READ, (since, since, since, since))
        epoch, revision, is_whole = rows[0][:3]
        return LaneChanges(epoch, revision, bool(is_whole), read_lanes(row[3:] for row in rows if row[3] is not None))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        if not wanted:
            return []
        new = unique_lanes(wanted)
        with self._changing() as change:
            rows = change.session.rows(_PRESENT, (list(new),))
            present = {(queue, digest): lane for queue, digest, lane in rows}
            pinned = [lane for each, lane in present.items() if new[each].is_pinned]
            is_changed = bool(pinned and change.session.run(_PIN, (change.revision, sorted(pinned))))
            add = _ADD.format(now=moment(self._injected()))
            missing = [
                (add, (*each, *lane_values(lane), change.epoch, change.revision))
                for each, lane in new.items()
                if each not in present
            ]
            added = change.session.batch([*missing, (_CHANGED, (change.revision, LaneState.FILLING.value))])[-1].rows
            if missing or is_changed:
                change.commit(has_epoch=bool(missing))
        return list(read_lanes(added)) if missing else []

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        if not ids:
            return []
        with self._changing() as change:
            begin = _BEGIN_TO_CLOSE.format(now=moment(self._injected()))
            closing = change.session.batch(
                [
                    (begin, (change.epoch, change.revision, sorted(ids))),
                    (_CHANGED, (change.revision, LaneState.CLOSING.value)),
                ]
            )[-1].rows
            if closing:
                change.commit(has_epoch=True)
        return list(read_lanes(closing))

    def finish(self, ids: Collection[LaneId]) -> None:
        self._become(ids, LaneState.FILLING, LaneState.OPEN)

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        deleted, empty = lane_rows.clear(self._connections, ids, limit)
        if empty:
            self._become(empty, LaneState.CLOSING, LaneState.CLOSED)
            self._forget()
        return deleted

    def _become(self, ids: Collection[LaneId], before: LaneState, after: LaneState) -> None:
        if not ids:
            return
        with self._changing() as change:
            if change.session.run(_BECOME, (after.value, change.revision, sorted(ids), before.value)):
                change.commit()

    def _forget(self) -> None:
        with self._changing() as change:
            gone = change.session.rows(_FORGOTTEN, (CLOSED_KEPT,))
            if gone:
                forgotten = max(revision for _, revision in gone)
                forget = [(_FORGET, (lane,)) for lane in sorted(lane for lane, _ in gone)]
                change.session.commit([*forget, (_NOTE_FORGOTTEN, (forgotten,))])

    @contextmanager
    def _changing(self) -> Iterator[_Change]:
        """One at a time: whoever changes lanes holds the row that has the numbers. Who reads them does not wait."""
        with self._connections.transaction() as session:
            ((epoch, revision),) = session.rows(_LOCK)
            yield _Change(session, epoch + 1, revision + 1)

    def drained(self, epoch: int, timeout: float) -> bool:
        return wait_until_free(lambda: self._is_held(epoch), timeout)

    def _is_held(self, epoch: int) -> bool:
        """Whether any epoch below this one is held; those that are not need not be looked at again."""
        with self._connections.transaction() as session:
            known, free = session.batch([(_EPOCHS, (epoch,)), (_FREE_EPOCHS, (epoch,))])
            if free.rows:
                session.commit([(_DRAINED, (key_list(free.rows),))])
        return not set(known.rows) <= set(free.rows)

    def unfinished(self, silence: int) -> list[Lane]:
        now = moment(self._injected())
        with self._connections.transaction() as session:
            silent = sorted(lane for (lane,) in session.rows(_SILENT.format(now=now), (silence,)))
            if not silent:
                return []
            taken = session.commit([(_NOTE_WORK.format(now=now), (silent,)), (_NAMED, (silent,))])
        return list(read_lanes(taken[-1].rows))

    def note_work(self, ids: Collection[LaneId]) -> None:
        if ids:
            with self._connections.changing() as session:
                session.run(_NOTE_WORK.format(now=moment(self._injected())), (sorted(ids),))

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        statement = _NOTE_USE.format(now=moment(self._injected()))
        with self._connections.transaction() as session:
            session.commit([(statement, (more, lane)) for lane, more in sorted(hits.items())])

    # Rows

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return lane_rows.ready_tasks(self._connections, queue, matching, after, size)

    def fill(self, rows: Sequence[LaneRow]) -> None:
        if rows:
            lane_rows.fill(self._connections, rows)

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return lane_rows.prune(self._connections, after, size)

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        return lane_rows.sizes(self._connections, ids, cap)

    def passed(self, queue: str, head: Head | None) -> int:
        return 0
