"""What a benchmark prints: the machine, every figure, and every ratio with its goal and PASS or FAIL."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import TextIO

Contender = Callable[[], float]
"""Runs once and returns the seconds that count."""


def timed(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Contender:
    """A contender that takes the whole of `run`."""

    def contender() -> float:
        started = clock()
        run()
        return clock() - started

    return contender


def interleave(contenders: Mapping[str, Contender], repeats: int) -> dict[str, float]:
    """The median seconds of each contender. The repeats alternate, so that a slow spell of the machine hits all alike.

    Each runs once beforehand, unmeasured; the order is turned round at every repeat.
    """
    for run in contenders.values():
        run()
    return {name: median(seconds) for name, seconds in alternate(contenders, repeats).items()}


def alternate(contenders: Mapping[str, Contender], repeats: int) -> dict[str, list[float]]:
    """The seconds of every repeat, no run before them."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name in list(contenders)[:: 1 if repeat % 2 == 0 else -1]:
            taken[name].append(contenders[name]())
    return taken


def p10(taken: Sequence[float]) -> float:
    """The tenth percentile, never below the least: what is taken when nothing else runs."""
    return quantiles(taken, n=10, method="inclusive")[0] if len(taken) > 1 else taken[0]


def p99(taken: Sequence[float]) -> float:
    """The 99th percentile, never beyond the largest."""
    return quantiles(taken, n=100, method="inclusive")[98] if len(taken) > 1 else taken[0]


class Report:
    """Prints lines for people and, when `lines` is given, the same as JSON, one object a line."""

    def __init__(self, benchmark: str, out: TextIO, lines: TextIO | None = None) -> None:
        self.failures: list[str] = []
        self._benchmark = benchmark
        self._out = out
        self._lines = lines

    def machine(self) -> None:
        """What the figures were measured on."""
        self._say(f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
        self._say(f"{platform.platform()}, load {os.getloadavg()[0]:.1f}")
        self._keep(
            "machine",
            cores=os.cpu_count(),
            python=platform.python_version(),
            sqlite=sqlite3.sqlite_version,
            platform=platform.platform(),
            load=round(os.getloadavg()[0], 1),
        )

    def head(self, text: str) -> None:
        """A line that opens a section and says what is compared."""
        self._say(f"\n{text}")

    def note(self, text: str) -> None:
        """A line that explains a figure."""
        self._say(f"  {text}")

    def figure(self, name: str, value: float, unit: str) -> None:
        """One measured value."""
        self._say(f"  {name:<66} {_number(value):>12} {unit}")
        self._keep(name, value=value, unit=unit)

    def at_least(self, name: str, value: float, goal: float, unit: str = "x") -> None:
        """A value that has to reach its goal."""
        self._judge(name, value, f">= {_number(goal)}", value >= goal, unit)

    def at_most(self, name: str, value: float, goal: float, unit: str = "x") -> None:
        """A value that must not exceed its goal."""
        self._judge(name, value, f"<= {_number(goal)}", value <= goal, unit)

    def holds(self, name: str, passed: bool, detail: str = "") -> None:
        """A statement that has to be true."""
        self._say(f"  {name:<66} {detail:>12} {'PASS' if passed else 'FAIL'}")
        self._keep(name, detail=detail, passed=passed)
        if not passed:
            self.failures.append(name)

    def verdict(self) -> int:
        """The exit code: 0 when every goal was met."""
        self._say("\nevery goal met" if not self.failures else f"\nNOT MET: {'; '.join(self.failures)}")
        return 1 if self.failures else 0

    def _judge(self, name: str, value: float, goal: str, passed: bool, unit: str) -> None:
        self._say(f"  {name:<66} {_number(value):>12} {unit:<6} goal {goal:<8} {'PASS' if passed else 'FAIL'}")
        self._keep(name, value=value, unit=unit, goal=goal, passed=passed)
        if not passed:
            self.failures.append(name)

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _keep(self, name: str, **fields: object) -> None:
        if self._lines is not None:
            line = {"benchmark": self._benchmark, "name": name, **fields}
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()


def _number(value: float) -> str:
    """Three significant digits, and no exponent for what people read as a count."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
