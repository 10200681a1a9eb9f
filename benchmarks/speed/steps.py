"""Our side of whole training steps: the work of `benchmarks/peers/trl_workload.py`, through the parts of any run.

Invariant: environment, renderer, rollout, engine and learner are those of `turnwise train`, with their own defaults.
The workload fixes two things for both sides: every turn has its full length, and is parsed as a call of the tool.
"""

import asyncio
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks.harness.machine import describe_machine
from benchmarks.speed.episodes import Shape
from benchmarks.speed.models import TINY, make_model
from turnwise.agents import PolicyAgent
from turnwise.credit.settings import CreditSettings
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.settings import LocalEngineSettings
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings, OptimizerSettings
from turnwise.losses.settings import LossSettings
from turnwise.render import ChatRender, RenderSettings
from turnwise.rollout import Limits, run_groups
from turnwise.seeds import derive_seed
from turnwise.tools import tool
from turnwise.types import Group, Json, Message, Task, ToolCall, ToolResult

QUESTION = "I am thinking of a number from 1 to 10. Find it with the guess tool."
ANSWERS = ("higher", "lower", "equal")
NUMBERS = 10
_FILLER = " a"
"""A word of one token, in any tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is run, step after step."""

    shape: Shape
    warmup: int
    """Steps before those that count."""
    steps: int
    seed: int
    learning_rate: float

    @classmethod
    def read(cls, settings: Mapping[str, Json]) -> "Workload":
        """From a job's settings, whose names are those of the peer's options."""
        prompts, generations, turns, turn, prompt, observation, warmup, steps, seed = (
            _whole(settings, name)
            for name in (
                *("prompts", "generations", "turns", "turn-tokens", "prompt-tokens", "observation-tokens"),
                *("warmup", "steps", "seed"),
            )
        )
        shape = Shape(
            groups=prompts, members=generations, prompt=prompt, turns=turns, turn=turn, observation=observation
        )
        rate = settings["learning-rate"]
        assert isinstance(rate, float)
        return cls(shape=shape, warmup=warmup, steps=steps, seed=seed, learning_rate=rate)


class GuessEnv(ToolEnv):
    """Guess a number with a tool that says higher or lower; the reward is how much nearer a guess comes."""

    def __init__(self, *, question: str, answers: Mapping[str, str], turns: int, tasks: int) -> None:
        super().__init__(
            tasks=[Task(id=f"number-{index}", seed=index, data={"question": question}) for index in range(tasks)],
            process={"nearer": 1.0},
            max_turns=turns,
        )
        self._answers = answers

    def begin(self, task: Task, episode_seed: int) -> None:
        self._number = derive_seed(task.seed, "number") % NUMBERS + 1
        self._distance = NUMBERS - 1

    @tool(quick=True)
    def guess(self, n: int) -> ToolResult:
        """Guess the hidden number.

        Args:
            n: The number guessed, from 1 to 10.
        """
        distance = min(self._distance, abs(n - self._number))
        nearer, self._distance = (self._distance - distance) / (NUMBERS - 1), distance
        word = "equal" if n == self._number else "higher" if n < self._number else "lower"
        return ToolResult(content=self._answers[word], rewards={"nearer": nearer})


class ForcedCalls(ChatRender):
    """A renderer for a random model, which neither ends its turns nor calls a tool: the renderer does both."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """None, so that every turn has its full length."""
        return ()

    def extend(self, action_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """As after a turn that sampled its end token: the peer adds none that was not sampled, so neither do we."""
        return super().extend(super().stop_ids[:1], messages)

    def parse(self, action_ids: Sequence[int]) -> Message:
        """The parsed message, with a guess made of its ids as its tool call."""
        arguments = json.dumps({"n": sum(action_ids) % NUMBERS + 1})
        return replace(
            super().parse(action_ids), tool_calls=(ToolCall(id="call-0", name="guess", arguments=arguments),)
        )


def measure_steps(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Seconds of every step after the warm-up, and of its two halves; and what each trajectory held."""
    workload = Workload.read(settings)
    tokenizer = AutoTokenizer.from_pretrained(Path(str(settings["tokenizer"])))
    model = make_model({"model": TINY, "device": "cpu", "dtype": "float32", "seed": workload.seed})
    halves = asyncio.run(_train(workload, model, tokenizer))[workload.warmup :]
    shape = workload.shape
    return {
        "trajectories": shape.episodes,
        "step_seconds": [rollout + update for rollout, update in halves],
        "rollout_seconds": [rollout for rollout, _ in halves],
        "update_seconds": [update for _, update in halves],
        "prompt_tokens": shape.prompt,
        "completion_tokens": shape.longest,
        "sampled_tokens": shape.sampled,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "threads": torch.get_num_threads(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "versions": describe_machine()["versions"],
    }


async def _train(
    workload: Workload, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> list[tuple[float, float]]:
    """Seconds of rollout and of update, step by step; that every trajectory has its shape is checked in between."""
    shape = workload.shape
    render = ForcedCalls(tokenizer, RenderSettings())
    env = fit_env(shape, render)
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=shape.episodes))
    policy = PolicyAgent(engine=engine, render=render)
    learner = Learner(
        model,
        settings=LearnerSettings(optimizer=OptimizerSettings(lr=workload.learning_rate)),
        credit=CreditSettings(estimator="grpo"),
        loss=LossSettings(),
        temperature=policy.decoding.temperature,
        total_steps=workload.warmup + workload.steps,
        device=torch.device("cpu"),
    )
    seconds: list[tuple[float, float]] = []
    for step in range(workload.warmup + workload.steps):
        began = time.perf_counter()
        groups = await _sample(policy, engine, model, env, workload, step)
        sampled = time.perf_counter()
        learner.update(groups, seed=derive_seed(workload.seed, "update", step))
        seconds.append((sampled - began, time.perf_counter() - sampled))
        shape.check(groups)
    return seconds


async def _sample(
    policy: PolicyAgent, engine: LocalEngine, model: PreTrainedModel, env: GuessEnv, workload: Workload, step: int
) -> list[Group]:
    await engine.load(model.state_dict(), step)
    seed = derive_seed(workload.seed, "rollout", step)
    shape = workload.shape
    limits = Limits(max_turns=shape.turns, turn_tokens=shape.turn)
    return await run_groups(policy, env, env.tasks("train"), group_size=shape.members, seed=seed, limits=limits)


def fit_env(shape: Shape, render: ChatRender) -> GuessEnv:
    """The environment whose texts come to the workload's token counts, by this renderer."""
    plain = GuessEnv(question=QUESTION, answers={word: word for word in ANSWERS}, turns=shape.turns, tasks=1)

    def count_prompt(text: str) -> int:
        return len(render.start([Message(role="user", content=text)], plain.tools))

    def count_answer(text: str) -> int:
        return len(render.extend((), [Message(role="tool", content=text, tool_call_id="call-0", name="guess")]))

    answers = {word: fit_text(word, shape.observation, count_answer) for word in ANSWERS}
    question = fit_text(QUESTION, shape.prompt, count_prompt)
    return GuessEnv(question=question, answers=answers, turns=shape.turns, tasks=shape.groups)


def fit_text(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The text with as many words after it as bring it to exactly this many tokens."""
    for words in range(tokens + 1):
        if count(fitted := text + _FILLER * words) == tokens:
            return fitted
    raise ConfigError(f"--tokenizer: '{text}' does not come to {tokens} tokens: it has {count(text)} already")


def _whole(settings: Mapping[str, Json], name: str) -> int:
    value = settings[name]
    assert isinstance(value, int), name
    return value
