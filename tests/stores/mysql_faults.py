"""Steps that the tests of faults on MySQL and MariaDB share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from sqlalchemy import make_url

from tests.servers.proxy import Proxy
from tests.stores.mysql_prefixes import asked, connect_plainly, open_url
from tests.stores.postgres_schemas import with_options
from tests.stores.test_postgres_facts import TTL, route
from tests.stores.waiting import wait_until
from wiggle_core.errors import StoreError
from wiggle_core.stores.store import ClaimRequest, Store
from wiggle_core.tasks.task import TaskRecord
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.place import in_place
from wiggle_store_mysql.store import MySQLStore

SECRET = "hunter2"
_WORDS = re.compile(rf"\b(SELECT|INSERT|UPDATE|DELETE|COMMIT|SET)\b|{SECRET}|wiggle:wiggle")
# InnoDB shows what it has copied, and copies anew when nobody has read it for 0.1 s.
COPY_AGE = 0.15
"""Who looks again and again waits as long between two looks."""
_IN_TRANSACTION = "SELECT count(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = CONNECTION_ID()"


def claim(store: Store, limit: int = 10, token: str = "") -> list[TaskRecord]:
    return store.claim(ClaimRequest("w", token or uuid4().hex, TTL, limit, (route(),)))


def fails(kind: type[StoreError], words: str, action: Callable[[], object]) -> None:
    """An error of exactly this class, in words that show neither SQL nor a password; its cause is the driver's."""
    with pytest.raises(kind, match=words) as caught:
        action()
    assert type(caught.value) is kind
    require_plain_words(str(caught.value))
    assert caught.value.__cause__ is not None


def require_plain_words(text: str) -> None:
    assert not _WORDS.search(text), text


def require_order(store: MySQLStore) -> None:
    """The pool is usable, none of its connections is in a transaction, and the tasks are in order."""
    with ExitStack() as sessions:
        for _ in range(max(1, store._connections._pool._pools[-1].checkedin())):
            session = sessions.enter_context(store._connections.reading())
            is_free = partial(_is_in_no_transaction, session)
            wait_until(is_free, pause=COPY_AGE)
    assert store.audit() == []


def _is_in_no_transaction(session: Session) -> bool:
    return session.rows(_IN_TRANSACTION) == [(0,)]


def number(store: MySQLStore) -> int:
    """The server's number of the connection that is lent out next."""
    with store._connections.reading() as session:
        return int(session.rows("SELECT CONNECTION_ID()")[0][0])


def is_gone(connection: pymysql.Connection[Any], session: int) -> bool:
    """Whether the server has ended a session."""
    return asked(connection, "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID = %s", session) == [(0,)]


def waiting(connection: pymysql.Connection[Any], store: MySQLStore) -> list[int]:
    """The sessions that wait for the lock of a table, or of all, with a statement about this store's."""
    statement = "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE %s AND STATE LIKE 'Waiting%%'"
    return [int(row[0]) for row in asked(connection, statement, f"%`{store._place.prefix}%")]


@contextmanager
def locked(store: MySQLStore, url: str, table: str) -> Iterator[pymysql.Connection[Any]]:
    """Another program that has locked a table until its connection ends."""
    with closing(connect_plainly(url)) as other:
        asked(other, in_place(f"LOCK TABLES ${table} WRITE", store._place))
        yield other


@contextmanager
def behind_proxy(url: str) -> Iterator[tuple[Proxy, MySQLStore]]:
    """A store behind a line that can be cut."""
    parsed = make_url(with_options(url, ssl_mode="DISABLED"))
    with Proxy(parsed.port or 3306) as proxy:
        through = open_url(parsed.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False))
        yield proxy, through
        through.close()
