"""The session of one store: questions, plain writes and conditional batches, several side by side.

Nothing is ever retried here (CA3). Rows that change are written by conditional batches only, at LOCAL_SERIAL; what is
written plainly is written once, and deleted once (CA4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import getpid
from threading import Lock, get_ident
from typing import Any, TypeAlias
from uuid import UUID

from wiggle_store_cassandra.driver import connect, learn_replicas, local_datacenter  # isort: skip # before the driver

from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster, ResponseFuture, Session
from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement, TraceUnavailable

from wiggle_core.errors import PermanentStoreError, StoreError
from wiggle_store_cassandra.errors import DRIVER_ERRORS, failure
from wiggle_store_cassandra.place import Place, in_place
from wiggle_store_cassandra.rows import Statement

Row: TypeAlias = tuple[Any, ...]  # Any: the driver's types are those of the values

_NOW = "SELECT now() FROM system.local"
_GREGORIAN = 0x01B21DD213814000
"""From the beginning of time in UUIDs, 1582, to the epoch, in units of 100 ns."""

_DEFINITION_SECONDS = 60.0
"""How long to wait at least for a statement of DDL, on which all nodes have to agree."""

_TRACE_SECONDS = 10.0

SIDE_BY_SIDE = 64
"""How many plain writes, or questions, are under way at once; the driver would take any number, the node not."""


class Trace:
    """What one thread asked meanwhile, and what the nodes tell of it."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.statements: list[Statement] = []
        self.rows = 0
        self.events: list[str] = []


class Connections:
    """A session, made when it is needed. For threads; a process that was forked makes its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = Lock()
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._prepared: dict[str, PreparedStatement] = {}
        self._owner = 0
        self._is_closed = False
        self._trace: Trace | None = None

    @property
    def session(self) -> Session:
        """The driver's session. Raises StoreError."""
        if self._is_closed:
            raise PermanentStoreError(f"{self.place} was closed by this program: open the store again")
        if self._session is not None and self._owner == getpid():
            return self._session
        with self._lock:
            if self._session is None or self._owner != getpid():
                self._prepared = {}
                try:
                    self._cluster, self._session = connect(self.place)
                except DRIVER_ERRORS as error:
                    raise failure(self.place, error, is_change=False) from error
                self._owner = getpid()
            return self._session

    def close(self) -> None:
        """End the session. In a forked child nothing is ended: it is the parent's."""
        self._is_closed = True
        with self._lock:
            cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None and self._owner == getpid():
            cluster.shutdown()

    # The schema

    def define(self, cql: str) -> None:
        """Run a statement of DDL, whose names are filled in already. Raises StoreError."""
        try:
            self.session.execute(cql, timeout=max(self.place.timeout, _DEFINITION_SECONDS))
        except DRIVER_ERRORS as error:
            raise failure(self.place, error, is_change=False) from error

    def local_datacenter(self) -> tuple[str, int]:
        """The data centre that is worked with, and how many nodes it has."""
        _ = self.session
        return local_datacenter(self.place, self._cluster)

    def learn_replicas(self) -> None:
        """From now on statements go to nodes that hold what they are about: the keyspace is there."""
        session = self.session
        try:
            learn_replicas(self.place, self._cluster, session)
        except DRIVER_ERRORS as error:
            raise failure(self.place, error, is_change=False) from error

    # Questions

    def rows(self, cql: str, binds: Sequence[object] = ()) -> list[Row]:
        """The rows that answer a question."""
        return self.many([(cql, tuple(binds))])[0]

    def serial_rows(self, cql: str, binds: Sequence[object] = ()) -> list[Row]:
        """Likewise, after what nodes have begun in the partition has been brought to an end. A change that waits on a
        node for its turn is none of that."""
        bound = self._bound((cql, tuple(binds)))
        bound.consistency_level = ConsistencyLevel.LOCAL_SERIAL
        return self._answers([self._send(bound, is_change=False)], is_change=False)[0]

    def many(self, asks: Sequence[Statement]) -> list[list[Row]]:
        """The answers to several questions, asked side by side."""
        trace = self._trace  # another thread may end it at any time
        if trace is not None and trace.thread == get_ident():
            return self._traced(trace, asks)
        found: list[list[Row]] = []
        for start in range(0, len(asks), SIDE_BY_SIDE):
            part = [self._send(self._bound(each), is_change=False) for each in asks[start : start + SIDE_BY_SIDE]]
            found += self._answers(part, is_change=False)
        return found

    @contextmanager
    def tracing(self) -> Iterator[Trace]:
        """Note what this thread asks, one question after another, and what the nodes tell of each."""
        trace = self._trace = Trace()
        try:
            yield trace
        finally:
            self._trace = None

    def _traced(self, trace: Trace, asks: Sequence[Statement]) -> list[list[Row]]:
        found = []
        for each in asks:
            try:
                answer = self.session.execute(self._bound(each), trace=True)
                found.append(list(answer))
                told = answer.get_query_trace(max_wait_sec=_TRACE_SECONDS)
            except (*DRIVER_ERRORS, TraceUnavailable) as error:
                raise failure(self.place, error, is_change=False) from error
            trace.statements.append(each)
            trace.rows += len(found[-1])
            trace.events += [event.description for event in told.events]
        return found

    def now(self) -> int:
        """The time of the node that answers, in epoch microseconds (L1)."""
        ((now,),) = self.rows(_NOW)
        assert isinstance(now, UUID)
        return (now.time - _GREGORIAN) // 10

    # Writes

    def write(self, statements: Sequence[Statement]) -> None:
        """Write, or delete, rows that never change, side by side. May be done twice."""
        for start in range(0, len(statements), SIDE_BY_SIDE):
            part = [self._send(self._bound(each), is_change=False) for each in statements[start : start + SIDE_BY_SIDE]]
            self._answers(part, is_change=False)

    def applied(self, statements: Sequence[Statement]) -> bool:
        """Send one conditional batch, all of it in one partition; False when a condition did not hold.

        Raises AmbiguousStoreError when no answer came.
        """
        (outcome,) = self.applied_all([statements])
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def applied_all(self, batches: Sequence[Sequence[Statement]]) -> list[bool | StoreError]:
        """Likewise for several, side by side: whether each was applied, or why that is not so or not known."""
        # What cannot be prepared fails before the first is sent, so that nothing is applied then.
        sent = [self._try_to_send(each) for each in [self._batch(each) for each in batches]]
        return [each if isinstance(each, StoreError) else self._outcome(each) for each in sent]

    def _try_to_send(self, bound: BoundStatement | BatchStatement) -> ResponseFuture | StoreError:
        try:
            return self._send(bound, is_change=True)
        except StoreError as error:
            return error

    def _outcome(self, sent: ResponseFuture) -> bool | StoreError:
        try:
            return bool(sent.result().was_applied)
        except DRIVER_ERRORS as error:
            told = failure(self.place, error, is_change=True)
            told.__cause__ = error
            return told

    def _batch(self, statements: Sequence[Statement]) -> BoundStatement | BatchStatement:
        if len(statements) == 1:
            return self._bound(statements[0])
        batch = BatchStatement(BatchType.UNLOGGED, serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL)
        for each in statements:
            batch.add(self._bound(each))
        return batch

    # The driver

    def _bound(self, statement: Statement) -> BoundStatement:
        cql, binds = statement
        return self._prepare(cql).bind(binds)

    def _prepare(self, cql: str) -> PreparedStatement:
        session = self.session
        found = self._prepared.get(cql)
        if found is None:
            try:
                found = self._prepared[cql] = session.prepare(in_place(cql, self.place))
            except DRIVER_ERRORS as error:
                raise failure(self.place, error, is_change=False) from error
        return found

    def _send(self, bound: BoundStatement | BatchStatement, *, is_change: bool) -> ResponseFuture:
        try:
            return self.session.execute_async(bound)
        except DRIVER_ERRORS as error:
            raise failure(self.place, error, is_change=is_change) from error

    def _answers(self, sent: Sequence[ResponseFuture], *, is_change: bool) -> list[list[Row]]:
        """All of them, however many pages; the first error after every answer has come."""
        found: list[list[Row]] = []
        first: Exception | None = None
        for each in sent:
            try:
                found.append(list(each.result()))
            except DRIVER_ERRORS as error:
                first = first or error
        if first is not None:
            raise failure(self.place, first, is_change=is_change) from first
        return found
