"""Lanes in SQLite files: what the kit cannot see from outside, and what several threads and processes do at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.stores.sqlite_files import connect_plainly, open_file, recorded
from tests.stores.sqlite_traffic import AGAIN, CHARGES
from wiggle_core import open_engine
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import normalize
from wiggle_core.engine.routes import plan
from wiggle_core.errors import StaleLanes
from wiggle_core.lanes.filling import clear, complete
from wiggle_core.stores.lanes import LaneId, LaneState, NewLane, Placed
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
)
from wiggle_core.tasks.task import Lease, State, TaskRecord
from wiggle_store_sqlite.schema import MIGRATIONS
from wiggle_store_sqlite.store import SqliteStore

ROOT = Path(__file__).parents[2]
_tokens = count()
CHARGE = normalize(Task.step == "charge")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = open_file(path, "?synchronous=normal")
    opened.migrate()
    yield opened
    opened.close()


def charge(number: int, *, state: State = State.READY) -> TaskRecord:
    return TaskRecord(f"t{number:05d}", "q", "charge", number, 1, state=state)


def open_lane(store: SqliteStore) -> tuple[LaneId, int]:
    """An OPEN lane of the queue `q` for the step `charge`, and the epoch."""
    opened = store.lanes.open([NewLane("q", CHARGE, "a test")])
    assert complete(store.lanes, opened, 1)
    return opened[0].id, opened[0].epoch


def claim(store: SqliteStore, lane: LaneId | None, limit: int = 10) -> list[TaskRecord]:
    route = Route("q", CHARGE, lane)
    return store.claim(ClaimRequest("worker", f"token {next(_tokens)}", 30_000_000, limit, (route,)))


def size(store: SqliteStore, lane: LaneId) -> int:
    return store.lanes.sizes([lane], 100_000)[lane]


def ids(tasks: Sequence[TaskRecord]) -> list[str]:
    return [task.id for task in tasks]


# The epoch


def test_what_makes_tasks_ready_names_the_present_epoch(store: SqliteStore) -> None:
    """N3: every call that makes a task READY is refused by another epoch, with nothing applied; no other call is."""
    store.enqueue([charge(number) for number in range(6)])
    store.enqueue([charge(8, state=State.SCHEDULED), charge(9)])
    one, two, three, four, five, six = claim(store, None, limit=6)
    store.apply([Finish(six.lease, State.FAILED)])
    lane, epoch = open_lane(store)

    old = Placed(epoch - 1)
    refused: list[Change] = [
        Requeue(one.lease, 0, {}),
        GiveBack(two.lease, {}),
        Promote("t00008", {}),
        Revive(six.id, {}),
        Expire(three.lease, 0, {}),
    ]
    for change in refused:
        with pytest.raises(StaleLanes):
            store.apply([change, Cancel(four.id)], old)
    with pytest.raises(StaleLanes):
        store.enqueue([charge(10)], old)
    assert store.get("t00010") is None
    assert {store.lookup([task.id])[task.id].state for task in (one, two, three, four)} == {State.RUNNING}

    store.enqueue([charge(11, state=State.SCHEDULED)], old)
    others: list[Change] = [
        Requeue(one.lease, 1, {}),
        Finish(two.lease, State.DONE),
        Expire(three.lease, None, {}),
        Cancel(four.id),
    ]
    assert store.apply(others, old) == {one.id, two.id, four.id}
    assert store.extend([five.lease], 1) == {five.lease}
    assert ids(claim(store, lane)) == ["t00009"]


def test_settling_does_not_ask_for_the_epoch(store: SqliteStore) -> None:
    """N3: what makes nothing READY costs no statement more than it did without lanes."""
    store.enqueue([charge(number) for number in range(2)])
    one, two = claim(store, None)
    with recorded(store) as statements:
        store.apply([Finish(one.lease, State.DONE), Cancel(two.id)])
    assert not [statement for statement in statements if "counter" in statement or "lane" in statement]


def test_an_opener_waits_for_nobody_but_the_writer(store: SqliteStore, path: Path) -> None:
    """N3: who has the write lock makes his tasks READY before the epoch grows; later nobody does by the old one."""
    writer = connect_plainly(path)
    writer.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(store.lanes.open, [NewLane("q", CHARGE, "a test")])
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.2)
        assert store.lanes.read(0).epoch == 0
        writer.execute("COMMIT")
        (lane,) = opening.result(timeout=10)
    writer.close()
    assert store.lanes.drained(lane.epoch, 0)
    assert store.lanes.read(0).epoch == lane.epoch == 1


# Dead rows


def test_a_claim_deletes_the_rows_that_it_meets(store: SqliteStore) -> None:
    """N1: those of its own tasks and the dead ones before them; those behind stay for whoever meets them."""
    store.enqueue([charge(number) for number in range(30)])
    lane, _ = open_lane(store)
    store.apply([Finish(task.lease, State.DONE) for task in claim(store, None, limit=5)])
    store.apply([Cancel("t00006"), Cancel("t00020")])
    assert size(store, lane) == 30
    assert ids(claim(store, lane, limit=2)) == ["t00005", "t00007"]
    assert size(store, lane) == 22
    assert len(claim(store, lane, limit=100)) == 21
    assert size(store, lane) == 0


def test_a_claim_that_meets_dead_rows_only_deletes_them(store: SqliteStore) -> None:
    """N1: so that the next one reads nothing, and takes no lock."""
    store.enqueue([charge(number) for number in range(30)])
    lane, _ = open_lane(store)
    claim(store, None, limit=30)
    assert claim(store, lane) == []
    assert size(store, lane) == 0
    with recorded(store) as statements:
        assert claim(store, lane) == []
    assert len(statements) == 1


def test_a_claim_deletes_few_at_once_and_goes_on(store: SqliteStore) -> None:
    """N1: thousands of dead rows are deleted in short transactions, and each once: no later claim passes by them."""
    store.enqueue([charge(number) for number in range(5_000)])
    lane, _ = open_lane(store)
    claim(store, None, limit=4_500)
    with recorded(store) as statements:
        assert ids(claim(store, lane, limit=1)) == ["t04500"]
    assert statements.count("BEGIN IMMEDIATE") == 5
    assert size(store, lane) == 499
    assert store.explain(Route("q", CHARGE, lane), 10).rows_read == 20


def test_trouble_with_dead_rows_does_not_deny_what_was_leased(store: SqliteStore, path: Path) -> None:
    """L6: once a claim has committed, it answers with its tasks, whatever keeps it from deleting more dead rows."""
    store.enqueue([charge(number) for number in range(3_000)])
    lane, _ = open_lane(store)
    claim(store, None, limit=2_500)
    hasty = open_file(path, "?synchronous=normal&timeout=0")
    other, begun = connect_plainly(path), count()

    def interfere(statement: str) -> None:
        """Another program takes the lock as soon as the claim's own transaction is over."""
        if statement == "BEGIN IMMEDIATE" and next(begun) == 1:
            other.execute(statement)

    with hasty._connections.reading() as connection:
        connection.set_trace_callback(interfere)
    assert ids(claim(hasty, lane, limit=1)) == ["t02500"]
    assert other.in_transaction
    other.close()
    hasty.close()
    assert 500 < size(store, lane) < 3_000


def test_a_purged_id_does_not_wake_dead_rows(store: SqliteStore) -> None:
    """N1: no number of a task is given twice, so that a row of an earlier life stays dead, whatever is enqueued by that
    id, with the same times."""
    store.enqueue([charge(1)])
    lane, epoch = open_lane(store)
    store.apply([Finish(claim(store, None)[0].lease, State.DONE)])
    assert store.purge(2**62, 10) == 1
    store.enqueue([TaskRecord("t00001", "q", "refund", 1, 1)], Placed(epoch))
    assert size(store, lane) == 1
    assert claim(store, lane) == []
    assert store.audit() == []


def test_a_revived_task_goes_on_with_its_number(store: SqliteStore) -> None:
    """N1: what leaves history has a `ready_no` that no earlier row of it has."""
    store.enqueue([charge(1)])
    lane, epoch = open_lane(store)
    store.apply([Cancel("t00001")])
    store.apply([Revive("t00001", {})], Placed(epoch))  # as if it did not match any more
    assert claim(store, lane) == []
    store.apply([Cancel("t00001")])
    store.apply([Revive("t00001", {})], Placed(epoch, [[lane]]))
    assert ids(claim(store, lane)) == ["t00001"]


def test_pruning_takes_the_lock_only_for_dead_rows(store: SqliteStore, path: Path) -> None:
    """N1: a sweep that finds none writes nothing; one that does deletes those and no others."""
    store.enqueue([charge(number) for number in range(30)])
    lane, _ = open_lane(store)
    with recorded(store) as statements:
        assert store.lanes.prune(None, 100) is None
    assert "BEGIN IMMEDIATE" not in statements
    claim(store, None, limit=12)
    first = store.lanes.prune(None, 10)
    assert first is not None
    assert (first.lane, first.key.id, size(store, lane)) == (lane, "t00009", 20)
    assert store.lanes.prune(first, 100) is None
    assert size(store, lane) == 18
    assert store.audit() == []


# Opening and closing


def test_a_lane_that_is_not_open_is_named_stale(store: SqliteStore) -> None:
    """N3: while it is filled, closed or gone, and though the queue is empty: never an empty answer."""
    (lane,) = store.lanes.open([NewLane("q", CHARGE, "a test")])
    for use in (lambda: claim(store, lane.id), lambda: store.explain(Route("q", CHARGE, lane.id), 10)):
        with pytest.raises(StaleLanes):
            use()
    store.lanes.finish([lane.id])
    assert claim(store, lane.id) == []
    store.lanes.close([lane.id])
    for unknown in (lane.id, 99):
        with pytest.raises(StaleLanes):
            claim(store, unknown)


def test_a_lane_that_closes_between_read_and_lock_is_stale(store: SqliteStore) -> None:
    """N3: what was read by a lane is leased only if the lane is OPEN still; else nothing is."""
    store.enqueue([charge(number) for number in range(30)])
    lane, _ = open_lane(store)
    other = open_file(Path(store._connections.place.path))

    def close_first(statement: str) -> None:
        if "SELECT json_group_array(number)" in statement and lane:
            clear(other.lanes, other.lanes.close([lane]), 1)

    with store._connections.reading() as connection:
        connection.set_trace_callback(close_first)
    with pytest.raises(StaleLanes):
        claim(store, lane)
    assert len(store.find(Route("q"), [State.READY], 100)) == 30
    other.close()


def test_closed_lanes_are_remembered_for_a_while(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """N3: whoever knew a lane that was forgotten since is told all that there are; no id is given again."""
    monkeypatch.setattr("wiggle_store_sqlite.lanes.CLOSED_KEPT", 2)
    seen = store.lanes.read(0).revision
    made = []
    for number in range(4):
        opened = store.lanes.open([NewLane(f"q{number}", CHARGE, "a test")])
        made += [lane.id for lane in opened]
        assert clear(store.lanes, store.lanes.close([opened[0].id]), 1)
        if number == 1:
            seen = store.lanes.read(0).revision
    assert made == [1, 2, 3, 4]
    changes = store.lanes.read(seen)
    assert (changes.is_whole, [lane.id for lane in changes.lanes]) == (False, [3, 4])
    assert {lane.state for lane in changes.lanes} == {LaneState.CLOSED}
    assert store.lanes.read(1).is_whole
    assert store.lanes.read(1).lanes == ()


# Everything at once


def test_lanes_are_exact_while_processes_write(path: Path) -> None:
    """N1, N3: two processes enqueue, claim by lanes and by walks, retry, release, cancel and sweep, while a third opens
    and closes lanes and audits them: at no time is a row missing or wrong, and no claim by a lane fails."""
    routes = [route for each in (CHARGES, AGAIN) for route in plan([each])]
    with open_engine(f"sqlite:///{path}?synchronous=normal", migrate=True) as engine:
        command = [sys.executable, "-m", "tests.stores.sqlite_traffic", str(path)]
        writers = [
            subprocess.Popen([*command, name, "3"], cwd=ROOT, stdout=subprocess.PIPE, text=True) for name in ("a", "b")
        ]
        cycles = audits = 0
        while any(writer.poll() is None for writer in writers):
            opened = engine.lanes.open(routes)
            assert [lane.state for lane in opened] == [LaneState.OPEN] * 2
            for _ in range(3):
                assert engine.store.audit() == []
                audits += 1
            engine.lanes.close([lane.id for lane in opened])
            cycles += 1
        counts = [json.loads(writer.communicate()[0]) for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0]
        assert engine.store.audit() == []
    assert cycles > 3
    assert audits > 10
    assert all(each["enqueued"] and each["claimed"] and each["settled"] for each in counts)


# Files of before


def _make_file_of_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as the version before lanes made and filled it: READY, SCHEDULED, RUNNING and CANCELLED tasks."""
    with monkeypatch.context() as patched:
        patched.setattr("wiggle_store_sqlite.schema.MIGRATIONS", MIGRATIONS[:1])
        before = open_file(path)
        assert before.migrate() == ["0001_tasks"]
        before.close()
    connection = connect_plainly(path)
    states = ("READY", "READY", "SCHEDULED", "RUNNING")
    for number, state in enumerate(states, 1):
        lease = ("w", "t", 2**60) if state == "RUNNING" else (None, None, None)
        row = (number, f"t{number:05d}", "q", "charge", number, 1, state, "{}", 0, 1, "task", *lease)
        connection.execute(f"INSERT INTO task ({_OLD_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
        connection.execute("INSERT INTO payload VALUES (?, '{}')", (number,))
    row = (5, "t00005", "q", "charge", 5, 1, "CANCELLED", "{}", 0, 1, "task", None, None, None, 1)
    connection.execute(f"INSERT INTO history ({_OLD_COLUMNS}, finished_at) VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("INSERT INTO payload VALUES (5, '{}')")
    connection.close()


_OLD_COLUMNS = (
    "number, id, queue, step, created_at, ready_at, state, attributes, priority, attempt, kind, "
    "owner, token, lease_until"
)


def test_a_file_of_before_is_upgraded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without lanes is upgraded as it is: its tasks enter the lanes that are opened then, each in its turn."""
    _make_file_of_before(path, monkeypatch)
    store = open_file(path)
    assert store.migrate() == ["0002_lanes"]
    store.verify()
    lane, epoch = open_lane(store)
    assert store.audit() == []
    placed = Placed(epoch, [[lane]] * 3)
    changes: list[Change] = [Promote("t00003", {}), GiveBack(Lease("t00004", "t"), {}), Revive("t00005", {})]
    assert store.apply(changes, placed) == {"t00003", "t00004", "t00005"}
    assert store.enqueue([charge(6)], placed) == {"t00006"}
    assert store.audit() == []
    assert sorted(ids(claim(store, lane))) == [f"t{number:05d}" for number in range(1, 7)]
    store.close()


# What an audit finds


_MISSING = "task 't00002' is not in lane 1, though it matches"
_FROM_TASK = "SELECT 1, priority, created_at, ready_at, id, ready_no, number FROM task"


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM lane_task WHERE id = 't00002'", _MISSING),
        ("UPDATE task SET ready_no = ready_no + 1 WHERE id = 't00002'", _MISSING),
        ("UPDATE lane_task SET priority = 7 WHERE id = 't00002'", _MISSING),
        (f"INSERT INTO lane_task {_FROM_TASK} WHERE id = 'r'", "task 'r' is in lane 1, though it does not match"),
        ("UPDATE task SET step = 'x' WHERE id = 't00002'", "task 't00002' is in lane 1, though it does not match"),
        ("INSERT INTO lane_task VALUES (9, 0, 1, 1, 'x', 1, 1)", "1 rows belong to no lane"),
    ],
)
def test_an_audit_finds_wrong_rows(store: SqliteStore, path: Path, damage: str, finding: str) -> None:
    """N1: a row that is missing, wrong, misplaced, or of no lane, is told by `wiggle db check`."""
    store.enqueue([charge(number) for number in range(4)])
    store.enqueue([TaskRecord("r", "q", "refund", 1, 1)])
    open_lane(store)
    assert store.audit() == []
    connection = connect_plainly(path)
    connection.execute(damage)
    connection.close()
    assert store.audit() == [finding]


def test_an_audit_finds_what_absent_attributes_do_not_match(store: SqliteStore, path: Path) -> None:
    """N1, C2: the row of a task whose attribute is absent is wrong, though SQL says neither yes nor no of it."""
    predicate = normalize(Task.attr("region", str) == "eu")
    store.enqueue([charge(1)])
    opened = store.lanes.open([NewLane("q", predicate, "a test")])
    assert complete(store.lanes, opened, 1)
    connection = connect_plainly(path)
    connection.execute(f"INSERT INTO lane_task {_FROM_TASK}")
    connection.close()
    assert store.audit() == ["task 't00001' is in lane 1, though it does not match"]
