"""Each benchmark runs once at a tiny size, so that none can rot; and the verdict of `crashes` finds what is wrong.

No figure is judged here: a test must not depend on how busy the machine is.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import core, crashes, embedded
from benchmarks.__main__ import main
from benchmarks.claim import chart, data
from benchmarks.claim.shapes import FAMILY, FIVE_RARE, SHAPES
from benchmarks.report import Report, alternate, interleave
from benchmarks.verdict import Leasing, Logs, judge, read_logs
from wiggle_core.criteria.evaluate import compile_predicate
from wiggle_core.tasks.attributes import Declaration
from wiggle_core.tasks.submission import admit
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


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_claim_runs_every_shape(scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command; its JSON has the keys that readers rely on, and names no place of this machine."""
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path / 'claims.db'}?synchronous=normal"
    out = tmp_path / "claims.json"
    # A thousand criteria take their time where every claim is written to a disk; memory has them.
    shapes = [name for name in SHAPES if name != FAMILY or scheme == "memory"]
    options = ["--depth", "2200", "--shapes", ",".join(shapes), "--out", str(out)]
    main(["claim", "--store", url, *options, *QUICK])
    told, text = json.loads(out.read_text("utf-8")), capsys.readouterr().out
    assert told.keys() >= {"store", "server", "depth", "lanes", "machine", "shapes", "write"}
    assert [shape["shape"] for shape in told["shapes"]] == shapes
    for shape in told["shapes"]:
        assert shape.keys() >= {"shape", "plan", "p50_ms", "p99_ms", "ratio_to_none", "rows_read"}
        assert shape["plan"] in ("walk", "lane")
        assert shape["shape"] in text
    plans = {shape["shape"]: shape["plan"] for shape in told["shapes"]}
    writes = [f"{name}_per_s{suffix}" for suffix in ("", "_5_lanes", "_1000_lanes") for name in ("enqueue", "cycle")]
    assert (plans["none"], plans["region_common"]) == ("walk", "walk")
    if told["store_has_lanes"]:
        assert list(told["write"]) == writes
        assert [opening["lanes"] for opening in told["openings"]] == [0, 1, *([1000] if FAMILY in shapes else [])]
        assert {plans[name] for name in shapes if name in (*FIVE_RARE, FAMILY)} == {"lane"}
    assert [path.name for path in tmp_path.iterdir()] == ["claims.json"], "files were left behind"
    assert str(tmp_path) not in out.read_text("utf-8")


QUICK = ["--claims", "5", "--written", "1000", "--rounds", "1", "--quiet", "0.2"]


def test_claim_without_lanes_walks(tmp_path: Path) -> None:
    """`--lanes off`: nothing is opened; `none` is measured whatever shapes are named."""
    out = tmp_path / "claims.json"
    options = ["--lanes", "off", "--shapes", "total_rare", "--out", str(out), *QUICK]
    main(["claim", "--store", "memory://", "--depth", "500", *options])
    told = json.loads(out.read_text("utf-8"))
    assert {shape["shape"]: shape["plan"] for shape in told["shapes"]} == {"none": "walk", "total_rare": "walk"}
    assert (told["lanes"], told["openings"]) == ("off", [])
    with pytest.raises(SystemExit, match="no shape 'rare'"):
        main(["claim", "--shapes", "rare", "--out", str(out)])


def test_claim_measures_the_data_set_of_its_goals() -> None:
    """The shares by which shapes are called common or rare; and the newest tasks are behind all others."""
    depth = 20_000
    declaration = Declaration(data.ATTRIBUTES)
    tasks = [admit(task, 0, lambda _, __, text: declaration.extract(text).values) for task in data.orders(depth, 1)]
    shares = {
        name: sum(map(compile_predicate(criteria.normal), tasks)) / depth for name, [criteria, *_] in SHAPES.items()
    }
    assert shares["none"] == 1
    assert (shares["attr_never"], shares["corr_never"]) == (0, 0)
    assert (shares["late_newest"], shares["late_range_newest"], shares["version_new"]) == (0.01, 0.01, 100 / depth)
    for name, expected in (("step_common", 0.25), ("corr_prefix", 0.3), ("region_common", 0.3), ("absent_not", 0.99)):
        assert shares[name] == pytest.approx(expected, rel=0.05)
    for name in ("region_total_rare", "tenant", "tenant_family", "corr_suffix_like", "or_mixed", "deep_16"):
        assert 0.0003 < shares[name] < 0.003
    assert shares["total_rare"] == shares["not_total_rare"] < 0.0003
    assert shares["in_20"] == pytest.approx(0.02, rel=0.2)
    assert all(task.attributes.keys() >= {"region", "tenant", "total", "vip", "due"} for task in tasks)
    assert [task.version for task in tasks[-101:-99]] == [1, 2]
    assert [task.attributes.get("late") for task in tasks[-201:-199]] == [None, "yes"]
    assert sum(task.correlation_id is None for task in tasks) / depth == pytest.approx(0.1, rel=0.1)


def _run_of(server: str, lanes: str, ratio: float, depth: int = 1000) -> dict[str, object]:
    shapes = [{"shape": "none", "ratio_to_none": 1.0}, {"shape": "tenant", "ratio_to_none": ratio}]
    return {"server": server, "depth": depth, "lanes": lanes, "shapes": shapes}


def test_chart_draws_every_shape_of_every_store(tmp_path: Path) -> None:
    """One picture of the results with lanes and without; other depths do not belong on it."""
    runs = [_run_of("A 1", "auto", 1.2), _run_of("A 1", "off", 300.0), _run_of("B <2>", "on", 1.4)]
    files = [tmp_path / f"{number}.json" for number in range(3)]
    for file, run in zip(files, runs, strict=True):
        file.write_text(json.dumps(run), "utf-8")
    out = tmp_path / "chart.svg"
    assert main(["chart", *map(str, files), "--out", str(out)]) == 0
    titles = [
        each.text for each in ElementTree.fromstring(out.read_text("utf-8")).iter("{http://www.w3.org/2000/svg}title")
    ]
    assert titles == [
        "tenant, A 1, without lanes: 300x",
        "tenant, A 1, with lanes: 1.2x",
        "tenant, B <2>, with lanes: 1.4x",
    ]
    with pytest.raises(ValueError, match="one depth"):
        chart.read_series([*runs, _run_of("A 1", "auto", 1.0, depth=10)])
    with pytest.raises(ValueError, match="no run with lanes"):
        chart.read_series([_run_of("A 1", "off", 1.0)])


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
