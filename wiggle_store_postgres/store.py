"""The PostgreSQL store: the `Store` protocol over one schema of one database. Each method is a function of the module
that has its SQL."""

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
    Line,
    Route,
    Slice,
)
from wiggle_core.tasks.task import Clock, Lease, OrderKey, State, TaskId, TaskRecord
from wiggle_store_postgres import changes as leasing
from wiggle_store_postgres import documents, enqueueing, explaining, questions, schema
from wiggle_store_postgres.claims import Claiming
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.enlisting import Enlisting
from wiggle_store_postgres.lanes import PostgresLanes
from wiggle_store_postgres.notifying import PostgresLine
from wiggle_store_postgres.place import Place

# `rare_below`: claims of 10 from 300,000 READY tasks on PostgreSQL 18.6, prepared, lower quartile of 60, by the share
# of tasks that match, against 0.32 ms without criteria. A row that is passed by takes 0.2 to 0.5 us, whatever the
# predicate.
#
#   share        0.1 %   0.5 %     1 %     2 %     3 %     5 %    30 %
#   walk (ms)     3.35    0.83    0.57    0.42    0.37    0.35    0.31
#   lane (ms)     0.57    0.46    0.44    0.43    0.43    0.42    0.43
CAPABILITIES = Capabilities(
    name="postgresql",
    strict_order=True,
    native_like=True,
    native_predicate=True,
    rare_below=0.02,
    max_batch=1_000,
    processes=True,
    durable=True,
    heads=True,
)


class PostgresStore:
    """A `Store` in a PostgreSQL schema, for the threads of any number of processes on any number of machines."""

    def __init__(self, place: Place, clock: Clock | None = None, *, is_scratch: bool = False) -> None:
        self._place = place
        self._connections = Connections(place)
        self._enlisting = Enlisting(self._connections)
        self._claiming = Claiming(self._connections)
        self._lanes = PostgresLanes(self._connections, self._injected)
        self._clock = clock
        self._estimate = EstimatedClock(lambda: questions.now(self._connections))
        self._is_scratch = is_scratch
        if is_scratch:
            self.migrate()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def lanes(self) -> PostgresLanes:
        return self._lanes

    def now(self) -> int:
        return self._estimate() if self._clock is None else self._clock()

    def _injected(self) -> int | None:
        """The time that statements are to go by; None for the database's own (L1)."""
        return None if self._clock is None else self._clock()

    # Schema

    def migrate(self) -> list[str]:
        return schema.migrate(self._connections, self._injected())

    def verify(self) -> None:
        schema.verify(self._connections)

    def audit(self) -> list[str]:
        return schema.audit(self._connections)

    def schema_sql(self) -> str:
        return schema.schema_sql(self._place)

    def role_sql(self, role: str) -> str:
        return schema.role_sql(self._place, role)

    def close(self) -> None:
        self._connections.close()
        if self._is_scratch:
            schema.drop(self._place)

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        return enqueueing.enqueue(self._connections, tasks, placed)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return self._claiming.claim(self._injected(), request)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        return leasing.extend(self._connections, self._injected(), leases, ttl)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        return leasing.apply(self._connections, self._injected(), changes, placed)

    def due(self, limit: int) -> list[TaskRecord]:
        return questions.due(self._connections, self._injected(), limit)

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        return questions.lookup(self._connections, ids)

    def leased(self, token: str) -> list[TaskRecord]:
        return questions.leased(self._connections, token)

    # Optional powers

    def enlist(self, connection: object, tasks: Sequence[TaskRecord]) -> None:
        self._enlisting.enlist(connection, tasks, self._injected())

    @property
    def notifies(self) -> bool:
        return self._place.notifies

    def open_line(self, *, hears: bool) -> Line:
        return PostgresLine(self._place, hears=hears)

    # Questions

    def get(self, task_id: TaskId) -> TaskRecord | None:
        return questions.get(self._connections, task_id)

    def find(
        self, route: Route, states: Collection[State], limit: int, after: OrderKey | None = None
    ) -> list[TaskRecord]:
        return questions.find(self._connections, route, states, limit, after)

    def count(self, route: Route, states: Collection[State], cap: int) -> int:
        return questions.count(self._connections, route, states, cap)

    def slices(self) -> list[Slice]:
        return questions.slices(self._connections)

    def explain(self, route: Route, limit: int) -> Explanation:
        return explaining.explain(self._connections, self._injected(), route, limit)

    def purge(self, before: int, limit: int) -> int:
        return questions.purge(self._connections, before, limit)

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        return documents.put_document(self._connections, self._injected(), kind, key, body, revision=revision)

    def get_document(self, kind: str, key: str) -> Document | None:
        return documents.get_document(self._connections, kind, key)

    def list_documents(self, kind: str) -> list[Document]:
        return documents.list_documents(self._connections, kind)

    def delete_document(self, kind: str, key: str) -> bool:
        return documents.delete_document(self._connections, kind, key)
