"""Where a PostgreSQL store is: the servers, the database and the schema that a URL names, and the options with it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from psycopg.pq import Conninfo
from sqlalchemy import URL

from wiggle_core.errors import InvalidSetting, InvalidStoreUrl

OPTIONS = {
    "schema": "wiggle",
    "pool_size": "10",
    "pool_timeout": "30",
    "statement_timeout": "30",
    "pgbouncer": "0",
    "notify": "0",
}
"""Our own options and their defaults; times in seconds. Every other one is libpq's."""

PAGE_COST_VARIABLE = "WIGGLE_PG_RANDOM_PAGE_COST"

_DRIVERS = ("postgresql", "postgres", "postgresql+psycopg", "postgres+psycopg")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# A server that vanished without a word is noticed within a minute; libpq's defaults mean two hours.
_DEFAULTS = {
    "application_name": "wiggle",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# The planner is held to the indexes that the statements were written for, whatever its statistics say (PG5). It plans
# each statement for its own values (PG6): `auto` does, as long as the statement is not one that was prepared.
PLANNER = {
    "plan_cache_mode": "auto",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "on",
    "enable_nestloop": "on",
    "enable_indexscan": "on",
    "enable_tidscan": "on",
    "enable_sort": "off",  # up to 17, an IN over priorities would leave the order of the index, and sort the queue
}
# Times and texts must not depend on how the server, the database or the role is set up. Only speed and time limits hang
# on these, since a pooler that nobody told us of drops them (PG16).
_SETTINGS = PLANNER | {
    "timezone": "UTC",
    "search_path": "pg_catalog",
    "idle_in_transaction_session_timeout": "60000",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A schema in a database. `parameters` are libpq's, the password among them, so they are never shown."""

    url: str
    """As a user would write it for `--store`, without any password."""
    server: str
    database: str
    parameters: dict[str, str] = field(repr=False)
    schema: str = "wiggle"
    pool_size: int = 10
    pool_timeout: float = 30.0
    statement_timeout: float = 30.0
    random_page_cost: float = 1.1
    is_pooled: bool = False
    """Whether a pooler in transaction mode stands between, so that a session is nothing to rely on (PG7)."""
    notifies: bool = False
    """Whether processes tell each other of tasks by NOTIFY (PG8)."""

    def __str__(self) -> str:
        return f"the database {self.database!r} on {self.server}"

    @property
    def quoted_schema(self) -> str:
        return f'"{self.schema}"'

    @property
    def settings(self) -> dict[str, str]:
        """What every statement is to run under."""
        return _SETTINGS | {
            "statement_timeout": str(round(self.statement_timeout * 1000)),
            "random_page_cost": str(self.random_page_cost),
        }

    def connection_parameters(self) -> dict[str, str]:
        """What to connect with. Our settings are part of it, so that they cost no round trip, but for a pooler's
        sake: it would refuse them."""
        parameters = _DEFAULTS | self.parameters | {"client_encoding": "UTF8"}
        if self.is_pooled:
            return parameters
        settings = self.settings | {"default_transaction_isolation": r"read\ committed"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return parameters | {"options": f"{options} {self.parameters.get('options', '')}".strip()}


def read_url(url: URL) -> Place:
    """The place that a URL names. Raises InvalidStoreUrl, naming an option that there is not; InvalidSetting."""
    if url.drivername.lower() not in _DRIVERS:
        raise InvalidStoreUrl(f"{url.drivername!r} is not known: psycopg is the only driver, as in postgresql+psycopg")
    own = {name: _option(url, name) for name in url.query if name in OPTIONS}
    parameters = _libpq_options(url) | _address(url)
    schema = own.get("schema", OPTIONS["schema"])
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidStoreUrl(f"schema={schema[:70]!r}: lower-case letters, digits and _ are expected, 63 at most")
    is_pooled, notifies = (bool(_number(own, name, 0, 1)) for name in ("pgbouncer", "notify"))
    if is_pooled and notifies:
        raise InvalidStoreUrl(
            "notify=1 does not go with pgbouncer=1: who LISTENs needs a session to itself, which a pooler in "
            "transaction mode gives to nobody; name the server itself, or do without"
        )
    return Place(
        url=_shown(url),
        server=_server(parameters),
        database=parameters.get("dbname") or parameters.get("service") or os.environ.get("PGDATABASE", ""),
        parameters=parameters,
        schema=schema,
        pool_size=round(_number(own, "pool_size", 1, 1000)),
        pool_timeout=_number(own, "pool_timeout", 0, 3600),
        statement_timeout=_number(own, "statement_timeout", 0.001, 86_400),
        random_page_cost=_page_cost(),
        is_pooled=is_pooled,
        notifies=notifies,
    )


def _shown(url: URL) -> str:
    query = {name: value for name, value in url.query.items() if "password" not in name}
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query).render_as_string()


def _libpq_options(url: URL) -> dict[str, str]:
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    unknown = sorted(url.query.keys() - OPTIONS.keys() - known)
    if unknown:
        ours = ", ".join(f"{name}={value}" for name, value in OPTIONS.items())
        raise InvalidStoreUrl(f"no option {unknown[0]!r}; there are {ours}, and those of libpq, such as sslmode")
    if "password" in url.query:
        raise InvalidStoreUrl("a password belongs before the host, user:password@host, or into ~/.pgpass or PGPASSWORD")
    return {name: _option(url, name) for name in url.query if name not in (*OPTIONS, "host")}


def _address(url: URL) -> dict[str, str]:
    """Host, port, database and user in libpq's words. `?host=` may name several servers, `host:port` each."""
    found = {"dbname": url.database, "user": url.username, "password": url.password and str(url.password)}
    hosts = url.query.get("host", ())
    if hosts:
        pairs = [_host_and_port(each) for host in ([hosts] if isinstance(hosts, str) else hosts) for each in [host]]
        found["host"] = ",".join(host for host, _ in pairs)
        if any(port for _, port in pairs):
            found["port"] = ",".join(port for _, port in pairs)
    elif url.host:
        found["host"] = unquote(url.host)
    if url.port:
        found["port"] = str(url.port)
    return {name: value for name, value in found.items() if value}


def _host_and_port(text: str) -> tuple[str, str]:
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and port.isdigit() else (text, "")


def _server(parameters: dict[str, str]) -> str:
    host = parameters.get("host") or os.environ.get("PGHOST") or "this machine"
    port = parameters.get("port")
    return f"{host}:{port}" if port and "," not in host else host


def _option(url: URL, name: str) -> str:
    value = url.query[name]
    if not isinstance(value, str):
        raise InvalidStoreUrl(f"the option {name!r} is given twice")
    return value


def _number(options: dict[str, str], name: str, least: float, most: float) -> float:
    text = options.get(name, OPTIONS[name])
    number = _parsed(text)
    if number is None or not least <= number <= most:
        raise InvalidStoreUrl(f"{name}={text[:40]!r}: a number from {least:g} to {most:g} is expected")
    return number


def _page_cost() -> float:
    text = os.environ.get(PAGE_COST_VARIABLE) or "1.1"
    number = _parsed(text)
    if number is None or not 0 <= number <= 1000:
        raise InvalidSetting(PAGE_COST_VARIABLE, f"{text[:40]!r}: a number from 0 to 1000 is expected")
    return number


def _parsed(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
