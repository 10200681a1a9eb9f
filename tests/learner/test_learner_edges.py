"""Small promises of the learner's room, each by itself: budgets to the token, metrics by hand, modes put back."""

import hashlib
import logging
import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from episodes_by_hand import VOCABULARY, episode, group, tiny_llama, turn, with_exact_logprobs
from turnwise.compute.layers import find_layers
from turnwise.credit.base import Credit
from turnwise.credit.estimate import CreditSettings
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.learner import compiling as compiling_module
from turnwise.learner import forward_runner as forward_runner_module
from turnwise.learner import learner as learner_module
from turnwise.learner import sft as sft_module
from turnwise.learner.batch import _SHORT_PROMPT, Batch
from turnwise.learner.check import check_settings
from turnwise.learner.compiling import compiles_whole
from turnwise.learner.cross_score import Reply, cross_score
from turnwise.learner.forward_runner import ForwardRunner, Packing, choose_packing, mode, seeded
from turnwise.learner.group import LearnerGroup
from turnwise.learner.learner import Learner
from turnwise.learner.loss_inputs import _credit_metrics, _logprob_error, needs_forward
from turnwise.learner.optimizer import Optimizer, OptimizerStep
from turnwise.learner.parallel import SINGLE
from turnwise.learner.parallel.base import SingleProcess
from turnwise.learner.settings import LearnerSettings, OptimizerSettings, SFTSettings
from turnwise.learner.sft import SFTLearner
from turnwise.learner.skipping import mean_surprisal
from turnwise.learner.step_metrics import summarise_steps
from turnwise.ledger import Ledger
from turnwise.losses.settings import LossSettings
from turnwise.models.critic import Critic
from turnwise.types import StopReason

CPU = torch.device("cpu")
GOOD = episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0))
BAD = episode(turn([1, 2], [3, 8], opens=True), turn([5, 6], [9]))


def learner(model, *, estimator="grpo", loss=None, **settings):
    return Learner(
        model,
        settings=LearnerSettings(optimizer=OptimizerSettings(lr=0.01), **settings),
        credit=CreditSettings(estimator=estimator),
        loss=LossSettings(**(loss or {})),
        temperature=1.0,
        total_steps=10,
        device=CPU,
    )


def runner(**settings):
    return ForwardRunner(**{"device": CPU, "autocast": None, "temperature": 1.0, "token_budget": 64} | settings)


def noisy_gpt2():
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    rates = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **shape, **rates))


def row(length, prompt=1):
    return episode(turn(range(prompt), range(length - prompt), opens=True))


@pytest.mark.parametrize("packing", [False, True])
def test_a_micro_batch_may_be_as_large_as_the_budget_and_no_larger(packing):
    batch = Batch.of([group(row(4), row(4), row(4))])
    sizes = {budget: [micro.ids.numel() for micro in batch.micro_batches(budget, packing=packing)] for budget in (8, 7)}
    assert sizes == {8: [8, 4], 7: [4, 4, 4]}


def test_rows_are_padded_and_taken_one_by_one_unless_more_is_asked_for():
    rewritten = episode(turn([1], [2, 3], opens=True), turn([4], [5], opens=True))
    (short, *_) = micros = list(Batch.of([group(rewritten, row(3))]).micro_batches(3))
    assert len(micros) == 3, "rows of one trajectory are apart"
    assert short.positions is None
    assert short.shared == 0


def test_a_prompt_just_long_enough_is_shared_and_its_rows_go_longest_first():
    prompt = range(_SHORT_PROMPT)
    ends = ([1], [2, 3, 4], [5, 6])
    batch = Batch.of([group(*(episode(turn(prompt, end, opens=True)) for end in ends))])
    (micro,) = batch.micro_batches(1000, packing=True, share_prompts=True)
    assert micro.shared == 2 * _SHORT_PROMPT
    assert micro.ids[0, _SHORT_PROMPT:].tolist() == [2, 3, 4, 5, 6, 1]


def test_rows_with_one_prompt_count_as_long_as_the_longest_of_them():
    """A family of 40 and 33 goes before a row of 36, though one of it is shorter."""
    prompt = range(_SHORT_PROMPT)
    family = [episode(turn(prompt, range(rest), opens=True)) for rest in (1, 8)]
    batch = Batch.of([group(*family, row(36, prompt=2))])
    (micro,) = batch.micro_batches(1000, packing=True, share_prompts=True)
    assert micro.positions[0, :40].tolist() == list(range(40))
    assert micro.positions[0, -36:].tolist() == list(range(36))


def test_a_shared_prompt_counts_once_in_the_budget():
    prompt = range(40)
    batch = Batch.of([group(*(episode(turn(prompt, [said], opens=True)) for said in (1, 2, 3)))])
    sizes = [
        [micro.ids.numel() for micro in batch.micro_batches(budget, packing=True, share_prompts=True)]
        for budget in (43, 42)
    ]
    assert sizes == [[43], [42, 41]]


def test_values_of_a_tail_are_no_actions():
    cut = episode(turn([1], [2, 3], opens=True), stop=StopReason.MAX_TURNS, tail=(8, 9))
    batch = Batch.of([group(cut, cut)])
    assert batch.spread(torch.tensor([0.5, 1.5, 2.5, 3.5])).tolist() == [0.5, 0.5, 1.5, 0, 0, 2.5, 2.5, 3.5, 0, 0]
    assert batch.by_turn(torch.arange(10.0)) == (((1.0, 2.0),), ((6.0, 7.0),))


def metrics_of(groups, advantage, **credit):
    old_value = credit.pop("old_value", None)
    batch = Batch.of(groups)
    return _credit_metrics(batch, Credit(advantage=torch.tensor(advantage, dtype=torch.double), **credit), old_value)


def one(reward):
    return episode(turn([1], [2], opens=True, reward=reward))


def test_metrics_of_credit_by_hand():
    groups = [group(one(1), one(1)), group(one(0), one(1)), group(one(2), one(2), one(2)), group(one(5))]
    metrics = metrics_of(groups, [1.0, -1.0] * 4)
    assert (metrics["credit/advantage_mean"], metrics["credit/advantage_std"]) == (0.0, 1.0)
    assert metrics["credit/zero_variance_groups"] == pytest.approx(2 / 3), "a group of one has none to lack"


def test_groups_of_one_have_no_variance_to_lack():
    assert "credit/zero_variance_groups" not in metrics_of([group(one(1)), group(one(0))], [1.0, -1.0])


def test_what_a_critic_explains_by_hand():
    """Targets 0, 2, 4, 6 have a variance of 5; the errors −1, 1, −1, 1 one of 1."""
    groups = [group(one(1), one(0)), group(one(1), one(0))]
    target = torch.tensor([0.0, 2.0, 4.0, 6.0], dtype=torch.double)
    value = torch.zeros(8, dtype=torch.double)
    value[1::2] = torch.tensor([1.0, 1.0, 5.0, 5.0])
    metrics = metrics_of(groups, [0.0] * 4, value_target=target, old_value=value)
    assert metrics["critic/explained_variance"] == pytest.approx(0.8)
    assert metrics["critic/value_mean"] == 3.0
    flat = metrics_of(groups, [0.0] * 4, value_target=torch.full_like(target, 0.5), old_value=value)
    assert flat["critic/explained_variance"] == 0.0
    mask = torch.tensor([True, True, False, False])
    read = metrics_of(groups, [0.0] * 4, value_target=target, old_value=value, value_mask=mask)
    assert read["critic/explained_variance"] == 0.0, "targets 0 and 2, both taken for 1"
    assert read["critic/value_mean"] == 1.0
    small = metrics_of(groups, [0.0] * 4, value_target=target / 100, old_value=value / 100)
    assert small["critic/explained_variance"] == pytest.approx(0.8), "whatever the scale of the rewards"


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 64 * 2**-23), (torch.bfloat16, 8 * 2**-7)])
def test_a_logprob_near_zero_carries_the_rounding_of_the_logits_it_is_made_of(dtype, roundings):
    logprob = torch.tensor([-0.001, -1.0, -3.0], dtype=torch.double)
    assert (_logprob_error(logprob, dtype) / roundings).tolist() == pytest.approx([1.0, 1.0, 3.0])


def test_passes_without_gradients_are_without_dropout_and_leave_every_mode_as_it_was():
    model = noisy_gpt2().train()
    model.transformer.ln_f.eval()
    critic = Critic(noisy_gpt2().train())
    with torch.no_grad():
        critic.head.weight.normal_()
    batch = Batch.of([group(GOOD, BAD)])
    for again in (lambda: runner().logprobs(model, batch, batch.action), lambda: runner().state_values(critic, batch)):
        assert torch.equal(again(), again())
    assert model.training
    assert not model.transformer.ln_f.training


def test_a_mode_is_left_behind_also_when_what_ran_in_it_failed():
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    seen = []

    def fail():
        with mode(module, training=False):
            seen.extend(inner.training for inner in module.modules())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen == [False, False, False]
    assert [inner.training for inner in module.modules()] == [True, True, False]


def test_sft_trains_with_dropout_reads_each_layer_once_and_computes_no_entropy(monkeypatch):
    model = noisy_gpt2().eval()
    asked, passes, real = [], [], sft_module.score

    def score(*given, entropy, **more):
        asked.append((model.training, entropy))
        return real(*given, entropy=entropy, **more)

    monkeypatch.setattr(sft_module, "score", score)
    find_layers(model)[0].register_forward_hook(lambda *_: passes.append(1))
    trained = SFTLearner(model, SFTSettings(), total_steps=1, seed=0)
    trained.step(Batch.of([group(GOOD)]), step=0)
    assert asked == [(True, False)]
    assert len(passes) == 1
    assert not model.training


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 1), (True, 2)])
def test_layers_run_again_in_the_backward_pass_only_with_checkpointing(checkpointing, passes):
    model, ran = tiny_llama(), []
    groups = with_exact_logprobs(model, [group(GOOD, BAD)])
    trained = learner(model, checkpointing=checkpointing)
    find_layers(model)[0].input_layernorm.register_forward_hook(lambda *_: ran.append(1))
    trained.update(groups, seed=0)
    assert len(ran) == passes


def test_rows_of_one_trajectory_may_be_apart_in_a_pass_without_gradients():
    rewritten = episode(turn([1], [2, 3], opens=True), turn([4], [5], opens=True))
    batch = Batch.of([group(rewritten)])
    assert len(list(runner(token_budget=3).micro_batches(batch))) == 2
    assert len(list(runner(token_budget=3).micro_batches(batch, whole_trajectories=True))) == 1


@pytest.mark.parametrize(("ratio", "passes"), [("turn", 2), ("trajectory", 1)])
def test_rows_of_one_trajectory_are_read_together_where_its_tokens_share_a_ratio(ratio, passes):
    rewritten = episode(turn([1], [2, 3], opens=True, reward=1.0), turn([4], [5], opens=True))
    model, ran = tiny_llama(), []
    trained = learner(model, loss={"form": "gspo", "ratio": ratio}, tokens_per_microbatch=3, packing=False)
    find_layers(model)[0].register_forward_hook(lambda *_: ran.append(1))
    trained.update([group(rewritten, rewritten)], seed=0)
    assert len(ran) == 2 * passes


def test_micro_batches_that_had_to_shrink_are_a_metric():
    model = tiny_llama()
    trained, groups = learner(model, tokens_per_microbatch=16), [group(GOOD, BAD)]
    assert "learner/tokens_per_microbatch" not in trained.update(groups, seed=0).metrics
    trained.runner = replace(trained.runner, token_budget=8)
    assert trained.update(groups, seed=1).metrics["learner/tokens_per_microbatch"] == 8.0


@pytest.mark.parametrize(
    ("checkpointing", "can", "whole"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_checkpoints_between_layers_keep_a_backbone_from_being_one_graph(checkpointing, can, whole, monkeypatch):
    asked = []
    monkeypatch.setattr(compiling_module, "compiles_whole", lambda *given: can)
    monkeypatch.setattr(
        compiling_module, "Compiled", lambda *modules, whole_backbones, setting: asked.append(whole_backbones)
    )
    learner(tiny_llama(), compile=True, checkpointing=checkpointing)
    assert asked == [whole]


@pytest.mark.parametrize(
    ("offload", "memory", "gradients", "used"),
    [(True, True, True, 1), (False, True, True, 0), (True, False, True, 0), (True, True, False, 0)],
)
def test_activations_are_offloaded_where_it_is_asked_for_and_of_use(offload, memory, gradients, used, monkeypatch):
    entered = []

    @contextmanager
    def note():
        entered.append(1)
        yield

    monkeypatch.setattr(forward_runner_module, "activation_offload", note)
    monkeypatch.setattr(forward_runner_module, "_has_memory_of_its_own", lambda device: memory)
    with torch.set_grad_enabled(gradients), runner(offload=offload).running(torch.nn.Linear(1, 1), dropout=False):
        assert len(entered) == used
    with runner(compiled=SimpleNamespace(in_use=note)).running(torch.nn.Linear(1, 1), dropout=False):
        assert len(entered) == used + 1, "and what is compiled is in use"


def test_chance_within_follows_from_the_seed_and_goes_on_as_before_afterwards():
    torch.manual_seed(1)
    drawn, after = [], []
    for _ in range(2):
        with seeded(3, CPU):
            drawn.append(float(torch.rand(())))
        after.append(float(torch.rand(())))
    torch.manual_seed(1)
    assert drawn[0] == drawn[1]
    assert after == [float(torch.rand(())) for _ in range(2)]


@pytest.mark.parametrize(
    ("asked", "supported", "packing"),
    [
        (None, True, Packing.BY_ROWS),
        (None, False, Packing.PADDED),
        (True, True, Packing.BY_ROWS),
        (True, False, Packing.MASKED),
        (False, True, Packing.PADDED),
    ],
)
def test_rows_are_packed_as_asked_and_as_the_model_can(asked, supported, packing, monkeypatch):
    monkeypatch.setattr(forward_runner_module, "supports_varlen_attention", lambda model, device: supported)
    assert choose_packing(tiny_llama(), CPU, asked=asked) is packing


@pytest.mark.parametrize(
    ("asked", "device", "packing", "whole"),
    [
        (True, "cuda", Packing.BY_ROWS, True),
        ("layers", "cuda", Packing.BY_ROWS, False),
        (False, "cuda", Packing.BY_ROWS, False),
        (True, "cpu", Packing.BY_ROWS, False),
        (True, "cuda", Packing.PADDED, False),
    ],
)
def test_a_backbone_is_one_graph_where_it_can_be_and_is_asked_for(asked, device, packing, whole):
    assert compiles_whole(asked, torch.device(device), packing) is whole


def test_surprisal_is_a_mean_whatever_the_weights_sum_to():
    said = episode(turn([1], [2, 3], opens=True, logprobs=[-1.0, -3.0]))
    batch = Batch.of([group(said)])
    for scale in (1.0, 0.25):
        assert mean_surprisal(batch, scale * torch.tensor([0.0, 3.0, 1.0])) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("critic", "reference", "old_policy", "action_mask", "needed"),
    [
        (None, None, "sampler", True, False),
        ("critic", None, "sampler", True, True),
        (None, "reference", "sampler", True, True),
        (None, None, "learner", True, True),
        (None, None, "current", True, False),
        (None, None, "sampler", False, True),
    ],
)
def test_what_takes_a_pass_before_the_update(critic, reference, old_policy, action_mask, needed):
    """Tokens that were read and not sampled have no logprob of the sampler's."""
    batch = Batch.of([group(GOOD)], action_mask=action_mask)
    assert needs_forward(batch, critic=critic, reference=reference, old_policy=old_policy) is needed


def test_tokens_that_were_never_sampled_are_no_gap_of_the_sampler():
    model = tiny_llama()
    trained = learner(model, loss={"action_mask": False})
    metrics = trained.update(with_exact_logprobs(model, [group(GOOD, BAD)]), seed=0).metrics
    assert metrics["policy/sampler_gap"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/sampler_gap_max"] == pytest.approx(0, abs=1e-6)


def test_a_model_is_checked_before_it_learns(monkeypatch):
    """In evaluation mode, whatever mode it is in: dropout is no mistake of its own."""
    learner(noisy_gpt2().train())

    def refuse(*given, **more):
        raise ConfigError("it scores rows wrongly")

    monkeypatch.setattr(learner_module, "check_packing", refuse)
    learner(tiny_llama(), packing=False)
    monkeypatch.setattr(learner_module, "choose_packing", lambda *given, asked: Packing.MASKED)
    with pytest.raises(ConfigError, match="it scores rows wrongly"):
        learner(tiny_llama())
    monkeypatch.undo()
    monkeypatch.setattr(learner_module, "check_scoring", refuse)
    with pytest.raises(ConfigError, match="it scores rows wrongly"):
        learner(tiny_llama())


@pytest.mark.parametrize(("estimator", "read"), [("grpo", False), ("gae", True)])
def test_what_follows_the_last_action_is_read_by_a_critic_alone(estimator, read):
    cut = episode(turn([1], [2, 3], opens=True), stop=StopReason.MAX_TURNS, tail=(8, 9))
    assert bool(learner(tiny_llama(), estimator=estimator).lay_out([group(cut, cut)]).tail.any()) is read


def test_ranks_that_differ_in_a_batch_or_in_weights_have_another_fingerprint():
    model = tiny_llama()
    one = learner(model)
    paid = episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=2.0))
    seen = [one._fingerprint(Batch.of([group(first, BAD)])) for first in (GOOD, GOOD, paid)]
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1.0
    seen.append(one._fingerprint(Batch.of([group(GOOD, BAD)])))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_an_update_is_charged_to_its_ledger():
    ledger, model = Ledger(), tiny_llama()
    trained = Learner(
        model,
        settings=LearnerSettings(),
        credit=CreditSettings(estimator="gae"),
        loss=LossSettings(),
        temperature=1.0,
        total_steps=1,
        device=CPU,
        ledger=ledger,
    )
    trained.update(with_exact_logprobs(model, [group(GOOD, BAD)]), seed=0)
    assert {"update", "logprobs"} <= {name for name, seconds in ledger.close_step().seconds.items() if seconds > 0}


def test_a_reference_is_kept_only_where_something_is_held_to_it():
    assert learner(tiny_llama()).reference is None
    assert learner(tiny_llama(), loss={"kl_coef": 0.01}).reference is not None


def test_an_update_of_nothing_counts_as_one_and_returns_a_place_for_every_trajectory():
    one_learner = learner(tiny_llama())
    update = one_learner.update([group(episode(), episode())], seed=0)
    assert (one_learner.version, update.advantages) == (1, ((), ()))
    assert (update.logprobs, update.entropies, update.first_clip_fraction) == ((), (), None)


def test_tokens_of_a_pair_are_enough_to_compare():
    model = tiny_llama()
    update = learner(model).update(with_exact_logprobs(model, [group(GOOD, BAD)]), seed=0)
    assert update.metrics["policy/steps_taken"] == 1
    with pytest.raises(ConfigError, match="every group has only one"):
        learner(model).update([group(GOOD), group(BAD)], seed=0)
    mixed = learner(model).update(with_exact_logprobs(model, [group(GOOD), group(GOOD, BAD)]), seed=0)
    assert mixed.metrics["policy/steps_taken"] == 1


@pytest.mark.parametrize(
    ("loss", "warned"),
    [
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, True),
        ({"kl_coef": 0.1}, False),
        ({"kl_coef": 0.1, "kl_estimator": "k1", "kl_in": "reward"}, False),
        ({"kl_estimator": "k1"}, False),
    ],
)
def test_a_kl_term_that_holds_nothing_is_warned_of(loss, warned, caplog):
    with caplog.at_level(logging.WARNING):
        check_settings(tiny_llama(), LearnerSettings(), LossSettings(**loss), 0.5)
    assert ("zero mean" in caplog.text) is warned


@pytest.mark.parametrize("option", ["compile", "checkpointing"])
def test_what_works_by_layers_needs_layers_and_nothing_else_does(option):
    plain = torch.nn.Linear(2, 2)
    check_settings(plain, LearnerSettings(), LossSettings(), 1.0)
    with pytest.raises(ConfigError, match=rf"^learner\.{option}: Linear has no layers"):
        check_settings(plain, LearnerSettings(**{option: True}), LossSettings(), 1.0)


class Gone(SingleProcess):
    """The other ranks have ended."""

    def broadcast(self, value):
        raise TurnwiseError("another process of this run has ended")


def test_ranks_that_are_gone_are_an_error_of_a_run_that_went_well_and_not_the_cause_of_one_that_failed():
    with pytest.raises(TurnwiseError, match="has ended"), LearnerGroup(Gone()):
        pass
    with pytest.raises(ConfigError, match="the cause"), LearnerGroup(Gone()):
        raise ConfigError("the cause")


@pytest.mark.parametrize("limit", [4, 3])
def test_where_no_room_is_left_one_token_of_each_reasoning_is_compared(limit):
    replies = [Reply(prompt=(1, 2), reasoning=(3, 4, 5)), Reply(prompt=(1, 6, 7, 8), reasoning=(9, 2))]
    cut = [Reply(prompt=reply.prompt, reasoning=reply.reasoning[:1]) for reply in replies]
    model = tiny_llama()
    expected = cross_score(model, cut, runner(), context_limit=32)
    assert cross_score(model, replies, runner(), context_limit=limit) == pytest.approx(expected)


@pytest.mark.parametrize(("total", "warmup", "expected"), [(1, 0, [1, 0, 0]), (2, 2, [0.5, 1, 1, 0])])
def test_a_schedule_as_short_as_its_warm_up(total, warmup, expected):
    settings = OptimizerSettings(lr=1.0, schedule="linear", warmup_steps=warmup)
    steps = Optimizer(torch.nn.Linear(1, 1), settings, total_steps=total)
    assert [steps.lr(step) for step in range(len(expected))] == pytest.approx(expected)


def test_two_broken_gradients_in_a_row_are_forgiven_time_and_again():
    module = torch.nn.Linear(1, 1, bias=False)
    steps = Optimizer(module, OptimizerSettings(lr=0.1), total_steps=10)
    for norm in [math.nan, math.inf, 1.0] * 3:
        steps.settle(0, norm)
    assert steps.state_dict()["skipped_in_a_row"] == 0
    assert "masters" not in steps.state_dict(), "float32 weights are their own masters"


def test_a_small_gradient_is_taken():
    steps = Optimizer(torch.nn.Linear(1, 1), OptimizerSettings(lr=0.1), total_steps=10)
    assert [steps.settle(0, norm).outcome for norm in (0.5, 1.0, 0.0, math.nan)] == [
        "taken",
        "taken",
        "idle",
        "skipped",
    ]


def test_a_process_alone_is_the_first_of_one():
    assert (SINGLE.rank, SINGLE.world, SINGLE.is_main, SINGLE.is_sharded) == (0, 1, True, False)
    assert SINGLE.agree(str)


def test_a_process_alone_reads_shards_by_itself_whoever_else_has_begun_an_exchange(monkeypatch):
    read = []
    monkeypatch.setattr("turnwise.learner.parallel.base.read_shards", lambda *given, alone: read.append((given, alone)))
    SINGLE.read_shards("folder", {})
    assert read == [(("folder", {}), True)]


def test_a_process_alone_hashes_the_shards_that_it_wrote(tmp_path, monkeypatch):
    """It writes all of every tensor, 16 and 8 bytes here, of which two do not fit into a file of 16."""
    monkeypatch.setattr("turnwise.models.shards._FILE_BYTES", 16)
    hashes = SINGLE.write_shards(tmp_path, {"weights/a": torch.arange(4.0), "weights/b": torch.ones(2)})
    written = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in tmp_path.iterdir()}
    assert hashes == written
    assert len(written) == 2


def test_the_metrics_of_an_update_are_means_over_its_sound_steps():
    steps = [
        ({"policy/loss": 1.0}, OptimizerStep(grad_norm=2.0, outcome="taken")),
        ({"policy/loss": 4.0}, OptimizerStep(grad_norm=0.0, outcome="idle")),
        ({"policy/loss": math.nan}, OptimizerStep(grad_norm=math.inf, outcome="skipped")),
    ]
    counts = {"policy/steps_taken": 1, "policy/steps_idle": 1, "policy/steps_skipped": 1}
    assert summarise_steps("policy", steps) == {"policy/loss": 2.5, "policy/grad_norm": 1.0, **counts}
    none = {"policy/steps_taken": 0, "policy/steps_idle": 0, "policy/steps_skipped": 1}
    assert summarise_steps("policy", steps[2:]) == none


def test_layers_are_run_once_unless_checkpointing_is_asked_for():
    assert (runner().checkpointing, runner().offload, runner().packing) == (False, False, Packing.PADDED)
