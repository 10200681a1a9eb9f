"""The report of rollout shaping: one table per question in the shape of RAGEN's, with a column per game, and curves.

Invariant: a table's rows differ in what it asks about and in nothing else; the cell that changes nothing is the same
runs in every table.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.credit.report import Runs
from benchmarks.games.curve import read_curve
from benchmarks.games.shaping import ENVIRONMENTS, QUESTIONS, Question, cell_name, job_name, values
from benchmarks.games.trap import average_curve, count_effort, describe_effort, draw_line, flatten
from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.report import Picture
from benchmarks.harness.results import Estimate, estimate_mean, markdown_table
from benchmarks.harness.training import read_column
from turnwise.config import Config
from turnwise.runs import Panel


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """The runs of every cell, by environment."""

    results: JobResults
    configs: Mapping[str, Config]
    """The recipe of each environment."""
    seeds: Sequence[int]
    quick: bool

    def rows(self, environment: str, question: Question) -> dict[int, Runs]:
        """The runs of a question by the value tried; none where the environment has no such question."""
        if question not in ENVIRONMENTS[environment].questions:
            return {}
        config = self.configs[environment]
        cells = {value: cell_name(question, config, value) for value in values(question, config, quick=self.quick)}
        return {
            value: [self.results[job_name(environment, cell, seed)] for seed in self.seeds]
            for value, cell in cells.items()
        }

    def tables(self) -> Iterator[tuple[str, Question, dict[int, Runs]]]:
        for environment in self.configs:
            for question in ENVIRONMENTS[environment].questions:
                yield environment, question, self.rows(environment, question)

    def effort(self, environment: str) -> dict[str, Mapping[str, float]]:
        """The mean cost of a run of each cell."""
        return {
            f"{question.title} {value}": count_effort(runs)
            for question in ENVIRONMENTS[environment].questions
            for value, runs in self.rows(environment, question).items()
        }

    def flatten(self) -> dict[str, float]:
        flat: dict[str, float] = {}
        for environment, question, rows in self.tables():
            for value, runs in rows.items():
                prefix = f"shaping/{environment}/{question.name}-{value}"
                flat |= flatten(prefix, summarise_cell(runs))
                flat |= {f"{prefix}/{name}": total for name, total in count_effort(runs).items()}
        return flat

    def parts(self) -> dict[str, str]:
        """A table for every question, and the cost of their runs."""
        effort = [
            f"{ENVIRONMENTS[environment].title}. {describe_effort(self.effort(environment))}"
            for environment in self.configs
        ]
        return {question.name: self._table(question) for question in QUESTIONS} | {
            "shaping-effort": "\n\n".join(effort)
        }

    def picture(self) -> Picture:
        """Sampled success over steps: a panel per question and environment, a line per value; bands would hide them."""
        panels = [
            Panel(
                title=f"{ENVIRONMENTS[environment].title}: {question.name}",
                series=[
                    dataclasses.replace(draw_line(str(value), average_curve(runs, "rollout/success")), band=None)
                    for value, runs in rows.items()
                ],
            )
            for environment, question, rows in self.tables()
        ]
        return Picture(
            name="shaping", title="Success by rollout shaping", panels=panels, x_label="step", y_label="success"
        )

    def _table(self, question: Question) -> str:
        tables = {environment: rows for environment in self.configs if (rows := self.rows(environment, question))}
        header, columns = [question.title], []
        for environment, rows in tables.items():
            found = {value: summarise_cell(runs) for value, runs in rows.items()}
            paper = question.paper.get(environment)
            title = ENVIRONMENTS[environment].title
            header += [title, f"{title}, gain", *([f"RAGEN's {title}"] if paper else [])]
            columns += [
                {value: _percent(one["success"]) for value, one in found.items()},
                {value: _percent(one["gain"], signed=True) for value, one in found.items()},
                *([{value: f"{percent:.1f}" for value, percent in paper.items()}] if paper else []),
            ]
        tried = [value for value in question.values if any(value in rows for rows in tables.values())]
        return markdown_table(
            header, [[str(value), *(column.get(value, "–") for column in columns)] for value in tried]
        )


def summarise_cell(runs: Runs) -> dict[str, Estimate]:
    """Held-out success before and after training, the gain within each seed, and what the last steps sampled."""
    success = [read_column(run, "evaluate", "evaluate/success") for run in runs]
    return {
        "before": estimate_mean([one[0] for one in success]),
        "success": estimate_mean([one[-1] for one in success]),
        "gain": estimate_mean([one[-1] - one[0] for one in success]),
        "sampled": estimate_mean([read_curve(run).final for run in runs]),
    }


def _percent(share: Estimate, *, signed: bool = False) -> str:
    """In percent, as the paper has it."""
    scaled = Estimate(mean=100 * share.mean, low=100 * share.low, high=100 * share.high, seeds=share.seeds)
    return scaled.show(1, signed=signed)
