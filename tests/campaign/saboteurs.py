"""Stores that are wrong on purpose, for the proof that the audit of a campaign would tell. Each wraps a right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from wiggle_core.stores.lanes import NO_LANES, Placed
from wiggle_core.stores.store import Change, Expire, Finish, GiveBack, Requeue, Route, Store, change_id
from wiggle_core.tasks.task import Lease, State, TaskId, TaskRecord


class Saboteur:
    """What all of them share: everything else is the store's own answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the store's
        return getattr(self._store, name)


class Unfenced(Saboteur):
    """Settles and extends for whoever asks: the token is not looked at (against L2)."""

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        """As the store does, under whatever token the task has now."""
        fates = self._store.lookup([change_id(change) for change in changes])
        tokens = {task_id: fate.token for task_id, fate in fates.items()}
        return self._store.apply([_retoken(change, tokens) for change in changes], placed)

    def extend(self, leases: Sequence[Lease], ttl: int) -> set[Lease]:
        """As the store does, for the leases that there are now."""
        fates = self._store.lookup([lease.task_id for lease in leases])
        present = {lease: Lease(lease.task_id, _token(fates[lease.task_id].token)) for lease in leases}
        held = self._store.extend(list(present.values()), ttl)
        return {asked for asked, meant in present.items() if meant in held}


def _retoken(change: Change, tokens: dict[TaskId, str | None]) -> Change:
    if isinstance(change, (Finish, Requeue, GiveBack)):
        return replace(change, lease=Lease(change.lease.task_id, _token(tokens.get(change.lease.task_id))))
    return change


def _token(token: str | None) -> str:
    return token or "none"


class Hasty(Saboteur):
    """Takes leases back while they are held: the end of the lease is not looked at (against L1)."""

    def due(self, limit: int) -> list[TaskRecord]:
        """What is due, and a few of those that run."""
        running = [task for queue in self._queues() for task in self._store.find(Route(queue), [State.RUNNING], 3)]
        due = {task.id: task for task in [*self._store.due(limit), *running]}
        return list(due.values())

    def _queues(self) -> Iterator[str]:
        yield from {each.queue for each in self._store.slices()}

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        """As the store does, but for the guard of Expire."""
        return self._store.apply([_hastened(change) for change in changes], placed)


def _hastened(change: Change) -> Change:
    if isinstance(change, Expire) and change.delay is not None:
        return Requeue(change.lease, change.delay, change.attributes, change.error)
    return change


class Forgetful(Saboteur):
    """Says that it stored what it did not, now and then (against L4)."""

    def enqueue(self, tasks: Sequence[TaskRecord], placed: Placed = NO_LANES) -> set[TaskId]:
        """As the store does, for all but those whose id ends in 7."""
        kept = [(task, placed.of(index)) for index, task in enumerate(tasks) if not task.id.endswith("7")]
        self._store.enqueue([task for task, _ in kept], Placed(placed.epoch, [lanes for _, lanes in kept]))
        return {task.id for task in tasks}


SABOTEURS: dict[str, Callable[[Store], Saboteur]] = {
    "unfenced": Unfenced,
    "hasty": Hasty,
    "forgetful": Forgetful,
}


def sabotage(store: Store, names: str) -> Store:
    """The store wrapped in the saboteurs named, with commas between them."""
    for name in filter(None, names.split(",")):
        store = cast("Store", SABOTEURS[name](store))
    return store


def check_names(names: str) -> str:
    """The names, if all are known. Raises ValueError."""
    with suppress(KeyError):
        for name in filter(None, names.split(",")):
            SABOTEURS[name]
        return names
    raise ValueError(f"saboteurs are {', '.join(SABOTEURS)}, not {names!r}")
