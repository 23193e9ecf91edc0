"""Saboteurs of claims by a queue's head (N1, N3, O1): stores that join what is before the bound and what is behind it
wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from wiggle_core.conformance.saboteurs import Saboteur, in_memory
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import ClaimRequest, Route
from wiggle_core.tasks.task import OrderKey, TaskRecord


class WalksFromTheBound(MemoryStore):
    """A walk by a head begins at the bound, and forgets what is before it."""

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        keys, head = super()._walk(route), route.head
        return keys if head is None else (key for key in keys if not head.is_before(key))


class ReadsTheHeadWhole(MemoryStore):
    """Of the tasks in the head's lane none is asked whether it matches."""

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        keys, head = super()._walk(route), route.head
        if head is None:
            return keys
        return chain(self._lanes.keys(head.lane), (key for key in keys if not head.is_before(key)))


class ReadsTheHeadLast(MemoryStore):
    def _walk(self, route: Route) -> Iterator[OrderKey]:
        keys, head = super()._walk(route), route.head
        return keys if head is None else iter(sorted(keys, key=head.is_before))


class WalksBehindTheBound(MemoryStore):
    """Tasks at the very bound are in neither part."""

    def _walk(self, route: Route) -> Iterator[OrderKey]:
        keys, head = super()._walk(route), route.head
        return keys if head is None else (key for key in keys if key[:2] != (head.priority, head.created_at))


class TrustsAnyHead(MemoryStore):
    """Claims by a head do not look whether its lane is open."""

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return super().claim(replace(request, routes=tuple(replace(each, head=None) for each in request.routes)))


HEADS: tuple[Saboteur, ...] = (
    Saboteur("forgets what comes before a head's bound", "N1", in_memory(WalksFromTheBound)),
    Saboteur("returns what a head's lane has, matching or not", "N1", in_memory(ReadsTheHeadWhole)),
    Saboteur("returns what a head's lane has at last", "O1", in_memory(ReadsTheHeadLast)),
    Saboteur("forgets what is at a head's bound", "N1", in_memory(WalksBehindTheBound)),
    Saboteur("claims by a head that is not open", "N3", in_memory(TrustsAnyHead)),
)
"""The saboteurs of heads."""
