"""Whether the engine serves new weights after a load: the weights are changed by far more than an update would.

Invariant: afterwards the model has the weights it had, and the engine has loaded them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from turnwise.agents.decoding import Decoding
from turnwise.checks.diagnosis import Diagnosis
from turnwise.doctor.parity_probe import Comparison, ThirdOpinion
from turnwise.engines.base import Completion
from turnwise.learner.learner import Learner
from turnwise.seeds import derive_seed
from turnwise.training.build import Components
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

_PROMPTS = 4
_TOKENS = 12
_CHANGE = 0.1
"""Of each tensor's own standard deviation: changes nearly every logprob by far more than rounding does."""

_ADVICE = "Engine.load must replace the weights and drop every cache before it returns; then sample"


async def check_weights(
    parts: Components, learner: Learner, groups: Sequence[Group], decoding: Decoding, *, version: int
) -> list[Diagnosis]:
    """Loads changed weights as `version`, samples after the run's own prompts, and scores what was sampled."""
    prompts = [t.turns[0].context_ids for group in groups for t in group.trajectories if t.turns][:_PROMPTS]
    if not prompts:
        return []
    model, engine = parts.loaded.model, parts.engine
    await engine.load(model.state_dict(), version - 1)
    before = [await _sample(parts, prompt, decoding, place) for place, prompt in enumerate(prompts)]
    with _changed(model):
        await engine.load(model.state_dict(), version)
        after = [await _sample(parts, prompt, decoding, place) for place, prompt in enumerate(prompts)]
        compared = _compare(learner, prompts, after, decoding)
    await engine.load(model.state_dict(), version + 1)
    if stamped := {one.version for one in after} - {version}:
        cause = f"completions carry version {stamped.pop()} after version {version} was loaded"
        return [Diagnosis(kind="stale_version", cause=cause, advice=_ADVICE)]
    if compared.agrees:
        return []
    evidence = {"mean gap to the weights loaded": compared.gap, "tolerance": compared.tolerance}
    if [one.logprobs for one in before] == [one.logprobs for one in after]:
        cause = "the engine samples as before after other weights are loaded, under the new version"
        return [Diagnosis(kind="stale_weights", cause=cause, advice=_ADVICE, evidence=evidence)]
    return [
        Diagnosis(
            kind="wrong_forward",
            cause="after a load the engine samples otherwise, but not as the model with these weights does",
            advice="its forward differs from the model's own, or a part of the weights is not loaded: compare both on "
            "one prompt, in float32",
            evidence=evidence,
        )
    ]


@contextmanager
def _changed(model: nn.Module) -> Iterator[None]:
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for p in trained:
                width = float(p.float().std()) if p.numel() > 1 else 0.0
                noise = torch.randn(p.shape, generator=generator) * _CHANGE * (width or 1.0)
                p.add_(noise.to(p.device, p.dtype))
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(trained, before, strict=True):
                p.copy_(old)


async def _sample(parts: Components, prompt: Sequence[int], decoding: Decoding, place: int) -> Completion:
    seed = derive_seed("doctor", place)
    sampling = decoding.sampling(max_tokens=_TOKENS, stop_ids=parts.render.stop_ids, seed=seed)
    completion = await parts.engine.generate(f"doctor/{place}", prompt, sampling)
    await parts.engine.end(f"doctor/{place}")
    return completion


def _compare(
    learner: Learner, prompts: Sequence[Sequence[int]], sampled: Sequence[Completion], decoding: Decoding
) -> Comparison:
    """The engine's logprobs beside the model's own, with its present weights."""
    task = Task(id="doctor")
    turns = [
        Turn(context_ids=tuple(prompt), action_ids=one.ids, logprobs=one.logprobs, opens_row=True, version=one.version)
        for prompt, one in zip(prompts, sampled, strict=True)
    ]
    played = tuple(Trajectory(task=task, turns=(turn,), stop=StopReason.DONE) for turn in turns)
    opinion = ThirdOpinion(learner, [Group(task=task, trajectories=played)], temperature=decoding.temperature)
    return opinion.compare_sampler()
