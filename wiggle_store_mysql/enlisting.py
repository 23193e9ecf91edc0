"""Enqueueing inside a transaction of the caller's own, by PyMySQL or SQLAlchemy (`Enlist`).

The caller's connection is taken as it comes and left as it was. So every table in the statements is named with its
database; the values are ASCII text that means the same in all character sets and modes of SQL; and of the driver's
cursors and converters none is used.

A statement that fails does not end a transaction here, so all that is sent stands behind a savepoint: nobody can
commit a payload without its task, even who goes on after an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pymysql
from pymysql.constants import CR, ER, SERVER_STATUS
from pymysql.cursors import Cursor

from wiggle_core.errors import EnlistRejected, PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.sql.enlisting import connection_in_transaction
from wiggle_core.stores.sql.rows import INSERTED
from wiggle_core.tasks.task import State, TaskId, TaskRecord
from wiggle_store_mysql.connections import Connection, Connections
from wiggle_store_mysql.enqueueing import new_ready_no, task_values
from wiggle_store_mysql.errors import DRIVER_ERRORS, DriverError, translate
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.packets import packed
from wiggle_store_mysql.place import Place, in_place

# A lock by name is the server's own: whoever sees who holds it is on the same server, whatever its copies are called.
_LOCK, _UNLOCK = "SELECT GET_LOCK(%s, 0), CONNECTION_ID()", "SELECT RELEASE_LOCK(%s)"
_LOOK = "SELECT IS_USED_LOCK('{name}'), @@max_allowed_packet"

_TAKEN = "SELECT id FROM $payload FORCE INDEX (PRIMARY) WHERE id IN %s"
_NOW = "SELECT {now}"

_SAVEPOINT, _UNDO = "SAVEPOINT wiggle_enlist", "ROLLBACK TO SAVEPOINT wiggle_enlist"
# BODY is a word of its own in MariaDB's mode ORACLE.
_INSERT_PAYLOADS = "INSERT INTO $payload (id, `body`) VALUES "
_INSERT_TASKS = f"INSERT INTO $task ({', '.join(INSERTED)}, ready_no, due_at) VALUES "

_ROOM_AROUND = 1_024
"""How many bytes of a packet are kept for what is around the rows."""
_PLAIN = re.compile(r"[ -\[\]-~]+")
"""ASCII that needs no escape but for quotes, without backslashes, whose meaning depends on the mode."""
_IN_TRANS_READONLY = 0x2000  # SERVER_STATUS_IN_TRANS_READONLY, of which PyMySQL has no name

_REASONS = {
    ER.CHECKREAD: "it met another one",
    3101: "it met another one",
    ER.LOCK_DEADLOCK: "it was the victim of a deadlock",
    ER.LOCK_WAIT_TIMEOUT: "it could not have a lock",
    3572: "it could not have a lock",
    ER.QUERY_INTERRUPTED: "a statement of it was ended, mostly for its time",
    ER.QUERY_TIMEOUT: "a statement of it was ended, mostly for its time",
    1969: "a statement of it was ended, mostly for its time",
}

_EXPECTED = "a pymysql.Connection, or a Connection or Session of SQLAlchemy's on mysql+pymysql or mariadb+pymysql"


class Enlisting:
    """Inserts tasks by connections that belong to others."""

    def __init__(self, connections: Connections) -> None:
        self._own = connections
        self._known: WeakKeyDictionary[Connection, tuple[int, int]] = WeakKeyDictionary()
        """Those that were found to lead to the store's own server: the number that each had there, since a connection
        of PyMySQL's may be made anew, and how many bytes a statement may have."""

    def enlist(self, connection: object, tasks: Sequence[TaskRecord], now: int | None) -> None:
        """Insert the tasks whose ids are neither live nor in history, in the transaction that the connection is in, or
        begins now as its first statement would have done."""
        theirs = connection_in_transaction(connection, pymysql.Connection, _require_usable, _EXPECTED)
        try:
            room = self._room(theirs)
            entering = self._entering(tasks, now)
            if entering:
                self._insert(theirs, entering, room)
        except DRIVER_ERRORS as error:
            raise _lost_transaction(error, theirs, self._own.place) from error

    def _room(self, theirs: Connection) -> int:
        """How many bytes a statement may have. Raises EnlistRejected for another server than the store's."""
        number = _number(theirs)
        if (known := self._known.get(theirs)) and known[0] == number:
            return known[1]
        place, name = self._own.place, f"wiggle enlist {uuid4().hex}"
        with self._own.reading() as session:
            ((_, own),) = session.rows(_LOCK, (name,))
            try:
                (holder, max_packet), *_ = _send(theirs, _LOOK.format(name=name)).fetchall()
            except DRIVER_ERRORS as error:
                raise _lost_transaction(error, theirs, place) from error
            finally:
                session.rows(_UNLOCK, (name,))
        if holder is None or int(holder) != own:
            raise EnlistRejected(
                f"the connection leads to {theirs.unix_socket or f'{theirs.host}:{theirs.port}'}, which is another "
                f"server than that of {place}, where the tasks are kept: name the same server in both URLs"
            )
        room = int(max_packet) - _ROOM_AROUND
        self._known[theirs] = number, room
        return room

    def _entering(self, tasks: Sequence[TaskRecord], now: int | None) -> list[TaskRecord]:
        """What is to be inserted, of two alike the first one.

        By a connection of the store's own. Its time is the server's, while the caller may have set another one, and an
        estimate might be ahead, so that the task would wait. And to meet an id that is taken would lock its row until
        the caller's commit; moreover the caller's snapshot may be from before it.
        """
        first: dict[TaskId, TaskRecord] = {}
        for task in tasks:
            first.setdefault(task.id, task)
        if not first:
            return []
        with self._own.reading() as session:
            taken, time = session.batch([(_TAKEN, (list(first),)), (_NOW.format(now=moment(now)), ())])
        ((at,),) = time.rows
        for (task_id,) in taken.rows:
            del first[task_id]
        return [_scheduled(task, int(at)) for task in first.values()]

    def _insert(self, theirs: Connection, tasks: Sequence[TaskRecord], room: int) -> None:
        place = self._own.place
        payloads = [(task, _row((task.id, task.payload))) for task in tasks]
        parts = list(_cut(payloads, room))
        head, ready_no = in_place(_INSERT_TASKS, place), new_ready_no()
        with _all_or_nothing(theirs):
            free = [task for part in parts for task in _inserted(theirs, in_place(_INSERT_PAYLOADS, place), part)]
            rows = [(task, _row(task_values(task, ready_no))) for task in free]
            for part in _cut(rows, room):
                _send(theirs, head + ", ".join(row for _, row in part))


def _scheduled(task: TaskRecord, now: int) -> TaskRecord:
    return task if task.state is State.SCHEDULED else replace(task, state=State.SCHEDULED, ready_at=now)


@contextmanager
def _all_or_nothing(theirs: Connection) -> Iterator[None]:
    """Undo what is sent meanwhile if anything fails, and leave the rest of the transaction as it is."""
    _send(theirs, _SAVEPOINT)
    # What the driver knew of the transaction may be from before an error by which the server ended it.
    _require_usable(theirs)
    try:
        yield
    except BaseException:
        _undo(theirs)
        raise


def _undo(theirs: Connection) -> None:
    try:
        _send(theirs, _UNDO)
    except DRIVER_ERRORS as error:
        if error.args[:1] != (ER.SP_DOES_NOT_EXIST,):  # which says that the server ended the transaction
            with suppress(*DRIVER_ERRORS):
                theirs.close()


def _inserted(theirs: Connection, head: str, rows: Sequence[tuple[TaskRecord, str]]) -> list[TaskRecord]:
    """Insert payloads; the tasks whose ids were free. A statement that meets one which is taken, by this transaction
    or since it was asked about, inserts nothing: halves of it tell which."""
    try:
        _send(theirs, head + ", ".join(row for _, row in rows))
    except pymysql.IntegrityError as error:
        if error.args[0] != ER.DUP_ENTRY:
            raise
        middle = len(rows) // 2
        return [task for half in (rows[:middle], rows[middle:]) if middle for task in _inserted(theirs, head, half)]
    return [task for task, _ in rows]


def _cut(rows: Iterable[tuple[TaskRecord, str]], room: int) -> Iterator[list[tuple[TaskRecord, str]]]:
    """The rows in parts that one statement takes. One that is longer by itself would cost the caller the
    connection."""

    def size_of(each: tuple[TaskRecord, str]) -> int:
        more = len(each[1]) + 2
        if more > room:
            raise pymysql.OperationalError(CR.CR_NET_PACKET_TOO_LARGE)
        return more

    return packed(rows, size_of, room)


def _number(connection: Connection) -> int:
    number: int = connection.thread_id()  # type: ignore[no-untyped-call]
    return number


def _row(values: Iterable[object]) -> str:
    return f"({', '.join(map(_literal, values))})"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return f"{value:d}"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return "_utf8mb4'" + text.replace("'", "''") + "'"
    return f"_utf8mb4 x'{text.encode().hex()}'"  # '' would be NULL in a mode of MariaDB's


def _send(connection: Connection, statement: str) -> Cursor:
    """Run a statement. One that warns did something else than it was told, which strict modes would refuse."""
    cursor = Cursor(connection)
    cursor.execute(statement)
    if cursor.warning_count:
        raise pymysql.DataError(ER.WARN_DATA_TRUNCATED)
    return cursor


def _lost_transaction(error: DriverError, theirs: Connection, place: Place) -> StoreError:
    """The error to raise."""
    number = error.args[0] if error.args else 0
    if number == 1792:
        return PermanentStoreError(f"your transaction on {place} is read-only: no task can be enqueued in it")
    translated = translate(error, place)
    reason = _REASONS.get(number) if theirs.open else "the server ended it, or its connection"
    if reason and isinstance(translated, TransientStoreError):
        return TransientStoreError(f"your transaction on {place} failed, as {reason}: roll back, and run it again")
    return translated


def _require_usable(connection: Connection) -> None:
    if not connection.open:
        raise EnlistRejected("the connection is closed")
    # What PyMySQL knows of a connection, and has no other way to.
    status: int = connection.server_status  # type: ignore[attr-defined]
    result: Any = connection._result  # type: ignore[attr-defined]
    if result is not None and (result.unbuffered_active or result.has_next):
        raise EnlistRejected("the connection has results that were not read: read them to their end, or close them")
    if status & _IN_TRANS_READONLY:
        raise EnlistRejected("the connection's transaction is read-only: no task can be enqueued in it")
    if status & SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT and not status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
        raise EnlistRejected(
            "the connection is in autocommit, and in no transaction that tasks could join: begin one, as "
            "`connection.begin()` does"
        )
