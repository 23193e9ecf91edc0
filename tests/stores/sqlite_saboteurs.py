"""Deliberately wrong SQLite stores: the right one, with a piece of its SQL replaced on the way to the database.

python -m wiggle_core.conformance saboteurs --module tests.stores.sqlite_saboteurs
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any, cast

from sqlalchemy import make_url

from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.conformance.saboteurs import PAUSE_SECONDS, Saboteur
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.place import Place, read_url
from wiggle_store_sqlite.store import SqliteStore


class _Rewritten:
    """A connection that sends another statement than it was given, or does something before it."""

    def __init__(self, connection: sqlite3.Connection, sabotage: Callable[[sqlite3.Connection, str], str]) -> None:
        self._connection = connection
        self._sabotage = sabotage

    def execute(self, statement: str, *binds: Any) -> sqlite3.Cursor:  # Any: whatever the store binds
        return self._connection.execute(self._sabotage(self._connection, statement), *binds)

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the connection's
        return getattr(self._connection, name)


class _Sabotaged(Connections):
    def __init__(self, place: Place, sabotage: Callable[[sqlite3.Connection, str], str]) -> None:
        super().__init__(place)
        self._sabotage = sabotage

    def _open(self) -> sqlite3.Connection:
        return cast("sqlite3.Connection", _Rewritten(super()._open(), self._sabotage))


class _SabotagedStore(SqliteStore):
    def __init__(self, place: Place, clock: Clock | None, sabotage: Callable[[sqlite3.Connection, str], str]) -> None:
        super().__init__(place, clock)
        self._connections = _Sabotaged(place, sabotage)


def _in_file(sabotage: Callable[[sqlite3.Connection, str], str]) -> Callable[[Path], StoreFactory]:
    def begin(folder: Path) -> StoreFactory:
        place = read_url(make_url(f"sqlite:///{folder}/tasks.db?synchronous=normal"))

        def open_handle(clock: Clock | None = None) -> Store:
            return _SabotagedStore(place, clock, sabotage)

        return open_handle

    return begin


def _written(name: str, rule: str, right: str, wrong: str, only: str = "") -> Saboteur:
    """The saboteur that writes one thing for another, in statements that begin with `only`."""

    def sabotage(_: sqlite3.Connection, statement: str) -> str:
        return statement.replace(right, wrong) if statement.lstrip().startswith(only) else statement

    return Saboteur(f"sqlite: {name}", rule, _in_file(sabotage))


def _slowly(name: str, rule: str, right: str, wrong: str) -> Saboteur:
    """As `_written`, for claims, with a pause between what they read and what they write."""
    last: dict[int, str] = {}

    def sabotage(connection: sqlite3.Connection, statement: str) -> str:
        if statement == "BEGIN IMMEDIATE" and last.get(id(connection), "").startswith(_WALK):
            sleep(2 * PAUSE_SECONDS)
        if not statement.startswith("PRAGMA"):
            last[id(connection)] = statement
        return statement.replace(right, wrong) if statement.lstrip().startswith(_LEASE) else statement

    return Saboteur(f"sqlite: {name}", rule, _in_file(sabotage))


def _commit_before_leaving(connection: sqlite3.Connection, statement: str) -> str:
    """History is committed before the task leaves the hot table: a crash between them leaves it in both."""
    if statement.startswith("DELETE FROM task"):
        connection.execute("COMMIT")
        sleep(PAUSE_SECONDS)
        connection.execute("BEGIN IMMEDIATE")
    return statement


_WALK = "SELECT json_group_array"
_LEASE = "UPDATE task NOT INDEXED SET state"
_ORDER = "ORDER BY priority, created_at, ready_at, id"
_TOKEN = "AND token = json_extract(change.value, '$[1]')"

_ENTERS = "task.id = entry.value"

SABOTEURS = (
    _slowly("leases what others leased meanwhile", "L1", "AND state = 'READY'", "AND state IN ('READY', 'RUNNING')"),
    _slowly("tests no predicate under the lock", "O4", "'READY' AND (", "'READY' AND (1 OR "),
    _written("takes leases back before their end", "L2", "AND lease_until <= :now", ""),
    _written("expires with < for <=", "L2", "AND lease_until <= :now", "AND lease_until < :now"),
    _written("settles under any token", "L2", _TOKEN, "", "INSERT INTO history"),
    _written("loses NOT of what is absent", "C2", " IS NULL OR NOT ", " IS NOT NULL AND NOT "),
    _written("folds case in LIKE", "C4", " GLOB +?", " LIKE replace(replace(?, '*', '%'), '?', '_')"),
    _written("pads text with blanks", "C4", "step = ?", "step = ? COLLATE RTRIM"),
    _written("folds case in comparisons", "C4", "step = ?", "step = ? COLLATE NOCASE"),
    _written("breaks ties backwards", "O1", _ORDER, f"{_ORDER} DESC", _WALK),
    _written("lets settled ids be enqueued again", "L4", "OR EXISTS (SELECT 1 FROM history WHERE id = value)", ""),
    _written("gives a task one ready_no for life", "N1", "ready_no + 1", "ready_no"),
    _written("puts no second run into lanes", "N1", _ENTERS, f"{_ENTERS} AND attempt = 1"),
    _written("keeps dead rows", "N1", "AND NOT ", "AND FALSE AND NOT ", "DELETE FROM lane_task"),
    _written("deletes live rows with the dead", "N1", "AND NOT ", "AND TRUE OR NOT ", "DELETE FROM lane_task"),
    _written("claims by lanes that are closed", "N3", "lane.state = 'OPEN'", "TRUE"),
    _written("opens lanes without a new epoch", "N3", "epoch = epoch + 1", "epoch = epoch"),
    Saboteur("sqlite: commits history before the task leaves", "L5", _in_file(_commit_before_leaving)),
)
