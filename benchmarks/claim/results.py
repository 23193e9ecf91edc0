"""The figures of one run: as JSON to keep, as a table to read, and against the goals.

Nothing in the JSON tells whose machine it was: no host, no user, no path.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import TypeAlias

from benchmarks.claim.measuring import LIMIT, Shape
from benchmarks.claim.opening import Opening
from benchmarks.claim.shapes import COMMON, NONE
from benchmarks.report import Report, p10, p99
from wiggle_core.lanes.planner import LanePolicy

TIMES = 2
"""With lanes, a claim by any criteria takes at most so many times as long as one without."""
TIMES_P99 = 5
TIMES_OFF = 4
"""Without lanes, the same of one by a common criteria."""
ROWS = 50
BARE = 1.5
OPENED_SECONDS = {1: 5, 1_000: 60}
WRITTEN = (
    ("cycle_per_s", "_5_lanes", 0.85),
    ("enqueue_per_s", "_5_lanes", 0.65),
    ("cycle_per_s", "_1000_lanes", 0.70),
    ("enqueue_per_s", "_1000_lanes", 0.45),
)
"""At least what share of the figure without lanes is kept beside five rare lanes, and beside one for each tenant."""

JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Results:
    """One run. `shapes` begin with `none`; `bare` are the seconds of its claims by the bare driver; `write` is what
    `measure_writing` answers."""

    store: str
    server: str
    settings: Mapping[str, str]
    depth: int
    seed: int
    lanes: LanePolicy
    has_lanes: bool
    is_judged: bool
    load_per_s: float
    shapes: Sequence[Shape]
    bare: Sequence[float]
    openings: Sequence[Opening]
    write: dict[str, float]

    def p50_ms(self, shape: Shape) -> float:
        """The median time of its claims."""
        return median(shape.seconds) * 1e3

    def ratio(self, shape: Shape) -> float:
        """How many times as long as claims without criteria, by the medians."""
        return self.p50_ms(shape) / self.p50_ms(self.shapes[0])

    @property
    def bare_ratio(self) -> float | None:
        """Claims without criteria to their statements by the bare driver."""
        return median(self.shapes[0].seconds) / median(self.bare) if self.bare else None

    def as_json(self) -> JsonObject:
        """What is kept."""
        return {
            "store": self.store,
            "server": self.server,
            "settings": dict(self.settings),
            "depth": self.depth,
            "lanes": str(self.lanes),
            "machine": {
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
                # What else ran counts for times, and less for ratios.
                "load": round(os.getloadavg()[1], 1),
            },
            "shapes": [self._shape(shape) for shape in self.shapes],
            "write": {name: round(value) for name, value in self.write.items()},
            "store_has_lanes": self.has_lanes,
            "seed": self.seed,
            "limit": LIMIT,
            "load_per_s": round(self.load_per_s),
            "none_to_bare_driver": _rounded(self.bare_ratio),
            "openings": [
                {name: _rounded(value) for name, value in asdict(opening).items()} for opening in self.openings
            ],
        }

    def _shape(self, shape: Shape) -> JsonObject:
        return {
            "shape": shape.name,
            "plan": shape.plan,
            "p50_ms": _rounded(self.p50_ms(shape)),
            "p99_ms": _rounded(p99(shape.seconds) * 1e3),
            "ratio_to_none": _rounded(self.ratio(shape)),
            "rows_read": max(shape.rows_read, default=None),
            # With the dead rows that claims of the same tasks by other lanes have left.
            "rows_read_in_turn": round(median(shape.rows_in_turn)) if shape.rows_in_turn else None,
            # What other programs do to the machine counts less in it than in the median.
            "p10_ms": _rounded(p10(shape.seconds) * 1e3),
            "claims": len(shape.seconds),
            "tasks_a_claim": _rounded(shape.claimed / len(shape.seconds)),
        }


def _rounded(value: float | None) -> float | None:
    """Three significant digits; counts as they are."""
    return value if value is None or isinstance(value, int) else float(f"{value:.3g}")


def write_json(results: Results, path: Path) -> None:
    """Keep the figures in a file."""
    path.write_text(json.dumps(results.as_json(), indent=1) + "\n", encoding="utf-8")


def judge(report: Report, results: Results) -> None:
    """Hold the figures against the goals, where there are any for this store."""
    report.head("Goals")
    if not results.is_judged:
        report.note("none: they are for stores that outlive a process")
        return
    if not results.has_lanes and results.lanes is not LanePolicy.OFF:
        report.note(f"the store {results.store} has no lanes: every claim walks, and is judged as with --lanes off")
    _judge_claims(report, results)
    for opening in results.openings:
        goal = OPENED_SECONDS.get(opening.lanes)
        if goal is not None:
            report.at_most(f"opening {opening.lanes:,} lanes in one pass", opening.seconds, goal, "s")
    for name, suffix, share in WRITTEN:
        if name + suffix in results.write:
            kept = results.write[name + suffix] / results.write[name]
            report.at_least(f"{name}{suffix} / {name}", kept, share)


def _judge_claims(report: Report, results: Results) -> None:
    if results.bare_ratio is not None:
        report.at_most("claim without criteria / its statements by the bare driver", results.bare_ratio, BARE)
    is_off = results.lanes is LanePolicy.OFF or not results.has_lanes
    slowest = p99(results.shapes[0].seconds)
    for shape in results.shapes:
        if shape.name == NONE or (is_off and shape.name not in COMMON):
            continue
        report.at_most(f"{shape.name} / none", results.ratio(shape), TIMES_OFF if is_off else TIMES)
        if not is_off:
            report.at_most(f"{shape.name} / none, p99", p99(shape.seconds) / slowest, TIMES_P99)
        if shape.plan == "lane":
            rows = max(shape.rows_read, default=inf)
            report.at_most(f"{shape.name}: rows read by a claim of {LIMIT}", rows, ROWS, "rows")
