"""A whole experiment in one value: what belongs together is checked together, and what is written reads back."""

import pytest
import yaml

from tiny_runs import SFT, Died, model_folder, run_tiny, tiny_config, tiny_data
from turnwise.algorithms import ALGORITHMS
from turnwise.config import Config, load_config, load_run_config, read_run_config
from turnwise.credit.settings import ESTIMATORS
from turnwise.errors import ConfigError, RunError
from turnwise.settings import dump_settings, load_yaml, parse_settings

EVERYTHING = {
    "env": {"name": "encyclopedia", "args": {"hops": [1, 2], "lazy": 0.5}},
    "model": {"lora": {"targets": ["q_proj"]}, "dtype": "bfloat16", "autocast": True, "tokenizer": "some/where"},
    "seed": 7,
    "sft": {"chats": "on", "optimizer": {"lr": 1e-5, "betas": [0.9, 0.95]}},
    "rollout": {"episode_tokens": 100, "seconds": 1.5, "context_tokens": 64},
    "loss": {"dual_clip": None, "kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k2", "value_clip": 0.2},
    "learner": {"optimizer": {"max_grad_norm": None, "schedule": "cosine"}, "critic": {"warmup": 3}},
    "evaluate": {"temperature": 0.5, "split": "1e3"},
    "stability": {
        "mode": "auto",
        "filter": {"rule": "top_p", "mass": 0.8, "refill": 3},
        "monitor": {"window": 3, "information_every": 10},
        "starpo_s": {"filter": None, "clip_high": None, "kl_coef": None, "estimator": "bilevel-gae"},
        "recovery": 5,
    },
    "render": {"template": "a/b.jinja", "variables": {"enable_thinking": False, "date_string": "26 Jul 2024"}},
}


@pytest.mark.parametrize("data", [{"env": {"name": "encyclopedia"}}, EVERYTHING], ids=["defaults", "everything"])
def test_a_config_reads_back_from_its_dump(data):
    config = parse_settings(Config, data, source="the test")
    dumped = load_yaml(dump_settings(config), source="the dump")
    assert isinstance(dumped, dict)
    assert parse_settings(Config, dumped, source="the dump") == config


def test_the_algorithms_are_all_the_estimators():
    named = [parse_settings(Config, tiny_data(**sections), source=name) for name, sections in ALGORITHMS.items()]
    assert {config.credit.estimator for config in named} == set(ESTIMATORS)


def test_overrides_are_laid_over_the_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_data()))
    config = load_config(recipe, ["steps=7", "learner.optimizer.lr=1e-4", "sft.batch=2", "rollout.seconds=null"])
    assert (config.steps, config.learner.optimizer.lr, config.rollout.seconds) == (7, 1e-4, None)
    assert config.sft is not None
    assert config.sft.batch == 2
    assert config.rollout.groups_per_step == 4, "what the override does not name stays"


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce++-baseline"])
def test_groups_of_one_teach_a_comparison_nothing(estimator):
    with pytest.raises(ConfigError, match=r"rollout\.group_size: .* set 2 or more"):
        tiny_config(credit={"estimator": estimator}, rollout={"group_size": 1})
    tiny_config(credit={"estimator": estimator}, rollout={"group_size": 1}, steps=0)


@pytest.mark.parametrize("estimator", ["gae", "reinforce++"])
def test_groups_of_one_are_enough_without_a_comparison(estimator):
    assert tiny_config(credit={"estimator": estimator}, rollout={"group_size": 1}).rollout.group_size == 1


@pytest.mark.parametrize("decoding", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}])
def test_only_training_needs_the_whole_distribution(decoding):
    with pytest.raises(ConfigError, match="to train, sample with"):
        tiny_config(rollout=decoding)
    tiny_config(evaluate=decoding)


def test_samples_that_wait_for_their_update_are_not_saved():
    serving = {"groups_per_step": 4, "updates_per_rollout": 3}
    with pytest.raises(ConfigError, match=r"^steps: 4 is no multiple of rollout.updates_per_rollout=3: change either$"):
        tiny_config(rollout=serving, steps=4, checkpoint={"every": 3})
    with pytest.raises(ConfigError, match=r"^checkpoint.every: 10 is no multiple of rollout.updates_per_rollout=3"):
        tiny_config(rollout=serving, steps=6)
    tiny_config(rollout=serving, steps=6, checkpoint={"every": 3})


def test_a_filter_needs_something_to_go_by():
    lonely = {"rollout": {"group_size": 1}, "credit": {"estimator": "gae"}}
    with pytest.raises(ConfigError, match=r"^stability.filter: one response per task has no reward std to go by"):
        tiny_config(**lonely, stability={"filter": {"rule": "top_p"}})
    with pytest.raises(ConfigError, match=r"^stability.starpo_s.filter: one response per task"):
        tiny_config(**lonely, stability={"mode": "auto"})
    tiny_config(**lonely, stability={"mode": "monitor"})
    tiny_config(**lonely, stability={"mode": "auto", "starpo_s": {"filter": None}})


def test_starpo_s_that_does_not_fit_the_run_is_refused_at_once():
    sections = {
        "credit": {"advantage_mask": False},
        "stability": {"mode": "auto", "starpo_s": {"estimator": "turn-gae"}},
    }
    with pytest.raises(ConfigError, match=r"^stability.starpo_s: turn-gae takes one value per turn") as error:
        tiny_config(**sections)
    assert "\n" not in str(error.value)
    tiny_config(**sections | {"stability": {"starpo_s": {"estimator": "turn-gae"}}})


def test_a_run_is_evaluated_with_its_newest_weights(tmp_path):
    run = run_tiny(tmp_path / "run", steps=2, checkpoint={"every": 1}, model={"lora": {"rank": 2}})
    config = load_run_config(run.path, ["evaluate.tasks=3"])
    assert config.model.name == str(model_folder(run, 2))
    assert config.model.lora is None, "a checkpoint holds its adapters merged"
    assert config.evaluate.tasks == 3
    assert config.rollout == tiny_config().rollout


def test_a_run_that_has_saved_nothing_cannot_be_evaluated(tmp_path):
    with pytest.raises(Died):
        run_tiny(tmp_path / "run", sft=SFT, die=lambda event, number: event == "cold start")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        load_run_config(tmp_path / "run")


def given(tmp_path, overrides=(), base=None, **sections):
    """A recipe of these sections, over a base if one is given, loaded as the command line loads it."""
    data = {"env": {"name": "bandit"}, **sections}
    if base is not None:
        (tmp_path / "base.yaml").write_text(yaml.safe_dump({"env": {"name": "bandit"}, **base}))
        data["extends"] = "base.yaml"
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    return load_config(tmp_path / "recipe.yaml", overrides)


@pytest.mark.parametrize(
    ("sections", "key", "chooser"),
    [
        ({"credit": {"lam": 0.9}}, "credit.lam", "credit.estimator is grpo"),
        ({"credit": {"lam": 1.0}}, "credit.lam", "credit.estimator is grpo"),
        ({"credit": {"estimator": "rloo", "divide_by_std": False}}, "credit.divide_by_std", "credit.estimator is rloo"),
        ({"credit": {"args": {"a": 1}}}, "credit.args", "credit.estimator is grpo"),
        ({"loss": {"form": "cispo", "clip_low": 0.1}}, "loss.clip_low", "loss.form is cispo"),
        ({"loss": {"kl_in": "reward"}}, "loss.kl_in", "loss.kl_coef is 0.0"),
        ({"loss": {"value_clip": 0.2}}, "loss.value_clip", "credit.estimator is grpo"),
        ({"learner": {"critic": {"warmup": 2}}}, "learner.critic", "credit.estimator is grpo"),
        (
            {"learner": {"optimizer": {"final_lr_share": 0.1}}},
            "learner.optimizer.final_lr_share",
            "schedule is constant",
        ),
        ({"rollout": {"replay": 0.3}}, "rollout.replay", "rollout.task_sampler is uniform"),
        ({"model": {"name": "some/model", "small": {"layers": 3}}}, "model.small", "model.name is some/model"),
        ({"sft": {"chats": "a.jsonl", "demonstrations": 3}}, "sft.demonstrations", "sft.chats is a.jsonl"),
        ({"render": {"args": {"a": 1}}}, "render.args", "render.name is chat"),
        ({"stability": {"filter": {"keep": 0.5}}}, "stability.filter.keep", "stability.filter.rule is none"),
        ({"stability": {"recovery": 3}}, "stability.recovery", "stability.mode is monitor"),
    ],
)
def test_a_setting_that_the_algorithm_never_reads_is_an_error(tmp_path, sections, key, chooser):
    with pytest.raises(ConfigError) as error:
        given(tmp_path, **sections)
    assert str(error.value).startswith(f"{key}: never read while ")
    assert chooser in str(error.value)
    assert "\n" not in str(error.value)
    assert given(tmp_path, ["steps=0"], **sections), "without training, nothing is asked to be read"


@pytest.mark.parametrize(
    "sections",
    [
        {"credit": {"estimator": "gae", "lam": 0.9}, "learner": {"critic": {"warmup": 2}}, "loss": {"value_clip": 0.2}},
        {"loss": {"kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k2"}},
        {"credit": {"lam": 0.9}, "learner": {"critic": {"warmup": 2}}, "stability": {"mode": "auto"}},
        {"rollout": {"task_sampler": "hard", "replay": 0.3}},
        {"stability": {"starpo_s": {"critic_warmup": 0}}, "learner": {"critic": {"warmup": 2}}},
        {"stability": {"starpo_s": {"estimator": "turn-gae"}}, "credit": {"advantage_mask": False}},
    ],
)
def test_what_is_read_may_be_set(tmp_path, sections):
    assert given(tmp_path, **sections)


def test_what_was_set_for_the_algorithm_that_is_replaced_is_no_mistake(tmp_path):
    ppo = {"credit": {"estimator": "gae", "lam": 0.9}, "learner": {"critic": {"warmup": 2}}}
    assert given(tmp_path, base=ppo, credit={"estimator": "grpo"}).credit.lam == 0.9
    assert given(tmp_path, ["credit.estimator=grpo"], **ppo).credit.lam == 0.9
    with pytest.raises(ConfigError, match=r"^credit\.lam: never read while credit\.estimator is grpo"):
        given(tmp_path, ["credit.estimator=grpo", "credit.lam=0.5"], **ppo)
    with pytest.raises(ConfigError, match=r"^credit\.lam: never read while credit\.estimator is rloo"):
        given(tmp_path, base={"credit": {"estimator": "rloo"}}, credit={"lam": 0.9})


def test_a_config_that_was_written_out_still_loads_and_can_be_changed(tmp_path):
    """It has every key, and nobody chose the defaults among them."""
    config = given(tmp_path, credit={"estimator": "gae", "lam": 0.9}, learner={"critic": {"warmup": 2}})
    (tmp_path / "config.yaml").write_text(dump_settings(config))
    assert load_config(tmp_path / "config.yaml") == config
    assert load_config(tmp_path / "config.yaml", ["credit.estimator=rloo"]).credit.estimator == "rloo"
    with pytest.raises(ConfigError, match=r"^credit\.lam: never read"):
        load_config(tmp_path / "config.yaml", ["credit.estimator=rloo", "credit.lam=0.5"])
    (tmp_path / "again.yaml").write_text("extends: config.yaml\ncredit: {estimator: rloo}\n")
    assert load_config(tmp_path / "again.yaml").credit.lam == 0.9


def test_a_plug_in_is_looked_at_before_the_run_begins(tmp_path):
    with pytest.raises(ConfigError, match=r"^credit\.estimator: there is no module 'no_such_package'"):
        given(tmp_path, credit={"estimator": "no_such_package:mine"})
    with pytest.raises(ConfigError, match=r"credit\.estimator: 'grop' is not an estimator \(did you mean 'grpo'\?\)"):
        given(tmp_path, credit={"estimator": "grop"})


def test_an_evaluation_of_a_run_does_not_need_its_plug_ins(tmp_path):
    config = given(tmp_path).model_dump(mode="json")
    config["credit"] |= {"estimator": "no_such_package:mine"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert read_run_config(tmp_path, ["evaluate.tasks=5"], trust=True).evaluate.tasks == 5
