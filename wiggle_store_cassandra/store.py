"""The Cassandra store: the `Store` protocol over one space of a keyspace. Each method is a function of the module that
has its CQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wiggle_core.stores.lanes import NO_LANES, Placed
from wiggle_core.stores.sql.clock import EstimatedClock
from wiggle_core.stores.store import (
    Capabilities,
    Change,
    ClaimRequest,
    Document,
    Explanation,
    Fate,
    Route,
    Slice,
)
from wiggle_core.tasks.task import Clock, Lease, OrderKey, State, TaskId, TaskRecord
from wiggle_store_cassandra import auditing, changes, documents, enqueueing, explaining, history, questions, schema
from wiggle_store_cassandra.book import Book
from wiggle_store_cassandra.changes import Applying
from wiggle_store_cassandra.claims import Claiming
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.lanes import CassandraLanes
from wiggle_store_cassandra.place import Place
from wiggle_store_cassandra.shards import Shards

CAPABILITIES = Capabilities(
    name="cassandra",
    strict_order=False,
    native_like=False,
    native_predicate=False,
    rare_below=0.05,
    max_batch=1_000,
    processes=True,
    durable=True,
)


class CassandraStore:
    """A `Store` in a Cassandra keyspace, for threads of any number of processes on any number of machines."""

    def __init__(self, place: Place, clock: Clock | None = None, *, is_scratch: bool = False) -> None:
        self._place = place
        self._connections = Connections(place)
        self._clock: Clock = clock or EstimatedClock(self._connections.now)
        self._shards = Shards(self._connections)
        self._book = Book(self._shards)
        self._claiming = Claiming(self._shards, self._book)
        self._lanes = CassandraLanes(self._shards, self._book, self._clock)
        self._is_scratch = is_scratch
        if is_scratch:
            self.migrate()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def lanes(self) -> CassandraLanes:
        return self._lanes

    def now(self) -> int:
        return self._clock()

    # Schema

    def migrate(self) -> list[str]:
        return schema.migrate(self._connections, self._connections.now())

    def verify(self) -> None:
        schema.verify(self._shards)

    def audit(self) -> list[str]:
        return auditing.audit(self._shards, self._book)

    def schema_sql(self) -> str:
        return schema.schema_sql(self._place)

    def role_sql(self, role: str) -> str:
        return schema.role_sql(self._place, role)

    def close(self) -> None:
        if self._is_scratch:
            self._is_scratch = False
            schema.drop_space(self._connections, range(self._shards.count))
        self._connections.close()

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        return enqueueing.enqueue(self._shards, self._book, tasks, placed)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return self._claiming.claim(self._clock(), request)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        return changes.extend(self._shards, self._clock(), leases, ttl)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        return Applying(self._shards, self._book, self._clock(), placed).apply(changes)

    def due(self, limit: int) -> list[TaskRecord]:
        return questions.due(self._shards, self._clock(), limit)

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        return questions.lookup(self._shards, ids)

    def leased(self, token: str) -> list[TaskRecord]:
        return questions.leased(self._shards, token)

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        return questions.get(self._shards, task_id)

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        return questions.find(self._shards, route, states, limit, after)

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        return questions.count(self._shards, route, states, cap)

    def slices(self) -> list[Slice]:
        return questions.slices(self._shards)

    def explain(self, route: Route, limit: int) -> Explanation:
        return explaining.explain(self._shards, self._claiming, self._clock(), route, limit)

    def purge(self, before: int, limit: int) -> int:
        return history.purge(self._shards, self._clock(), before, limit)

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        return documents.put_document(self._shards.there(), self._clock(), kind, key, body, revision=revision)

    def get_document(self, kind: str, key: str) -> Document | None:
        return documents.get_document(self._shards.there(), kind, key)

    def list_documents(self, kind: str) -> list[Document]:
        return documents.list_documents(self._shards.there(), kind)

    def delete_document(self, kind: str, key: str) -> bool:
        return documents.delete_document(self._shards.there(), kind, key)
