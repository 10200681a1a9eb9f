"""An evaluation for people and for programs: a table or lines, JSON, and a file with a line per question.

Invariant: every form tells the same figures; none computes any.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnwise.agents import Response, TaskResult
from turnwise.agents.chat import write_message
from turnwise.evaluation.evaluate import Evaluation, Figures
from turnwise.runs.files import finite, write_text
from turnwise.types import Json


def show_evaluation(console: Console, name: str, evaluation: Evaluation) -> None:
    """A table on a terminal; elsewhere plain lines, the last of which tells the whole."""
    if console.is_terminal:
        console.print(_table(name, evaluation))
    lines = [] if console.is_terminal else list(_lines(evaluation))
    if means := evaluation.figures.means:
        lines.append(", ".join(f"{metric} {value:.3f}" for metric, value in means.items()))
    for line in [*lines, f"{name}: {evaluation}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def to_json(evaluation: Evaluation, about: Mapping[str, object]) -> str:
    """The figures under the names they have in a run, after what they are about: `{"model": "small", ...}`."""
    return json.dumps(finite({**about, "metrics": evaluation.metrics()}), indent=2, ensure_ascii=False)


def write_questions(path: Path, evaluation: Evaluation) -> None:
    """One JSON object per task: what was asked, what is right, and how every response went."""
    fields = list(dict.fromkeys(part.field for part in evaluation.parts))
    lines = [json.dumps(finite(_describe(result, fields)), ensure_ascii=False) for result in evaluation.results]
    write_text(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode())


def _describe(result: TaskResult, fields: list[str]) -> dict[str, Json]:
    data = result.task.data
    gold = data.get("answers", data.get("answer"))
    described: dict[str, Json] = {"id": result.task.id}
    if "question" in data:
        described["question"] = data["question"]
    described["answers"] = gold if isinstance(gold, list | tuple) else [] if gold is None else [gold]
    if fields:
        described["by"] = {name: data.get(name) for name in fields}
    described["responses"] = [_describe_response(response) for response in result.responses]
    return described


def _describe_response(response: Response) -> dict[str, Json]:
    described: dict[str, Json] = {
        "answer": response.answer,
        "success": None if response.failed else response.success,
        "reward": None if response.failed else response.reward,
        "turns": response.turns,
        "stop": response.stop.value,
    }
    if response.failure:
        described["failure"] = response.failure
    if response.messages:
        described["messages"] = [write_message(message) for message in response.messages]
    return described


def _lines(evaluation: Evaluation) -> Iterator[str]:
    """What a table has beside the figures of the whole."""
    whole = evaluation.figures
    yield from (f"{part.field}={part.value}: {part.figures}" for part in evaluation.parts)
    if whole.pass_at:
        yield ", ".join(f"pass@{k} {value:.3f}" for k, value in whole.pass_at.items())
    yield f"bootstrap over tasks {_interval(whole.bootstrap)}"


def _table(name: str, evaluation: Evaluation) -> Table:
    whole = evaluation.figures
    ks = list(whole.pass_at)
    table = Table(title=escape(f"{name}: success on {whole.tasks} tasks"), title_justify="left")
    table.add_column("")
    # With several responses per task the interval is the bootstrap's already.
    further = [f"pass@{k}" for k in ks] or ["bootstrap"]
    for title in ["success", "95% interval", *further, "reward", "turns", "episodes"]:
        table.add_column(title, justify="right")
    table.add_row("all", *_cells(whole, ks), style="bold", end_section=True)
    for part in evaluation.parts:
        table.add_row(escape(f"{part.field} {part.value}"), *_cells(part.figures, ks))
    return table


def _cells(figures: Figures, ks: list[int]) -> list[str]:
    further = [f"{figures.pass_at[k]:.3f}" if k in figures.pass_at else "–" for k in ks] or [
        _interval(figures.bootstrap)
    ]
    count = f"{figures.episodes} (+{figures.failed} failed)" if figures.failed else str(figures.episodes)
    means = [f"{figures.reward:.3f}", f"{figures.turns:.1f}"]
    return [f"{figures.success:.3f}", _interval(figures.interval), *further, *means, count]


def _interval(edges: tuple[float, float]) -> str:
    return f"[{edges[0]:.3f}, {edges[1]:.3f}]"
