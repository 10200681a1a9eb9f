"""The report of the trap study: success by mode, the alarm against the fall, false alarms, and the curves.

Invariant: differences between modes are taken within a seed, which shares its cold start, tasks and episode
seeds, before their mean is; what no run has (the lead of an alarm where nothing fell) is left out,
never zero.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from benchmarks.credit.report import Runs
from benchmarks.games.curve import Curve, FalseAlarms, read_curve, trailing_mean
from benchmarks.harness.report import Picture
from benchmarks.harness.results import Estimate, estimate_mean, markdown_table
from benchmarks.harness.training import read_column
from turnwise.evaluation import wilson_interval
from turnwise.runs import Panel, Series

Estimates: TypeAlias = Mapping[str, Estimate]

BASE = "vanilla"
"""What the other modes are compared with."""
CURVES = {
    "success": "rollout/success",
    "in-group reward std": "rollout/reward_std_in_group",
    "token entropy": "health/token_entropy",
    "gradient norm": "policy/grad_norm",
}


def read_curves(runs: Runs) -> list[Curve]:
    return [read_curve(run) for run in runs]


def summarise_mode(runs: Runs, base: Runs) -> dict[str, Estimate]:
    """Means over seeds: final success, sampled and held out, with its difference to the base mode; the peak; and, of
    the runs that have them, the steps of alarm and fall and the lead between."""
    curves, other = read_curves(runs), read_curves(base)
    held, held_other = _held_out(runs), _held_out(base)
    found = {
        "before": [read_column(run, "evaluate", "evaluate/success")[0] for run in runs],
        "peak": [curve.peak for curve in curves],
        "success": [curve.final for curve in curves],
        f"success_minus_{BASE}": [one.final - two.final for one, two in zip(curves, other, strict=True)],
        "held_out": held,
        f"held_out_minus_{BASE}": [one - two for one, two in zip(held, held_other, strict=True)],
        "alarm_at": [float(curve.alarm_at) for curve in curves if curve.alarm_at is not None],
        "fallen_at": [float(curve.fallen_at) for curve in curves if curve.fallen_at is not None],
        "lead": [float(curve.lead) for curve in curves if curve.lead is not None],
        "rollbacks": [read_column(run, "train", "stability/rollbacks")[-1] for run in runs],
    }
    return {name: estimate_mean(values) for name, values in found.items() if values}


def count_shares(curves: Sequence[Curve]) -> dict[str, tuple[int, int]]:
    """How many runs were trapped and alarmed, and how many of the trapped were warned before they fell."""
    trapped = [curve for curve in curves if curve.trapped]
    return {
        "trapped": (len(trapped), len(curves)),
        "alarmed": (sum(curve.alarm_at is not None for curve in curves), len(curves)),
        "warned": (sum(curve.warned for curve in trapped), len(trapped)),
    }


def flatten_shares(prefix: str, shares: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Shares with Wilson's 95% intervals, and what they are of; a share of nothing is left out."""
    flat: dict[str, float] = {}
    for name, (count, total) in shares.items():
        flat[f"{prefix}/{name}_of"] = float(total)
        if total:
            low, high = wilson_interval(count, total)
            flat |= {
                f"{prefix}/{name}": count / total,
                f"{prefix}/{name}/low": low,
                f"{prefix}/{name}/high": high,
            }
    return flat


def count_effort(runs: Runs) -> dict[str, float]:
    """What one run cost, in the mean: episodes sampled for training, updates of the policy, and those among them that
    moved nothing, since no group's rewards differed."""
    taken, idle = (_total(runs, f"policy/steps_{outcome}") for outcome in ("taken", "idle"))
    return {"episodes": _total(runs, "rollout/episodes"), "updates": taken + idle, "idle": idle}


def describe_effort(effort: Mapping[str, Mapping[str, float]]) -> str:
    """One sentence: that samples and updates were equal, or each run's counts."""
    first = next(iter(effort.values()))
    if all(one[name] == first[name] for one in effort.values() for name in ("episodes", "updates")):
        return (
            f"Samples and updates are equal: every run sampled {first['episodes']:,.0f} episodes and made "
            f"{first['updates']:,.0f} updates of the policy{_describe_idle(effort)}."
        )
    unequal = "; ".join(
        f"{name}: {one['episodes']:,.1f} episodes, {one['updates']:,.1f} updates" for name, one in effort.items()
    )
    return f"**Samples or updates were not equal**, in the mean per run: {unequal}."


def _describe_idle(effort: Mapping[str, Mapping[str, float]]) -> str:
    most = max(effort, key=lambda name: effort[name]["idle"])
    idle = effort[most]["idle"]
    return f" (some with a gradient of exactly zero: at most {idle:.1f} per run, of {most})" if idle else ""


def trap_table(
    summaries: Mapping[str, Estimates],
    shares: Mapping[str, Mapping[str, tuple[int, int]]],
    effort: Mapping[str, Mapping[str, float]],
) -> str:
    header = ["mode", "peak", "last 10 steps", f"less {BASE}'s", "held out", f"less {BASE}'s", "trapped"]
    rows = []
    for mode, found in summaries.items():
        cells = [found["peak"].show(2)]
        for name in ("success", "held_out"):
            difference = "" if mode == BASE else found[f"{name}_minus_{BASE}"].show(2, signed=True)
            cells += [found[name].show(2), difference]
        cells += [_of(shares[mode]["trapped"])]
        rows.append([mode, *cells, *(f"{effort[mode][name]:,.0f}" for name in ("episodes", "updates"))])
    return markdown_table([*header, "episodes", "updates"], rows)


def alarm_table(summaries: Mapping[str, Estimates], shares: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    header = ["mode", "alarmed", "first alarm at step", "half of the peak lost at step", "lead, steps"]
    rows = []
    for mode, found in summaries.items():
        cells = [_of(shares[mode]["alarmed"]), _show(found, "alarm_at"), _show(found, "fallen_at")]
        cells += [_show(found, "lead", signed=True), _of(shares[mode]["warned"]), _show(found, "rollbacks")]
        rows.append([mode, *cells])
    return markdown_table([*header, "trapped runs alarmed before", "returns per run"], rows)


def false_alarm_table(found: Mapping[str, FalseAlarms]) -> str:
    header = ["runs", "in all", "steps of a run", "long enough, and not trapped at the end", "of these, with an alarm"]
    rows = []
    for name, one in found.items():
        shortest, longest = one.steps
        steps = str(longest) if shortest == longest else f"{shortest} to {longest}"
        rows.append([name, str(one.runs), steps, str(one.healthy), str(one.alarmed)])
    return markdown_table(header, rows)


def draw_trap(runs: Mapping[str, Runs], summaries: Mapping[str, Estimates]) -> Picture:
    """Trailing means over steps with bands; a metric that is no share is divided by its highest mean, as titled."""
    alarm = summaries[BASE].get("alarm_at")
    panels = []
    for title, column in CURVES.items():
        lines = {mode: average_curve(each, column) for mode, each in runs.items()}
        top = max((point.mean for line in lines.values() for point in line.values()), default=1.0) or 1.0
        scale = 1.0 if title == "success" else top
        series = [draw_line(mode, line, scale) for mode, line in lines.items()]
        if alarm is not None:
            series.append(Series(name="alarm", x=[alarm.mean, alarm.mean], y=[0.0, 1.0]))
        panels.append(Panel(title=title if scale == 1 else f"{title} (1 = {top:.2g})", series=series))
    return Picture(name="trap", title="The Echo Trap on the Bandit", panels=panels, x_label="step", y_label="")


def average_curve(runs: Runs, column: str) -> dict[int, Estimate]:
    """The trailing mean of a metric, step by step, over seeds."""
    curves = [trailing_mean(read_column(run, "train", column)) for run in runs]
    steps = [step for step in curves[0] if all(math.isfinite(curve[step]) for curve in curves)]
    return {step: estimate_mean([curve[step] for curve in curves]) for step in steps}


def draw_line(name: str, line: Mapping[int, Estimate], scale: float = 1.0) -> Series:
    """A curve with its band, as shares of `scale`."""
    points = list(line.values())
    # A mean of few seeds has an interval that may reach where no measure can; a band is cut to what is drawn.
    low, high = ([min(max(edge / scale, 0.0), 1.0) for edge in side] for side in _edges(points))
    return Series(
        name=name,
        x=[float(step) for step in line],
        y=[point.mean / scale for point in points],
        band=(low, high) if points and points[0].seeds > 1 else None,
    )


def _edges(points: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    return [point.low for point in points], [point.high for point in points]


def flatten(prefix: str, estimates: Estimates) -> dict[str, float]:
    return {
        name: value for key, estimate in estimates.items() for name, value in estimate.flat(f"{prefix}/{key}").items()
    }


def _total(runs: Runs, column: str) -> float:
    return statistics.fmean(math.fsum(read_column(run, "train", column)) for run in runs)


def _held_out(runs: Runs) -> list[float]:
    return [read_column(run, "evaluate", "evaluate/success")[-1] for run in runs]


def _of(share: tuple[int, int]) -> str:
    return f"{share[0]} of {share[1]}"


def _show(found: Estimates, name: str, *, signed: bool = False) -> str:
    return found[name].show(1, signed=signed) if name in found else "–"
