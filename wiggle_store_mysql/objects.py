"""What migrations make in a database, read from their text, and whether it is there as they made it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wiggle_core.stores.sql.migrations import TABLE, Migration
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.place import OPTIONS, Place, Product

_TABLE = re.compile(r"(?:CREATE TABLE IF NOT EXISTS|ALTER TABLE) \$(\w+)")
_KEY = re.compile(r"\b(PRIMARY )?KEY (\w* ?)\(([^)]*)\)")

_TABLES = "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s"
# An index on the first characters of a column, or on an expression, is not what was made.
_KEYS = """
    SELECT TABLE_NAME, INDEX_NAME, GROUP_CONCAT(
        CASE WHEN SUB_PART IS NULL AND {usable} THEN COLUMN_NAME ELSE '?' END ORDER BY SEQ_IN_INDEX SEPARATOR ', '
    )
    FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s
    GROUP BY TABLE_NAME, INDEX_NAME
"""
_USABLE = {Product.MYSQL: "IS_VISIBLE = 'YES'", Product.MARIADB: "IGNORED = 'NO'"}
# MariaDB keeps JSON as a text in utf8mb4_bin, which is what it makes of the type.
_COLUMNS = """
    SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s AND COLUMN_NAME <> 'attributes' AND COLLATION_NAME <> %s
    ORDER BY TABLE_NAME, COLUMN_NAME
"""


def tables_of(migrations: Sequence[Migration]) -> tuple[str, ...]:
    """The tables that migrations make, as statements name them after the `$`."""
    return tuple(dict.fromkeys(name for each in migrations for name in _TABLE.findall(each.sql)))


def altered_objects(session: Session, place: Place, migrations: Sequence[Migration]) -> list[str]:
    """Tables and indexes that are not there, or are not as they were made, and columns that another collation was
    given (MY4)."""
    expected = _keys_of(place, migrations)
    binds = (place.database, list(expected))
    engines: dict[str, str] = dict(session.rows(_TABLES, binds))
    usable = _USABLE[session.server.product]
    present = {(table, key): columns for table, key, columns in session.rows(_KEYS.format(usable=usable), binds)}
    columns = session.rows(_COLUMNS, (*binds, session.server.product.collation))
    return (
        [f"{table} is missing" for table in sorted(expected.keys() - engines.keys())]
        + [f"{table} is kept by {engine}, not by InnoDB" for table, engine in engines.items() if engine != "InnoDB"]
        + [
            f"the index {key} ({columns}) of {table} is missing, or not as it was made"
            for table, keys in expected.items()
            if table in engines
            for key, columns in keys.items()
            if present.get((table, key)) != columns
        ]
        + [f"{table}.{column} is not in the collation {session.server.product.collation}" for table, column in columns]
    )


def _keys_of(place: Place, migrations: Sequence[Migration]) -> dict[str, dict[str, str]]:
    """The columns of each index of each table, by the names that the database has for them."""
    found = {f"{place.prefix}{TABLE.removeprefix(OPTIONS['prefix'])}": {"PRIMARY": "name"}}
    for statement in (statement for migration in migrations for statement in migration.statements):
        for table in _TABLE.findall(statement):
            keys = found.setdefault(f"{place.prefix}{table}", {})
            keys |= {name.strip() or "PRIMARY": columns for _, name, columns in _KEY.findall(statement)}
    return found
