"""`python -m benchmarks chart`: the results of `claim` as one SVG picture, each shape with lanes and without.

Every line is one shape on one store: a full dot where a claim with lanes stands, a hollow one without, on a scale of
powers of ten, in times of the claim without criteria.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import escape

from benchmarks.claim.results import TIMES
from benchmarks.claim.shapes import NONE, SHAPES

_WIDTH, _LEFT, _RIGHT, _BOTTOM = 860, 150, 20, 30
_ABOVE, _LEGEND = 54, 20
_LINE, _GAP = 11, 9
_LEAST, _MOST = 0.15, 2_000.0
_TICKS = (1, 10, 100, 1_000)
_COLOURS = ("#2f6fb3", "#c2571a", "#7a5195", "#3f8f6b")
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-size: 14px; font-weight: 600 }
  .small { font-size: 11px } .paper { fill: #fff } .rule { stroke: #ddd } .goal { fill: #2a9d4a; opacity: 0.13 }
  @media (prefers-color-scheme: dark) { text { fill: #ccc } .paper { fill: #14181d } .rule { stroke: #3a4048 } }
"""

Ratios: TypeAlias = Mapping[str, float]
"""By the name of a shape."""


@dataclass(frozen=True, slots=True)
class Series:
    """One store: the ratios of its shapes to the claim without criteria, with lanes and without."""

    server: str
    depth: int
    with_lanes: Ratios
    without: Ratios


def draw(results: Sequence[Path], out: Path) -> None:
    """Read results, and write the picture. Raises ValueError when they are not of one depth, or a store has no run
    with lanes."""
    series = read_series([json.loads(path.read_text("utf-8")) for path in results])
    out.write_text(render(series), encoding="utf-8")


def read_series(runs: Sequence[Mapping[str, object]]) -> list[Series]:
    """The stores in the order of the runs."""
    found: dict[tuple[str, int], dict[bool, Ratios]] = {}
    for run in runs:
        server, depth, shapes = run["server"], run["depth"], run["shapes"]
        assert isinstance(server, str)
        assert isinstance(depth, int)
        assert isinstance(shapes, list)
        ratios = {each["shape"]: float(each["ratio_to_none"]) for each in shapes}
        found.setdefault((server, depth), {})[run["lanes"] != "off"] = ratios
    if len({depth for _, depth in found}) != 1:
        raise ValueError("one picture shows one depth")
    if any(True not in pair for pair in found.values()):
        raise ValueError("a store has no run with lanes")
    return [Series(server, depth, pair[True], pair.get(False, {})) for (server, depth), pair in found.items()]


def render(series: Sequence[Series]) -> str:
    """The picture as SVG."""
    names = [name for name in SHAPES if name != NONE and any(name in each.with_lanes for each in series)]
    row = _LINE * len(series) + _GAP
    above = _ABOVE + _LEGEND * math.ceil(len(series) / 2)
    bottom = above + row * len(names)
    height = bottom + _BOTTOM
    body = [
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        _text(
            10, 20, f"A claim of 10 among {series[0].depth:,} ready tasks, in times of one without criteria", "title"
        ),
        *_legend(series),
        *_axis(above, bottom),
    ]
    for number, name in enumerate(names):
        top = above + row * number
        body.append(_text(_LEFT - 10, top + row / 2 + 2, name, anchor="end"))
        for index, each in enumerate(series):
            body += _line(top + _GAP / 2 + _LINE * (index + 0.5), each, name, _COLOURS[index % len(_COLOURS)])
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img">\n<style>{_STYLE}</style>\n{lines}\n</svg>\n'
    )


def _legend(series: Sequence[Series]) -> Iterator[str]:
    """Two stores a line."""
    for index, each in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        top, left = 40 + _LEGEND * (index // 2), 10 + 400 * (index % 2)
        for is_full, words in ((True, "with lanes"), (False, "without")):
            yield _dot(left + 5, top, colour, is_full=is_full)
            yield _text(left + 15, top + 4, f"{each.server} {words}", "small")
            left += 200


def _axis(above: float, bottom: float) -> Iterator[str]:
    left, right = _x(_LEAST), _x(TIMES)
    yield f'<rect class="goal" x="{left:.1f}" y="{above}" width="{right - left:.1f}" height="{bottom - above}"/>'
    yield _text(right, above - 6, f"goal: {TIMES}x", "small", "end")
    for tick in _TICKS:
        yield f'<line class="rule" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{above}" y2="{bottom}"/>'
        yield _text(_x(tick), bottom + 18, f"{tick:,}x", "small", "middle")


def _line(y: float, series: Series, name: str, colour: str) -> Iterator[str]:
    first, second = series.with_lanes.get(name), series.without.get(name)
    if first is not None and second is not None:
        yield (
            f'<line x1="{_x(first):.1f}" x2="{_x(second):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-opacity="0.45" stroke-width="2"/>'
        )
    for ratio, is_full, words in ((second, False, "without lanes"), (first, True, "with lanes")):
        if ratio is not None:
            yield _dot(_x(ratio), y, colour, is_full=is_full, told=f"{name}, {series.server}, {words}: {ratio:g}x")


def _x(ratio: float) -> float:
    span = math.log(_MOST / _LEAST)
    bounded = min(max(ratio, _LEAST), _MOST)
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(bounded / _LEAST) / span


def _dot(x: float, y: float, colour: str, *, is_full: bool, told: str = "") -> str:
    fill = f'fill="{colour}"' if is_full else 'class="paper"'
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {fill} stroke="{colour}" stroke-width="1.6">{title}</circle>'


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
