"""Where claims of the Cassandra store begin to read: what others passed by, and what is drained."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.stores.cassandra_spaces import fresh_space, migrated
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import START, ManualClock, claim, enqueue_all, ids, make_task, route
from wiggle_core.criteria.fields import Task
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
