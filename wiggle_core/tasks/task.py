"""The task as stores keep it, its states, its place in the claim order, and the lease on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from time import time_ns
from typing import NamedTuple, TypeAlias

from wiggle_core.criteria.tree import Value
from wiggle_core.tasks.retry import DEFAULT_RETRY, RetryPolicy

TaskId: TypeAlias = str
"""Text of 1 to 64 characters; by default a UUIDv7 made by the client (L4)."""

Clock: TypeAlias = Callable[[], int]
"""Epoch microseconds. A store's clock is its database's, unless a test injects one (L1)."""

MAX_ID = 64
MAX_PRIORITY = 2**31 - 1
MIN_HISTORY_MICROS = 10 * 60 * 1_000_000
"""A settled task is remembered at least this long, whatever the retention, so that its id stays taken (L4)."""


def system_clock() -> int:
    """This machine's time, the database's clock for stores that live in the process."""
    return time_ns() // 1000


class State(StrEnum):
    """Where a task is in its life."""

    SCHEDULED = "SCHEDULED"
    READY = "READY"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


LIVE = frozenset({State.SCHEDULED, State.READY, State.RUNNING})
SETTLED = frozenset({State.DONE, State.FAILED, State.CANCELLED})


class OrderKey(NamedTuple):
    """The claim order (O1): urgent first, then the oldest instance, then the longest ready, then by id."""

    priority: int
    created_at: int
    ready_at: int
    id: TaskId


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work one task, fenced by the token of the claim that gave it (L2)."""

    task_id: TaskId
    token: str


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task with everything that a store keeps of it.

    Times are epoch microseconds; `created_at` is the instance's. `payload` is JSON text. `attributes` holds the
    extracted values by name, an absent one missing. `token`, `owner` and `lease_until` are those of the last lease;
    `finished_at`, `result` (JSON text) and `error` belong to settled tasks (`error` also to tasks that wait for a
    retry).
    """

    id: TaskId
    queue: str
    step: str
    created_at: int
    ready_at: int
    state: State = State.READY
    payload: str = "null"
    attributes: Mapping[str, Value] = field(default_factory=dict)
    priority: int = 0
    attempt: int = 1
    workflow: str | None = None
    version: int | None = None
    node: str | None = None
    kind: str = "task"
    correlation_id: str | None = None
    instance_id: str = ""
    retry: RetryPolicy = DEFAULT_RETRY
    owner: str | None = None
    token: str | None = None
    lease_until: int | None = None
    finished_at: int | None = None
    result: str | None = None
    error: str | None = None

    @property
    def order_key(self) -> OrderKey:
        return OrderKey(self.priority, self.created_at, self.ready_at, self.id)

    @property
    def lease(self) -> Lease:
        """The last lease. Raises ValueError for a task that was never claimed."""
        if self.token is None:
            raise ValueError(f"task {self.id!r} was never claimed")
        return Lease(self.id, self.token)
