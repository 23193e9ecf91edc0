"""Inserts of many rows a statement, all statements of a call in as few packets as the server takes.

Every id that is taken, live or in history, has its row in `payload`, from enqueue to purge. So one primary key decides
about an id, also after a wait for whoever writes it just now, and no move into history or back can slip by (L4). Ids
are inserted in order (L7).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import randbits

from pymysql.constants import ER
from pymysql.err import IntegrityError

from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.lanes import LaneId, LaneRow, Placed
from wiggle_core.stores.sql.rows import INSERTED, inserted_values
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Answer, Connections, Session, Statement
from wiggle_store_mysql.epochs import hold, require_held
from wiggle_store_mysql.packets import packed, places

ROWS = 1_000
"""How many rows one statement inserts at most."""
_RANDOM_BITS = 10  # beside the microseconds a bigint has so many to spare until the year 2255
_PACKET_SHARE = 0.5
"""How much of a packet the values of one statement may fill: the server counts the text around them, too."""
_OTHERS = 24
"""How many bytes a number takes at most, and what stands around a value."""

_COLUMNS = (*INSERTED, "ready_no", "due_at")
_INSERT_PAYLOADS = "INSERT {ignore} INTO $payload (id, body) VALUES {rows}"
_INSERT_TASKS = f"INSERT INTO $task ({', '.join(_COLUMNS)}) VALUES {{rows}}"


def enqueue(connections: Connections, tasks: Sequence[TaskRecord], placed: Placed) -> set[TaskId]:
    """Insert the tasks whose ids are neither live nor in history; their ids. Raises StaleLanes (N3)."""
    new: dict[TaskId, TaskRecord] = {}
    lanes: dict[TaskId, Sequence[LaneId]] = {}
    for index, task in enumerate(tasks):
        if task.id not in new:  # of two alike the first one counts
            new[task.id] = task
            if task.state is State.READY and placed.of(index):
                lanes[task.id] = placed.of(index)
    if not new:
        return set()
    epoch = placed.epoch if any(task.state is State.READY for task in tasks) else None
    in_order = [new[each] for each in sorted(new)]
    return _insert_new(connections, in_order, lanes, epoch) or _insert_free(connections, in_order, lanes, epoch)


def new_ready_no() -> int:
    """A number that no other time has at which the task became READY, whatever became of its id in between; mostly a
    larger one. There is no sequence that both products have."""
    return time.time_ns() // 1_000 << _RANDOM_BITS | randbits(_RANDOM_BITS)


def _insert_new(
    connections: Connections, tasks: list[TaskRecord], lanes: Mapping[TaskId, Sequence[LaneId]], epoch: int | None
) -> set[TaskId]:
    """Insert tasks of which no id is taken, as is the rule; none, if one is."""
    try:
        with connections.transaction() as session:
            statements = [*_payloads(session, tasks), *_rows_of(session, tasks, lanes)]
            _send(session, statements, epoch)
    except PermanentStoreError as error:
        cause = error.__cause__
        if isinstance(cause, IntegrityError) and cause.args[0] == ER.DUP_ENTRY:
            return set()
        raise
    return {task.id for task in tasks}


def _insert_free(
    connections: Connections, tasks: list[TaskRecord], lanes: Mapping[TaskId, Sequence[LaneId]], epoch: int | None
) -> set[TaskId]:
    """Insert those tasks whose ids are not taken: one by one they tell which."""
    with connections.transaction() as session:
        statements = [_payload(task) for task in tasks]
        answers = _send(session, statements, epoch)
        free = [task for task, answer in zip(tasks, answers, strict=True) if answer.count]
        session.commit(list(_rows_of(session, free, lanes)))
    return {task.id for task in free}


def _send(session: Session, statements: Iterable[Statement], epoch: int | None) -> list[Answer]:
    """Send statements; the epoch is held from before them on. Raises StaleLanes."""
    held = [] if epoch is None else [hold(session.server.product, epoch)]
    answers = session.batch([*held, *statements])
    if epoch is not None:
        require_held(answers.pop(0), epoch)
    return answers


def _payloads(session: Session, tasks: Iterable[TaskRecord]) -> Iterator[Statement]:
    for rows in _cut(session, [(task.id, task.payload) for task in tasks]):
        yield _INSERT_PAYLOADS.format(ignore="", rows=places(rows)), rows


def _payload(task: TaskRecord) -> Statement:
    return _INSERT_PAYLOADS.format(ignore="IGNORE", rows="%s"), ((task.id, task.payload),)


def _rows_of(
    session: Session, tasks: Sequence[TaskRecord], lanes: Mapping[TaskId, Sequence[LaneId]]
) -> Iterator[Statement]:
    """The statements for the rows of tasks, but for their payloads."""
    ready_no = new_ready_no()
    for rows in _cut(session, [task_values(task, ready_no) for task in tasks]):
        yield _INSERT_TASKS.format(rows=places(rows)), rows
    entered = [LaneRow(lane, task.order_key, ready_no) for task in tasks for lane in lanes.get(task.id, ())]
    yield from lane_rows.insertions(entered)


def task_values(task: TaskRecord, ready_no: int) -> tuple[object, ...]:
    """The values of a task that nobody has claimed yet, in the order of the columns that are inserted."""
    return (*inserted_values(task), ready_no, task.ready_at if task.state is State.SCHEDULED else None)


def _cut(session: Session, rows: Sequence[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    """The rows in parts that one statement takes."""
    return packed(rows, _size, session.max_packet * _PACKET_SHARE, ROWS)


def _size(row: tuple[object, ...]) -> int:
    """How many bytes a row takes at most. A character takes four, and eight where it is escaped; to look at each would
    take longer than to send it."""
    return 8 * sum(len(value) for value in row if isinstance(value, str)) + _OTHERS * len(row)
