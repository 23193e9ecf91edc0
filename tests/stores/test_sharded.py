"""The kit asks of a store what its capabilities say: one that claims shard by shard is right without the order O1."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge
from itertools import count
from zlib import crc32

import pytest

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.stores.memory import CAPABILITIES, MemoryStore
from wiggle_core.stores.store import Capabilities, ClaimRequest, Store
from wiggle_core.tasks.task import Clock, OrderKey

SHARDS = 3


class ShardedStore(MemoryStore):
    """Each claim begins with another shard; within a shard it goes in claim order."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._turns = count()

    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, name="sharded", strict_order=False)

    def _first(self, request: ClaimRequest) -> list[OrderKey]:
        turn = next(self._turns)

        def place(key: OrderKey) -> int:
            return (crc32(key.id.encode()) + turn) % SHARDS

        return sorted(merge(*map(self._keys, request.routes)), key=place)[: request.limit]


@pytest.fixture
def store_factory() -> StoreFactory:
    opened: list[ShardedStore] = []

    def open_handle(clock: Clock | None = None) -> Store:
        if not opened:
            opened.append(ShardedStore(clock))
        return opened[0]

    return open_handle
