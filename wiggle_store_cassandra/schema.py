"""The schema of a Cassandra store: the keyspace and its tables, and the space in them that is one installation.

Statements of DDL are harmless when they run again, so that a migration which broke off goes on. Two that ran at once
could make Cassandra disagree with itself, so a lock is held, by a conditional write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from uuid import uuid4

from wiggle_core.errors import SchemaError, StoreError, TransientStoreError
from wiggle_core.stores.sql.migrations import TABLE, load_migrations, pending, require_current
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.order import Kind
from wiggle_store_cassandra.place import COPIES, Place, in_place
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.shards import Shards

MIGRATIONS = load_migrations("wiggle_store_cassandra")
SPACED = ("lane", "settled_hour", "space")
"""Tables whose partition is a space."""

_LOCK_SECONDS = 60
_PATIENCE_SECONDS = 70.0
_LOCK = ".lock"

_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_BOOK = f"""
    CREATE TABLE IF NOT EXISTS ${TABLE} (name text, checksum text, applied_at bigint, PRIMARY KEY (name))
"""
_APPLIED = f"SELECT name, checksum FROM ${TABLE}"
_NOTE = f"INSERT INTO ${TABLE} (name, checksum, applied_at) VALUES (?, ?, ?) IF NOT EXISTS"
_TAKE = f"INSERT INTO ${TABLE} (name, checksum) VALUES ('{_LOCK}', ?) IF NOT EXISTS USING TTL {_LOCK_SECONDS}"
_GIVE = f"DELETE FROM ${TABLE} WHERE name = '{_LOCK}' IF checksum = ?"
_SPACE = "SELECT shards FROM $space WHERE space = ?"
_SHARD = "UPDATE $shard SET epoch = 0, moved = 0, mark = 0 WHERE space = ? AND number = ? IF epoch = NULL"
_FIRST_ROW = f"INSERT INTO $shard (space, number, kind, place) VALUES (?, ?, {Kind.SHARD:d}, 0x)"
_FIRST_LANE = "INSERT INTO $lane (space, id) VALUES (?, 0)"
_LANES = "UPDATE $lane SET epoch = 0, revision = 0, last_id = 0, forgotten = 0 WHERE space = ? IF revision = NULL"
_ADD_SPACE = "INSERT INTO $space (space, shards, made_at) VALUES (?, ?, ?) IF NOT EXISTS"

_RIGHTS = ("SELECT", "MODIFY")


def migrate(connections: Connections, now: int) -> list[str]:
    """Create or upgrade the keyspace, the tables and the space; the names of what was done now. Raises SchemaError."""
    place = connections.place
    if not _is_current(connections):
        connections.define(_keyspace(place, *connections.local_datacenter()))
        connections.learn_replicas()
        _look(connections)
        connections.define(in_place(_BOOK, place))
        with _locked(connections):
            missing = pending(MIGRATIONS, _look(connections), str(place))
            for migration in missing:
                for statement in migration.statements:
                    connections.define(in_place(statement, place))
                connections.applied([(_NOTE, (migration.name, migration.checksum, now))])
        names = [migration.name for migration in missing]
    else:
        names = []
    return names + _make_space(connections, now)


def _is_current(connections: Connections) -> bool:
    return not pending(MIGRATIONS, _look(connections), str(connections.place))


def _make_space(connections: Connections, now: int) -> list[str]:
    """The space row comes last: whoever finds it finds the shards as they have to be."""
    place = connections.place
    if connections.rows(_SPACE, (place.space,)):
        return []
    outcomes = connections.applied_all([[(_SHARD, (place.space, number))] for number in range(place.shards)])
    for each in outcomes:
        if isinstance(each, StoreError):
            raise each
    connections.applied([(_LANES, (place.space,))])
    connections.write([(_FIRST_ROW, (place.space, number)) for number in range(place.shards)])
    connections.write([(_FIRST_LANE, (place.space,))])
    is_made = connections.applied([(_ADD_SPACE, (place.space, place.shards, now))])
    return [f"space {place.space}"] if is_made else []


@contextmanager
def _locked(connections: Connections) -> Iterator[None]:
    """Hold the lock that only migrations take. Who dies with it loses it after a minute."""
    holder, waited = str(uuid4()), 0.0
    while not connections.applied([(_TAKE, (holder,))]):
        if waited >= _PATIENCE_SECONDS:
            raise TransientStoreError(
                f"another process migrates {connections.place} just now: wait for its end, and look again"
            )
        sleep(0.2)
        waited += 0.2
    try:
        yield
    finally:
        connections.applied([(_GIVE, (holder,))])


def verify(shards: Shards) -> None:
    """Raise SchemaError, naming the command that helps, unless the schema is the one this version knows."""
    connections, place = shards.connections, shards.connections.place
    require_current(MIGRATIONS, _look(connections), str(place), place.url)
    shards.there()


def _look(connections: Connections) -> dict[str, str]:
    """The migrations applied. Raises for tables that are not ours, before anything is changed."""
    place = connections.place
    present = {name for (name,) in connections.rows(_TABLES, (place.keyspace,))}
    if not present:
        return {}
    if TABLE not in present:
        raise SchemaError(f"{min(present)} in {place} belongs to another program: name a keyspace of wiggle's own")
    return {name: checksum for name, checksum in connections.rows(_APPLIED) if name != _LOCK}


def _keyspace(place: Place, local_dc: str | None, nodes: int) -> str:
    replication = place.replication_cql(local_dc, nodes)
    return f'CREATE KEYSPACE IF NOT EXISTS "{place.keyspace}" WITH replication = {replication}'


def schema_sql(place: Place) -> str:
    """The statements that `migrate` runs where nothing is there, its own book-keeping included."""
    space = f"'{place.space}'"
    parts = [_keyspace(place, place.local_dc, COPIES), _BOOK.strip()]
    for migration in MIGRATIONS:
        note = f"('{migration.name}', '{migration.checksum}', 0)"
        parts += [
            *migration.statements,
            f"INSERT INTO ${TABLE} (name, checksum, applied_at) VALUES {note} IF NOT EXISTS",
        ]
    parts += [_SHARD.replace("?", space, 1).replace("?", str(number)) for number in range(place.shards)]
    parts += [
        _LANES.replace("?", space),
        f"INSERT INTO $space (space, shards, made_at) VALUES ({space}, {place.shards}, 0) IF NOT EXISTS",
    ]
    return "".join(f"{in_place(part, place)};\n\n" for part in parts)


def role_sql(place: Place, role: str) -> str:
    """The grants for a role that works with the tasks and runs no DDL."""
    name = '"' + role.replace('"', '""') + '"'
    return "".join(f"GRANT {right} ON KEYSPACE {place.keyspace} TO {name};\n" for right in _RIGHTS)


def drop_space(connections: Connections, numbers: range) -> None:
    """Delete all that is in the space: for scratch stores."""
    space = connections.place.space
    hours = connections.rows("SELECT hour, number FROM $settled_hour WHERE space = ?", (space,))
    gone: list[Statement] = [
        ("DELETE FROM $settled WHERE space = ? AND number = ? AND hour = ?", (space, number, hour))
        for hour, number in hours
    ]
    gone += [("DELETE FROM $shard WHERE space = ? AND number = ?", (space, number)) for number in numbers]
    gone += [(f"DELETE FROM ${table} WHERE space = ?", (space,)) for table in SPACED]
    connections.write(gone)
