"""A store as the processes of a campaign use it: every call is written to the ledger, and some meet a fault.

Faults stand around the store, so that no store contains any. Beneath is the store itself, above is `Replaying`, so the
ledger tells what the store answered, call by call; `Told` stands above both and tells what the caller was answered.

Lines of a ledger, each a JSON list: `begin n when method details`, then `end n when read-at answer` or
`error n when class`; a call that was cut off by a kill has neither. `told ...` is what somebody was promised.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from threading import Thread
from time import monotonic, sleep
from typing import Any, cast

from benchmarks.ledger import Ledger
from tests.campaign.clock import SharedClock, monotonic_micros
from tests.campaign.plan import Arm, FullDisk, Life, Point
from wiggle_core.errors import AmbiguousStoreError, StaleLanes, StoreError, TransientStoreError
from wiggle_core.stores.lanes import NO_LANES, Lanes, Placed
from wiggle_core.stores.store import (
    Cancel,
    Change,
    ClaimRequest,
    Expire,
    Finish,
    GiveBack,
    Promote,
    Requeue,
    Revive,
    Store,
    change_id,
)
from wiggle_core.tasks.task import Lease, State, TaskId, TaskRecord

TROUBLED = frozenset({"enqueue", "claim", "extend", "apply", "due"})
_CANCELLED = State.CANCELLED.value


class Notes:
    """A ledger of JSON lists. Cut into pieces that fit under the file size limit of a full disk."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def write(self, *fields: object) -> None:
        """One line."""
        self._ledger.write(json.dumps(fields, separators=(",", ":")))


class Watched:
    """Wraps the store of one life: notes its calls, and lets it meet the faults planned for it."""

    def __init__(self, store: Store, clock: SharedClock, notes: Notes, life: Life) -> None:
        self._store, self._clock, self._notes = store, clock, notes
        self._numbers = count()
        self._arm = life.arm
        self._random = Random(f"{life.seed}/{life.name}/{life.number}/trouble")
        self._trouble = life.trouble
        self._born = monotonic()

    def as_store(self) -> Store:
        """Itself, as what it stands for: each method of a store is found by its name."""
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the store's
        found = getattr(self._store, name)
        if name == "lanes" and found is not None:
            return _WatchedLanes(found, self._watched)
        if not callable(found) or name in ("close", "now", "schema_sql"):
            return found
        return self._watched(name, found)

    def _watched(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        asked, answered = _DESCRIBED.get(name, (None, None))

        def call(*arguments: object) -> object:
            lost_answer = self._draw_trouble(name)
            number, arm = next(self._numbers), self._fatal(name)
            if asked is not None:
                self._notes.write("begin", number, monotonic_micros(), name, asked(*arguments))
            _die_at(Point.BEFORE, arm)
            _set_timer(arm)
            try:
                answer = method(*arguments)
            except (StoreError, StaleLanes) as error:
                if asked is not None:
                    self._notes.write("error", number, monotonic_micros(), type(error).__name__)
                raise
            _die_at(Point.AFTER, arm)
            if answered is not None:
                self._notes.write("end", number, monotonic_micros(), self._clock.read_at, answered(answer))
            _die_at(Point.ANSWERED, arm)
            if lost_answer:
                raise AmbiguousStoreError(f"the answer of {name} was lost")
            return answer

        return call

    def _draw_trouble(self, name: str) -> bool:
        """Raise an error that kept the call from the store, or say whether its answer is to be lost."""
        if name not in TROUBLED or self._random.random() >= self._trouble:
            return False
        which = self._random.randrange(3)
        if which == 0:
            raise TransientStoreError(f"{name} was kept from the store")
        if which == 1:
            raise AmbiguousStoreError(f"{name} got lost on its way to the store")
        return True

    def _fatal(self, name: str) -> Arm | None:
        """The arm that this call meets."""
        arm = self._arm
        return arm if arm is not None and arm.method == name and monotonic() - self._born >= arm.after else None


class _WatchedLanes:
    """Wraps the lanes of that store: each of their calls is watched as `lanes.NAME`."""

    def __init__(self, lanes: Lanes, watched: Callable[[str, Callable[..., object]], Callable[..., object]]) -> None:
        self._lanes, self._watched = lanes, watched

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the lanes'
        return self._watched(f"lanes.{name}", getattr(self._lanes, name))


def _die_at(point: Point, arm: Arm | None) -> None:
    if arm is not None and arm.point is point:
        os.kill(os.getpid(), signal.SIGKILL)


def _set_timer(arm: Arm | None) -> None:
    """SIGALRM, which nobody handles here, ends the process as abruptly as SIGKILL does, wherever it is."""
    if arm is not None and arm.point is Point.DURING:
        signal.setitimer(signal.ITIMER_REAL, arm.micros / 1_000_000)


# What a line says of a call and its answer


def _asked_enqueue(tasks: Sequence[TaskRecord], _placed: Placed = NO_LANES) -> object:
    # One that is READY at once may bear a time from before the clock stepped back, and waits for nothing.
    return [(task.id, task.ready_at if task.state is State.SCHEDULED else 0) for task in tasks]


def _asked_claim(request: ClaimRequest) -> object:
    return [request.token, request.ttl, sum(route.lane is not None for route in request.routes)]


def _asked_extend(leases: Sequence[Lease], ttl: int) -> object:
    return [ttl, [(lease.task_id, lease.token) for lease in leases]]


def _asked_apply(changes: Sequence[Change], _placed: Placed = NO_LANES) -> object:
    return [_describe(change) for change in changes]


def _describe(change: Change) -> tuple[str, TaskId, str | None, str | None]:
    """Kind, task, token and the settled state that the change leads to, if it does."""
    match change:
        case Finish(lease, state):
            return "finish", lease.task_id, lease.token, state.value
        case Expire(lease, delay):
            return "expire", lease.task_id, lease.token, State.FAILED.value if delay is None else None
        case Requeue(lease):
            return "requeue", lease.task_id, lease.token, None
        case GiveBack(lease):
            return "release", lease.task_id, lease.token, None
        case Cancel(task_id):
            return "cancel", task_id, None, _CANCELLED
        case Promote(task_id):
            return "promote", task_id, None, None
        case Revive(task_id):
            return "revive", task_id, None, None


_ids = cast("Callable[[Any], object]", sorted)  # Any: a set of ids

_DESCRIBED: dict[str, tuple[Callable[..., object], Callable[[Any], object]]] = {  # Any: the answer of each method
    "enqueue": (_asked_enqueue, _ids),
    "claim": (_asked_claim, lambda tasks: [(task.id, task.attempt, task.lease_until) for task in tasks]),
    "extend": (_asked_extend, lambda leases: [(lease.task_id, lease.token) for lease in leases]),
    "apply": (_asked_apply, _ids),
}


class Told:
    """Wraps a store under an engine and notes which results the caller believes to be settled."""

    def __init__(self, store: Store, notes: Notes) -> None:
        self._store, self._notes = store, notes

    def as_store(self) -> Store:
        """Itself, as what it stands for."""
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the store's
        return getattr(self._store, name)

    def apply(self, changes: Sequence[Change], placed: Placed = NO_LANES) -> set[TaskId]:
        """As the store does."""
        held = self._store.apply(changes, placed)
        named = [change_id(change) for change in changes]
        for change in changes:
            # With two changes to one task the ids do not tell which of them held.
            if isinstance(change, Finish) and change_id(change) in held and named.count(change_id(change)) == 1:
                self._notes.write("told", "settled", change_id(change), change.lease.token, change.state.value)
        return held


def meet_full_disk(disk: FullDisk) -> None:
    """Let no file of this process grow beyond a size for a while: writes then fail as on a full disk."""

    def limit() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        sleep(disk.after)
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk.bytes, hard))
        sleep(disk.seconds)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    Thread(target=limit, name="full-disk", daemon=True).start()
