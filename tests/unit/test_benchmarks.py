"""Each benchmark runs once at a tiny size, so that none can rot; and the verdict of `crashes` finds what is wrong.

No figure is judged here: a test must not depend on how busy the machine is.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import core, crashes, embedded
from benchmarks.__main__ import main
from benchmarks.report import Report, alternate, interleave
from benchmarks.verdict import Leasing, Logs, judge, read_logs
from wiggle_core.tasks.task import State, TaskRecord


def _run_lines(lines: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_core_runs_and_both_sides_agree() -> None:
    """The answers of wiggle, rule-engine and SQLAlchemy are compared before any time is taken."""
    lines = io.StringIO()
    core.run(Report("core", io.StringIO(), lines), tasks=200, repeats=1)
    judged = [line["name"] for line in _run_lines(lines) if "goal" in line]
    assert judged == [
        "any tasks: rule-engine / compiled",
        "tasks that match: all five leaves tested: rule-engine / compiled",
        "SQLAlchemy compile alone / wiggle",
        "SQLAlchemy build and compile / wiggle",
    ]


def test_embedded_runs_every_section(tmp_path: Path) -> None:
    """Every ratio of the issue has a line with its goal."""
    lines = io.StringIO()
    embedded.run(Report("embedded", io.StringIO(), lines), tmp_path, embedded.Scale.tiny())
    judged = " | ".join(str(line["name"]) for line in _run_lines(lines) if "goal" in line)
    for asked in ("executemany", "criteria", "bare", "huey", "litequeue", "resident"):
        assert asked in judged
    assert list(tmp_path.iterdir()) == [], "files were left behind"


def test_crashes_account_for_every_task(tmp_path: Path) -> None:
    """Claimers and the enqueuer are killed, and no task is lost or leased twice at one time (L1, L2, L4)."""
    lines, out = io.StringIO(), io.StringIO()
    report = Report("crashes", out, lines)
    scenario = crashes.Scenario(processes=2, tasks=1000, kills=1, enqueuer_kills=1, pauses=1, lease=0.3)
    crashes.run(report, tmp_path, scenario)
    assert report.verdict() == 0, out.getvalue()
    statements = {str(line["name"]): line["passed"] for line in _run_lines(lines) if "passed" in line}
    assert statements["none lost: every id is DONE, once"]
    assert statements["none leased twice at one time"]


def test_exit_code_tells_whether_goals_were_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 when every goal was met, 1 when one was not."""
    report = Report("x", io.StringIO())
    report.at_least("fast", 2, 1)
    assert report.verdict() == 0
    report.at_most("small", 2, 1)
    assert (report.verdict(), report.failures) == (1, ["small"])
    with pytest.raises(SystemExit) as refused:
        main(["nothing"])
    assert refused.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_repeats_alternate() -> None:
    """The order is turned round at every repeat, so that neither contender always runs second."""
    order: list[str] = []

    def contender(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    both = {"a": lambda: contender("a", 1), "b": lambda: contender("b", 3)}
    assert alternate(both, 3) == {"a": [1, 1, 1], "b": [3, 3, 3]}
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert interleave(both, 1) == {"a": 1, "b": 3}


def _logs(*leasings: Leasing, settled: Iterable[str] = ()) -> Logs:
    logs = Logs()
    logs.leasings["t"].extend(leasings)
    logs.settled["t"].extend(settled)
    return logs


def _task(token: str, attempt: int, state: State = State.DONE) -> TaskRecord:
    return TaskRecord("t", "work", "work", created_at=0, ready_at=0, state=state, token=token, attempt=attempt)


FIRST, SECOND = Leasing(0, 10, 1, "a"), Leasing(10, 20, 2, "b")


def test_verdict_accepts_a_lease_taken_back() -> None:
    """A second lease that begins when the first has run out is what L1 promises, and is counted as a re-run."""
    verdict = judge(["t"], _logs(FIRST, SECOND, settled=["b"]), [_task("b", 2)], live=0)
    assert (verdict.lost, verdict.overlapping, verdict.settled_twice) == ([], [], [])
    assert (verdict.tasks, verdict.leases, verdict.rerun, verdict.unlogged) == (1, 2, 1, 0)


@pytest.mark.parametrize(
    "logs",
    [
        pytest.param(_logs(FIRST, Leasing(9, 19, 2, "b"), settled=["b"]), id="begins-before-the-first-ran-out"),
        pytest.param(_logs(Leasing(0, 10, 2, "a"), SECOND, settled=["b"]), id="two-leases-of-one-attempt"),
        pytest.param(_logs(SECOND, Leasing(30, 40, 3, "c"), settled=["b"]), id="leased-after-it-was-settled"),
        pytest.param(_logs(Leasing(10, 20, 2, "c")), id="history-names-another-lease-of-that-attempt"),
    ],
)
def test_verdict_finds_two_leases_at_one_time(logs: Logs) -> None:
    """L1: each kind of overlap is found."""
    assert judge(["t"], logs, [_task("b", 2)], live=0).overlapping


@pytest.mark.parametrize(
    ("history", "live", "words"),
    [
        ([], 0, "t is lost"),
        ([], 1, "1 tasks are still live"),
        ([_task("b", 2, State.FAILED)], 0, "t is FAILED"),
        ([_task("b", 2), _task("b", 2)], 0, "t is in history twice"),
        ([_task("b", 2), TaskRecord("u", "work", "work", 0, 0, State.DONE)], 0, "u was never enqueued"),
    ],
)
def test_verdict_finds_what_is_lost(history: list[TaskRecord], live: int, words: str) -> None:
    """L4: each way to lose or double a task is found."""
    assert words in judge(["t"], _logs(), history, live).lost


def test_verdict_finds_a_second_settlement() -> None:
    """L2: a task settled under two tokens, or under another than history keeps."""
    logs = _logs(FIRST, SECOND, settled=["a", "b"])
    assert judge(["t"], logs, [_task("b", 2)], live=0).settled_twice
    assert judge(["t"], _logs(SECOND, settled=["a"]), [_task("b", 2)], live=0).settled_twice


def test_logs_lose_only_the_line_that_was_cut_off(tmp_path: Path) -> None:
    """A log that ends without a line break ends in a line that a kill cut off."""
    log = tmp_path / "claimer.log"
    log.write_text("L t a 1 0 10\nX t a\nL t b 2 10 20\nS t b\nL t c 3 2", "utf-8")
    logs = read_logs([log])
    assert logs.leasings["t"] == [FIRST, SECOND]
    assert (logs.settled["t"], logs.dropped) == (["b"], 1)
    log.write_text("what is this\n", "utf-8")
    with pytest.raises(ValueError, match=re.escape("no line of a log")):
        read_logs([log])
