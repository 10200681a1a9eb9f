"""A run's `metrics.jsonl` as flat JSON: its curve, its cold start, and the seconds of a step.

`steps` are the training steps that had the GPU to themselves; medians are of those alone.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Record = Mapping[str, object]


def summarise_run(runs: Sequence[Sequence[Record]], steps: range | None) -> dict[str, object]:
    """The curve, cold start, training and seconds of an experiment, whose pieces are `runs`, in order."""
    last = runs[-1]
    trained = [record for record in last if record["stage"] == "train"]
    timed = [record for record in trained if steps is None or record["step"] in steps]
    return {
        "curve": [
            _evaluation(record) for run in runs for record in run if record["stage"] in ("untrained", "evaluate")
        ],
        "sft": next((found for run in runs if (found := _summarise_sft(run))), None),
        "train": {
            "steps": len(trained),
            "success": _rounded(trained, "rollout/success"),
            "entropy": _rounded(trained, "policy/entropy"),
            "zero_variance_groups": _rounded(trained, "credit/zero_variance_groups"),
            "groups_trained_on": _rounded(trained, "filter/kept"),
            "update_seconds": _rounded(trained, "time/update_seconds"),
            "sampled_tokens": round(sum(_number(record, "ledger/sampled_tokens") for record in trained)),
            "trained_tokens": round(sum(_number(record, "batch/tokens") for record in trained)),
            "wall_seconds": round(sum(_number(record, "ledger/wall_seconds") for record in trained)),
        },
        "step_medians": {
            "steps": f"{timed[0]['step']} to {timed[-1]['step']}" if timed else "",
            **{
                name: round(statistics.median(_number(record, name) for record in timed), 3)
                for name in (timed[0] if timed else ())
                if name.endswith("_seconds")
                or name in ("rollout/tokens_per_second", "rollout/action_tokens", "batch/tokens", "rollout/episodes")
            },
        },
    }


def _evaluation(record: Record) -> dict[str, object]:
    wanted = ("success", "success_low", "success_high", "f1", "gold_recall", "searches", "tasks")
    figures = {
        name.removeprefix("evaluate/"): round(_number(record, name), 4)
        for name in record
        if name.startswith("evaluate/") and name.rpartition("/")[2] in wanted
    }
    return {"stage": record["stage"], "step": record["step"], **figures}


def _summarise_sft(run: Sequence[Record]) -> dict[str, object] | None:
    steps = [record for record in run if record["stage"] in ("sft", "cold_start")]  # older runs: the latter
    if not steps:
        return None
    tokens = [_number(record, "sft/tokens") for record in steps]
    seconds = _number(steps[-1], "time") - _number(steps[0], "time")
    return {
        "steps": len(steps),
        "tokens": round(sum(tokens)),
        "seconds_after_first_step": round(seconds, 1),
        "tokens_per_second_after_first_step": round(sum(tokens[1:]) / seconds),
        "seconds_before_and_with_first_step": round(_number(steps[0], "ledger/wall_seconds"), 1),
        "last_loss": round(_number(steps[-1], "sft/loss"), 4),
    }


def _number(record: Record, name: str) -> float:
    value = record.get(name, 0.0)
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)


def _rounded(records: Iterable[Record], name: str) -> list[float]:
    return [round(_number(record, name), 4) for record in records]


def read_records(run: Path) -> list[Record]:
    """The metrics of a run directory."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
