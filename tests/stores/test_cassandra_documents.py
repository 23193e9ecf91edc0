"""Documents of the Cassandra store whose answer is lost: each write is settled, or is told to be unknown (CA3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from wiggle_core.errors import AmbiguousStoreError, RevisionConflict
from wiggle_core.stores.store import Document
from wiggle_store_cassandra import schema
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.documents import get_document, list_documents, put_document
from wiggle_store_cassandra.place import read_url
from wiggle_store_cassandra.rows import Statement

Event = Callable[[Sequence[Statement]], object]


class Unanswered(Connections):
    """Loses the answers to writes as long as there are events; each is what happens meanwhile."""

    events: list[Event]

    def applied(self, statements: Sequence[Statement]) -> bool:
        if not self.events:
            return super().applied(statements)
        self.events.pop(0)(statements)
        raise AmbiguousStoreError("no answer")

    def arrives(self, statements: Sequence[Statement]) -> None:
        """The write does, and only the answer is lost."""
        super().applied(statements)


@pytest.fixture(scope="module")
def connections(cassandra_url: str) -> Iterator[Unanswered]:
    place = read_url(make_url(cassandra_url).set(database=f"documents_{uuid4().hex[:12]}", query={"shards": "1"}))
    with closing(Unanswered(place)) as opened:
        opened.events = []
        schema.migrate(opened, 0)
        yield opened
        opened.define(f"DROP KEYSPACE {place.keyspace}")


@pytest.fixture
def key(connections: Unanswered) -> str:
    """One that no other test has."""
    connections.events = []
    return uuid4().hex


def nothing(statements: Sequence[Statement]) -> None:
    """The write is lost."""


def another(connections: Unanswered, key: str, body: str) -> Event:
    """Somebody else writes meanwhile."""

    def event(statements: Sequence[Statement]) -> None:
        before, connections.events = connections.events, []
        put_document(connections, 9, "kind", key, body, revision=None)
        connections.events = before

    return event


@pytest.mark.parametrize("revision", [None, 0])
def test_a_document_that_arrived(connections: Unanswered, key: str, revision: int | None) -> None:
    """It is found, so that its revision can be told."""
    connections.events = [connections.arrives]
    assert put_document(connections, 1, "kind", key, "mine", revision=revision) == 1
    assert get_document(connections, "kind", key) == Document("kind", key, 1, "mine", 1)


@pytest.mark.parametrize("revision", [None, 1])
def test_a_document_that_was_lost(connections: Unanswered, key: str, revision: int | None) -> None:
    """It is sent again."""
    put_document(connections, 1, "kind", key, "first", revision=0)
    connections.events = [nothing]
    assert put_document(connections, 2, "kind", key, "mine", revision=revision) == 2
    assert get_document(connections, "kind", key) == Document("kind", key, 2, "mine", 2)


def test_a_document_that_arrives_late(connections: Unanswered, key: str) -> None:
    """After it was looked for, and before it is sent again: of two that are alike one is applied, and it is ours."""
    late: list[Sequence[Statement]] = []
    look = connections.serial_rows

    def and_then(cql: str, binds: Sequence[object] = ()) -> list[tuple[object, ...]]:
        rows = look(cql, binds)
        if late:
            connections.arrives(late.pop())
        return rows

    connections.events = [late.append]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "serial_rows", and_then)
        assert put_document(connections, 1, "kind", key, "mine", revision=0) == 1
    assert get_document(connections, "kind", key) == Document("kind", key, 1, "mine", 1)


@pytest.mark.parametrize("revision", [None, 0])
def test_somebody_else_was_first(connections: Unanswered, key: str, revision: int | None) -> None:
    """Then ours was certainly not applied: a conflict, or a new revision for whoever takes any."""
    connections.events = [another(connections, key, "theirs")]
    if revision is None:
        assert put_document(connections, 1, "kind", key, "mine", revision=None) == 2
    else:
        with pytest.raises(RevisionConflict):
            put_document(connections, 1, "kind", key, "mine", revision=revision)
    found = get_document(connections, "kind", key)
    assert found is not None
    assert (found.revision, found.body) == ((2, "mine") if revision is None else (1, "theirs"))


@pytest.mark.parametrize("revision", [None, 0])
def test_what_was_written_over_cannot_be_told(connections: Unanswered, key: str, revision: int | None) -> None:
    """Ours may have been there: the answer stays open."""

    def event(statements: Sequence[Statement]) -> None:
        connections.arrives(statements)
        another(connections, key, "theirs")(statements)

    connections.events = [event]
    with pytest.raises(AmbiguousStoreError):
        put_document(connections, 1, "kind", key, "mine", revision=revision)
    assert get_document(connections, "kind", key) == Document("kind", key, 2, "theirs", 9)


def test_answers_that_keep_being_lost(connections: Unanswered, key: str) -> None:
    """Are told: the store tries again, and not for ever."""
    connections.events = [nothing, nothing]
    with pytest.raises(AmbiguousStoreError):
        put_document(connections, 1, "kind", key, "mine", revision=0)
    assert get_document(connections, "kind", key) is None


def test_writers_of_one_document_do_not_lose_each_other(connections: Unanswered, key: str) -> None:
    """Every write has a revision of its own; writes that want one revision are applied once."""
    with ThreadPoolExecutor(4) as pool:
        numbers = list(
            pool.map(lambda n: put_document(connections, n, "kind", key, str(n), revision=None), range(1, 21))
        )
    assert sorted(numbers) == list(range(1, 21))

    def contend(number: int) -> bool:
        try:
            return put_document(connections, number, "kind", key, str(number), revision=20) == 21
        except RevisionConflict:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(contend, range(8))) == 1


def test_spaces_do_not_see_each_others_documents(connections: Unanswered, key: str) -> None:
    """Two installations may share a keyspace."""
    put_document(connections, 1, "kind", key, "mine", revision=0)
    url = make_url(connections.place.url).update_query_dict({"space": "other"})
    with closing(Connections(read_url(url))) as other:
        assert list_documents(other, "kind") == []
        assert get_document(other, "kind", key) is None
        put_document(other, 1, "kind", key, "theirs", revision=0)
    found = get_document(connections, "kind", key)
    assert found is not None
    assert found.body == "mine"
