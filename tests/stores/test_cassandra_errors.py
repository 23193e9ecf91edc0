"""What goes wrong on Cassandra, by its class, with a sentence that names the place and the cure (CA3)."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import with_options
from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)

from wiggle_store_cassandra.connections import Connections  # isort: skip # before the driver

from cassandra import (
    AuthenticationFailed,
    CDCWriteFailure,
    ConsistencyLevel,
    FunctionFailure,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnsupportedOperation,
    WriteFailure,
    WriteTimeout,
    WriteType,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown, ProtocolError
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ServerError,
    TruncateError,
)

from wiggle_store_cassandra.errors import DRIVER_ERRORS, failure
from wiggle_store_cassandra.place import Place, read_url

SECRET = "hunter2"
PLACE = read_url(make_url(f"cassandra://u:{SECRET}@h1,h2/k"))
QUORUM, SERIAL = ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.LOCAL_SERIAL


def place_of(url: str, **options: str) -> Place:
    return read_url(make_url(with_options(url, **options)))


def require_discreet(error: StoreError) -> None:
    """No text of a statement and no password is in the message, which names the place."""
    text = str(error)
    for word in ("SELECT", "INSERT", "{}", "None", SECRET):
        assert word not in text
    assert "the keyspace 'k" in text or "event loop" in text


def refusal(url: str, **options: str) -> StoreError:
    """What the first question to a place ends with."""
    with closing(Connections(place_of(url, **options))) as connections, pytest.raises(StoreError) as caught:
        connections.now()
    require_discreet(caught.value)
    assert isinstance(caught.value.__cause__, DRIVER_ERRORS)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


# Places that cannot be reached


def test_a_port_where_nobody_listens() -> None:
    """It may come back: transient, and the message says what to check."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening
        error = refusal(f"cassandra://u:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/k")
    assert type(error) is TransientStoreError
    assert "cannot be reached: check that its nodes run, and the hosts and the port" in str(error)


def test_a_host_that_is_not_known() -> None:
    """A name may be known in a moment, as when containers start."""
    error = refusal(f"cassandra://u:{SECRET}@nowhere.invalid,elsewhere.invalid/k")
    assert type(error) is TransientStoreError
    assert "no host of the keyspace 'k' on nowhere.invalid,elsewhere.invalid:9042 is known" in str(error)


@pytest.mark.parametrize("option", [{}, {"ssl": "true"}], ids=["plain", "tls"])
def test_a_server_that_says_nothing(option: dict[str, str]) -> None:
    """Whoever takes connections and does not answer is given up after `?connect_timeout=`, and may be back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = refusal(f"cassandra://127.0.0.1:{server.getsockname()[1]}/k", connect_timeout="0.3", **option)
    assert type(error) is TransientStoreError
    assert "cannot be reached" in str(error)
    assert ("it may take TLS alone, `?ssl=true`" in str(error)) == (not option)


def test_one_host_of_several_is_enough(cassandra_url: str) -> None:
    """Nodes that are away do not matter as long as one answers."""
    url = make_url(cassandra_url).set(host=f"127.0.0.9,{make_url(cassandra_url).host}")
    with closing(Connections(read_url(url))) as connections:
        assert connections.now() > 0


def test_a_data_centre_that_is_not_there(cassandra_url: str) -> None:
    """Permanent, and the message tells those that are."""
    error = refusal(str(make_url(cassandra_url).set(database="k")), local_dc="elsewhere")
    assert type(error) is PermanentStoreError
    assert "is in the data centre 'elsewhere'; there are: datacenter1" in str(error)


def test_a_node_without_tls(cassandra_url: str) -> None:
    """`?ssl=true` is insisted on: nothing is said in the clear."""
    error = refusal(str(make_url(cassandra_url).set(database="k")), ssl="true")
    assert type(error) is PermanentStoreError
    assert "do not agree on TLS: check `?ssl=true`" in str(error)


# Statements that cannot work


@pytest.fixture(scope="module")
def connections(cassandra_url: str) -> Iterator[Connections]:
    """A keyspace with one table."""
    name = f"k_{uuid4().hex[:12]}"
    with closing(Connections(read_url(make_url(cassandra_url).set(database=name, query={})))) as opened:
        opened.define(f"CREATE KEYSPACE {name} WITH replication = {opened.place.replication_cql(nodes=1)}")
        opened.define(f"CREATE TABLE {name}.thing (a text PRIMARY KEY, b int, c text)")
        yield opened
        opened.define(f"DROP KEYSPACE {name}")


@pytest.mark.parametrize(
    ("cql", "binds", "kind", "message"),
    [
        ("SELECT a FROM nowhere.thing", (), SchemaError, "are missing or not as expected: run `wiggle db upgrade"),
        ("SELECT a FROM $nothing", (), SchemaError, "are missing or not as expected"),
        ("SELECT colour FROM $thing", (), SchemaError, "are missing or not as expected"),
        ("INSERT INTO $thing (a, colour) VALUES (?, ?)", ("a", 1), SchemaError, "are missing or not as expected"),
        ("SELECT FROM WHERE", (), PermanentStoreError, "does not understand what is asked"),
        ("SELECT a FROM $thing WHERE c = ?", ("c",), PermanentStoreError, "refused the work: see `wiggle db check`"),
        ("SELECT a FROM $thing WHERE a = ?", ("a" * 70_000,), PermanentStoreError, "refused the work"),
        (
            "INSERT INTO $thing (a, c) VALUES (?, ?) IF NOT EXISTS",
            ("a", "c" * 17 * 2**20),
            PermanentStoreError,
            "larger",
        ),
    ],
)
def test_a_statement_that_cannot_work(
    connections: Connections, cql: str, binds: tuple[object, ...], kind: type[StoreError], message: str
) -> None:
    """What the node refuses is permanent, also where a change was on its way: it did not begin to do it."""
    for ask in (lambda: connections.rows(cql, binds), lambda: connections.applied([(cql, binds)])):
        with pytest.raises(StoreError) as caught:
            ask()
        assert type(caught.value) is kind
        assert message in str(caught.value)
        require_discreet(caught.value)


# What cannot be had on one node: the driver's own exceptions


def by_code(code: int) -> ErrorMessage:
    return ErrorMessage(code, "words of the server", None)


@pytest.mark.parametrize(
    "error",
    [
        OperationTimedOut(),
        ConnectionShutdown("gone"),
        ConnectionException("gone"),
        ConnectionResetError(),
        ProtocolError("words that nobody knows"),
        WriteTimeout("x", write_type=WriteType.CAS, consistency=SERIAL),
        WriteTimeout("x", write_type=WriteType.SIMPLE, consistency=QUORUM),
        WriteTimeout("x", write_type=WriteType.BATCH, consistency=QUORUM),
        ReadTimeout("x", data_retrieved=False, consistency=QUORUM),
        WriteFailure("x", consistency=QUORUM, error_code_map={"10.0.0.1": 0}),
        ReadFailure("x", consistency=QUORUM, error_code_map={"10.0.0.1": 2}),
        Unavailable("x", consistency=QUORUM, required_replicas=2, alive_replicas=1),
        CDCWriteFailure("x"),
        OverloadedErrorMessage(0x1001, "Too many in flight hints", None),
        ServerError(0, "java.lang.NullPointerException", None),
        by_code(0x1700),
        by_code(0x9999),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'code', '')}",
)
def test_a_change_without_an_answer_is_ambiguous(error: Exception) -> None:
    """Nodes may have agreed on it. A question, or what may be done twice, is asked again."""
    assert isinstance(error, DRIVER_ERRORS)
    told = failure(PLACE, error, is_change=True)
    assert type(told) is AmbiguousStoreError
    assert "; whether the change was applied is not known" in str(told)
    require_discreet(told)
    question = failure(PLACE, error, is_change=False)
    assert type(question) is TransientStoreError
    assert "whether" not in str(question)
    require_discreet(question)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoHostAvailable("x", {}), "cannot be reached"),
        (NoHostAvailable("x", ["10.0.0.1"]), "cannot be reached"),
        (NoHostAvailable("x", {"h1": ConnectionException("Pool is shutdown")}), "cannot be reached"),
        (NoHostAvailable("x", {"h1": ConnectionRefusedError()}), "cannot be reached"),
        (NoHostAvailable("x", {"h1": OperationTimedOut()}), "It did not answer in time: it may take TLS alone"),
        (NoHostAvailable("x", {"h1": NoConnectionsAvailable()}), "has no connection left that is not full"),
        (
            NoHostAvailable("x", {"h1": AuthenticationFailed("Unable to perform authentication")}),
            "cannot look users up",
        ),
        (ConnectionBusy("x"), "has no connection left that is not full"),
        (Unavailable("x", consistency=SERIAL, required_replicas=2, alive_replicas=1), "1 of 2 nodes that must be"),
        (IsBootstrappingErrorMessage(0x1002, "x", None), "is joining"),
        (TruncateError(0x1003, "x", None), "is being emptied"),
        (PreparedQueryNotFound(0x2500, "x", b"id"), "has forgotten a statement"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_change", [False, True])
def test_what_was_not_begun_is_transient(error: Exception, message: str, is_change: bool) -> None:
    """Also a change: it was not sent, or too few nodes were there to agree on anything."""
    assert isinstance(error, DRIVER_ERRORS)
    told = failure(PLACE, error, is_change=is_change)
    assert type(told) is TransientStoreError
    assert message in str(told)
    require_discreet(told)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoHostAvailable("x", {"h1": AuthenticationFailed("Bad credentials")}), "refuses this user: check its name"),
        (
            NoHostAvailable("x", {"h1": ConnectionRefusedError(), "h2": AuthenticationFailed("Bad credentials")}),
            "refuses this user",
        ),
        (NoHostAvailable("x", {"h1": OSError(1, "Last error: [SSL: CERTIFICATE_VERIFY_FAILED]")}), "agree on TLS"),
        (NoHostAvailable("x", {"h1": ProtocolError("x")}), "cannot be understood: check hosts and port"),
        (by_code(0x0100), "refuses this user"),
        (by_code(0x2000), "does not understand what is asked"),
        (Unauthorized("User has no MODIFY permission"), "`wiggle db roles` shows what it needs"),
        (UnsupportedOperation("x"), "Cassandra 4.1 or newer is needed"),
        (FunctionFailure("x", "k", "f", []), "a value is given to"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "a value is given to"),
        (InvalidRequest("Batch too large"), "is larger than the keyspace 'k' on h1,h2:9042 takes"),
        (InvalidRequest("Guardrail in_select_cartesian_product violated: x"), "a guardrail of"),
        (InvalidRequest("words"), "refused the work: see `wiggle db check` (InvalidRequest)"),
        (
            ReadFailure("x", consistency=QUORUM, error_code_map={"10.0.0.1": 1}),
            "gave up reading, over deleted rows: see tombstone_failure_threshold",
        ),
        (ReadFailure("x", consistency=QUORUM, error_code_map={"10.0.0.1": 4}), "gave up reading, over too much data"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_change", [False, True])
def test_what_will_never_work_is_permanent(error: Exception, message: str, is_change: bool) -> None:
    """Whether or not a change was on its way: these come before anything is applied."""
    assert isinstance(error, DRIVER_ERRORS)
    told = failure(PLACE, error, is_change=is_change)
    assert type(told) is PermanentStoreError
    assert message in str(told)
    require_discreet(told)


def test_a_session_that_was_closed(cassandra_url: str) -> None:
    """Whoever still has it is told that nothing was sent."""
    connections = Connections(read_url(make_url(cassandra_url)))
    session = connections.session
    connections.close()
    with pytest.raises(DRIVER_ERRORS) as caught:
        session.execute("SELECT now() FROM system.local")
    assert type(failure(PLACE, caught.value, is_change=True)) is TransientStoreError
