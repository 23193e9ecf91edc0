"""The figures of one run as a table for people."""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.claim.results import TIMES, TIMES_OFF, Results
from benchmarks.claim.shapes import COMMON, NONE
from benchmarks.report import Report, p10, p99
from wiggle_core.lanes.planner import LanePolicy


def show(report: Report, console: Console, results: Results) -> None:
    """Print everything that was measured."""
    title = f"Claims of 10 of {results.depth:,} ready tasks, {results.server}, lanes {results.lanes}"
    table = Table(title=title, title_justify="left")
    table.add_column("shape", no_wrap=True)
    table.add_column("plan")
    for name in ("p10 ms", "p50 ms", "p99 ms", "to none", "rows read", "in turn", "claims", "goal"):
        table.add_column(name, justify="right")
    for shape in results.shapes:
        table.add_row(
            shape.name,
            shape.plan,
            f"{p10(shape.seconds) * 1e3:.3f}",
            f"{results.p50_ms(shape):.3f}",
            f"{p99(shape.seconds) * 1e3:.2f}",
            f"{results.ratio(shape):.2f}",
            _counted(max(shape.rows_read, default=None)),
            _counted(median(shape.rows_in_turn) if shape.rows_in_turn else None),
            f"{len(shape.seconds):,}",
            _goal(results, shape.name, results.ratio(shape)),
        )
    console.print(table)
    report.figure("bulk load", results.load_per_s, "tasks/s")
    if results.bare_ratio is not None:
        report.figure("claim without criteria / its statements by the bare driver", results.bare_ratio, "x")
    _show_openings(report, results)
    for name, value in results.write.items():
        report.figure(name, value, "tasks/s")


def _counted(rows: float | None) -> str:
    return "?" if rows is None else f"{rows:,.0f}"


def _goal(results: Results, name: str, ratio: float) -> str:
    is_off = results.lanes is LanePolicy.OFF or not results.has_lanes
    if not results.is_judged or name == NONE or (is_off and name not in COMMON):
        return ""
    goal = TIMES_OFF if is_off else TIMES
    return f"<= {goal} {'met' if ratio <= goal else 'NOT MET'}"


def _show_openings(report: Report, results: Results) -> None:
    for opening in results.openings:
        name = "no lane" if not opening.lanes else f"opening {opening.lanes:,} at once"
        report.figure(name, opening.seconds, "s")
        report.figure(f"{name}: computed by this process", opening.own_cpu_seconds, "s")
        if opening.claim_p99_ms is not None:
            report.figure(f"{name}: claims of another client, p99", opening.claim_p99_ms, "ms")
        if opening.enqueue_p99_ms is not None:
            report.figure(f"{name}: enqueues of another client, p99", opening.enqueue_p99_ms, "ms")
