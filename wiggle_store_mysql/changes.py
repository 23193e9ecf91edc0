"""Changes and leases. The tasks are locked in id order, what becomes of them is decided in the process, and all that
is to be written goes out with the COMMIT: two round trips, however many tasks.

Each guard is tested on the row as it is once its lock is held, the time is read after that, and the lock is kept until
the commit (L2, L7): nobody else can come between a test and what it permits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from wiggle_core.stores.changes import changed, makes_ready, permits
from wiggle_core.stores.lanes import LaneId, LaneRow, Placed
from wiggle_core.stores.store import (
    Cancel,
    Change,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    change_id,
)
from wiggle_core.tasks.keys import encode_attributes
from wiggle_core.tasks.task import LIVE, Lease, State, TaskId, TaskRecord
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Connections, Row, Session, Statement
from wiggle_store_mysql.enqueueing import new_ready_no
from wiggle_store_mysql.epochs import hold, require_held
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.order import id_list, lock_of, named, of

# What guards ask, and what places in lanes are made of.
_TESTED = "id, ready_no, state, token, lease_until, priority, created_at, ready_at, attempt"
_LOCK = {table: f"SELECT {of('present', _TESTED)} FROM {named(table, 'id')} {{lock}}" for table in ("task", "history")}
_NOW = "SELECT {now}"

_UNCHANGED = (
    "id, queue, step, created_at, priority, workflow, version, node, kind, correlation_id, instance_id, retry, token"
)
_KEPT = "ready_at, ready_no, attributes, attempt, owner, lease_until"
_SETTLE = f"""
    INSERT INTO $history ({_UNCHANGED}, {_KEPT}, finished_at, state, result, error)
    SELECT {_UNCHANGED}, {_KEPT}, %s, %s, %s, {{error}} FROM $task FORCE INDEX (PRIMARY) WHERE id IN %s ORDER BY id
"""
_UPDATE = """
    UPDATE $task FORCE INDEX (PRIMARY)
    SET state = %s, attempt = %s, ready_at = %s, ready_no = %s, due_at = %s, attributes = %s, error = {error},
        owner = NULL, lease_until = NULL, reserved_at = NULL
    WHERE id = %s
"""
_REVIVE = f"""
    INSERT INTO $task ({_UNCHANGED}, ready_at, attributes, attempt, state, ready_no)
    SELECT {_UNCHANGED}, %s, %s, %s, 'READY', %s FROM $history FORCE INDEX (PRIMARY) WHERE id = %s
"""
_LEAVE = {table: f"DELETE present FROM {named(table, 'id')}" for table in ("task", "history")}
_EXTEND = """
    UPDATE $task FORCE INDEX (PRIMARY) SET lease_until = {now} + %s, due_at = {now} + %s, reserved_at = NULL
    WHERE id = %s AND state = 'RUNNING' AND token = %s
"""


@dataclass(frozen=True, slots=True)
class _Held:
    """A task that is locked, as much of it as guards ask for, and its `ready_no`, which grows with each change."""

    task: TaskRecord
    ready_no: int

    def changed(self, change: Change, now: int) -> _Held:
        return _Held(changed(self.task, change, now), max(new_ready_no(), self.ready_no + 1))


@dataclass(slots=True)
class _Effects:
    """What one round of changes, of one change a task, writes."""

    settled: dict[tuple[object, ...], list[TaskId]] = field(default_factory=lambda: defaultdict(list))
    """Ids by what they are settled with: time, state, result, and whether the error is kept or the one that follows."""
    statements: list[Statement] = field(default_factory=list)
    revived: list[TaskId] = field(default_factory=list)
    entered: list[LaneRow] = field(default_factory=list)

    def written(self) -> Iterator[Statement]:
        for (finished_at, state, result, is_kept, error), ids in self.settled.items():
            given = () if is_kept else (error,)
            yield _SETTLE.format(error="error" if is_kept else "%s"), (finished_at, state, result, *given, ids)
        left = [each for ids in self.settled.values() for each in ids]
        if left:
            yield _LEAVE["task"], (id_list(left),)
        yield from self.statements
        if self.revived:
            yield _LEAVE["history"], (id_list(self.revived),)
        yield from lane_rows.insertions(self.entered)


def apply(connections: Connections, now: int | None, changes: Sequence[Change], placed: Placed) -> set[TaskId]:
    """Apply guarded changes in one transaction; the ids of those that took effect. Raises StaleLanes (N3)."""
    if not changes:
        return set()
    epoch = placed.epoch if any(map(makes_ready, changes)) else None
    in_order = sorted(((change, placed.of(index)) for index, change in enumerate(changes)), key=_id)
    took_effect: set[TaskId] = set()
    with connections.transaction() as session:
        held, time = _locked(session, now, changes, epoch)
        statements: list[Statement] = []
        for some in _rounds(in_order):
            effects = _Effects()
            for change, lanes in some:
                present = held.get(change_id(change))
                if present is not None and permits(present.task, change, time):
                    held[present.task.id] = after = present.changed(change, time)
                    _note(effects, change, after, lanes)
                    took_effect.add(after.task.id)
            statements += effects.written()
        session.commit(statements)
    return took_effect


def _id(each: tuple[Change, Sequence[LaneId]]) -> TaskId:
    return change_id(each[0])


def _rounds(waiting: list[tuple[Change, Sequence[LaneId]]]) -> Iterator[list[tuple[Change, Sequence[LaneId]]]]:
    """The changes, each task once a round: the second of two takes what the first one left."""
    while waiting:
        first: dict[TaskId, tuple[Change, Sequence[LaneId]]] = {}
        later = [each for each in waiting if first.setdefault(_id(each), each) is not each]
        yield list(first.values())
        waiting = later


def _locked(
    session: Session, now: int | None, changes: Sequence[Change], epoch: int | None
) -> tuple[dict[TaskId, _Held], int]:
    """The tasks, locked, and the time behind the locks. Raises StaleLanes."""
    ids = set(map(change_id, changes))
    lock = lock_of(session.server.product, "present")
    held = [] if epoch is None else [hold(session.server.product, epoch)]
    from_history = {change.task_id for change in changes if isinstance(change, Revive)}
    settled = [(_LOCK["history"].format(lock=lock), (id_list(from_history),))] if from_history else []
    asked: list[Statement] = [
        *held,
        (_LOCK["task"].format(lock=lock), (id_list(ids),)),
        *settled,
        (_NOW.format(now=moment(now)), ()),
    ]
    answers = session.batch(asked)
    if epoch is not None:
        require_held(answers.pop(0), epoch)
    *found, ((time,),) = (answer.rows for answer in answers)
    return {row[0]: _tested(row) for rows in reversed(found) for row in rows}, int(time)


def _tested(row: Row) -> _Held:
    """As much of a task as guards ask for."""
    task_id, ready_no, state, token, lease_until, priority, created_at, ready_at, attempt = row
    task = TaskRecord(
        id=task_id,
        queue="",
        step="",
        created_at=created_at,
        ready_at=ready_at,
        state=State(state),
        payload="null",
        attributes={},
        priority=priority,
        attempt=attempt,
        token=token,
        lease_until=lease_until,
    )
    return _Held(task, ready_no)


def _note(effects: _Effects, change: Change, held: _Held, lanes: Sequence[LaneId]) -> None:
    """Note what a change writes, given what it makes of its task."""
    after = held.task
    match change:
        case Finish() | Cancel():
            _settle(effects, change, after)
        case Expire() if after.state not in LIVE:
            _settle(effects, change, after)
        case Requeue() | Expire() | GiveBack() | Promote():
            effects.statements.append(_update(change, held))
        case Revive():
            values = (after.ready_at, encode_attributes(after.attributes), after.attempt, held.ready_no, after.id)
            effects.statements.append((_REVIVE, values))
            effects.revived.append(after.id)
        case _:
            assert_never(change)
    if after.state is State.READY:
        effects.entered += (LaneRow(lane, after.order_key, held.ready_no) for lane in lanes)


def _settle(effects: _Effects, change: Finish | Cancel | Expire, after: TaskRecord) -> None:
    is_kept = isinstance(change, Cancel)
    key = (after.finished_at, after.state.value, after.result, is_kept, None if is_kept else after.error)
    effects.settled[key].append(after.id)


def _update(change: Change, held: _Held) -> Statement:
    after = held.task
    is_ready = after.state is State.READY
    keeps_error = isinstance(change, (GiveBack, Promote))
    values = (
        after.state.value,
        after.attempt,
        after.ready_at,
        held.ready_no,
        None if is_ready else after.ready_at,
        encode_attributes(after.attributes),
        *(() if keeps_error else (after.error,)),
        after.id,
    )
    return _UPDATE.format(error="error" if keeps_error else "%s"), values


def extend(connections: Connections, now: int | None, leases: Sequence[Lease], ttl: int) -> set[Lease]:
    """Move the end of leases still held to now + ttl; those that held (L2)."""
    in_order = sorted(set(leases), key=lambda lease: lease.task_id)
    statement = _EXTEND.format(now=moment(now))
    with connections.transaction() as session:
        answers = session.commit([(statement, (ttl, ttl, lease.task_id, lease.token)) for lease in in_order])
    return {lease for lease, answer in zip(in_order, answers, strict=True) if answer.count}
