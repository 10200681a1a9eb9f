"""Whether every setting does something: values that the length or size of the run leaves without effect.

Settings that the chosen algorithm never reads are refused when a recipe is read; these are the ones that need two
numbers to be compared.
"""

from collections.abc import Iterator

from turnwise.checks.diagnosis import Diagnosis
from turnwise.config import Config


def check_settings(config: Config) -> list[Diagnosis]:
    """A diagnosis for each setting without effect."""
    return [
        Diagnosis(
            kind="setting_without_effect",
            cause=f"{setting} has no effect: {why}",
            advice=advice,
            evidence=evidence,
        )
        for setting, why, advice, evidence in _find(config)
    ]


def unread_setting(message: str) -> Diagnosis:
    """The diagnosis of a recipe that is refused because nothing reads one of its settings."""
    setting, _, rest = message.partition(": ")
    why, _, advice = rest.partition(": ")
    cause = f"{setting} has no effect: {why}"
    return Diagnosis(kind="setting_without_effect", cause=cause, advice=advice or "remove it")


def _find(config: Config) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    steps, learner = config.steps, config.learner
    optimizer, episodes = learner.optimizer, config.rollout.groups_per_step * config.rollout.group_size
    if not steps:
        return
    if optimizer.lr == 0:
        yield "learner.optimizer", "a learning rate of 0 moves nothing", "raise learner.optimizer.lr", {"lr": 0.0}
    if optimizer.warmup_steps >= steps > 1:
        figures = {"warmup_steps": float(optimizer.warmup_steps), "steps": float(steps)}
        why, advice = "the run ends before the warm-up does", "lower learner.optimizer.warmup_steps, or raise steps"
        yield "learner.optimizer.lr", why, advice, figures
    if config.credit.needs_critic and learner.critic.warmup >= steps:
        figures = {"critic.warmup": float(learner.critic.warmup), "steps": float(steps)}
        why, advice = "only the critic is trained before the run ends", "lower learner.critic.warmup, or raise steps"
        yield "loss", why, advice, figures
    if learner.minibatches > episodes:
        figures = {"minibatches": float(learner.minibatches), "episodes per step": float(episodes)}
        why = "a mini-batch holds whole trajectories, and there are fewer of them"
        yield "learner.minibatches", why, "lower learner.minibatches, or sample more episodes", figures
    if config.stability.monitor.information_every > steps:
        figures = {"information_every": float(config.stability.monitor.information_every), "steps": float(steps)}
        why = "the run ends before it is measured"
        yield "stability.monitor.information_every", why, "lower it, or raise steps", figures
    if config.sft is not None and config.sft.chats is None and config.sft.batch > config.sft.demonstrations:
        figures = {"batch": float(config.sft.batch), "demonstrations": float(config.sft.demonstrations)}
        why = "there are fewer demonstrations than one batch holds"
        yield "sft.batch", why, "lower sft.batch, or raise sft.demonstrations", figures
