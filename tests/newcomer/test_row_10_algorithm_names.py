"""A newcomer names an algorithm as its paper does, in Python, in a recipe or on the command line."""

import pytest

from tiny_runs import tiny_data
from turnwise.algorithms import ALGORITHMS, find_algorithm
from turnwise.config import Config, load_config, parse_config, resolve_recipe
from turnwise.errors import ConfigError
from turnwise.settings import Layer, Recipe
from turnwise.stability.starpo_s import StarPOSSettings


def load(tmp_path, text, *overrides):
    (tmp_path / "mine.yaml").write_text(f"env: bandit\n{text}\n")
    return load_config(tmp_path / "mine.yaml", overrides)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_recipe_an_override_and_python_mean_the_same(tmp_path, name):
    recipe, override = load(tmp_path, f"algorithm: {name}"), load(tmp_path, "steps: 100", f"algorithm={name}")
    call = Recipe([Layer("call", {"env": "bandit", "algorithm": name})])
    assert recipe == override == parse_config(resolve_recipe(call), "call")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("starpo_s", "starpo-s"),
        ("StarPO-S", "starpo-s"),
        ("GRPO", "grpo"),
        ("dr_grpo", "dr-grpo"),
        ("reinforce_pp", "reinforce++"),
        ("reinforce_plus_plus_baseline", "reinforce++-baseline"),
    ],
)
def test_spellings(written, name):
    assert find_algorithm(written) == name


@pytest.mark.parametrize(
    ("typo", "meant"), [("gpro", "grpo"), ("pop", "ppo"), ("gsop", "gspo"), ("starpos_s", "starpo-s")]
)
def test_a_typo_is_corrected_by_what_is_likely(tmp_path, typo, meant):
    with pytest.raises(
        ConfigError, match=rf"^algorithm: '{typo}' is unknown \(did you mean '{meant}'\?\); there are ppo"
    ):
        load(tmp_path, f"algorithm: {typo}")


def test_what_is_no_name_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^algorithm: expected the name of one, such as grpo, got 3 in .*mine\.yaml$"
    ):
        load(tmp_path, "algorithm: 3")


def test_starpo_s_is_all_of_its_parts(tmp_path):
    config = load(tmp_path, "algorithm: starpo-s")
    assert config.stability.mode == "always"
    settings = config.stability.starpo_s.apply_to(config.algorithm_settings)
    parts = StarPOSSettings()
    assert (settings.filter, settings.credit.estimator) == (parts.filter, "gae")
    assert (settings.loss.clip_high, settings.loss.kl_coef) == (0.28, 0.0)
    assert config.credit.needs_critic, "from the first step, so that it is no stranger when StarPO-S begins"


def test_dapo_samples_until_groups_vary(tmp_path):
    config = load(tmp_path, "algorithm: dapo")
    assert (config.stability.filter.rule, config.stability.filter.refill) == ("nonzero", 10)
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.aggregation) == (0.2, 0.28, "token")


def test_the_recipes_own_settings_win(tmp_path):
    config = load(tmp_path, "algorithm: gspo\nloss: {clip_low: 0.1}")
    assert (config.loss.form, config.loss.clip_low, config.loss.clip_high) == ("gspo", 0.1, 4e-4)


def test_another_algorithm_leaves_nothing_of_the_first(tmp_path):
    text = "algorithm: gspo\nlearner: {epochs: 2}"
    expected = load(tmp_path, "algorithm: ppo\nlearner: {epochs: 2}")
    assert load(tmp_path, text, "algorithm=ppo") == expected
    (tmp_path / "base.yaml").write_text(f"env: bandit\n{text}\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nalgorithm: ppo\n")
    assert load_config(tmp_path / "top.yaml") == expected


def test_it_goes_over_what_an_extended_recipe_spells_out(tmp_path):
    spelled = "loss: {form: gspo, ratio: turn, aggregation: fixed, fixed_length: 9}\ncredit: {estimator: gae, lam: 0.9}"
    config = load(tmp_path, spelled, "algorithm=rloo")
    assert (config.credit.estimator, config.loss.form, config.loss.ratio) == ("rloo", "clip", "token")
    assert (config.loss.aggregation, config.loss.fixed_length) == ("token", None)


def test_a_packaged_recipe_takes_any_of_them():
    for name in ALGORITHMS:
        assert isinstance(load_config("encyclopedia-grpo", [f"algorithm={name}"]), Config)


def test_a_setting_that_the_named_algorithm_never_reads_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^credit\.lam: never read while credit\.estimator is grpo"):
        load(tmp_path, "algorithm: grpo\ncredit: {lam: 0.9}")


def test_the_tiny_run_of_the_tests_takes_them_as_sections():
    assert tiny_data(**ALGORITHMS["starpo-s"])["stability"] == {"mode": "always"}
