"""Lanes on MySQL and MariaDB: the epoch and the lock on its row, and the dead rows at the head of a lane (N1-N4,
MY13)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.stores.mysql_prefixes import fresh_place, migrated, open_url, recorded, rows_read
from tests.stores.postgres_schemas import with_options
from wiggle_core.conformance.laned import Laned, by_lane
from wiggle_core.conformance.plugin import claim, ids, make_task
from wiggle_core.criteria.fields import Task
from wiggle_core.errors import StaleLanes
from wiggle_core.stores.lanes import Placed
from wiggle_core.stores.store import Cancel, GiveBack
from wiggle_core.tasks.task import State, TaskRecord
from wiggle_store_mysql import claims
from wiggle_store_mysql.connections import Session
from wiggle_store_mysql.epochs import hold, hold_any, require_held
from wiggle_store_mysql.store import MySQLStore

region = Task.attr("region", str)
EU = {"region": "eu"}
ADD = "INSERT INTO $lane_epoch (epoch) VALUES (1)"


@pytest.fixture
def url(mysql_like_url: str) -> Iterator[str]:
    with fresh_place(mysql_like_url) as fresh:
        yield fresh


@pytest.fixture
def laned(url: str) -> Iterator[Laned]:
    with migrated(url) as store:
        yield Laned.over(store)


def store_of(laned: Laned) -> MySQLStore:
    assert isinstance(laned.store, MySQLStore)
    return laned.store


def eu_tasks(number: int) -> list[TaskRecord]:
    return [make_task(f"t{each:05}", created_at=each, attributes=EU) for each in range(number)]


@contextmanager
def transaction(laned: Laned) -> Iterator[Session]:
    """One that is rolled back unless it was committed."""
    with store_of(laned)._connections.rolled_back() as session:
        yield session


def holds(session: Session, epoch: int) -> bool:
    """Whether an epoch is held from now on, and is the present one."""
    try:
        require_held(session.batch([hold(session.server.product, epoch)])[0], epoch)
    except StaleLanes:
        return False
    return True


# The epoch


def test_an_epoch_whose_row_is_locked_is_stale_at_once(laned: Laned) -> None:
    """MY13, N3: nobody waits for whoever has locked the row, not the time of a lock and not at all: an enqueue then is
    answered by StaleLanes while the lock is held, and stores nothing."""
    with transaction(laned) as other:
        assert other.rows("SELECT epoch FROM $lane_epoch WHERE epoch = 0 FOR UPDATE") == [(0,)]
        with pytest.raises(StaleLanes):
            laned.store.enqueue([make_task("a")], Placed(0))
        # The lock is still held: what came back did not wait for its end.
        assert other.rows("SELECT 1") == [(1,)]
    assert laned.store.enqueue([make_task("a")], Placed(0)) == {"a"}


def test_an_epoch_is_shared_by_those_who_place_tasks(laned: Laned) -> None:
    """N3: any number of transactions hold the epoch at one time."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(transaction(laned)) for _ in range(4)]
        assert [holds(session, 0) for session in sessions] == [True] * 4


def test_the_epoch_is_read_behind_its_lock(laned: Laned) -> None:
    """MY13, N3: an opener that committed after a transaction began, and after it looked at the lanes, is noticed."""
    with transaction(laned) as session:
        assert session.rows("SELECT epoch FROM $lane_number") == [(0,)]
        laned.begin(region == "eu")
        assert not holds(session, 0)
    with transaction(laned) as session:
        assert holds(session, 1)


def test_an_opener_that_has_not_committed_is_passed_by(laned: Laned) -> None:
    """N3: until an opener commits, the old epoch is the present one, and nobody waits; what is placed by it meanwhile
    is waited for by `drained`."""
    with transaction(laned) as placing:
        with transaction(laned) as opener:
            opener.run(ADD)
            assert holds(placing, 0)
            assert laned.store.enqueue([make_task("a")], Placed(0)) == {"a"}
            with transaction(laned) as third:
                third.rows(*hold_any(third.server.product))
            opener.commit()
        with transaction(laned) as late:
            assert not holds(late, 0)
        assert not laned.lanes.drained(1, 0.05)
    assert laned.lanes.drained(1, 10)
    with store_of(laned)._connections.reading() as session:
        assert session.rows("SELECT epoch FROM $lane_epoch") == [(1,)]


def test_an_epoch_that_is_drained_is_over(laned: Laned) -> None:
    """N3: who comes with it later is refused, while its row is being looked at and once that is gone."""
    laned.begin(region == "eu")
    with transaction(laned) as draining:
        free = "SELECT epoch FROM $lane_epoch WHERE epoch < 1 ORDER BY epoch FOR UPDATE SKIP LOCKED"
        assert draining.rows(free) == [(0,)]
        with transaction(laned) as session:
            assert not holds(session, 0)
        with transaction(laned) as session:
            assert holds(session, 1)
    assert laned.lanes.drained(1, 10)
    with transaction(laned) as session:
        assert not holds(session, 0)
    with pytest.raises(StaleLanes):
        laned.store.enqueue([make_task("a")], Placed(0))


def test_openers_follow_each_other_while_an_old_epoch_is_held(laned: Laned) -> None:
    """N3: neither openers, nor enqueues by the present epoch, nor claims wait for a transaction that stays open; lanes
    are not filled before its end, and then have what it brings."""
    with transaction(laned) as stalled:
        assert holds(stalled, 0)
        one, two = laned.begin(region == "eu"), laned.begin(region == "us")
        assert [lane.epoch for lane in (*one, *two)] == [1, 2]
        laned.book.refresh()
        assert laned.enqueue(eu_tasks(3)) == {"t00000", "t00001", "t00002"}
        laned.release(claim(laned.store, limit=2))
        assert not laned.lanes.drained(1, 0.05)
        with transaction(laned) as other:
            assert holds(other, 2)
            assert not laned.lanes.drained(3, 0.05)  # by both
        stalled.rows("SELECT 1")
    assert laned.lanes.drained(2, 10)


@pytest.mark.parametrize("bulk", [1, 300])
def test_what_makes_tasks_ready_holds_the_epoch_until_its_commit(
    laned: Laned, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3: the lock comes with the first statement of the transaction, and goes with its COMMIT."""
    laned.open(region == "eu")
    with recorded(monkeypatch) as sent:
        laned.enqueue([make_task(attributes=EU) for _ in range(bulk)])
        held = claim(laned.store, limit=bulk)
        moved = len(laned.apply([(GiveBack(task.lease, EU), task) for task in held]))
    assert moved == bulk
    transactions = [packet for packet in sent if "$lane_epoch" in str(packet)]
    assert [packet[0][0] for packet in transactions] == ["START TRANSACTION"] * 2
    assert ["$lane_epoch" in packet[1][0] for packet in transactions] == [True] * 2
    assert all("COMMIT" not in str(packet[:2]) for packet in transactions)


# Dead rows


def kill_rows(laned: Laned, ids_of_tasks: Sequence[str]) -> None:
    """Have the tasks leave, and their rows of lanes stay, as after cancellations."""
    for start in range(0, len(ids_of_tasks), 1_000):
        part = ids_of_tasks[start : start + 1_000]
        assert len(laned.store.apply([Cancel(task_id) for task_id in part])) == len(part)


def test_dead_rows_at_the_head_of_a_lane_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: behind 10,000 dead rows a claim finds the first live ones, and has most of the dead ones deleted; the next
    one reads no more than any."""
    with migrated(with_options(url, pool_size="1")) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(region == "eu")
        tasks = eu_tasks(10_100)
        for start in range(0, len(tasks), 1_000):
            laned.enqueue(tasks[start : start + 1_000])
        kill_rows(laned, ids(tasks[:10_000]))
        with store._connections.reading() as session:
            assert session.rows("SELECT count(*) FROM $lane_task") == [(10_100,)]
        monkeypatch.setattr(claims, "PRUNING_PAUSE", 1e9)
        monkeypatch.setattr(claims, "SHORT_PRUNING_PAUSE", 1e9)
        assert ids(claim(store, by_lane(lane), limit=10)) == ids(tasks[10_000:10_010])
        with store._connections.reading() as session:
            ((left,),) = session.rows("SELECT count(*) FROM $lane_task")
        assert left == 90
        assert rows_read(store, lambda: claim(store, by_lane(lane), limit=10)) <= 12 * 10 + 5
        assert store.audit() == []


def test_a_lane_without_dead_rows_is_not_looked_at_for_any(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a claim by a lane that this process has not claimed by for long costs what the next one costs: dead rows are
    looked for when some were passed by, so that a worker may go through a thousand lanes."""
    with migrated(with_options(url, pool_size="1")) as store:
        laned = Laned.over(store)
        (lane,) = laned.open(region == "eu")
        tasks = eu_tasks(300)
        laned.enqueue(tasks)
        monkeypatch.setattr(claims, "PRUNING_PAUSE", 0.0)
        read = [rows_read(store, lambda: claim(store, by_lane(lane), limit=10)) for _ in range(3)]
        assert max(read) - min(read) <= 5, read
        kill_rows(laned, ids(tasks[30:41]))
        with recorded(monkeypatch) as sent:
            assert ids(claim(store, by_lane(lane), limit=10)) == ids(tasks[41:51])
        assert [packet for packet in sent if "DELETE" in str(packet)][1:], "eleven dead rows were passed by, and stay"
        assert laned.size(lane) == 300 - 51


def test_a_row_that_is_held_is_not_pruned_nor_waited_for(laned: Laned) -> None:
    """N1, L7: pruning passes by what others have locked."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(6))
    kill_rows(laned, ["t00000", "t00001", "t00002"])
    with transaction(laned) as other:
        assert other.rows("SELECT id FROM $lane_task WHERE id = 't00001' AND lane = %s FOR UPDATE", [lane.id])
        began = time.monotonic()
        laned.prune()
        assert ids(claim(laned.store, by_lane(lane), limit=2)) == ["t00003", "t00004"]
        assert time.monotonic() - began < 10  # a lock is waited for 28 seconds
        assert laned.size(lane) == 2
    laned.prune()
    assert laned.size(lane) == 1


def test_a_dead_row_does_not_come_back_to_life(laned: Laned) -> None:
    """N1: the row of a task that was claimed and given back meanwhile is told apart by its number: the task is found
    once."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(3))
    for _ in range(4):  # by a walk, so that the rows of the lane stay
        laned.release(claim(laned.store, limit=3))
    assert laned.size(lane) == 15
    assert ids(claim(laned.store, by_lane(lane), limit=10)) == ["t00000", "t00001", "t00002"]
    assert laned.store.find(by_lane(lane), [State.READY], 10) == []
    laned.prune()
    assert laned.size(lane) == 0


def test_two_handles_prune_one_lane(laned: Laned, url: str) -> None:
    """N4: each handle looks after the heads it claims from; neither waits for the other, and no live row goes."""
    (lane,) = laned.open(region == "eu")
    laned.enqueue(eu_tasks(600))
    kill_rows(laned, [f"t{number:05}" for number in range(0, 600, 2)])
    other = open_url(url)
    held = [task.id for store in (other, laned.store) for task in claim(store, by_lane(lane), limit=100)]
    other.close()
    assert held == [f"t{number:05}" for number in range(1, 400, 2)]
    assert laned.store.audit() == []
