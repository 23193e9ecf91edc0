"""The schema of a PostgreSQL store: how it is made, checked, audited and dropped."""

from __future__ import annotations

import re
from contextlib import closing

from wiggle_core.errors import PermanentStoreError, SchemaError
from wiggle_core.stores.sql.audit import unreadable_policies
from wiggle_core.stores.sql.migrations import TABLE, load_migrations, pending, require_current
from wiggle_store_postgres import lane_rows
from wiggle_store_postgres.connections import Connections, Session, connect
from wiggle_store_postgres.errors import DRIVER_ERRORS, translate
from wiggle_store_postgres.moment import moment
from wiggle_store_postgres.place import Place

MIGRATIONS = load_migrations("wiggle_store_postgres")
OLDEST = 140_000
"""PostgreSQL 14 made `extract` exact, on which the database's time in microseconds relies."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_SERVER = """
    SELECT current_setting('server_encoding'), current_setting('server_version_num')::integer,
        EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
        EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($2) AND relname = $3),
        EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($2))
"""
_BOOK = (
    f"CREATE TABLE IF NOT EXISTS $schema.{TABLE} (\n"
    '    name text COLLATE "C" PRIMARY KEY,\n    checksum text NOT NULL,\n    applied_at bigint NOT NULL\n)'
)
_APPLIED = f"SELECT name, checksum FROM $schema.{TABLE}"
_NOTE = f"INSERT INTO $schema.{TABLE} (name, checksum, applied_at) VALUES ($1, $2, {moment('$3')})"
_OBJECTS = """
    SELECT relname, relkind::text, coalesce(indisvalid AND indisready, true)
    FROM pg_class LEFT JOIN pg_index ON indexrelid = pg_class.oid
    WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'p', 'i', 'S')
    UNION ALL SELECT proname, 'f', true FROM pg_proc WHERE pronamespace = to_regnamespace($1)
"""
_COLLATIONS = """
    SELECT relname || '.' || attname FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid JOIN pg_collation ON pg_collation.oid = attcollation
    WHERE relnamespace = to_regnamespace($1) AND relkind = 'r' AND relname <> $2 AND collname <> 'C'
    ORDER BY 1
"""
_CREATED = re.compile(r"(?:CREATE (?:TABLE|INDEX|UNIQUE INDEX|SEQUENCE|FUNCTION)|CONSTRAINT) (\w+)")

_GRANTS = (
    "GRANT USAGE ON SCHEMA $schema TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON $schema.task, $schema.payload, $schema.history TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON $schema.document, $schema.lane, $schema.lane_task TO {role}",
    "GRANT SELECT, UPDATE ON $schema.lane_epoch TO {role}",
    "GRANT USAGE ON SEQUENCE $schema.ready TO {role}",
    "GRANT EXECUTE ON FUNCTION $schema.hold_epoch(bigint) TO {role}",
    f"GRANT SELECT ON $schema.{TABLE} TO {{role}}",
)

_LIVE, _SETTLED = "('SCHEDULED', 'READY', 'RUNNING')", "('DONE', 'FAILED', 'CANCELLED')"
_UNREADABLE = """
    CASE WHEN jsonb_typeof(attributes) = 'object' THEN EXISTS (
        SELECT FROM jsonb_each(attributes) AS each
        WHERE jsonb_typeof(each.value) <> 'string' OR left(each.value #>> '{}', 1) NOT IN ('s', 'n', 'b', 't')
    ) ELSE true END
"""
_NO_PAYLOAD = "NOT EXISTS (SELECT FROM $schema.payload AS payload WHERE payload.id = found.id)"
_FINDINGS = (
    ("task", f"state NOT IN {_LIVE}", "is live in a state that is settled or unknown"),
    ("history", f"state NOT IN {_SETTLED}", "is in history in a state that is live or unknown"),
    ("task", "state = 'RUNNING' AND (lease_until IS NULL OR token IS NULL)", "is RUNNING without a lease"),
    ("task", "state <> 'RUNNING' AND lease_until IS NOT NULL", "has a lease but is not RUNNING"),
    (
        "task",
        "EXISTS (SELECT FROM $schema.history AS history WHERE history.id = found.id)",
        "is both live and in history",
    ),
    ("task", _NO_PAYLOAD, "has no payload"),
    ("history", _NO_PAYLOAD, "is in history without its payload"),
    ("task", _UNREADABLE, "has attributes that cannot be read"),
    ("history", _UNREADABLE, "is in history with attributes that cannot be read"),
    ("task", "priority < 0 OR attempt < 1", "has a priority or attempt that no task can have"),
)
_SHOWN = 20
_FINDING = f"SELECT id FROM $schema.{{table}} AS found WHERE {{condition}} LIMIT {_SHOWN}"
_POLICIES = "SELECT DISTINCT retry FROM $schema.{table} WHERE retry IS NOT NULL"
_ORPHANS = """
    SELECT count(*) FROM $schema.payload AS payload
    WHERE NOT EXISTS (SELECT FROM $schema.task AS task WHERE task.id = payload.id)
    AND NOT EXISTS (SELECT FROM $schema.history AS history WHERE history.id = payload.id)
"""


def migrate(connections: Connections, now: int | None) -> list[str]:
    """Create or upgrade the schema; the names of the migrations applied now. Raises SchemaError.

    Two processes may do it at once: what is missing is asked under a lock that only migrations take.
    """
    place = connections.place
    with connections.transaction() as session:
        session.run("SET LOCAL statement_timeout = 0")
        session.rows(_LOCK, (f"wiggle migrate {place.schema}",))
        has_schema, applied = _look(session, place)
        missing = pending(MIGRATIONS, applied, str(place))
        if missing and not has_schema:
            session.run("CREATE SCHEMA $schema")
        if missing:
            session.run(_BOOK)
            # Migrations name no schema, but for what is in functions; everything else does.
            session.run("SET LOCAL search_path = $schema, pg_catalog")
        for migration in missing:
            for statement in migration.statements:
                session.run(statement)
            session.run(_NOTE, (migration.name, migration.checksum, now))
    return [migration.name for migration in missing]


def verify(connections: Connections) -> None:
    """Raise SchemaError, naming the command that helps, unless the schema is the one this version knows."""
    place = connections.place
    with connections.reading() as session:
        _, applied = _look(session, place)
    require_current(MIGRATIONS, applied, str(place), place.url)


def _look(session: Session, place: Place) -> tuple[bool, dict[str, str]]:
    """Whether the schema is there, and the migrations applied to it. Raises for a server or a schema that will not
    do, before anything is changed."""
    binds = (place.schema, place.quoted_schema, TABLE)
    ((encoding, version, has_schema, has_book, has_tables),) = session.rows(_SERVER, binds)
    if encoding != "UTF8":  # LIKE's `_` would be a byte, and not every text could be stored (PG15)
        raise PermanentStoreError(
            f"{place} has the encoding {encoding}: create one with ENCODING 'UTF8' TEMPLATE template0"
        )
    if version < OLDEST:
        raise PermanentStoreError(f"{place} is PostgreSQL {version // 10_000}: version 14 or newer is needed")
    if has_tables and not has_book:
        raise SchemaError(
            f"the schema {place.schema!r} of {place} belongs to another program: name another one with `?schema=`"
        )
    return has_schema, dict(session.rows(_APPLIED)) if has_book else {}


def audit(connections: Connections) -> list[str]:
    """What is wrong with the database, the schema and the stored data, a sentence each."""
    with connections.transaction() as session:
        session.run("SET LOCAL statement_timeout = 0")
        session.run("SET LOCAL enable_seqscan = on")
        session.run("SET LOCAL enable_sort = on")
        found = _altered_objects(session, connections.place)
        return found or _contradictions(session)


def _altered_objects(session: Session, place: Place) -> list[str]:
    """Tables and indexes that are not there, or not in use, and columns that another collation was given (PG10)."""
    expected = {name for migration in MIGRATIONS for name in _CREATED.findall(migration.sql)}
    present = {name: is_valid for name, _, is_valid in session.rows(_OBJECTS, (place.quoted_schema,))}
    columns = session.rows(_COLLATIONS, (place.quoted_schema, TABLE))
    return (
        [f"{name} is missing" for name in sorted(expected - present.keys())]
        + [f"{name} is not valid: REINDEX it" for name in sorted(present) if not present[name]]
        + [f'{name} is not in the collation "C"' for (name,) in columns]
    )


def _contradictions(session: Session) -> list[str]:
    found = []
    for table, condition, message in _FINDINGS:
        rows = session.rows(_FINDING.format(table=table, condition=condition))
        found += [f"task {task_id!r} {message}" for (task_id,) in rows]
    tasks = _FINDING.format(table="{table}", condition="retry = $1")
    found += unreadable_policies(session.rows, _POLICIES, tasks, _SHOWN)
    ((orphans,),) = session.rows(_ORPHANS)
    return found + ([f"{orphans} payloads belong to no task"] if orphans else []) + lane_rows.audit(session, _SHOWN)


def schema_sql(place: Place) -> str:
    """The statements that `migrate` runs on an empty database, its own book-keeping included."""
    parts = ["BEGIN", "CREATE SCHEMA $schema", _BOOK, "SET LOCAL search_path = $schema, pg_catalog"]
    for migration in MIGRATIONS:
        note = f"('{migration.name}', '{migration.checksum}', {moment('NULL')})"
        parts += [*migration.statements, f"INSERT INTO $schema.{TABLE} (name, checksum, applied_at) VALUES {note}"]
    text = "".join(f"{part};\n\n" for part in [*parts, "COMMIT"])
    return text.replace("$schema", place.quoted_schema)


def role_sql(place: Place, role: str) -> str:
    """The grants for a role that works with the tasks, owns nothing and runs no DDL."""
    named = '"' + role.replace('"', '""') + '"'
    return "".join(f"{grant.format(role=named)};\n" for grant in _GRANTS).replace("$schema", place.quoted_schema)


def drop(place: Place) -> None:
    """Drop the schema and all that is in it."""
    with closing(connect(place)) as connection:
        try:
            Session(connection, place).run("DROP SCHEMA IF EXISTS $schema CASCADE")
        except DRIVER_ERRORS as error:
            raise translate(error, place) from error
