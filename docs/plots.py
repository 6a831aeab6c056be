"""Plots as SVG: bars relative to their goal, and small plots of one figure over releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .faint { fill: #777; font-size: 11px } .line { stroke: #999; fill: none }
  .goal { stroke: #c60; stroke-dasharray: 4 3 }
  .met { fill: #0a8474 } .missed { fill: #c2502f } .ours { stroke: #0a8474; stroke-width: 2; fill: none }
  @media (prefers-color-scheme: dark) { text { fill: #ddd } .faint { fill: #999 } .line { stroke: #666 } }
""".strip("\n")
BAR, GAP, LEFT, WIDTH = 14, 6, 290, 420
DECADES = 2
"""Range of the bars: from a hundredth of the goal to a hundred times."""
PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 230, 130, 3


class Bar(NamedTuple):
    """A figure relative to its goal: 2.0 is twice as good, 0.5 half as good."""

    name: str
    times: float
    told: str


class Panel(NamedTuple):
    """One figure over releases, with its goal if there is one."""

    title: str
    points: Sequence[tuple[str, float]]
    goal: float | None


def bars(items: Sequence[Bar]) -> str:
    """Draw bars to both sides of their goals, on a scale of powers of ten."""
    middle, half = LEFT + WIDTH / 2, WIDTH / 2
    height = len(items) * (BAR + GAP) + 34
    parts = [
        build_text(LEFT + half / 2, 14, "goal missed", "faint", "middle"),
        build_text(middle + half / 2, 14, "goal met", "faint", "middle"),
        f'<line class="line" x1="{middle:g}" y1="20" x2="{middle:g}" y2="{height - 8}"/>',
    ]
    for number, each in enumerate(items):
        y = 26 + number * (BAR + GAP)
        reach = max(-1.0, min(1.0, math.log10(max(each.times, 1e-9)) / DECADES)) * half
        kind = "met" if each.times >= 1 else "missed"
        x = middle if reach >= 0 else middle + reach
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(abs(reach), 1):.1f}" height="{BAR}"/>'
        )
        parts.append(build_text(LEFT - 8, y + 11, each.name, "", "end"))
        parts.append(build_text(LEFT + WIDTH + 8, y + 11, each.told, "faint"))
    return build_svg(LEFT + WIDTH + 190, height, parts)


def panels(items: Sequence[Panel]) -> str:
    """Draw small plots, each on its own scale from zero."""
    rows = -(-len(items) // COLUMNS)
    parts = []
    for number, each in enumerate(items):
        x, y = number % COLUMNS * PANEL_WIDTH, number // COLUMNS * PANEL_HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{"".join(_panel(each))}</g>')
    return build_svg(COLUMNS * PANEL_WIDTH, rows * PANEL_HEIGHT, parts)


def _panel(panel: Panel) -> list[str]:
    left, top, width, height = 14, 30, PANEL_WIDTH - 40, PANEL_HEIGHT - 60
    most = max([value for _, value in panel.points] + ([panel.goal] if panel.goal else [])) * 1.1 or 1.0
    step = width / max(len(panel.points) - 1, 1)
    places = [
        (left + step * number, top + height * (1 - value / most))
        for number, (_, value) in enumerate(panel.points)
    ]
    parts = [
        build_text(left, 16, panel.title, ""),
        f'<line class="line" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}"/>',
        f'<polyline class="ours" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>',
    ]
    if panel.goal is not None:
        y = top + height * (1 - panel.goal / most)
        parts.append(f'<line class="goal" x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}"/>')
    for (version, value), (x, y) in zip(panel.points, places, strict=True):
        parts.append(f'<circle class="met" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(build_text(x, y - 6, f"{value:.3g}", "faint", "middle"))
        parts.append(build_text(x, top + height + 16, version, "faint", "middle"))
    return parts


def build_text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def build_svg(width: float, height: float, parts: Sequence[str], style: str = STYLE) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}">\n<style>\n{style}\n</style>\n{body}\n</svg>\n'
    )
