"""The event loop of the driver's connections, chosen on purpose (CA7). Imported before any other module of the driver,
since that cannot be imported at all where it finds no loop to its liking.

libev comes with the driver's wheels for Linux and macOS. Where it is missing, the driver would fall back on asyncore,
which Python 3.12 no longer has, and never on asyncio (apache/cassandra-python-driver#1242). It is asyncio that we take
then, on every version of Python alike; in the driver it works from 3.30 on (#1270).
"""

from __future__ import annotations

import os
import sys
from threading import Lock, Thread
from types import ModuleType
from typing import Any

from cassandra import DependencyException
from cassandra.io.asyncioreactor import AsyncioConnection

_ASYNCORE = "cassandra.io.asyncorereactor"


class AsyncioLoopConnection(AsyncioConnection):  # type: ignore[misc] # the driver has no types
    """The driver's, but for two things: it leaves the caller's own loop alone, and it can be used after a fork."""

    _owner = 0

    @classmethod
    def initialize_reactor(cls) -> None:
        """Start the loop's thread where there is none."""
        if cls._owner != os.getpid():  # a child has its parent's loop, without the thread that runs it
            cls._loop, cls._loop_thread, cls._lock, cls._owner = None, None, Lock(), os.getpid()
        # In a thread of its own: the driver makes its loop the one of the thread that it is started from.
        starting = Thread(target=super().initialize_reactor)
        starting.start()
        starting.join()


def connection_class() -> Any:  # Any: as for all that is the driver's
    """The class of connections to make: those of gevent or eventlet where they took the place of threads and sockets,
    else of libev, else of asyncio."""
    _stand_in()
    from cassandra.cluster import DefaultConnection  # noqa: PLC0415 # cannot be imported before

    return AsyncioLoopConnection if DefaultConnection.__module__ == _ASYNCORE else DefaultConnection


def _stand_in() -> None:
    """Without libev, have the driver find our connections where it looks for those of asyncore."""
    try:
        import cassandra.io.libevreactor  # noqa: F401, PLC0415 # to see whether it can be
    except DependencyException:
        module = ModuleType(_ASYNCORE)
        module.__dict__["AsyncoreConnection"] = AsyncioLoopConnection
        sys.modules.setdefault(_ASYNCORE, module)


_stand_in()
