"""The kit as wrong stores adopt it. Collected by `sabotage` only, which says by which stores each check is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.conformance.saboteurs import Saboteur


@pytest.fixture
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    saboteur: Saboteur = request.param
    return saboteur.make(tmp_path)
