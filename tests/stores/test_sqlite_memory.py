"""SQLite in memory keeps the contract: the conformance kit, adopted."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite import open_store


@pytest.fixture
def store_factory() -> StoreFactory:
    """One object stands for every handle: its database is its connection."""
    opened: list[Store] = []

    def open_handle(clock: Clock | None = None) -> Store:
        if not opened:
            opened.append(open_store(make_url("sqlite://"), clock=clock))
        return opened[0]

    return open_handle
