"""URLs of the Cassandra store: hosts, keyspace, space, options and TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.stores.certificates import Authority
from wiggle_core.errors import InvalidStoreUrl
from wiggle_store_cassandra import open_store
from wiggle_store_cassandra.place import Place, in_place, read_url


def place_of(url: str) -> Place:
    return read_url(make_url(url))


# URLs


@pytest.mark.parametrize(
    ("url", "hosts", "port", "server"),
    [
        ("cassandra://h/k", ("h",), 9042, "h:9042"),
        ("cassandra+cassandra://h:9142/k", ("h",), 9142, "h:9142"),
        ("cassandra://a.example,b.example:9142/k", ("a.example", "b.example"), 9142, "a.example,b.example:9142"),
        ("cassandra://10.0.0.1,10.0.0.2,10.0.0.1/k", ("10.0.0.1", "10.0.0.2"), 9042, "10.0.0.1,10.0.0.2:9042"),
        ("cassandra://[::1]:9142/k", ("::1",), 9142, "[::1]:9142"),
        ("cassandra://[fe80::1],[fe80::2]/k", ("fe80::1", "fe80::2"), 9042, "[fe80::1],[fe80::2]:9042"),
    ],
)
def test_hosts_are_listed_with_commas(url: str, hosts: tuple[str, ...], port: int, server: str) -> None:
    """Any of them is enough to begin with; one port is for all, and addresses of IPv6 stand in brackets."""
    place = place_of(url)
    assert (place.hosts, place.port, place.server, str(place)) == (hosts, port, server, f"the keyspace 'k' on {server}")


def test_options_set_the_place() -> None:
    """Every option is understood, and those that are not given have the values that the package tells."""
    place = place_of("cassandra://h/k?space=shop_1&shards=64&timeout=2.5&connect_timeout=4&local_dc=eu-west.1")
    assert (place.space, place.shards, place.timeout, place.connect_timeout) == ("shop_1", 64, 2.5, 4)
    assert place.local_dc == "eu-west.1"
    plain = place_of("cassandra://h/k")
    assert (plain.space, plain.shards, plain.timeout, plain.connect_timeout) == ("wiggle", 16, 10, 10)
    assert (plain.local_dc, plain.replication, plain.tls, plain.username) == (None, (), None, None)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("cassandra+scylla://h/k", "'cassandra\\+scylla' is not known: cassandra-driver is the only driver"),
        ("cassandra:///k", "hosts are expected with commas between them"),
        ("cassandra://h,/k", "hosts are expected with commas"),
        ("cassandra://h;x/k", "'h;x' is no name of a host"),
        ("cassandra://h:0/k", "the port 0: a number from 1 to 65535"),
        ("cassandra://h:65536/k", "the port 65536"),
        ("cassandra://h", "the name of a keyspace is expected behind the hosts"),
        ("cassandra://h/", "the name of a keyspace is expected"),
        ("cassandra://h/Shop", "lower-case letters"),
        ("cassandra://h/1k", "a letter first"),
        ("cassandra://h/k%22;x", "the name of a keyspace is expected"),
        (f"cassandra://h/{'k' * 49}", "48 at most"),
        ("cassandra://h/system", "'system' is a keyspace of Cassandra's own"),
        ("cassandra://h/system_auth", "'system_auth' is a keyspace of Cassandra's own"),
        ("cassandra://h/k?colour=red", "no option 'colour'; there are space=wiggle, shards=16"),
        ("cassandra://h/k?password=x", "a password belongs before the host"),
        ("cassandra://:x@h/k", "a password without a user"),
        ("cassandra://h/k?space=%20", "space=' ': letters, digits and _"),
        ("cassandra://h/k?space=a%27b", "space="),
        (f"cassandra://h/k?space={'a' * 49}", "48 at most"),
        ("cassandra://h/k?shards=0", "shards='0': a whole number from 1 to 1024"),
        ("cassandra://h/k?shards=1025", "shards='1025'"),
        ("cassandra://h/k?shards=2.5", "shards='2.5'"),
        ("cassandra://h/k?shards=1&shards=2", "'shards' is given twice"),
        ("cassandra://h/k?timeout=0", "timeout='0': a number from 0.001"),
        ("cassandra://h/k?timeout=nan", "timeout='nan'"),
        ("cassandra://h/k?connect_timeout=never", "connect_timeout='never'"),
        ("cassandra://h/k?local_dc=%20", "local_dc=' ': the name of a data centre"),
        ("cassandra://h/k?local_dc=a%27b", "local_dc="),
        ("cassandra://h/k?replication=0", "replication='0': copies of each row"),
        ("cassandra://h/k?replication=three", "replication='three'"),
        ("cassandra://h/k?replication=dc1:3,2", "replication='dc1:3,2'"),
        ("cassandra://h/k?replication=dc1:3,dc1:2", "replication='dc1:3,dc1:2'"),
        ("cassandra://h/k?replication=a%27b:3", "replication="),
        ("cassandra://h/k?replication=:3", "replication=':3'"),
        ("cassandra://h/k?ssl=perhaps", "ssl='perhaps': true or false"),
        ("cassandra://h/k?ssl=false&ssl_ca=README.md", "ssl_ca does not go with ssl=false"),
        ("cassandra://h/k?ssl_ca=/nowhere/ca.pem", "ssl_ca='/nowhere/ca.pem': there is no such file"),
        ("cassandra://h/k?ssl_ca=README.md", "ssl_ca: PEM files that belong together"),
        ("cassandra://h/k?ssl_key=README.md", "ssl_key: the certificate that belongs to it"),
        ("cassandra://h/k?ssl_verify_identity=x", "ssl_verify_identity='x': true or false"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, message: str) -> None:
    """An unknown option or value, or one that contradicts another, is refused by name and not ignored; so is a name
    that would need quotes in CQL."""
    with pytest.raises(InvalidStoreUrl, match=message):
        place_of(url)


def test_no_password_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names the place shows no password, wherever it came from; the URL's own counts before the environment's."""
    monkeypatch.setenv("CASSANDRA_PASSWORD", "hunter3")
    place = place_of("cassandra://u:hunter2@a,b/k?space=a")
    assert (place.username, place.password) == ("u", "hunter2")
    assert place.url == "cassandra://u@a,b/k?space=a"
    other = place_of("cassandra://u@h/k")
    assert (other.username, other.password) == ("u", "hunter3")
    assert place_of("cassandra://h/k").password == ""
    assert "hunter" not in f"{place} {place!r} {other} {other!r}"


def test_a_password_with_any_character() -> None:
    """Escaped in the URL as every other store takes it."""
    assert place_of("cassandra://%40u:%2F%3Ap%C3%A4@h/k").password == "/:pä"


def test_the_shown_url_leads_to_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the password: it can be given to `--store` again, as messages tell users to."""
    monkeypatch.delenv("CASSANDRA_PASSWORD", raising=False)
    place = place_of("cassandra://u:p@[::1],[::2]:9142/k?replication=dc1:3,dc2:2&ssl=true&local_dc=dc1&space=x")
    again = place_of(place.url)
    assert (again.url, again.hosts, again.port, again.keyspace) == (place.url, place.hosts, place.port, place.keyspace)
    assert (again.replication, again.tls, again.local_dc, again.space) == (
        place.replication,
        place.tls,
        place.local_dc,
        place.space,
    )


def test_nothing_is_connected_to_before_it_is_asked() -> None:
    """Opening a store reaches no node: none is there."""
    open_store(make_url("cassandra://nowhere.invalid/k")).close()


# Names in CQL


def test_statements_are_put_in_place() -> None:
    """Tables have their names as they are, behind the keyspace in quotes: it may be a word of CQL's own."""
    place = place_of("cassandra://h/token")
    assert in_place("SELECT a FROM $shard WHERE b = ?", place) == 'SELECT a FROM "token"."shard" WHERE b = ?'


@pytest.mark.parametrize(
    ("option", "local_dc", "nodes", "copies"),
    [
        ("", "dc1", 1, "'dc1': 1"),
        ("", "dc1", 2, "'dc1': 2"),
        ("", "dc1", 12, "'dc1': 3"),
        ("", None, 3, "'replication_factor': 3"),
        ("?replication=1", "dc1", 12, "'replication_factor': 1"),
        ("?replication=5", None, 3, "'replication_factor': 5"),
        ("?replication=dc1:3,dc2:2", "dc1", 1, "'dc1': 3, 'dc2': 2"),
    ],
)
def test_the_copies_of_a_new_keyspace(option: str, local_dc: str | None, nodes: int, copies: str) -> None:
    """Those that the URL says, else three in the local data centre, or as many as it has nodes."""
    found = place_of(f"cassandra://h/k{option}").replication_cql(local_dc, nodes)
    assert found == f"{{'class': 'NetworkTopologyStrategy', {copies}}}"


# TLS


def test_tls_verifies_the_public_authorities_and_the_address() -> None:
    """`?ssl=true` alone trusts whom this machine trusts, who give certificates to anybody: so the address counts."""
    tls = place_of("cassandra://h/k?ssl=true").tls
    assert tls is not None
    context = tls.context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(("option", "is_checked"), [("", False), ("&ssl_verify_identity=true", True)])
def test_tls_with_authorities_of_ones_own(tmp_path: Path, option: str, is_checked: bool) -> None:
    """An authority is enough to have TLS. It vouches for its cluster, so that addresses need not be in certificates."""
    ca, cert, key = Authority().write(tmp_path, "127.0.0.1")
    tls = place_of(f"cassandra://h/k?ssl_ca={ca}&ssl_cert={cert}&ssl_key={key}{option}").tls
    assert tls is not None
    context = tls.context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, is_checked)
    assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "wiggle tests"),),)]


def test_a_key_that_is_another_ones_is_refused(tmp_path: Path) -> None:
    """Before anything is connected to, by the names of the options."""
    _, cert, _ = Authority().write(tmp_path, "127.0.0.1")
    (tmp_path / "other").mkdir()
    _, _, key = Authority().write(tmp_path / "other", "127.0.0.1")
    with pytest.raises(InvalidStoreUrl, match="ssl_cert, ssl_key: PEM files that belong together"):
        place_of(f"cassandra://h/k?ssl_cert={cert}&ssl_key={key}")
