"""History of the Cassandra store: what purging and looking up read, however much there is (CA1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.stores.cassandra_spaces import fresh_space, migrated, recorded
from wiggle_core.conformance.plugin import ALL, ManualClock, claim, enqueue_all, make_task
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import SETTLED, State
from wiggle_store_cassandra import history
from wiggle_store_cassandra.connections import Connections, Row
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.store import CassandraStore


def _settle(store: CassandraStore, count: int) -> None:
    """So many tasks are in history."""
    enqueue_all(store, [make_task(payload='{"a":"payload"}') for _ in range(count)])
    store.apply([Finish(task.lease, State.DONE) for task in claim(store)])
    store.due(100)


def _rows_of(monkeypatch: pytest.MonkeyPatch, text: str) -> list[Row]:
    """The rows that are read from now on by questions with this text."""
    read: list[Row] = []
    many = Connections.many

    def noted(connections: Connections, asks: Sequence[Statement]) -> list[list[Row]]:
        answers = many(connections, asks)
        for (cql, _), rows in zip(asks, answers, strict=True):
            read.extend(rows if text in cql else ())
        return answers

    monkeypatch.setattr(Connections, "many", noted)
    return read


@pytest.mark.parametrize("hours", [0, 5], ids=["the present hour", "an hour that is over"])
def test_purging_reads_what_it_forgets(cassandra_url: str, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """CA1: a purge reads as many tasks as it may forget, and not all that moved within the hour; it ends."""
    clock = ManualClock()
    with migrated(fresh_space(cassandra_url, shards=1), clock) as store:
        _settle(store, 20)
        clock.move(hours * 3600 + 60)
        read = _rows_of(monkeypatch, "$settled ")
        assert store.purge(clock.now, 3) == 3
        assert len(read) == 3
        assert [store.purge(clock.now, 10) for _ in range(3)] == [10, 7, 0]
        assert store.count(ALL, SETTLED, 100) == 0


def test_an_hour_is_forgotten_with_few_tombstones(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1: of an hour that is over each purge leaves one tombstone, and what is younger stays."""
    clock = ManualClock()
    with migrated(fresh_space(cassandra_url, shards=1), clock) as store:
        _settle(store, 12)
        before = clock.move(1)
        clock.move(1)
        _settle(store, 5)
        clock.move(5 * 3600)
        with recorded(monkeypatch) as sent:
            assert [store.purge(before, 5) for _ in range(4)] == [5, 5, 2, 0]
        assert len([cql for cql, _ in sent.plain if "FROM $settled " in cql]) == 3
        assert store.count(ALL, SETTLED, 100) == 5
        assert store.audit() == []
        assert store.purge(clock.now, 100) == 5
        place = (store._shards.space,)
        assert store._shards.connections.rows("SELECT hour FROM $settled_hour WHERE space = ?", place) == []


def test_a_lookup_reads_no_payload(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: what became of tasks is told without reading what they carry, be they live or settled."""
    with migrated(fresh_space(cassandra_url), ManualClock()) as store:
        _settle(store, 3)
        enqueue_all(store, [make_task("live"), make_task("other")])
        names = [task.id for task in store.find(ALL, list(State), 10)]
        read = _rows_of(monkeypatch, "payload")
        assert len(store.lookup(names)) == 5
        assert read == []
        found = store.find(ALL, [State.DONE], 10)
        assert [task.payload for task in found] == ['{"a":"payload"}'] * 3


def test_moving_much_does_not_read_what_it_moved(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1: whatever is settled moves in parts, each of which begins where the last one ended."""
    monkeypatch.setattr(history, "MOVED_AT_ONCE", 5)
    with migrated(fresh_space(cassandra_url, shards=1), ManualClock()) as store:
        enqueue_all(store, [make_task() for _ in range(40)])
        store.apply([Finish(task.lease, State.DONE) for task in claim(store)])
        with store._shards.connections.tracing() as told:
            store.purge(0, 1)
        met = [int(number) for line in told.events for number in re.findall(r"and (\d+) tombstone", line)]
        assert sum(met) <= 10, met
        assert store.count(ALL, SETTLED, 100) == 40
        assert store.audit() == []
