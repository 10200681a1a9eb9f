"""Runs that sample while they learn, and whether each of their tokens names the weights that sampled it.

python -m stale_runs vllm FOLDER        a run in a process of its own, which an engine of vLLM's needs
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tiny_runs import SMALLEST, Signals, Silent, model_folder, tiny_config
from turnwise.config import Config
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.vllm.engine import VLLMEngine
from turnwise.learner.learner import Learner
from turnwise.runs import RunDirectory
from turnwise.runs.store import read_trajectories
from turnwise.seeds import derive_seed
from turnwise.stability.controller import Action
from turnwise.training.trainer import Trainer, run_training
from turnwise.types import Group, Message, Step

ROLLOUT = {"groups_per_step": 2, "group_size": 4, "turn_tokens": 24, "max_turns": 2, "staleness": 1}
STEPS = 4


class Paid(Signals):
    """Pays for the number of characters, so that a policy that knows nothing still learns something."""

    async def step(self, message: Message) -> Step:
        step = await super().step(message)
        paid = {"length": len(message.content) / 50}
        return Step(messages=step.messages, rewards=paid, done=step.done, metrics=step.metrics)


def stale_config(**sections: object) -> Config:
    """Steps that change the weights much, each of them saved; heads of 32, the smallest that vLLM has on a CPU."""
    base = {
        "model": {"small": {**SMALLEST, "width": 64, "positions": 128}},
        "steps": STEPS,
        "rollout": ROLLOUT,
        "checkpoint": {"every": 1, "keep": 99},
        "learner": {"optimizer": {"lr": 0.03}},
        "evaluate": {"tasks": 2, "every": 2},
    }
    return tiny_config(**{**base, **sections})


def run_stale(folder: Path, *, kind: str = "local") -> RunDirectory:
    """A run whose turns are under way when an update ends: a turn takes a quarter of a second, an update less."""
    learn = Learner.learn
    decoder, name = (LocalEngine, "_decode") if kind == "local" else (VLLMEngine, "_step")
    decode = getattr(decoder, name)

    def learn_slowly(self, batch, *, seed):
        update = learn(self, batch, seed=seed)
        time.sleep(0.05)
        return update

    def decode_slowly(self):
        time.sleep(0.01)
        return decode(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "learn", learn_slowly)
        patch.setattr(decoder, name, decode_slowly)
        return run_training(stale_config(engine={"kind": kind}), folder, env=Paid(), display=Silent())


def roll_back_once(patch: pytest.MonkeyPatch) -> None:
    """Has a run go back to its first step after its second."""
    decide = Trainer._decide

    def decide_to(self, step, *measured):
        decision = decide(self, step, *measured)
        action = Action(kind="enable_starpo_s", step=2, rollback_to=1) if step == 2 else None
        return replace(decision, action=action, keep_checkpoints=frozenset({0, 1}))

    patch.setattr(Trainer, "_decide", decide_to)


def groups_of(run: RunDirectory, step: int) -> list[Group]:
    return read_trajectories(run.trajectory_file("train", step))


def assert_every_seed_once(run: RunDirectory, steps: int) -> None:
    """Each episode that the stream of these steps asks for is stored, and none twice."""
    seeds = [
        one.episode_seed for step in range(1, steps + 1) for group in groups_of(run, step) for one in group.trajectories
    ]
    groups, size, stream = steps * ROLLOUT["groups_per_step"], ROLLOUT["group_size"], derive_seed(0, "stream")
    assert sorted(seeds) == sorted(
        derive_seed(stream, "luck", number, member) for number in range(groups) for member in range(size)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What the tokens of a run say of the weights that sampled them."""

    ages: set[int]
    """In steps, of all tokens that were learnt from."""
    mixed_turns: int
    """Turns that two versions sampled."""
    mixed_episodes: int
    """Episodes whose turns do not all begin with one version."""
    wrong_by_turn: float
    """How far a logprob is off where the whole turn is said to be its first token's."""


def check_versions(run: RunDirectory, steps: int) -> Versions:
    """Holds every logprob to a plain forward of the checkpoint that its token names; every step was saved."""
    models = [AutoModelForCausalLM.from_pretrained(model_folder(run, step)).eval() for step in range(steps)]
    ages, mixed_turns, mixed_episodes, wrong = set(), 0, 0, 0.0
    for step in range(1, steps + 1):
        for trajectory in (one for group in groups_of(run, step) for one in group.trajectories):
            ids = [token for turn in trajectory.turns for token in (*turn.context_ids, *turn.action_ids)]
            with torch.no_grad():
                tables = [model(torch.tensor([ids])).logits[0].log_softmax(-1) for model in models]
            mixed_episodes += len({turn.version for turn in trajectory.turns}) > 1
            place = 0
            for turn in trajectory.turns:
                place += len(turn.context_ids)
                mixed_turns += len(turn.versions) > 1
                for token, logprob, version in zip(turn.action_ids, turn.logprobs, turn.token_versions, strict=True):
                    ages.add(step - 1 - version)
                    assert float(tables[version][place - 1, token]) == pytest.approx(logprob, abs=2e-4)
                    wrong = max(wrong, abs(float(tables[turn.version][place - 1, token]) - logprob))
                    place += 1
    return Versions(ages=ages, mixed_turns=mixed_turns, mixed_episodes=mixed_episodes, wrong_by_turn=wrong)


if __name__ == "__main__":
    run_stale(Path(sys.argv[2]), kind=sys.argv[1])
