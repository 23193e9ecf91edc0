"""The registry of lanes, and the numbers by which changes of them are noticed (N3): the `Lanes` protocol. What is about
the rows of lanes is in a module of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wiggle_core.criteria.tree import Predicate
from wiggle_core.stores.lanes import Head, Lane, LaneChanges, LaneId, LaneRow, NewLane, ReadyTasks
from wiggle_core.stores.sql.lanes import LANE_COLUMNS, lane_values, read_lanes, unique_lanes, wait_until_free
from wiggle_core.tasks.task import OrderKey
from wiggle_store_postgres import explaining, lane_rows
from wiggle_store_postgres.connections import Connections, Session
from wiggle_store_postgres.epochs import EPOCH_LOCK
from wiggle_store_postgres.moment import moment

CLOSED_KEPT = 1_000
"""How many closed lanes are remembered for those who knew them."""

_OF_LANE = ", ".join(f"lane.{column}" for column in LANE_COLUMNS.split(", "))

_READ = f"""
    SELECT now.epoch, now.revision, now.is_whole, {_OF_LANE}
    FROM (
        SELECT epoch, revision, $1::bigint = 0 OR $1::bigint < forgotten OR $1::bigint > revision AS is_whole
        FROM $schema.lane_epoch
    ) AS now LEFT JOIN $schema.lane AS lane
    ON lane.revision > CASE WHEN now.is_whole THEN 0 ELSE $1::bigint END
    AND NOT (now.is_whole AND lane.state = 'CLOSED')
"""
_LOCK = "SELECT epoch, revision FROM $schema.lane_epoch FOR UPDATE"
_NEXT = "UPDATE $schema.lane_epoch SET epoch = $1::bigint, revision = $2::bigint"
_PRESENT = """
    SELECT lane.queue, lane.digest, lane.id
    FROM json_array_elements($1::json) AS named JOIN $schema.lane AS lane
    ON lane.queue = named ->> 0 AND lane.digest = named ->> 1
    WHERE lane.state IN ('FILLING', 'OPEN')
"""
_PIN = """
    UPDATE $schema.lane SET is_pinned = true, revision = $2::bigint
    WHERE id = ANY ($1::bigint[]) AND NOT is_pinned
"""
_ADD = f"""
    INSERT INTO $schema.lane
        (queue, digest, predicate, reason, is_pinned, state, epoch, revision, opened_at, used_at, work_at)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, (value ->> 4)::boolean, 'FILLING', $2::bigint,
        $3::bigint, now, now, now
    FROM json_array_elements($1::json) AS value, (SELECT {moment("$4")} AS now) AS moment
    RETURNING {LANE_COLUMNS}
"""
_BEGIN_TO_CLOSE = f"""
    UPDATE $schema.lane SET state = 'CLOSING', epoch = $2::bigint, revision = $3::bigint, work_at = {moment("$4")}
    WHERE id = ANY ($1::bigint[]) AND state IN ('FILLING', 'OPEN')
    RETURNING {LANE_COLUMNS}
"""
_FINISH = """
    UPDATE $schema.lane SET state = 'OPEN', revision = $2::bigint
    WHERE id = ANY ($1::bigint[]) AND state = 'FILLING'
"""
_CLOSE = """
    UPDATE $schema.lane SET state = 'CLOSED', revision = $2::bigint
    WHERE id = ANY ($1::bigint[]) AND state = 'CLOSING'
"""
_FORGET = f"""
    WITH gone AS (
        DELETE FROM $schema.lane WHERE id = ANY (ARRAY(
            SELECT id FROM $schema.lane WHERE state = 'CLOSED' ORDER BY revision DESC, id DESC OFFSET {CLOSED_KEPT}
        )) RETURNING revision
    )
    UPDATE $schema.lane_epoch SET forgotten = greatest(forgotten, (SELECT max(revision) FROM gone))
    WHERE EXISTS (SELECT FROM gone)
"""
_HELD = f"""
    SELECT number FROM generate_series((SELECT drained + 1 FROM $schema.lane_epoch), $1::bigint - 1) AS number
    WHERE NOT pg_try_advisory_xact_lock({EPOCH_LOCK.format("number")})
"""
_DRAINED = "UPDATE $schema.lane_epoch SET drained = $1::bigint WHERE drained < $1::bigint"
# Rows of several lanes are locked in the order of their ids (L7). The lower bound is for a clock that stepped back: it
# must not keep a lane unfinished.
_UNFINISHED = f"""
    WITH moment AS MATERIALIZED (SELECT {moment("$1")} AS now),
    silent AS MATERIALIZED (
        SELECT id FROM $schema.lane WHERE state IN ('FILLING', 'CLOSING')
        AND NOT (SELECT now FROM moment) - work_at BETWEEN 0 AND $2::bigint - 1
        ORDER BY id FOR UPDATE SKIP LOCKED
    )
    UPDATE $schema.lane AS lane SET work_at = (SELECT now FROM moment)
    WHERE id = ANY (ARRAY(SELECT id FROM silent)) RETURNING {LANE_COLUMNS}
"""
_NOTE_WORK = f"""
    WITH known AS MATERIALIZED (
        SELECT id FROM $schema.lane WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
    )
    UPDATE $schema.lane SET work_at = {moment("$2")} WHERE id = ANY (ARRAY(SELECT id FROM known))
"""
_NOTE_USE = f"""
    WITH known AS MATERIALIZED (
        SELECT id FROM $schema.lane WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
    )
    UPDATE $schema.lane AS lane SET used_at = {moment("$3")}, hits = lane.hits + noted.more
    FROM unnest($1::bigint[], $2::bigint[]) AS noted (id, more)
    WHERE lane.id = noted.id AND lane.id = ANY (ARRAY(SELECT id FROM known))
"""


@dataclass(frozen=True, slots=True)
class _Change:
    """A transaction that changes lanes, and the numbers that it may give to what it changes."""

    session: Session
    epoch: int
    revision: int


class PostgresLanes:
    """The `Lanes` of one `PostgresStore`."""

    def __init__(self, connections: Connections, injected: Callable[[], int | None]) -> None:
        """`injected` is the time that statements are to go by; None for the database's own (L1)."""
        self._connections = connections
        self._injected = injected

    def read(self, since: int) -> LaneChanges:
        with self._connections.reading() as session:
            rows = session.rows(_READ, (since,))
        epoch, revision, is_whole = rows[0][:3]
        return LaneChanges(epoch, revision, is_whole, read_lanes(row[3:] for row in rows if row[3] is not None))

    def open(self, wanted: Sequence[NewLane]) -> list[Lane]:
        if not wanted:
            return []
        new = unique_lanes(wanted)
        with self._changing() as change:
            rows = change.session.rows(_PRESENT, (json.dumps(list(new)),))
            present = {(queue, known): lane for queue, known, lane in rows}
            pinned = [lane for each, lane in present.items() if new[each].is_pinned]
            missing = [(*each, *lane_values(lane)) for each, lane in new.items() if each not in present]
            added = change.session.rows(_ADD, (json.dumps(missing), change.epoch, change.revision, self._injected()))
            if change.session.run(_PIN, (pinned, change.revision)) or added:
                change.session.run(_NEXT, (change.epoch if added else change.epoch - 1, change.revision))
        return list(read_lanes(added))

    def close(self, ids: Collection[LaneId]) -> list[Lane]:
        with self._changing() as change:
            binds = (list(ids), change.epoch, change.revision, self._injected())
            closing = change.session.rows(_BEGIN_TO_CLOSE, binds)
            if closing:
                change.session.run(_NEXT, (change.epoch, change.revision))
        return list(read_lanes(closing))

    def finish(self, ids: Collection[LaneId]) -> None:
        with self._changing() as change:
            if change.session.run(_FINISH, (list(ids), change.revision)):
                change.session.run(_NEXT, (change.epoch - 1, change.revision))

    def clear(self, ids: Collection[LaneId], limit: int) -> int:
        deleted, empty = lane_rows.clear(self._connections, ids, limit)
        if empty:
            with self._changing() as change:
                change.session.run(_CLOSE, (empty, change.revision))
                change.session.run(_NEXT, (change.epoch - 1, change.revision))
                change.session.run(_FORGET)
        return deleted

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
        with self._connections.changing() as session:
            held = [number for (number,) in session.rows(_HELD, (epoch,))]
            session.run(_DRAINED, (min(held, default=epoch) - 1,))
        return bool(held)

    def unfinished(self, silence: int) -> list[Lane]:
        with self._connections.changing() as session:
            return list(read_lanes(session.rows(_UNFINISHED, (self._injected(), silence))))

    def note_work(self, ids: Collection[LaneId]) -> None:
        with self._connections.changing() as session:
            session.run(_NOTE_WORK, (list(ids), self._injected()))

    def note_use(self, hits: Mapping[LaneId, int]) -> None:
        with self._connections.changing() as session:
            session.run(_NOTE_USE, (list(hits), list(hits.values()), self._injected()))

    # Rows

    def ready_tasks(self, queue: str, matching: Sequence[Predicate], after: OrderKey | None, size: int) -> ReadyTasks:
        return lane_rows.ready_tasks(self._connections, queue, matching, after, size)

    def fill(self, rows: Sequence[LaneRow]) -> None:
        lane_rows.fill(self._connections, rows)

    def prune(self, after: LaneRow | None, size: int) -> LaneRow | None:
        return lane_rows.prune(self._connections, after, size)

    def sizes(self, ids: Collection[LaneId], cap: int) -> dict[LaneId, int]:
        return lane_rows.sizes(self._connections, ids, cap)

    def passed(self, queue: str, head: Head | None) -> int:
        return explaining.passed(self._connections, queue, head)
