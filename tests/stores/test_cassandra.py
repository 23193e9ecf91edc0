"""The store keeps the contract on Cassandra: the conformance kit, adopted."""

from __future__ import annotations

import pytest

from tests.stores.cassandra_spaces import fresh_space, open_url
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory


@pytest.fixture
def store_url(cassandra_url: str) -> str:
    return fresh_space(cassandra_url)


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)
