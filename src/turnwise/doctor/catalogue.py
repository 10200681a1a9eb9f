"""Every check, in one sentence, with the kinds of diagnoses it can make and where it runs.

docs/doctor.md shows this list; a test compares the two.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Place: TypeAlias = Literal["recipe", "training", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`Check(name="parity", sentence="...", kinds=("raw_logprobs",), places=("recipe", "training", "run"))`."""

    name: str
    sentence: str
    kinds: tuple[str, ...]
    places: tuple[Place, ...]
    """`recipe`: before a run; `training`: in every step of one; `run`: afterwards, from its files."""


_EVERYWHERE: Final[tuple[Place, ...]] = ("recipe", "training", "run")
CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="settings",
        sentence="every setting that was given does something",
        kinds=("setting_without_effect",),
        places=("recipe", "run"),
    ),
    Check(
        name="tasks",
        sentence="no task that is evaluated on is trained on, and tasks are not there twice",
        kinds=("tasks_overlap", "duplicate_tasks"),
        places=("recipe", "run"),
    ),
    Check(
        name="template",
        sentence="the chat template keeps history as it was, and loses no message",
        kinds=("history_rerendered", "messages_lost", "prefix_unstable"),
        places=("recipe",),
    ),
    Check(
        name="tools",
        sentence="the prompt tells of every tool, calls are read back as they were written, results are shown, and no "
        "tool raises in every call",
        kinds=("tools_not_in_prompt", "tool_calls_unreadable", "tool_results_lost", "tool_always_fails"),
        places=("recipe",),
    ),
    Check(
        name="sandbox",
        sentence="code that the model writes runs behind all walls of the kernel",
        kinds=("sandbox_gaps",),
        places=("recipe",),
    ),
    Check(
        name="episodes",
        sentence="episodes are played without a failure of the environment, a tool or a reward",
        kinds=("episodes_failed",),
        places=("recipe",),
    ),
    Check(
        name="rewards",
        sentence="every reward channel pays, and rewards depend on what the agent did",
        kinds=("reward_constant", "reward_ignores_actions", "channel_never_paid", "channel_constant"),
        places=("recipe", "run"),
    ),
    Check(
        name="limits",
        sentence="episodes and turns fit their limits of turns, tokens, context and time",
        kinds=("turns_too_short", "episodes_too_short", "stop_never_sampled", "episodes_cut", "context_fills"),
        places=("recipe", "run"),
    ),
    Check(
        name="groups",
        sentence="the members of a group differ in what they sample and in what they earn",
        kinds=("identical_members", "no_variance"),
        places=_EVERYWHERE,
    ),
    Check(
        name="numbers",
        sentence="recorded logprobs are finite and not above 0",
        kinds=("nan_logprobs", "positive_logprobs"),
        places=_EVERYWHERE,
    ),
    Check(
        name="versions",
        sentence="turns carry the version of the weights that was loaded when they were sampled",
        kinds=("stale_version",),
        places=_EVERYWHERE,
    ),
    Check(
        name="weights",
        sentence="after a load, the engine samples with the new weights and no others",
        kinds=("stale_weights", "wrong_forward"),
        places=("recipe",),
    ),
    Check(
        name="parity",
        sentence="sampler and learner give the run's own tokens the same logprobs",
        kinds=("raw_logprobs", "learner_temperature", "sampler_temperature", "sampler_learner_gap"),
        places=_EVERYWHERE,
    ),
    Check(
        name="sampling",
        sentence="tokens are drawn from the distribution that is recorded for them (5 sigma)",
        kinds=("sampling_distribution",),
        places=_EVERYWHERE,
    ),
    Check(
        name="history",
        sentence="a turn reads only what is new since the turn before",
        kinds=("history_rerendered",),
        places=_EVERYWHERE,
    ),
    Check(
        name="accounting",
        sentence="rows rebuilt from turns: action tokens are the sampled ones, rewards are conserved",
        kinds=("tokens_lost", "mask_shifted", "logprobs_misplaced", "rewards_lost"),
        places=_EVERYWHERE,
    ),
    Check(
        name="gradient",
        sentence="advantages give a gradient, and the optimizer's steps move the model's weights",
        kinds=("zero_gradient", "weights_unmoved"),
        places=_EVERYWHERE,
    ),
    Check(
        name="fast path",
        sentence="the engine samples by its fused forward",
        kinds=("slow_sampling",),
        places=_EVERYWHERE,
    ),
    Check(
        name="memory",
        sentence="a full step fits the device, predicted from the probe's first half and tried on its second",
        kinds=("memory_short",),
        places=("recipe",),
    ),
    Check(
        name="disk",
        sentence="the run's checkpoints and trajectories fit the disk and its quota",
        kinds=("disk_short",),
        places=("recipe", "run"),
    ),
    Check(
        name="findings",
        sentence="the run's monitor raised no alarm",
        kinds=("recorded_alarm",),
        places=("run",),
    ),
)


def to_markdown() -> str:
    """The table of docs/doctor.md."""
    lines = ["| check | what it makes sure of | findings | where |", "|---|---|---|---|"]
    for check in CHECKS:
        kinds = ", ".join(f"`{kind}`" for kind in check.kinds)
        lines.append(f"| {check.name} | {check.sentence} | {kinds} | {', '.join(check.places)} |")
    return "\n".join(lines)
