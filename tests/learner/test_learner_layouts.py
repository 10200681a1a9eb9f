"""Layouts: padded or packed, merged or one row per step, in any number of micro-batches, the gradient is the same."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from episodes_by_hand import episode, group, tiny_llama, turn
from layout_cases import CASES, GROUPS, MASKS_OFF, assert_same_gradients, learner_of, one_row_per_step, update_of
from turnwise.learner import batch as batch_module
from turnwise.learner import forward_runner as forward_runner
from turnwise.learner.forward_runner import Packing
from turnwise.types import StopReason

LAYOUTS = [
    {"budget": 14},
    {"budget": 1},
    {"packing": True},
    {"packing": True, "budget": 20},
    {"packing": True, "budget": 1},
]
SIZES = {
    "vocab_size": 17,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
}


def qwen2():
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, use_sliding_window=True, sliding_window=3, max_window_layers=1))


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=1))


def gemma3():
    config = Gemma3TextConfig(
        **SIZES, sliding_window=3, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    )
    return Gemma3ForCausalLM(config)


def adapted():
    model = get_peft_model(
        tiny_llama(),
        LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False),
        autocast_adapter_dtype=False,
    )
    return model.double()


def _said(update):
    """What an update says of itself that does not depend on how its rows lie."""
    return {name: value for name, value in update.metrics.items() if not name.endswith("_share")}


@pytest.mark.parametrize("name", CASES)
def test_no_layout_changes_a_gradient(name):
    case = CASES[name]
    expected, padded = update_of(learner_of(case))
    for layout in LAYOUTS:
        found, update = update_of(learner_of(case, **layout))
        assert_same_gradients(found, expected)
        assert update.advantages == padded.advantages
        assert _said(update) == pytest.approx(_said(padded), abs=1e-6)
    for layout in ({}, {"budget": 1}, {"packing": True, "budget": 40}):
        found, update = update_of(learner_of(case, **layout), one_row_per_step(GROUPS))
        assert_same_gradients(found, expected)
        assert update.advantages == padded.advantages
        assert update.metrics["batch/rows"] > padded.metrics["batch/rows"]


@pytest.mark.parametrize("name", CASES)
def test_nor_do_prompts_that_are_read_once(monkeypatch, name):
    """One state then predicts the first action of several rows, and all of them teach it."""
    expected, padded = update_of(learner_of(CASES[name]))
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    for budget in (1000, 20, 1):
        found, update = update_of(learner_of(CASES[name], packing=True, budget=budget))
        assert_same_gradients(found, expected, 1e-8)
        assert _said(update) == pytest.approx(_said(padded), abs=1e-6)
        assert (update.metrics["batch/shared_share"] > 0.05) == (budget > 1)


@pytest.mark.parametrize("name", ["grpo", "gae"])
def test_nor_do_rows_that_a_mask_keeps_apart(monkeypatch, name):
    """As where a model's attention cannot be done row by row."""
    expected, _ = update_of(learner_of(CASES[name]))
    monkeypatch.setattr(forward_runner, "supports_varlen_attention", lambda model, device: False)
    learner = learner_of(CASES[name], packing=True)
    assert learner.runner.packing is Packing.MASKED
    assert_same_gradients(update_of(learner)[0], expected)


def test_rows_are_packed_where_nothing_is_said():
    assert learner_of(CASES["grpo"], packing=None).runner.packing is Packing.BY_ROWS


def test_nor_where_both_masks_are_off():
    expected, _ = update_of(learner_of(MASKS_OFF))
    for layout in LAYOUTS:
        assert_same_gradients(update_of(learner_of(MASKS_OFF, **layout))[0], expected)


@pytest.mark.parametrize("build", [qwen2, qwen3, gemma3, adapted])
def test_packed_rows_stay_apart_in_every_family(monkeypatch, build):
    """Windows of three tokens, shared heads of keys and values, adapters, shared prompts; policy and critic."""

    def gradients(**layout):
        torch.manual_seed(0)
        return update_of(learner_of(CASES["gae"], model=build().double(), **layout))[0]

    expected = gradients(budget=1)
    assert_same_gradients(gradients(packing=True), expected)
    assert_same_gradients(gradients(), expected)
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    assert_same_gradients(gradients(packing=True), expected, 1e-8)


def test_a_cut_off_episode_is_worth_the_critics_word_on_what_it_would_have_read():
    learner = learner_of({"credit": {"estimator": "gae", "lam": 0.0, "gamma": 0.5, "whiten": False}, "loss": {}})
    cut = episode(turn([1, 2], [3], opens=True, reward=0.25), stop=StopReason.MAX_TURNS, tail=(4, 5))
    with torch.no_grad():
        value = learner.critic(torch.tensor([[1, 2, 3, 4, 5]]))[0].tolist()
    (((advantage,),),) = learner.update([group(cut)], seed=0).advantages
    assert advantage == pytest.approx(0.25 + 0.5 * value[4] - value[1], abs=1e-6)
    assert value[4] != pytest.approx(value[2], abs=1e-2), "which is not its word on the last action"


def test_packing_reads_no_padding():
    padded = update_of(learner_of(CASES["grpo"]))[1].metrics
    packed = update_of(learner_of(CASES["grpo"], packing=True))[1].metrics
    assert padded["batch/padding_share"] == pytest.approx(1 - 44 / (7 * 9)), "no critic, so no tail is read"
    assert packed["batch/padding_share"] == 0.0


@pytest.mark.filterwarnings("ignore:TF32")
def test_packing_under_autocast():
    """Half precision rounds other sums in another layout, and no more than that."""
    case = {**CASES["gae"], "loss": {**CASES["gae"]["loss"], "old_logprobs": "learner"}}

    def gradients(**settings):
        with torch.backends.mkldnn.flags(enabled=False):  # its half-precision kernels do not run on every CPU
            return update_of(learner_of(case, model=tiny_llama(dtype=torch.float32), **settings))[0]

    exact = gradients()
    padded, packed = gradients(autocast=torch.bfloat16), gradients(autocast=torch.bfloat16, packing=True)
    for name in exact:
        rounding = float((padded[name] - exact[name]).norm())
        assert 0 < rounding < 0.2 * float(exact[name].norm()) + 1e-3
        assert float((packed[name] - exact[name]).norm()) < 2 * rounding + 1e-3, name


def test_gradients_are_clipped_once_over_all_micro_batches():
    for layout in ({}, {"budget": 1}):
        caught, update = update_of(learner_of(CASES["grpo"], **layout))
        norm = torch.stack([gradient.norm() for gradient in caught.values()]).norm()
        assert float(norm) == pytest.approx(0.05, rel=1e-4)
        assert update.metrics["policy/grad_norm"] > 0.1


def test_measures_are_means_whatever_the_weights_sum_to():
    """`fixed` divides by a length of its own: the loss scales with it, and entropy does not."""
    short, long = (
        update_of(learner_of({"credit": {"estimator": "dr-grpo"}, "loss": {"aggregation": "fixed", "fixed_length": n}}))
        for n in (10, 20)
    )
    token = update_of(learner_of({"credit": {"estimator": "dr-grpo"}, "loss": {}}))[1].metrics
    for name in ("policy/entropy", "policy/approx_kl", "policy/sampler_gap", "policy/clip_fraction"):
        assert short[1].metrics[name] == pytest.approx(token[name], rel=1e-5)
    assert short[1].metrics["policy/loss"] == pytest.approx(2 * long[1].metrics["policy/loss"], rel=1e-5)


def test_the_sampler_is_measured_also_where_it_is_corrected_for():
    trusted = update_of(learner_of({"credit": {"estimator": "rloo"}, "loss": {}}))[1].metrics
    corrected = update_of(learner_of({"credit": {"estimator": "rloo"}, "loss": {"tis_cap": 2.0}}))[1].metrics
    assert trusted["policy/sampler_gap"] > 0.1
    assert corrected["policy/sampler_gap"] == pytest.approx(trusted["policy/sampler_gap"], rel=1e-5)
    assert corrected["policy/approx_kl"] == pytest.approx(0.0, abs=1e-9)
