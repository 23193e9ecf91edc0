"""A store for wiggle in one append-only file: a line a transaction, everything in memory beside it.

    journal:///tasks.journal     a file, relative to the working directory (journal:////full/path for an absolute one)

Option: `?timeout=SECONDS` to wait for a lock (30). The file belongs on a local disk of a POSIX system. It is an example
of a plug-in, made to be read: start at `store.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl
from wiggle_core.tasks.task import Clock

if TYPE_CHECKING:
    from wiggle_store_journal.store import JournalStore

__all__ = ["DRIVER", "EXTRA", "LIVE_TESTED", "open_scratch", "open_store"]

DRIVER = "fcntl"
EXTRA = ""
LIVE_TESTED = "files on Linux 6"

# The store is imported when it is opened: where the driver is missing (here: Windows), the plug-in is still listed.


def open_store(url: URL, *, clock: Clock | None = None) -> JournalStore:
    """The store that the URL names. Touches no file until it is asked something. Raises InvalidStoreUrl."""
    from wiggle_store_journal.store import JournalStore  # noqa: PLC0415

    path, timeout = _read_url(url)
    return JournalStore(path, timeout, clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> JournalStore:
    """An empty, migrated store in a file of its own beside the one that the URL names; `close` deletes it."""
    from wiggle_store_journal.store import JournalStore  # noqa: PLC0415

    path, timeout = _read_url(url)
    store = JournalStore(f"{path}.scratch-{uuid4().hex[:12]}", timeout, clock, is_scratch=True)
    store.migrate()
    return store


def _read_url(url: URL) -> tuple[str, float]:
    """The path and the seconds to wait for a lock."""
    if any((url.host, url.port, url.username, url.password)) or not url.database:
        raise InvalidStoreUrl("a journal is a file: write journal:///file, or journal:////full/path/to/file")
    unknown = sorted(url.query.keys() - {"timeout"})
    if unknown:
        raise InvalidStoreUrl(f"no option {unknown[0]!r}; there is timeout=seconds")
    text = url.query.get("timeout", "30")
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and int(text) <= 3600):
        raise InvalidStoreUrl("timeout: whole seconds from 0 to 3600 are expected, once")
    return url.database, float(text)
