"""Where a Cassandra store is: the nodes, the keyspace and the space in it that a URL names, and the options with it."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl

PORT = 9042

OPTIONS = {"space": "wiggle", "shards": "16", "timeout": "10", "connect_timeout": "10"}
"""The options that have a default; times in seconds."""

TLS_OPTIONS = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity")
OTHER_OPTIONS = ("local_dc", "replication")

PASSWORD_VARIABLE = "CASSANDRA_PASSWORD"
"""Where the password may stand instead of the URL. The driver and cqlsh know no such variable; every other store of
ours has one, and this is the name that container images use."""

COPIES = 3
"""Of each row, where the data centre has as many nodes: a quorum is then there while one node is not."""

_DRIVERS = ("cassandra", "cassandra+cassandra")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_SYSTEM = re.compile(r"system(_.*)?")
_SPACE = re.compile(r"[A-Za-z0-9_]{1,48}")
_DATACENTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9]+)?")
_NAME = re.compile(r"\$([a-z_]+)")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Tls:
    """How TLS is spoken: which files are used, and whether the address of a node must stand in its certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify_identity: bool = True

    def context(self) -> ssl.SSLContext:
        """A context for the driver. Raises OSError and ValueError for files that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        # Certificates made for a cluster by hand lack what Python 3.13 asks of public ones.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.verify_identity
        return context


@dataclass(frozen=True, slots=True)
class Place:
    """A space in a keyspace of a cluster. Several installations may share a keyspace, each in a space of its own."""

    url: str
    """As a user would write it for `--store`, without any password."""
    hosts: tuple[str, ...]
    keyspace: str
    port: int = PORT
    space: str = "wiggle"
    """Part of every partition's key."""
    local_dc: str | None = None
    """The data centre that is worked with; None for that of the first node that answers."""
    username: str | None = None
    password: str = field(default="", repr=False)
    shards: int = 16
    """Used when the space is first made; from then on the number that is stored counts."""
    replication: tuple[tuple[str, int], ...] = ()
    """Copies by data centre, or by "" for a number alone. Used when the keyspace is made."""
    timeout: float = 10.0
    """Seconds that an answer is waited for."""
    connect_timeout: float = 10.0
    tls: Tls | None = None

    def __str__(self) -> str:
        return f"the keyspace {self.keyspace!r} on {self.server}"

    @property
    def server(self) -> str:
        """The hosts and the port, as the URL has them."""
        return f"{_written(self.hosts)}:{self.port}"

    def replication_cql(self, local_dc: str | None = None, nodes: int = COPIES) -> str:
        """The map behind `WITH replication =` of a new keyspace: what the URL says, else COPIES in the local data
        centre, or as many as it has nodes when they are fewer. Without `local_dc`, in every data centre there is."""
        named = self.replication or ((local_dc or "", max(1, min(COPIES, nodes))),)
        copies = "".join(f", '{dc or 'replication_factor'}': {number}" for dc, number in named)
        return f"{{'class': 'NetworkTopologyStrategy'{copies}}}"


def read_url(url: URL) -> Place:
    """The place that a URL names. Raises InvalidStoreUrl, naming an option that there is not."""
    if url.drivername.lower() not in _DRIVERS:
        raise InvalidStoreUrl(f"{url.drivername!r} is not known: cassandra-driver is the only driver, as in cassandra")
    options = _options(url)
    keyspace = url.database or ""
    if not _KEYSPACE.fullmatch(keyspace):
        raise InvalidStoreUrl(
            "the name of a keyspace is expected behind the hosts, as in cassandra://host1,host2/keyspace: "
            "lower-case letters, digits and _, a letter first, 48 at most"
        )
    if _SYSTEM.fullmatch(keyspace):
        raise InvalidStoreUrl(f"{keyspace!r} is a keyspace of Cassandra's own: name another one")
    space = options.get("space", OPTIONS["space"])
    if not _SPACE.fullmatch(space):
        raise InvalidStoreUrl(f"space={space[:60]!r}: letters, digits and _ are expected, 48 at most")
    if not url.username and url.password is not None:
        raise InvalidStoreUrl("a password without a user: user:password@host is expected")
    hosts = _hosts(url)
    return Place(
        url=_shown(url),
        hosts=hosts,
        keyspace=keyspace,
        port=_port(url),
        space=space,
        local_dc=_datacenter("local_dc", options["local_dc"]) if "local_dc" in options else None,
        username=url.username or None,
        password=_password(url),
        shards=_whole(options, "shards", 1, 1024),
        replication=_replication(options),
        timeout=_number(options, "timeout", 0.001, 86_400),
        connect_timeout=_number(options, "connect_timeout", 0.001, 3600),
        tls=_tls(options),
    )


def in_place(cql: str, place: Place) -> str:
    """The statement with the names of our tables filled in."""
    return _named(cql, place.keyspace)


@lru_cache(maxsize=1024)
def _named(cql: str, keyspace: str) -> str:
    return _NAME.sub(lambda found: f'"{keyspace}"."{found[1]}"', cql)


def _options(url: URL) -> dict[str, str]:
    if "password" in url.query:
        raise InvalidStoreUrl(f"a password belongs before the host, user:password@host, or into {PASSWORD_VARIABLE}")
    unknown = sorted(url.query.keys() - {*OPTIONS, *TLS_OPTIONS, *OTHER_OPTIONS})
    if unknown:
        known = ", ".join([*(f"{name}={value}" for name, value in OPTIONS.items()), *OTHER_OPTIONS, *TLS_OPTIONS])
        raise InvalidStoreUrl(f"no option {unknown[0]!r}; there are {known}")
    twice = [name for name, value in url.query.items() if not isinstance(value, str)]
    if twice:
        raise InvalidStoreUrl(f"the option {twice[0]!r} is given twice")
    return {name: value for name, value in url.query.items() if isinstance(value, str)}


def _shown(url: URL) -> str:
    return URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database, url.query
    ).render_as_string()


def _password(url: URL) -> str:
    if not url.username:
        return ""
    return str(url.password) if url.password is not None else os.environ.get(PASSWORD_VARIABLE, "")


# Hosts


def _hosts(url: URL) -> tuple[str, ...]:
    """SQLAlchemy leaves a list as it is. Of `[::1],[::2]` it takes the outer brackets away."""
    hosts = tuple((url.host or "").replace("],[", ",").split(","))
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong:
        named = f"{wrong[0][:60]!r} is no name of a host: " if wrong[0] else ""
        raise InvalidStoreUrl(
            f"{named}hosts are expected with commas between them and one port for all, as in "
            f"cassandra://host1,host2:{PORT}/keyspace; addresses of IPv6 in brackets, and not beside others"
        )
    return tuple(dict.fromkeys(hosts))


def _port(url: URL) -> int:
    port = PORT if url.port is None else url.port
    if not 1 <= port <= 65_535:
        raise InvalidStoreUrl(f"the port {port}: a number from 1 to 65535 is expected")
    return port


def _written(hosts: tuple[str, ...]) -> str:
    return ",".join(f"[{host}]" if ":" in host else host for host in hosts)


# Replication


def _replication(options: dict[str, str]) -> tuple[tuple[str, int], ...]:
    text = options.get("replication")
    if text is None:
        return ()
    named = [part.rpartition(":") for part in text.split(",")]
    copies = tuple((dc.strip(), int(number)) for dc, _, number in named if re.fullmatch(r"[1-9][0-9]?", number.strip()))
    is_number_alone = len(named) == 1 and not named[0][1]
    names = [dc for dc, _ in copies]
    is_by_name = all(map(_DATACENTER.fullmatch, names)) and len({*names}) == len(names)
    if len(copies) != len(named) or not (is_number_alone or is_by_name):
        raise InvalidStoreUrl(
            f"replication={text[:60]!r}: copies of each row are expected, as in 3, or by data centre, as in dc1:3,dc2:3"
        )
    return copies


def _datacenter(name: str, text: str) -> str:
    if not _DATACENTER.fullmatch(text):
        raise InvalidStoreUrl(
            f"{name}={text[:60]!r}: the name of a data centre is expected, as `nodetool status` has it"
        )
    return text


# TLS


def _tls(options: dict[str, str]) -> Tls | None:
    """With authorities of one's own, the address of a node need not stand in its certificate, as in cqlsh; among the
    public ones it must, for anybody can have a certificate of theirs."""
    wanted = _boolean(options, "ssl")
    given = [name for name in TLS_OPTIONS if name in options and name != "ssl"]
    if wanted is False or (wanted is None and not given):
        if given:
            raise InvalidStoreUrl(f"{given[0]} does not go with ssl=false")
        return None
    if "ssl_key" in options and "ssl_cert" not in options:
        raise InvalidStoreUrl("ssl_key: the certificate that belongs to it is expected as ssl_cert")
    ca, cert, key = (_file(options, name) for name in ("ssl_ca", "ssl_cert", "ssl_key"))
    verify_identity = _boolean(options, "ssl_verify_identity")
    tls = Tls(ca, cert, key, verify_identity=ca is None if verify_identity is None else verify_identity)
    try:
        tls.context()
    except (OSError, ValueError) as error:
        named = ", ".join(name for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options)
        raise InvalidStoreUrl(f"{named}: PEM files that belong together, without a password, are expected") from error
    return tls


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


def _whole(options: dict[str, str], name: str, least: int, most: int) -> int:
    text = options.get(name, OPTIONS[name])
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise InvalidStoreUrl(f"{name}={text[:40]!r}: a whole number from {least} to {most} is expected")
    return int(text)


def _number(options: dict[str, str], name: str, least: float, most: float) -> float:
    text = options.get(name, OPTIONS[name])
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise InvalidStoreUrl(f"{name}={text[:40]!r}: a number from {least:g} to {most:g} is expected")
    return number
