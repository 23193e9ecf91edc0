"""The driver as the store sets it up: nothing is sent twice (CA3), no clock of a client counts (CA4), and its event
loop is chosen on purpose (CA7)."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.servers.proxy import Proxy
from wiggle_core.errors import AmbiguousStoreError, StoreError, TransientStoreError

from wiggle_store_cassandra.connections import Connections  # isort: skip # before the driver

from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from cassandra.policies import RetryPolicy
from cassandra.query import BatchStatement, SimpleStatement, tuple_factory

from wiggle_store_cassandra.driver import connect, local_datacenter
from wiggle_store_cassandra.event_loop import connection_class
from wiggle_store_cassandra.place import Place, read_url

ROOT = Path(__file__).parents[2]
INSERT = "INSERT INTO $thing (a, b) VALUES (?, ?) IF NOT EXISTS"
GET = "SELECT b FROM $thing WHERE a = ?"


@pytest.fixture(scope="module")
def place(cassandra_url: str) -> Iterator[Place]:
    """A keyspace with one table."""
    name = f"driver_{uuid4().hex[:12]}"
    place = read_url(make_url(cassandra_url).set(database=name, query={"connect_timeout": "30", "timeout": "30"}))
    with closing(Connections(place)) as connections:
        connections.define(f"CREATE KEYSPACE {name} WITH replication = {place.replication_cql(nodes=1)}")
        connections.define(f"CREATE TABLE {name}.thing (a text PRIMARY KEY, b int)")
        yield place
        connections.define(f"DROP KEYSPACE {name}")


@pytest.fixture
def connected(place: Place) -> Iterator[tuple[Any, Any]]:
    """The driver's cluster and session."""
    cluster, session = connect(place)
    yield cluster, session
    cluster.shutdown()


def through(proxy: Proxy, place: Place) -> Connections:
    """By way of a proxy: the driver keeps to the address at which it found the node."""
    url = make_url(place.url).set(host="127.0.0.1", port=proxy.port)
    return Connections(read_url(url))


def port_of(place: Place) -> int:
    if place.hosts != ("127.0.0.1",):
        pytest.skip("the node is not on this machine, as the proxy wants it")
    return place.port


# How the session is set up


def test_the_session(place: Place, connected: tuple[Any, Any]) -> None:
    """It asks and agrees within the local data centre, and is bound to no keyspace, so that it can make one."""
    cluster, session = connected
    profile = cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
    assert profile.consistency_level == ConsistencyLevel.LOCAL_QUORUM
    assert profile.serial_consistency_level == ConsistencyLevel.LOCAL_SERIAL
    assert (profile.request_timeout, profile.row_factory) == (30, tuple_factory)
    assert session.keyspace is None
    assert cluster.protocol_version == ProtocolVersion.V5
    assert local_datacenter(place, cluster) == ("datacenter1", 1)


def test_nothing_is_ever_tried_again(connected: tuple[Any, Any]) -> None:
    """CA3: whatever comes, the driver hands it to us, and it sends nothing a second time while it waits."""
    cluster, session = connected
    profile = cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
    policy = profile.retry_policy
    for answer in (policy.on_read_timeout, policy.on_write_timeout, policy.on_unavailable, policy.on_request_error):
        assert answer(None, None, error=None, retry_num=0) == (RetryPolicy.RETHROW, None)
    for statement in (
        SimpleStatement("x"),
        BatchStatement(),
        session.prepare("SELECT now() FROM system.local").bind(()),
    ):
        assert not statement.is_idempotent
        plan = profile.speculative_execution_policy.new_plan(None, statement)
        assert plan.next_execution(None) < 0


def test_plain_writes_have_the_servers_time(place: Place, connected: tuple[Any, Any]) -> None:
    """CA4: a client whose clock is wrong does not decide which of two writes counts."""
    cluster, session = connected
    cluster.timestamp_generator = lambda: 1
    before = time.time()
    session.execute(f"INSERT INTO {place.keyspace}.thing (a, b) VALUES ('clock', 1)")
    ((written,),) = session.execute(f"SELECT WRITETIME(b) FROM {place.keyspace}.thing WHERE a = 'clock'")
    assert abs(written / 1e6 - before) < 3600


def test_statements_go_to_nodes_that_hold_their_rows(place: Place, connected: tuple[Any, Any]) -> None:
    """The driver knows the replicas of our keyspace, though it does not read the schema of all of them."""
    cluster, session = connected
    assert list(cluster.metadata.keyspaces) == [place.keyspace]
    bound = session.prepare(f"SELECT b FROM {place.keyspace}.thing WHERE a = ?").bind(("x",))
    assert bound.keyspace == place.keyspace
    (replica,) = cluster.metadata.get_replicas(place.keyspace, bound.routing_key)
    profile = cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT]
    assert next(iter(profile.load_balancing_policy.make_query_plan(None, bound))) == replica


def test_a_keyspace_that_is_made_later_is_learned(place: Place) -> None:
    """A session begins without it, as `wiggle db upgrade` does."""
    name = f"driver_{uuid4().hex[:12]}"
    with closing(Connections(read_url(make_url(place.url).set(database=name)))) as connections:
        assert connections.now() > 0
        session: Any = connections.session
        metadata = session.cluster.metadata
        assert list(metadata.keyspaces) == []
        connections.define(f"CREATE KEYSPACE {name} WITH replication = {place.replication_cql(nodes=1)}")
        connections.learn_replicas()
        assert list(metadata.keyspaces) == [name]
        assert len(metadata.get_replicas(name, b"x")) == 1
        connections.define(f"DROP KEYSPACE {name}")


# What users see in their logs


def test_connecting_leaves_nothing_in_the_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Not even without `?local_dc=`, which the driver learns from the first node that answers."""
    assert place.local_dc is None
    with caplog.at_level(logging.WARNING, "cassandra"):
        cluster, session = connect(place)
        session.execute("SELECT now() FROM system.local")
        cluster.shutdown()
    assert caplog.records == []


def test_a_node_that_is_away_prints_nothing() -> None:
    """The driver's words about it go to a log that nobody asked for: the user sees our error only."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"cassandra://127.0.0.1:{taken.getsockname()[1]}/k"
        ran = run(f"try:\n    Connections(read_url(make_url({url!r}))).now()\nexcept StoreError: print('away')")
    assert (ran.stdout, ran.stderr) == ("away\n", "")


# Answers that are lost


def await_answer(connections: Connections) -> None:
    """Until the driver has found its node again."""
    end = time.monotonic() + 60
    while True:
        try:
            connections.now()
        except StoreError:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


def test_a_lost_answer_is_ambiguous(place: Place) -> None:
    """CA3, JAVA-819: the node applied it. Were it sent again, it would be told not to be applied."""
    with Proxy(port_of(place)) as proxy, closing(through(proxy, place)) as connections:
        connections.now()
        proxy.cut_at = b"lost-answer"
        with pytest.raises(AmbiguousStoreError, match="was lost; whether the change was applied is not known"):
            connections.applied([(INSERT, ("lost-answer", 1))])
        proxy.cut_at = None
        await_answer(connections)
        assert connections.serial_rows(GET, ("lost-answer",)) == [(1,)]


def test_a_lost_request_is_ambiguous(place: Place) -> None:
    """The same to us, though the node never got it; and nobody sends it later."""
    with Proxy(port_of(place)) as proxy, closing(through(proxy, place)) as connections:
        connections.now()
        proxy.lost_at = b"lost-request"
        with pytest.raises(AmbiguousStoreError):
            connections.applied([(INSERT, ("lost-request", 1))])
        proxy.lost_at = None
        await_answer(connections)
        assert connections.serial_rows(GET, ("lost-request",)) == []


def test_a_lost_question_is_transient(place: Place) -> None:
    """What changes nothing may be asked again; by us, for the driver does not."""
    with Proxy(port_of(place)) as proxy, closing(through(proxy, place)) as connections:
        connections.now()
        proxy.lost_at = b"lost-question"
        with pytest.raises(TransientStoreError, match="was lost"):
            connections.rows(GET, ("lost-question",))
        await_answer(connections)  # of another question: that one is lost still
        with pytest.raises(TransientStoreError, match="was lost"):
            connections.rows(GET, ("lost-question",))


# The event loop

_NO_LIBEV = "import sys; sys.modules['cassandra.io.libevwrapper'] = sys.modules['asyncore'] = None\n"
_LOOPS = {"driver": "", "asyncio": _NO_LIBEV}
_PROGRAM = """
from sqlalchemy import make_url
from wiggle_core.errors import StoreError
from wiggle_store_cassandra import open_store
from wiggle_store_cassandra.place import read_url
from wiggle_store_cassandra.event_loop import connection_class
from wiggle_store_cassandra.connections import Connections
"""


def run(program: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """A program of its own, which has to come to an end by itself."""
    return subprocess.run(
        [sys.executable, "-c", f"{before}{_PROGRAM}{program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_is_libev_where_that_is_installed() -> None:
    """The driver's wheels for Linux and macOS have it."""
    pytest.importorskip("cassandra.io.libevwrapper")
    assert connection_class().__name__ == "LibevConnection"


def test_it_is_asyncio_elsewhere() -> None:
    """CA7: as on Python 3.12 without libev, where the driver alone could not even be imported."""
    failing = subprocess.run(
        [sys.executable, "-c", f"{_NO_LIBEV}import cassandra.cluster"], capture_output=True, text=True, check=False
    )
    assert "Unable to load a default connection class" in failing.stderr
    ran = run("print(connection_class().__name__)", _NO_LIBEV)
    assert (ran.stdout, ran.stderr) == ("AsyncioLoopConnection\n", "")


@pytest.mark.parametrize("loop", _LOOPS)
def test_a_program_asks_and_ends(place: Place, loop: str) -> None:
    """No thread of the driver keeps a program from ending, closed or not."""
    program = f"connections = Connections(read_url(make_url({place.url!r})))\nprint(connections.now() > 0)\n"
    for end in ("", "connections.close()"):
        ran = run(program + end, _LOOPS[loop])
        assert (ran.stdout, ran.stderr) == ("True\n", "")


@pytest.mark.parametrize("loop", _LOOPS)
def test_it_leaves_the_callers_loop_alone(place: Place, loop: str) -> None:
    """scylladb/scylladb#16676: the driver would make its own loop that of the thread it is started from."""
    program = f"""
import asyncio
connections = Connections(read_url(make_url({place.url!r})))
async def ask():
    first = asyncio.get_running_loop()
    connections.now()
    await asyncio.sleep(0)
    return first is asyncio.get_running_loop() and connections.now() > 0
own = asyncio.new_event_loop()
asyncio.set_event_loop(own)
connections.now()
print(asyncio.get_event_loop() is own, own.run_until_complete(ask()))
own.close()
print(asyncio.run(ask()), asyncio.run(ask()), connections.now() > 0)
connections.close()
"""
    ran = run(program, _LOOPS[loop])
    assert (ran.stdout, ran.stderr) == ("True True\nTrue True True\n", "")


@pytest.mark.parametrize("loop", _LOOPS)
def test_a_forked_process_makes_its_own(place: Place, loop: str) -> None:
    """Parent and child ask at once, each over connections of its own, after the parent had begun."""
    program = f"""
import os, warnings
warnings.simplefilter("ignore")  # of Python 3.12, that there are threads
def ask(connections):
    return all(connections.now() > 0 for _ in range(20))
connections = Connections(read_url(make_url({place.url!r})))
ask(connections)
child = os.fork()
if child == 0:
    own = Connections(read_url(make_url({place.url!r})))
    is_answered = ask(own)
    own.close()
    os._exit(0 if is_answered else 1)
print(ask(connections), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
connections.close()
"""
    ran = run(program, _LOOPS[loop])
    assert (ran.stdout, ran.stderr) == ("True 0\n", "")
