"""wiggle's embedded store: tasks in one SQLite file, shared by any number of processes on one machine.

    sqlite:///wiggle.db        a file, relative to the working directory (sqlite:////full/path for an absolute one)
    sqlite://                  in the memory of this process

Options: `?timeout=SECONDS` to wait for a lock (30), `?synchronous=full|normal` (with normal a power failure may lose
the last commits, though it damages nothing), `?mode=rw|ro`. The file belongs on a local disk: SQLite's write-ahead log
needs memory that all processes share (SQ4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import URL

from wiggle_core.tasks.task import Clock

if TYPE_CHECKING:
    from wiggle_store_sqlite.store import SqliteStore

__all__ = ["DRIVER", "EXTRA", "LIVE_TESTED", "open_scratch", "open_store"]

DRIVER = "sqlite3"
EXTRA = ""
LIVE_TESTED = "SQLite 3.40.1"

# The driver is imported when a store is opened: some builds of Python lack it, and the plug-in must still be listed.


def open_store(url: URL, *, clock: Clock | None = None) -> SqliteStore:
    """The store that the URL names. Touches no file until it is asked something. Raises InvalidStoreUrl."""
    from wiggle_store_sqlite.place import read_url  # noqa: PLC0415
    from wiggle_store_sqlite.store import SqliteStore  # noqa: PLC0415

    return SqliteStore(read_url(url), clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> SqliteStore:
    """An empty store in a file of its own beside the one that the URL names; `close` deletes it."""
    from wiggle_store_sqlite.place import read_url  # noqa: PLC0415
    from wiggle_store_sqlite.store import SqliteStore  # noqa: PLC0415

    place = read_url(url)
    if not place.is_memory:
        suffix = f".scratch-{uuid4().hex[:12]}"
        place = replace(place, path=place.path + suffix, name=place.name + suffix)
    return SqliteStore(place, clock, is_scratch=True)
