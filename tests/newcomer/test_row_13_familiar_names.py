"""A newcomer writes the names they know from TRL and verl, and the short forms that come to mind."""

import re

import pytest

from turnwise.config import Config, load_config
from turnwise.errors import ConfigError
from turnwise.familiar import FAMILIAR
from turnwise.settings.base import all_keys

KEYS = set(all_keys(Config))


def answer(tmp_path, *overrides, recipe="env: bandit\n"):
    (tmp_path / "mine.yaml").write_text(recipe)
    with pytest.raises(ConfigError) as raised:
        load_config(tmp_path / "mine.yaml", overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("learning_rate", "learner.optimizer.lr"),
        ("lr", "learner.optimizer.lr"),
        ("learner.lr", "learner.optimizer.lr"),
        ("sft.lr", "sft.optimizer.lr"),
        ("learner.critic.lr", "learner.critic.optimizer.lr"),
        ("num_generations", "rollout.group_size"),
        ("beta", "loss.kl_coef"),
        ("loss.beta", "loss.kl_coef"),
        ("epsilon", "loss.clip_low and loss.clip_high"),
        ("num_iterations", "learner.epochs"),
        ("kl_coef", "loss.kl_coef"),
        ("rollout.n", "rollout.group_size"),
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("actor_rollout_ref.actor.optim.lr", "learner.optimizer.lr"),
        ("critic.optim.lr", "learner.critic.optimizer.lr"),
        ("algorithm.adv_estimator", "credit.estimator"),
        ("trainer.total_training_steps", "steps"),
    ],
)
def test_a_known_name_is_answered_with_ours(tmp_path, key, ours):
    assert answer(tmp_path, f"{key}=1").endswith(f"unknown key in override; {key} is {ours} here")


@pytest.mark.parametrize(
    ("key", "ours", "difference"),
    [
        ("batch_size", "rollout.groups_per_step × rollout.group_size", "tasks of a step × episodes of a task"),
        ("per_device_train_batch_size", "learner.tokens_per_microbatch", "tokens in place of episodes"),
        ("gradient_accumulation_steps", "learner.tokens_per_microbatch", "gradients are accumulated"),
        ("max_completion_length", "rollout.turn_tokens", "tokens of one turn"),
        ("temperature", "rollout.temperature", "evaluation has its own"),
        ("ppo_mini_batch_size", "learner.minibatches", "how many there are"),
    ],
)
def test_and_with_the_difference(tmp_path, key, ours, difference):
    told = answer(tmp_path, recipe=f"env: bandit\n{key}: 4\n")
    assert f"{key} is {ours} here: " in told
    assert difference in told


def test_every_key_that_the_table_names_exists():
    named = {key for ours in FAMILIAR.values() for key in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", ours)}
    assert {key for key in named if not key.startswith("env.args.")} <= KEYS
    assert {ours for ours in FAMILIAR.values() if "." not in ours} <= {
        "callbacks",
        "steps",
        "steps; training steps in place of passes over the tasks",
        "--run DIR on the command line, and run= in Python",
    }


def test_no_name_of_the_table_is_a_key_of_ours():
    """Such a row would never be read, or would lead away from the right key."""
    assert KEYS & set(FAMILIAR) == set()


def test_short_forms_in_recipes(tmp_path):
    (tmp_path / "mine.yaml").write_text("env: support.py:Support\nmodel: some/model\ncallbacks: [mine:Tracker]\n")
    config = load_config(tmp_path / "mine.yaml")
    assert (config.env.name, config.env.args, config.model.name) == ("support.py:Support", {}, "some/model")
    assert [callback.name for callback in config.callbacks] == ["mine:Tracker"]
    (tmp_path / "more.yaml").write_text("extends: mine.yaml\nenv: {args: {fail: 0.2}}\nmodel: {dtype: bfloat16}\n")
    more = load_config(tmp_path / "more.yaml", ["env.args.seed=3"])
    assert (more.env.name, more.env.args) == ("support.py:Support", {"fail": 0.2, "seed": 3})
    assert (more.model.name, more.model.dtype) == ("some/model", "bfloat16")


def test_short_forms_in_overrides(tmp_path):
    """Another environment has other arguments; another model is trained with the same settings."""
    (tmp_path / "mine.yaml").write_text(
        "env: {name: encyclopedia, args: {hops: [2]}}\nmodel: {name: small, small: {layers: 2}, autocast: true}\n"
    )
    config = load_config(tmp_path / "mine.yaml", ["env=bandit", "model=some/model"])
    assert (config.env.name, config.env.args) == ("bandit", {})
    assert (config.model.name, config.model.autocast) == ("some/model", True)
    assert load_config(tmp_path / "mine.yaml", ["env=bandit", "env.args.think=false"]).env.args == {"think": False}
