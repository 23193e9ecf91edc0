"""What `wiggle db check` says of a MySQL or MariaDB server's settings: what hinders is found, what costs is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing

import pytest

from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.mariadb import own_mariadb
from tests.servers.mysql import own_mysql
from tests.servers.mysql_process import LocalMySQL
from tests.stores.mysql_prefixes import asked, open_url, plain
from tests.stores.test_postgres_facts import ready
from wiggle_core.errors import PermanentStoreError
from wiggle_store_mysql.settings import advice, obstacles
from wiggle_store_mysql.store import MySQLStore

DURABLE = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "log_bin": "ON", "binlog_format": "ROW"}


@pytest.fixture(scope="module", params=[own_mysql, own_mariadb], ids=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[LocalMySQL]:
    """A server with a binary log, whose settings a test may change."""
    own: Callable[..., AbstractContextManager[LocalMySQL]] = request.param
    try:
        # MySQL takes the last one of `skip_log_bin` and `log_bin`.
        with own(log_bin="binary", server_id="1") as started:
            with closing(open_url(started.url)) as store:
                store.migrate()
            yield started
    except Unavailable as reason:
        skip_or_fail(request.node.name, reason)


@pytest.fixture
def settings(server: LocalMySQL) -> Iterator[Callable[..., MySQLStore]]:
    """Sets some of the server's settings for this test, and opens a store on it."""
    opened: list[MySQLStore] = []
    with plain(server.url) as owner:
        before = {name: asked(owner, f"SELECT @@GLOBAL.{name}")[0][0] for name in DURABLE if name != "log_bin"}

        def change(**given: str) -> MySQLStore:
            for name, value in given.items():
                asked(owner, f"SET GLOBAL {name} = %s", int(value) if value.isdigit() else value)
            opened.append(open_url(server.url))
            return opened[-1]

        yield change
        for store in opened:
            store.close()
        change(**{name: str(value) for name, value in before.items()}).close()


def test_a_binary_log_of_statements_is_found(settings: Callable[..., MySQLStore]) -> None:
    """MY2: such a server takes no change in READ COMMITTED. The check says what to set, and so does the error."""
    store = settings(binlog_format="STATEMENT")
    store.verify()
    assert store.audit() == [
        "binlog_format=STATEMENT: the server takes no change in READ COMMITTED; set it to ROW there"
    ]
    with pytest.raises(PermanentStoreError, match="set binlog_format=ROW there"):
        store.enqueue([ready("a")])
    assert settings(binlog_format="ROW").audit() == []


@pytest.mark.parametrize("binlog_format", ["ROW", "MIXED"])
def test_a_durable_server_is_in_order(settings: Callable[..., MySQLStore], binlog_format: str) -> None:
    """Nothing is said of a server that loses no acknowledged task."""
    store = settings(innodb_flush_log_at_trx_commit="1", sync_binlog="1", binlog_format=binlog_format)
    assert (store.audit(), store.advice()) == ([], [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"innodb_flush_log_at_trx_commit": "0"}, "innodb_flush_log_at_trx_commit=0: when the server or its machine"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit=2: when the machine of the server"),
        ({"sync_binlog": "0"}, "sync_binlog=0: when the machine of the server crashes"),
        ({"sync_binlog": "100"}, "sync_binlog=100: when the machine of the server crashes"),
    ],
)
def test_what_a_crash_may_lose_is_noted(
    settings: Callable[..., MySQLStore], given: dict[str, str], expected: str
) -> None:
    """Section 3: a task that was acknowledged is there as long as the server keeps it. It may be meant: no finding."""
    store = settings(**({"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "binlog_format": "ROW"} | given))
    assert store.audit() == []
    [note] = store.advice()
    assert note.startswith(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"wsrep_on": "ON"}, "wsrep_on=ON, a Galera cluster: name one and the same node"),
        (
            {"group_replication_group_name": "aaaa", "group_replication_single_primary_mode": "OFF"},
            "group_replication_single_primary_mode=OFF: name one and the same node",
        ),
    ],
)
def test_several_nodes_that_take_changes_are_noted(given: dict[str, str], expected: str) -> None:
    """MY8: no cluster runs here, so this is by what one says of itself."""
    [note] = advice(DURABLE | given)
    assert note.startswith(expected)
    assert obstacles(DURABLE | given) == []


@pytest.mark.parametrize(
    "given",
    [
        {"wsrep_on": "OFF"},
        {"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"},
        {"group_replication_group_name": "aaaa", "group_replication_single_primary_mode": "ON"},
        {"log_bin": "OFF", "sync_binlog": "0", "binlog_format": "STATEMENT"},
    ],
)
def test_what_does_not_matter_is_not_noted(given: dict[str, str]) -> None:
    """One node that takes changes, and settings of a binary log that is not written."""
    assert (list(advice(DURABLE | given)), obstacles(DURABLE | given)) == ([], [])
