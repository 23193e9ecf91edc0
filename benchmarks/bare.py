"""The statements of one claim without criteria, sent by the bare driver: what a claim costs without wiggle's Python.

Rows are fetched and left as they come. The connection runs under the settings of the store's own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from wiggle_core.stores.store import ClaimRequest, Route, Store
from wiggle_core.tasks.task import OrderKey
from wiggle_store_sqlite import claims as sqlite_claims

if TYPE_CHECKING:
    import psycopg

    from wiggle_store_mysql import connections as mysql
    from wiggle_store_mysql.place import Place as MySQLPlace
    from wiggle_store_postgres.place import Place as PostgresPlace

LEASE = timedelta(seconds=30)
_TTL = LEASE // timedelta(microseconds=1)

BareClaim: TypeAlias = Callable[[str, int], tuple[float, str]]
"""Claims so many tasks of a queue; the seconds that it took, and the token that the tasks carry now."""


def bare_sqlite(connection: sqlite3.Connection) -> BareClaim:
    """By sqlite3, on a connection in autocommit."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -8192")
    connection.execute("PRAGMA wal_autocheckpoint = 8000")

    def claim(queue: str, limit: int) -> tuple[float, str]:
        routes = (Route(queue),)
        walk = sqlite_claims.candidates(routes, limit)
        lease, guard = sqlite_claims.guarded_lease(routes)
        token, until = uuid4().hex, time.time_ns() // 1000 + _TTL
        execute = connection.execute
        started = time.perf_counter()
        numbers, *_ = execute(walk.text, walk.binds).fetchone()
        execute("BEGIN IMMEDIATE")
        rows = execute(lease, ("benchmark", token, until, numbers, *guard)).fetchall()
        execute("COMMIT")
        return _whole(time.perf_counter() - started, len(rows), limit), token

    return claim


def bare_postgres(connection: psycopg.Connection[tuple[Any, ...]], place: PostgresPlace, store: Store) -> BareClaim:
    """By psycopg, on a connection in autocommit. Any: the driver's types are those of the columns."""
    from psycopg import RawCursor  # noqa: PLC0415 # the driver is there only where it is used

    explain = cache(store.explain)
    connection.prepare_threshold = 0  # claims of the store's own are prepared, too

    def claim(queue: str, limit: int) -> tuple[float, str]:
        told = explain(Route(queue), limit)
        statement, token = told.sql.replace("$schema", place.quoted_schema).encode(), uuid4().hex
        # As the store binds them: owner, token, the database's own time, ttl, limit, and what the routes bind.
        binds = ("benchmark", token, None, _TTL, *told.binds[4:])
        started = time.perf_counter()
        rows = RawCursor(connection).execute(statement, binds).fetchall()
        return _whole(time.perf_counter() - started, len(rows), limit), token

    return claim


def bare_mysql(connection: mysql.Connection, place: MySQLPlace) -> BareClaim:
    """By PyMySQL, on a connection that is set up as the store's own are."""
    # Imported here: the driver is there only where it is used.
    from wiggle_store_mysql.claims import Candidate, first_statements, lease_statements  # noqa: PLC0415
    from wiggle_store_mysql.connections import Session, set_up  # noqa: PLC0415

    session = Session(connection, place, *set_up(connection, place))
    cursor = connection.cursor()

    def claim(queue: str, limit: int) -> tuple[float, str]:
        request = ClaimRequest("benchmark", uuid4().hex, _TTL, limit, (Route(queue),))
        walk = ";".join(
            [
                "START TRANSACTION",
                *starmap(session.text, first_statements(session.server.product, request.routes, limit)),
            ]
        )
        started = time.perf_counter()
        cursor.execute(walk)
        cursor.nextset()
        found = cursor.fetchall()
        taken = time.perf_counter() - started
        picked = [Candidate(OrderKey(*row[:-1]), row[-1], None) for row in found]
        lease = ";".join([*starmap(session.text, lease_statements(None, request, picked, [])), "COMMIT"])
        started = time.perf_counter()
        cursor.execute(lease)
        cursor.nextset()
        rows = cursor.fetchall()
        cursor.nextset()
        return _whole(taken + time.perf_counter() - started, len(rows), limit), request.token

    return claim


def _whole(seconds: float, rows: int, limit: int) -> float:
    if rows != limit:
        raise AssertionError(f"{rows} rows leased, and {limit} expected")
    return seconds
