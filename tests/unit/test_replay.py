"""Replaying: TRANSIENT is tried again, AMBIGUOUS is looked up by id or token (L6), PERMANENT is passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wiggle_core.errors import AmbiguousStoreError, PermanentStoreError, StoreError, TransientStoreError
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.replay import PAUSE_SECONDS, Replaying
from wiggle_core.stores.store import Cancel, Change, ClaimRequest, Finish, Requeue, Revive, Route
from wiggle_core.tasks.task import State, TaskRecord


class Faulty(MemoryStore):
    """A memory store that raises what it is given, before or after it has done its work."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[str, StoreError]] = []
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:  # Any: whatever attribute is asked for
        found = super().__getattribute__(name)
        if name in ("enqueue", "claim", "apply", "put_document", "count", "extend"):
            return self._with_faults(found)
        return found

    def _with_faults(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            when, error = self.faults.pop(0) if self.faults else ("never", StoreError(""))
            if when == "before":
                raise error
            answer = method(*arguments)
            if when == "after":
                raise error
            return answer

        return call


def a_task(task_id: str) -> TaskRecord:
    return TaskRecord(id=task_id, queue="q", step="s", created_at=1, ready_at=1)


def a_claim(token: str) -> ClaimRequest:
    return ClaimRequest("w", token, 1_000_000, 10, (Route("q"),))


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(faulty: Faulty, pauses: list[float]) -> Replaying:
    return Replaying(faulty, sleep=pauses.append)


def test_transient_is_replayed_twice_with_growing_pauses(faulty: Faulty, store: Replaying, pauses: list[float]) -> None:
    """Section 3, failure classes: nothing was applied, so the same call is made again."""
    faulty.faults = [("before", TransientStoreError("busy")), ("before", TransientStoreError("busy"))]
    assert store.enqueue([a_task("a")]) == {"a"}
    assert faulty.calls == 3
    assert 0.5 * PAUSE_SECONDS <= pauses[0] <= 1.5 * PAUSE_SECONDS
    assert PAUSE_SECONDS <= pauses[1] <= 3 * PAUSE_SECONDS
    assert store.counts["TransientStoreError"] == 2


def test_transient_three_times_is_passed_on(faulty: Faulty, store: Replaying) -> None:
    """Section 3, failure classes: 3 tries."""
    faulty.faults = [("before", TransientStoreError("busy"))] * 3
    with pytest.raises(TransientStoreError):
        store.enqueue([a_task("a")])
    assert faulty.calls == 3


def test_permanent_is_not_replayed(faulty: Faulty, store: Replaying) -> None:
    """Section 3, failure classes: trying again cannot help."""
    faulty.faults = [("before", PermanentStoreError("disk full"))]
    with pytest.raises(PermanentStoreError, match="disk full"):
        store.enqueue([a_task("a")])
    assert faulty.calls == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_ambiguous_enqueue_is_in_exactly_once(faulty: Faulty, store: Replaying, when: str) -> None:
    """L6: whether or not the lost commit was applied, the task is there once and reported as the caller's."""
    faulty.faults = [(when, AmbiguousStoreError("no answer"))]
    assert store.enqueue([a_task("a"), a_task("b")]) == {"a", "b"}
    assert store.count(Route("q"), {State.READY}, 10) == 2


def test_ambiguous_claim_that_was_applied_returns_its_tasks(faulty: Faulty, store: Replaying) -> None:
    """L6: the tasks leased under the claim's token are the claim's answer; none is left leased to nobody."""
    store.enqueue([a_task("a"), a_task("b")])
    faulty.faults = [("after", AmbiguousStoreError("no answer"))]
    assert [task.id for task in store.claim(a_claim("t1"))] == ["a", "b"]


def test_ambiguous_claim_that_was_not_applied_returns_nothing(faulty: Faulty, store: Replaying) -> None:
    """L6: fewer is normal; the tasks stay READY for the next claim."""
    store.enqueue([a_task("a")])
    faulty.faults = [("before", AmbiguousStoreError("no answer"))]
    assert store.claim(a_claim("t1")) == []
    assert [task.id for task in store.claim(a_claim("t2"))] == ["a"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_ambiguous_changes_are_reported_as_applied_once(faulty: Faulty, store: Replaying, when: str) -> None:
    """L6: settlement, retry, cancellation and revival are found by the token or the state."""
    store.enqueue([a_task(each) for each in "abcd"])
    store.apply([Cancel("d")])
    a, b, _ = store.claim(a_claim("t1"))
    changes: list[Change] = [Finish(a.lease, State.DONE), Requeue(b.lease, 5_000_000, {}), Cancel("c"), Revive("d", {})]
    faulty.faults = [(when, AmbiguousStoreError("no answer"))]
    assert store.apply(changes) == {"a", "b", "c", "d"}
    fates = store.lookup(list("abcd"))
    assert [fates[each].state for each in "abcd"] == [State.DONE, State.SCHEDULED, State.CANCELLED, State.READY]
    assert fates["b"].attempt == 2


def test_ambiguous_change_under_a_stale_token_is_not_reported(faulty: Faulty, store: Replaying) -> None:
    """L2: a stale token changes nothing, and looking its task up must not make it look as if it had."""
    store.enqueue([a_task("a")])
    (first,) = store.claim(a_claim("t1"))
    store.apply([Requeue(first.lease, 0, {})])
    (second,) = store.claim(a_claim("t2"))
    faulty.faults = [("after", AmbiguousStoreError("no answer"))]
    assert store.apply([Finish(first.lease, State.DONE)]) == set()
    assert store.apply([Finish(second.lease, State.DONE)]) == {"a"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_ambiguous_document_is_written_once(faulty: Faulty, store: Replaying, when: str) -> None:
    """L6: the revision grows by one, not by two, and no conflict is invented."""
    faulty.faults = [(when, AmbiguousStoreError("no answer"))]
    assert store.put_document("kind", "key", "{}", 0) == 1
    assert faulty.get_document("kind", "key") is not None
    faulty.faults = [(when, AmbiguousStoreError("no answer"))]
    assert store.put_document("kind", "key", '{"a":1}', 1) == 2


def test_resolving_is_itself_replayed(faulty: Faulty, store: Replaying) -> None:
    """Section 3, failure classes: a database that comes back while the answer is looked up is waited for."""
    faulty.faults = [("after", AmbiguousStoreError("no answer")), ("before", TransientStoreError("away"))]
    assert store.enqueue([a_task("a")]) == {"a"}
