"""The audit of a campaign finds what is wrong, in doctored ledgers and in what a saboteur does, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import Ledger
from tests.campaign.audit import Verdict, Wrong, judge
from tests.campaign.clock import FOREVER, SharedClock, Step, Timeline, monotonic_micros
from tests.campaign.events import read_events
from tests.campaign.plan import Arm, Blow, Life, Point, Product, Role, Scenario, make_plan
from tests.campaign.saboteurs import SABOTEURS, sabotage
from tests.campaign.watched import Notes, Watched
from wiggle_core import Done, Engine, QueueCriteria, RetryPolicy
from wiggle_core.errors import LeaseLost
from wiggle_core.stores.registry import open_store
from wiggle_core.stores.store import Cancel, ClaimRequest, Finish, Revive, Route
from wiggle_core.tasks.task import State, TaskRecord

TTL = 1000
STEADY = Timeline([Step(-FOREVER, -FOREVER, 0)])
"""Database time is monotonic time."""
Line = list[Any]  # Any: JSON
Story = dict[str, list[Line]]


def _answered(number: int, at: int, method: str, asked: Any, answer: Any) -> list[Line]:  # Any: JSON
    """A call that took ten microseconds and read the clock in the middle."""
    return [["begin", number, at, method, asked], ["end", number, at + 10, at + 5, answer]]


# A task is leased as `a` from 110 to 1110, taken back, leased as `b`, and settled by `b` while `a` comes too late.
RIGHT: Story = {
    "enqueue": [*_answered(0, 10, "enqueue", [["t", 10]], ["t"]), ["told", "enqueued", ["t"]]],
    "claim a": _answered(1, 105, "claim", ["a", TTL, 0], [["t", 1, 1110]]),
    "expire a": _answered(2, 1200, "apply", [["expire", "t", "a", None]], ["t"]),
    "claim b": _answered(3, 1305, "claim", ["b", TTL, 0], [["t", 2, 2310]]),
    "extend a": _answered(4, 1400, "extend", [TTL, [["t", "a"]]], []),
    "finish a": _answered(5, 1500, "apply", [["finish", "t", "a", "DONE"]], []),
    "extend b": _answered(6, 1600, "extend", [TTL, [["t", "b"]]], [["t", "b"]]),
    "finish b": [
        *_answered(7, 1700, "apply", [["finish", "t", "b", "DONE"]], ["t"]),
        ["told", "settled", "t", "b", "DONE"],
    ],
}
DONE = TaskRecord("t", "q", "s", 10, 1205, State.DONE, token="b", attempt=2, finished_at=1705)


def _judged(
    directory: Path, story: Story, stored: list[TaskRecord], timeline: Timeline = STEADY, death: int = 5000
) -> Verdict:
    lines = (json.dumps(line) for chapter in story.values() for line in chapter)
    (directory / "w-0.ledger").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return judge(read_events(directory, {"w-0": death}), stored, timeline)


def _without(*chapters: str) -> Callable[[Story], Story]:
    return lambda story: {name: lines for name, lines in story.items() if name not in chapters}


def _with(chapter: str, *lines: Line) -> Callable[[Story], Story]:
    return lambda story: {**story, chapter: list(lines)}


def _kinds(verdict: Verdict) -> set[Wrong]:
    return {kind for kind, findings in verdict.findings.items() if findings}


def test_the_story_is_right(tmp_path: Path) -> None:
    """L1-L4: a lease that ran out and was taken back, and a late settlement that was refused, are no findings."""
    verdict = _judged(tmp_path, RIGHT, [DONE])
    assert verdict.is_clean, verdict.findings
    figures = verdict.figures
    assert (figures["tasks"], figures["leases"], figures["stale settlements refused"]) == (1, 2, 1)


DOCTORED = {
    "no longer stored": (_without(), [], Wrong.LOST),
    "stored live": (_without(), [replace(DONE, state=State.RUNNING)], Wrong.LIVE),
    "stored twice": (_without(), [DONE, DONE], Wrong.TWICE),
    "never asked for": (_without(), [DONE, replace(DONE, id="u")], Wrong.STRANGE),
    "inserted twice": (
        _with("again", *_answered(9, 30, "enqueue", [["t", 10]], ["t"])), [DONE], Wrong.TWICE,
    ),
    "nobody took the first lease back": (_without("expire a"), [DONE], Wrong.DOUBLE),
    "taken back before its end": (
        _with("expire a", *_answered(2, 1000, "apply", [["expire", "t", "a", None]], ["t"])),
        [DONE], Wrong.DOUBLE,
    ),
    "taken back although it was extended": (
        _with("extend a", *_answered(4, 500, "extend", [TTL, [["t", "a"]]], [["t", "a"]])),
        [DONE], Wrong.DOUBLE,
    ),
    "settled with a stale token": (
        _with("finish a", *_answered(5, 1500, "apply", [["finish", "t", "a", "DONE"]], ["t"])),
        [DONE], Wrong.STALE,
    ),
    "retried with a stale token": (
        _with("finish a", *_answered(5, 1500, "apply", [["requeue", "t", "a", None]], ["t"])),
        [DONE], Wrong.STALE,
    ),
    "extended with a stale token": (
        _with("extend a", *_answered(4, 1400, "extend", [TTL, [["t", "a"]]], [["t", "a"]])),
        [DONE], Wrong.STALE,
    ),
    "extended after it was settled": (
        _with("later", *_answered(9, 1800, "extend", [TTL, [["t", "b"]]], [["t", "b"]])),
        [DONE], Wrong.STALE,
    ),
    "two told that they finished it": (_with("lie", ["told", "settled", "t", "a", "DONE"]), [DONE], Wrong.STALE),
    "settled twice": (
        _with("later", *_answered(9, 1800, "apply", [["cancel", "t", None, "CANCELLED"]], ["t"])),
        [DONE], Wrong.TWICE,
    ),
    "in history in another state": (_without(), [replace(DONE, state=State.FAILED)], Wrong.HISTORY),
    "in history under another token": (_without(), [replace(DONE, token="a")], Wrong.HISTORY),
    "settled by nobody": (_without("finish b"), [DONE], Wrong.HISTORY),
    "leased before it was due": (
        _with("enqueue", *_answered(0, 10, "enqueue", [["t", 900]], ["t"])), [DONE], Wrong.EARLY,
    ),
    "attempt not grown": (
        _with("claim b", *_answered(3, 1300, "claim", ["b", TTL, 0], [["t", 1, 2310]])),
        [replace(DONE, attempt=1)], Wrong.ATTEMPT,
    ),
    "attempt grown twice": (
        _with("claim b", *_answered(3, 1300, "claim", ["b", TTL, 0], [["t", 3, 2310]])),
        [replace(DONE, attempt=3)], Wrong.ATTEMPT,
    ),
    "attempt fell": (_without(), [replace(DONE, attempt=1)], Wrong.ATTEMPT),
    "more attempts than the policy allows": (
        _without(), [replace(DONE, retry=RetryPolicy(max_attempts=1))], Wrong.ATTEMPT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_ledger_is_found_out(tmp_path: Path, name: str) -> None:
    """Each way to lose, double or forge something is found, and called by its rule."""
    doctor, stored, kind = DOCTORED[name]
    assert kind in _kinds(_judged(tmp_path, doctor(RIGHT), stored))


EXPLAINED = {
    "the sweeper was killed before it had the answer": _with(
        "expire a", ["begin", 2, 1200, "apply", [["expire", "t", "a", None]]]
    ),
    "the holder was killed in its extension": _with(
        "extend a", ["begin", 4, 500, "extend", [TTL, [["t", "a"]]]]
    ),
    "a killed claimer had the task in between": lambda story: {
        **story,
        "claim b": _answered(3, 1305, "claim", ["b", TTL, 0], [["t", 3, 2310]]),
        "claim c": [["begin", 9, 1220, "claim", ["c", 10, 0]]],
    },
    "the answer of the settlement was lost": _with(
        "finish b",
        ["begin", 7, 1700, "apply", [["finish", "t", "b", "DONE"]]],
        ["error", 7, 1710, "AmbiguousStoreError"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_a_kill_explains_is_no_finding(tmp_path: Path, name: str) -> None:
    """A ledger may end anywhere: what nobody can know is held against nobody."""
    attempt = 3 if "between" in name else 2
    verdict = _judged(tmp_path, EXPLAINED[name](RIGHT), [replace(DONE, attempt=attempt)])
    assert verdict.is_clean, verdict.findings


def test_a_claim_that_began_first_may_come_last(tmp_path: Path) -> None:
    """L3: two claims under way at one time reached the server in the order that the attempts tell."""
    story: Story = {name: RIGHT[name] for name in ("enqueue", "claim a", "expire a")}
    story["claim c"] = [
        ["begin", 8, 1302, "claim", ["c", TTL, 0]], ["end", 8, 1450, 1303, [["t", 3, 2303]]],
    ]  # fmt: skip
    story["claim b"] = RIGHT["claim b"]
    story["requeue b"] = _answered(9, 1330, "apply", [["requeue", "t", "b", None]], ["t"])
    story["requeue c"] = _answered(10, 1500, "apply", [["requeue", "t", "c", None]], ["t"])
    story["claim d"] = _answered(11, 1600, "claim", ["d", TTL, 0], [["t", 4, 2605]])
    story["finish d"] = _answered(12, 1700, "apply", [["finish", "t", "d", "DONE"]], ["t"])
    stored = [replace(DONE, token="d", attempt=4)]
    assert _judged(tmp_path, story, stored).is_clean
    story["claim c"] = _answered(8, 1290, "claim", ["c", TTL, 0], [["t", 3, 2295]])  # and so it did not
    assert Wrong.ATTEMPT in _kinds(_judged(tmp_path, story, stored))


def test_a_claim_that_began_first_may_come_after_a_release(tmp_path: Path) -> None:
    """L3: a claim that took long leased what another one had claimed and released meanwhile, with the same attempt."""
    story: Story = {
        "enqueue": RIGHT["enqueue"],
        "claim b": [["begin", 1, 100, "claim", ["b", TTL, 0]]],
        "claim a": _answered(2, 120, "claim", ["a", TTL, 0], [["t", 1, 1125]]),
        "release a": _answered(3, 140, "apply", [["release", "t", "a", None]], ["t"]),
        "end of b": [["end", 1, 200, 105, [["t", 1, 1105]]]],
        "expire b": _answered(4, 1200, "apply", [["expire", "t", "b", None]], ["t"]),
        "claim c": _answered(5, 1305, "claim", ["c", TTL, 0], [["t", 2, 2310]]),
        "finish c": _answered(6, 1700, "apply", [["finish", "t", "c", "DONE"]], ["t"]),
    }
    done = replace(DONE, token="c")
    assert not _kinds(_judged(tmp_path, story, [done]))


def test_a_claim_that_began_before_a_revival_may_come_behind_it(tmp_path: Path) -> None:
    """L3: a claim that took long leased what was revived, leased and tried again meanwhile, twice. As a server that is
    killed under load shows it."""
    story: Story = {
        "enqueue": RIGHT["enqueue"],
        "claim a": _answered(1, 105, "claim", ["a", TTL, 0], [["t", 1, 1110]]),
        "fail a": _answered(2, 120, "apply", [["finish", "t", "a", "FAILED"]], ["t"]),
        "claim d": [["begin", 3, 150, "claim", ["d", TTL, 0]]],
        "revive": _answered(4, 160, "apply", [["revive", "t", None, None]], ["t"]),
        "claim b": _answered(5, 180, "claim", ["b", TTL, 0], [["t", 1, 1185]]),
        "requeue b": _answered(6, 200, "apply", [["requeue", "t", "b", None]], ["t"]),
        "claim c": _answered(7, 220, "claim", ["c", TTL, 0], [["t", 2, 1225]]),
        "requeue c": _answered(8, 240, "apply", [["requeue", "t", "c", None]], ["t"]),
        "end of d": [["end", 3, 300, 152, [["t", 3, 1152]]]],
        "requeue d": _answered(9, 310, "apply", [["requeue", "t", "d", None]], ["t"]),
        "claim e": _answered(10, 330, "claim", ["e", TTL, 0], [["t", 4, 1335]]),
        "finish e": _answered(11, 400, "apply", [["finish", "t", "e", "DONE"]], ["t"]),
    }
    stored = [replace(DONE, token="e", attempt=4)]
    assert not _kinds(_judged(tmp_path, story, stored))
    del story["requeue d"], story["claim d"], story["end of d"]  # and so nobody had the third attempt
    assert Wrong.ATTEMPT in _kinds(_judged(tmp_path, story, stored))


def test_an_error_that_applied_nothing_explains_nothing(tmp_path: Path) -> None:
    """Failure classes: TRANSIENT and PERMANENT mean that nothing was applied, and are taken at their word."""
    for name in ("TransientStoreError", "PermanentStoreError"):
        begun = ["begin", 2, 1200, "apply", [["expire", "t", "a", None]]]
        story = _with("expire a", begun, ["error", 2, 1210, name])(RIGHT)
        assert Wrong.DOUBLE in _kinds(_judged(tmp_path, story, [DONE]))


def test_a_call_that_died_is_no_excuse_for_later(tmp_path: Path) -> None:
    """A killed claim may have leased what it did until shortly after its process was gone, not an hour later."""
    hour = 3_600_000_000
    story: Story = {
        "enqueue": RIGHT["enqueue"],
        "claim c": [["begin", 9, 50, "claim", ["c", 10, 0]]],
        "claim a": _answered(1, hour, "claim", ["a", TTL, 0], [["t", 1, hour + 1005]]),
        "expire a": _answered(2, hour + 1200, "apply", [["expire", "t", "a", None]], ["t"]),
        "claim b": _answered(3, hour + 1305, "claim", ["b", TTL, 0], [["t", 3, hour + 2310]]),
        "finish b": _answered(7, hour + 1700, "apply", [["finish", "t", "b", "DONE"]], ["t"]),
    }
    stored = [replace(DONE, attempt=3)]
    assert _judged(tmp_path, story, stored, death=hour).is_clean
    assert _kinds(_judged(tmp_path, story, stored, death=60)) == {Wrong.ATTEMPT}


def test_steps_of_the_clock_are_known(tmp_path: Path) -> None:
    """L1: it is the database's time that ends a lease, so a step forward explains an early end, and one back a late."""
    early = _with("expire a", *_answered(2, 600, "apply", [["expire", "t", "a", None]], ["t"]))
    ahead = Timeline([Step(-FOREVER, -FOREVER, 0), Step(300, 301, 700), Step(1250, 1251, 0)])
    assert Wrong.DOUBLE in _kinds(_judged(tmp_path, early(RIGHT), [DONE]))
    assert _judged(tmp_path, early(RIGHT), [DONE], ahead).is_clean
    behind = Timeline([Step(-FOREVER, -FOREVER, 0), Step(300, 301, -700)])
    assert Wrong.DOUBLE in _kinds(_judged(tmp_path, RIGHT, [DONE], behind))
    assert (ahead.earliest(200, 400), ahead.latest(200, 400)) == (200, 1100)


@pytest.mark.parametrize(("state", "found"), [(State.READY, set[Wrong]()), (State.SCHEDULED, {Wrong.EARLY})])
def test_only_who_is_scheduled_can_come_early(tmp_path: Path, state: State, found: set[Wrong]) -> None:
    """O3: an enqueue that is replayed after the clock stepped back brings a time to come, for which nobody waits."""
    clock, first = SharedClock.create(tmp_path / "clock")
    store = open_store("memory://", clock=clock)
    watched = Watched(store, clock, Notes(Ledger(tmp_path / "w-0.ledger")), Life(Role.CLAIMER, "w", 0, 1)).as_store()
    task = TaskRecord("t", "q", "s", clock(), clock() + 10_000_000, state)
    watched.enqueue([task])
    if state is State.SCHEDULED:
        store.apply([Cancel("t"), Revive("t", {})])  # behind the audit's back
    [held] = watched.claim(ClaimRequest("w", "token", TTL, 1, (Route("q"),)))
    watched.apply([Finish(held.lease, State.DONE)])
    stored = [each for each in [store.get("t")] if each is not None]
    verdict = judge(read_events(tmp_path, {"w-0": monotonic_micros()}), stored, Timeline([first]))
    assert _kinds(verdict) == found


def test_a_ledger_in_pieces_is_read_whole(tmp_path: Path) -> None:
    """A process under a file size limit goes on in another file; a line that a kill cut off is no line."""
    notes = Notes(Ledger(tmp_path / "w-0.ledger", longest=150))
    for chapter in RIGHT.values():
        for line in chapter:
            notes.write(*line)
    pieces = sorted(tmp_path.iterdir())
    assert len(pieces) > 3
    with pieces[-1].open("a", encoding="utf-8") as cut_off:
        cut_off.write('["told","enqueued",["u"')
    events = read_events(tmp_path, {})
    assert set(events.tasks) == {"t"}
    assert judge(events, [DONE], STEADY).is_clean
    (tmp_path / "w-0.ledger").write_text('["what"]\n', "utf-8")
    with pytest.raises(ValueError, match="no line of a ledger"):
        read_events(tmp_path, {})


# Saboteurs, watched as in a campaign


def _campaign_of_two(directory: Path, names: str) -> Verdict:
    """One claimer overslept its lease, another holds the task; both settle. Nothing is left to chance."""
    clock, first = SharedClock.create(directory / "clock")
    store = sabotage(open_store("memory://", clock=clock), names)
    watched = Watched(store, clock, Notes(Ledger(directory / "w-0.ledger")), Life(Role.CLAIMER, "w", 0, 1))
    engine = Engine(watched.as_store())
    for name in ("task-1", "task-7", "task-8"):
        engine.enqueue("q", "s", id=name, retry=RetryPolicy(8, multiplier=1.0))
    claimed = engine.claim("a", [QueueCriteria("q")], limit=2)
    engine.sweep()
    steps = [first, clock.set_offset(first.offset + 100_000_000)]
    engine.sweep()
    steps.append(clock.set_offset(first.offset + 200_000_000))
    engine.sweep()
    again = engine.claim("b", [QueueCriteria("q")], limit=3)
    for task in (*claimed, *again):
        try:
            engine.settle(task, Done())
        except LeaseLost:
            continue
    stored = [found for each in ("task-1", "task-7", "task-8") if (found := engine.get(each))]
    return judge(read_events(directory, {"w-0": monotonic_micros()}), stored, Timeline(steps))


def test_a_right_store_is_clean(tmp_path: Path) -> None:
    """L1, L2: the same story without a saboteur."""
    verdict = _campaign_of_two(tmp_path, "")
    assert verdict.is_clean, verdict.findings
    assert verdict.figures["stale settlements refused"] == 2


@pytest.mark.parametrize(
    ("name", "kind"), [("unfenced", Wrong.STALE), ("hasty", Wrong.DOUBLE), ("forgetful", Wrong.LOST)]
)
def test_each_saboteur_is_found_out(tmp_path: Path, name: str, kind: Wrong) -> None:
    """L1, L2, L4: the audit catches a store without fencing, one that ignores lease ends, and one that forgets."""
    assert name in SABOTEURS
    assert kind in _kinds(_campaign_of_two(tmp_path, name))


# Plans


def test_a_plan_follows_from_its_seed() -> None:
    """The same seed makes the same plan, another one another; every kill that was asked for is in it."""
    scenario = Scenario(seconds=60, kills=33, seed=5)
    plan = make_plan(scenario)
    assert plan == make_plan(scenario)
    assert plan != make_plan(replace(scenario, seed=6))
    lives = [life for each in plan.lives for life in each]
    assert sum(life.until is not None for life in lives) == 33
    assert all(life.until is None or 0 < life.until < 60 for life in lives)
    assert {life.arm.point for life in lives if life.arm} == set(Point)
    assert [Life.load(life.dump()) for life in lives] == lives
    assert all(isinstance(life.arm, Arm) for life in lives if life.arm)


@pytest.mark.parametrize("product", Product)
def test_blows_to_a_server_come_in_rounds(product: Product) -> None:
    """A server of the campaign's own is struck in all of its ways, round by round; any other one is left alone."""
    plan = make_plan(Scenario(seconds=60, blows=2 * len(product.blows), product=product))
    assert Counter(strike.blow for strike in plan.strikes) == Counter(product.blows * 2)
    assert [each.at for each in plan.strikes] == sorted(each.at for each in plan.strikes)
    assert {Blow.TERMINATE, Blow.STOP, Blow.SERVER} <= set(product.blows)
    assert make_plan(Scenario(seconds=60)).strikes == []
