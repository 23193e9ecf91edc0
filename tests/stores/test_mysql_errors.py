"""What goes wrong on MySQL and MariaDB, by its class, with a sentence that names the place and the cure."""

from __future__ import annotations

import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from pymysql import _auth
from sqlalchemy import make_url

from tests.servers.proxy import Proxy
from tests.stores.mysql_prefixes import asked, plain
from tests.stores.postgres_schemas import with_options
from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_store_mysql import errors
from wiggle_store_mysql.connections import Connections, Session, connect
from wiggle_store_mysql.errors import CONNECT_ERRORS, translate, translate_refusal
from wiggle_store_mysql.place import Place, read_url

SECRET = "hunter2"


@pytest.fixture
def table(mysql_like_url: str) -> Iterator[str]:
    """A table with the rows 1 and 2, for statements to go wrong on."""
    name = f"test_{uuid4().hex[:12]}"
    with plain(mysql_like_url) as connection:
        asked(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, body VARCHAR(3) CHARACTER SET utf8mb4)")
        asked(connection, f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
        yield name
        asked(connection, f"DROP TABLE {name}")


@pytest.fixture
def connections(mysql_like_url: str) -> Iterator[Connections]:
    with closing(Connections(place_of(mysql_like_url))) as opened:
        yield opened


def place_of(url: str, **options: str) -> Place:
    return read_url(make_url(with_options(url, **options) if options else url))


def require_discreet(error: StoreError) -> None:
    """No text of a statement and no password is in the message; the driver's error is kept as the cause."""
    text = str(error)
    for word in ("SELECT", "INSERT", "UPDATE", "{}", SECRET, "wiggle:wiggle"):
        assert word not in text
    assert "the database" in text
    assert error.__cause__ is not None


def failure(use: Callable[[], AbstractContextManager[Session]], statement: str) -> StoreError:
    """What a statement ends with."""
    with pytest.raises(StoreError) as caught, use() as session:
        session.run(statement)
    require_discreet(caught.value)
    return caught.value


# Statements


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("SELECT 1 FROM nowhere", SchemaError, "is missing or not as expected: run `wiggle db upgrade --store m"),
        ("SELECT colour FROM {t}", SchemaError, "is missing or not as expected"),
        ("SELECT 1 FROM {t} FORCE INDEX (nothing)", SchemaError, "is missing or not as expected"),
        ("INSERT INTO {t} VALUES (3, 'long')", PermanentStoreError, "a value is given"),
        ("INSERT INTO {t} VALUES (99999999999, 'x')", PermanentStoreError, "a value is given"),
        ("INSERT INTO {t} VALUES ('x', 'x')", PermanentStoreError, "a value is given"),
        ("INSERT INTO {t} VALUES (1, 'x')", PermanentStoreError, "contradicts itself: see `wiggle db check`"),
        ("SELECT FROM WHERE", PermanentStoreError, "refused the work"),
    ],
)
def test_a_statement_that_cannot_work(
    connections: Connections, table: str, statement: str, kind: type[StoreError], message: str
) -> None:
    """What the server refuses is permanent, even where a commit was on its way: it says that nothing was done."""
    for use in (connections.reading, connections.changing):
        error = failure(use, statement.format(t=table))
        assert type(error) is kind
        assert message in str(error)


def test_a_text_that_is_none(connections: Connections) -> None:
    """Half of a surrogate pair is no text: it is refused before it is sent, and the connection goes on."""
    with (
        pytest.raises(PermanentStoreError, match=r"a value is given to .* UnicodeEncodeError"),
        connections.changing() as s,
    ):
        s.rows("SELECT %s", ("\ud800",))
    with connections.reading() as session:
        assert session.rows("SELECT %s", ("ok",)) == [("ok",)]


def test_a_read_only_server_is_named(connections: Connections, table: str) -> None:
    """As a replica answers: tried by a session that may only read."""
    with connections.reading() as session:
        session.run("SET SESSION TRANSACTION READ ONLY")
    error = failure(connections.changing, f"INSERT INTO {table} VALUES (3, 'c')")
    assert type(error) is PermanentStoreError
    assert "is read-only, a replica perhaps: name the primary" in str(error)


def test_a_statement_that_is_too_long(mysql_like_url: str) -> None:
    """Longer than max_allowed_packet: permanent where the server says so, and the cure is named."""
    with plain(mysql_like_url) as connection:
        ((most,),) = asked(connection, "SELECT @@max_allowed_packet")
    if most > 64 * 2**20:
        pytest.skip(f"the server takes {most} bytes at once, more than a test should send")
    with (
        closing(Connections(place_of(mysql_like_url))) as connections,
        pytest.raises(StoreError) as caught,
        connections.reading() as session,
    ):
        session.rows("SELECT length(%s)", ("x" * (most + 1),))
    assert isinstance(caught.value, TransientStoreError) or "raise max_allowed_packet there" in str(caught.value)
    require_discreet(caught.value)


# Others in the way


def test_a_deadlock_is_transient(connections: Connections, table: str) -> None:
    """One of two that wait for each other is rolled back, and may try again."""
    locked = threading.Barrier(2, timeout=30)
    lost: list[StoreError] = []

    def cross(first: int, second: int) -> None:
        with suppress(threading.BrokenBarrierError):
            try:
                with connections.transaction() as session:
                    session.run(f"UPDATE {table} SET body = 'c' WHERE id = {first}")
                    locked.wait()
                    session.run(f"UPDATE {table} SET body = 'd' WHERE id = {second}")
            except StoreError as error:
                lost.append(error)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in lost] == [TransientStoreError]
    assert "was the victim of a deadlock" in str(lost[0])
    require_discreet(lost[0])


def test_a_lock_that_is_not_given_is_transient(mysql_like_url: str, connections: Connections, table: str) -> None:
    """Waited for too long, or not at all: MariaDB has one number for both (MY13)."""
    place = place_of(mysql_like_url, statement_timeout="4")
    with connections.transaction() as holder, closing(Connections(place)) as others:
        holder.run(f"UPDATE {table} SET body = 'c' WHERE id = 1")
        for use in (others.changing, others.transaction):
            for wait in ("", " NOWAIT"):
                error = failure(use, f"SELECT id FROM {table} WHERE id = 1 FOR UPDATE{wait}")
                assert type(error) is TransientStoreError
                assert "a lock on the database" in str(error)


def test_a_question_that_takes_too_long_is_transient(mysql_like_url: str) -> None:
    """Each product has a limit and a number of its own."""
    columns = "information_schema.COLUMNS"
    with closing(Connections(place_of(mysql_like_url, statement_timeout="0.3"))) as connections:
        error = failure(connections.reading, f"SELECT count(*) FROM {columns} a, {columns} b, {columns} c")
    assert type(error) is TransientStoreError
    assert "took too long; `?statement_timeout=SECONDS` gives it more" in str(error)


KILLED = {"KILL QUERY": "an administrator ended a statement", "KILL": "an administrator ended the connection"}


@pytest.mark.parametrize("kill", KILLED)
@pytest.mark.parametrize("commits", [False, True])
def test_an_administrator_ends_it(
    mysql_like_url: str, connections: Connections, table: str, kill: str, commits: bool
) -> None:
    """Transient where nothing commits; open where a change that commits by itself was on its way."""
    waits = f"UPDATE {table} SET body = 'd' WHERE id = 1"
    with connections.transaction() as holder, plain(mysql_like_url) as administrator:
        holder.run(f"UPDATE {table} SET body = 'c' WHERE id = 1")
        ending = threading.Thread(target=end_when_waiting, args=(administrator, waits, kill))
        ending.start()
        error = failure(connections.changing if commits else connections.reading, waits)
        ending.join()
    assert type(error) is (AmbiguousStoreError if commits else TransientStoreError)
    assert KILLED[kill] in str(error) or (kill == "KILL" and "was lost" in str(error))


def end_when_waiting(administrator: pymysql.Connection[Any], statement: str, kill: str) -> None:
    for _ in range(3_000):
        found = asked(administrator, "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO = %s", statement)
        if found:
            asked(administrator, f"{kill} {found[0][0]}")
            return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("is_committing", "kind"), [(False, TransientStoreError), (True, AmbiguousStoreError)], ids=["in it", "at its end"]
)
def test_a_line_that_is_cut(mysql_like_url: str, table: str, is_committing: bool, kind: type[StoreError]) -> None:
    """Lost within a transaction nothing was applied; lost behind a COMMIT nobody knows, and here it was."""
    parts = make_url(mysql_like_url)
    with Proxy(parts.port or 3306) as proxy:
        url = parts.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        with closing(Connections(place_of(url, ssl_mode="DISABLED"))) as connections:
            with connections.reading() as session:
                session.rows("SELECT 1")
            proxy.cut_at = b"COMMIT" if is_committing else b"UPDATE"
            error = failure(connections.transaction, f"UPDATE {table} SET body = 'cut' WHERE id = 1")
    assert type(error) is kind
    assert "the connection to the database" in str(error)
    with plain(mysql_like_url) as connection:
        assert asked(connection, f"SELECT body FROM {table} WHERE id = 1") == [("cut" if is_committing else "a",)]


# Connections


def test_a_wrong_password(mysql_like_url: str) -> None:
    """Permanent, and where it can be set is named; neither it nor the account is shown."""
    url = make_url(mysql_like_url).set(password=SECRET).render_as_string(hide_password=False)
    with pytest.raises(PermanentStoreError, match="refuses this user: check its name and password") as caught:
        connect(place_of(url))
    require_discreet(caught.value)


def test_a_database_that_is_not_there(mysql_like_url: str) -> None:
    """The command that makes it is named."""
    url = make_url(mysql_like_url).set(database="nowhere_at_all").render_as_string(hide_password=False)
    with pytest.raises(SchemaError, match="does not exist: run `wiggle db upgrade --store m") as caught:
        connect(place_of(url))
    require_discreet(caught.value)


@contextmanager
def account(url: str, limit: str = "") -> Iterator[str]:
    """The URL with an account of its own that has no rights."""
    name = f"test_{uuid4().hex[:12]}"
    with plain(url) as connection:
        host = asked(connection, "SELECT USER()")[0][0].rpartition("@")[2]
        asked(connection, f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{SECRET}' {limit}")
        try:
            yield make_url(url).set(username=name, password=SECRET).render_as_string(hide_password=False)
        finally:
            asked(connection, f"DROP USER '{name}'@'{host}'")


def test_an_account_that_may_not(mysql_like_url: str) -> None:
    """The rights that it lacks are named by the command that prints them."""
    with account(mysql_like_url) as url, pytest.raises(PermanentStoreError, match="`wiggle db roles` shows") as caught:
        connect(place_of(url))
    require_discreet(caught.value)


def test_an_account_with_no_connection_left(mysql_like_url: str) -> None:
    """Transient: others end. It is the account's limit that is named, not the server's."""
    with (
        account(mysql_like_url, "WITH MAX_USER_CONNECTIONS 1") as url,
        closing(connect(place_of(url), database=False)),
        pytest.raises(TransientStoreError, match="raise the limits of the account") as caught,
    ):
        connect(place_of(url))
    require_discreet(caught.value)


def test_a_package_that_is_missing(mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL's way to log in needs `cryptography` where there is no TLS; how to install it is told."""
    monkeypatch.setattr(_auth, "_have_cryptography", False)
    with account(mysql_url) as url, pytest.raises(RuntimeError) as raised:
        pymysql.connect(**place_of(url, ssl_mode="DISABLED").connection_parameters())
    assert isinstance(raised.value, CONNECT_ERRORS)
    error = translate_refusal(raised.value, place_of(mysql_url))
    assert isinstance(error, PermanentStoreError)
    assert "pip install 'wiggle-core[mysql]'" in str(error)


def test_nobody_is_there() -> None:
    """A port where nothing listens, and a name that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    for url, message in {
        f"mysql://u@127.0.0.1:{free}/n": "cannot be reached: check that the server runs, and its host and port",
        "mysql://u@nowhere.invalid/n": "the host of the database 'n' on nowhere.invalid is not known",
    }.items():
        with pytest.raises(TransientStoreError, match=message) as caught:
            connect(place_of(url))
        require_discreet(caught.value)


def test_no_socket_is_there() -> None:
    """A local socket is named as it was given. PyMySQL leaves its own end to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(TransientStoreError) as caught:
            connect(place_of("mysql://u@/n?unix_socket=/nowhere/s.sock"))
        require_discreet(caught.value)
        message = str(caught.value)
        del caught
        gc.collect()
    assert "the database 'n' on /nowhere/s.sock cannot be reached" in message


@contextmanager
def saying(greeting: bytes) -> Iterator[str]:
    """A URL where this is said to everybody who comes, and nothing more."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            with client, suppress(OSError):  # gone already
                client.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"mysql://u:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/n"


def refusal(number: int) -> bytes:
    """The packet by which a server refuses a connection, in its own words."""
    packet = b"\xff" + number.to_bytes(2, "little") + f"#HY000INSERT {SECRET}".encode()
    return len(packet).to_bytes(3, "little") + b"\0" + packet


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (1040, TransientStoreError, "has no connection left: lower `\\?pool_size=`, or raise max_connections"),
        (1203, TransientStoreError, "raise max_user_connections"),
        (1053, TransientStoreError, "is shutting down"),
        (1047, TransientStoreError, "is a node of a cluster that takes no work now"),
        (1135, TransientStoreError, "can start no more threads"),
        (3032, TransientStoreError, "is offline for maintenance"),
        (1129, PermanentStoreError, "blocked this host .*FLUSH HOSTS"),
        (1130, PermanentStoreError, "takes no connection from this host"),
        (1698, PermanentStoreError, "make an account with a password"),
        (3159, PermanentStoreError, "takes connections with TLS only: `\\?ssl_mode=REQUIRED`"),
        (3118, PermanentStoreError, "locked the account"),
        (1862, PermanentStoreError, "wants a new password"),
    ],
)
def test_what_a_server_says_instead_of_a_greeting(number: int, kind: type[StoreError], message: str) -> None:
    """What a shared server cannot be brought to say, sent as it would, and read by the driver."""
    with saying(refusal(number)) as url, pytest.raises(StoreError, match=message) as caught:
        connect(place_of(url))
    assert type(caught.value) is kind
    require_discreet(caught.value)


def test_a_server_that_hangs_up() -> None:
    """Transient: it may be starting, or may have too much to do."""
    with saying(b"") as url, pytest.raises(TransientStoreError, match="ended the connection while it was made"):
        connect(place_of(url))


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x05\0\0\0\x0a8.0\0", b"\x01\0\0\0\x0a"])
def test_something_else_answers(greeting: bytes) -> None:
    """Whatever the driver makes of it, it is known as a failure to connect, and leads to host and port."""
    with saying(greeting) as url:
        place = place_of(url, statement_timeout="0.1")
        with pytest.raises(CONNECT_ERRORS) as raised:
            pymysql.connect(**place.connection_parameters())
    error = translate_refusal(raised.value, place)
    assert isinstance(error, (PermanentStoreError, TransientStoreError))
    assert SECRET not in str(error)


# Numbers


TABLES_OF_ERRORS = (errors._TRANSIENT, errors._ENDED, errors._PERMANENT)


def test_each_number_has_one_meaning() -> None:
    """No number is of two classes, so that the order of looking does not decide."""
    numbers = [number for table in (*TABLES_OF_ERRORS, errors._SCHEMA, errors._NETWORK) for number in table]
    assert len(numbers) == len(set(numbers))


CLASSES: dict[int, tuple[type[StoreError], type[StoreError]]] = {
    1020: (TransientStoreError, TransientStoreError),
    1213: (TransientStoreError, TransientStoreError),
    1205: (TransientStoreError, TransientStoreError),
    3572: (TransientStoreError, TransientStoreError),
    3101: (TransientStoreError, TransientStoreError),
    3024: (TransientStoreError, TransientStoreError),
    4031: (TransientStoreError, TransientStoreError),
    1637: (TransientStoreError, TransientStoreError),
    1053: (TransientStoreError, AmbiguousStoreError),
    1317: (TransientStoreError, AmbiguousStoreError),
    1927: (TransientStoreError, AmbiguousStoreError),
    1969: (TransientStoreError, AmbiguousStoreError),
    1180: (TransientStoreError, AmbiguousStoreError),
    2006: (TransientStoreError, AmbiguousStoreError),
    2013: (TransientStoreError, AmbiguousStoreError),
    2014: (TransientStoreError, AmbiguousStoreError),
    2055: (TransientStoreError, AmbiguousStoreError),
    1158: (TransientStoreError, AmbiguousStoreError),
    0: (TransientStoreError, AmbiguousStoreError),
    1021: (PermanentStoreError, PermanentStoreError),
    1114: (PermanentStoreError, PermanentStoreError),
    1153: (PermanentStoreError, PermanentStoreError),
    1290: (PermanentStoreError, PermanentStoreError),
    1836: (PermanentStoreError, PermanentStoreError),
    1406: (PermanentStoreError, PermanentStoreError),
    1665: (PermanentStoreError, PermanentStoreError),
    1146: (SchemaError, SchemaError),
    1054: (SchemaError, SchemaError),
    1049: (SchemaError, SchemaError),
    64_999: (PermanentStoreError, PermanentStoreError),
}


@pytest.mark.parametrize("number", CLASSES)
def test_a_number_has_its_class(number: int) -> None:
    """In a reading, and where a commit was on its way: only a lost or ended session leaves that open."""
    place = read_url(make_url("mysql://h/n"))
    error = pymysql.OperationalError(number, f"INSERT {SECRET}")
    found = tuple(type(translate(error, place, may_have_applied=applied)) for applied in (False, True))
    assert found == CLASSES[number]


@pytest.mark.parametrize(
    "error",
    [
        pymysql.InterfaceError(0, ""),
        pymysql.InternalError("Packet sequence number wrong - got 1 expected 2"),
        pymysql.OperationalError(),
        ConnectionResetError(104, "reset"),
        TimeoutError("timed out"),
    ],
    ids=repr,
)
def test_every_way_in_which_a_connection_is_lost(error: pymysql.MySQLError | OSError) -> None:
    """PyMySQL says it by numbers, by words and by errors of the socket."""
    place = read_url(make_url("mysql://h/n"))
    assert type(translate(error, place)) is TransientStoreError
    assert type(translate(error, place, may_have_applied=True)) is AmbiguousStoreError
