"""Cassandra for tests: one node of our own in a folder, from Maven's artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.cassandra_node import LocalCassandra
from tests.servers.cassandra_packages import VERSION, cached_jars, java
from tests.servers.finding import Unavailable, docker_answers

VARIABLE = "WIGGLE_TEST_CASSANDRA_URL"
IMAGE = "cassandra:5.0"


@contextmanager
def running_cassandra() -> Iterator[str]:
    """The URL of a node for this test run, whose user may make keyspaces. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        yield os.environ[VARIABLE]
    elif docker_answers():
        with _container() as url:
            yield url
    else:
        with own_cassandra() as node:
            yield node.url


@contextmanager
def own_cassandra(durable: bool = False, heap: str = "512m", **settings: object) -> Iterator[LocalCassandra]:
    """A node that a test may stop, kill and start again. Settings are those of cassandra.yaml. Raises Unavailable."""
    node = LocalCassandra(settings, durable, heap)
    try:  # whatever fails from here on, the folder goes
        node.start()
        yield node
    finally:
        node.remove()


def fetch() -> str:
    """Download what `running_cassandra` would, so that tests need not; what it will use. Raises Unavailable."""
    if os.environ.get(VARIABLE):
        return VARIABLE
    if docker_answers():
        return f"Docker, {IMAGE}"
    program = java()
    return f"Cassandra {VERSION} in {cached_jars()}, by {program}"


@contextmanager
def _container() -> Iterator[str]:
    """The URL of a node in Docker. Raises Unavailable."""
    try:
        from testcontainers.community.cassandra import CassandraContainer  # noqa: PLC0415 # only where Docker is
    except ImportError as error:
        raise Unavailable("Docker runs, but testcontainers 4.15 or newer is not installed") from error
    with CassandraContainer(IMAGE) as started:
        ((host, port),) = started.get_contact_points()
        yield f"cassandra://{'127.0.0.1' if host == 'localhost' else host}:{port}/wiggle"
