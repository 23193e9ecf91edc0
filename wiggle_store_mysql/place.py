"""Where a MySQL or MariaDB store is: the server, the database and the prefix that a URL names, and the options with
it."""

from __future__ import annotations

import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import ceil, floor
from typing import Any, NoReturn

from pymysql import OperationalError
from pymysql.constants import CR
from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl
from wiggle_core.stores.sql.migrations import TABLE

OPTIONS = {
    "prefix": "wiggle_",
    "pool_size": "10",
    "pool_timeout": "30",
    "statement_timeout": "30",
    "connect_timeout": "10",
}
"""The options that have a default; times in seconds."""

TLS_OPTIONS = ("ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
OTHER_OPTIONS = ("unix_socket", "read_default_file")

_DRIVERS = ("mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql")
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DATABASE = re.compile(r"[^\x00-\x1f`%\U00010000-\U0010ffff]{0,63}[^\x00-\x20`%\U00010000-\U0010ffff]")
_NAME = re.compile(r"\$([a-z_]+)")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

ANSWER_MARGIN = 10
"""Seconds by which an answer may be later than the limit of its statement, before its server is taken for dead."""

# A server that vanished without a word is noticed within a minute, even where a statement may take an hour.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


class Product(StrEnum):
    """What answered. Either scheme of URL may lead to either."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"

    @property
    def collation(self) -> str:
        """The one that compares texts by code point, exactly, and counts spaces at the end (MY4)."""
        return "utf8mb4_0900_bin" if self is Product.MYSQL else "utf8mb4_nopad_bin"

    @property
    def oldest(self) -> tuple[int, ...]:
        """The first version with what the statements need: MySQL's has the collation, MariaDB's SKIP LOCKED."""
        return (8, 0, 17) if self is Product.MYSQL else (10, 6)


@dataclass(frozen=True, slots=True)
class Server:
    """A server's product and version."""

    product: Product
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"

    @staticmethod
    def read(text: str) -> Server:
        """From what a server says of itself, such as `9.7.1` or `5.5.5-10.11.2-MariaDB-log`. MariaDB puts a version
        before its own that old replicas take."""
        is_mariadb = "mariadb" in text.lower()
        own = text.removeprefix("5.5.5-") if is_mariadb else text
        numbers = re.match(r"\d+(\.\d+)*", own)
        version = tuple(map(int, numbers.group().split("."))) if numbers else (0,)
        return Server(Product.MARIADB if is_mariadb else Product.MYSQL, version)


@dataclass(frozen=True, slots=True)
class Place:
    """Tables with a prefix in a database. `parameters` are the driver's, the password among them, so they are never
    shown."""

    url: str
    """As a user would write it for `--store`, without any password."""
    server: str
    database: str
    parameters: dict[str, Any] = field(repr=False)  # Any: each argument of the driver has a type of its own
    prefix: str = "wiggle_"
    pool_size: int = 10
    pool_timeout: float = 30.0
    statement_timeout: float = 30.0

    def __str__(self) -> str:
        return f"the database {self.database!r} on {self.server}"

    @property
    def lock_timeout(self) -> int:
        """Whole seconds to wait for a lock, as the servers count it. Less than a statement may take, so that a change
        which waited in vain ends by the error that tells so: after it nothing is open. MySQL limits the time of
        queries only, so this is also what limits a change there."""
        return max(1, floor(self.statement_timeout) - 2)

    def connection_parameters(self) -> dict[str, Any]:
        """What to connect with, but for the settings of the session. No answer is waited for much longer than its
        statement may take."""
        patience = ceil(self.statement_timeout) + ANSWER_MARGIN
        return self.parameters | {"read_timeout": patience, "write_timeout": patience}


def read_url(url: URL) -> Place:
    """The place that a URL names. Raises InvalidStoreUrl, naming an option that there is not."""
    if url.drivername.lower() not in _DRIVERS:
        raise InvalidStoreUrl(f"{url.drivername!r} is not known: PyMySQL is the only driver, as in mysql+pymysql")
    options = _options(url)
    if not _DATABASE.fullmatch(url.database or ""):
        raise InvalidStoreUrl("the name of a database is expected behind the host, as in mysql://user@host/name")
    prefix = options.get("prefix", OPTIONS["prefix"])
    if not _PREFIX.fullmatch(prefix):
        raise InvalidStoreUrl(
            f"prefix={prefix[:40]!r}: lower-case letters, digits and _ are expected, a letter first, 32 at most"
        )
    return Place(
        url=_shown(url),
        server=_server(url, options),
        database=url.database or "",
        parameters=_parameters(url, options),
        prefix=prefix,
        pool_size=round(_number(options, "pool_size", 1, 1000)),
        pool_timeout=_number(options, "pool_timeout", 0, 3600),
        statement_timeout=_number(options, "statement_timeout", 0.001, 86_400),
    )


def in_place(statement: str, place: Place, product: Product | None = None) -> str:
    """The statement with the names of our tables filled in, and `$collation` where the product is given."""
    text = statement.replace("$collation", product.collation) if product else statement
    return _named(text, place.database, place.prefix)


@lru_cache(maxsize=1024)
def _named(statement: str, database: str, prefix: str) -> str:
    """The book of migrations has the name that it has in every store, with the prefix in place of ours."""
    own = statement.replace(f"${TABLE}", f"${TABLE.removeprefix(OPTIONS['prefix'])}")
    return _NAME.sub(lambda found: f"`{database}`.`{prefix}{found[1]}`", own)


def keep_alive(connected: socket.socket) -> None:
    """Have the kernel look after the peer. Where a kernel does not know an option, the driver's time limits remain."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _options(url: URL) -> dict[str, str]:
    if "charset" in url.query:
        raise InvalidStoreUrl("charset: there is no choice, texts are always sent as utf8mb4; leave it out")
    if "password" in url.query or "passwd" in url.query:
        raise InvalidStoreUrl("a password belongs before the host, user:password@host, or into MYSQL_PWD")
    unknown = sorted(url.query.keys() - {*OPTIONS, *TLS_OPTIONS, *OTHER_OPTIONS})
    if unknown:
        known = ", ".join([*(f"{name}={value}" for name, value in OPTIONS.items()), *TLS_OPTIONS, *OTHER_OPTIONS])
        raise InvalidStoreUrl(f"no option {unknown[0]!r}; there are {known}")
    twice = [name for name, value in url.query.items() if not isinstance(value, str)]
    if twice:
        raise InvalidStoreUrl(f"the option {twice[0]!r} is given twice")
    return {name: value for name, value in url.query.items() if isinstance(value, str)}


def _shown(url: URL) -> str:
    return URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database, url.query
    ).render_as_string()


def _server(url: URL, options: dict[str, str]) -> str:
    if "unix_socket" in options:
        return options["unix_socket"]
    if url.host is None:
        return f"the server of {options['read_default_file']}" if "read_default_file" in options else "this machine"
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{url.port}" if url.port else host


def _parameters(url: URL, options: dict[str, str]) -> dict[str, Any]:
    password = str(url.password) if url.password is not None else os.environ.get("MYSQL_PWD", "")
    found = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        # The driver would encode a text as Latin-1, while accounts are made with UTF-8.
        "password": password.encode(),
        "database": url.database,
        "charset": "utf8mb4",
        "connect_timeout": _number(options, "connect_timeout", 1, 3600),
        "program_name": "wiggle",
    }
    for name in OTHER_OPTIONS:
        found[name] = _file(options, name) if name == "read_default_file" else options.get(name)
    return {name: value for name, value in found.items() if value} | _tls(options)


# TLS


class TlsMode(StrEnum):
    """How much of TLS is asked for, by MySQL's names (https://dev.mysql.com/doc/refman/en/connection-options.html)."""

    DISABLED = "DISABLED"
    PREFERRED = "PREFERRED"
    REQUIRED = "REQUIRED"
    VERIFY_CA = "VERIFY_CA"
    VERIFY_IDENTITY = "VERIFY_IDENTITY"


class _NotInClear:
    """Takes the place of the ways to log in that show the server the password as it is: without TLS, which only
    REQUIRED and more make sure of, anybody on the way could ask for it."""

    def __init__(self, connection: object) -> None:
        pass

    def authenticate(self, packet: object) -> NoReturn:
        raise OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, "the password is not shown without TLS")


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """What the driver is told. It prefers TLS by itself. Its own options verify nothing where a CA is given alone, and
    no name of a host where none is given, so that it gets a finished context."""
    mode = _mode(options)
    if mode in (TlsMode.DISABLED, TlsMode.PREFERRED):
        is_local = "unix_socket" in options
        refused = {} if is_local else {"auth_plugin_map": {"mysql_clear_password": _NotInClear, "dialog": _NotInClear}}
        return refused | ({"ssl_disabled": True} if mode is TlsMode.DISABLED else {})
    files = {name: _file(options, name) for name in ("ssl_ca", "ssl_cert", "ssl_key")}
    try:
        context = ssl.create_default_context(cafile=files["ssl_ca"])
        if files["ssl_cert"]:
            context.load_cert_chain(files["ssl_cert"], files["ssl_key"], password=_no_password)
    except (OSError, ValueError) as error:
        given = ", ".join(name for name, path in files.items() if path)
        raise InvalidStoreUrl(f"{given}: PEM files that belong together, without a password, are expected") from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's own certificates would not pass in Python 3.13
    context.check_hostname = mode is TlsMode.VERIFY_IDENTITY
    if mode is TlsMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def _mode(options: dict[str, str]) -> TlsMode:
    """That of `ssl_mode`, or the one that the other options come down to. As in MySQL's own clients a CA is there to
    be verified with, and a local socket needs no TLS."""
    flags = {name: _boolean(options, name) for name in ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")}
    given = [name for name in TLS_OPTIONS if name in options and name not in ("ssl_mode", "ssl_disabled")]
    named = options.get("ssl_mode", "").upper()
    if named and named not in TlsMode.__members__:
        raise InvalidStoreUrl(f"ssl_mode={named[:40]!r}: one of {', '.join(TlsMode)} is expected")
    if flags["ssl_disabled"] or named == TlsMode.DISABLED:
        if given or named not in ("", TlsMode.DISABLED):
            raise InvalidStoreUrl(f"{(given or ['ssl_mode'])[0]} does not go with TLS being disabled")
        return TlsMode.DISABLED
    if "ssl_key" in options and "ssl_cert" not in options:
        raise InvalidStoreUrl("ssl_key: the certificate that belongs to it is expected as ssl_cert")
    implied = _implied(options, flags)
    if not named:
        return implied
    if named == TlsMode.PREFERRED and given:
        raise InvalidStoreUrl(f"{given[0]} does not go with ssl_mode=PREFERRED, by which TLS may be missing")
    if "ssl_verify_cert" in options or "ssl_verify_identity" in options:
        raise InvalidStoreUrl("ssl_verify_cert, ssl_verify_identity: leave them out, ssl_mode says it all")
    return TlsMode[named]


def _implied(options: dict[str, str], flags: dict[str, bool | None]) -> TlsMode:
    if flags["ssl_verify_identity"]:
        return TlsMode.VERIFY_IDENTITY
    if flags["ssl_verify_cert"] or (flags["ssl_verify_cert"] is None and "ssl_ca" in options):
        return TlsMode.VERIFY_CA
    if "ssl_cert" in options or "ssl_ca" in options:
        return TlsMode.REQUIRED
    return TlsMode.DISABLED if "unix_socket" in options else TlsMode.PREFERRED


def _no_password() -> NoReturn:
    raise ValueError("the key has a password")  # OpenSSL would ask for it at the terminal


# Values of options


def _file(options: dict[str, str], name: str) -> str | None:
    path = options.get(name)
    if path is None:
        return None
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        raise InvalidStoreUrl(f"{name}={path!r}: there is no such file")
    return path


def _boolean(options: dict[str, str], name: str) -> bool | None:
    text = options.get(name)
    if text is None:
        return None
    if text.lower() not in _BOOLEANS:
        raise InvalidStoreUrl(f"{name}={text[:40]!r}: true or false is expected")
    return _BOOLEANS[text.lower()]


def _number(options: dict[str, str], name: str, least: float, most: float) -> float:
    text = options.get(name, OPTIONS[name])
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidStoreUrl(f"{name}={text[:40]!r}: a number from {least:g} to {most:g} is expected")
    return number
