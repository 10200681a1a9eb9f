"""Makes runs of any size for the studio to open, with the files and columns of real ones.

Invariant: the same arguments make the same files. Each trajectory has four turns, and reads and samples as many tokens
as asked for in all; a needle in a few of them is there for a search to find.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from turnwise.runs.directory import RunDirectory
from turnwise.runs.store import write_trajectories
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

NEEDLE: Final = "a heron over the weir"
_WORDS: Final = (
    "search",
    "the",
    "capital",
    "of",
    "Fenmark",
    "river",
    "is",
    "Oslo",
    "found",
    "north",
    "answer",
    "bridge",
)
_TURNS: Final = 4
_FIRST_WORD: Final = 2


def make_run(path: Path, *, trajectories: int, tokens: int, per_step: int = 200, group_size: int = 8) -> RunDirectory:
    """A finished run with so many trajectories of so many tokens, in files of `per_step`."""
    rng = random.Random(0)
    run = RunDirectory.create(path, "env: {name: encyclopedia}\nsteps: 100\ncredit: {estimator: grpo}\n")
    for step in range(1, max(1, trajectories // per_step) + 1):
        groups = [_make_group(rng, step, place, group_size, tokens) for place in range(per_step // group_size)]
        sampled = {
            (g, m): [rng.gauss(0, 1) for _ in range(one.action_tokens)]
            for g, group in enumerate(groups)
            for m, one in enumerate(group.trajectories)
        }
        columns = dict.fromkeys(("advantages", "learner_logprobs", "entropies"), sampled)
        write_trajectories(run.trajectory_file("train", step), step, groups, columns, _decode)
    return run


def write_metrics(run: RunDirectory, *, steps: int, names: int = 130, curves: Sequence[str] = ()) -> None:
    """Metrics of so many steps, with as many names as a real run has; `curves` are further ones."""
    rng = random.Random(0)
    with run.metrics.open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            record: dict[str, float | str] = {"step": step, "stage": "train", "time": 1.8e9 + 3.0 * step}
            record |= {
                "rollout/reward": rng.random(),
                "rollout/episodes": 256.0,
                "rollout/failed": float(step % 7 == 0),
            }
            record |= {f"made/metric_{name}": rng.random() for name in range(names)}
            record |= {name: rng.random() for name in curves if not name.startswith("evaluate/")}
            record |= {
                f"ledger/{name}_seconds": rng.random() for name in ("decode", "prefill", "update", "environment")
            }
            file.write(json.dumps({**record, "ledger/wall_seconds": 2.0}) + "\n")
            if step % 20 == 0:
                file.write(json.dumps(_evaluation(step, rng)) + "\n")
        file.write(json.dumps({"step": steps, "stage": "end", "time": 1.8e9 + 3.0 * steps}) + "\n")


def _evaluation(step: int, rng: random.Random) -> Mapping[str, float | str]:
    success = rng.random()
    head: dict[str, float | str] = {"step": step, "stage": "evaluate", "time": 1.8e9 + 3.0 * step}
    interval = {"evaluate/success_low": success - 0.05, "evaluate/success_high": success + 0.05}
    return {**head, "evaluate/success": success, **interval}


def _make_group(rng: random.Random, step: int, place: int, size: int, tokens: int) -> Group:
    task = Task(id=f"train-{rng.randrange(5000)}", data={"question": f"What is the capital of land {place}?"})
    return Group(task=task, trajectories=tuple(_make_trajectory(rng, task, tokens) for _ in range(size)))


def _make_trajectory(rng: random.Random, task: Task, tokens: int) -> Trajectory:
    half = tokens // (2 * _TURNS)
    needle = rng.random() < 0.001
    turns = []
    for number in range(_TURNS):
        action = [rng.randrange(_FIRST_WORD, len(_WORDS) + _FIRST_WORD) for _ in range(half)]
        if needle and number == 1:
            action[3] = 1
        last = number == _TURNS - 1
        turns.append(
            Turn(
                context_ids=tuple(rng.randrange(_FIRST_WORD, len(_WORDS) + _FIRST_WORD) for _ in range(half)),
                action_ids=tuple(action),
                logprobs=tuple(-rng.random() for _ in range(half)),
                rewards={"exact_match": float(rng.random() < 0.4)} if last else {"found": 0.1},
                version=number,
                opens_row=number == 0,
            )
        )
    stop = rng.choice([StopReason.DONE] * 8 + [StopReason.MAX_TURNS, StopReason.ENV_FAILED])
    failure = (
        f"task '{task.id}': step: KeyError: 'gold' (made.py:41 in solved)" if stop is StopReason.ENV_FAILED else ""
    )
    metrics = {"success": float(turns[-1].reward > 0.5), "tool_errors": float(rng.random() < 0.1)}
    return Trajectory(task=task, turns=tuple(turns), stop=stop, metrics=metrics, failure=failure, seconds=rng.random())


def _decode(ids: Sequence[int]) -> str:
    return " ".join(NEEDLE if one == 1 else _WORDS[one - _FIRST_WORD] for one in ids)
