"""What a process of the Cassandra store knows of its shards, and what it tells when something fails on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from tests.stores.cassandra_spaces import fresh_space, migrated, open_url
from wiggle_core.conformance.plugin import ALL, claim, enqueue_all, ids, make_task
from wiggle_core.errors import PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.store import Route
from wiggle_core.tasks.task import State
from wiggle_store_cassandra.connections import Connections, Trace
from wiggle_store_cassandra.documents import get_document
from wiggle_store_cassandra.rows import Statement
from wiggle_store_cassandra.shards import Generations, Shards

_CREATE = (
    "INSERT INTO $document (space, kind, name, revision, body, updated_at) VALUES (?, ?, ?, 1, '', 0) IF NOT EXISTS"
)


def test_what_cannot_be_prepared_is_told_before_anything_is_sent(cassandra_url: str) -> None:
    """L7: of several batches none is applied when one of them cannot be sent at all, so that TRANSIENT is the truth."""
    with migrated(fresh_space(cassandra_url)) as store:
        connections = store._shards.connections
        wanted = (_CREATE, (connections.place.space, "kind", "name"))
        with pytest.raises(PermanentStoreError):
            connections.applied_all([[wanted], [("no CQL", ())]])
        assert get_document(connections, "kind", "name") is None


class _Fleeting(dict[tuple[int, str], Generations]):
    """Another thread forgets whatever is noted, at once."""

    def __setitem__(self, key: tuple[int, str], value: Generations) -> None:
        pass


def test_what_another_thread_forgets_is_known_still(cassandra_url: str) -> None:
    """O4: knowledge that another thread throws away hides no task from the one that has just read it."""
    url = fresh_space(cassandra_url)
    with migrated(url) as store, migrated(url) as other:
        enqueue_all(store, [make_task() for _ in range(6)])
        other._shards._generations = _Fleeting()
        assert other.count(ALL, [State.READY], 100) == 6
        assert len(claim(other, limit=100)) == 6


def test_what_is_known_is_bounded(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are labels, of which there may be any number: what is kept of each in memory is not."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.KNOWN", 3)
    with migrated(fresh_space(cassandra_url)) as store:
        names = [f"queue {number}" for number in range(8)]
        enqueue_all(store, [make_task(queue=name) for name in names])
        assert [len(claim(store, Route(name))) for name in names] == [1] * 8
        assert len(store._shards._generations) <= 3
        assert len(store._shards._taken) <= 3


@pytest.mark.parametrize("error", [TransientStoreError, PermanentStoreError])
def test_a_claim_tells_all_that_it_took(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    """O2: what a claim took it returns, also when what it does afterwards fails."""

    def fail(*_: object) -> None:
        raise error("no node is there any more")

    with migrated(fresh_space(cassandra_url)) as store:
        enqueue_all(store, [make_task() for _ in range(20)])
        monkeypatch.setattr(Shards, "note_taken", fail)
        held = ids(claim(store, limit=20))
        assert len(held) == 20


def test_a_space_has_all_its_shards_or_is_not_there(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds the space finds its shards: a migration that could not make one of them says so, and goes on when
    it runs again."""
    send = Connections.applied_all

    def fail_once(connections: Connections, batches: Sequence[Sequence[Statement]]) -> list[bool | StoreError]:
        if "SET epoch" not in batches[0][0][0]:
            return send(connections, batches)
        monkeypatch.setattr(Connections, "applied_all", send)
        return [*send(connections, batches[1:]), TransientStoreError("no node is there")]

    with closing(open_url(fresh_space(cassandra_url))) as store:
        monkeypatch.setattr(Connections, "applied_all", fail_once)
        with pytest.raises(TransientStoreError):
            store.migrate()
        store.migrate()
        enqueue_all(store, [make_task() for _ in range(10)])
        assert len(claim(store)) == 10


def test_a_trace_may_end_while_others_ask(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """N5: that one thread explains a claim is nothing to the others."""
    with migrated(fresh_space(cassandra_url)) as store:
        ended: list[Trace] = [Trace()]
        ended[0].thread = 0
        monkeypatch.setattr(Connections, "_trace", property(lambda _: ended.pop() if ended else None), raising=False)
        assert store.count(ALL, [State.READY], 1) == 0
