"""A Cassandra node with passwords, rights, TLS, and little patience for deleted rows: what a user is told, and what is
sent in the clear."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tests.servers.cassandra import own_cassandra
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.proxy import Proxy
from tests.stores.certificates import Authority
from wiggle_core.errors import PermanentStoreError, StoreError
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.place import read_url
from wiggle_store_cassandra.schema import migrate, role_sql

SECRET = "hunter2'"


@dataclass(frozen=True)
class Secured:
    """A node, and the files with which a client speaks TLS to it."""

    url: URL
    ca: Path
    other_ca: Path

    def connections(
        self, user: str | None = "cassandra", password: str = "cassandra", **options: object
    ) -> Connections:
        url = self.url.set(username=user, password=password if user else None)
        return Connections(read_url(url.update_query_dict({name: str(value) for name, value in options.items()})))

    def refusal(self, user: str | None = "cassandra", password: str = "cassandra", **options: object) -> str:
        """What is told of a permanent error of the first question."""
        with closing(self.connections(user, password, **options)) as opened:
            with pytest.raises(PermanentStoreError) as caught:
                opened.now()
            assert password not in str(caught.value).replace("user:password", "")
            return str(caught.value)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """It takes TLS and plain connections, so that both can be tried; its certificate is for another address."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "other").mkdir()
    ca, cert, key = Authority().write(folder, "10.0.0.1")
    other_ca, _, _ = Authority().write(folder / "other", "127.0.0.1")
    pem = {"private_key": key.read_text() + cert.read_text(), "trusted_certificates": ca.read_text()}
    factory = {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory", "parameters": pem}
    try:
        with own_cassandra(
            authenticator="PasswordAuthenticator",
            authorizer="CassandraAuthorizer",
            credentials_validity="100ms",
            roles_validity="100ms",
            permissions_validity="100ms",
            client_encryption_options={"enabled": True, "optional": True, "ssl_context_factory": factory},
            tombstone_warn_threshold=10,
            tombstone_failure_threshold=50,
        ) as own:
            secured = Secured(make_url(own.url).update_query_dict({"timeout": "30"}), ca, other_ca)
            await_users(secured)
            yield secured
    except Unavailable as reason:
        skip_or_fail("Cassandra", reason)


def await_users(secured: Secured) -> None:
    """A new node makes its first user some time after its start."""
    end = time.monotonic() + 120
    while True:
        with closing(secured.connections()) as opened:
            try:
                opened.now()
            except StoreError:
                assert time.monotonic() < end
                time.sleep(0.2)
            else:
                return


@pytest.fixture(scope="module")
def admin(node: Secured) -> Iterator[Connections]:
    """With the schema in place."""
    with closing(node.connections()) as opened:
        migrate(opened, 0)
        yield opened


# Users


def test_no_user(node: Secured) -> None:
    """The node asks for one, and so do we."""
    assert "asks for a user: user:password@host in the store URL" in node.refusal(None)


def test_a_wrong_password(node: Secured) -> None:
    """Permanent, whether the user is there or not; the password is not repeated."""
    for user in ("cassandra", "nobody"):
        told = node.refusal(user, SECRET)
        assert "refuses this user: check its name and password in the store URL, or in CASSANDRA_PASSWORD" in told


def test_a_password_of_the_environment(node: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSANDRA_PASSWORD", "cassandra")
    url = node.url.set(username="cassandra", password=None)
    with closing(Connections(read_url(url))) as connections:
        assert connections.now() > 0


def test_what_a_user_may_not_do(node: Secured, admin: Connections) -> None:
    """Permanent, with the command that tells the rights; which are enough to work with tasks, and not for more."""
    admin.define(f"CREATE ROLE worker WITH LOGIN = true AND PASSWORD = '{SECRET.replace(chr(39), chr(39) * 2)}'")
    with closing(node.connections("worker", SECRET)) as worker:
        for ask in (
            lambda: worker.rows("SELECT shards FROM $space WHERE space = ?", ("wiggle",)),
            lambda: worker.define("CREATE TABLE wiggle.other (a int PRIMARY KEY)"),
        ):
            with pytest.raises(PermanentStoreError, match=r"this user may not do that on .*`wiggle db roles` shows"):
                ask()
        for grant in role_sql(admin.place, "worker").strip().split("\n"):
            admin.define(grant.rstrip(";"))
        end = time.monotonic() + 30
        while True:  # a node keeps what it knows of rights for a while
            try:
                assert worker.rows("SELECT shards FROM $space WHERE space = ?", ("wiggle",)) == [(16,)]
            except PermanentStoreError:
                assert time.monotonic() < end
                time.sleep(0.1)
            else:
                break
        with pytest.raises(PermanentStoreError, match="this user may not do that"):
            worker.define("CREATE TABLE wiggle.other (a int PRIMARY KEY)")


# TLS


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_password_goes_in_the_clear_without_tls_only(node: Secured, is_tls: bool) -> None:
    """Seen from the line: with an authority of its own everything is under TLS, from the first byte on."""
    assert node.url.port is not None
    seen: list[bool] = []
    with Proxy(node.url.port) as proxy:
        proxy.lost_at, proxy.upon_loss = SECRET.encode(), lambda: seen.append(True)
        url = node.url.set(username="nobody", password=SECRET, port=proxy.port)
        # The driver takes a line that is cut while it logs in for one that is slow.
        options = {"ssl_ca": str(node.ca), "connect_timeout": "30"} if is_tls else {"connect_timeout": "2"}
        place = read_url(url.update_query_dict(options))
        with closing(Connections(place)) as connections, pytest.raises(StoreError) as caught:
            connections.now()
    assert bool(seen) == (not is_tls)
    assert ("refuses this user" in str(caught.value)) == is_tls


def test_an_authority_that_did_not_sign(node: Secured) -> None:
    """Nothing is said to a node that somebody else vouches for."""
    assert "do not agree on TLS: check `?ssl=true`, `?ssl_ca=`" in node.refusal(ssl_ca=node.other_ca)


def test_a_certificate_for_another_address(node: Secured) -> None:
    """Is enough with an authority of one's own, unless identities shall be verified."""
    with closing(node.connections(ssl_ca=node.ca)) as connections:
        assert connections.now() > 0
    assert "do not agree on TLS" in node.refusal(ssl_ca=node.ca, ssl_verify_identity="true")


def test_public_authorities_did_not_sign(node: Secured) -> None:
    """`?ssl=true` alone is not satisfied by any certificate."""
    assert "do not agree on TLS" in node.refusal(ssl="true")


# Deleted rows


def test_too_many_deleted_rows_are_named(admin: Connections) -> None:
    """CA1: a node gives up on a partition that is full of them, and asking again would not help."""
    admin.define("CREATE TABLE wiggle.heap (a int, b int, PRIMARY KEY (a, b))")
    admin.write([("DELETE FROM $heap WHERE a = ? AND b = ?", (1, each)) for each in range(100)])
    with pytest.raises(PermanentStoreError, match="gave up reading, over deleted rows: see tombstone_failure_thresh"):
        admin.rows("SELECT b FROM $heap WHERE a = ?", (1,))
