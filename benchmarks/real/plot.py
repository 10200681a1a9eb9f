"""The curves of several runs as one SVG: a panel per metric, a line per run, a mark where a run rolled back.

Dev success is drawn as points, since it is measured at few steps; all else as trailing means of five steps.
"""

import html
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real.curve import Record, read_records

PANELS = {
    "success on held-out tasks": "evaluate/success",
    "success of sampled episodes": "rollout/success",
    "std of rewards within groups": "health/reward_std",
    "entropy, nats a token": "health/token_entropy",
}
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_WIDTH, _HEIGHT, _LEFT, _TOP = 360, 190, 46, 26
_SMOOTH = 5

Point = tuple[float, float]


def draw_runs(runs: Sequence[Path]) -> str:
    """The SVG's text; a run is named by its folder."""
    records = {run.name: read_records(run) for run in runs}
    rollbacks = {run.name: _read_rollbacks(run) for run in runs}
    panels = [
        f'<g transform="translate({number % 2 * _WIDTH},{number // 2 * _HEIGHT})">'
        f"{_draw_panel(title, {name: _points(run, metric) for name, run in records.items()}, rollbacks)}</g>"
        for number, (title, metric) in enumerate(PANELS.items())
    ]
    legend = "".join(
        f'<text x="{_LEFT + 200 * place}" y="{2 * _HEIGHT + 20}" fill="{colour}">{html.escape(name)}</text>'
        for place, (name, colour) in enumerate(zip(records, _COLOURS, strict=False))
    )
    size = f'width="{2 * _WIDTH}" height="{2 * _HEIGHT + 30}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(panels)}{legend}</svg>\n'


def _points(records: Sequence[Record], metric: str) -> list[Point]:
    """`(step, value)`; of training metrics, trailing means."""
    found = [(record["step"], record[metric]) for record in records if record.get(metric) is not None]
    points = [(float(str(step)), float(str(value))) for step, value in found]
    if metric.startswith("evaluate/"):
        return points
    trailing = [points[max(0, place - _SMOOTH + 1) : place + 1] for place in range(len(points))]
    return [(window[-1][0], sum(value for _, value in window) / len(window)) for window in trailing]


def _read_rollbacks(run: Path) -> list[int]:
    file = run / "findings.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [found["step"] for found in map(json.loads, lines) if found.get("rollback_to") is not None]


def _draw_panel(title: str, curves: dict[str, list[Point]], rollbacks: dict[str, list[int]]) -> str:
    points = [point for curve in curves.values() for point in curve]
    last = max((step for step, _ in points), default=1.0) or 1.0
    low, high = min((value for _, value in points), default=0.0), max((value for _, value in points), default=1.0)
    room = (high - low) * 0.08 or 0.01
    low, high = low - room, high + room

    def place(step: float, value: float) -> str:
        across = _LEFT + step / last * (_WIDTH - _LEFT - 14)
        return f"{across:.1f},{_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - 30):.1f}"

    drawn = [f'<text x="{_LEFT}" y="16" font-weight="bold">{html.escape(title)}</text>']
    for value in (low + room, (low + high) / 2, high - room):
        height = float(place(0, value).split(",")[1])
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 14}" y1="{height}" y2="{height}" stroke="#ddd"/>')
        drawn.append(f'<text x="{_LEFT - 4}" y="{height + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    drawn.append(f'<text x="{_LEFT}" y="{_HEIGHT - 14}">step 0</text>')
    drawn.append(f'<text x="{_WIDTH - 14}" y="{_HEIGHT - 14}" text-anchor="end">step {last:.0f}</text>')
    for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        few = len(curve) <= 12
        path = " ".join(place(step, value) for step, value in curve)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for step, value in curve if few else ():
            across, down = place(step, value).split(",")
            drawn.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>')
        for step in rollbacks[name]:
            across = place(step, low).split(",")[0]
            dashes = f'stroke="{colour}" stroke-dasharray="3 3"'
            drawn.append(f'<line x1="{across}" x2="{across}" y1="{_TOP}" y2="{_HEIGHT - 30}" {dashes}/>')
    return "".join(drawn)
