"""`Faulty`, a store that fails where it is told to, and checks of what stores say when they fail.

Faults are injected around a store, so that no store contains any: before a call reaches it (nothing was applied) or
after the call was carried out and its answer got lost. Under `Replaying` nothing may be lost and nothing done twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, cast

import pytest

from wiggle_core.conformance.plugin import (
    ALL,
    QUEUE,
    SECOND,
    START,
    TTL,
    ManualClock,
    StoreFactory,
    claim,
    claim_one,
    enqueue_all,
    enqueue_one,
    ids,
    make_task,
    stored,
)
from wiggle_core.errors import (
    AmbiguousStoreError,
    RevisionConflict,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.lanes import Lanes
from wiggle_core.stores.replay import Replaying
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
    Route,
    Store,
)
from wiggle_core.tasks.task import Lease, State, TaskRecord


class When(StrEnum):
    """Where in a call the fault strikes."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault point: the error to raise, before or after the work is done."""

    when: When
    kind: type[StoreError]


REFUSED = Fault(When.BEFORE, TransientStoreError)
LOST = Fault(When.BEFORE, AmbiguousStoreError)
UNANSWERED = Fault(When.AFTER, AmbiguousStoreError)
FAULTS = {"transient": REFUSED, "ambiguous, not applied": LOST, "ambiguous, applied": UNANSWERED}
"""The ways in which a call can fail and yet has to come right."""


class Faulty:
    """Wraps a store, and raises at each armed fault point once. Everything else is the store's own answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._armed: dict[str, list[Fault]] = {}
        self.struck: Counter[str] = Counter()
        self.meanwhile: Callable[[], object] | None = None
        """What somebody else does, once, before the error of the first fault is raised."""

    def arm(self, method: str, *faults: Fault) -> None:
        """Let the next calls of a method fail, one fault each."""
        self._armed.setdefault(method, []).extend(faults)

    def is_armed(self, method: str) -> bool:
        """Whether the next call of a method fails."""
        return bool(self._armed.get(method))

    def as_store(self) -> Store:
        """Itself, as what it stands for: each method of a store is found by its name."""
        return cast("Store", self)

    @property
    def lanes(self) -> Lanes | None:
        """The store's, with fault points by the names of their methods behind `lanes.`."""
        found = self._store.lanes
        return None if found is None else cast("Lanes", _FaultyLanes(found, self.guarded))

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the store's
        found = getattr(self._store, name)
        return self.guarded(name, found) if callable(found) else found

    def guarded(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            faults = self._armed.get(name)
            fault = faults.pop(0) if faults else None
            if fault is not None:
                self.struck[name] += 1
            if fault is not None and fault.when is When.BEFORE:
                self._strike()
                raise fault.kind(f"{name} was kept from the store")
            answer = method(*arguments)
            if fault is not None:
                self._strike()
                raise fault.kind(f"the answer of {name} was lost")
            return answer

        return call

    def _strike(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


class _FaultyLanes:
    def __init__(self, lanes: Lanes, guarded: Callable[[str, Callable[..., object]], Callable[..., object]]) -> None:
        self._lanes = lanes
        self._guarded = guarded

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the lanes'
        return self._guarded(f"lanes.{name}", getattr(self._lanes, name))


def fail_once(store: Store, method: str, *faults: Fault) -> tuple[Store, Faulty]:
    """The store as an engine uses it, with fault points armed beneath."""
    faulty = Faulty(store)
    faulty.arm(method, *faults)
    return Replaying(faulty.as_store(), sleep=lambda _: None), faulty


# Nothing lost, nothing twice


@pytest.mark.parametrize("fault", FAULTS)
def test_an_enqueue_that_failed_is_in_once(store: Store, fault: str) -> None:
    """L4, L6: whatever became of the first try, each task is stored once and reported as inserted."""
    tasks = [make_task() for _ in range(5)]
    replaying, faulty = fail_once(store, "enqueue", FAULTS[fault])
    assert replaying.enqueue(tasks) == set(ids(tasks))
    assert faulty.struck["enqueue"] == 1
    assert ids(store.find(ALL, [State.READY], 10)) == ids(tasks)
    assert store.enqueue(tasks) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_claim_that_failed_leases_nothing_unseen(store: Store, fault: str) -> None:
    """L6: what is leased after a claim that failed is what the claim answers with; nothing is leased to nobody."""
    enqueue_all(store, [make_task() for _ in range(6)])
    replaying, _ = fail_once(store, "claim", FAULTS[fault])
    claimed = replaying.claim(ClaimRequest("w", "mine", TTL, 4, (ALL,)))
    assert len(claimed) == (0 if FAULTS[fault] is LOST else 4)
    assert store.leased("mine") == sorted(claimed, key=lambda task: task.order_key)
    assert store.count(ALL, [State.RUNNING], 10) == len(claimed)
    assert len(claim(store)) == 6 - len(claimed)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_extension_that_failed_holds(store: Store, clock: ManualClock, fault: str) -> None:
    """L2, L6: a heartbeat that is tried again names the leases that hold, and moves their end once."""
    enqueue_one(store)
    held = claim_one(store)
    clock.move(5)
    replaying, _ = fail_once(store, "extend", FAULTS[fault])
    assert replaying.extend([held.lease, Lease(held.id, "stale")], TTL) == {held.lease}
    assert stored(store, held.id).lease_until == clock.now + TTL


CHANGES: dict[str, Callable[[Lease], Change]] = {
    "done": lambda lease: Finish(lease, State.DONE, result="1"),
    "failed": lambda lease: Finish(lease, State.FAILED, error="no"),
    "retry": lambda lease: Requeue(lease, SECOND, {}),
    "retry at once": lambda lease: Requeue(lease, 0, {}),
    "release": lambda lease: GiveBack(lease, {}),
    "expire": lambda lease: Expire(lease, 0, {}),
    "expire for good": lambda lease: Expire(lease, None, {}),
    "cancel": lambda lease: Cancel(lease.task_id),
    "promote": lambda _: Promote("waiting", {}),
    "revive": lambda _: Revive("ended", {}),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_failed_is_applied_once(store: Store, clock: ManualClock, change: str, fault: str) -> None:
    """L6, L3: a change that is tried again takes effect once, and the answer names its task."""
    enqueue_one(store, "ended")
    store.apply([Finish(claim_one(store).lease, State.FAILED)])
    enqueue_one(store, "held")
    held = claim_one(store)
    enqueue_one(store, "waiting", state=State.SCHEDULED, ready_at=START + TTL)
    clock.move(TTL / SECOND)
    wanted = CHANGES[change](held.lease)
    replaying, _ = fail_once(store, "apply", FAULTS[fault])
    (changed,) = replaying.apply([wanted])
    after = stored(store, changed)
    assert after.attempt == (2 if isinstance(wanted, (Requeue, Expire)) and after.state is not State.FAILED else 1)
    assert store.apply([wanted]) == set()
    assert stored(store, changed) == after


@pytest.mark.parametrize("fault", FAULTS)
def test_a_document_whose_write_failed_is_written_once(store: Store, fault: str) -> None:
    """L6: a write by compare-and-set that is tried again makes one revision, and is not taken for another's."""
    store.put_document("worker", "w1", "1", 0)
    replaying, _ = fail_once(store, "put_document", FAULTS[fault])
    assert replaying.put_document("worker", "w1", "2", 1) == 2
    document = store.get_document("worker", "w1")
    assert document is not None
    assert (document.revision, document.body) == (2, "2")
    with pytest.raises(RevisionConflict):
        replaying.put_document("worker", "w1", "3", 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_through_faults_loses_nothing(store: Store, clock: ManualClock, seed: int) -> None:
    """L4, L6: while every third call fails in some way, each task is settled, none run more often than it counts."""
    random, faulty = Random(seed), Faulty(store)
    replaying = Replaying(faulty.as_store(), sleep=lambda _: None)
    tasks = [make_task() for _ in range(40)]
    runs: Counter[str] = Counter()
    for start in range(0, len(tasks), 8):
        _arm(faulty, random)
        assert replaying.enqueue(tasks[start : start + 8]) == set(ids(tasks[start : start + 8]))
    for _ in range(400):
        _arm(faulty, random)
        if not _run_some(replaying, random, runs) and not store.count(ALL, [State.READY], 1):
            break
    assert {stored(store, task.id).state for task in tasks} == {State.DONE}
    assert all(stored(store, task.id).attempt == runs[task.id] for task in tasks)
    assert sum(faulty.struck.values()) > 20


def _arm(faulty: Faulty, random: Random) -> None:
    for method in ("enqueue", "claim", "extend", "apply"):
        if random.random() < 0.34:
            faulty.arm(method, random.choice(list(FAULTS.values())))


def _run_some(store: Store, random: Random, runs: Counter[str]) -> list[TaskRecord]:
    """Claim a few, keep them by a heartbeat, then finish each or have it run again."""
    held = store.claim(ClaimRequest("w", f"{random.random()}", TTL, 3, (ALL,)))
    leases = [task.lease for task in held]
    assert store.extend(leases, TTL) == set(leases)
    for task in held:
        runs[task.id] += 1
    changes: list[Change] = [
        Requeue(lease, 0, {}) if random.random() < 0.3 else Finish(lease, State.DONE) for lease in leases
    ]
    assert store.apply(changes) == set(ids(held))
    return held


# What a store says when it fails


def _calls(store: Store) -> dict[str, Callable[[], object]]:
    """One call of each kind."""
    lease = Lease("t", "token")
    return {
        "enqueue": lambda: store.enqueue([make_task("t")]),
        "claim": lambda: store.claim(ClaimRequest("w", "token", TTL, 1, (ALL,))),
        "extend": lambda: store.extend([lease], TTL),
        "apply": lambda: store.apply([Finish(lease, State.DONE)]),
        "due": lambda: store.due(1),
        "lookup": lambda: store.lookup(["t"]),
        "leased": lambda: store.leased("token"),
        "get": lambda: store.get("t"),
        "find": lambda: store.find(Route(QUEUE), [State.READY], 1),
        "count": lambda: store.count(Route(QUEUE), [State.READY], 1),
        "slices": store.slices,
        "purge": lambda: store.purge(START, 1),
        "put_document": lambda: store.put_document("k", "k", "1"),
        "get_document": lambda: store.get_document("k", "k"),
        "list_documents": lambda: store.list_documents("k"),
        "delete_document": lambda: store.delete_document("k", "k"),
    }


_SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|VALUES)\b")


def _failure(name: str, call: Callable[[], object], kind: type[StoreError] = StoreError) -> str:
    """What the store's own error says: with a reference for the log, and without the database's language."""
    with pytest.raises(kind) as raised:
        call()
    error = raised.value
    assert error.reference in str(error), name
    assert not _SQL.search(str(error)), f"{name} shows a statement: {error}"
    return str(error)


def _require_durable(store: Store, why: str) -> None:
    if not store.capabilities.durable:
        pytest.skip(f"{store.capabilities.name}: capability durable is false, {why}")


def test_a_closed_store_says_so(store: Store, open_handle: Callable[[], Store]) -> None:
    """Section 3: a closed store refuses every call with a StoreError, and leaves what it stored to others."""
    _require_durable(store, "so nothing is left after closing")
    task = enqueue_one(store)
    other = open_handle()
    store.close()
    store.close()
    for name, call in _calls(store).items():
        _failure(name, call)
    assert stored(other, task.id) == task


def test_a_missing_schema_is_named_with_its_cure(store_factory: StoreFactory, clock: ManualClock) -> None:
    """Section 6: without the schema each call raises SchemaError, which names the command; only `migrate` makes it."""
    store = store_factory(clock)
    try:
        _require_durable(store, "so it is born with a schema")
        for name, call in {**_calls(store), "verify": store.verify}.items():
            assert "wiggle db upgrade --store" in _failure(name, call, SchemaError), name
        assert store.migrate()
        store.verify()
        assert store.migrate() == []
        assert store.audit() == []
    finally:
        store.close()
