"""The SQLite store keeps the contract: the conformance kit, adopted."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_store_sqlite import open_store


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_store(make_url(store_url), clock=clock)
