"""PG7: the PostgreSQL store keeps the contract by way of pgbouncer in transaction mode, too: the kit, adopted again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.stores.postgres_schemas import fresh_schema, open_url, with_options
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory, make_task
from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.store import Store


@pytest.fixture
def store_url(
    request: pytest.FixtureRequest, postgres_url: str, pgbouncer_url: str, postgres_places: UsedPlaces
) -> Iterator[str]:
    with postgres_places.for_check(request, partial(fresh_schema, postgres_url)) as url:
        yield with_options(pgbouncer_url, schema=url.rpartition("schema=")[2])


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)


def test_a_refused_statement_leaves_a_clean_session(store: Store) -> None:
    """PG7: an error in the middle of what is sent together undoes all of it, and the next one finds nothing open."""
    for _ in range(30):
        with pytest.raises(PermanentStoreError, match="that it cannot hold"):
            store.enqueue([make_task("good"), make_task("bad", created_at=2**63)])
        assert store.get("good") is None
    assert store.enqueue([make_task("good")]) == {"good"}


def test_settings_come_with_each_statement(store_url: str) -> None:
    """PG7: what one statement sets is gone with it, and the settings of the next one are its own."""
    store = open_url(store_url)
    with store._connections.reading() as session:
        assert session.rows("SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')") == [
            ("30s", "off")
        ]
        assert session.connection.execute("SHOW enable_seqscan").fetchall() == [("on",)]
    store.close()
