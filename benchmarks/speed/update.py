"""How fast an update is and how much memory it takes: the learner's, and the plain one it is compared with.

Invariant: both do the same work: the same rows, the same loss on the same action tokens, the same optimizer, in the
same precision; the plain one pads rows and keeps the logits of every position.
"""

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from turnwise.credit.settings import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.learner.learner import Learner
from turnwise.learner.optimizer import Optimizer
from turnwise.learner.settings import LearnerSettings, OptimizerSettings
from turnwise.losses.policy import policy_loss
from turnwise.losses.settings import LossSettings
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

_OPTIMIZER = OptimizerSettings(lr=1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWorkload:
    """Rows to learn from: `UpdateWorkload(rows=64, length=512)` is 32,768 tokens, 9,856 of them the agent's own."""

    rows: int = 64
    length: int = 512
    action_share: float = 0.3
    turns: int = 4
    group_size: int = 8
    """Rows of a group."""
    shared_prompt: bool = False
    """The rows of a group open with the same prompt, as sampled ones do; off, nothing can be read once for several."""
    uneven: float = 0.0
    """How much shorter than `length` the shortest row is, as a share; lengths in between are even likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """How an update is computed."""

    precision: Literal["float32", "bfloat16", "autocast"] = "autocast"
    """`autocast`: float32 weights, multiplied in bfloat16; `bfloat16`: weights in it, with float32 masters."""
    compile: bool = False
    tokens_per_microbatch: int = 16384


def make_update_groups(work: UpdateWorkload, vocabulary: int, *, seed: int = 0) -> list[Group]:
    """Groups of random tokens; half of the context is prompt, the rest stands between turns."""
    draw = random.Random(seed)
    groups = []
    for number in range(0, work.rows, work.group_size):
        prompt = _ids(draw, _prompt_length(work, work.length), vocabulary)
        trajectories = tuple(
            _trajectory(work, draw, vocabulary, prompt) for _ in range(number, min(number + work.group_size, work.rows))
        )
        groups.append(Group(task=Task(id=str(number)), trajectories=trajectories))
    return groups


def measure_update(
    model: PreTrainedModel,
    work: UpdateWorkload,
    options: UpdateOptions,
    *,
    device: torch.device,
    repeats: int = 5,
    warmup: int = 2,
) -> dict[str, float]:
    """Seconds of an update, tokens a second and, on a GPU, peak memory of the learner."""
    model = _prepared(model, options, device)
    learner = Learner(
        model,
        settings=LearnerSettings(
            compile=options.compile,
            tokens_per_microbatch=options.tokens_per_microbatch,
            optimizer=_OPTIMIZER,
        ),
        credit=CreditSettings(estimator="grpo"),
        loss=LossSettings(),
        temperature=1.0,
        total_steps=repeats + warmup,
        device=device,
        autocast=_autocast(options),
    )
    groups = make_update_groups(work, int(model.config.vocab_size))
    return _clock(lambda step: learner.update(groups, seed=step), groups, device, repeats, warmup)


def measure_full_logits(
    model: PreTrainedModel,
    work: UpdateWorkload,
    options: UpdateOptions,
    *,
    device: torch.device,
    repeats: int = 5,
    warmup: int = 2,
) -> dict[str, float]:
    """The same of an update as it is usually written: padded rows, and the logits of every token at once."""
    model = _prepared(model, options, device).train()
    optimizer = Optimizer(model, _OPTIMIZER, total_steps=repeats + warmup)
    groups = make_update_groups(work, int(model.config.vocab_size))
    batch = Batch.of(groups)
    micros = [micro.to(device) for micro in batch.micro_batches(options.tokens_per_microbatch)]
    old, advantage = batch.logprob.to(device), torch.ones(len(batch.ids), device=device)  # [L]
    share = 1 / int(batch.trained.sum())

    def update(step: int) -> None:
        for micro in micros:
            with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "autocast"):
                logits = model(input_ids=micro.ids, use_cache=False).logits  # [B, W, V]
            sampled = logits.float().log_softmax(-1).flatten(0, 1)[micro.before]  # [m, V]
            logprob = sampled.gather(-1, micro.target[:, None]).squeeze(-1)  # [m]
            loss = policy_loss(
                logprob, old[micro.token], advantage[micro.token], clip_low=0.2, clip_high=0.2, dual_clip=3.0
            ).loss
            (loss.sum() * share).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step(step)

    return _clock(update, groups, device, repeats, warmup)


def _clock(
    update: Callable[[int], object], groups: list[Group], device: torch.device, repeats: int, warmup: int
) -> dict[str, float]:
    batch = Batch.of(groups)
    for step in range(warmup):
        update(step)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for step in range(warmup, warmup + repeats):
        began = time.perf_counter()
        update(step)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    measured = {
        "tokens": float(len(batch.ids)),
        "action_tokens": float(batch.action.sum()),
        "seconds": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "tokens_per_second": len(batch.ids) / median,
    }
    return measured | ({"peak_gigabytes": torch.cuda.max_memory_allocated(device) / 1e9} if on_gpu else {})


def _prepared(model: PreTrainedModel, options: UpdateOptions, device: torch.device) -> PreTrainedModel:
    dtype = torch.bfloat16 if options.precision == "bfloat16" else torch.float32
    prepared: PreTrainedModel = model.to(device=device, dtype=dtype)
    return prepared


def _autocast(options: UpdateOptions) -> torch.dtype | None:
    return torch.bfloat16 if options.precision == "autocast" else None


def _trajectory(work: UpdateWorkload, draw: random.Random, vocabulary: int, prompt: tuple[int, ...]) -> Trajectory:
    length = round(work.length * (1 - work.uneven * draw.random()))
    if not work.shared_prompt:
        prompt = _ids(draw, _prompt_length(work, length), vocabulary)
    sampled = round(length * work.action_share)
    read = max(length - sampled - len(prompt), 0)
    turns = []
    for number in range(work.turns):
        context = _ids(draw, _part(read, number - 1, work.turns - 1), vocabulary) if number else prompt
        action = _ids(draw, _part(sampled, number, work.turns), vocabulary)
        reward = {"random": draw.random()} if number == work.turns - 1 else {}
        turns.append(
            Turn(
                context_ids=context,
                action_ids=action,
                logprobs=(-math.log(vocabulary),) * len(action),
                rewards=reward,
                opens_row=number == 0,
            )
        )
    return Trajectory(task=Task(id="t"), turns=tuple(turns), stop=StopReason.DONE)


def _prompt_length(work: UpdateWorkload, length: int) -> int:
    return max(1, round(length * (1 - work.action_share) / 2))


def _part(whole: int, number: int, parts: int) -> int:
    """The size of one of so many nearly equal parts."""
    return whole * (number + 1) // parts - whole * number // parts


def _ids(draw: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(draw.randrange(vocabulary) for _ in range(count))
