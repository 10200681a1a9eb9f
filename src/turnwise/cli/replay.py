"""`turnwise replay`: plays a stored trajectory again up to a turn, and on from there another way."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.arguments import add_overrides, print_line
from turnwise.errors import ConfigError, RunError

if TYPE_CHECKING:
    from turnwise.runs.episodes import StoredEpisode

HELP = "branch a stored trajectory: another checkpoint, temperature, tool result or move from a turn on"
EXPECTS = "one run directory, a trajectory, and overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "trajectory", help="such as train-12/3/1 (`turnwise show` lists them), or a file that --save wrote"
    )
    add_overrides(parser, "a.b=c", "such as rollout.max_turns=12")
    parser.add_argument("--from-turn", type=int, required=True, metavar="K", help="the first turn to play anew, from 1")
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="whose weights play on (default: the newest)")
    parser.add_argument("--temperature", type=float, metavar="T", help="(default: that of the trajectory's stage)")
    parser.add_argument("--seed", type=int, metavar="N", help="another draw of the turns that are sampled anew")
    parser.add_argument("--edit-result", metavar="TEXT", help="what turn K reads in place of the last tool's result")
    parser.add_argument("--action", metavar="TEXT", help="your own move in turn K, as the assistant would write it")
    parser.add_argument("--turns", type=int, metavar="N", help="play at most so many turns from there (default: all)")
    parser.add_argument("--save", metavar="FILE", help="write the branch to a Parquet file")
    parser.add_argument(
        "--trust", action="store_true", help="run Python that the run's config names, though it was not made here"
    )


def run(options: argparse.Namespace) -> int:
    from turnwise.runs.directory import RunDirectory
    from turnwise.targets import load_target

    if options.turns is not None and options.turns < 1:
        raise ConfigError("--turns: give 1 or more")
    directory = RunDirectory.open(options.run)
    stored = _find_stored(directory.path, options.trajectory)
    model = None
    if options.checkpoint is not None:
        model = str(directory.checkpoints / f"step-{options.checkpoint:06d}")
        if not Path(model).is_dir():
            there = ", ".join(str(int(path.name[5:])) for path in sorted(directory.checkpoints.glob("step-*")))
            raise RunError(f"--checkpoint {options.checkpoint}: not there; this run keeps: {there or 'none'}")
    config = load_target(options.run, options.overrides, model=model, trust=options.trust)
    from rich.console import Console

    from turnwise.agents.replay import Changes
    from turnwise.runs.transcript import print_transcript
    from turnwise.training.replay import BranchPoint, branch_episode

    changes = Changes(seed=options.seed, edit_result=options.edit_result, action=options.action)
    point = BranchPoint(
        from_turn=options.from_turn, temperature=options.temperature, turns=options.turns, changes=changes
    )
    branch = branch_episode(config, stored, point)
    print_transcript(Console(), branch.episode)
    if branch.diverged is not None:
        print_line(f"not the same episode: what turn {branch.diverged + 1} read is not what the stored one read")
    print_line(
        f"reward {branch.trajectory.reward:+g}, was {stored.trajectory.reward:+g}; {_compare(stored, branch.episode)}"
    )
    if options.save:
        branch.save(Path(options.save))
        print_line(f"saved to {options.save}")
    return 0


def _find_stored(folder: Path, name: str) -> "StoredEpisode":
    from turnwise.runs.directory import RunDirectory
    from turnwise.runs.episodes import read_episode, read_episode_file

    return read_episode_file(Path(name)) if name.endswith(".parquet") else read_episode(RunDirectory(folder), name)


def _compare(stored: "StoredEpisode", branch: "StoredEpisode") -> str:
    from turnwise.runs.episodes import first_difference

    differs = first_difference(stored, branch)
    if differs is None:
        turns = len(stored.trajectory.turns), len(branch.trajectory.turns)
        return (
            "the same turns"
            if turns[0] == turns[1]
            else f"the same as far as both go ({turns[1]} turns, were {turns[0]})"
        )
    return f"it differs first in turn {differs.turn + 1}, {differs.part} token {differs.place + 1}"
