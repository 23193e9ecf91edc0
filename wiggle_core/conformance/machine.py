"""The lease state machine: hypothesis drives the store, the reference store and a plain model in lock-step.

Random steps seldom meet the dangerous states, so half of the rules walk straight to them: a lease that runs out and is
taken back and claimed anew, the heartbeat and the settlement that come too late, the release beside a waiting claim.
The clock steps both ways. Runs are the same each time; a failure prints the steps that lead to it, shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, cycle
from typing import TypeVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from wiggle_core.conformance.model import Model, comparable, due_at
from wiggle_core.conformance.plugin import SECOND, START, TTL, ManualClock, ids, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, Predicate
from wiggle_core.stores.memory import MemoryStore
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
)
from wiggle_core.tasks.task import LIVE, SETTLED, Lease, State, TaskId, TaskRecord

_T = TypeVar("_T")

EXAMPLES, STEPS = 45, 30
"""How many runs of how many steps one check makes."""

KEPT = 60 * SECOND
"""`due` keeps what it named from other callers for some seconds: by then it has to name it again."""

NAMES = "abcdef"
QUEUES = ("first", "second")
WITH_LEASE: dict[str, Callable[[Lease], Change]] = {
    "done": lambda lease: Finish(lease, State.DONE, result="1"),
    "failed": lambda lease: Finish(lease, State.FAILED, error="no"),
    "retry at once": lambda lease: Requeue(lease, 0, {"n": 1}, error="busy"),
    "retry later": lambda lease: Requeue(lease, 5 * SECOND, {"n": 2}),
    "release": lambda lease: GiveBack(lease, {"n": 3}),
    "expire": lambda lease: Expire(lease, 0, {"n": 1}),
    "expire, retry later": lambda lease: Expire(lease, 5 * SECOND, {"n": 2}),
    "expire for good": lambda lease: Expire(lease, None, {}),
}
BY_ID: dict[str, Callable[[TaskId], Change]] = {
    "cancel": Cancel,
    "revive": lambda task_id: Revive(task_id, {"n": 1}),
    "promote": lambda task_id: Promote(task_id, {"n": 2}),
}
PREDICATES: dict[str, Predicate] = {
    "all": TRUE,
    "n = 1": Task.attr("n", int) == 1,
    "not n = 1": ~(Task.attr("n", int) == 1),
    "attempt >= 2": Task.attempt >= 2,
}

_leases: Bundle[Lease] = Bundle("leases")
_names = st.sampled_from(NAMES)
_settlements = st.sampled_from([name for name in WITH_LEASE if not name.startswith("expire")])
_times = st.sampled_from((SECOND, 5 * SECOND, TTL))
_few = st.integers(0, 5)
_serial = count(1)


class LeaseMachine(RuleBasedStateMachine):
    """Does the same to all three, and compares what they answer and what they hold. Ids begin with a prefix of each
    run's own; what a run leaves is removed at its end."""

    def __init__(self, handles: Sequence[Store], clock: ManualClock) -> None:
        super().__init__()
        clock.now = START
        self._clock = clock
        self._handles = cycle(handles)
        self._is_strict = handles[0].capabilities.strict_order
        self._reference = MemoryStore(clock)
        self._model = Model()
        self._prefix = f"{next(_serial):05d}"
        self._tokens = count(1)
        self._kept: dict[TaskId, tuple[TaskRecord, int]] = {}

    @property
    def _store(self) -> Store:
        """The handles take turns."""
        return next(self._handles)

    def _id(self, name: str) -> TaskId:
        return f"{self._prefix}-{name}"

    def _queue(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _agree(self, by_model: _T, ask: Callable[[Store], _T]) -> _T:
        """Make the store and the reference store do what the model did already, and compare the answers."""
        assert ask(self._reference) == by_model, "the reference store and the model differ"
        assert ask(self._store) == by_model
        return by_model

    def _among(self, *states: State) -> list[TaskRecord]:
        return self._model.in_state(*states)

    # Single steps

    @initialize(target=_leases)
    def begin_with_some(self) -> MultipleResults[Lease]:
        """Two tasks that run, one that is ready and one that is scheduled, all taken names; two names are left."""
        self._enqueue(["a", "b"], QUEUES[0], (0, 0), None)
        self._enqueue(["c"], QUEUES[1], (1, 1), None)
        self._enqueue(["d"], QUEUES[1], (0, 1), 5 * SECOND)
        held = self._claim(QUEUES, "all", 2, TTL)
        assert self._enqueue(["a", "b", "c", "d"], QUEUES[0], (0, 0), None) == set()
        return held

    @rule(
        names=st.lists(_names, min_size=1, max_size=3),
        queue=st.sampled_from(QUEUES),
        place=st.tuples(st.integers(0, 1), st.integers(0, 1)),
        delay=st.sampled_from((None, None, 0, 5 * SECOND)),
    )
    def enqueue(self, names: list[str], queue: str, place: tuple[int, int], delay: int | None) -> None:
        """Of few names, so that most are taken: live, in history, or twice in one call."""
        self._enqueue(names, queue, place, delay)

    def _enqueue(self, names: list[str], queue: str, place: tuple[int, int], delay: int | None) -> set[TaskId]:
        priority, age = place
        tasks = [
            make_task(
                self._id(name),
                queue=self._queue(queue),
                priority=priority,
                created_at=START - age,
                state=State.READY if delay is None else State.SCHEDULED,
                ready_at=self._clock.now + (delay or 0),
                attributes={"n": number},
            )
            for number, name in enumerate(names)
        ]
        return self._agree(self._model.enqueue(tasks), lambda store: store.enqueue(tasks))

    @precondition(lambda self: self._among(State.READY))
    @rule(
        target=_leases,
        queues=st.sampled_from((QUEUES, QUEUES, QUEUES[:1], QUEUES[1:], QUEUES[::-1])),
        predicate=st.sampled_from(("all", "all", "all", *PREDICATES)),
        limit=st.integers(1, 4),
        ttl=_times,
    )
    def claim(self, queues: tuple[str, ...], predicate: str, limit: int, ttl: int) -> MultipleResults[Lease]:
        """In claim order over all routes, each with a token of its own."""
        return self._claim(queues, predicate, limit, ttl)

    def _claim(self, queues: tuple[str, ...], predicate: str, limit: int, ttl: int) -> MultipleResults[Lease]:
        routes = tuple(route(PREDICATES[predicate], self._queue(queue)) for queue in queues)
        token = f"{self._prefix}-token-{next(self._tokens)}"
        # Which tasks a smaller claim gets is known in strict order only.
        request = ClaimRequest(f"worker-{token}", token, ttl, limit if self._is_strict else len(NAMES), routes)
        claimed = self._agree(self._model.claim(request, self._clock.now), lambda store: self._claimed(store, request))
        assert self._store.leased(token) == claimed
        return multiple(*(task.lease for task in claimed))

    def _claimed(self, store: Store, request: ClaimRequest) -> list[TaskRecord]:
        claimed = store.claim(request)
        return claimed if self._is_strict else sorted(claimed, key=lambda task: task.order_key)

    @rule(leases=st.lists(_leases, min_size=1, max_size=4), ttl=_times)
    def extend(self, leases: list[Lease], ttl: int) -> None:
        """Any leases there ever were, held and stale together."""
        self._extend(leases, ttl)

    def _extend(self, leases: list[Lease], ttl: int) -> set[Lease]:
        held = self._model.extend(leases, ttl, self._clock.now)
        return self._agree(held, lambda store: store.extend(leases, ttl))

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(which=_few, how=st.sampled_from(list(WITH_LEASE)))
    def settle(self, which: int, how: str) -> None:
        """By its holder, whatever the time."""
        self._apply(WITH_LEASE[how](self._running(which).lease))

    @rule(lease=_leases, how=st.sampled_from(list(WITH_LEASE)))
    def settle_under_any_lease(self, lease: Lease, how: str) -> None:
        """By whoever held it once."""
        self._apply(WITH_LEASE[how](lease))

    @precondition(lambda self: self._model.tasks)
    @rule(which=_few, how=st.sampled_from(list(BY_ID)))
    def change(self, which: int, how: str) -> None:
        """Cancel, revive or promote a task in any state."""
        known = sorted(self._model.tasks)
        self._apply(BY_ID[how](known[which % len(known)]))

    @precondition(lambda self: self._among(State.FAILED, State.CANCELLED))
    @rule(which=_few)
    def revive(self, which: int) -> None:
        """What failed or was cancelled is READY now."""
        ended = self._among(State.FAILED, State.CANCELLED)
        self._apply(Revive(ended[which % len(ended)].id, {"n": 1}))

    @rule(
        settled=st.lists(st.tuples(_leases, st.sampled_from(list(WITH_LEASE))), min_size=1, max_size=4),
        changed=st.lists(st.tuples(_names, st.sampled_from(list(BY_ID))), max_size=3),
    )
    def apply_several(self, settled: list[tuple[Lease, str]], changed: list[tuple[str, str]]) -> None:
        """In one call, the same task more than once too."""
        changes = [BY_ID[how](self._id(name)) for name, how in changed]
        self._apply(*(WITH_LEASE[how](lease) for lease, how in settled), *changes)

    def _apply(self, *changes: Change) -> set[TaskId]:
        return self._agree(self._model.apply(changes, self._clock.now), lambda store: store.apply(changes))

    @rule(micros=st.sampled_from((1, SECOND, 5 * SECOND, TTL, 3 * TTL)))
    def wait(self, micros: int) -> None:
        """Time passes."""
        self._clock.now += micros

    @rule(micros=st.sampled_from((1, SECOND, TTL, 3600 * SECOND)))
    def step_back(self, micros: int) -> None:
        """The database's clock is set back."""
        self._clock.now -= micros

    @precondition(lambda self: self._among(*SETTLED))
    @rule(age=st.sampled_from((-1, 0, SECOND)))
    def purge(self, age: int) -> None:
        """Of what settled before an instant, at this time or a little before; its ids are free again."""
        before = self._clock.now - age
        self._agree(self._model.purge(before), lambda store: store.purge(before, 1_000))
        self._kept = {task_id: kept for task_id, kept in self._kept.items() if task_id in self._model.tasks}

    @precondition(lambda self: self._model.overdue(self._clock.now))
    @rule(limit=st.integers(1, 4), is_extended=st.booleans())
    def sweep(self, limit: int, is_extended: bool) -> None:
        """What `due` names is taken care of, unless its holder's heartbeat comes in between."""
        found = self._due(limit)
        if is_extended:
            self._extend([task.lease for task in found if task.state is State.RUNNING], TTL)
        self._apply(*map(_cared_for, found))

    def _due(self, limit: int) -> list[TaskRecord]:
        """What the store names as due: nothing that is not, nothing kept for an earlier caller, longest due first."""
        found, now = self._store.due(limit), self._clock.now
        overdue = self._model.overdue(now)
        assert ids(found) == [each for each in overdue if each in ids(found)]
        assert comparable(found) == [self._model.tasks[task.id] for task in found]
        assert not [task.id for task in found if self._kept.get(task.id) == (task, now)], "named twice at one time"
        free = [each for each in overdue if not self._may_be_kept(each, now)]
        assert len(found) >= min(limit, len(free)), "a task that is due was not named"
        self._kept |= {task.id: (task, now) for task in found}
        return found

    def _may_be_kept(self, task_id: TaskId, now: int) -> bool:
        """Whether `due` named the task a short while ago, by this clock or before it stepped back."""
        return task_id in self._kept and now - self._kept[task_id][1] <= KEPT

    # Straight to the dangerous states

    def _running(self, which: int) -> TaskRecord:
        running = self._among(State.RUNNING)
        return running[which % len(running)]

    def _reclaim(self, task: TaskRecord) -> MultipleResults[Lease]:
        """A claim of everything on the task's queue."""
        return self._claim((task.queue.removeprefix(f"{self._prefix}-"),), "all", len(NAMES), TTL)

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(target=_leases, which=_few, late=_settlements)
    def expire_reclaim_and_come_late(self, which: int, late: str) -> MultipleResults[Lease]:
        """Taken back at its end, not a microsecond early; claimed anew; then heartbeat and settlement come too late."""
        task = self._running(which)
        self._clock.now = due_at(task) - 1
        assert self._apply(Expire(task.lease, 0, {})) == set()
        self._clock.now = due_at(task)
        assert self._apply(Expire(task.lease, 0, {})) == {task.id}
        leases = self._reclaim(task)
        assert task.id in {lease.task_id for lease in leases.values}
        assert self._extend([task.lease, *leases.values], TTL) == set(leases.values)
        assert self._apply(WITH_LEASE[late](task.lease)) == set()
        return leases

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(which=_few)
    def extend_between_due_and_expire(self, which: int) -> None:
        """A heartbeat that comes after `due` named the task keeps it."""
        task = self._running(which)
        self._clock.now = due_at(task)
        self._due(len(NAMES))
        assert self._extend([task.lease], TTL) == {task.lease}
        assert self._apply(Expire(task.lease, 0, {})) == set()

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(which=_few, how=_settlements, again=_settlements)
    def settle_after_the_end(self, which: int, how: str, again: str) -> None:
        """Nobody took the lease back: the settlement holds, once."""
        task = self._running(which)
        self._clock.now = due_at(task) + SECOND
        assert self._apply(WITH_LEASE[how](task.lease)) == {task.id}
        assert self._apply(WITH_LEASE[again](task.lease), Expire(task.lease, 0, {})) == set()
        assert self._extend([task.lease], TTL) == set()

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(target=_leases, which=_few, late=_settlements)
    def release_and_reclaim(self, which: int, late: str) -> MultipleResults[Lease]:
        """A released task keeps its place, and its former holder has no part in the next run."""
        task = self._running(which)
        assert self._apply(GiveBack(task.lease, task.attributes)) == {task.id}
        leases = self._reclaim(task)
        assert self._apply(WITH_LEASE[late](task.lease)) == set()
        return leases

    @precondition(lambda self: self._among(State.RUNNING))
    @rule(which=_few, how=st.sampled_from(("failed", "expire for good", "done")))
    def end_enqueue_again_and_revive(self, which: int, how: str) -> None:
        """An id in history is taken; what failed can come back, what is done cannot."""
        task = self._running(which)
        self._clock.now = due_at(task)
        assert self._apply(WITH_LEASE[how](task.lease)) == {task.id}
        again = make_task(task.id, queue=task.queue, ready_at=self._clock.now)
        assert self._agree(self._model.enqueue([again]), lambda store: store.enqueue([again])) == set()
        assert self._apply(Revive(task.id, {"n": 1})) == (set() if how == "done" else {task.id})

    @precondition(lambda self: self._among(State.SCHEDULED))
    @rule(which=_few)
    def promote_early_and_in_time(self, which: int) -> None:
        """Not a microsecond early, at the time once, and never again."""
        scheduled = self._among(State.SCHEDULED)
        task = scheduled[which % len(scheduled)]
        self._clock.now = task.ready_at - 1
        assert self._apply(Promote(task.id, {})) == set()
        self._clock.now = task.ready_at
        assert self._apply(Promote(task.id, {})) == {task.id}
        assert self._apply(Promote(task.id, {})) == set()

    # What holds after each step

    @invariant()
    def all_hold_the_same(self) -> None:
        """Every task is in one place, live or in history, as the model has it, in claim order."""
        for queue in map(self._queue, QUEUES):
            wanted = [task for task in self._model.in_state(*State) if task.queue == queue]
            for store in (self._reference, self._store):
                assert comparable(store.find(route(TRUE, queue), list(State), 100)) == comparable(wanted)
            live = [task for task in wanted if task.state in LIVE]
            assert self._store.count(route(TRUE, queue), LIVE, 100) == len(live)
            assert self._store.count(route(TRUE, queue), SETTLED, 100) == len(wanted) - len(live)

    @invariant()
    def fates_are_told(self) -> None:
        known = [self._id(name) for name in NAMES]
        assert self._store.lookup(known) == self._model.fates()
        found = [self._store.get(task_id) for task_id in known]
        assert comparable([task for task in found if task is not None]) == comparable(
            [self._model.tasks[task_id] for task_id in known if task_id in self._model.tasks]
        )

    def teardown(self) -> None:
        """An audit finds nothing, and the next run finds an empty database."""
        try:
            assert self._store.audit() == []
        finally:
            known = [self._id(name) for name in NAMES]
            self._store.apply([Cancel(task_id) for task_id in known])
            self._store.purge(self._clock.now + 10 * 365 * 86_400 * SECOND, 1_000)


def _cared_for(task: TaskRecord) -> Change:
    if task.state is State.SCHEDULED:
        return Promote(task.id, task.attributes)
    return Expire(task.lease, SECOND if task.attempt % 2 else 0, task.attributes)


def test_lease_state_machine(open_handle: Callable[[], Store], clock: ManualClock) -> None:
    """L1-L6, O1, O3: store, reference store and model agree on every answer and every state, whatever happens when."""
    handles = [open_handle(), open_handle()]
    # The same runs each time: a check that fails on one day only is of no use to a stranger.
    chosen = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, derandomize=True, database=None, deadline=None)
    # Declared as a class, and used as what makes one machine for each run.
    machines = cast("type[LeaseMachine]", lambda: LeaseMachine(handles, clock))
    run_state_machine_as_test(machines, settings=chosen)
