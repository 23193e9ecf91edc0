"""URLs of the MySQL and MariaDB store, the names of its tables, and how it connects."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.stores.mysql_prefixes import asked, plain
from tests.stores.postgres_schemas import with_options
from wiggle_core.errors import InvalidStoreUrl, PermanentStoreError
from wiggle_store_mysql.connections import Connections, connect
from wiggle_store_mysql.place import Place, Product, Server, in_place, keep_alive, read_url

NOTHING_ELSE = {"host", "port", "user", "password", "database", "unix_socket"}


def place_of(url: str) -> Place:
    return read_url(make_url(url))


# URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://u:p@h:3307/n", {"host": "h", "port": 3307, "user": "u", "password": b"p", "database": "n"}),
        ("mysql+pymysql://h/n", {"host": "h", "database": "n"}),
        ("mariadb://h/n", {"host": "h", "database": "n"}),
        ("mariadb+pymysql://%40u:%2F%3A@h/n", {"host": "h", "user": "@u", "password": b"/:", "database": "n"}),
        ("mysql://u@/n?unix_socket=/run/s.sock", {"user": "u", "database": "n", "unix_socket": "/run/s.sock"}),
        ("mysql://u:p%C3%A4%E2%82%AC@h/n", {"host": "h", "user": "u", "password": "pä€".encode(), "database": "n"}),
    ],
)
def test_a_url_in_the_words_of_the_driver(
    url: str, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All forms of a URL reach PyMySQL as its own arguments; a password in UTF-8, as accounts are made with it."""
    monkeypatch.delenv("MYSQL_PWD", raising=False)
    parameters = place_of(url).connection_parameters()
    assert {name: value for name, value in parameters.items() if name in NOTHING_ELSE} == expected


def test_options_of_ours_set_the_place() -> None:
    """Our options do not reach the driver; what it has of its own waits longer than any statement may take."""
    place = place_of("mysql://h/n?prefix=a_&pool_size=3&pool_timeout=1.5&statement_timeout=2.5&connect_timeout=4")
    assert (place.prefix, place.pool_size, place.pool_timeout, place.statement_timeout) == ("a_", 3, 1.5, 2.5)
    parameters = place.connection_parameters()
    assert parameters["read_timeout"] == parameters["write_timeout"] == 13
    assert parameters["connect_timeout"] == 4
    assert (parameters["program_name"], parameters["charset"]) == ("wiggle", "utf8mb4")
    assert place.lock_timeout == 1
    assert place_of("mysql://h/n").lock_timeout == 28
    assert "prefix" not in parameters


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql+mysqldb://h/n", "'mysql\\+mysqldb' is not known: PyMySQL is the only driver"),
        ("mysql://h", "the name of a database is expected behind the host"),
        ("mysql://h/", "the name of a database is expected"),
        ("mysql://h/a`b", "the name of a database is expected"),
        ("mysql://h/n?colour=red", "no option 'colour'; there are prefix=wiggle_, pool_size=10"),
        ("mysql://h/n?charset=latin1", "charset: there is no choice"),
        ("mysql://h/n?password=x", "a password belongs before the host"),
        ("mysql://h/n?prefix=Wiggle_", "prefix='Wiggle_': lower-case letters"),
        ("mysql://h/n?prefix=1_", "prefix='1_'"),
        ("mysql://h/n?prefix=a%60;DROP", "prefix='a`;DROP'"),
        (f"mysql://h/n?prefix={'a' * 33}", "32 at most"),
        ("mysql://h/n?pool_size=0", "pool_size='0': a number from 1 to 1000"),
        ("mysql://h/n?statement_timeout=nan", "statement_timeout='nan'"),
        ("mysql://h/n?connect_timeout=never", "connect_timeout='never'"),
        ("mysql://h/n?pool_size=1&pool_size=2", "'pool_size' is given twice"),
        ("mysql://h/n?read_default_file=/nowhere/my.cnf", "read_default_file='/nowhere/my.cnf': there is no such file"),
        ("mysql://h/n?ssl_mode=SURE", "ssl_mode='SURE': one of DISABLED, PREFERRED"),
        ("mysql://h/n?ssl_ca=/nowhere/ca.pem", "ssl_ca='/nowhere/ca.pem': there is no such file"),
        ("mysql://h/n?ssl_ca=README.md", "ssl_ca: PEM files that belong together"),
        ("mysql://h/n?ssl_key=README.md", "ssl_key: the certificate that belongs to it"),
        ("mysql://h/n?ssl_disabled=perhaps", "ssl_disabled='perhaps': true or false"),
        ("mysql://h/n?ssl_disabled=1&ssl_ca=README.md", "ssl_ca does not go with TLS being disabled"),
        ("mysql://h/n?ssl_disabled=1&ssl_mode=REQUIRED", "ssl_mode does not go with TLS being disabled"),
        ("mysql://h/n?ssl_mode=PREFERRED&ssl_ca=README.md", "ssl_ca does not go with ssl_mode=PREFERRED"),
        ("mysql://h/n?ssl_mode=REQUIRED&ssl_verify_cert=1", "leave them out, ssl_mode says it all"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, message: str) -> None:
    """An unknown option or value, or one that contradicts another, is refused by name and not ignored."""
    with pytest.raises(InvalidStoreUrl, match=message):
        place_of(url)


def test_no_password_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names the place shows no password, wherever it came from."""
    place = place_of("mysql://u:hunter2@h/n?prefix=a_")
    assert place.url == "mysql://u@h/n?prefix=a_"
    assert str(place) == "the database 'n' on h"
    monkeypatch.setenv("MYSQL_PWD", "hunter2")
    other = place_of("mysql://u@h:3307/n")
    assert other.connection_parameters()["password"] == b"hunter2"
    assert "hunter2" not in f"{place} {place!r} {other} {other!r}"


def test_the_servers_name_in_messages() -> None:
    """A message names what the user would look for: host and port, the socket, or the file that has them."""
    assert place_of("mysql://[::1]:3307/n").server == "[::1]:3307"
    assert place_of("mysql:///n?unix_socket=/run/s.sock").server == "/run/s.sock"
    assert place_of("mysql:///n").server == "this machine"
    assert place_of(f"mysql:///n?read_default_file={__file__}").server == f"the server of {__file__}"


def test_a_file_of_options_has_the_user_and_password(mysql_like_url: str, tmp_path: Path) -> None:
    """`?read_default_file=` is enough to connect, and leaves texts in utf8mb4."""
    parts = make_url(mysql_like_url)
    file = tmp_path / "my.cnf"
    file.write_text(
        f"[client]\nuser={parts.username}\npassword={parts.password}\nhost={parts.host}\nport={parts.port}\n"
        "default-character-set=latin1\n"
    )
    with closing(connect(place_of(f"mysql:///{parts.database}?read_default_file={file}"))) as connection:
        assert asked(connection, "SELECT '€ä', @@character_set_client") == [("€ä", "utf8mb4")]


# Names


def test_tables_have_the_database_and_the_prefix() -> None:
    """Every `$name` is a table of ours; the book of migrations has the prefix in place of ours."""
    place = place_of("mysql://h/my-db?prefix=a_")
    assert in_place("$task JOIN $lane_task", place) == "`my-db`.`a_task` JOIN `my-db`.`a_lane_task`"
    assert in_place("$wiggle_migration", place) == "`my-db`.`a_migration`"
    assert in_place("$wiggle_migration", place_of("mysql://h/n")) == "`n`.`wiggle_migration`"
    assert in_place("COLLATE $collation '$.x'", place, Product.MYSQL) == "COLLATE utf8mb4_0900_bin '$.x'"
    assert in_place("COLLATE $collation", place, Product.MARIADB) == "COLLATE utf8mb4_nopad_bin"


@pytest.mark.parametrize(
    ("text", "shown", "is_old"),
    [
        ("9.7.4", "MySQL 9.7.4", False),
        ("8.0.17-log", "MySQL 8.0.17", False),
        ("8.0.16", "MySQL 8.0.16", True),
        ("5.7.44", "MySQL 5.7.44", True),
        ("5.5.5-10.11.19-MariaDB-0+deb12u1", "MariaDB 10.11.19", False),
        ("5.5.5-10.5.23-MariaDB", "MariaDB 10.5.23", True),
        ("11.8.2-MariaDB-ubu2404", "MariaDB 11.8.2", False),
        ("10.6.0-MARIADB", "MariaDB 10.6.0", False),
    ],
)
def test_product_and_version_are_the_servers_word(text: str, shown: str, is_old: bool) -> None:
    """The scheme of a URL does not tell; the server does, MariaDB behind a version that old replicas take."""
    server = Server.read(text)
    assert str(server) == shown
    assert (server.version < server.product.oldest) is is_old


# Connections


def test_either_scheme_meets_either_product(mysql_like_url: str) -> None:
    """`mysql://` to a MariaDB server works, and the other way round."""
    url = mysql_like_url
    other = url.replace("mysql:", "mariadb:", 1) if url.startswith("mysql:") else url.replace("mariadb:", "mysql:", 1)
    found = set()
    for each in (url, other):
        with closing(Connections(place_of(each))) as connections, connections.reading() as session:
            found.add(session.server)
    assert len(found) == 1


def test_the_kernel_looks_after_the_peer() -> None:
    """A connection by TCP has short keep-alive times; a local socket has none and is let be."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as line:
        keep_alive(line)
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        keep_alive(one)


# TLS


def mode_of(url: str) -> tuple[ssl.VerifyMode | None, bool]:
    """What TLS verifies, None where it is not asked for, and whether the name of the host is part of it."""
    context = place_of(url).connection_parameters().get("ssl")
    return (context.verify_mode, context.check_hostname) if isinstance(context, ssl.SSLContext) else (None, False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", (None, False)),
        ("?ssl_mode=PREFERRED", (None, False)),
        ("?ssl_mode=disabled", (None, False)),
        ("?ssl_mode=REQUIRED", (ssl.CERT_NONE, False)),
        ("?ssl_mode=VERIFY_CA", (ssl.CERT_REQUIRED, False)),
        ("?ssl_mode=VERIFY_IDENTITY", (ssl.CERT_REQUIRED, True)),
        ("?ssl_verify_cert=true", (ssl.CERT_REQUIRED, False)),
        ("?ssl_verify_identity=true", (ssl.CERT_REQUIRED, True)),
        ("?ssl_ca={ca}", (ssl.CERT_REQUIRED, False)),
        ("?ssl_ca={ca}&ssl_verify_cert=false", (ssl.CERT_NONE, False)),
        ("?ssl_ca={ca}&ssl_mode=VERIFY_IDENTITY", (ssl.CERT_REQUIRED, True)),
    ],
)
def test_how_much_of_tls_is_asked_for(options: str, expected: tuple[ssl.VerifyMode | None, bool], ca: Path) -> None:
    """MySQL's modes, and PyMySQL's options by the mode that they come down to. A CA is there to be verified with."""
    assert mode_of(f"mysql://h/n{options.format(ca=ca)}") == expected


def test_tls_can_be_prohibited() -> None:
    """By either name; a local socket has none unless it is asked for."""
    for options in ("ssl_disabled=1", "ssl_mode=DISABLED", "unix_socket=/run/s.sock"):
        assert place_of(f"mysql://h/n?{options}").connection_parameters()["ssl_disabled"] is True
    assert "ssl_disabled" not in place_of("mysql://h/n").connection_parameters()
    assert mode_of("mysql://h/n?unix_socket=/run/s.sock&ssl_mode=REQUIRED") == (ssl.CERT_NONE, False)


def test_tls_is_used_where_the_server_offers_it(mysql_url: str) -> None:
    """Without a word about TLS a session is encrypted, since MySQL makes itself a certificate."""
    cipher = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
    for options, is_encrypted in (({}, True), ({"ssl_mode": "REQUIRED"}, True), ({"ssl_mode": "DISABLED"}, False)):
        with closing(connect(place_of(with_options(mysql_url, **options)))) as connection:
            assert bool(asked(connection, cipher)[0][1]) is is_encrypted


def test_a_certificate_that_nobody_vouches_for_is_refused(mysql_url: str) -> None:
    """The one that MySQL made itself is trusted by no authority that this machine knows."""
    with pytest.raises(PermanentStoreError, match="do not agree on TLS"):
        connect(place_of(with_options(mysql_url, ssl_mode="VERIFY_CA")))


def test_a_certificate_is_verified_by_the_ca_that_is_given(mysql_url: str) -> None:
    """MySQL's own CA vouches for the server, but not for the name 127.0.0.1."""
    with plain(mysql_url) as connection:
        ((folder, name),) = asked(connection, "SELECT @@datadir, @@ssl_ca")
    ca = Path(folder) / (name or "ca.pem")
    if not ca.is_file():
        pytest.skip(f"the server's CA is not a file of this machine: {ca}")
    given = with_options(mysql_url, ssl_ca=str(ca))
    with closing(connect(place_of(given))) as connection:
        assert asked(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
    with pytest.raises(PermanentStoreError, match="do not agree on TLS"):
        connect(place_of(with_options(given, ssl_mode="VERIFY_IDENTITY")))


CLIENT_SSL = 1 << 11


@pytest.mark.parametrize("mode", ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"])
def test_nothing_is_said_to_a_server_without_tls(mysql_url: str, mode: str) -> None:
    """Whoever insists on TLS tells a server that offers none neither a password nor a name."""
    parts = make_url(mysql_url)
    with without_tls(parts.port or 3306) as (port, said):
        url = with_options(parts.set(port=port).render_as_string(hide_password=False), ssl_mode=mode)
        with pytest.raises(PermanentStoreError, match=r"offers no TLS, which `\?ssl_mode=` insists on"):
            connect(place_of(url))
    assert said == []


@contextmanager
def without_tls(target: int) -> Iterator[tuple[int, list[bytes]]]:
    """A port that shows the greeting of a real server without its offer of TLS, and what clients say to it."""
    said: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", target)) as server:
            greeting = bytearray(server.recv(4096))
            behind_version = greeting.index(0, 5) + 1
            low = behind_version + 4 + 8 + 1  # behind the number of the session, the first salt and a filler
            greeting[low + 1] &= ~(CLIENT_SSL >> 8) & 0xFF
            client.sendall(greeting)
            client.settimeout(5)
            if data := client.recv(4096):
                said.append(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1], said
        serving.join()


def asks_in_clear(listener: socket.socket, said: list[bytes]) -> None:
    """A server that offers no TLS, and asks for the password as it is."""
    salt = b"12345678"
    capabilities = 0x0000_F7FF & ~CLIENT_SSL | 0x0008_0000  # with PLUGIN_AUTH
    greeting = b"\x0a8.0.36\0" + b"\1\0\0\0" + salt + b"\0" + (capabilities & 0xFFFF).to_bytes(2, "little")
    greeting += b"\x2d\2\0" + (capabilities >> 16).to_bytes(2, "little") + b"\x15" + b"\0" * 10
    greeting += b"123456789012\0mysql_native_password\0"
    switch = b"\xfemysql_clear_password\0"
    client, _ = listener.accept()
    with client:
        client.settimeout(5)
        client.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
        said.append(client.recv(4096))
        client.sendall(len(switch).to_bytes(3, "little") + b"\2" + switch)
        said.append(client.recv(4096))


def test_a_password_is_never_sent_in_clear() -> None:
    """A server, or somebody on the way, that asks for the password as it is does not get it without TLS."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        asking = threading.Thread(target=asks_in_clear, args=(listener, said), daemon=True)
        asking.start()
        with pytest.raises(PermanentStoreError, match="does not take without TLS"):
            connect(place_of(f"mysql://u:hunter2@127.0.0.1:{listener.getsockname()[1]}/n"))
        asking.join()
    assert len(said) == 2
    assert b"hunter2" not in b"".join(said)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """Any certificate in a file."""
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not authorities:
        pytest.skip("this machine trusts no authority, so that there is no certificate to try")
    path = tmp_path / "ca.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(authorities[0]))
    return path
