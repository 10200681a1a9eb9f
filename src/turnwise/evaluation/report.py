"""An evaluation for people and for programs: a table or lines, JSON, and a file with a line per task.

Invariant: every form shows the same scores; none computes any.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwise.agents.chat import write_message
from turnwise.evaluation.evaluate import Evaluation, Scores
from turnwise.rewards import final_answer
from turnwise.runs.files import finite, write_text
from turnwise.types import Group, Json, StopReason, Trajectory


def show_evaluation(console: Console, name: str, evaluation: Evaluation) -> None:
    """A table on a terminal; elsewhere plain lines, the last of which is over all tasks."""
    if console.is_terminal:
        console.print(_table(name, evaluation))
    lines = [] if console.is_terminal else list(_lines(evaluation))
    if means := evaluation.scores.means:
        lines.append(", ".join(f"{metric} {value:.3f}" for metric, value in means.items()))
    for line in [*lines, f"{name}: {evaluation}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def to_json(evaluation: Evaluation, about: Mapping[str, object]) -> str:
    """The scores under the names they have in a run, after what they are about: `{"model": "small", ...}`."""
    return json.dumps(finite({**about, "metrics": evaluation.metrics()}), indent=2, ensure_ascii=False)


def write_answers(path: Path, evaluation: Evaluation) -> None:
    """One JSON object per task: the question, the right answers, and every response to it."""
    fields = list(dict.fromkeys(part.field for part in evaluation.slices))
    lines = [json.dumps(finite(_describe(group, fields)), ensure_ascii=False) for group in evaluation.groups]
    write_text(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode())


def read_answer(trajectory: Trajectory) -> str | None:
    """The answer in an agent's last message: the text in its tags, else all of it.

    None where there is no message, or where it calls a tool instead.
    """
    last = trajectory.turns[-1].message if trajectory.turns else None
    if last is None or last.tool_calls:
        return None
    tagged = final_answer(last.content)
    return last.content if tagged is None else tagged


def _describe(group: Group, fields: list[str]) -> dict[str, Json]:
    data = group.task.data
    gold = data.get("answers", data.get("answer"))
    described: dict[str, Json] = {"id": group.task.id}
    if "question" in data:
        described["question"] = data["question"]
    described["answers"] = gold if isinstance(gold, list | tuple) else [] if gold is None else [gold]
    if fields:
        described["by"] = {name: data.get(name) for name in fields}
    described["responses"] = [_describe_response(trajectory) for trajectory in group.trajectories]
    return described


def _describe_response(trajectory: Trajectory) -> dict[str, Json]:
    failed = trajectory.stop is StopReason.ENV_FAILED
    described: dict[str, Json] = {
        "answer": read_answer(trajectory),
        "success": None if failed else trajectory.success,
        "reward": None if failed else trajectory.reward,
        "turns": len(trajectory.turns),
        "stop": trajectory.stop.value,
    }
    if trajectory.failure:
        described["failure"] = trajectory.failure
    if trajectory.messages:
        described["messages"] = [write_message(message) for message in trajectory.messages]
    return described


def _lines(evaluation: Evaluation) -> Iterator[str]:
    """What a table shows beside the scores over all tasks."""
    whole = evaluation.scores
    yield from (f"{part.field}={part.value}: {part.scores}" for part in evaluation.slices)
    if whole.pass_at:
        yield ", ".join(f"pass@{k} {value:.3f}" for k, value in whole.pass_at.items())


def _table(name: str, evaluation: Evaluation) -> Table:
    whole = evaluation.scores
    ks = list(whole.pass_at)
    table = Table(title=escape(f"{name}: success on {whole.tasks} tasks"), title_justify="left")
    table.add_column("")
    for title in ["success", "95% interval", *(f"pass@{k}" for k in ks), "reward", "turns", "episodes"]:
        table.add_column(title, justify="right")
    table.add_row("all", *_cells(whole, ks), style="bold", end_section=True)
    for part in evaluation.slices:
        table.add_row(escape(f"{part.field} {part.value}"), *_cells(part.scores, ks))
    return table


def _cells(scores: Scores, ks: list[int]) -> list[str]:
    further = [f"{scores.pass_at[k]:.3f}" if k in scores.pass_at else "–" for k in ks]
    count = f"{scores.episodes} (+{scores.failed} failed)" if scores.failed else str(scores.episodes)
    means = [f"{scores.reward:.3f}", f"{scores.turns:.1f}"]
    return [f"{scores.success:.3f}", _interval(scores.interval), *further, *means, count]


def _interval(edges: tuple[float, float]) -> str:
    return f"[{edges[0]:.3f}, {edges[1]:.3f}]"
