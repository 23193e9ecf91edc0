"""Deliberately wrong MySQL and MariaDB stores: the right one, with one of its cures taken away on the way to the
server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import sleep
from typing import TypeAlias

from wiggle_core.conformance.saboteurs import PAUSE_SECONDS
from wiggle_core.stores.lanes import NO_LANES, Placed
from wiggle_core.stores.store import Change, Finish, GiveBack, Requeue, Store
from wiggle_core.tasks.task import Clock, Lease, TaskId
from wiggle_store_mysql.connections import Answer, Session, Statement
from wiggle_store_mysql.place import Place
from wiggle_store_mysql.schema import TABLES
from wiggle_store_mysql.store import MySQLStore

Send: TypeAlias = Callable[[Sequence[Statement]], list[Answer]]
Sabotage: TypeAlias = Callable[[Send, Sequence[Statement]], list[Answer]]
"""Sends other statements than it was given, or does something between them; an answer to each that was given."""


@dataclass(frozen=True, slots=True)
class Saboteur:
    """What a store does wrong, the rule that it breaks, and the check of the kit that has to find out."""

    name: str
    rule: str
    check: str
    make: Callable[[Place, Clock | None], Store]
    migrates: bool = False
    """Whether it does it in making its tables, which must not be there, then."""


class _SabotagedStore(MySQLStore):
    def __init__(self, place: Place, clock: Clock | None, sabotage: Sabotage) -> None:
        super().__init__(place, clock)
        lend = self._connections._session

        @contextmanager
        def lend_sabotaged(*, may_have_applied: bool) -> Iterator[Session]:
            with lend(may_have_applied=may_have_applied) as session:
                vars(session)["_sent"] = partial(sabotage, session._sent)
                yield session

        # All modules of the store have their sessions from this one object; migrations have one of their own.
        vars(self._connections)["_session"] = lend_sabotaged


class _SettlesUnderAnyToken(MySQLStore):
    """Who settles is not asked whether the lease is still his."""

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        return super().apply([self._of_present_holder(change) for change in changes], placed)

    def _of_present_holder(self, change: Change) -> Change:
        if not isinstance(change, (Finish, Requeue, GiveBack)):
            return change
        task = self.get(change.lease.task_id)
        return change if task is None or task.token is None else replace(change, lease=Lease(task.id, task.token))


class _PadsTexts(MySQLStore):
    """Texts are in the collation that is binary, and takes blanks at the end for nothing (MY4)."""

    def migrate(self) -> list[str]:
        applied = super().migrate()
        with self._connections.reading() as session:
            for table in TABLES if applied else ():
                session.run(f"ALTER TABLE ${table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        return applied


def _sending(sabotage: Sabotage) -> Callable[[Place, Clock | None], Store]:
    return lambda place, clock: _SabotagedStore(place, clock, sabotage)


def _writing(right: str, wrong: str, only: str = "", pause: float = 0) -> Callable[[Place, Clock | None], Store]:
    """Writes one thing for another, in statements that begin with `only`, and waits where they found something."""

    def sabotage(send: Send, statements: Sequence[Statement]) -> list[Answer]:
        wrong_ones = [text.lstrip().startswith(only) and right in text for text, _ in statements]
        texts = [
            text.replace(right, wrong) if is_wrong else text
            for is_wrong, (text, _) in zip(wrong_ones, statements, strict=True)
        ]
        answers = send([(text, binds) for text, (_, binds) in zip(texts, statements, strict=True)])
        if any(is_wrong and answer.rows for is_wrong, answer in zip(wrong_ones, answers, strict=True)):
            sleep(pause)
        return answers

    return _sending(sabotage)


def _lease_what_was_seen(send: Send, statements: Sequence[Statement]) -> list[Answer]:
    """Claims read without locks, and lease what they read whatever became of it meanwhile."""
    texts = [text for text, _ in statements]
    if any(text.lstrip().startswith("UPDATE $task AS task") for text in texts):
        sleep(_PAUSE)
        statements = [(text.replace("AND state = 'READY'", ""), binds) for text, binds in statements]
    elif any(_WALK in text for text in texts):
        statements = [(text.replace("FOR UPDATE SKIP LOCKED", ""), binds) for text, binds in statements]
    return send(statements)


def _decide_without_locks(send: Send, statements: Sequence[Statement]) -> list[Answer]:
    """What becomes of a task is decided by what it was, and written over what others made of it meanwhile."""
    is_test = any(text.startswith(_TESTED) for text, _ in statements)
    texts = [_LOCK.sub("", text) if text.startswith(_TESTED) else text for text, _ in statements]
    texts = [text.replace("INSERT INTO $history", "INSERT IGNORE INTO $history") for text in texts]
    answers = send([(text, binds) for text, (_, binds) in zip(texts, statements, strict=True)])
    if is_test:
        sleep(_PAUSE)
    return answers


def _commit_before_leaving(send: Send, statements: Sequence[Statement]) -> list[Answer]:
    """History is committed before the task leaves the hot table: a crash between them leaves it in both."""
    answers = []
    for statement in statements:
        if statement[0].startswith("DELETE present") and "$task AS present" in statement[0]:
            send([("COMMIT", ())])
            sleep(_PAUSE)
            send([("START TRANSACTION", ())])
        answers += send([statement])
    return answers


def _look_at_the_epoch(send: Send, statements: Sequence[Statement]) -> list[Answer]:
    """The epoch is read, and may be over when the tasks come."""
    answers = []
    for text, binds in statements:
        is_hold = text.startswith(_HOLD)
        answers += send([(text[: text.index("LIMIT 2")] if is_hold else text, binds)])
        if is_hold:
            sleep(_PAUSE)
    return answers


_PAUSE = 5 * PAUSE_SECONDS
_WALK = "FORCE INDEX (task_dispatch)"
_HOLD = "SELECT epoch FROM $lane_epoch WHERE epoch >= "
_LOCK = re.compile(r"FOR UPDATE( OF present)?")
_END_OF_LEASE = "present.lease_until"
_TESTED = f"SELECT present.id, present.ready_no, present.state, present.token, {_END_OF_LEASE}, present.priority"
_LONG_PAST = f"CASE WHEN {_END_OF_LEASE} IS NULL THEN NULL ELSE 0 END"
_SAME_ROW = "present.ready_no = given.ready_no"

SABOTEURS = (
    Saboteur(
        "sorts what it walks, so that all of it is locked",
        "O2",
        "test_claimers_leave_each_other_their_share",
        _writing(_WALK, "IGNORE INDEX (task_dispatch)", pause=10 * _PAUSE),
    ),
    Saboteur(
        "leases what others leased meanwhile",
        "L1",
        "test_racing_claims_take_each_task_once",
        _sending(_lease_what_was_seen),
    ),
    Saboteur(
        "extends under any token",
        "L2",
        "test_extending_a_stale_lease_changes_nothing",
        _writing("AND token = %s", "AND %s <> ''"),
    ),
    Saboteur("settles under any token", "L2", "test_a_late_settlement_changes_nothing", _SettlesUnderAnyToken),
    Saboteur(
        "takes leases back before their end",
        "L2",
        "test_expiry_needs_the_end_of_the_lease",
        _writing(_TESTED, _TESTED.replace(_END_OF_LEASE, _LONG_PAST)),
    ),
    Saboteur(
        "decides about tasks that it did not lock",
        "L2",
        "test_a_task_ends_once",
        _sending(_decide_without_locks),
    ),
    Saboteur(
        "loses the error of an id that is taken",
        "L4",
        "test_an_id_stays_taken_in_every_state",
        _writing("INSERT  INTO $payload", "INSERT IGNORE INTO $payload"),
    ),
    Saboteur(
        "commits history before the task leaves",
        "L5",
        "test_a_task_is_always_in_one_place",
        _sending(_commit_before_leaving),
    ),
    Saboteur("pads texts with blanks", "C4", "test_texts_are_told_apart_exactly", _PadsTexts, migrates=True),
    Saboteur(
        "compares no ready_no",
        "N1",
        "test_rows_that_come_late_do_no_harm",
        _writing("task.ready_no = ", "0 = 0 * "),
    ),
    Saboteur(
        "keeps dead rows of lanes",
        "N1",
        "test_dead_rows_go",
        _writing(_SAME_ROW, f"{_SAME_ROW} AND false", only="DELETE present"),
    ),
    Saboteur(
        "takes any epoch for the present one",
        "N3",
        "test_an_enqueue_by_another_epoch_is_refused",
        _writing(f"{_HOLD}%s ORDER BY epoch LIMIT 2", "SELECT %s FROM $lane_epoch LIMIT 1"),
    ),
    Saboteur(
        "reads the epoch without holding it",
        "N3",
        "test_nothing_placed_before_is_missed",
        _sending(_look_at_the_epoch),
    ),
)
RIGHT = Saboteur("does nothing wrong", "", "", _sending(lambda send, statements: send(statements)))
