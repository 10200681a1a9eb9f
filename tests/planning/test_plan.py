"""`turnwise plan`: formulas by hand, errors on runs that the fit has not seen, memory against what a learner uses."""

import dataclasses
import math

import pytest
import torch

from episodes_by_hand import episode, group, turn
from tiny_runs import SFT, run_tiny, tiny_config
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.credit.settings import CreditSettings
from turnwise.errors import ConfigError, RunError
from turnwise.learner.learner import Learner
from turnwise.losses.settings import LossSettings
from turnwise.models.loading import load_model
from turnwise.planning.cost import fit, leave_one_out, predict, settings_of
from turnwise.planning.hardware import KNOWN, find_hardware
from turnwise.planning.measured import PARTS, MeasuredRun, Workload, measure_run, read_table, run_settings
from turnwise.planning.memory import learner_memory
from turnwise.planning.peak import PeakMemory
from turnwise.planning.probe import probe
from turnwise.planning.recipe import find_workload, make_plan, trained_parameters
from turnwise.planning.shape import ModelShape, find_shape

H200 = KNOWN["h200"]
SHAPE = ModelShape(layers=2, width=8, heads=2, kv_heads=1, head_size=4, ffn=16, vocabulary=100, tied=True)


def test_a_shape_by_hand():
    attention = 8 * 8 + 2 * 8 * 4 + 8 * 8  # queries and output; keys and values; each 8 by heads · size
    assert SHAPE.body == 2 * (attention + 3 * 8 * 16 + 2 * 8) + 8
    assert SHAPE.head == 800
    assert SHAPE.parameters == SHAPE.body + 800
    assert dataclasses.replace(SHAPE, tied=False).parameters == SHAPE.body + 1600
    assert SHAPE.kv_numbers == 2 * 2 * 1 * 4


def test_a_shape_counts_the_parameters_of_the_model_it_describes():
    config = tiny_config()
    model = load_model(config.model, seed=0, texts=lambda: ["some text"]).model
    shape = find_shape(config.model, {})
    own = dataclasses.replace(shape, vocabulary=model.get_input_embeddings().weight.shape[0])
    assert own.parameters == sum(p.numel() for p in model.parameters())


def synthetic(name, *, utilisation=0.5, eager=3e-10, compiled=1e-10, tokens=1e5, **shape):
    """A run that costs exactly what the formulas say."""
    own = dataclasses.replace(SHAPE, layers=20, width=512, ffn=2048, **shape)
    is_compiled = name.endswith("compiled")
    beside = (compiled if is_compiled else eager) * own.layers * own.width * tokens
    prefill = 2 * own.body * 2 * tokens / H200.flops / utilisation + 2e-10 * own.layers * own.width * 2 * tokens
    seconds = {
        "environment": 1e-3 * 1000,
        "render": 1e-6 * (2 * tokens + 3e4),
        "prefill": prefill,
        "decode": 2e-3 * 3e4 / 256,
        "update": 6 * own.body * tokens / H200.flops / utilisation + beside,
        "logprobs": 0.0,
        "rest": 0.2,
    }
    return MeasuredRun(
        name=name,
        device="h200",
        env="world",
        model=name,
        shape=own,
        compiled=is_compiled,
        forwards=0.0,
        work=Workload(episodes=256, turns=1000, action_tokens=3e4, prompt_tokens=2 * tokens, read_tokens=tokens),
        seconds={**seconds, "step": sum(seconds.values())},
    )


RUNS = [
    synthetic("a"),
    synthetic("b", tokens=3e5, heads=8),
    synthetic("c-compiled"),
    synthetic("d-compiled", tokens=2e5, heads=64),
]


def test_the_fit_finds_the_coefficients_that_made_the_runs():
    found = fit(RUNS, H200)
    assert found.environment == {"world": pytest.approx(1e-3)}
    assert found.render == pytest.approx(1e-6)
    assert found.decode == pytest.approx(2e-3)
    assert found.utilisation == pytest.approx(0.5)
    assert (found.eager, found.compiled) == (pytest.approx(3e-10), pytest.approx(1e-10))
    assert found.prefill == pytest.approx(2e-10)
    for run in RUNS:
        parts = predict(found, H200, run.work, settings_of(run))
        assert parts == pytest.approx(dict(run.seconds))


def test_a_run_that_was_left_out_is_predicted_by_the_others_alone():
    """A run that takes twice as long in one part is off by that part, and its own figures do not help it."""
    slow = dataclasses.replace(RUNS[0], name="slow")
    seconds = {**slow.seconds, "environment": 2 * slow.seconds["environment"]}
    seconds["step"] = sum(value for name, value in seconds.items() if name != "step")
    slow = dataclasses.replace(slow, seconds=seconds)
    errors = leave_one_out([*RUNS, slow], H200)
    assert errors.by_run["slow"] == pytest.approx(-1.0 / slow.seconds["step"])
    assert errors.worst == pytest.approx(max(abs(error) for error in errors.by_run.values()))


def test_the_shipped_table_is_predicted_within_the_error_that_the_page_states():
    errors = leave_one_out(read_table(), H200)
    assert len(errors.by_run) >= 5
    assert errors.mean < 0.20
    assert errors.worst < 0.30
    assert errors.by_part["update"] < 0.08
    assert errors.by_part["prefill"] + errors.by_part["decode"] < 0.05
    for run in read_table():
        assert sum(run.seconds[part] for part in PARTS) == pytest.approx(run.seconds["step"])


def test_decoding_cannot_be_faster_than_memory():
    work = Workload(episodes=1, turns=1, action_tokens=100, prompt_tokens=0, read_tokens=1)
    huge = dataclasses.replace(SHAPE, layers=80, width=8192, ffn=28672)
    found = predict(fit(RUNS, H200), H200, work, dataclasses.replace(settings_of(RUNS[0]), shape=huge, slots=1))
    assert found["decode"] == pytest.approx(100 * 2 * (huge.body + huge.head) / H200.bandwidth, rel=0.01)


@pytest.mark.parametrize("gpus", [2, 8])
def test_splits_add_up(gpus):
    config = load_config("gpu-multihop-qwen-500m")
    plan = make_plan(config, gpus=gpus)
    assert [split.sampling_gpus + split.learning_gpus for split in plan.splits] == [gpus] * (gpus - 1)
    for split in plan.splits:
        assert split.asynchronous < split.synchronous
        assert split.asynchronous >= max(split.sampling, split.learning)
    samplings = [split.sampling for split in plan.splits]
    assert samplings == sorted(samplings, reverse=True), "more workers sample sooner"
    learnings = [split.learning for split in plan.splits]
    assert learnings == sorted(learnings), "fewer learners learn later"
    decode = plan.parts["decode"]
    assert samplings[-1] > decode, "an episode's tokens come one after another, however many workers there are"


def test_a_workload_comes_from_measured_episodes_or_else_from_the_limits():
    measured, source = find_workload(load_config("gpu-multihop-qwen-500m"), read_table())
    assert measured.episodes == 384
    assert source.startswith("measured episodes of search_qa")
    config = tiny_config(rollout={"groups_per_step": 2, "group_size": 3, "max_turns": 4, "turn_tokens": 5})
    most, source = find_workload(config, read_table())
    assert (most.episodes, most.turns, most.action_tokens) == (6, 24, 120)
    assert "upper bound" in source


def test_hardware_that_was_not_measured_is_named():
    with pytest.raises(ConfigError, match=r"^--gpu: no run was measured on 'b300' \(known: h200\)[^\n]*$"):
        find_hardware("b300")


def learner_of(config, shape):
    """A learner on a CPU, and groups that fill one micro-batch."""
    model = load_model(config.model, seed=0, texts=lambda: ["a text"]).model
    learner = Learner(
        model,
        settings=config.learner,
        credit=CreditSettings(estimator="grpo"),
        loss=LossSettings(),
        temperature=1.0,
        total_steps=1,
        device=torch.device("cpu"),
    )
    width = 256
    rows = config.learner.tokens_per_microbatch // width
    episodes = [
        # Prompts differ from their first token on: equal ones would be read once.
        episode(turn([place + 1] * 128, [1] * (width - 128), opens=True, reward=float(place % 2)))
        for place in range(rows)
    ]
    return learner, [group(*episodes)]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("layers", "width", "heads"), [(2, 128, 4), (6, 64, 2), (4, 256, 8)])
def test_memory_is_what_a_learner_uses(layers, width, heads, checkpointing):
    """The tensors that are alive at the most in an update, counted op by op, beside those kept from before."""
    config = tiny_config(
        model={"small": {"layers": layers, "width": width, "heads": heads, "positions": 256, "induction": False}},
        learner={"tokens_per_microbatch": 1024, "checkpointing": checkpointing},
    )
    shape = find_shape(config.model, {})
    learner, groups = learner_of(config, shape)
    vocabulary = learner.model.get_input_embeddings().weight.shape[0]
    shape = dataclasses.replace(shape, vocabulary=vocabulary)
    found = learner_memory(config, shape, trained=shape.parameters, tile=2**20)
    learner.update(groups, seed=0)  # after which there are moments
    with PeakMemory() as memory:
        learner.update(groups, seed=1)
    kept = 3 * sum(p.numel() * p.element_size() for p in learner.model.parameters())
    assert 0.85 < found.total / (memory.peak + kept) < 1.5, "too much rather than too little"


def test_adapters_are_counted_as_they_are():
    config = tiny_config(model={"lora": {"rank": 3}})
    model = load_model(config.model, seed=0, texts=lambda: ["a text"]).model
    shape = find_shape(config.model, {})
    assert trained_parameters(config, shape) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_peak_memory_counts_what_is_alive_at_once():
    with PeakMemory() as memory:
        one = torch.zeros(1000)
        del one
        two = torch.zeros(500)
        three = two + 1
    assert memory.peak == 4000
    assert memory.now == 4000
    assert three.sum() == 500


def test_a_plan_is_calibrated_by_a_run_of_ones_own(tmp_path, capsys):
    run = run_tiny(tmp_path / "run", steps=6)
    config = tiny_config()
    measured = measure_run(run.path, run_settings(config, find_shape(config.model, {})), device="here")
    plan = make_plan(config, gpus=2, calibration=measured)
    assert plan.parts["step"] == pytest.approx(measured.seconds["step"], rel=0.2)
    assert plan.errors is None
    with pytest.raises(RunError, match="0 steps to go by, 3 are needed"):
        measure_run(run.path, run_settings(config, find_shape(config.model, {})), device="here", steps=(50, 60))


def test_a_probe_makes_a_few_steps_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measured = probe(tiny_config(sft=SFT), steps=3)
    assert measured.work.episodes == tiny_config().rollout.groups_per_step * tiny_config().rollout.group_size
    assert measured.seconds["step"] > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"^--probe: 2 steps are too few: 3 or more$"):
        probe(tiny_config(), steps=2)


def test_the_command_prints_prediction_and_error(capsys):
    assert main(["plan", "gpu-multihop-qwen-500m", "--gpus", "4"]) == 0
    shown = capsys.readouterr().out
    assert "each predicted from the others" in shown
    assert "best asynchronous" in shown
    assert main(["plan", "gpu-multihop-qwen-500m", "--gpu", "b300"]) == 2
    assert not math.isnan(float(shown.split("one GPU: ")[1].split(" s")[0]))
