"""wiggle's store for MySQL and MariaDB: tasks in tables with a prefix of their own, in any database of MySQL 8.0 or
MariaDB 10.6 and newer, by PyMySQL.

    mysql://user:password@host/name           also mysql+pymysql://, mariadb:// and mariadb+pymysql://
    mysql://user@/name?unix_socket=/run/mysqld/mysqld.sock

Options: `?prefix=wiggle_` of the tables, `?pool_size=10` connections a process at most, `?pool_timeout=30` seconds to
wait for one, `?statement_timeout=30` seconds a statement, `?connect_timeout=10` seconds, `?unix_socket=`, and
`?read_default_file=`, a file like ~/.my.cnf for the user, the password and the host. A password may also stand in
MYSQL_PWD.

TLS is used where the server offers it. `?ssl_mode=REQUIRED` insists on it, `VERIFY_CA` and `VERIFY_IDENTITY` verify the
server as well, by `?ssl_ca=` or else by the authorities that this machine trusts; `?ssl_cert=` and `?ssl_key=` show who
we are. PyMySQL's `ssl_verify_cert`, `ssl_verify_identity` and `ssl_disabled` are understood, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import URL

from wiggle_core.tasks.task import Clock

if TYPE_CHECKING:
    from wiggle_store_mysql.store import MySQLStore

__all__ = ["DRIVER", "EXTRA", "LIVE_TESTED", "open_scratch", "open_store"]

DRIVER = "pymysql"
EXTRA = "mysql"
LIVE_TESTED = "MySQL 9.7.4, MariaDB 10.11.19"

# The driver is imported when a store is opened: where it is missing, the plug-in must still be listed.


def open_store(url: URL, *, clock: Clock | None = None) -> MySQLStore:
    """The store that the URL names. Connects to nothing until it is asked something. Raises InvalidStoreUrl."""
    from wiggle_store_mysql.place import read_url  # noqa: PLC0415
    from wiggle_store_mysql.store import MySQLStore  # noqa: PLC0415

    return MySQLStore(read_url(url), clock)


def open_scratch(url: URL, *, clock: Clock | None = None) -> MySQLStore:
    """An empty store with a prefix of its own in the database that the URL names; `close` drops its tables."""
    from wiggle_store_mysql.place import read_url  # noqa: PLC0415
    from wiggle_store_mysql.store import MySQLStore  # noqa: PLC0415

    place = replace(read_url(url), prefix=f"wiggle_scratch_{uuid4().hex[:12]}_")
    return MySQLStore(place, clock, is_scratch=True)
