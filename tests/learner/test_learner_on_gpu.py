"""The learner on a GPU: the gradients of a CPU, half precision that clips nothing on-policy, and a whole run there."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from episodes_by_hand import episode, group, tiny_llama, turn
from layout_cases import CASES, MASKS_OFF, assert_same_gradients, update_of
from tiny_models import make_model
from tiny_runs import SFT, SMALLEST, run_tiny
from turnwise.credit.estimate import CreditSettings
from turnwise.engines import LocalEngineSettings, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.learner import batch as batch_module
from turnwise.learner import settings as settings_module
from turnwise.learner.learner import Learner
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings
from turnwise.losses.settings import LossSettings
from turnwise.runs import read_metrics

pytestmark = pytest.mark.gpu
GPU, CPU = torch.device("cuda"), torch.device("cpu")
GSPO = {"form": "gspo", "ratio": "trajectory", "clip_low": 3e-4, "clip_high": 4e-4}


def learner_of(case, model, device, *, autocast=None, lr=0.01, **settings):
    optimizer = OptimizerSettings(lr=lr, max_grad_norm=0.05)
    learner = Learner(
        model,
        settings=LearnerSettings(optimizer=optimizer, critic=CriticSettings(optimizer=optimizer), **settings),
        credit=CreditSettings(**case["credit"]),
        loss=LossSettings(**case["loss"]),
        temperature=0.9,
        total_steps=1,
        device=device,
        autocast=autocast,
    )
    if learner.critic is not None:
        with torch.no_grad():
            learner.critic.head.weight.copy_(torch.linspace(-0.5, 0.5, 16)[None])
    return learner


def gradients_of(case, device, *, build=tiny_llama, **settings):
    torch.manual_seed(0)
    found, update = update_of(learner_of(case, build(), device, **settings))
    return {name: gradient.cpu() for name, gradient in found.items()}, update


def adapted():
    lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(tiny_llama(), lora, autocast_adapter_dtype=False).double()


@pytest.mark.parametrize("name", [*CASES, "both masks off"])
def test_gradients_are_those_of_a_cpu(name, monkeypatch):
    """In float64, padded, packed, and packed with prompts read once."""
    case = {**CASES, "both masks off": MASKS_OFF}[name]
    expected, on_cpu = gradients_of(case, CPU, packing=False)
    for threshold, layout in ((32, {"packing": False}), (32, {"packing": True}), (1, {"tokens_per_microbatch": 20})):
        monkeypatch.setattr(batch_module, "_SHORT_PROMPT", threshold)
        found, update = gradients_of(case, GPU, **layout)
        assert_same_gradients(found, expected, 1e-8)
        assert update.metrics["policy/loss"] == pytest.approx(on_cpu.metrics["policy/loss"], abs=1e-6)
        for one, other in zip(update.advantages, on_cpu.advantages, strict=True):
            assert [*map(list, one)] == [pytest.approx(list(turn), abs=1e-6) for turn in other]


@pytest.mark.parametrize("settings", [{"checkpointing": True}, {"minibatches": 2, "epochs": 2}], ids=str)
def test_nor_do_checkpoints_or_minibatches_change_them(settings):
    expected, _ = gradients_of(CASES["gae"], CPU, **settings)
    assert_same_gradients(gradients_of(CASES["gae"], GPU, **settings)[0], expected, 1e-7)


def test_nor_do_adapters():
    expected, _ = gradients_of(CASES["gae"], CPU, build=adapted)
    assert_same_gradients(gradients_of(CASES["gae"], GPU, build=adapted)[0], expected, 1e-8)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_engine_samples_what_the_learner_scores_before_and_after_an_update(autocast):
    """CUDA graphs replay over weights that were changed in place."""
    model = make_model()
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=8), autocast=autocast)
    learner = learner_of({"credit": {"estimator": "grpo"}, "loss": {}}, model, GPU, autocast=autocast, lr=1e-2)
    gaps = []
    for step in range(3):
        update = learner.update([sample_group(engine, vocabulary=61, seed=step)], seed=step)
        gaps.append(update.metrics["policy/sampler_gap"])
        asyncio.run(engine.load(dict(model.named_parameters()), version=learner.version))
    assert max(gaps) < (1e-4 if autocast is None else 0.15)


def sample_group(engine, *, vocabulary, seed, count=16, tokens=24):
    """Episodes of two turns, sampled at the learner's temperature; half of them are rewarded."""

    async def play(number):
        source = random.Random(1000 * seed + number)
        first = [5 + n % (vocabulary - 5) for n in range(7)]
        ids, turns = list(first), []
        for place in range(2):
            context = first if place == 0 else [source.randrange(vocabulary) for _ in range(9)]
            ids += context if place else []
            sampling = Sampling(max_tokens=tokens, stop_ids=(), temperature=0.9, seed=100 * seed + 2 * number + place)
            said = await engine.generate(f"{seed}-{number}", ids, sampling)
            ids += said.ids
            made = turn(context, said.ids, logprobs=said.logprobs, opens=place == 0, reward=float(place * (number % 2)))
            turns.append(replace(made, version=said.version, versions=()))
        await engine.end(f"{seed}-{number}")
        return episode(*turns)

    async def everyone():
        return await asyncio.gather(*(play(number) for number in range(count)))

    return group(*asyncio.run(everyone()))


def test_what_is_compiled_by_default_changes_no_gradient_and_micro_batches_grow(monkeypatch):
    expected, _ = gradients_of(CASES["grpo"], CPU)
    monkeypatch.setattr(settings_module, "LARGE", 0)
    monkeypatch.setattr(settings_module, "_ENOUGH_UPDATES", 1)
    monkeypatch.setattr(settings_module, "_FIRST_MICROBATCH", 8)
    torch.manual_seed(0)
    learner = learner_of(CASES["grpo"], tiny_llama(), GPU)
    assert learner.runner.compiled is not None
    found, _ = update_of(learner)
    assert_same_gradients({name: gradient.cpu() for name, gradient in found.items()}, expected, 1e-6)
    assert learner.runner.token_budget == 16, "twice as many, since there is room"


def test_half_precision_clips_nothing_on_policy_in_a_model_of_real_shape():
    """GSPO's bounds of 3e-4, bfloat16 autocast, 30 layers; against the sampler's logprobs, rounding is clipped."""
    torch.manual_seed(0)
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config = LlamaConfig(**shape, num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)
    config.initializer_range = 0.06
    model = LlamaForCausalLM(config).eval().to(GPU)
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=32), context_limit=256, autocast=torch.bfloat16)
    assert engine.slow_reason is None
    groups = [sample_group(engine, vocabulary=49152, seed=seed, count=8, tokens=48) for seed in range(4)]
    clipped = {}
    for old_logprobs in (None, "sampler"):
        loss = GSPO | ({} if old_logprobs is None else {"old_logprobs": old_logprobs})
        case = {"credit": {"estimator": "grpo"}, "loss": loss}
        update = learner_of(case, model, GPU, autocast=torch.bfloat16, lr=1e-9).update(groups, seed=0)
        clipped[old_logprobs] = update.first_clip_fraction
        assert update.metrics["policy/sampler_gap"] > 1e-4, "the sampler rounds otherwise"
    assert clipped[None] <= 0.01
    assert clipped["sampler"] > 0.05


@pytest.mark.parametrize("autocast", [False, True])
def test_a_whole_run_on_a_gpu(tmp_path, autocast):
    model = {"small": SMALLEST, "device": "cuda", "autocast": autocast}
    sft = {**SFT, "demonstrations": 64}
    run_tiny(tmp_path / "run", model=model, sft=sft, credit={"estimator": "gae"}, steps=3)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    gaps = [record["policy/sampler_gap_max"] for record in records if "policy/sampler_gap_max" in record]
    assert len(gaps) == 3
    assert max(gaps) < (0.2 if autocast else 1e-3), "the engine and the learner run the same weights"


def test_groups_of_uneven_episodes_in_half_precision_stay_near_float32():
    """The varlen kernel over packed rows, against the CPU's float32 row by row."""

    def build():
        return tiny_llama(
            dtype=torch.float32, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16
        )

    case = {"credit": {"estimator": "dr-grpo"}, "loss": {"old_logprobs": "learner"}}
    expected, _ = gradients_of(case, CPU, build=build, packing=False)
    found, _ = gradients_of(case, GPU, build=build, packing=True, autocast=torch.bfloat16)
    one, other = (torch.cat([gradients[name].flatten() for name in expected]) for gradients in (found, expected))
    assert float((one - other).norm() / other.norm()) < 0.1
