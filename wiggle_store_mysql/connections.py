"""Connections to MySQL and MariaDB: pooled, in autocommit, READ COMMITTED, and alike in all that a meaning hangs on.

PyMySQL puts the values into the text of a statement, so statements are not prepared. Several statements go out in one
packet, and are answered one after the other, which saves the round trips of BEGIN and COMMIT. It has its price: where
KILL QUERY falls between two of them, both products go on with neither the next one nor an answer, and the session ends
with the time limit of the driver, some seconds above that of a statement.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

import pymysql
from pymysql.constants import CLIENT, CR, ER

from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.sql.pool import ProcessPool
from wiggle_store_mysql.errors import CONNECT_ERRORS, DRIVER_ERRORS, translate, translate_refusal
from wiggle_store_mysql.packets import packed
from wiggle_store_mysql.place import Place, Product, Server, in_place, keep_alive

Row: TypeAlias = tuple[Any, ...]  # Any: the driver's types are those of the columns
Connection: TypeAlias = "pymysql.Connection[Any]"  # Any: the class of its cursors
Statement: TypeAlias = tuple[str, Sequence[object]]
"""A text and what it binds."""

FLAGS = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
"""An UPDATE tells how many rows it found, whether or not their values are new (MY7)."""

_BETWEEN = ";\n"
_BYTES_AT_MOST = 8
"""How many bytes a character of a statement and what is between two statements take, with room to spare."""
_LARGEST_PACKET = 1 << 30
"""As max_allowed_packet may be."""

SQL_MODE = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION"
ISOLATION = "READ-COMMITTED"

# What a meaning hangs on, or a bound (MY2, MY9). Times that a statement may take are told in units of the product's
# own; MySQL's holds for questions only. MySQL greets everybody as if in autocommit, whatever its global setting is, and
# so PyMySQL does not ask for it.
_SET_UP = """
    SET SESSION sql_mode = '{sql_mode}', time_zone = '+00:00', innodb_lock_wait_timeout = {lock_timeout},
        lock_wait_timeout = {lock_timeout}, group_concat_max_len = 1048576, {statement_timeout},
        autocommit = 1, completion_type = NO_CHAIN, sql_select_limit = 18446744073709551615, sql_safe_updates = 0,
        sql_big_selects = 1,
        character_set_client = utf8mb4, character_set_results = utf8mb4, character_set_connection = utf8mb4,
        collation_connection = $collation;
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SELECT @@{isolation}, @@max_allowed_packet
"""
_ISOLATION_NAME = {Product.MYSQL: "transaction_isolation", Product.MARIADB: "tx_isolation"}
_STATEMENT_TIMEOUT = {
    Product.MYSQL: lambda seconds: f"max_execution_time = {round(seconds * 1_000)}",
    Product.MARIADB: lambda seconds: f"max_statement_time = {seconds:f}",
}

_SINCE_OLDEST = {
    Product.MYSQL: "since the one before cannot compare texts exactly, trailing spaces included",
    Product.MARIADB: "since the one before knows no SKIP LOCKED",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said to one statement: rows, and how many it found or changed."""

    rows: list[Row]
    count: int


class Session:
    """A connection that is lent out, and the ways to send it statements."""

    def __init__(
        self, connection: Connection, place: Place, server: Server, max_packet: int, *, may_have_applied: bool = False
    ) -> None:
        self.connection = connection
        self.server = server
        self.max_packet = max_packet
        """How many bytes the statements of one round trip may have."""
        self.may_have_applied = may_have_applied
        """Whether something that commits is on its way."""
        self.is_busy = False
        """Whether an answer was not read to its end."""
        self._place = place
        self._cursor = connection.cursor()
        self._is_to_begin = False
        self._is_open = False

    def rows(self, statement: str, binds: Sequence[object] = ()) -> list[Row]:
        """Run a statement that answers with rows."""
        return self.batch([(statement, binds)])[-1].rows

    def run(self, statement: str, binds: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it found or changed."""
        return self.batch([(statement, binds)])[-1].count

    def batch(self, statements: Sequence[Statement]) -> list[Answer]:
        """Run statements in one round trip, or as few as the server's limit of a packet permits; an answer each. Those
        behind one that fails are not run."""
        if not self._is_to_begin:
            return self._sent(statements)
        self._is_to_begin, self._is_open = False, True
        return self._sent([("START TRANSACTION", ()), *statements])[1:]

    def begin(self) -> None:
        """Begin a transaction, along with what is sent next."""
        self._is_to_begin = True

    def commit(self, statements: Sequence[Statement] = ()) -> list[Answer]:
        """Run the last statements of a transaction and commit it, in one round trip."""
        if not self._is_open and not self._is_to_begin:
            return []
        if self._is_to_begin and not statements:
            self._is_to_begin = False
            return []
        self.may_have_applied = True
        answers = self.batch([*statements, ("COMMIT", ())])[:-1]
        self.may_have_applied = self._is_open = False
        return answers

    def roll_back(self) -> None:
        """End a transaction and undo it; where that fails, the connection is thrown away and the server does it."""
        self._is_to_begin = False
        if self._is_open and not self.is_busy:
            with suppress(*DRIVER_ERRORS):
                self._sent([("ROLLBACK", ())])
                self._is_open = False

    @property
    def is_clean(self) -> bool:
        """Whether the connection can be lent out again."""
        return bool(self.connection.open) and not self.is_busy and not self._is_open

    def text(self, statement: str, binds: Sequence[object] = ()) -> str:
        """The statement as it is sent: with its tables and its values."""
        text: str = self._cursor.mogrify(in_place(statement, self._place, self.server.product), tuple(binds))
        return text

    def _sent(self, statements: Sequence[Statement]) -> list[Answer]:
        texts = [self.text(*each) for each in statements]
        return [answer for packet in self._packets(texts) for answer in self._answers(packet)]

    def _packets(self, texts: Sequence[str]) -> list[str]:
        """The statements in packets that the server takes. Upon a longer one it would end the session, and what became
        of the others would be open."""
        if sum(map(len, texts)) * _BYTES_AT_MOST < self.max_packet:
            return [_BETWEEN.join(texts)]
        return [_BETWEEN.join(packet) for packet in packed(texts, self._size_of, self.max_packet - 1)]

    def _size_of(self, text: str) -> int:
        size = len(text.encode()) + len(_BETWEEN)
        if size >= self.max_packet:
            raise pymysql.OperationalError(CR.CR_NET_PACKET_TOO_LARGE)
        return size

    def _answers(self, text: str) -> list[Answer]:
        answers = []
        self.is_busy = True
        try:
            self._cursor.execute(text)
            answers.append(self._answer())
            while self._cursor.nextset():
                answers.append(self._answer())
        except pymysql.MySQLError:
            self.is_busy = False  # the server sends nothing behind an error
            raise
        self.is_busy = False
        return answers

    def _answer(self) -> Answer:
        return Answer(list(self._cursor.fetchall()), self._cursor.rowcount)


class Connections:
    """Gives out sessions; every driver error leaves as a StoreError."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._servers: WeakKeyDictionary[Connection, tuple[Server, int]] = WeakKeyDictionary()
        """What each connection is to, and how many bytes that takes at once."""
        self._pool: ProcessPool[Connection] = ProcessPool(
            place, self._open, _is_alive, size=place.pool_size, timeout=place.pool_timeout
        )

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """For statements that change nothing, each with a snapshot of its own."""
        with self._session(may_have_applied=False) as session:
            yield session

    @contextmanager
    def changing(self) -> Iterator[Session]:
        """For one statement that changes something and commits by itself."""
        with self._session(may_have_applied=True) as session:
            yield session

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """For several statements: committed at the end, rolled back on any exception."""
        with self._session(may_have_applied=False) as session:
            session.begin()
            yield session
            session.commit()

    @contextmanager
    def rolled_back(self) -> Iterator[Session]:
        """For statements that are to change nothing in the end."""
        with self._session(may_have_applied=False) as session:
            session.begin()
            yield session

    def close(self) -> None:
        """Close all connections. In a forked child nothing is closed: they are the parent's."""
        self._pool.close()

    @contextmanager
    def _session(self, *, may_have_applied: bool) -> Iterator[Session]:
        pooled = self._pool.lend()
        connection = cast("Connection", pooled.driver_connection)
        session = Session(connection, self.place, *self._servers[connection], may_have_applied=may_have_applied)
        try:
            yield session
        except DRIVER_ERRORS as error:
            raise translate(error, self.place, may_have_applied=session.may_have_applied) from error
        finally:
            try:
                session.roll_back()
            finally:  # also when Ctrl-C comes while that is under way
                self._pool.take_back(pooled, is_clean=session.is_clean)

    def _open(self) -> Connection:
        connection = connect(self.place)
        try:
            self._servers[connection] = set_up(connection, self.place)
        except BaseException:
            with suppress(*DRIVER_ERRORS):
                connection.close()
            raise
        return connection


def connect(place: Place, *, database: bool = True) -> Connection:
    """A connection of its own, in autocommit, not set up yet; without a database chosen where that may be missing.
    Raises StoreError."""
    arguments = place.connection_parameters()
    if not database:
        del arguments["database"]
    try:
        connection = pymysql.connect(autocommit=True, client_flag=FLAGS, **arguments)
    except CONNECT_ERRORS as error:
        raise translate_refusal(error, place) from error
    keep_alive(_socket(connection))
    return connection


def set_up(connection: Connection, place: Place) -> tuple[Server, int]:
    """Make the session ours, and look whether it is (MY2); the server, and how many bytes it takes at once. Raises
    StoreError for a server that will not do."""
    server = Server.read(str(connection.get_server_info()))  # type: ignore[no-untyped-call]
    product = server.product
    if server.version < product.oldest:
        oldest = ".".join(map(str, product.oldest))
        raise PermanentStoreError(
            f"{place} is {server}: {product} {oldest} or newer is needed, {_SINCE_OLDEST[product]}"
        )
    statement = _SET_UP.format(
        sql_mode=SQL_MODE,
        lock_timeout=place.lock_timeout,
        statement_timeout=_STATEMENT_TIMEOUT[product](place.statement_timeout),
        isolation=_ISOLATION_NAME[product],
    )
    session = Session(connection, place, server, _LARGEST_PACKET)
    try:
        ((isolation, max_packet),) = session.rows(statement)
        if product is Product.MARIADB:
            _let_records_change(session)
    except DRIVER_ERRORS as error:
        raise translate(error, place) from error
    if isolation != ISOLATION:
        raise PermanentStoreError(f"{place} begins sessions as {isolation} and keeps to it: {ISOLATION} is needed")
    return server, int(max_packet)


def _let_records_change(session: Session) -> None:
    """Have a statement lock what changed since it began; it tests the row behind the lock. MariaDB 11.6.2 and newer
    refuse that by default, with error 1020 (MY6); the oldest versions have no such setting."""
    try:
        session.run("SET SESSION innodb_snapshot_isolation = OFF")
    except pymysql.OperationalError as error:
        if error.args[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
            raise


def _socket(connection: Connection) -> socket.socket:
    found: socket.socket = connection._sock  # type: ignore[attr-defined] # PyMySQL has no other way to its socket
    return found


def _is_alive(connection: Connection) -> bool:
    """Whether nothing waits in the socket: between statements a server says nothing but its farewell."""
    if not connection.open:
        return False
    poll = select.poll()
    poll.register(_socket(connection), select.POLLIN)
    return not poll.poll(0)
