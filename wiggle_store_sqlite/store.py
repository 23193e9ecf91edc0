"""The SQLite store: the `Store` protocol over one file, or over memory. Each method is a function of the module that
has its SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from wiggle_core.stores.lanes import NO_LANES, Placed
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
from wiggle_core.tasks.task import Clock, Lease, OrderKey, State, TaskId, TaskRecord, system_clock
from wiggle_store_sqlite import changes as leasing
from wiggle_store_sqlite import claims, documents, enqueueing, questions, schema
from wiggle_store_sqlite.connections import Connections
from wiggle_store_sqlite.lanes import SqliteLanes
from wiggle_store_sqlite.place import Place


class SqliteStore:
    """A `Store` in a SQLite file, for the threads of any number of processes on one machine.

    The database's clock is the machine's (SQ5), read while the write lock is held. Open it after a fork, not before
    (SQ4).
    """

    def __init__(self, place: Place, clock: Clock | None = None, *, is_scratch: bool = False) -> None:
        self._connections = Connections(place)
        self._clock: Clock = clock or system_clock
        self._is_scratch = is_scratch
        self.capabilities = Capabilities(
            name="sqlite",
            strict_order=True,
            native_like=True,
            native_predicate=True,
            rare_below=0.05,
            max_batch=1_000,
            processes=not place.is_memory,
            durable=not place.is_memory,
        )
        if place.is_memory or is_scratch:
            self.migrate()

    @property
    def lanes(self) -> SqliteLanes:
        return SqliteLanes(self._connections, self._clock)

    def now(self) -> int:
        return self._clock()

    # Schema

    def migrate(self) -> list[str]:
        return schema.migrate(self._connections, self._clock)

    def verify(self) -> None:
        schema.verify(self._connections)

    def audit(self) -> list[str]:
        return schema.audit(self._connections)

    def schema_sql(self) -> str:
        return schema.schema_sql()

    def close(self) -> None:
        self._connections.close()
        if self._is_scratch and not self._connections.place.is_memory:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(self._connections.place.path + suffix).unlink()

    # Tasks

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        return enqueueing.enqueue(self._connections, tasks, placed)

    def claim(self, request: ClaimRequest) -> list[TaskRecord]:
        return claims.claim(self._connections, self._clock, request)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        return leasing.extend(self._connections, self._clock, leases, ttl)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        return leasing.apply(self._connections, self._clock, changes, placed)

    def due(self, limit: int) -> list[TaskRecord]:
        return questions.due(self._connections, self._clock, limit)

    def lookup(self, ids: Sequence[TaskId]) -> dict[TaskId, Fate]:
        return questions.lookup(self._connections, ids)

    def leased(self, token: str) -> list[TaskRecord]:
        return questions.leased(self._connections, token)

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
        return claims.explain(self._connections, route, limit)

    def purge(self, before: int, limit: int) -> int:
        return questions.purge(self._connections, before, limit)

    # Documents

    def put_document(self, kind: str, key: str, body: str, revision: int | None = None) -> int:
        return documents.put_document(self._connections, self._clock, kind, key, body, revision=revision)

    def get_document(self, kind: str, key: str) -> Document | None:
        return documents.get_document(self._connections, kind, key)

    def list_documents(self, kind: str) -> list[Document]:
        return documents.list_documents(self._connections, kind)

    def delete_document(self, kind: str, key: str) -> bool:
        return documents.delete_document(self._connections, kind, key)
