"""The PostgreSQL store keeps the contract: the conformance kit, adopted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.postgres_schemas import fresh_schema, open_url
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory


@pytest.fixture
def store_url(postgres_url: str) -> Iterator[str]:
    with fresh_schema(postgres_url) as url:
        yield url


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)
