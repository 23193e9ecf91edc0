"""Lanes are filled in one pass of short transactions, whatever the parts in which tasks are read and rows held back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wiggle_core import Engine, NewTask, QueueCriteria, Task
from wiggle_core.engine.routes import route_of
from wiggle_core.lanes import filling
from wiggle_core.stores.lanes import LaneRow
from wiggle_core.stores.memory import MemoryStore

EVEN = QueueCriteria("work", Task.step == "even")
ALL_KINDS = QueueCriteria("work", Task.kind == "task")


@pytest.mark.parametrize("held", [1, 7, 1_000])
def test_every_row_is_put_in_however_many_are_held_back(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1, N3: every READY task is in its lanes once, by transactions of at most `ROWS` rows, lane by lane."""
    monkeypatch.setattr(filling, "PART", 5)
    monkeypatch.setattr(filling, "ROWS", 3)
    monkeypatch.setattr(filling, "HELD", held)
    store = MemoryStore()
    put: list[Sequence[LaneRow]] = []
    fill = store.lanes.fill

    def watched(rows: Sequence[LaneRow]) -> None:
        put.append(list(rows))
        fill(rows)

    monkeypatch.setattr(store.lanes, "fill", watched)
    with Engine(store) as engine:
        engine.enqueue_many([NewTask("work", "even" if number % 2 == 0 else "odd") for number in range(23)])
        engine.lanes.open([route_of(EVEN), route_of(ALL_KINDS)])
        assert [info.size for info in engine.lanes.infos()] == [12, 23]
        assert store.audit() == []
    assert {len(rows) for rows in put[:-1]} <= {1, 2, 3}
    assert sum(map(len, put)) == 12 + 23
    if held == 1_000:
        lanes = [row.lane for rows in put for row in rows]
        assert lanes == sorted(lanes)
