"""What Cassandra does to the unwary, survived (CA1-CA6 of the notes on stores): counted on a live node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import wiggle_store_cassandra
from tests.stores.cassandra_spaces import fresh_space, migrated, recorded
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import ALL, ManualClock, claim, drain, enqueue_all, ids, in_order, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import AmbiguousStoreError, StoreError
from wiggle_core.stores.replay import Replaying
from wiggle_core.stores.store import Finish, GiveBack
from wiggle_core.tasks.task import State
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.rows import Statement

N = Task.attr("n", int)
_TOMBSTONES = re.compile(r"(\d+) tombstones")


def test_claims_do_not_read_what_others_took(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1: however many tasks have passed through a queue, a claim by a process that knows nothing yet meets no more
    tombstones than another one leaves before it seals a generation, and before it notes where the others begin."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 50)
    url = fresh_space(cassandra_url, shards=1)
    met = []
    with migrated(url) as store:
        for turn in range(5):
            enqueue_all(store, [make_task(f"{turn}-{number:03d}") for number in range(200)])
            for _ in range(16):
                store.apply([Finish(task.lease, State.DONE) for task in claim(store, limit=10)])
            met.append(_tombstones(url))
    assert met[0] > 0
    # In sealed generations as many as are taken before their beginning is noted, and in the open one.
    assert max(met) <= 2 * 50 + 10, met


def test_a_lane_is_read_past_what_others_took(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1, N4: the same of a lane, whose tasks stand between others that nobody takes."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 50)
    url = fresh_space(cassandra_url, shards=1)
    met = []
    with migrated(url) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(N == 1)
        for turn in range(5):
            laned.enqueue([make_task(f"{turn}-{number:03d}", attributes={"n": number % 2}) for number in range(200)])
            for _ in range(8):
                held = claim(store, by_lane(lane), limit=10)
                store.apply([Finish(task.lease, State.DONE) for task in held])
            with migrated(url) as other:
                met.append(_told(other.explain(by_lane(lane), 10).plan))
    assert max(met) <= 2 * 50 + 10, met


def _tombstones(url: str) -> int:
    with migrated(url) as other:
        return _told(other.explain(ALL, 10).plan)


def _told(plan: tuple[str, ...]) -> int:
    (number,) = _TOMBSTONES.findall("\n".join(plan))
    return int(number)


def test_a_claim_is_one_conditional_batch(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA2: many tasks of a shard are taken, and settled, by one conditional batch each."""
    with migrated(fresh_space(cassandra_url, shards=1)) as store:
        enqueue_all(store, [make_task() for _ in range(60)])
        with recorded(monkeypatch) as sent:
            held = claim(store, limit=50)
            assert store.apply([Finish(task.lease, State.DONE) for task in held]) == set(ids(held))
        assert len(held) == 50
        assert len(sent.batches) == 2
        assert sent.plain == []


@pytest.mark.parametrize("is_sent", [True, False], ids=["applied", "not applied"])
def test_a_batch_without_an_answer_is_looked_up(
    cassandra_url: str, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """CA3: an unknown outcome is found out by the task's version, read at SERIAL; nothing is sent twice blindly."""
    with migrated(fresh_space(cassandra_url)) as store:
        store.enqueue([make_task("t")])
        with _without_answer(monkeypatch, is_sent=is_sent) as lost:
            held = claim(store)
        assert lost == [1]
        assert ids(held) == ["t"]
        with _without_answer(monkeypatch, is_sent=is_sent) as lost:
            assert store.apply([Finish(held[0].lease, State.DONE)]) == {"t"}
        assert lost == [1]
        with _without_answer(monkeypatch, is_sent=is_sent) as lost:
            assert store.enqueue([make_task("other")]) == {"other"}
        assert lost == [1]
        assert store.audit() == []


@contextmanager
def _without_answer(monkeypatch: pytest.MonkeyPatch, *, is_sent: bool) -> Iterator[list[int]]:
    """The first conditional batches meanwhile have no answer, whether they are sent or not; how many these were."""
    lost: list[int] = []
    send = Connections.applied_all

    def send_or_lose(connections: Connections, batches: Sequence[Sequence[Statement]]) -> Sequence[bool | StoreError]:
        if lost:
            return send(connections, batches)
        lost.append(len(batches))
        if is_sent:
            send(connections, batches)
        return [AmbiguousStoreError("no answer") for _ in batches]

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "applied_all", send_or_lose)
        yield lost


def test_rows_that_change_are_written_by_condition_only(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA4: plain writes are of history only, whose rows are written once and deleted once; every statement leaves its
    time to the server."""
    clock = ManualClock()
    with migrated(fresh_space(cassandra_url), clock) as store, recorded(monkeypatch) as sent:
        laned = Laned.over(store)
        (lane,) = laned.open(N == 1)
        laned.enqueue([make_task(attributes={"n": number % 2}) for number in range(20)])
        held = claim(store, by_lane(lane), limit=5)
        laned.apply([(GiveBack(task.lease, {}), task) for task in held[:2]])
        store.apply([Finish(task.lease, State.DONE) for task in held[2:]])
        store.due(10)
        laned.close(lane)
        clock.move(3600)
        assert store.purge(clock.now, 10) == 3
    tables = {re.search(r"\$([a-z_]+)", cql)[1] for cql, _ in sent.plain}  # type: ignore[index] # each names one
    assert tables == {"history", "settled", "settled_hour"}
    assert {re.search(r"\$([a-z_]+)", batch[0][0])[1] for batch in sent.batches} == {"shard", "lane"}  # type: ignore[index] # likewise
    assert all(" IF " in batch[0][0] for batch in sent.batches)


def test_nothing_filters_or_scans(cassandra_url: str) -> None:
    """CA5: no ALLOW FILTERING, no secondary index, no materialised view; and no time but the server's (CA4)."""
    folder = Path(wiggle_store_cassandra.__file__).parent
    texts = {path: path.read_text("utf-8") for path in [*folder.glob("*.py"), *folder.glob("migrations/*.sql")]}
    assert len(texts) > 20
    for forbidden in ("ALLOW FILTERING", "CREATE INDEX", "CREATE CUSTOM INDEX", "MATERIALIZED", "USING TIMESTAMP"):
        assert [path for path, text in texts.items() if forbidden in text] == []


def test_a_shard_is_in_exact_order(cassandra_url: str) -> None:
    """CA6, O1: within one shard claims are in the claim order, whichever generations the tasks came in."""
    with migrated(fresh_space(cassandra_url, shards=1)) as store:
        tasks = [make_task(priority=number % 3, created_at=1_000_000 * (number % 7)) for number in range(40)]
        enqueue_all(store, tasks)
        got = [task.id for part in drain(store, ALL, limit=7) for task in part]
    assert got == in_order(tasks)


def test_an_urgent_task_waits_for_no_other_priority(cassandra_url: str) -> None:
    """CA6: of the shards that a claim looks at it takes the most urgent, so that with no more than it looks at, an
    urgent task is in the next claim."""
    with migrated(fresh_space(cassandra_url, shards=4)) as store:
        enqueue_all(store, [make_task(priority=5) for _ in range(100)])
        for turn in range(5):
            store.enqueue([make_task(f"urgent {turn}", priority=0)])
            assert f"urgent {turn}" in ids(claim(store, limit=3))


def test_a_claim_goes_to_all_shards_when_those_it_saw_have_too_little(cassandra_url: str) -> None:
    """O4: what is ready is found, in whichever shards it is, by one claim; an empty queue is told as empty."""
    with migrated(fresh_space(cassandra_url, shards=9)) as store:
        tasks = [make_task(priority=number % 3) for number in range(40)]
        enqueue_all(store, tasks)
        assert len(claim(store, limit=35)) == 35
        assert len(claim(store, limit=35)) == 5
        assert claim(store, limit=35) == []
        assert sorted(ids(store.find(ALL, [State.RUNNING], 100))) == sorted(ids(tasks))


def test_a_claim_passes_by_a_bounded_number_of_rows(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 7: a poll for a rare predicate reads no more than so many rows a shard; the next one goes on there, and the
    rare task is reached."""
    monkeypatch.setattr("wiggle_store_cassandra.claims.ROWS_A_SHARD", 50)
    monkeypatch.setattr("wiggle_store_cassandra.claims.PAGE", 20)
    with migrated(fresh_space(cassandra_url, shards=1)) as store:
        enqueue_all(store, [make_task(f"{number:03d}", attributes={"n": number // 199}) for number in range(200)])
        rare = route(N == 1)
        turns = []
        for _ in range(6):
            got = ids(claim(Replaying(store), rare, limit=1))
            turns.append(len(got))
        assert turns[:3] == [0, 0, 0]
        assert sum(turns) == 1
