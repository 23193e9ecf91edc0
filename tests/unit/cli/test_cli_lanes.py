"""`wiggle lanes`, and what the other commands tell of lanes (N4, N5, section 9)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from wiggle_core.criteria.builder import QueueCriteria
from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import TRUE, normalize
from wiggle_core.criteria.wire import predicate_from_object
from wiggle_core.engine.engine import open_engine
from wiggle_core.errors import CriteriaError, StaleLanes
from wiggle_core.lanes import keeper
from wiggle_core.lanes.keeper import LaneKeeper, NoLanes
from wiggle_core.stores.lanes import NewLane
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.store import Explanation, Route
from wiggle_core.tasks.submission import NewTask
from wiggle_core.worker.worker import Worker

from .conftest import Wiggle, write_lines

RARE = "attempt = 7"


@pytest.fixture
def filled(store: str) -> str:
    """A store with 2,100 ready tasks, of which each tenth is to be shipped."""
    with open_engine(store) as engine:
        engine.enqueue_many(NewTask("orders", "ship" if n % 10 == 0 else "charge", id=f"t{n:04}") for n in range(2_100))
    return store


def opened(wiggle: Wiggle, store: str, text: str, queue: str = "orders") -> Any:  # Any: JSON of a lane
    ended = wiggle("lanes", "open", "--text", text, "--queue", queue, "--store", store, "--json")
    assert ended.code == 0, ended
    return ended.json


def listed(wiggle: Wiggle, store: str) -> list[dict[str, Any]]:  # Any: as above
    found = wiggle("lanes", "--store", store, "--json")
    assert found.code == 0
    return list(found.json)


# open, list, close


def test_a_lane_is_opened_listed_and_closed(wiggle: Wiggle, filled: str) -> None:
    """Section 9: what is opened by hand is listed with its size and reason until it is closed."""
    assert wiggle("lanes", "--store", filled).out == "no lanes: every claim walks its queue\n"
    lane = opened(wiggle, filled, "step = 'ship'")
    assert (lane["queue"], lane["text"], lane["state"]) == ("orders", "step = 'ship'", "OPEN")
    assert (lane["reason"], lane["pinned"], lane["workers"]) == ("by hand", True, [])
    [found] = listed(wiggle, filled)
    assert (found["id"], found["size"], found["capped"], found["hits"]) == (lane["id"], 210, False, 0)
    assert found["where"] == {"op": "=", "args": [{"field": "step"}, "ship"]}
    assert found["age_seconds"] >= 0
    shown = wiggle("lanes", "--store", filled).out
    assert all(part in shown for part in ("orders", "step = 'ship'", "OPEN", "210", "by hand", "yes"))
    assert wiggle("db", "check", "--store", filled).code == 0
    ended = wiggle("lanes", "close", str(lane["id"]), "--store", filled)
    assert (ended.code, ended.out) == (0, f"lane {lane['id']}  closed\n")
    assert listed(wiggle, filled) == []


def test_both_lists_are_one(wiggle: Wiggle, filled: str) -> None:
    """Section 9: `wiggle lanes` is `wiggle lanes list`."""
    opened(wiggle, filled, "step = 'ship'")
    [by_default], [by_name] = (wiggle("lanes", *name, "--store", filled, "--json").json for name in ((), ("list",)))
    assert by_default | {"age_seconds": 0} == by_name | {"age_seconds": 0}


def test_opening_twice_is_once(wiggle: Wiggle, filled: str, tmp_path: Path) -> None:
    """N3: the lane that is there serves both, however its criteria are spelt."""
    first = opened(wiggle, filled, "NOT (NOT step = 'ship')")
    file = write_lines(tmp_path / "c", {"queue": "orders", "where": first["where"]})
    again = wiggle("lanes", "open", "--json-file", file, "--store", filled)
    told = (
        f"lane {first['id']} of queue 'orders' is open: step = 'ship'\nlive workers with exactly these criteria: none\n"
    )
    assert (again.code, again.out) == (0, told)
    assert len(listed(wiggle, filled)) == 1
    assert opened(wiggle, filled, "step = 'ship'", "another")["id"] != first["id"]


def test_closing_twice_is_a_no(wiggle: Wiggle, filled: str) -> None:
    """Section 9: exit 1 unless each was open; the others are closed."""
    ids = [opened(wiggle, filled, text)["id"] for text in ("step = 'ship'", RARE)]
    ended = wiggle("lanes", "close", str(ids[0]), "77", str(ids[0]), "--store", filled, "--json")
    assert (ended.code, ended.json) == (1, {"changed": [ids[0]], "unchanged": [77]})
    ended = wiggle("lanes", "close", *map(str, ids), "--store", filled)
    assert (ended.code, ended.out) == (1, f"lane {ids[0]}  not open\nlane {ids[1]}  closed\n")
    largest = str(2**63 - 1)
    assert wiggle("lanes", "close", largest, "--store", filled).out == f"lane {largest}  not open\n"


def test_a_lane_by_hand_stays_when_a_worker_goes(wiggle: Wiggle, filled: str) -> None:
    """N4: it is told which live workers claim by exactly these criteria, steps included."""
    with open_engine(filled) as engine:
        worker = Worker(engine, "eu-1", criteria=[QueueCriteria("orders", Task.attempt == 7)], concurrency=1)
        worker.task("ship")(lambda context: None)
        with worker:
            assert opened(wiggle, filled, RARE)["workers"] == []
            assert opened(wiggle, filled, f"{RARE} AND step = 'ship'")["workers"] == ["eu-1"]
    assert [each["pinned"] for each in listed(wiggle, filled)] == [True, True]


def test_a_lane_that_nobody_fills_is_told_from_an_open_one(wiggle: Wiggle, filled: str) -> None:
    """N3: one whose opener died is no use to claims until a worker goes on with it; it can be closed as any other."""
    with open_engine(filled) as engine:
        assert engine.store.lanes is not None
        engine.store.lanes.open([NewLane("orders", QueueCriteria("orders", Task.attempt == 7).normal, "a test")])
    [lane] = listed(wiggle, filled)
    assert (lane["state"], lane["pinned"]) == ("FILLING", False)
    assert explained(wiggle, filled, RARE)["reason"] == "its lane is being filled"
    ended = wiggle("lanes", "open", "--text", RARE, "--queue", "orders", "--store", filled)
    assert (ended.code, f"lane {lane['id']} of queue 'orders' is still being filled" in ended.out) == (0, True)
    assert (listed(wiggle, filled)[0]["state"], listed(wiggle, filled)[0]["pinned"]) == ("FILLING", True)
    assert wiggle("lanes", "close", str(lane["id"]), "--store", filled).code == 0


def test_check_finds_a_task_that_its_lane_lacks(wiggle: Wiggle, filled: str, tmp_path: Path) -> None:
    """N1: `db check` audits lanes: exit 1 and the task's id."""
    lane = opened(wiggle, filled, "step = 'ship'")
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        connection.execute("DELETE FROM lane_task WHERE id = 't0030'")
    ended = wiggle("db", "check", "--store", filled, "--json")
    [finding] = ended.json["findings"]
    assert (ended.code, finding.startswith(f"task 't0030' is not in lane {lane['id']}")) == (1, True)


# Wrong input


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("open",), 2, "give either --json-file or --text"),
        (("open", "--text", "TRUE"), 2, "a lane would hold all of queue 'default': these criteria take every task"),
        (("open", "--text", "NOT TRUE"), 2, "a lane would stay empty: no task can match FALSE"),
        (("open", "--text", "step = 'a' AND step = 'b'"), 2, "a lane would stay empty: no task can match step = 'a'"),
        (("open", "--text", "colour = 'red'"), 2, "colour"),
        (("open", "--text", "step = 'a'", "--queue", ""), 2, "a queue needs a name"),
        (("open", "--json-file", "none"), 2, "none: No such file or directory"),
        (("close",), 2, "Missing argument 'ID...'"),
        (("close", "one"), 2, "Invalid value for 'ID...'"),
        (("close", "1", "1.5"), 2, "Invalid value for 'ID...'"),
        (("close", "0"), 2, "Invalid value for 'ID...'"),
        (("close", "9" * 30), 2, "Invalid value for 'ID...'"),
        (("close", "-1"), 2, "No such option: -1"),
        (("shut", "1"), 2, "No such command 'shut'; see `wiggle lanes --help`"),
        (("list", "extra"), 2, "unexpected extra argument"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, tuple) else str(each)[:20],
)
def test_wrong_input_is_one_line(
    wiggle: Wiggle, store: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Section 9: a stable code and one line, and nothing was opened."""
    ended = wiggle("lanes", *arguments, "--store", store)
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    assert message in ended.err
    as_json = wiggle("lanes", *arguments, "--store", store, "--json")
    assert (as_json.code, as_json.err) == (code, "")
    assert message in as_json.json["error"]
    assert listed(wiggle, store) == []


@pytest.mark.parametrize("arguments", [(), ("list",), ("open", "--text", RARE), ("close", "1")])
def test_a_store_without_lanes_says_so(
    wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """N4: a store need not have lanes."""
    monkeypatch.setattr(MemoryStore, "lanes", None)
    ended = wiggle("lanes", *arguments, "--store", "memory://")
    assert (ended.code, ended.out, ended.err) == (2, "", "wiggle: the store memory has no lanes\n")


@pytest.mark.parametrize("arguments", [("list",), ("open", "--text", RARE), ("close", "1")])
def test_options_before_the_command_are_not_dropped(wiggle: Wiggle, store: str, arguments: tuple[str, ...]) -> None:
    """Section 9: a store that is named there must not be passed over for the default one."""
    ended = wiggle("lanes", "--store", store, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert f"behind the command: wiggle lanes {arguments[0]} ..." in ended.err


def test_the_engine_refuses_lanes_that_choose_nothing() -> None:
    """N4: nor is one of several opened then."""
    with open_engine("memory://") as engine:
        routes = [Route("q", QueueCriteria("q", Task.attempt == 7).normal), Route("q")]
        with pytest.raises(CriteriaError, match="take every task"):
            engine.lanes.open(routes)
        assert engine.lanes.infos() == []


def test_a_queue_has_so_many_lanes_and_no_more(wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """N4: by hand neither; one that is there may be asked for again, and other queues have room of their own."""
    monkeypatch.setattr(keeper, "MAX_LANES", 2)
    for n in (1, 2, 1):
        opened(wiggle, store, f"attempt = {n}")
    ended = wiggle("lanes", "open", "--text", RARE, "--queue", "orders", "--store", store)
    assert (ended.code, ended.err) == (2, "wiggle: queue 'orders' has 2 lanes, and at most 2 (N4)\n")
    opened(wiggle, store, RARE, "another")


def test_the_engine_says_that_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a store need not have lanes."""
    monkeypatch.setattr(MemoryStore, "lanes", None)
    with open_engine("memory://") as engine, pytest.raises(NoLanes):
        engine.lanes.infos()


# WIGGLE_LANES


@pytest.mark.parametrize("value", ["yes", "ON", "1", " auto"])
def test_a_wrong_setting_is_named(wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, store: str, value: str) -> None:
    """N4: auto, on or off; anything else is refused before anything runs."""
    monkeypatch.setenv("WIGGLE_LANES", value)
    ended = wiggle("lanes", "--store", store)
    assert (ended.code, ended.err) == (2, "wiggle: WIGGLE_LANES: Input should be 'auto', 'on' or 'off'\n")


# explain


def explained(wiggle: Wiggle, store: str, text: str) -> Any:  # Any: JSON of an explanation
    arguments = ("criteria", "explain", "--text", text, "--queue", "orders", "--store", store)
    ended, shown = wiggle(*arguments, "--json"), wiggle(*arguments)
    assert (ended.code, shown.code) == (0, 0)
    assert f"verdict      {ended.json['verdict']}: {ended.json['reason']}\n" in shown.out
    assert f"rows read    {ended.json['rows_read']}\n" in shown.out
    return ended.json


def test_explain_tells_why_a_claim_walks(wiggle: Wiggle, filled: str) -> None:
    """N5: what a probe of the first ready tasks found, and the rows that the walk read."""
    common = explained(wiggle, filled, "step = 'charge'")
    assert (common["verdict"], common["reason"]) == ("walk", "1800 of the first 2000 ready tasks match")
    assert 10 <= common["rows_read"] <= 25
    rare = explained(wiggle, filled, RARE)
    assert (rare["verdict"], rare["reason"]) == (
        "walk",
        "it has no lane yet; a worker with these criteria will have it opened (0 of the first 2000 ready tasks match)",
    )
    assert rare["rows_read"] >= 2_100
    everything = explained(wiggle, filled, "TRUE")
    assert (everything["verdict"], everything["reason"]) == ("walk", "every task of the queue matches")
    assert explained(wiggle, filled, "step = 'a' AND step = 'b'")["reason"] == "no task can match"


def test_explain_tells_of_the_lane(wiggle: Wiggle, filled: str) -> None:
    """N5: once a lane is open the claim through it is explained, which reads about as many rows as it takes."""
    walk = explained(wiggle, filled, RARE)
    lane = opened(wiggle, filled, RARE)
    found = explained(wiggle, filled, RARE)
    assert (found["verdict"], found["reason"]) == ("lane", f"lane {lane['id']} is open (by hand)")
    assert found["rows_read"] <= 10
    assert found["plan"] != walk["plan"]
    with open_engine(filled) as engine:
        assert engine.claim("me", [QueueCriteria("orders")], limit=5)  # none was leased by being explained
        assert engine.store.slices()[0].ready == 2_095


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("off", "WIGGLE_LANES=off"),
        ("on", "it has no lane yet; a worker with these criteria will have it opened (WIGGLE_LANES=on)"),
    ],
)
def test_explain_goes_by_the_setting(
    wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, filled: str, policy: str, reason: str
) -> None:
    """N4: the verdict is that of workers with the same WIGGLE_LANES."""
    monkeypatch.setenv("WIGGLE_LANES", policy)
    assert explained(wiggle, filled, "step = 'charge'")["reason"] == reason


def test_a_lane_that_closes_meanwhile_is_asked_for_again(
    wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    """N3: between the verdict and the statement a lane may close; the claim explained is then a walk."""
    lane = opened(wiggle, filled, RARE)["id"]
    verdict = LaneKeeper.verdict

    def then_closed(asked: LaneKeeper, route: Route) -> object:
        found = verdict(asked, route)
        asked.close([lane])
        return found

    monkeypatch.setattr(LaneKeeper, "verdict", then_closed)
    assert explained(wiggle, filled, RARE)["verdict"] == "walk"


def test_lanes_that_never_rest_are_said(wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch) -> None:
    """N3: it is not tried for ever."""

    def stale(store: MemoryStore, route: Route, limit: int) -> Explanation:
        raise StaleLanes

    monkeypatch.setattr(MemoryStore, "explain", stale)
    ended = wiggle("criteria", "explain", "--text", RARE, "--store", "memory://")
    assert (ended.code, "change so fast" in ended.err) == (3, True)


# match


class Watched:
    """What `criteria match` did with the lanes of its scratch store: those that were open at once, and the routes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most_open = 0
        self.routes: dict[Any, bool] = {}  # Any: a predicate
        self.findings: list[str] = []
        self.left: int | None = None
        claim, close = MemoryStore.claim, MemoryStore.close

        def watched_claim(store: MemoryStore, request: Any) -> Any:  # Any: as in the store
            self.most_open = max(self.most_open, len(store.lanes.read(0).lanes))
            self.findings += store.audit()
            self.routes |= {route.predicate: route.lane is not None for route in request.routes}
            return claim(store, request)

        def watched_close(store: MemoryStore) -> None:
            self.left = len(store.lanes.read(0).lanes)
            close(store)

        monkeypatch.setattr(MemoryStore, "claim", watched_claim)
        monkeypatch.setattr(MemoryStore, "close", watched_close)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def task_lines(count: int) -> list[dict[str, object]]:
    at = "2026-01-01T00:00:00Z"
    return [
        {"id": f"t{n:04}", "queue": "q", "step": f"s{n % 50}", "created_at": at, "ready_at": at, "attempt": n % 3 + 1}
        for n in range(count)
    ]


def match(wiggle: Wiggle, tmp_path: Path, count: int, wheres: Sequence[object], *way: str) -> list[Any]:
    tasks = write_lines(tmp_path / "t", *task_lines(count))
    criteria = write_lines(tmp_path / "c", *({"where": where} for where in wheres))
    ended = wiggle("criteria", "match", "--tasks", tasks, "--criteria", criteria, *way)
    assert (ended.code, ended.err) == (0, "")
    return ended.lines


def equal(field: str, value: object) -> dict[str, object]:
    return {"op": "=", "args": [{"field": field}, value]}


NEVER = {"op": "and", "args": [equal("step", "a"), equal("step", "b")]}
WHERES: list[object] = [*(equal("step", f"s{n}") for n in range(20)), equal("attempt", 2), None, NEVER, "nonsense",
                        equal("step", "s3"), {"op": "not", "args": [equal("step", "s3")]}]  # fmt: skip


def test_all_claims_are_through_lanes_when_asked(wiggle: Wiggle, tmp_path: Path, watched: Watched) -> None:
    """Section 9: with `--lanes on` each criteria that chooses has a lane, several are open at once so that what is
    released enters all of them, their rows are right at each claim, and none is left open."""
    way = ("--store", "memory://", "--claim", "--lanes", "on")
    assert match(wiggle, tmp_path, 200, WHERES, *way) == match(wiggle, tmp_path, 200, WHERES)
    walked = [predicate for predicate, has_lane in watched.routes.items() if not has_lane]
    assert walked == [TRUE, normalize(predicate_from_object(NEVER))]
    assert (watched.most_open, watched.findings, watched.left) == (8, [], 0)


def test_no_claim_is_through_a_lane_when_told(wiggle: Wiggle, tmp_path: Path, watched: Watched) -> None:
    """Section 9: `--lanes off` walks."""
    way = ("--store", "memory://", "--claim", "--lanes", "off")
    assert match(wiggle, tmp_path, 2_100, WHERES[:3], *way) == match(wiggle, tmp_path, 2_100, WHERES[:3])
    assert (any(watched.routes.values()), watched.most_open) == (False, 0)


def test_rare_criteria_have_lanes_by_default(wiggle: Wiggle, tmp_path: Path, watched: Watched) -> None:
    """N4: `auto` decides as for workers: where a walk would pass by many."""
    wheres = [equal("step", "s1"), equal("attempt", 2)]
    way = ("--store", "memory://", "--claim")
    assert match(wiggle, tmp_path, 2_100, wheres, *way) == match(wiggle, tmp_path, 2_100, wheres)
    assert list(watched.routes.values()) == [True, False]


@pytest.mark.parametrize("way", [(), ("--store", "memory://")])
def test_lanes_are_for_claims(wiggle: Wiggle, tmp_path: Path, way: tuple[str, ...]) -> None:
    """Section 9: nothing else reads lanes."""
    file = write_lines(tmp_path / "t", *task_lines(1))
    ended = wiggle("criteria", "match", "--tasks", file, "--criteria", file, "--lanes", "on", *way)
    assert (ended.code, ended.out) == (2, "")
    assert "--lanes on needs --store and --claim" in ended.err
    wrong = wiggle("criteria", "match", "--tasks", file, "--criteria", file, "--lanes", "many", *way)
    assert (wrong.code, "'many' is not one of" in wrong.err) == (2, True)


def test_match_needs_a_store_with_lanes(wiggle: Wiggle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9: `--lanes on` is refused where there are none; `auto` walks there."""
    monkeypatch.setattr(MemoryStore, "lanes", None)
    way = ("--store", "memory://", "--claim")
    file = write_lines(tmp_path / "t", *task_lines(1))
    ended = wiggle("criteria", "match", "--tasks", file, "--criteria", file, "--lanes", "on", *way)
    assert (ended.code, ended.err) == (2, "wiggle: --lanes on: the store memory has no lanes\n")
    assert match(wiggle, tmp_path, 2_100, WHERES[:3], *way) == match(wiggle, tmp_path, 2_100, WHERES[:3])
