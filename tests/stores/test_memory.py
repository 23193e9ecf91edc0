"""The conformance kit on the reference store."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.stores.memory import MemoryStore, open_store
from wiggle_core.stores.store import Store
from wiggle_core.tasks.task import Clock


@pytest.fixture
def store_factory() -> StoreFactory:
    """One object stands for every handle: its database is itself."""
    opened: list[MemoryStore] = []

    def open_handle(clock: Clock | None = None) -> Store:
        if not opened:
            opened.append(open_store(make_url("memory://"), clock=clock))
        return opened[0]

    return open_handle
