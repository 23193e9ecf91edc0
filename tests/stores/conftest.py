"""Servers that the tests of several stores share, started when the first test asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.servers.cassandra import running_cassandra
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.mariadb import running_mariadb
from tests.servers.mysql import running_mysql
from tests.servers.pgbouncer import running_pgbouncer
from tests.servers.postgres import running_postgres
from tests.stores.mysql_tables import used_tables
from tests.stores.postgres_tables import used_schemas
from tests.stores.used_places import UsedPlaces


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    try:
        with running_postgres() as url:
            yield url
    except Unavailable as reason:
        skip_or_fail("PostgreSQL", reason)


@pytest.fixture(scope="session")
def postgres_places(postgres_url: str) -> Iterator[UsedPlaces]:
    """Schemas that are lent to one test after the other."""
    with closing(used_schemas(postgres_url)) as places:
        yield places


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    """The URL of the same server by way of pgbouncer in transaction mode."""
    try:
        with running_pgbouncer(postgres_url) as url:
            yield url
    except Unavailable as reason:
        skip_or_fail("pgbouncer", reason)


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    """The URL of a MySQL server, whose user may do everything."""
    try:
        with running_mysql() as url:
            yield url
    except Unavailable as reason:
        skip_or_fail("MySQL", reason)


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """The URL of a MariaDB server, whose user may do everything."""
    try:
        with running_mariadb() as url:
            yield url
    except Unavailable as reason:
        skip_or_fail("MariaDB", reason)


@pytest.fixture(scope="session")
def mysql_places(mysql_url: str) -> Iterator[UsedPlaces]:
    """Tables that are lent to one test after the other."""
    with closing(used_tables(mysql_url)) as places:
        yield places


@pytest.fixture(scope="session")
def mariadb_places(mariadb_url: str) -> Iterator[UsedPlaces]:
    """Likewise."""
    with closing(used_tables(mariadb_url)) as places:
        yield places


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def mysql_like_url(request: pytest.FixtureRequest) -> str:
    """The URL of a server of either product: what asks for it runs on both."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(scope="session")
def cassandra_url() -> Iterator[str]:
    """The URL of a Cassandra node, whose user may make keyspaces. The one that it names is not there."""
    try:
        with running_cassandra() as url:
            yield url
    except Unavailable as reason:
        skip_or_fail("Cassandra", reason)


@pytest.fixture(scope="session")
def mysql_like_places(mysql_like_url: str) -> Iterator[UsedPlaces]:
    """Tables on either product's server, lent to one test after the other."""
    with closing(used_tables(mysql_like_url)) as places:
        yield places
