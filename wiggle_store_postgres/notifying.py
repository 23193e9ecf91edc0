"""LISTEN and NOTIFY: how processes tell each other on which queues tasks became READY (`Notify`).

Never in the transaction that makes them so: NOTIFY holds a lock of the whole cluster until its transaction has been
flushed to disk, so that one would commit at a time (PG8). It gets a transaction of its own, which is not flushed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from psycopg import Notify, sql

from wiggle_store_postgres.connections import connect
from wiggle_store_postgres.errors import DRIVER_ERRORS, translate
from wiggle_store_postgres.place import Place

# A hint need not outlive a crash, and a line is idle for as long as nothing happens.
_SETTINGS = "SELECT set_config('synchronous_commit', 'off', false), set_config('idle_session_timeout', '0', false)"
_TELL = "SELECT pg_notify(%s, queue) FROM unnest(%s::text[]) AS queue"


class PostgresLine:
    """A `Line` on a connection of its own. The channel is named as the schema, the message is a queue's name."""

    def __init__(self, place: Place, *, hears: bool) -> None:
        self._place = place
        self._heard: set[str] = set()
        self._connection = connect(place)
        self._connection.add_notify_handler(self._on_message)
        with self._translated():
            self._connection.execute(_SETTINGS)
            if hears:
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(place.schema)))

    def fileno(self) -> int:
        return self._connection.fileno()

    def tell(self, queues: Collection[str]) -> None:
        with self._translated():
            self._connection.execute(_TELL, (self._place.schema, list(queues)))

    def heard(self) -> set[str]:
        server = self._connection.pgconn
        with self._translated():
            server.consume_input()
            while message := server.notifies():
                self._on_message(Notify(message.relname.decode(), message.extra.decode(), message.be_pid))
        heard, self._heard = self._heard, set()
        return heard

    def close(self) -> None:
        self._connection.close()

    def _on_message(self, message: Notify) -> None:
        """Keep a message, but for those that this process sent: it knows."""
        if message.pid != self._connection.info.backend_pid:
            self._heard.add(message.payload)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DRIVER_ERRORS as error:
            self._connection.close()
            raise translate(error, self._place) from error
