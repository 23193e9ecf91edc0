"""`AsyncEngine`: the engine for asyncio, each call made in a thread. There is no second code path."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.engine.coverage import DEFAULT_CAP, DEFAULT_SAMPLES, Backlog
from wiggle_core.engine.engine import DEFAULT_BATCH, DEFAULT_LEASE, Engine, Enqueued
from wiggle_core.engine.sweeper import DEFAULT_LIMIT, Swept
from wiggle_core.engine.workers import WorkerInfo
from wiggle_core.tasks.attributes import Attribute
from wiggle_core.tasks.outcome import Outcome
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.submission import NewTask
from wiggle_core.tasks.task import LIVE, Lease, OrderKey, State, TaskId, TaskRecord


class AsyncEngine:
    """The methods of `Engine`, to be awaited. A cancelled call goes on in its thread; its effect is not undone."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Engine.close`."""
        await to_thread(self.engine.close)

    async def migrate(self) -> list[str]:
        """As `Engine.migrate`."""
        return await to_thread(self.engine.migrate)

    async def declare(self, workflow: str, *, version: int, attributes: Iterable[Attribute]) -> None:
        """As `Engine.declare`."""
        await to_thread(self.engine.declare, workflow, version=version, attributes=attributes)

    async def enqueue(
        self,
        queue: str,
        step: str,
        payload: object = None,
        *,
        workflow: str | None = None,
        version: int | None = None,
        node: str | None = None,
        kind: str = "task",
        correlation_id: str | None = None,
        id: str | None = None,
        priority: int = 0,
        delay: timedelta | None = None,
        ready_at: datetime | None = None,
        retry: RetryPolicy | None = None,
    ) -> TaskId:
        """As `Engine.enqueue`."""
        return await to_thread(
            self.engine.enqueue,
            queue,
            step,
            payload,
            workflow=workflow,
            version=version,
            node=node,
            kind=kind,
            correlation_id=correlation_id,
            id=id,
            priority=priority,
            delay=delay,
            ready_at=ready_at,
            retry=retry,
        )

    async def enqueue_many(self, tasks: Iterable[NewTask], *, batch: int = DEFAULT_BATCH) -> Enqueued:
        """As `Engine.enqueue_many`; the iterable is read in the thread."""
        return await to_thread(self.engine.enqueue_many, tasks, batch=batch)

    async def enlist(self, connection: object, tasks: Iterable[NewTask]) -> list[TaskId]:
        """As `Engine.enlist`, with a connection that is not asynchronous. Do not use it meanwhile."""
        return await to_thread(self.engine.enlist, connection, tasks)

    async def claim(
        self, owner: str, criteria: Sequence[QueueCriteria], *, limit: int = 1, lease: timedelta = DEFAULT_LEASE
    ) -> list[TaskRecord]:
        """As `Engine.claim`. Do not cancel it: what it leased would wait for the end of the lease."""
        return await to_thread(self.engine.claim, owner, criteria, limit=limit, lease=lease)

    async def extend(self, leases: Sequence[Lease], lease: timedelta = DEFAULT_LEASE) -> set[Lease]:
        """As `Engine.extend`."""
        return await to_thread(self.engine.extend, leases, lease)

    async def settle(self, task: TaskRecord, outcome: Outcome) -> None:
        """As `Engine.settle`."""
        await to_thread(self.engine.settle, task, outcome)

    async def settle_many(self, settled: Iterable[tuple[TaskRecord, Outcome]]) -> set[TaskId]:
        """As `Engine.settle_many`."""
        return await to_thread(self.engine.settle_many, settled)

    async def cancel(self, task_id: TaskId) -> bool:
        """As `Engine.cancel`."""
        return await to_thread(self.engine.cancel, task_id)

    async def retry(self, task_id: TaskId) -> bool:
        """As `Engine.retry`."""
        return await to_thread(self.engine.retry, task_id)

    async def get(self, task_id: TaskId) -> TaskRecord | None:
        """As `Engine.get`."""
        return await to_thread(self.engine.get, task_id)

    async def find(
        self,
        criteria: QueueCriteria,
        states: Collection[State] = LIVE,
        limit: int = 100,
        after: OrderKey | None = None,
    ) -> list[TaskRecord]:
        """As `Engine.find`."""
        return await to_thread(self.engine.find, criteria, states, limit, after)

    async def count(self, criteria: QueueCriteria, states: Collection[State] = LIVE, cap: int = DEFAULT_CAP) -> int:
        """As `Engine.count`."""
        return await to_thread(self.engine.count, criteria, states, cap)

    async def workers(self) -> list[WorkerInfo]:
        """As `Engine.workers`."""
        return await to_thread(self.engine.workers)

    async def backlog(self, *, cap: int = DEFAULT_CAP, samples: int = DEFAULT_SAMPLES) -> Backlog:
        """As `Engine.backlog`."""
        return await to_thread(self.engine.backlog, cap=cap, samples=samples)

    async def sweep(self, limit: int = DEFAULT_LIMIT) -> Swept:
        """As `Engine.sweep`."""
        return await to_thread(self.engine.sweep, limit)

    async def wake(self) -> None:
        """As `Engine.wake`."""
        await to_thread(self.engine.wake)
