"""What a trajectory costs as its turns grow: one row for all turns, against one row per turn with all that came before.

Invariant: both layouts train on the very same trajectories, with the same learner; only the rows differ. A row per turn
reads the beginning of a conversation again for every turn, so its tokens grow with the square of the turns.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.speed.episodes import Shape, play
from benchmarks.speed.models import make_model, vocabulary_of
from benchmarks.speed.turns import read_shape
from turnwise.credit.settings import CreditSettings
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.settings import LocalEngineSettings
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.seeds import derive_seed
from turnwise.types import Group, Json, Trajectory

ONE_ROW, ROW_PER_TURN = "one-row", "row-per-turn"
LAYOUTS = (ONE_ROW, ROW_PER_TURN)


def measure_growth(settings: Mapping[str, Json]) -> dict[str, Json]:
    """`{"turns": [2, 4], "rollout_seconds": [...], "one-row": {"tokens": [...], "update_seconds": [...]}, ...}`.

    Everything is per trajectory. Seconds are medians over rounds through all numbers of turns, so that a machine which
    is slow for a while is slow for all of them.
    """
    model = make_model(settings)
    every, repeats = settings["turns"], settings["repeats"]
    assert isinstance(every, Sequence)
    assert isinstance(repeats, int)
    shapes = [replace(read_shape(settings), turns=int(str(turns))) for turns in every]
    longest = shapes[-1]
    context = longest.prompt + longest.longest + longest.observation
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=longest.episodes), context_limit=context)
    learner = Learner(
        model,
        settings=LearnerSettings(),
        credit=CreditSettings(estimator="grpo"),
        loss=LossSettings(),
        temperature=1.0,
        total_steps=1,
        device=model.device,
    )
    meter = _GrowthMeter(engine=engine, learner=learner, vocabulary=vocabulary_of(model))
    meter.measure(shapes[0], 0)  # to warm up
    rounds = [[meter.measure(shape, number) for shape in shapes] for number in range(repeats)]
    found = [
        {name: statistics.median(one[name] for one in of_shape) for name in of_shape[0]}
        for of_shape in zip(*rounds, strict=True)
    ]
    columns: dict[str, Json] = {"turns": [shape.turns for shape in shapes]}
    columns["rollout_seconds"] = [one["rollout_seconds"] for one in found]
    for layout in LAYOUTS:
        names = ("tokens", "update_seconds")
        columns[layout] = {name: [one[f"{layout}/{name}"] for one in found] for name in names}
    return columns


class _GrowthMeter:
    """An engine and a learner that share a model, timed on shapes of more and more turns."""

    def __init__(self, *, engine: LocalEngine, learner: Learner, vocabulary: int) -> None:
        self._engine, self._learner, self._vocabulary = engine, learner, vocabulary

    def measure(self, shape: Shape, number: int) -> dict[str, float]:
        """The cost of one trajectory of this shape, by name, in one round."""
        groups, took = asyncio.run(self._play(shape, seed=derive_seed(shape.turns, number)))
        costs = {"rollout_seconds": took / shape.episodes}
        for layout in LAYOUTS:
            laid_out = lay_out(groups, layout)
            costs[f"{layout}/update_seconds"] = self._learn(laid_out) / shape.episodes
            costs[f"{layout}/tokens"] = count_tokens(laid_out)
        return costs

    async def _play(self, shape: Shape, *, seed: int) -> tuple[list[Group], float]:
        await self._engine.load(self._learner.model.state_dict(), self._learner.version)
        return await play(self._engine, shape, self._vocabulary, seed=seed)

    def _learn(self, groups: Sequence[Group]) -> float:
        began = time.perf_counter()
        self._learner.update(groups, seed=0)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began


def lay_out(groups: Sequence[Group], layout: str) -> list[Group]:
    """The same trajectories, in one row each or in a row per turn."""
    if layout == ONE_ROW:
        return list(groups)
    return [
        replace(group, trajectories=tuple(open_row_per_turn(one) for one in group.trajectories)) for group in groups
    ]


def open_row_per_turn(trajectory: Trajectory) -> Trajectory:
    """Every turn of an episode that only grew, with the whole conversation before it as its context."""
    history: list[int] = []
    turns = []
    for turn in trajectory.turns:
        history += turn.context_ids
        turns.append(replace(turn, context_ids=tuple(history), opens_row=True))
        history += turn.action_ids
    return replace(trajectory, turns=tuple(turns), tail_ids=())


def count_tokens(groups: Sequence[Group]) -> float:
    """Tokens that an update reads for one trajectory, in the mean."""
    played = [trajectory for group in groups for trajectory in group.trajectories]
    return sum(len(row) for one in played for row in one.rows(tail=False)) / len(played)


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The b of y = a·xᵇ, by least squares of the logarithms: 1 where cost grows with turns, 2 with their square."""
    return statistics.linear_regression(list(map(math.log, x)), list(map(math.log, y))).slope
