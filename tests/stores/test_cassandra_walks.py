"""Where claims of the Cassandra store begin to read: what others passed by, and what is drained."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.stores.cassandra_spaces import fresh_space, migrated
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import START, ManualClock, claim, enqueue_all, ids, make_task, route
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.filling import resume
from wiggle_core.stores.lanes import NewLane
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import State

N = Task.attr("n", int)


def test_an_urgent_task_is_not_passed_by(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O1, O4: a claim that goes on behind what others passed by looks back now and then, so that what became READY
    before that place is found soon, however much there is behind it, and no claim comes back empty over it."""
    monkeypatch.setattr("wiggle_store_cassandra.claims.ROWS_A_SHARD", 50)
    monkeypatch.setattr("wiggle_store_cassandra.claims.PAGE", 20)
    clock = ManualClock()
    with migrated(fresh_space(cassandra_url, shards=1), clock) as store:
        enqueue_all(store, [make_task(f"{number:03d}", attributes={"n": number // 120}) for number in range(200)])
        wanted = route(N >= 1)
        while not claim(store, wanted, limit=2):
            pass
        # One at the beginning, and one as far behind it as three looks back reach.
        urgent, late = make_task("urgent", created_at=START - 1), make_task("060 late")
        enqueue_all(store, [replace(each, attributes={"n": 1}) for each in (urgent, late)])
        got = []
        for _ in range(6):
            clock.move(2)
            got.append(ids(claim(store, wanted, limit=2)))
        assert "urgent" in got[0]
        assert "060 late" in {each for part in got for each in part}
        assert all(got)


def test_what_is_drained_of_a_lane_is_not_asked_for(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1, N4: a claim by an empty lane asks as little after many generations were sealed as it did before, though
    other tasks of theirs are left."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 4)
    with migrated(fresh_space(cassandra_url, shards=1), ManualClock()) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(N == 1)
        asked = []
        for turn in range(6):
            laned.enqueue([make_task(f"{turn}-{number}", attributes={"n": int(number != 5)}) for number in range(6)])
            store.apply([Finish(task.lease, State.DONE) for task in claim(store, by_lane(lane), limit=10)])
            assert claim(store, by_lane(lane), limit=10) == []
            (plan, _) = store.explain(by_lane(lane), 10).plan
            (questions,) = re.findall(r"(\d+) questions", plan)
            asked.append(int(questions))
        assert max(asked) <= min(asked) + 1, asked


def test_a_claim_that_came_too_early_hides_nothing(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O4, N3: what a claim saw of a lane while it was filled is forgotten with its refusal."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 2)
    with migrated(fresh_space(cassandra_url, shards=1), ManualClock()) as store:
        enqueue_all(store, [make_task(f"{number}", attributes={"n": 1}) for number in range(6)])
        claim(store, limit=3)  # and the generation is sealed
        laned = Laned.over(store)
        (lane,) = store.lanes.open([NewLane("payments", N == 1, "wanted")])
        assert store.lanes.drained(lane.epoch, 1)
        with pytest.raises(StaleLanes):
            claim(store, by_lane(lane))
        resume(laned.lanes, 0, 30)
        assert ids(claim(store, by_lane(lane))) == ["3", "4", "5"]


def test_looking_at_a_lane_reads_past_what_was_taken(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CA1: its size, and whether it is empty, are told without reading what was taken out of it since it was opened;
    generations of which nothing is left are forgotten, though nobody claims but from lanes."""
    monkeypatch.setattr("wiggle_store_cassandra.shards.SEAL_AFTER", 10)
    with migrated(fresh_space(cassandra_url, shards=1), ManualClock()) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(N == 1)
        for _ in range(5):
            laned.enqueue([make_task(attributes={"n": 1}) for _ in range(20)])
            store.apply([Finish(task.lease, State.DONE) for task in claim(store, by_lane(lane))])
            known = store._shards.reread_generations(0, "payments")
            assert known is not None
            assert len(known.sealed) <= 2
        laned.enqueue([make_task(attributes={"n": 1}) for _ in range(3)])
        with store._shards.connections.tracing() as told:
            assert store.lanes.sizes([lane.id], 10) == {lane.id: 3}
        met = [int(number) for line in told.events for number in re.findall(r"and (\d+) tombstone", line)]
        assert sum(met) <= 2 * 20, met
        laned.close(lane)
        assert store.lanes.read(0).lanes == ()
        assert store.audit() == []
