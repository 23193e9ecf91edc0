"""The kit as wrong stores adopt it. Collected by `sabotage` only, which says by which stores each check is tried."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.epoch_saboteurs import TwoStepStore
from wiggle_core.conformance.lanes_openers import HoldEpoch
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.conformance.saboteurs import Saboteur
from wiggle_core.stores.store import Store


@pytest.fixture
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    saboteur: Saboteur = request.param
    return saboteur.make(tmp_path)


@pytest.fixture
def hold_epoch() -> HoldEpoch:
    def hold(store: Store) -> AbstractContextManager[None]:
        if not isinstance(store, TwoStepStore):
            pytest.skip("its calls are one step each")
        return store.holding()

    return hold
