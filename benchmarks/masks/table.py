"""A fork, a road and a door, token by token, for a policy that is a table; trained by the real learner.

Invariant: what is on the road says nothing of the choice, and a policy that looks at one token can play perfectly, so
what is learnt is a matter of credit alone. Success is computed from the table, not sampled.
"""

import random
from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import nn

from benchmarks.harness.jobs import JobFolders, JobResult
from turnwise.credit.settings import CreditSettings
from turnwise.learner.learner import Learner
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings
from turnwise.losses.settings import LossSettings
from turnwise.types import Group, Json, StopReason, Task, Trajectory, Turn

SIGNS, WAYS, DOOR, KNOCK, SIGHTS = range(4), range(4, 8), 8, 9, range(10, 26)
_VOCABULARY = 26
_KNOWN = 4.0
"""The logit of words that fit, at the start: the ways after a sign, the knock at the door; 0 elsewhere."""
EPISODES, ROAD, LAM, LR = 16, 40, 0.9, 0.1
"""Episodes for each sign, tokens of the road, λ, and the learning rate of policy and critic."""


class TablePolicy(nn.Module):
    """The logits after a token are a row of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=_VOCABULARY, hidden_size=_VOCABULARY)
        self.table = _Table()

    def get_decoder(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table.rows[input_ids])


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=_VOCABULARY, hidden_size=_VOCABULARY)
        rows = torch.zeros(_VOCABULARY, _VOCABULARY)
        rows[list(SIGNS), WAYS[0] : WAYS[-1] + 1] = _KNOWN
        rows[DOOR, KNOCK] = _KNOWN
        self.rows = nn.Parameter(rows)

    def forward(
        self, input_ids: torch.Tensor, use_cache: bool, position_ids: torch.Tensor | None = None
    ) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.rows[input_ids])


def learn(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of one row and seed: `{"success": [.2, .21, ...]}`, before training and after every update."""
    seed, steps = settings["seed"], settings["steps"]
    assert isinstance(seed, int)
    assert isinstance(steps, int)
    policy, rng = TablePolicy(), random.Random(seed)
    meaning = rng.sample(list(WAYS), len(SIGNS))
    optimizer = OptimizerSettings(lr=LR)
    learner = Learner(
        policy,
        settings=LearnerSettings(optimizer=optimizer, critic=CriticSettings(optimizer=optimizer)),
        credit=CreditSettings(estimator="gae", lam=LAM, advantage_mask=bool(settings["advantage_mask"])),
        loss=LossSettings(action_mask=bool(settings["action_mask"])),
        temperature=1.0,
        total_steps=steps,
        device=torch.device("cpu"),
    )
    success: list[Json] = [exact_success(policy, meaning)]
    for step in range(steps):
        learner.update([_play(policy, sign, meaning[sign], rng, learner.version) for sign in SIGNS], seed=step)
        success.append(exact_success(policy, meaning))
    return {"success": success}


def exact_success(policy: TablePolicy, meaning: list[int]) -> float:
    """The probability of a right way and a knock, over all signs alike."""
    probability = policy.table.rows.detach().softmax(-1)
    right = [float(probability[sign, way]) for sign, way in zip(SIGNS, meaning, strict=True)]
    return sum(right) / len(right) * float(probability[DOOR, KNOCK])


def _play(policy: TablePolicy, sign: int, right: int, rng: random.Random, version: int) -> Group:
    logprobs = policy.table.rows.detach().log_softmax(-1)
    task = Task(id=f"sign-{sign}")
    episodes = []
    for _ in range(EPISODES):
        way, last = _draw(logprobs[sign], rng), _draw(logprobs[DOOR], rng)
        road = tuple(rng.choice(SIGHTS) for _ in range(ROAD))
        paid = float(way == right and last == KNOCK)
        turns = (
            _turn((sign,), way, float(logprobs[sign, way]), version, opens=True),
            _turn((*road, DOOR), last, float(logprobs[DOOR, last]), version, reward=paid),
        )
        episodes.append(Trajectory(task=task, turns=turns, stop=StopReason.DONE))
    return Group(task=task, trajectories=tuple(episodes))


def _draw(logprobs: torch.Tensor, rng: random.Random) -> int:
    return rng.choices(range(_VOCABULARY), weights=logprobs.exp().tolist())[0]


def _turn(
    context: tuple[int, ...], action: int, logprob: float, version: int, *, opens: bool = False, reward: float = 0.0
) -> Turn:
    return Turn(
        context_ids=context,
        action_ids=(action,),
        logprobs=(logprob,),
        rewards={"game": reward},
        opens_row=opens,
        version=version,
    )
