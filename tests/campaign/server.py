"""A server that is struck while it works: sessions, statements and processes of it are ended, and it starts again."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from time import monotonic, sleep
from typing import Any, TypeAlias, assert_never

import psycopg
import pymysql
from pymysql.constants import ER

from tests.campaign.plan import Blow, Product
from tests.servers.mariadb import own_mariadb
from tests.servers.mysql import own_mysql
from tests.servers.mysql_process import LocalMySQL
from tests.servers.postgres import LocalPostgres, own_postgres

_RECOVERY = 120.0
"""Seconds in which a server has to be back."""
_AT_WORK = 0.5
"""Seconds of looking for a session that runs a statement; then an idle one is struck."""
_AT_ALL = 20.0
"""Seconds of looking for any session: there is none while all of ours wait for a server that was struck before."""
_SESSIONS = """
    SELECT pid, state = 'active' FROM pg_stat_activity WHERE backend_type = 'client backend'
    AND application_name = 'wiggle' ORDER BY state = 'active' DESC NULLS LAST, random() LIMIT 1
"""

Connection: TypeAlias = "psycopg.Connection[Any] | pymysql.Connection[Any]"  # Any: rows of whatever is asked
"""That by which a session is looked for and struck."""


class StruckServer(ABC):
    """Takes blows, and gets up again."""

    def __init__(self, server: LocalPostgres | LocalMySQL) -> None:
        self.url = server.url
        self._server = server
        self._is_down = False

    def strike(self, blow: Blow) -> bool:
        """Carry out one blow; whether it met anything. Raises RuntimeError when the server does not come back."""
        self.restore()
        match blow:
            case Blow.TERMINATE | Blow.STATEMENT | Blow.BACKEND:
                return self._strike_session(blow)
            case Blow.STOP:
                self._is_down = True
                self._stop_at_once()
            case Blow.SERVER:
                self._is_down = True
                self._server.kill()
            case _:
                assert_never(blow)
        return True

    def restore(self) -> None:
        """Start the server again if a blow ended it, on the data that it left."""
        if self._is_down:
            self._server.start_again()
            self._is_down = False

    def _strike_session(self, blow: Blow) -> bool:
        """Strike a session of ours, one at work if there is any."""
        with self._connected() as connection:
            began = monotonic()
            while True:
                found = self._session(connection)
                if found is not None and (found[1] or monotonic() > began + _AT_WORK):
                    self._end(connection, found[0], blow)
                    return True
                if found is None and monotonic() > began + _AT_ALL:
                    return False
                sleep(0.001)

    def _connected(self) -> AbstractContextManager[Connection]:
        """A connection, once the server has recovered from what struck it before."""
        until = monotonic() + _RECOVERY
        while True:
            try:
                return self._connect()
            except (psycopg.OperationalError, pymysql.OperationalError) as error:
                if monotonic() > until:
                    raise RuntimeError(f"the server did not come back: {error}") from error
                sleep(0.05)

    @abstractmethod
    def _connect(self) -> AbstractContextManager[Connection]:
        """A connection in autocommit."""

    @abstractmethod
    def _session(self, connection: Any) -> tuple[int, bool] | None:  # Any: the product's own
        """The number of a session of ours, and whether it is at work; one at work if there is any."""

    @abstractmethod
    def _end(self, connection: Any, session: int, blow: Blow) -> None:  # Any: the product's own
        """Strike a session, which may be gone."""

    @abstractmethod
    def _stop_at_once(self) -> None:
        """End the server by its own will, with nothing put in order."""


class StruckPostgres(StruckServer):
    """PostgreSQL, where a session is a process."""

    def __init__(self, server: LocalPostgres) -> None:
        super().__init__(server)
        self._postgres = server

    def _connect(self) -> AbstractContextManager[Connection]:
        return psycopg.connect(self.url, autocommit=True)

    def _session(self, connection: psycopg.Connection[Any]) -> tuple[int, bool] | None:
        found = connection.execute(_SESSIONS).fetchone()
        return None if found is None else (found[0], bool(found[1]))

    def _end(self, connection: psycopg.Connection[Any], session: int, blow: Blow) -> None:
        if blow is Blow.BACKEND:
            os.kill(session, signal.SIGKILL)
        else:
            function = "pg_terminate_backend" if blow is Blow.TERMINATE else "pg_cancel_backend"
            connection.execute(f"SELECT {function}(%s)".encode(), (session,))

    def _stop_at_once(self) -> None:
        self._postgres.stop("immediate")


class StruckMySQL(StruckServer):
    """MySQL or MariaDB, where a session is a thread."""

    def __init__(self, server: LocalMySQL) -> None:
        super().__init__(server)
        self._mysql = server

    def _connect(self) -> AbstractContextManager[Connection]:
        return closing(
            pymysql.connect(host="127.0.0.1", port=self._mysql.port, user="wiggle", password="wiggle", autocommit=True)
        )

    def _session(self, connection: pymysql.Connection[Any]) -> tuple[int, bool] | None:
        cursor = connection.cursor()
        cursor.execute("SHOW PROCESSLIST")  # which both products have, the tables with the same are neither's own
        own: int = connection.thread_id()  # type: ignore[no-untyped-call]
        found = [(row[0], row[4] == "Query") for row in cursor.fetchall() if row[1] == "wiggle" and row[0] != own]
        return max(found, key=lambda session: session[1], default=None)

    def _end(self, connection: pymysql.Connection[Any], session: int, blow: Blow) -> None:
        try:
            connection.cursor().execute(f"KILL {'QUERY' if blow is Blow.STATEMENT else 'CONNECTION'} {session}")
        except pymysql.OperationalError as error:
            if error.args[0] != ER.NO_SUCH_THREAD:
                raise

    def _stop_at_once(self) -> None:
        """With `innodb_fast_shutdown=2` what was committed is in the log alone, as after a crash."""
        with self._connected() as connection:
            connection.cursor().execute("SET GLOBAL innodb_fast_shutdown = 2")
        self._mysql.stop()


@contextmanager
def struck_server(product: Product) -> Iterator[StruckServer]:
    """A server of the campaign's own. MySQL and MariaDB write their log with each commit, so that the end of their
    process loses none. Raises Unavailable."""
    match product:
        case Product.POSTGRES:
            with own_postgres() as postgres:
                yield StruckPostgres(postgres)
        case Product.MYSQL | Product.MARIADB:
            own: Callable[[], AbstractContextManager[LocalMySQL]]
            own = own_mysql if product is Product.MYSQL else own_mariadb
            with own() as server:
                yield StruckMySQL(server)
        case _:
            assert_never(product)
