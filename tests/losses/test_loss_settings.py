"""Loss settings that contradict each other are refused in one line, and those that agree read back."""

import pytest

from turnwise.errors import ConfigError
from turnwise.losses.settings import LossSettings
from turnwise.settings import dump_settings, load_yaml, parse_settings


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"form": "gspo"}, "set ratio to turn or trajectory"),
        ({"ratio": "turn"}, "ratio turn needs form gspo"),
        ({"form": "cispo", "ratio": "trajectory"}, "ratio trajectory needs form gspo, since cispo has one per token"),
        ({"aggregation": "fixed"}, "set fixed_length"),
        ({"fixed_length": 100}, "set aggregation to fixed"),
        ({"tis_cap": 0.5}, "tis_cap: expected a value greater than or equal to 1"),
        ({"mis_cap": 0.5}, "mis_cap: expected a value greater than or equal to 1"),
        ({"tis_cap": 2.0, "mis_cap": 2.0}, "tis_cap and mis_cap correct the same mismatch: set one of them"),
        ({"icepop_band": [1.5, 5.0]}, "icepop_band is [low, high] around 1"),
        ({"mis_cap": 2.0, "old_logprobs": "sampler"}, "mis_cap takes ratios against the learner's own logprobs"),
    ],
)
def test_contradictions_are_refused(data, said):
    with pytest.raises(ConfigError) as error:
        parse_settings(LossSettings, data, source="recipe.yaml")
    assert said in str(error.value)
    assert "recipe.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        {"form": "gspo", "ratio": "turn", "clip_low": 3e-4, "clip_high": 4e-4},
        {"form": "gspo", "ratio": "trajectory", "aggregation": "trajectory"},
        {"form": "cispo", "tis_cap": 2.0},
        {"aggregation": "fixed", "fixed_length": 2048},
    ],
)
def test_what_agrees_reads_back(data):
    settings = parse_settings(LossSettings, data, source="recipe.yaml")
    dumped = load_yaml(dump_settings(settings), source="the dump")
    assert isinstance(dumped, dict)
    assert parse_settings(LossSettings, dumped, source="the dump") == settings
    assert {name: getattr(settings, name) for name in data} == data
