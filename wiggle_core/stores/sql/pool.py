"""The connections of one process to a server: lent out one by one, none that is known to be dead, and left to the
parent by a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from wiggle_core.errors import PermanentStoreError, TransientStoreError

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import PoolProxiedConnection

C = TypeVar("C")


class ProcessPool(Generic[C]):
    """At most `size` connections a process; who wants one more waits `timeout` seconds. `place` is for messages."""

    def __init__(
        self,
        place: object,
        open_connection: Callable[[], C],
        is_alive: Callable[[C], bool],
        *,
        size: int,
        timeout: float,
    ) -> None:
        """`is_alive` is asked of a connection before it is lent, and must not ask the server."""
        self._place = place
        self._open_connection = open_connection
        self._is_alive = is_alive
        self._size = size
        self._timeout = timeout
        self._is_closed = False
        self._pools: list[QueuePool] = []
        self._process = -1
        self._use_own_pool()

    def lend(self) -> PoolProxiedConnection:
        """A connection that is alive as far as can be known without asking the server. Raises StoreError.

        What the server said while the connection lay idle, its end above all, waits in the socket. Without a look at
        it the first claim after a restart would fail, and a write even with its outcome unknown.
        """
        if self._is_closed:
            raise PermanentStoreError(f"{self._place} was closed by this program: open the store again")
        if os.getpid() != self._process:
            self._use_own_pool()
        while True:
            try:
                pooled = self._pools[-1].connect()
            except PoolTimeout as error:
                raise TransientStoreError(
                    f"all connections to {self._place} are kept busy by other threads of this process: raise "
                    "`?pool_size=`, or `?pool_timeout=` to wait longer"
                ) from error
            if self._is_alive(cast("C", pooled.driver_connection)):
                return pooled
            pooled.invalidate()
            pooled.close()

    def take_back(self, pooled: PoolProxiedConnection, *, is_clean: bool) -> None:
        """Keep a connection for the next one, or throw it away unless it is as it was lent."""
        if self._is_closed or not is_clean:
            pooled.invalidate()
        pooled.close()

    def close(self) -> None:
        """Close all connections. In a forked child nothing is closed: they are the parent's."""
        self._is_closed = True
        if os.getpid() == self._process:
            self._pools[-1].dispose()

    def _use_own_pool(self) -> None:
        """Begin with a pool of this process: a socket cannot be shared with the process that forked it. The other
        pools are kept, since forgetting them here would say good-bye over the parent's connections."""
        pool = QueuePool(
            lambda: cast("DBAPIConnection", self._open_connection()),
            pool_size=self._size,
            max_overflow=0,
            timeout=self._timeout,
            use_lifo=True,
            reset_on_return=None,
        )
        self._pools.append(pool)
        self._process = os.getpid()
