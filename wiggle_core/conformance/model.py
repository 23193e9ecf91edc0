"""What the contract says about the life of a task, written once more and as plainly as it can be.

It shares nothing with any store but the vocabulary, so that the state machine has a second opinion even when the
reference store itself is under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from wiggle_core.criteria.evaluate import matches
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Fate,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    change_id,
)
from wiggle_core.tasks.task import LIVE, SETTLED, Lease, State, TaskId, TaskRecord


class Model:
    """A handful of tasks by id, and what each operation makes of them."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, TaskRecord] = {}

    def enqueue(self, tasks: Iterable[TaskRecord]) -> set[TaskId]:
        """L4: the first of an id counts, while it lives and while it is remembered."""
        new: dict[TaskId, TaskRecord] = {}
        for task in tasks:
            if task.id not in self.tasks:
                new.setdefault(task.id, task)
        self.tasks |= new
        return set(new)

    def claim(self, request: ClaimRequest, now: int) -> list[TaskRecord]:
        """O1, L1, L2: the first READY tasks that match any route."""
        ready = [task for task in self.in_state(State.READY) if _is_wanted(task, request)]
        owner, token, end = request.owner, request.token, now + request.ttl
        claimed = [
            replace(task, state=State.RUNNING, owner=owner, token=token, lease_until=end)
            for task in ready[: request.limit]
        ]
        self.tasks |= {task.id: task for task in claimed}
        return claimed

    def extend(self, leases: Iterable[Lease], ttl: int, now: int) -> set[Lease]:
        """L2: whoever holds a lease by its token may move its end."""
        held = {lease for lease in leases if _is_held(self.tasks.get(lease.task_id), lease)}
        for lease in held:
            self.tasks[lease.task_id] = replace(self.tasks[lease.task_id], lease_until=now + ttl)
        return held

    def apply(self, changes: Iterable[Change], now: int) -> set[TaskId]:
        """L7: in id order, each on what the one before left."""
        return {change_id(change) for change in sorted(changes, key=change_id) if self._take(change, now)}

    def purge(self, before: int) -> int:
        """L5: history is forgotten by the time at which it settled."""
        old = [task.id for task in self.in_state(*SETTLED) if (task.finished_at or 0) < before]
        for task_id in old:
            del self.tasks[task_id]
        return len(old)

    def in_state(self, *states: State) -> list[TaskRecord]:
        """The tasks in any of the states, in claim order (O1)."""
        return sorted((task for task in self.tasks.values() if task.state in states), key=lambda task: task.order_key)

    def overdue(self, now: int) -> list[TaskId]:
        """What a sweeper has to care for, longest due first."""
        late = ((due_at(task), task.id) for task in self.in_state(State.SCHEDULED, State.RUNNING))
        return [task_id for due, task_id in sorted(late) if due <= now]

    def fates(self) -> dict[TaskId, Fate]:
        """L6: what `lookup` has to answer."""
        return {task.id: Fate(task.state, task.token, task.attempt) for task in self.tasks.values()}

    def _take(self, change: Change, now: int) -> bool:
        task = self.tasks.get(change_id(change))
        after = None if task is None else _after(task, change, now)
        if after is None:
            return False
        self.tasks[after.id] = after
        return True


def due_at(task: TaskRecord) -> int:
    """When a task that runs or waits needs a sweeper."""
    return (task.lease_until or 0) if task.state is State.RUNNING else task.ready_at


def comparable(tasks: Sequence[TaskRecord]) -> list[TaskRecord]:
    """The tasks without what stores may keep or drop: a settled task's last owner and lease end."""
    return [replace(task, owner=None, lease_until=None) if task.state in SETTLED else task for task in tasks]


def _is_wanted(task: TaskRecord, request: ClaimRequest) -> bool:
    return any(task.queue == route.queue and matches(route.predicate, task) for route in request.routes)


def _is_held(task: TaskRecord | None, lease: Lease) -> bool:
    return task is not None and task.state is State.RUNNING and task.token == lease.token


def _after(task: TaskRecord, change: Change, now: int) -> TaskRecord | None:
    """The task after the change, or None when the change's guard does not hold."""
    match change:
        case Finish(lease, state, result, error) if _is_held(task, lease):
            return replace(task, state=state, finished_at=now, result=result, error=error)
        case Requeue(lease, delay, attributes, error) if _is_held(task, lease):
            return _tried_again(replace(task, attributes=attributes, error=error), now, delay)
        case Expire(lease, None, _, error) if _is_held(task, lease) and due_at(task) <= now:
            return replace(task, state=State.FAILED, finished_at=now, error=error)
        case Expire(lease, int(delay), attributes, error) if _is_held(task, lease) and due_at(task) <= now:
            return _tried_again(replace(task, attributes=attributes, error=error), now, delay)
        case GiveBack(lease, attributes) if _is_held(task, lease):
            return replace(_unleased(task), state=State.READY, attributes=attributes)
        case Promote(_, attributes) if task.state is State.SCHEDULED and task.ready_at <= now:
            return replace(task, state=State.READY, ready_at=now, attributes=attributes)
        case Cancel() if task.state in LIVE:
            return replace(task, state=State.CANCELLED, finished_at=now)
        case Revive(_, attributes) if task.state in (State.FAILED, State.CANCELLED):
            new = replace(_unleased(task), state=State.READY, ready_at=now, attempt=1, attributes=attributes)
            return replace(new, finished_at=None, result=None, error=None)
        case _:
            return None


def _tried_again(task: TaskRecord, now: int, delay: int) -> TaskRecord:
    """L3: one attempt more; ready from now, or scheduled for later."""
    state = State.SCHEDULED if delay else State.READY
    return replace(_unleased(task), state=state, ready_at=now + delay, attempt=task.attempt + 1)


def _unleased(task: TaskRecord) -> TaskRecord:
    """L6: the token stays, the owner and the lease's end go."""
    return replace(task, owner=None, lease_until=None)
