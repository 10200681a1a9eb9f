"""Faults that the field has shipped, planted one at a time, and what the doctor must call each.

    python tests/support/doctor_faults.py

prints the table of docs/doctor.md: every fault is planted and the findings are what the doctor said.
"""

import asyncio
import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import turnwise.doctor.predictions
import turnwise.learner.batch
import turnwise.learner.learner
import turnwise.training.disk
from tiny_runs import SMALLEST, Signals, tiny_data
from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.settings import check_settings
from turnwise.config import Config, check_config
from turnwise.doctor.examination import Examination
from turnwise.doctor.preflight import examine_parts
from turnwise.doctor.recipe import examine_named
from turnwise.engines import Engine, make_engine
from turnwise.envs import ToolEnv
from turnwise.errors import EnvError
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.rewards import reward
from turnwise.settings import parse_settings
from turnwise.tools import tool
from turnwise.tools.sandbox import CodeResult, ExitKind, Resource, SandboxSettings
from turnwise.training.build import Components, assemble
from turnwise.types import Message, Step, Task, ToolCall

TEMPERATURE = 0.7
_SECTIONS = {
    "model": {"small": {**SMALLEST, "positions": 96}},
    "steps": 20,
    "rollout": {"groups_per_step": 4, "group_size": 4, "turn_tokens": 12, "max_turns": 3, "temperature": TEMPERATURE},
}


class Shop(ToolEnv):
    """A price is looked up and told: one tool, two rewards, an expert."""

    def __init__(self) -> None:
        tasks = {
            split: [
                {"question": f"What does {item} {split} cost?", "price": str(place)} for place, item in enumerate(ITEMS)
            ]
            for split in ("train", "test")
        }
        super().__init__(tasks=tasks)

    def begin(self, task: Task, episode_seed: int) -> None:
        self.task, self.asked = task, False

    @tool(quick=True)
    def look_up(self, item: str) -> str:
        """Looks up a price.

        Args:
            item: What to look up.
        """
        self.asked = True
        return str(self.task.data["price"])

    @reward
    def right(self, episode) -> float:
        """The price."""
        return float(episode.answer == self.task.data["price"])

    @reward(weight=0.1)
    def asked_first(self, episode) -> float:
        """Whether the price was looked up."""
        return float(self.asked)

    def expert(self) -> Message:
        if self.asked:
            return Message(role="assistant", content=str(self.task.data["price"]))
        call = ToolCall(id="call-0", name="look_up", arguments='{"item": "it"}')
        return Message(role="assistant", content="", tool_calls=(call,))


SHOP = {
    "model": {"small": {**SMALLEST, "positions": 768}},
    "rollout": {**_SECTIONS["rollout"], "turn_tokens": 64, "groups_per_step": 2, "group_size": 2},
}
ITEMS = ("tea", "ink", "rope", "salt", "wax", "oil", "flax", "corn")


def tiny(**sections: object) -> Config:
    data = tiny_data(**{**_SECTIONS, **sections})
    return check_config(parse_settings(Config, data, source="the test"))


class Patient:
    """A recipe's parts, made once for many faults; its weights are put back after each."""

    def __init__(self, env: Signals | Shop, **sections: object) -> None:
        self.config = tiny(**sections)
        self.env = env
        self.parts = assemble(self.config, env=env)
        with torch.no_grad():  # as sure of its tokens as a trained model: an untrained one finds all of them alike
            self.parts.loaded.model.get_output_embeddings().weight.mul_(3.0)
        self._weights = copy.deepcopy(self.parts.loaded.model.state_dict())

    def examine(self, parts: Components, config: Config) -> Examination:
        examination = Examination(subject="the test", place="recipe")
        examination.add("settings", check_settings(config))
        with tempfile.TemporaryDirectory() as folder:
            try:
                examine_parts(config, parts, examination, folder=Path(folder))
            finally:
                self.parts.loaded.model.load_state_dict(self._weights)
                asyncio.run(self.parts.engine.load(self.parts.loaded.model.state_dict(), 0))
        return examination


@dataclass(slots=True)
class Ward:
    """What a fault may change: the patient's parts and config, and any code, by `patch`."""

    parts: Components
    config: Config
    patch: pytest.MonkeyPatch
    found: list[Diagnosis] = field(default_factory=list)

    def give(self, **changes: object) -> None:
        self.parts = dataclasses.replace(self.parts, **changes)  # type: ignore[arg-type]

    def set(self, **sections: object) -> None:
        self.config = tiny(**sections)


class Wrapped:
    """An engine that behaves as another, but for what a fault changes."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


class StaleWeights(Wrapped):
    """Stamps each version that it is given, and samples with the first weights for ever (TRL #5312)."""

    version = 0

    async def load(self, weights, version):
        self.version = version

    async def generate(self, session, prompt_ids, sampling):
        done = await self.inner.generate(session, prompt_ids, sampling)
        return dataclasses.replace(done, version=self.version, versions=())


class DeafToLoads(Wrapped):
    """Ignores `load`, version and all (SkyRL #1680)."""

    async def load(self, weights, version):
        return


class RawLogprobs(Wrapped):
    """Samples at a temperature and reports logprobs without it, as vLLM does by default."""

    def __init__(self, inner: Engine, model) -> None:
        super().__init__(inner)
        self.model = model

    async def generate(self, session, prompt_ids, sampling):
        done = await self.inner.generate(session, prompt_ids, sampling)
        return dataclasses.replace(done, logprobs=self.logprobs(prompt_ids, done.ids, temperature=1.0))

    def logprobs(self, prompt_ids, ids, *, temperature):
        """By the model's own forward."""
        whole = torch.tensor([*prompt_ids, *ids], device=self.model.device)
        with torch.no_grad():
            logits = self.model(input_ids=whole[None]).logits[0, len(prompt_ids) - 1 : -1].float() / temperature
        chosen = logits.log_softmax(-1).gather(1, whole[len(prompt_ids) :, None])[:, 0]
        return tuple(chosen.tolist())


class ColderThanReported(RawLogprobs):
    """Samples at a lower temperature than it was asked for, and reports as if it had not (pitfall 12)."""

    async def generate(self, session, prompt_ids, sampling):
        done = await self.inner.generate(
            session, prompt_ids, dataclasses.replace(sampling, temperature=sampling.temperature * 0.75)
        )
        told = self.logprobs(prompt_ids, done.ids, temperature=sampling.temperature)
        return dataclasses.replace(done, logprobs=told)


class NaNLogprobs(Wrapped):
    """The last token is forced, and has no logprob (Agent-R1 #30)."""

    async def generate(self, session, prompt_ids, sampling):
        done = await self.inner.generate(session, prompt_ids, sampling)
        return dataclasses.replace(done, logprobs=(*done.logprobs[:-1], float("nan")))


class PositiveLogprobs(Wrapped):
    """Reports the negative of a logprob, as a loss would have it."""

    async def generate(self, session, prompt_ids, sampling):
        done = await self.inner.generate(session, prompt_ids, sampling)
        return dataclasses.replace(done, logprobs=tuple(-one for one in done.logprobs))


class OneSeed(Wrapped):
    """Samples every turn with the same seed, so that groups are copies of one episode."""

    async def generate(self, session, prompt_ids, sampling):
        return await self.inner.generate(session, prompt_ids, dataclasses.replace(sampling, seed=1))


class WrongForward(Wrapped):
    """Reads a prompt without its first token: a cache that is off by one."""

    async def generate(self, session, prompt_ids, sampling):
        return await self.inner.generate(session, list(prompt_ids)[1:] or prompt_ids, sampling)


class OwnTemperature(Wrapped):
    """Ignores the temperature that it is asked for, in sampling and in what it reports."""

    async def generate(self, session, prompt_ids, sampling):
        return await self.inner.generate(session, prompt_ids, dataclasses.replace(sampling, temperature=1.3))


class Rerendering:
    """A renderer whose `extend` writes the whole conversation once more (verl #3720)."""

    def __init__(self, inner) -> None:
        self.inner = inner
        self.opening = ()

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def start(self, messages, tools):
        self.opening = tuple(messages)
        return self.inner.start(messages, tools)

    def extend(self, action_ids, messages):
        return self.inner.start((*self.opening, *messages), ())


class WithoutTools(Rerendering):
    """A chat template that takes tools and writes nothing of them."""

    def start(self, messages, tools):
        return self.inner.start(messages, ())

    def extend(self, action_ids, messages):
        return self.inner.extend(action_ids, messages)


class OddCalls(Rerendering):
    """A template whose calls are Python code, which no parser of ours reads."""

    def start(self, messages, tools):
        return self.inner.start(messages, tools)

    def extend(self, action_ids, messages):
        return self.inner.extend(action_ids, messages)

    def write(self, message):
        return "".join(f"{call.name}(**{call.arguments})" for call in message.tool_calls) or self.inner.write(message)


class ForgetsMessages(OddCalls):
    """A template that writes the last message alone."""

    def write(self, message):
        return self.inner.write(message)

    def start(self, messages, tools):
        return self.inner.start(messages[-1:], tools)


class DropsThinking(OddCalls):
    """A template that strips the thinking of earlier turns, as Qwen3's does (TRL #5109)."""

    def write(self, message):
        return self.inner.write(message)

    def start(self, messages, tools):
        return self.inner.start([dataclasses.replace(message, thinking="") for message in messages], tools)


class DeafToResults(OddCalls):
    """A template that does not know the role of a tool, and leaves its messages out."""

    def write(self, message):
        return self.inner.write(message)

    def extend(self, action_ids, messages):
        kept = [message for message in messages if message.role != "tool"]
        return self.inner.extend(action_ids, kept or [Message(role="user", content="...")])


class NoWalls:
    """A sandbox that guards nothing."""

    settings = SandboxSettings(isolation="none")
    gaps = tuple(Resource)

    async def run(self, code: str) -> CodeResult:
        return CodeResult(exit=ExitKind.FINISHED, output="")

    async def close(self) -> None:
        return


@contextmanager
def _changed_env(env: Signals | Shop, **attributes: object) -> Iterator[object]:
    twin = copy.copy(env)
    for name, value in attributes.items():
        object.__setattr__(twin, name, value)
    yield twin


def _pay(ward: Ward, pay: Callable[[Step, Task], dict[str, float]]) -> None:
    """Signals with other rewards."""

    class Paying(Signals):
        async def reset(self, task, episode_seed):
            self.task = task
            return await super().reset(task, episode_seed)

        async def step(self, message):
            step = await super().step(message)
            return dataclasses.replace(step, rewards=pay(step, self.task))

    ward.give(env=Paying())


def stale_weights(ward: Ward) -> None:
    model = copy.deepcopy(ward.parts.loaded.model)
    inner = make_engine(ward.config.engine, model, context_limit=ward.parts.engine.context_limit)
    ward.give(engine=StaleWeights(inner))


def stale_version(ward: Ward) -> None:
    ward.give(engine=DeafToLoads(ward.parts.engine))


def raw_logprobs(ward: Ward) -> None:
    ward.give(engine=RawLogprobs(ward.parts.engine, ward.parts.loaded.model))


def colder(ward: Ward) -> None:
    ward.give(engine=ColderThanReported(ward.parts.engine, ward.parts.loaded.model))


def wrong_forward(ward: Ward) -> None:
    ward.give(engine=WrongForward(ward.parts.engine))


def nan_logprobs(ward: Ward) -> None:
    ward.give(engine=NaNLogprobs(ward.parts.engine))


def positive_logprobs(ward: Ward) -> None:
    ward.give(engine=PositiveLogprobs(ward.parts.engine))


def own_temperature(ward: Ward) -> None:
    ward.give(engine=OwnTemperature(ward.parts.engine))


def forgets_messages(ward: Ward) -> None:
    ward.give(render=ForgetsMessages(ward.parts.render))


def drops_thinking(ward: Ward) -> None:
    ward.give(render=DropsThinking(ward.parts.render))


def constant_channel(ward: Ward) -> None:
    _pay(ward, lambda step, task: {**step.rewards, "bonus": 0.25 * step.done})


def one_seed(ward: Ward) -> None:
    ward.give(engine=OneSeed(ward.parts.engine))


def slow_engine(ward: Ward) -> None:
    engine = Wrapped(ward.parts.engine)
    engine.slow_reason = "its attention has a bias that the fused forward does not know"
    ward.give(engine=engine)


def learner_temperature(ward: Ward) -> None:
    def at_one(**settings):
        return ForwardRunner(**{**settings, "temperature": 1.0})

    ward.patch.setattr(turnwise.learner.learner, "ForwardRunner", at_one)


def shifted_mask(ward: Ward) -> None:
    _change_batch(ward, lambda batch: {"action": batch.action.roll(1), "trained": batch.trained.roll(1)})


def lost_rewards(ward: Ward) -> None:
    """The mask erases the rewards of every other episode (Agent-R1 #65)."""
    _change_batch(ward, lambda batch: {"reward": batch.reward * (batch.trajectory % 2 == 0)})


def lost_tokens(ward: Ward) -> None:
    """A merged rollout cut at the cap of a turn (rLLM #575)."""
    _change_batch(ward, lambda batch: {"action": batch.action & (batch.turn == 0)})


def misplaced_logprobs(ward: Ward) -> None:
    _change_batch(ward, lambda batch: {"logprob": batch.logprob.roll(1)})


def _change_batch(ward: Ward, change: Callable[[Batch], dict[str, torch.Tensor]]) -> None:
    right = Batch.of.__func__

    def wrong(cls, *args, **settings):
        batch = right(cls, *args, **settings)
        return dataclasses.replace(batch, **change(batch))

    ward.patch.setattr(Batch, "of", classmethod(wrong))


def frozen_optimizer(ward: Ward) -> None:
    """The optimizer was made before the model was copied to its device."""
    right = turnwise.learner.learner.Optimizer

    class Elsewhere(right):
        def __init__(self, module, settings, **rest):
            super().__init__(copy.deepcopy(module), settings, **rest)
            self._own = [p for p in module.parameters() if p.requires_grad]

        def launch(self, step):
            for mine, given in zip(self._parameters, self._own, strict=True):
                mine.grad, given.grad = given.grad, None
            return super().launch(step)

    ward.patch.setattr(turnwise.learner.learner, "Optimizer", Elsewhere)


def zero_gradient(ward: Ward) -> None:
    """A mask of the loss that is 0 everywhere."""
    right = turnwise.learner.learner.policy_objective

    def masked(*args, **settings):
        loss, measures = right(*args, **settings)
        return 0 * loss, measures

    ward.patch.setattr(turnwise.learner.learner, "policy_objective", masked)


def rerendering(ward: Ward) -> None:
    ward.give(render=Rerendering(ward.parts.render))


def tools_left_out(ward: Ward) -> None:
    ward.give(render=WithoutTools(ward.parts.render))


def odd_calls(ward: Ward) -> None:
    ward.give(render=OddCalls(ward.parts.render))


def results_left_out(ward: Ward) -> None:
    ward.give(render=DeafToResults(ward.parts.render))


def broken_tool(ward: Ward) -> None:
    class Broken(Shop):
        @tool(quick=True)
        def look_up(self, item: str) -> str:
            """Looks up a price."""
            self.asked = True
            return str(self.task.data["prise"])

    ward.give(env=Broken())


def unplayable_tasks(ward: Ward) -> None:
    class Partial(Signals):
        async def reset(self, task, episode_seed):
            if task.id.endswith(("3", "6")):
                raise EnvError("it has no question")
            return await super().reset(task, episode_seed)

    ward.give(env=Partial())


def constant_reward(ward: Ward) -> None:
    _pay(ward, lambda step, task: {"right": 0.5})


def reward_of_the_task(ward: Ward) -> None:
    _pay(ward, lambda step, task: {"right": float(step.done) * int(task.id[-1])})


def silent_channel(ward: Ward) -> None:
    _pay(ward, lambda step, task: {**step.rewards, "bonus": 0.0})


def short_turns(ward: Ward) -> None:
    rollout = {**_SECTIONS["rollout"], "turn_tokens": 1}
    ward.set(rollout=rollout)


def short_episodes(ward: Ward) -> None:
    rollout = {**_SECTIONS["rollout"], "max_turns": 1}
    ward.set(rollout=rollout)


def warm_up_for_ever(ward: Ward) -> None:
    ward.set(learner={"optimizer": {"lr": 3e-3, "warmup_steps": 50}})


def full_disk(ward: Ward) -> None:
    usage = SimpleNamespace(free=1000)
    ward.patch.setattr(turnwise.training.disk.shutil, "disk_usage", lambda path: usage)


def little_memory(ward: Ward) -> None:
    ward.patch.setattr(turnwise.doctor.predictions.PeakMemory, "available", lambda self: 1e6)


def no_walls(ward: Ward) -> None:
    env = copy.copy(ward.parts.env)
    env.sandbox = NoWalls()
    ward.give(env=env)


def shared_tasks(ward: Ward) -> None:
    held_out = [dataclasses.replace(task, data={"cue": 1}) for task in ward.parts.test_tasks]
    tasks = [dataclasses.replace(task, data={"cue": place}) for place, task in enumerate(ward.parts.train_tasks)]
    ward.give(test_tasks=held_out, train_tasks=tasks)


def one_task(ward: Ward) -> None:
    ward.give(train_tasks=[dataclasses.replace(task, data={"cue": 1}) for task in ward.parts.train_tasks])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, in words, and the finding that names it."""

    name: str
    plant: Callable[[Ward], None]
    kind: str
    patient: str = "signals"


FAULTS = (
    Fault(name="the engine serves stale weights under the new version", plant=stale_weights, kind="stale_weights"),
    Fault(name="the engine ignores loads, version and all", plant=stale_version, kind="stale_version"),
    Fault(name="the engine reports raw logprobs, without temperature", plant=raw_logprobs, kind="raw_logprobs"),
    Fault(name="the engine samples colder than it reports", plant=colder, kind="sampling_distribution"),
    Fault(name="the engine has a temperature of its own", plant=own_temperature, kind="sampler_temperature"),
    Fault(name="the engine's cache is off by one token", plant=wrong_forward, kind="wrong_forward"),
    Fault(name="a forced token has a NaN for a logprob", plant=nan_logprobs, kind="nan_logprobs"),
    Fault(name="the engine reports negated logprobs", plant=positive_logprobs, kind="positive_logprobs"),
    Fault(name="the engine samples all members with one seed", plant=one_seed, kind="identical_members"),
    Fault(name="the engine refuses its fast path", plant=slow_engine, kind="slow_sampling"),
    Fault(name="the learner has another temperature", plant=learner_temperature, kind="learner_temperature"),
    Fault(name="the action mask is off by one", plant=shifted_mask, kind="mask_shifted"),
    Fault(name="rewards of half the episodes are lost", plant=lost_rewards, kind="rewards_lost"),
    Fault(name="a rollout is cut at the cap of a turn", plant=lost_tokens, kind="tokens_lost"),
    Fault(name="logprobs are off by one", plant=misplaced_logprobs, kind="logprobs_misplaced"),
    Fault(name="the optimizer holds other tensors than the model", plant=frozen_optimizer, kind="weights_unmoved"),
    Fault(name="the loss is masked everywhere", plant=zero_gradient, kind="zero_gradient"),
    Fault(name="the renderer writes history again", plant=rerendering, kind="history_rerendered"),
    Fault(name="tool schemas are not in the prompt", plant=tools_left_out, kind="tools_not_in_prompt", patient="shop"),
    Fault(
        name="the template's tool calls cannot be read", plant=odd_calls, kind="tool_calls_unreadable", patient="shop"
    ),
    Fault(name="the template drops tool results", plant=results_left_out, kind="tool_results_lost", patient="shop"),
    Fault(name="a tool raises in every call", plant=broken_tool, kind="tool_always_fails", patient="shop"),
    Fault(name="the template leaves messages out", plant=forgets_messages, kind="messages_lost"),
    Fault(name="the template strips old thinking", plant=drops_thinking, kind="prefix_unstable"),
    Fault(name="some tasks cannot be played", plant=unplayable_tasks, kind="episodes_failed"),
    Fault(name="the reward is constant", plant=constant_reward, kind="reward_constant"),
    Fault(name="the reward depends on the task alone", plant=reward_of_the_task, kind="reward_ignores_actions"),
    Fault(name="a reward channel never pays", plant=silent_channel, kind="channel_never_paid"),
    Fault(name="a reward channel always pays the same", plant=constant_channel, kind="channel_constant"),
    Fault(name="turns are cut before they can be right", plant=short_turns, kind="turns_too_short"),
    Fault(name="episodes are cut before they can be over", plant=short_episodes, kind="episodes_too_short"),
    Fault(name="the learning rate never warms up", plant=warm_up_for_ever, kind="setting_without_effect"),
    Fault(name="the disk is nearly full", plant=full_disk, kind="disk_short"),
    Fault(name="the device is too small", plant=little_memory, kind="memory_short"),
    Fault(name="the sandbox has no walls", plant=no_walls, kind="sandbox_gaps"),
    Fault(name="held-out tasks are trained on", plant=shared_tasks, kind="tasks_overlap"),
    Fault(name="all training tasks are one", plant=one_task, kind="duplicate_tasks"),
)


def make_patients() -> dict[str, Patient]:
    return {"signals": Patient(Signals()), "shop": Patient(Shop(), **SHOP)}


def examine(patient: Patient, fault: Fault | None) -> list[str]:
    """The kinds of what the doctor finds with a fault planted, or with none."""
    with pytest.MonkeyPatch.context() as patch:
        ward = Ward(patient.parts, patient.config, patch)
        if fault is not None:
            fault.plant(ward)
        examination = patient.examine(ward.parts, ward.config)
    return list(dict.fromkeys(one.kind for one in examination.diagnoses))


def examine_recipe_text(text: str, overrides: Sequence[str] = ()) -> Examination:
    """The examination of a recipe that is a text."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(text)
        return examine_named(str(recipe), list(overrides), folder=Path(folder))


def to_markdown() -> str:
    """Every fault with what the doctor calls it."""
    patients = make_patients()
    lines = ["| fault | finding |", "|---|---|"]
    for fault in FAULTS:
        found = examine(patients[fault.patient], fault)
        lines.append(f"| {fault.name} | {', '.join(f'`{kind}`' for kind in found) or 'none'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    import logging
    import sys

    logging.disable(logging.CRITICAL)
    sys.stdout.write(to_markdown() + "\n")
