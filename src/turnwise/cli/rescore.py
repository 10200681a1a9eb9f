"""`turnwise rescore`: scores a run's stored trajectories by another reward, without sampling anew."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.arguments import print_line, print_table
from turnwise.errors import RewardError, RunError

if TYPE_CHECKING:
    from turnwise.evaluation.rescore import Rescored

HELP = "score a run's stored trajectories by another reward, without sampling anew"
EXPECTS = "one run directory"
_NAMED_PROBLEMS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "--reward",
        action="append",
        required=True,
        metavar="NAME",
        help="a built-in name, module:function or file.py:function of an Episode; may be given several times",
    )
    parser.add_argument("--step", type=int, help="trajectories of one step")
    parser.add_argument("--stage", choices=("train", "evaluate", "untrained", "sft"), help="those of one stage")
    parser.add_argument("--save", metavar="FILE", help="write a JSON line per trajectory")


def run(options: argparse.Namespace) -> int:
    from turnwise.evaluation.rescore import find_rewards, rescore_now
    from turnwise.runs.directory import RunDirectory
    from turnwise.runs.episodes import read_episodes, trajectory_files

    directory = RunDirectory.open(options.run)
    rewards = find_rewards(options.reward)
    files = trajectory_files(directory, stage=options.stage, step=options.step)
    if not files:
        raise RunError(f"{directory.path}: no trajectories of that kind are stored; list them with: turnwise show")
    scored: list[Rescored] = []
    for path in files:
        stage, _, step = path.stem.rpartition("-")
        scored += rescore_now(read_episodes(directory, stage, int(step)), rewards)
    if all(one.problem for one in scored):
        raise RewardError(f"none of {len(scored)} trajectories could be scored; the first: {scored[0].problem}")
    _print(scored)
    if options.save:
        Path(options.save).write_text("".join(_line(one) + "\n" for one in scored), encoding="utf-8")
        print_line(f"{len(scored)} lines in {options.save}")
    return 0


def _print(scored: "list[Rescored]") -> None:
    from rich.table import Table

    from turnwise.evaluation.rescore import summarise

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("trajectories")
    for title in ("scored", "left out", "reward then", "reward now", "groups that teach then", "now"):
        table.add_column(title, justify="right")
    for one in summarise(scored):
        table.add_row(
            f"{one.stage}-{one.step}",
            str(one.scored),
            str(one.left_out),
            *(f"{mean:.4g}" if one.scored else "–" for mean in (one.reward, one.rescored)),
            f"{one.teaching} of {one.groups}",
            f"{one.teaching_now} of {one.groups}",
        )
    print_table(table)
    raised = [each for each in scored if each.problem and not each.problem.startswith("it failed")]
    for each in raised[:_NAMED_PROBLEMS]:
        print_line(f"left out: {each.name}: {each.problem}")
    if len(raised) > _NAMED_PROBLEMS:
        print_line(f"left out: {len(raised) - _NAMED_PROBLEMS} more; --save FILE writes each with its reason")


def _line(one: "Rescored") -> str:
    fields = {"trajectory": one.name, "task": one.task_id, "reward": one.reward, "rescored": dict(one.scores)}
    return json.dumps({**fields, **({"left_out": one.problem} if one.problem else {})}, ensure_ascii=False)
