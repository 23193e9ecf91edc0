"""wiggle's store for Cassandra: tasks spread over a cluster of any size, in a keyspace of Cassandra 4.1 and newer, by
cassandra-driver.

    cassandra://host1,host2:9042/keyspace        also cassandra://user:password@host/keyspace

A few nodes are enough: the driver learns of the others. A password may also stand in CASSANDRA_PASSWORD.

Options: `?local_dc=` the data centre to work with, else that of the first node that answers; `?space=wiggle`, a name
that tells several installations in one keyspace apart; `?timeout=10` seconds to wait for an answer, and
`?connect_timeout=10`. What `wiggle db upgrade` makes is told by `?replication=3`, or `dc1:3,dc2:3`, copies of each row,
else three in the local data centre or as many as it has nodes, and by `?shards=16`, into how many parts the tasks are
spread: neither changes what is there.

TLS is used with `?ssl=true`, or where any of its options is given: `?ssl_ca=`, the authorities to trust instead of
those of this machine, `?ssl_cert=` and `?ssl_key=`, who we are, and `?ssl_verify_identity=`, whether the address of a
node must stand in its certificate, which is so unless there is an `ssl_ca`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import URL

from wiggle_core.tasks.task import Clock

if TYPE_CHECKING:
    from wiggle_store_cassandra.store import CassandraStore

__all__ = ["DRIVER", "EXTRA", "LIVE_TESTED", "open_scratch", "open_store"]

DRIVER = "cassandra"
EXTRA = "cassandra"
LIVE_TESTED = "Cassandra 5.0.5"

# The driver is imported when a store is opened: where it is missing, the plug-in must still be listed.


def open_store(url: URL, *, clock: Clock | None = None) -> CassandraStore:
    """The store that the URL names. Connects to nothing until it is asked something. Raises InvalidStoreUrl."""
    from wiggle_store_cassandra import event_loop  # noqa: F401, PLC0415 # before any other module of the driver
    from wiggle_store_cassandra.place import read_url  # noqa: PLC0415
    from wiggle_store_cassandra.store import CassandraStore  # noqa: PLC0415

    return CassandraStore(read_url(url), clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> CassandraStore:
    """An empty store in a space of its own in the keyspace that the URL names; `close` deletes what is in it."""
    from wiggle_store_cassandra import event_loop  # noqa: F401, PLC0415 # before any other module of the driver
    from wiggle_store_cassandra.place import read_url  # noqa: PLC0415
    from wiggle_store_cassandra.store import CassandraStore  # noqa: PLC0415

    place = replace(read_url(url), space=f"scratch_{uuid4().hex[:12]}")
    return CassandraStore(place, clock, is_scratch=True)
