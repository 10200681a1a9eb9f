"""The demo: trains one recipe's agent and its baseline, and shows both with a curve and an episode.

Nothing here is special to the demo: two runs of the trainer (the agent, and naive RAG with as many demonstrations),
and metrics read back from what those runs wrote.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from turnwise.config import Config
from turnwise.envs.qa.baselines import NaiveRag
from turnwise.envs.registry import make_env
from turnwise.render import make_render
from turnwise.runs import (
    Checkpoints,
    Record,
    RunDirectory,
    Series,
    colour_trajectory,
    draw_curve,
    make_display,
    read_metrics,
    read_trajectories,
    terminal_curve,
)
from turnwise.training.trainer import run_training


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Held-out success with its 95% interval, as an evaluation logged it."""

    success: float
    low: float
    high: float
    episodes: int


def run_demo(config: Config, folder: Path, console: Console) -> dict[str, float]:
    """Trains, compares and prints; returns what `summary.json` holds."""
    began = time.monotonic()
    _keep_earlier(folder, console)
    config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"untrained": True})})
    console.rule("[bold]1. An agent learns to search: cold start, then reinforcement learning")
    agent = run_training(config, folder, display=make_display(console))
    console.rule("[bold]2. The baseline: naive RAG, the same model with as many demonstrations")
    untrained = config.evaluate.model_copy(update={"untrained": False})
    rag_config = config.model_copy(update={"steps": 0, "evaluate": untrained})
    rag = run_training(
        rag_config, folder / "naive_rag", env=NaiveRag(make_env(config.env)), display=make_display(console)
    )
    scores = {
        "naive_rag": read_score(rag, "evaluate", 0),
        "untrained": read_score(agent, "untrained", 0),
        "sft": read_score(agent, "evaluate", 0),
        "rl": read_score(agent, "evaluate", config.steps),
    }
    summary: dict[str, float] = {name: score.success for name, score in scores.items()}
    summary |= {"questions": scores["rl"].episodes, "seconds": round(time.monotonic() - began, 1), "seed": config.seed}
    agent.write_summary(summary)
    console.rule("[bold]3. Results")
    _show(agent, config, scores, console)
    console.print(f"{summary['seconds']:.0f} seconds in all, seed {config.seed}; summary in {agent.summary}")
    return summary


def read_score(run: RunDirectory, stage: str, step: int) -> Score:
    """The evaluation of a run at this stage and step."""
    record = next(
        r for r in read_metrics(run.metrics) if r["stage"] == stage and r["step"] == step and "evaluate/success" in r
    )
    values = [_number(record, f"evaluate/{name}") for name in ("success", "success_low", "success_high", "episodes")]
    return Score(success=values[0], low=values[1], high=values[2], episodes=int(values[3]))


def _keep_earlier(folder: Path, console: Console) -> None:
    """Renames an earlier demo to the next free name."""
    if not folder.exists():
        return
    number = 1
    while (kept := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(kept)
    console.print(f"The earlier {folder} is now {kept}.")


def _show(run: RunDirectory, config: Config, scores: dict[str, Score], console: Console) -> None:
    console.print(_table(scores, config))
    records = [record for record in read_metrics(run.metrics) if record["stage"] == "train"]
    sampled = [_number(record, "rollout/success") for record in records]
    console.print(f"Success of sampled episodes, training steps 1 to {len(sampled)}:")
    console.print(terminal_curve(sampled))
    picture = _draw(run, sampled)
    checkpoint = Checkpoints(run.checkpoints).latest()
    assert checkpoint is not None
    _show_trajectory(run, checkpoint, config, console)
    console.print(f"The run:       {run.path}  (config, metrics.jsonl, trajectories/*.parquet, checkpoints/)")
    console.print(f"Its report:    {run.path / 'report.html'}  (open it in a browser)")
    console.print(f"The model:     {checkpoint / 'model'}  (loads with AutoModelForCausalLM)")
    if picture is not None:
        console.print(f"The curve:     {picture}")
    console.print("Try next:")
    console.print(f"  turnwise eval {run.path} evaluate.temperature=1", highlight=False)
    console.print("  turnwise play encyclopedia", highlight=False)
    console.print("  turnwise train encyclopedia-ppo --run runs/ppo", highlight=False)
    console.print("  turnwise train encyclopedia-grpo loss.action_mask=false --run runs/no-mask", highlight=False)


def _table(scores: dict[str, Score], config: Config) -> Table:
    decoding = "greedy" if config.evaluate.temperature == 0 else f"temperature {config.evaluate.temperature:g}"
    table = Table(title=f"Exact match on {scores['rl'].episodes} held-out questions ({decoding})", title_justify="left")
    table.add_column("")
    table.add_column("exact match", justify="right")
    table.add_column("95% interval", justify="right")
    names = {
        "naive_rag": "naive RAG, as many demonstrations",
        "untrained": "tool calls, untrained",
        "sft": "tool calls, after the cold start",
        "rl": "tool calls, after reinforcement learning",
    }
    for key, name in names.items():
        score, style = scores[key], "bold green" if key == "rl" else ""
        table.add_row(name, f"{score.success:.3f}", f"{score.low:.3f} – {score.high:.3f}", style=style)
    return table


def _draw(run: RunDirectory, sampled: list[float]) -> Path | None:
    evaluations = [record for record in read_metrics(run.metrics) if record["stage"] == "evaluate"]
    return draw_curve(
        run.path / "learning_curve.png",
        [
            Series(name="sampled, training questions", x=[float(i) for i in range(1, len(sampled) + 1)], y=sampled),
            Series(
                name="held-out questions",
                x=[_number(record, "step") for record in evaluations],
                y=[_number(record, "evaluate/success") for record in evaluations],
                marked=True,
            ),
        ],
        title="Learning to search twice",
        x_label="training step",
        y_label="exact match",
    )


def _show_trajectory(run: RunDirectory, checkpoint: Path, config: Config, console: Console) -> None:
    from transformers import AutoTokenizer

    render = make_render(AutoTokenizer.from_pretrained(checkpoint / "model"), config.render)
    groups = read_trajectories(run.trajectory_file("evaluate", config.steps))
    shown = next((g for g in groups if g.trajectories[0].success), groups[0]).trajectories[0]
    title = "One held-out episode: context is dim, sampled tokens are bright"
    console.print(Panel(colour_trajectory(shown, render.decode), title=title, title_align="left"))


def _number(record: Record, name: str) -> float:
    value = record[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)
