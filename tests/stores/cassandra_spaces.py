"""What the tests of the Cassandra store share: spaces of their own in one keyspace, and what is sent to the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from tests.stores.postgres_schemas import with_options
from wiggle_core.errors import StoreError
from wiggle_core.tasks.task import Clock
from wiggle_store_cassandra import open_store
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.store import CassandraStore

SHARDS = 2
"""Few, so that tasks meet in one, and since each costs every question that is asked."""


def open_url(url: str, clock: Clock | None = None) -> CassandraStore:
    """A store, whose space need not be there."""
    return open_store(make_url(url), clock=clock)


def fresh_space(url: str, shards: int = SHARDS) -> str:
    """A URL with a space that is not there yet. It is not deleted: a space is no table, and the node goes with the
    tests."""
    return with_options(url, space=f"test_{uuid4().hex[:12]}", shards=str(shards))


@contextmanager
def migrated(url: str, clock: Clock | None = None) -> Iterator[CassandraStore]:
    """A store with its space, closed at the end."""
    with closing(open_url(url, clock)) as store:
        store.migrate()
        yield store


class Sent:
    """What stores send meanwhile: conditional batches, and plain writes."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Statement]] = []
        self.plain: list[Statement] = []


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """Note what is sent, and send it."""
    sent = Sent()
    batches, plain = Connections.applied_all, Connections.write

    def note_batches(connections: Connections, given: Sequence[Sequence[Statement]]) -> list[bool | StoreError]:
        sent.batches += given
        return batches(connections, given)

    def note_plain(connections: Connections, given: Sequence[Statement]) -> None:
        sent.plain += given
        plain(connections, given)

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "applied_all", note_batches)
        patch.setattr(Connections, "write", note_plain)
        yield sent


class Crash(BaseException):
    """The process dies. Nothing that the store catches."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: int, *, is_sent: bool) -> Iterator[Callable[[], bool]]:
    """Die at the given write, counted from 0: just before it is sent, or just after. Every batch and every plain write
    is a step of its own, also where some are sent side by side. Tells whether that write came."""
    count, died = 0, False
    batches, plain = Connections.applied_all, Connections.write

    def next_step(send: Callable[[], None]) -> None:
        nonlocal count, died
        is_last, count = count == step, count + 1
        if is_last:
            died = True
            if is_sent:
                send()
            raise Crash
        send()

    def one_by_one(connections: Connections, given: Sequence[Sequence[Statement]]) -> list[bool | StoreError]:
        outcomes: list[bool | StoreError] = []
        for each in given:
            next_step(lambda batch=each: outcomes.extend(batches(connections, [batch])))  # type: ignore[misc]
        return outcomes

    def one_after_another(connections: Connections, given: Sequence[Statement]) -> None:
        for each in given:
            next_step(lambda statement=each: plain(connections, [statement]))  # type: ignore[misc]

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "applied_all", one_by_one)
        patch.setattr(Connections, "write", one_after_another)
        with suppress(Crash):
            yield lambda: died
