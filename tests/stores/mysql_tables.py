"""Tables of the MySQL and MariaDB store that tests use one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
from sqlalchemy import make_url

from tests.stores.mysql_prefixes import fresh_place, open_url, plain
from tests.stores.used_places import UsedPlaces
from wiggle_core.stores.sql.migrations import TABLE
from wiggle_store_mysql.place import Place, in_place, read_url
from wiggle_store_mysql.schema import TABLES

_CLEANING = (
    # Seconds for whom a test left behind in the middle of a transaction.
    "SET SESSION innodb_lock_wait_timeout = 30, lock_wait_timeout = 30",
    "START TRANSACTION",
    *(f"DELETE FROM ${table}" for table in TABLES),
    # What migrations write.
    "INSERT INTO $lane_number (id, epoch, revision, forgotten) VALUES (1, 0, 0, 0)",
    "INSERT INTO $lane_epoch (epoch) VALUES (0)",
    "COMMIT",
)
_COUNT_ANEW = "ALTER TABLE $lane AUTO_INCREMENT = 1"


def used_tables(url: str, prepare: Callable[[str], None] = lambda _: None) -> UsedPlaces:
    """Tables on a server, each with a prefix of its own. `prepare` does what else there is to do to new ones."""

    @contextmanager
    def made() -> Iterator[str]:
        with fresh_place(url) as place:
            with closing(open_url(place)) as store:
                store.migrate()
            prepare(place)
            yield place

    return UsedPlaces(made, _state, _cleaned)


def _state(url: str) -> object:
    place = read_url(make_url(url))
    with plain(url) as connection:
        return _look(connection, place)


def _cleaned(url: str) -> object:
    place = read_url(make_url(url))
    with plain(url) as connection:
        _answers(connection, place, *_CLEANING)
        if "AUTO_INCREMENT=" in str(_answers(connection, place, "SHOW CREATE TABLE $lane")):
            _answers(connection, place, _COUNT_ANEW)
        return _look(connection, place)


def _look(connection: pymysql.Connection[Any], place: Place) -> list[object]:
    like = place.prefix.replace("_", r"\_") + "%"
    return _answers(
        connection,
        place,
        f"SHOW TABLES LIKE '{like}'",
        f"SHOW TRIGGERS LIKE '{like}'",
        *(f"SHOW CREATE TABLE ${table}" for table in (*TABLES, TABLE)),
        *(f"SELECT * FROM ${table}" for table in (*TABLES, TABLE)),
    )


def _answers(connection: pymysql.Connection[Any], place: Place, *statements: str) -> list[object]:
    """What each of the statements answers, in one round trip."""
    with connection.cursor() as cursor:
        cursor.execute(in_place(";\n".join(statements), place))
        answers: list[object] = [cursor.fetchall()]
        while cursor.nextset():
            answers.append(cursor.fetchall())
    return answers
