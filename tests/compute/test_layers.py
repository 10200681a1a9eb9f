"""What is done to layers while they train: computed again, or compiled; the same gradients, and nothing left behind."""

import dataclasses
import functools

import pytest
import torch
from peft import LoraConfig, get_peft_model

from episodes_by_hand import LogitTable, episode, group, tiny_llama, turn, with_exact_logprobs
from layout_cases import CASES, GROUPS, assert_same_gradients, learner_of, update_of
from turnwise.compute import attention as attention_module
from turnwise.compute.layers import Compiled, activation_checkpointing, find_backbones, find_layers
from turnwise.compute.score import backbone_of, hidden_states
from turnwise.credit.estimate import CreditSettings
from turnwise.errors import ConfigError, ModelError
from turnwise.learner import batch as batch_module
from turnwise.learner import learner as learner_module
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings
from turnwise.ledger import Ledger
from turnwise.losses.settings import LossSettings
from turnwise.models.critic import Critic
from varlen_on_cpu import varlen_attention


def _kept(model, **layout):
    """How many numbers an update keeps for its backward passes, at most."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    learner = learner_of(CASES["grpo"], model=model, **layout)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.update(GROUPS, seed=0)
    return sum(sizes)


@pytest.mark.parametrize("name", ["grpo", "gae"])
@pytest.mark.parametrize("packing", [True, False])
def test_layers_that_are_run_again_give_the_same_gradients(monkeypatch, name, packing):
    expected, _ = update_of(learner_of(CASES[name]))
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    for budget in (1000, 14):
        learner = learner_of(CASES[name], packing=packing, budget=budget, checkpointing=True)
        assert_same_gradients(update_of(learner)[0], expected, 1e-8)


def test_layers_that_are_run_again_keep_less():
    deep = functools.partial(tiny_llama, num_hidden_layers=6)
    assert _kept(deep(), checkpointing=True) < 0.5 * _kept(deep())


def test_adapters_are_run_again_too():
    def adapted():
        torch.manual_seed(0)
        config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(tiny_llama(), config, autocast_adapter_dtype=False).double()

    expected, _ = update_of(learner_of(CASES["grpo"], model=adapted()))
    found, _ = update_of(learner_of(CASES["grpo"], model=adapted(), checkpointing=True, packing=True))
    assert_same_gradients(found, expected)


def test_layers_are_left_as_they_were():
    model = tiny_llama()
    learner = learner_of(CASES["grpo"], model=model, checkpointing=True)
    learner.update(GROUPS, seed=0)
    assert not any(layer.gradient_checkpointing for layer in find_layers(model))
    model.train()
    with activation_checkpointing(model):
        assert all(layer.gradient_checkpointing for layer in find_layers(model))


@pytest.mark.parametrize("option", ["compile", "checkpointing"])
def test_a_model_without_known_layers_is_refused(option):
    with pytest.raises(ConfigError, match=rf"^learner\.{option}: LogitTable has no layers [^\n]*set it to false$"):
        learner_of(CASES["grpo"], model=LogitTable(2, 3), **{option: True})


def test_compiled_layers_give_the_same_gradients(monkeypatch):
    """Traced as torch.compile traces them, but for the code that is generated, which takes a compiler and a minute."""
    expected, _ = update_of(learner_of(CASES["grpo"]))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    traced = torch._dynamo.utils.counters["stats"]
    model = tiny_llama()
    before = traced["unique_graphs"]
    learner = learner_of(CASES["grpo"], model=model, packing=True, budget=20, compile=True)
    found, _ = update_of(learner)
    assert_same_gradients(found, expected, 1e-8)
    graphs = traced["unique_graphs"] - before
    assert graphs > 0
    assert all(layer._compiled_call_impl is None for layer in find_layers(model))
    update_of(learner_of(CASES["grpo"], packing=True, budget=14, compile=True))
    learner.update(GROUPS, seed=1)
    assert traced["unique_graphs"] - before <= 2 * graphs, "other lengths are compiled once more at most"
    hidden_states(backbone_of(model), torch.tensor([[1, 2, 3]]))
    assert model.state_dict().keys() == tiny_llama().state_dict().keys()


def test_a_backbone_is_the_stack_of_layers_and_nothing_around_it():
    model = tiny_llama()
    critic = Critic(model)
    assert find_backbones(model) == [model.model]
    assert find_backbones(critic) == [critic.backbone]
    assert find_backbones(model, critic) == [model.model, critic.backbone]
    adapted = get_peft_model(tiny_llama(), LoraConfig(r=2, target_modules="all-linear"))
    assert find_backbones(adapted) == [backbone_of(adapted)]
    assert find_backbones(LogitTable(2, 3), torch.nn.ModuleList([torch.nn.Linear(2, 2)])) == []


def test_whole_backbones_give_the_same_gradients(monkeypatch):
    """Of the policy and of the critic, traced as above. Padded, since on a CPU packed rows are not in one graph."""
    expected, _ = update_of(learner_of(CASES["turn-gae"]))
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    model = tiny_llama()
    learner = learner_of(CASES["turn-gae"], model=model, packing=False)
    whole = Compiled(model, learner.critic, whole_backbones=True)
    learner.runner = dataclasses.replace(learner.runner, compiled=whole)
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    found, _ = update_of(learner)
    assert any("critic" in name for name in found)
    assert_same_gradients(found, expected, 1e-8)
    assert counters["stats"]["unique_graphs"] - before == 2, "with gradients and without, for all layers of both"
    assert not any("forward" in layer.__dict__ for layer in find_layers(model, learner.critic))
    backbones = find_backbones(model, learner.critic)
    assert [backbone._compiled_call_impl for backbone in backbones] == [None, None]
    assert model.state_dict().keys() == tiny_llama().state_dict().keys()


@pytest.mark.parametrize("whole", [True, False])
def test_compiled_packed_rows_give_the_same_gradients_and_are_compiled_once(monkeypatch, whole):
    """As on a GPU, whose attention is one operator; rows of any length, with and without a prompt in common."""
    expected, _ = update_of(learner_of(CASES["turn-gae"], model=tiny_llama(dtype=torch.float32)))
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    monkeypatch.setattr(attention_module, "_has_kernel", lambda query: True)
    monkeypatch.setattr(attention_module, "_varlen_kernel", varlen_attention)
    model = tiny_llama(dtype=torch.float32)
    learner = learner_of(CASES["turn-gae"], model=model, packing=True, budget=20)
    compiled = Compiled(model, learner.critic, whole_backbones=whole)
    learner.runner = dataclasses.replace(learner.runner, compiled=compiled)
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    found, update = update_of(learner)
    assert update.metrics["batch/shared_share"] > 0
    assert_same_gradients(found, expected, 1e-6)
    learner.update(GROUPS[:1], seed=1)
    learner.update([group(episode(turn([1] * 40, [2, 3], opens=True, reward=1.0))), *GROUPS[1:]], seed=2)
    assert counters["stats"]["unique_graphs"] - before == 2, "with gradients and without, for all layers and lengths"


def test_a_whole_backbone_is_compiled_once_for_rows_of_any_length(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    model = tiny_llama()
    ids = torch.arange(40)[None] % 7
    positions = torch.cat([torch.arange(9), torch.arange(31)])[None]
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    with Compiled(model, whole_backbones=True).in_use():
        for width in (16, 24, 40, 32, 12, 36):
            found = hidden_states(backbone_of(model), ids[:, :width].clone(), positions[:, :width].clone())
            assert found.shape[1] == width
    # With newer torch and transformers the first graph is dynamic; with older ones the second length makes it so.
    assert counters["stats"]["unique_graphs"] - before <= 2


def test_code_that_cannot_be_read_back_is_not_written_down():
    kept = torch._inductor.config.fx_graph_cache
    for whole in (True, False):
        with Compiled(tiny_llama(), whole_backbones=whole).in_use():
            assert torch._inductor.config.fx_graph_cache is (kept and not whole)
        assert torch._inductor.config.fx_graph_cache is kept


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_compiled_is_put_back_when_a_pass_fails(monkeypatch, whole):
    model = tiny_llama()
    parts, others = (
        (find_backbones(model), find_layers(model)) if whole else (find_layers(model), find_backbones(model))
    )
    learner = learner_of(CASES["gigpo"], model=model)
    learner.runner = dataclasses.replace(learner.runner, compiled=Compiled(model, whole_backbones=whole))

    def fail(*_):
        assert all(part._compiled_call_impl is not None for part in parts)
        assert all(other._compiled_call_impl is None for other in others)
        own = ["forward" in layer.__dict__ for layer in find_layers(model)]
        assert own == [whole] * len(own), "within a backbone, layers are regions of its graph"
        raise ZeroDivisionError

    monkeypatch.setattr(learner_module, "score", fail)
    with pytest.raises(ZeroDivisionError):
        learner.update(GROUPS, seed=0)
    assert not any("forward" in layer.__dict__ for layer in find_layers(model))
    assert all(part._compiled_call_impl is None for part in (*parts, *others))


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_does_not_compile_is_told_in_a_line(monkeypatch, whole):
    def refuse(graph, inputs):
        raise RuntimeError("no compiler\nhere is a long story")

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=refuse))
    model = tiny_llama()
    learner = learner_of(CASES["grpo"], model=model)
    compiled = Compiled(model, whole_backbones=whole, setting="learner.compile")
    learner.runner = dataclasses.replace(learner.runner, compiled=compiled)
    said = r"^torch\.compile failed \(RuntimeError: no compiler\): set learner\.compile: false$"
    with pytest.raises(ModelError, match=said):
        learner.update(GROUPS, seed=0)
    assert all(part._compiled_call_impl is None for part in (*find_layers(model), *find_backbones(model)))


def _in_halves(device, *, compile):
    """Gradients of packed rows under autocast, in micro-batches of several lengths, some with a prompt in common."""
    model = tiny_llama(dtype=torch.float32, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    groups = with_exact_logprobs(model, GROUPS, temperature=0.9)  # so that no ratio lies at the edge of a clip
    learner = Learner(
        model,
        settings=LearnerSettings(packing=True, tokens_per_microbatch=12, compile=compile),
        credit=CreditSettings(**CASES["grpo"]["credit"]),
        loss=LossSettings(**CASES["grpo"]["loss"]),
        temperature=0.9,
        total_steps=1,
        device=torch.device(device),
        autocast=torch.bfloat16,
    )
    return update_of(learner, groups)


@pytest.mark.gpu  # only there is attention over packed rows part of one graph
@pytest.mark.parametrize("compile", [True, "layers"])
def test_compiled_code_on_a_gpu_gives_the_same_gradients(monkeypatch, compile):
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    expected, _ = _in_halves("cuda", compile=False)
    found, update = _in_halves("cuda", compile=compile)
    assert update.metrics["batch/shared_share"] > 0
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert_same_gradients(found, expected, 0.05 * largest)


def test_passes_before_the_update_have_an_account_of_their_own():
    class Book(Ledger):
        def spend(self, account):
            opened.append(account)
            return super().spend(account)

    opened = []
    learner_of(CASES["gae"], ledger=Book()).update(GROUPS, seed=0)
    assert opened == ["update", "logprobs", "logprobs"], "the reference's, the critic's"
    opened.clear()
    learner_of(CASES["gigpo"], ledger=Book()).update(GROUPS, seed=0)
    assert opened == ["update"]


@pytest.mark.parametrize(
    ("credit", "loss", "first"),
    [
        ({"estimator": "rloo"}, {}, "score"),
        ({"estimator": "gae"}, {}, "prepare_loss_inputs"),
        ({"estimator": "rloo"}, {"kl_coef": 0.1}, "prepare_loss_inputs"),
        ({"estimator": "rloo"}, {"action_mask": False}, "prepare_loss_inputs"),
        ({"estimator": "rloo"}, {"tis_cap": 2.0}, "prepare_loss_inputs"),
    ],
)
def test_loss_inputs_that_need_no_model_are_made_behind_the_first_forward(monkeypatch, credit, loss, first):
    called = []

    def note(name):
        real = getattr(learner_module, name)

        def noted(*arguments, **settings):
            called.append(name)
            return real(*arguments, **settings)

        monkeypatch.setattr(learner_module, name, noted)

    note("score")
    note("prepare_loss_inputs")
    learner_of({"credit": credit, "loss": loss}, budget=20).update(GROUPS, seed=0)
    assert called[0] == first
    assert called.count("prepare_loss_inputs") == 1
    assert called.count("score") > 1
