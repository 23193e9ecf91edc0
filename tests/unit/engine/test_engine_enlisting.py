"""Section 6, `Enlist`, where the store has no such power."""

from __future__ import annotations

import asyncio

import pytest

from wiggle_core import AsyncEngine, Engine, EnlistRejected, NewTask
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Enlist


def test_a_store_without_the_power_is_named() -> None:
    """Section 6: an optional power that is missing is a clear error, not a method that fails."""
    engine = Engine(Replaying(MemoryStore()))
    assert not isinstance(engine.store, Enlist)
    with pytest.raises(EnlistRejected, match="the store 'memory' has no transactions of callers to join"):
        engine.enlist(object(), [NewTask("q", "s")])
    with pytest.raises(EnlistRejected, match="the store 'memory'"):
        asyncio.run(AsyncEngine(engine).enlist(object(), [NewTask("q", "s")]))
