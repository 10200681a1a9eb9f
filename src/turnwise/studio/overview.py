"""Where a run's time went and what broke in it, over its steps: the ledger's bars and the health table.

Invariant: the bars of a run sum to its ledger; a row of the health table has one value per stretch of steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from turnwise.ledger import ACCOUNTS
from turnwise.runs.report.ledger import COLOURS
from turnwise.studio.curves import Curves, Stage
from turnwise.types import Json

_MOST_BARS: Final = 60
_SECONDS: Final = "_seconds"
_OTHER_COLOUR: Final = "#c9ced6"
_STOPS: Final[Mapping[str, str]] = {
    "rollout/stop_max_turns": "cut off by rollout.max_turns",
    "rollout/stop_context_full": "the conversation filled the context",
    "rollout/stop_token_budget": "cut off by rollout.episode_tokens",
    "rollout/stop_timeout": "timed out: rollout.seconds",
    "rollout/stop_time_up": "the environment's own clock ran out",
    "rollout/stop_agent_quit": "the agent quit",
}
_SHARES: Final[Mapping[str, str]] = {
    "rollout/turns_cut": "share of turns cut off by rollout.turn_tokens",
    "env/tool_errors": "tool calls that failed, per episode",
    "env/invalid_actions": "share of actions that could not be parsed",
    "env/breaks": "rows that broke, per episode",
}
_COUNTS: Final[Mapping[str, str]] = {
    "rollout/failed": "episodes whose environment, tools or endpoint broke: never scored",
    "batch/empty_trajectories": "episodes that ended before the first turn",
    "filter/dropped": "groups dropped by stability.filter",
    "filter/zero_variance": "groups whose rewards are all equal",
    "policy/steps_skipped": "updates skipped: the gradient was not finite",
}


def ledger_bars(curves: Curves) -> dict[str, Json]:
    """Seconds by account: the cold start as one bar, then stretches of training steps with their evaluations."""
    last = max((int(step) for stage in ("train", "end") for step in _steps(curves, stage)), default=0)
    width = max(1, math.ceil((last + 1) / _MOST_BARS))
    bars: dict[tuple[int, int], dict[str, float]] = {}
    walls: dict[tuple[int, int], float] = {}
    for name, place in curves.order:
        stage = curves.stages[name]
        step = stage.step[place]
        key = (0, 0) if name == "sft" else (1, int(step) // width if math.isfinite(step) else 0)
        bar = bars.setdefault(key, {})
        for metric, column in stage.columns.items():
            value = column[place] if place < len(column) else math.nan
            if not metric.startswith("ledger/") or not metric.endswith(_SECONDS) or not math.isfinite(value):
                continue
            account = metric.removeprefix("ledger/").removesuffix(_SECONDS)
            if account == "wall":
                walls[key] = walls.get(key, 0.0) + value
            else:
                bar[account] = bar.get(account, 0.0) + value
    known = dict.fromkeys(account for bar in bars.values() for account in bar)
    accounts = [*(name for name in ACCOUNTS if name in known), *sorted(known.keys() - ACCOUNTS.keys())]
    return {
        "accounts": [
            {"name": name, "colour": COLOURS.get(name, _OTHER_COLOUR), "about": ACCOUNTS.get(name, "")}
            for name in accounts
        ],
        "bars": [
            {"label": _label(key, width, last), "step": key[1] * width, "wall": walls.get(key, 0.0), "seconds": bar}
            for key, bar in sorted(bars.items())
            if bar
        ],
    }


def _label(key: tuple[int, int], width: int, last: int) -> str:
    if key[0] == 0:
        return "cold start"
    first, end = key[1] * width, min((key[1] + 1) * width - 1, last)
    return f"step {first}" if first == end else f"steps {first}–{end}"


def health_rows(curves: Curves) -> dict[str, Json]:
    """What broke or was cut off in training, by stretch of steps; rows of which nothing happened are left out."""
    train = curves.stages.get("train", Stage())
    breaks = {name: f"rows that broke: {_cause(name)}" for name in train.columns if name.startswith("env/breaks_")}
    width = max(1, math.ceil(len(train) / _MOST_BARS))
    rows: list[Json] = []
    for names, unit in ((_COUNTS, "count"), (_STOPS, "share"), ({**_SHARES, **breaks}, "mean")):
        for name, about in names.items():
            known = [value for value in train.columns.get(name, ()) if math.isfinite(value)]
            if any(known):
                values = _stretch(train.column(name), width, summed=unit == "count")
                total = math.fsum(known) if unit == "count" else math.fsum(known) / len(known)
                rows.append({"name": name, "about": about, "unit": unit, "values": values, "total": total})
    episodes = train.total("rollout/episodes")
    steps: list[Json] = [train.step[place] for place in range(0, len(train), width)]
    return {"steps": steps, "width": width, "episodes": episodes, "rows": rows}


def _stretch(values: Sequence[float], width: int, *, summed: bool) -> list[Json]:
    stretched: list[Json] = []
    for start in range(0, len(values), width):
        known = [value for value in values[start : start + width] if math.isfinite(value)]
        whole = math.fsum(known)
        stretched.append((whole if summed else whole / len(known)) if known else None)
    return stretched


def _cause(name: str) -> str:
    return name.removeprefix("env/breaks_").replace("_", " ")


def _steps(curves: Curves, stage: str) -> Sequence[float]:
    return curves.stages[stage].step if stage in curves.stages else ()
