"""What a handler is given: the task it is to work, and whether its lease is still held."""

from __future__ import annotations

import json
from collections.abc import Mapping

from wiggle_core.criteria.tree import Value
from wiggle_core.tasks.task import TaskId, TaskRecord

_UNREAD = object()


class TaskContext:
    """One claimed task in the hands of a worker, from the claim to the settlement."""

    # Plain slots, no dataclass: one is made for every task, and other threads set the flags.
    __slots__ = ("_payload", "is_settling", "lease_lost", "sure_until", "task")

    def __init__(self, task: TaskRecord, sure_until: float = float("inf")) -> None:
        self.task = task
        self.lease_lost = False
        """Set once the worker learns that the lease was taken back or the task cancelled: the result will be
        dropped, so a long handler may as well stop."""
        self.is_settling = False
        self.sure_until = sure_until
        self._payload: object = _UNREAD

    @property
    def payload(self) -> object:
        """The payload decoded from JSON."""
        if self._payload is _UNREAD:
            self._payload = json.loads(self.task.payload)
        return self._payload

    @property
    def id(self) -> TaskId:
        return self.task.id

    @property
    def queue(self) -> str:
        return self.task.queue

    @property
    def step(self) -> str:
        return self.task.step

    @property
    def attempt(self) -> int:
        """1 on the first run."""
        return self.task.attempt

    @property
    def attributes(self) -> Mapping[str, Value]:
        """The attributes that the task was claimed by."""
        return self.task.attributes

    @property
    def correlation_id(self) -> str | None:
        return self.task.correlation_id
