"""Schemas of the PostgreSQL store that tests use one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from sqlalchemy import make_url

from tests.stores.postgres_schemas import connect_plainly, fresh_schema, open_url
from tests.stores.used_places import UsedPlaces
from wiggle_core.stores.sql.migrations import TABLE

_TABLES = ("task", "payload", "history", "document", "lane", "lane_epoch", "lane_task")
_CLEANING = (
    *(f"DELETE FROM {{schema}}.{table}" for table in _TABLES),
    # What migrations write, and where they begin to count.
    "INSERT INTO {schema}.lane_epoch VALUES (0, 0, 0, -1)",
    "SELECT setval('{schema}.ready', 1, false), setval('{schema}.lane_id_seq', 1, false)",
)
# Everything that a schema has, and how: relations with their columns and options, constraints, functions, policies.
_OBJECTS = """
    SELECT concat_ws(' ', 'relation', relname, relkind, reloptions, relrowsecurity, relacl) FROM pg_class
    WHERE relnamespace = %(schema)s::text::regnamespace
    UNION ALL
    SELECT concat_ws(' ', 'column', relname, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef)
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid AND relnamespace = %(schema)s::text::regnamespace
    UNION ALL
    SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    AND relnamespace = %(schema)s::text::regnamespace
    UNION ALL
    SELECT concat_ws(' ', 'constraint', conname, pg_get_constraintdef(oid)) FROM pg_constraint
    WHERE connamespace = %(schema)s::text::regnamespace
    UNION ALL
    SELECT concat_ws(' ', pg_get_functiondef(oid), proacl) FROM pg_proc
    WHERE pronamespace = %(schema)s::text::regnamespace
    UNION ALL
    SELECT pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    AND relnamespace = %(schema)s::text::regnamespace
"""


def used_schemas(url: str, prepare: Callable[[str], None] = lambda _: None) -> UsedPlaces:
    """Schemas on a server. `prepare` does what else there is to do to a new one."""

    @contextmanager
    def made() -> Iterator[str]:
        with fresh_schema(url) as place:
            with closing(open_url(place)) as store:
                store.migrate()
            prepare(place)
            yield place

    return UsedPlaces(made, _state, _cleaned)


def _schema(url: str) -> str:
    return str(make_url(url).query["schema"])


def _state(url: str) -> object:
    with connect_plainly(url) as connection:
        return _look(connection, _schema(url))


def _cleaned(url: str) -> object:
    schema = _schema(url)
    with connect_plainly(url) as connection:
        # A second for whom a test left behind in the middle of a transaction.
        connection.execute(f"SET lock_timeout = '30s'; {';'.join(_CLEANING)}".format(schema=schema).encode())
        return _look(connection, schema)


def _look(connection: psycopg.Connection[Any], schema: str) -> list[object]:
    numbers = "SELECT concat_ws(' ', sequencename, last_value) FROM pg_sequences WHERE schemaname = %(schema)s::text"
    rows = [f"SELECT concat_ws(' ', '{table}', row.*) FROM {schema}.{table} AS row" for table in (*_TABLES, TABLE)]
    asked = " UNION ALL ".join([_OBJECTS, numbers, *rows])
    return sorted(connection.execute(asked.encode(), {"schema": schema}).fetchall())
