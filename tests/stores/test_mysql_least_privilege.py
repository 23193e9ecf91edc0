"""The MySQL and MariaDB store keeps the contract by an account that has what `wiggle db roles` prints, and nothing
else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import make_url

import wiggle_core.conformance as kit
from tests.stores.mysql_prefixes import asked, epoch_holder, open_url, plain
from tests.stores.mysql_tables import used_tables
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.lanes_openers import HoldEpoch
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.store import Grants

# A right is needed by a statement, so these have all that need one; the rest of the kit runs the same statements again.
_CHOSEN = ("claiming", "documents", "history", "lanes_changing", "lanes_filling", "lanes_openers", "leases", "sweeping")
for _each in [name for name in globals() if name.startswith("test_")]:
    if getattr(kit, _each).__module__.rpartition(".")[2] not in _CHOSEN:
        del globals()[_each]


@pytest.fixture(scope="module")
def account(mysql_like_url: str) -> Iterator[tuple[str, str]]:
    """The name and the host of an account without any right, for where we come from. With a quote in its name, as it
    may have."""
    name = f"least`{uuid4().hex[:8]}"
    with plain(mysql_like_url) as owner:
        host = asked(owner, "SELECT USER()")[0][0].rpartition("@")[2]
        asked(owner, "CREATE USER %s@%s IDENTIFIED BY 'secret'", name, host)
        try:
            yield name, host
        finally:
            asked(owner, "DROP USER %s@%s", name, host)


@pytest.fixture(scope="module")
def places(mysql_like_url: str, account: tuple[str, str]) -> Iterator[UsedPlaces]:
    """Tables made by their owner, on which the account has its rights."""

    def grant(url: str) -> None:
        with closing(open_url(url)) as store, plain(url) as owner:
            for statement in store.role_sql("@".join(account)).split(";\n")[:-1]:
                asked(owner, statement)

    with closing(used_tables(mysql_like_url, grant)) as made:
        yield made


@pytest.fixture
def store_url(places: UsedPlaces, account: tuple[str, str]) -> Iterator[str]:
    """Tables as the account sees them."""
    with places.lent() as url:
        yield make_url(url).set(username=account[0], password="secret").render_as_string(hide_password=False)


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)


@pytest.fixture
def hold_epoch() -> HoldEpoch:
    return epoch_holder()


def test_the_account_owns_nothing(store_url: str) -> None:
    """An account with these grants can neither change nor drop a table, nor make one."""
    with closing(open_url(store_url)) as store:
        assert isinstance(store, Grants)
        for statement in (
            "DROP TABLE $task",
            "CREATE TABLE $x (id INT)",
            "TRUNCATE $history",
            "ALTER TABLE $task FORCE",
        ):
            with pytest.raises(PermanentStoreError, match="may not do that"), store._connections.changing() as session:
                session.run(statement)
