"""The preflight: builds a recipe's parts, plays a few groups, makes two updates on weights that are thrown away.

Invariant: nothing is written but a temporary file that tries the disk; the run that follows starts from the same seed
as if it had not been examined.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.failures import check_failures
from turnwise.checks.groups import check_variance
from turnwise.checks.limits import check_cuts, check_expert_fits, check_stops
from turnwise.checks.resources import check_disk, check_fast_path, check_memory, check_sandbox
from turnwise.checks.rewards import check_rewards
from turnwise.checks.settings import check_settings
from turnwise.checks.tasks import check_tasks
from turnwise.checks.template import check_prefix, check_tools
from turnwise.checks.tools import check_broken_tools
from turnwise.config import Config
from turnwise.doctor.examination import Examination
from turnwise.doctor.parity_probe import ThirdOpinion
from turnwise.doctor.players import chosen_tasks, play_demonstrations, play_nonsense
from turnwise.doctor.predictions import PeakMemory, predict_disk, predict_memory, predict_seconds
from turnwise.doctor.probe import Probe, ProbeStep
from turnwise.doctor.sandboxes import find_sandboxes
from turnwise.doctor.weights_probe import check_weights
from turnwise.envs.base import Env
from turnwise.envs.check import find_broken_tools
from turnwise.envs.mixture import members_of
from turnwise.models.settings import SMALL
from turnwise.rollout.summary import reward_std
from turnwise.runs import seed_globals
from turnwise.training.build import Components, assemble, smoke_test_env
from turnwise.training.disk import free_bytes
from turnwise.training.memory import TO_TRAIN, one_line_out_of_memory
from turnwise.training.step_checks import StepChecks
from turnwise.types import StopReason

_VERSION = 1000
"""Of the changed weights: none that the probe's steps have."""
_SPOILING = {"nan_logprobs", "positive_logprobs", "tokens_lost", "mask_shifted", "logprobs_misplaced"}
_GAPS = ("sampler_learner_gap", "raw_logprobs", "sampling_distribution")
Say = Callable[[str], None]
_STEPS = 3
"""Steps of the probe: one to warm up, and two halves, one to predict from and one to try the prediction on."""
_SAMPLED = ("numbers", "versions", "history", "accounting", "parity", "sampling", "gradient")
"""Checks that a step of the probe runs, as a step of training does."""


def examine_recipe(
    config: Config, *, subject: str, folder: Path, env: Env | None = None, say: Say = lambda line: None
) -> Examination:
    """Examines a recipe before it is trained into `folder`; `say` is told what is being done."""
    examination = Examination(subject=subject, place="recipe")
    examination.add("settings", check_settings(config))
    say("building the environment, the model and the engine")
    seed_globals(config.seed)
    parts = assemble(config, env=env)
    try:
        examine_parts(config, parts, examination, folder=folder, say=say)
    finally:
        if env is None:
            parts.env.host.close()
    return examination


def examine_parts(
    config: Config, parts: Components, examination: Examination, *, folder: Path, say: Say = lambda line: None
) -> None:
    """Runs every check that needs the parts of a run."""
    split = config.evaluate.asked_split
    examination.add("tasks", check_tasks(parts.train_tasks, parts.test_tasks, split=split))
    examination.add("template", check_prefix(parts.render))
    for env, own in members_of(parts.env, parts.train_tasks):
        opening = asyncio.run(smoke_test_env(env, own[:3]))
        examination.add("tools", check_tools(parts.render, env.tools, opening))
        examination.add("tools", check_broken_tools(asyncio.run(find_broken_tools(env, own[:3]))))
    boxes = find_sandboxes(parts.env)
    examination.add(
        "sandbox", [one for box in boxes for one in check_sandbox(box.gaps, isolation=box.settings.isolation)]
    )
    examination.add("fast path", check_fast_path(getattr(parts.engine, "slow_reason", None)))
    if not config.steps:
        for name in (*_SAMPLED, "episodes", "rewards", "limits", "groups", "weights", "memory"):
            examination.skip(name, "the recipe has no training steps")
        return
    with one_line_out_of_memory(TO_TRAIN):
        asyncio.run(_examine_by_probe(config, parts, examination, folder, say))


async def _examine_by_probe(
    config: Config, parts: Components, examination: Examination, folder: Path, say: Say
) -> None:
    probe, memory = Probe(config, parts), PeakMemory(parts.loaded.device)
    checks = StepChecks(parts.loaded.model, autocast=parts.autocast, dropout=config.learner.dropout)
    steps: list[ProbeStep] = []
    peaks: list[float] = []
    named: list[Diagnosis] = []
    found: list[Diagnosis] = []
    base = 0.0
    for step in range(_STEPS):
        say(f"sampling and learning from {probe.episodes} episodes, step {step + 1} of {_STEPS}")
        groups, seconds = await probe.collect(step)
        named += ThirdOpinion(probe.learner, groups, temperature=config.rollout.temperature).diagnose()
        base = base or memory.in_use()
        memory.reset()
        steps.append(probe.update(step, groups, seconds))
        peaks.append(memory.read())
        found += checks.observe(step + 1, steps[-1].trained, steps[-1].trained, steps[-1].update)
    say("loading changed weights into the engine")
    served = await check_weights(parts, probe.learner, steps[0].groups, config.rollout, version=_VERSION)
    _add_causes(examination, named, found, served)
    await _examine_episodes(config, parts, examination, steps, say)
    _predict(config, parts, examination, (steps[1], steps[2]), (peaks[1], peaks[2]), base, probe, memory, folder)


def _add_causes(
    examination: Examination, named: list[Diagnosis], found: list[Diagnosis], served: list[Diagnosis]
) -> None:
    """Records what the probe found, and of each fault its cause alone: a gap between sampler and learner has many.

    Rows or numbers that are wrong spoil every comparison. Else the third opinion names the side that is wrong, or the
    probe of the weights does; only a gap that neither can name stays as the gap that the steps noticed.
    """
    examination.ran |= {*_SAMPLED, "weights"}
    spoilt = {one.kind for one in found} & _SPOILING
    if spoilt:
        for name in ("parity", "sampling", "weights"):
            examination.ran.discard(name)
            examination.skip(name, "the tokens' own numbers are wrong")
        examination.add_by_kind([one for one in found if one.kind not in _GAPS])
    elif named:
        examination.ran.discard("weights")
        examination.skip("weights", "sampler and learner disagree whatever the weights are")
        examination.add("parity", named[:1])
        examination.add_by_kind([one for one in found if one.kind not in _GAPS])
    else:
        examination.add("weights", served)
        hidden = (*_GAPS, "stale_version") if served else ()
        examination.add_by_kind([one for one in found if one.kind not in hidden])


async def _examine_episodes(
    config: Config, parts: Components, examination: Examination, steps: list[ProbeStep], say: Say
) -> None:
    """Failures, rewards, limits and groups, by the policy's episodes, the expert's and those of nonsense."""
    say("playing the same tasks by the expert and by nonsense")
    tasks = chosen_tasks([group for step in steps for group in step.groups], parts.train_tasks)
    demonstrations = await play_demonstrations(parts, tasks, config.rollout, seed=config.seed)
    nonsense = await play_nonsense(parts, tasks, config.rollout, seed=config.seed)
    policy = [t for step in steps for t in step.trajectories]
    agents = {"the expert": demonstrations, "nonsense": nonsense, "the policy": policy}
    examination.add("episodes", check_failures([*policy, *demonstrations, *nonsense]))
    cut = check_expert_fits(demonstrations)
    examination.add("limits", cut)
    examination.ran.add("groups")
    if cut or any(name == "tools" for name, _ in examination.found):
        examination.skip("rewards", "the expert's episodes are cut off, or its calls are not understood or fail")
    else:
        examination.add("rewards", check_rewards(agents, has_expert=bool(demonstrations)))
    if config.sft is not None or config.model.name == SMALL:
        reason = "the model is untrained before its cold start: its own episodes tell nothing of limits and variance"
        examination.notes.append(reason)
        return
    played = [t for t in policy if t.stop is not StopReason.ENV_FAILED]
    examination.add("limits", [*check_stops(played, parts.render.stop_ids), *check_cuts(played)])
    flat = [[reward_std(group) == 0 for group in step.groups] for step in steps]
    success = [sum(t.success for t in step.trajectories) / len(step.trajectories) for step in steps]
    shares = [sum(one) / len(one) for one in flat]
    compares = config.credit.compares_groups
    examination.add("groups", check_variance(zero_variance=shares, success=success, compares_groups=compares))


def _predict(
    config: Config,
    parts: Components,
    examination: Examination,
    steps: tuple[ProbeStep, ProbeStep],
    peaks: tuple[float, float],
    base: float,
    probe: Probe,
    memory: PeakMemory,
    folder: Path,
) -> None:
    """Time, memory and disk of the whole run, in figures and words."""
    if not all(step.tokens for step in steps):
        for name in ("disk", "memory"):
            examination.skip(name, "no token was sampled: no prompt fits the context, or no episode began")
        return
    seconds = predict_seconds(*steps, episodes=probe.episodes, config=config)
    peak = predict_memory(base, peaks, steps, episodes=probe.episodes, config=config)
    whole = config.rollout.groups_per_step * config.rollout.group_size
    tokens = steps[1].tokens / probe.episodes * whole
    disk, free = predict_disk(config, parts.loaded.model, tokens), free_bytes(folder)
    examination.add("disk", check_disk(needed=disk, free=free, path=str(folder)))
    available = memory.available()
    device = f"the {parts.loaded.device.type.upper()}"
    examination.add("memory", check_memory(predicted=peak.value, available=available, device=device))
    examination.figures |= {
        "step_seconds": seconds.value,
        "step_seconds_error": seconds.error,
        "training_seconds": seconds.value * config.steps,
        "peak_bytes": peak.value,
        "peak_bytes_error": peak.error,
        "disk_bytes": disk,
        "disk_free_bytes": free,
    }
    examination.notes += [
        f"a training step will take about {seconds.value:.1f} s, {config.steps} of them "
        f"{seconds.value * config.steps / 60:.0f} minutes, without the cold start and evaluations "
        f"(predicted from the probe's first half; off by {seconds.error:.0%} on its second half)",
        f"the peak of an update will be about {peak.value / 2**30:.2f} GiB of {device[4:]} memory "
        f"(off by {peak.error:.0%} on the probe's second half)",
        f"the run will hold at most {disk / 2**30:.2f} GiB; {free / 2**30:.1f} GiB are free",
    ]
