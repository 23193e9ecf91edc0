"""wiggle's PostgreSQL store: tasks in a schema of their own in any database of PostgreSQL 14 or newer, by psycopg 3.

    postgresql://user:password@host/name          also postgres:// and postgresql+psycopg://
    postgresql:///name?host=/var/run/postgresql   by socket

Options: `?schema=wiggle`, `?pool_size=10` connections a process at most, `?pool_timeout=30` seconds to wait for one,
`?statement_timeout=30` seconds a statement, and all of libpq's own, such as `sslmode`, `sslrootcert`,
`connect_timeout`, `target_session_attrs`, `host` (more than once for several servers). `?pgbouncer=1` for a pooler in
transaction mode between. `?notify=1` to wake the workers of other processes at once. No extension and no superuser is
needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import URL

from wiggle_core.tasks.task import Clock

if TYPE_CHECKING:
    from wiggle_store_postgres.store import PostgresStore

__all__ = ["DRIVER", "EXTRA", "LIVE_TESTED", "open_scratch", "open_store"]

DRIVER = "psycopg"
EXTRA = "postgres"
LIVE_TESTED = "PostgreSQL 18.6, 15.18"

# The driver is imported when a store is opened: where it is missing, the plug-in must still be listed.


def open_store(url: URL, *, clock: Clock | None = None) -> PostgresStore:
    """The store that the URL names. Connects to nothing until it is asked something. Raises InvalidStoreUrl."""
    from wiggle_store_postgres.place import read_url  # noqa: PLC0415
    from wiggle_store_postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore(read_url(url), clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> PostgresStore:
    """An empty store in a schema of its own in the database that the URL names; `close` drops it."""
    from wiggle_store_postgres.place import read_url  # noqa: PLC0415
    from wiggle_store_postgres.store import PostgresStore  # noqa: PLC0415

    place = replace(read_url(url), schema=f"wiggle_scratch_{uuid4().hex[:12]}")
    return PostgresStore(place, clock, is_scratch=True)
