"""The store keeps the contract on MySQL: the conformance kit, adopted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.stores.mysql_prefixes import epoch_holder, fresh_place, open_url
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.lanes_openers import HoldEpoch
from wiggle_core.conformance.plugin import StoreFactory


@pytest.fixture
def store_url(request: pytest.FixtureRequest, mysql_url: str, mysql_places: UsedPlaces) -> Iterator[str]:
    with mysql_places.for_check(request, partial(fresh_place, mysql_url)) as url:
        yield url


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)


@pytest.fixture
def hold_epoch() -> HoldEpoch:
    return epoch_holder()
