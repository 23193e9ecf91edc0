"""A PostgreSQL server that is struck while it works: sessions and processes of it are ended, and it starts again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from time import monotonic, sleep
from typing import assert_never

import psycopg

from tests.campaign.plan import Blow
from tests.servers.postgres import LocalPostgres

_RECOVERY = 30.0
"""Seconds in which a server has to be back."""
_AT_WORK = 0.5
"""Seconds of looking for a session that runs a statement; then an idle one is struck."""
_SESSIONS = """
    SELECT pid, state FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name = 'wiggle'
    ORDER BY state = 'active' DESC NULLS LAST, random() LIMIT 1
"""


class StruckServer:
    """Takes blows, and gets up again."""

    def __init__(self, server: LocalPostgres) -> None:
        self._server = server
        self._is_down = False

    def strike(self, blow: Blow) -> bool:
        """Carry out one blow; whether it met anything. Raises RuntimeError when the server does not come back."""
        self.restore()
        match blow:
            case Blow.TERMINATE:
                return self._strike_session(
                    lambda connection, backend: connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
                )
            case Blow.BACKEND:
                return self._strike_session(lambda _, backend: os.kill(backend, signal.SIGKILL))
            case Blow.STOP:
                self._is_down = True
                self._server.stop("immediate")
            case Blow.POSTMASTER:
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

    def _strike_session(self, strike: Callable[[psycopg.Connection[tuple[object, ...]], int], object]) -> bool:
        """Strike the backend of a session of ours, one at work if there is any."""
        with self._connected() as connection:
            until = monotonic() + _AT_WORK
            while True:
                found = connection.execute(_SESSIONS).fetchone()
                match found:
                    case (int(backend), state) if state == "active" or monotonic() > until:
                        strike(connection, backend)
                        return True
                    case None if monotonic() > until:
                        return False
                    case _:
                        sleep(0.001)

    def _connected(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection, once the server has recovered from what struck it before."""
        until = monotonic() + _RECOVERY
        while True:
            try:
                return psycopg.connect(self._server.url, autocommit=True)
            except psycopg.OperationalError as error:
                if monotonic() > until:
                    raise RuntimeError(f"the server did not come back: {error}") from error
                sleep(0.05)
