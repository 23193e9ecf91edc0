"""The schema of a MySQL or MariaDB store: how it is made, checked, audited and dropped.

Statements of DDL commit by themselves, so nothing holds a migration together but its statements being harmless when
they run again: one that broke off goes on where the book says that it is not finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256

from wiggle_core.errors import PermanentStoreError, SchemaError, TransientStoreError
from wiggle_core.stores.sql.audit import unreadable_policies
from wiggle_core.stores.sql.migrations import TABLE, load_migrations, pending, require_current
from wiggle_store_mysql import lane_rows
from wiggle_store_mysql.connections import Connections, Session, connect, set_up
from wiggle_store_mysql.errors import DRIVER_ERRORS, is_missing_right, is_unknown_database, translate
from wiggle_store_mysql.moment import moment
from wiggle_store_mysql.objects import altered_objects, tables_of
from wiggle_store_mysql.place import Place, Product, in_place
from wiggle_store_mysql.settings import advice, obstacles, read_settings

MIGRATIONS = load_migrations("wiggle_store_mysql")
TABLES = tables_of(MIGRATIONS)

_PATIENCE = 86_400.0
"""Seconds for a statement over all tasks, such as one of a migration or an audit."""

_LOCK, _UNLOCK = "SELECT GET_LOCK(%s, %s)", "SELECT RELEASE_LOCK(%s)"
_CREATE_DATABASE = "CREATE DATABASE IF NOT EXISTS {} CHARACTER SET utf8mb4 COLLATE $collation"
_PRESENT = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s"
_BOOK = (
    f"CREATE TABLE IF NOT EXISTS ${TABLE} (\n"
    "    name VARCHAR(255) NOT NULL,\n    checksum CHAR(64) NOT NULL,\n    applied_at BIGINT NOT NULL,\n"
    "    PRIMARY KEY (name)\n) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation"
)
_APPLIED = f"SELECT name, checksum FROM ${TABLE}"
_NOTE = f"INSERT INTO ${TABLE} (name, checksum, applied_at) VALUES (%s, %s, {{now}})"

_GRANTS = (
    ("SELECT, INSERT, UPDATE, DELETE", ("task", "document", "lane")),
    ("SELECT, INSERT, DELETE", ("payload", "history", "lane_task", "lane_epoch")),
    ("SELECT, UPDATE", ("lane_number",)),
    ("SELECT", (TABLE,)),
)

_LIVE, _SETTLED = "('SCHEDULED', 'READY', 'RUNNING')", "('DONE', 'FAILED', 'CANCELLED')"
# Both products write the values of an object as a list. The quantifiers are possessive: nothing is tried twice.
_READABLE = r'^\[("[snbt]([^"\\]++|\\.)*+"(, ?)?)*+\]$'
_UNREADABLE = """
    CAST(JSON_TYPE(attributes) AS CHAR) COLLATE $collation <> 'OBJECT'
    OR CAST(JSON_EXTRACT(attributes, '$.*') AS CHAR) COLLATE $collation NOT REGEXP %s
"""
_NO_PAYLOAD = "NOT EXISTS (SELECT 1 FROM $payload AS payload WHERE payload.id = found.id)"
_FINDINGS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("task", f"state NOT IN {_LIVE}", (), "is live in a state that is settled or unknown"),
    ("history", f"state NOT IN {_SETTLED}", (), "is in history in a state that is live or unknown"),
    ("task", "state = 'RUNNING' AND (lease_until IS NULL OR token IS NULL)", (), "is RUNNING without a lease"),
    ("task", "state <> 'RUNNING' AND lease_until IS NOT NULL", (), "has a lease but is not RUNNING"),
    (
        "task",
        "EXISTS (SELECT 1 FROM $history AS history WHERE history.id = found.id)",
        (),
        "is both live and in history",
    ),
    ("task", _NO_PAYLOAD, (), "has no payload"),
    ("history", _NO_PAYLOAD, (), "is in history without its payload"),
    ("task", _UNREADABLE, (_READABLE,), "has attributes that cannot be read"),
    ("history", _UNREADABLE, (_READABLE,), "is in history with attributes that cannot be read"),
    ("task", "priority < 0 OR attempt < 1", (), "has a priority or attempt that no task can have"),
)
_SHOWN = 20
_FINDING = f"SELECT id FROM ${{table}} AS found WHERE {{condition}} LIMIT {_SHOWN}"
_POLICIES = "SELECT DISTINCT retry FROM ${table} WHERE retry IS NOT NULL"
_ORPHANS = """
    SELECT count(*) FROM $payload AS payload
    WHERE NOT EXISTS (SELECT 1 FROM $task AS task WHERE task.id = payload.id)
    AND NOT EXISTS (SELECT 1 FROM $history AS history WHERE history.id = payload.id)
"""
_EPOCHS = """
    SELECT count(*) FROM $lane_number AS number JOIN $lane_epoch AS epoch ON epoch.epoch = number.epoch
    WHERE number.id = 1
"""


def migrate(connections: Connections, now: int | None) -> list[str]:
    """Create or upgrade the schema, and the database where there is none; the names of the migrations applied now.
    Raises SchemaError.

    Two processes may do it at once: what is missing is asked under a lock that only migrations take.
    """
    place = connections.place
    try:
        try:
            return _migrate(place, now)
        except SchemaError as error:
            if not is_unknown_database(error):
                raise
        _create_database(place)
        return _migrate(place, now)
    except PermanentStoreError as error:
        if not is_missing_right(error):
            raise
        raise PermanentStoreError(
            f"this user may not create what is missing in {place}: upgrade as a user with CREATE, ALTER, INDEX, SELECT "
            "and INSERT there, or have one run what `wiggle db sql` prints"
        ) from error.__cause__


def _migrate(place: Place, now: int | None) -> list[str]:
    with _patient(place) as session, _locked(session, place):
        # Behind DDL that waits for a table, everybody else would wait for it, too.
        session.run(f"SET SESSION lock_wait_timeout = {place.lock_timeout}")
        applied = _look(session, place)
        missing = pending(MIGRATIONS, applied, str(place))
        if missing:
            session.run(_BOOK)
        for migration in missing:
            for statement in migration.statements:
                session.run(statement)
            session.run(_NOTE.format(now=moment(now)), (migration.name, migration.checksum))
    return [migration.name for migration in missing]


@contextmanager
def _patient(place: Place) -> Iterator[Session]:
    """A session of its own, for statements that may take their time. What is lost on the way may be begun again."""
    with closing(Connections(replace(place, statement_timeout=_PATIENCE))) as patient, patient.reading() as session:
        yield session


@contextmanager
def _locked(session: Session, place: Place) -> Iterator[None]:
    """Hold the lock that only migrations take. It is the session's, whatever commits meanwhile (on Galera, the node's:
    there two nodes may run the same statements, which does no harm)."""
    name = f"wiggle migrate {sha256(f'{place.database}/{place.prefix}'.encode()).hexdigest()[:40]}"
    if session.rows(_LOCK, (name, place.lock_timeout)) != [(1,)]:
        raise TransientStoreError(f"another process migrates {place} just now: wait for its end, and look again")
    try:
        yield
    finally:
        with suppress(*DRIVER_ERRORS):
            session.rows(_UNLOCK, (name,))


def _create_database(place: Place) -> None:
    with closing(connect(place, database=False)) as connection:
        server, max_packet = set_up(connection, place)
        try:
            Session(connection, place, server, max_packet).run(_CREATE_DATABASE.format(f"`{place.database}`"))
        except DRIVER_ERRORS as error:
            raise translate(error, place) from error


def verify(connections: Connections) -> None:
    """Raise SchemaError, naming the command that helps, unless the schema is the one this version knows."""
    place = connections.place
    with connections.reading() as session:
        applied = _look(session, place)
    require_current(MIGRATIONS, applied, str(place), place.url)


def _look(session: Session, place: Place) -> dict[str, str]:
    """The migrations applied. Raises for tables that are not ours, before anything is changed."""
    book, tables = _name(place, TABLE), [_name(place, table) for table in TABLES]
    present = {name for (name,) in session.rows(_PRESENT, (place.database, [book, *tables]))}
    if present and book not in present:
        raise SchemaError(
            f"{min(present)} in {place} belongs to another program: name another prefix of tables with `?prefix=`"
        )
    return dict(session.rows(_APPLIED)) if present else {}


def _name(place: Place, table: str) -> str:
    return in_place(f"${table}", place).rpartition(".")[2].strip("`")


def audit(connections: Connections) -> list[str]:
    """What is wrong with the schema, the stored data and the server, a sentence each."""
    place = connections.place
    with _patient(place) as session:
        hindering = obstacles(read_settings(session))
        return hindering + (altered_objects(session, place, MIGRATIONS) or _contradictions(session))


def advise(connections: Connections) -> list[str]:
    """What the server's settings cost that may be meant so, a sentence each."""
    with connections.reading() as session:
        return list(advice(read_settings(session)))


def _contradictions(session: Session) -> list[str]:
    found = []
    for table, condition, binds, message in _FINDINGS:
        rows = session.rows(_FINDING.format(table=table, condition=condition), binds)
        found += [f"task {task_id!r} {message}" for (task_id,) in rows]
    tasks = _FINDING.format(table="{table}", condition="retry = %s")
    found += unreadable_policies(session.rows, _POLICIES, tasks, _SHOWN)
    ((orphans,),) = session.rows(_ORPHANS)
    found += [f"{orphans} payloads belong to no task"] if orphans else []
    if session.rows(_EPOCHS) != [(1,)]:
        found.append(
            "the number of the present lanes is missing, so nothing becomes READY: restore the tables of lanes"
        )
    return found + lane_rows.audit(session, _SHOWN)


def schema_sql(place: Place) -> str:
    """The statements that `migrate` runs on an empty database, its own book-keeping included. Nobody is asked what the
    server is: the URL's scheme says it."""
    product = Product.MARIADB if place.url.startswith("mariadb") else Product.MYSQL
    other = "mysql" if product is Product.MARIADB else "mariadb"
    parts = [_BOOK]
    for migration in MIGRATIONS:
        note = f"('{migration.name}', '{migration.checksum}', {moment(None)})"
        parts += [*migration.statements, f"INSERT INTO ${TABLE} (name, checksum, applied_at) VALUES {note}"]
    text = "".join(f"{in_place(part, place, product)};\n\n" for part in parts)
    return f"-- For {product}; name the store by {other}:// for the other product.\n\n{text}"


def role_sql(place: Place, role: str) -> str:
    """The grants for an account that works with the tasks and runs no DDL. `role` is its name; one for a certain host
    is written `name@host`."""
    name, _, host = role.rpartition("@") if "@" in role else (role, "", "%")
    account = "@".join("`" + part.replace("`", "``") + "`" for part in (name, host))
    grants = (f"GRANT {rights} ON ${table} TO " for rights, tables in _GRANTS for table in tables)
    return "".join(f"{in_place(grant, place)}{account};\n" for grant in grants)


def drop(place: Place) -> None:
    """Drop the tables and all that is in them."""
    tables = ", ".join(f"${table}" for table in (*TABLES, TABLE))
    with closing(connect(place)) as connection:
        server, max_packet = set_up(connection, place)
        try:
            Session(connection, place, server, max_packet).run(f"DROP TABLE IF EXISTS {tables}")
        except DRIVER_ERRORS as error:
            raise translate(error, place) from error
