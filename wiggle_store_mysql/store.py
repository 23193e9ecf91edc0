"""The MySQL and MariaDB store: the `Store` protocol over tables in one database. Each method is a function of the
module that has its SQL."""

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
from wiggle_store_mysql import changes as leasing
from wiggle_store_mysql import documents, enqueueing, explaining, questions, schema
from wiggle_store_mysql.claims import Claiming
from wiggle_store_mysql.connections import Connections
from wiggle_store_mysql.enlisting import Enlisting
from wiggle_store_mysql.lanes import MySQLLanes
from wiggle_store_mysql.place import Place

# `rare_below`: the first round trip of claims of 10 from 100,000 READY tasks, lower quartile of 60, by the share of
# tasks that match, against 0.4 ms without criteria; the second one is the same, but for the rows of a lane to delete.
#
#   share                0.1 %   0.5 %     1 %     2 %     3 %     5 %    10 %    30 %
#   MySQL, walk (ms)      81.6    12.4     3.9     2.2     1.6     1.2     0.9     0.6
#   MySQL, lane (ms)      0.95    0.87    0.84    0.81    0.89    0.87    0.96    1.27
#   MariaDB, walk (ms)    52.8     4.0     2.3     1.4     1.1     1.0     0.7     0.6
#   MariaDB, lane (ms)    0.67    0.60    0.59    0.69    0.69    0.64    0.70    0.92
CAPABILITIES = Capabilities(
    name="mysql",
    strict_order=True,
    native_like=True,
    native_predicate=True,
    rare_below=0.05,
    max_batch=1_000,
    processes=True,
    durable=True,
)


class MySQLStore:
    """A `Store` in a MySQL or MariaDB database, for threads of any number of processes on any number of machines."""

    def __init__(self, place: Place, clock: Clock | None = None, *, is_scratch: bool = False) -> None:
        self._place = place
        self._connections = Connections(place)
        self._enlisting = Enlisting(self._connections)
        self._claiming = Claiming(self._connections)
        self._lanes = MySQLLanes(self._connections, self._injected)
        self._clock = clock
        self._estimate = EstimatedClock(lambda: questions.now(self._connections))
        self._is_scratch = is_scratch
        if is_scratch:
            self.migrate()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def lanes(self) -> MySQLLanes:
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

    def advice(self) -> list[str]:
        return schema.advise(self._connections)

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
