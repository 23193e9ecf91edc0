"""Large payloads and results in the Cassandra store, which takes no message beyond 16 MiB as it is set up."""

from __future__ import annotations

from tests.stores.cassandra_spaces import fresh_space, migrated
from wiggle_core.conformance.plugin import claim, enqueue_all, ids, make_task
from wiggle_core.stores.store import Finish
from wiggle_core.tasks.task import State

LARGE = '"' + "x" * 1_000_000 + '"'
COUNT = 18
"""More than go into one message."""


def test_many_large_results_are_settled_at_once(cassandra_url: str) -> None:
    """L2: a group of outcomes is settled however large its results are: no batch is larger than Cassandra takes."""
    with migrated(fresh_space(cassandra_url, shards=1)) as store:
        enqueue_all(store, [make_task() for _ in range(COUNT)])
        held = claim(store, limit=COUNT)
        settled = store.apply([Finish(task.lease, State.DONE, result=LARGE) for task in held])
        assert settled == set(ids(held))
        found = store.get(held[-1].id)
        assert found is not None
        assert found.result == LARGE
