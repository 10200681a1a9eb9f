"""What is compiled that nobody asked for: where it pays, and only if it works."""

import functools
from types import SimpleNamespace

import pytest
import torch

from episodes_by_hand import tiny_llama
from layout_cases import CASES, GROUPS, assert_same_gradients, learner_of, update_of
from turnwise.learner import compiling as compiling_module
from turnwise.learner import settings as settings_module
from turnwise.learner.compiling import _may_compile, compile_passes
from turnwise.learner.parallel import SINGLE, SingleProcess
from turnwise.learner.settings import LearnerSettings, SFTSettings

LARGE, SMALL, CPU, GPU = 50_000_000, 49_999_999, torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("settings", "parameters", "steps", "chosen"),
    [
        (LearnerSettings(), LARGE, 30, "layers"),
        (LearnerSettings(), LARGE, 29, False),
        (LearnerSettings(), SMALL, 30, False),
        (LearnerSettings(checkpointing=True), LARGE, 30, False),
        (LearnerSettings(activation_offload=True), LARGE, 30, False),
        (LearnerSettings(shard=True), LARGE, 30, False),
        (LearnerSettings(compile=True), SMALL, 1, True),
        (LearnerSettings(compile=False), LARGE, 999, False),
        (LearnerSettings(compile="layers", checkpointing=True), SMALL, 1, "layers"),
        (SFTSettings(), LARGE, 100, "layers"),
        (SFTSettings(), LARGE, 99, False),
        (SFTSettings(), SMALL, 100, False),
        (SFTSettings(compile=False), LARGE, 999, False),
        (SFTSettings(compile="layers"), SMALL, 1, "layers"),
    ],
)
def test_a_large_model_and_a_long_run_win_back_what_compiling_takes(settings, parameters, steps, chosen):
    assert settings.compile_for(parameters=parameters, steps=steps) == chosen


@pytest.mark.parametrize(
    ("device", "parallel", "model", "may"),
    [
        (GPU, SINGLE, tiny_llama, True),
        (CPU, SINGLE, tiny_llama, False),
        (GPU, SingleProcess(), tiny_llama, False),
        (GPU, SINGLE, lambda: torch.nn.Linear(2, 2), False),
    ],
)
def test_one_process_on_a_gpu_compiles_layers_that_it_knows(device, parallel, model, may):
    assert _may_compile(SimpleNamespace(device=device, parallel=parallel), model()) is may


@pytest.fixture
def on_gpu(monkeypatch):
    """As if the model were large and on a GPU; compiled by `backend`."""

    def pretend(backend):
        torch._dynamo.reset()
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
        monkeypatch.setattr(compiling_module, "_may_compile", lambda runner, model: True)
        monkeypatch.setattr(settings_module, "LARGE", 0)

    return pretend


@pytest.mark.parametrize("case", ["grpo", "gae"])
@pytest.mark.parametrize("packing", [True, False])
def test_what_works_is_compiled_and_gives_the_same_gradients(case, packing, on_gpu):
    plain, expected = update_of(learner_of(CASES[case], packing=packing))
    on_gpu("aot_eager")
    learner = learner_of(CASES[case], packing=packing, compile=None, total_steps=30)
    assert learner.runner.compiled is not None
    assert all(parameter.grad is None for parameter in learner.model.parameters()), "none of the trial is left"
    found, update = update_of(learner)
    assert_same_gradients(found, plain, 1e-6)
    assert update.metrics["policy/loss"] == pytest.approx(expected.metrics["policy/loss"], abs=1e-6)


def test_what_does_not_work_is_left_out_and_said(on_gpu, caplog):
    def refuse(graph, inputs):
        raise RuntimeError("no compiler\nhere is a long story")

    on_gpu(refuse)
    learner = learner_of(CASES["grpo"], compile=None, total_steps=30)
    assert learner.runner.compiled is None
    said = "torch.compile failed (RuntimeError: no compiler): set learner.compile: false"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("turnwise")]
    assert ours == [f"passes of the model run uncompiled, and take longer: {said}"]
    learner.update(GROUPS, seed=0)


def test_what_is_asked_for_is_tried_by_the_first_update(on_gpu):
    """Its error names the setting: to go on without it would not be what was asked for."""
    on_gpu("aot_eager")
    model, runner = tiny_llama(), learner_of(CASES["grpo"]).runner
    tried = []
    model.get_decoder().register_forward_hook(lambda *_: tried.append(1))
    made = compile_passes(runner, LearnerSettings(compile="layers"), model, steps=1, setting="learner.compile")
    assert (made.compiled is not None, tried) == (True, [])
    assert compile_passes(runner, LearnerSettings(), model, steps=29, setting="learner.compile") is runner
