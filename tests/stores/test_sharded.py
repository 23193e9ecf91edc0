"""The kit asks of a store what its capabilities say: one that claims shard by shard is right without the order O1."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge
from itertools import count, islice
from zlib import crc32

import pytest

from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.stores.memory import CAPABILITIES, MemoryStore
from wiggle_core.stores.store import Capabilities, ClaimRequest, Store
from wiggle_core.tasks.task import Clock, OrderKey, TaskRecord

SHARDS = 3


class ShardedStore(MemoryStore):
    """Each claim begins with another shard; within a shard it goes in claim order."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._turns = count()

    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, name="sharded", strict_order=False)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        with self._lock:
            turn = next(self._turns)

            def place(key: OrderKey) -> int:
                return (crc32(key.id.encode()) + turn) % SHARDS

            keys = sorted(merge(*map(self._walk, request.routes)), key=place)
            lease_until = self.now() + request.ttl
            return [self._lease(self._live[key.id], request, lease_until) for key in islice(keys, request.limit)]


@pytest.fixture
def store_factory() -> StoreFactory:
    opened: list[ShardedStore] = []

    def open_handle(clock: Clock | None = None) -> Store:
        if not opened:
            opened.append(ShardedStore(clock))
        return opened[0]

    return open_handle
