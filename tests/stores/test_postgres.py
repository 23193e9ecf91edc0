"""The PostgreSQL store keeps the contract: the conformance kit, adopted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.stores.postgres_schemas import fresh_schema, open_url
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.lanes_openers import HoldEpoch
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.stores.store import Store
from wiggle_store_postgres.store import PostgresStore


@pytest.fixture
def store_url(request: pytest.FixtureRequest, postgres_url: str, postgres_places: UsedPlaces) -> Iterator[str]:
    with postgres_places.for_check(request, partial(fresh_schema, postgres_url)) as url:
        yield url


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)


@pytest.fixture
def hold_epoch() -> HoldEpoch:
    """N3: a transaction that has placed its tasks, and goes on no further for a while."""

    @contextmanager
    def hold(store: Store) -> Iterator[None]:
        assert isinstance(store, PostgresStore)
        with store._connections.transaction() as session:
            session.rows("SELECT $schema.hold_epoch($1::bigint)", (store.lanes.read(0).epoch,))
            yield

    return hold
