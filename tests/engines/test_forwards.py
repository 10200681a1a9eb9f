"""The fused forward, the model's own over our cache, and an engine that runs ahead of the host: equal tokens."""

import asyncio
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

import turnwise.engines.local.engine as engine_module
import turnwise.engines.local.forward as forward_module
from tiny_models import ALL_KINDS, VOCABULARY, greedy_by_full_forwards, make_model
from turnwise.compute.device import bucket
from turnwise.engines import Completion, LocalEngineSettings, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.local.fused import FusedForward
from turnwise.engines.local.hf import HFForward
from turnwise.engines.local.projections import Projections
from turnwise.engines.local.runner import ModelRunner


def engine_of(model, *, slots: int = 3, prefill_tokens: int = 24) -> LocalEngine:
    return LocalEngine(model, settings=LocalEngineSettings(slots=slots, prefill_tokens=prefill_tokens))


def play(engine: LocalEngine, *, episodes: int = 5, stop_ids: tuple[int, ...] = ()) -> list[list[Completion]]:
    """Three sampled turns in each of several conversations at once, with something to read between."""

    async def episode(number: int) -> list[Completion]:
        source = random.Random(number)
        prompt = [source.randrange(VOCABULARY) for _ in range(4 + 3 * number)]
        said = []
        for turn in range(3):
            sampling = Sampling(max_tokens=4 + (number + turn) % 5, stop_ids=stop_ids, seed=100 * number + turn)
            said.append(await engine.generate(str(number), prompt, sampling))
            prompt = [*prompt, *said[-1].ids, *(source.randrange(VOCABULARY) for _ in range(5))]
        await engine.end(str(number))
        return said

    async def everyone() -> list[list[Completion]]:
        return list(await asyncio.gather(*(episode(number) for number in range(episodes))))

    return asyncio.run(everyone())


def assert_same(one: list[list[Completion]], other: list[list[Completion]]) -> None:
    for first, second in zip(one, other, strict=True):
        assert [turn.ids for turn in first] == [turn.ids for turn in second]
        assert [turn.finish for turn in first] == [turn.finish for turn in second]
        for a, b in zip(first, second, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_both_forwards_sample_the_same(kind, monkeypatch):
    fused = engine_of(make_model(kind))
    assert isinstance(fused._runner._forward, FusedForward)
    monkeypatch.setattr(forward_module, "read_architecture", lambda *_: None)
    hf = engine_of(make_model(kind))
    assert isinstance(hf._runner._forward, HFForward)
    assert_same(play(fused), play(hf))


def test_rows_of_uneven_length_cost_their_tokens_alone(monkeypatch):
    def padding() -> int:
        engine = engine_of(make_model(), slots=8, prefill_tokens=1000)
        play(engine)
        assert engine.stats.slot_steps >= engine.stats.idle_slot_steps > 0
        assert engine.stats.slot_steps - engine.stats.idle_slot_steps == engine.stats.decode_tokens
        return engine.stats.prefill_padding

    assert (padding() > 0) == torch.cuda.is_available(), "a GPU pads small prefills to sizes that it replays"
    monkeypatch.setattr(forward_module, "read_architecture", lambda *_: None)
    assert padding() > 0


@pytest.mark.parametrize(("slots", "portion"), [(2, 64), (5, 64), (5, 1), (2, 1)])
@pytest.mark.parametrize("many", [1, 32])
def test_running_ahead_of_the_host_changes_no_token(slots, portion, many, monkeypatch):
    expected = play(engine_of(make_model(), slots=slots), stop_ids=(3, 7, 11))
    assert any(turn.ids[-1] in (3, 7, 11) for said in expected for turn in said), "some turns end by themselves"
    monkeypatch.setattr(engine_module, "_MANY_TURNS", many)
    monkeypatch.setattr(ModelRunner, "runs_ahead", property(lambda _: True))
    ahead = engine_of(make_model(), slots=slots)
    in_flight, launch = [], ahead._launch

    def watch(*given, **options):
        launch(*given, **options)
        in_flight.append(len(ahead._in_flight))

    monkeypatch.setattr(ahead, "_launch", watch)
    ahead._delivered_at_once = portion
    assert_same(play(ahead, stop_ids=(3, 7, 11)), expected)
    assert max(in_flight) > 4 if many == 1 else max(in_flight) in (2, 3), "one more is launched before one is read"
    assert not ahead._in_flight
    assert not ahead._finished


def test_weights_that_come_while_a_forward_is_under_way_do_not_mix_with_it(monkeypatch):
    monkeypatch.setattr(ModelRunner, "runs_ahead", property(lambda _: True))
    model = make_model()
    engine = engine_of(model)
    prompt = [5, 6, 7, 8]

    async def load_during_a_turn() -> Completion:
        turn = asyncio.create_task(engine.generate("s", prompt, Sampling(max_tokens=12, stop_ids=(), temperature=0)))
        while not engine.stats.decode_steps >= 3:
            await asyncio.sleep(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
        await engine.load(model.state_dict(), version=1)
        return await turn

    before, _ = greedy_by_full_forwards(make_model(), prompt, 12)
    said = list(asyncio.run(load_during_a_turn()).ids)
    kept = next((n for n in range(12) if said[n] != before[n]), 12)
    assert kept >= 3, "what was sampled under the old weights stays"
    after, _ = greedy_by_full_forwards(model, prompt + said[:kept], 12 - kept) if kept < 12 else ([], [])
    assert said[kept:] == after


def test_a_forward_that_computes_something_else_is_not_trusted(caplog):
    model = make_model()
    mlp = model.model.layers[0].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x) + 0.1 * x
    engine = engine_of(model)
    assert isinstance(engine._runner._forward, HFForward)
    assert "which is many times slower: the fused forward does not reproduce the model: in float32" in caplog.text
    ids, _ = greedy_by_full_forwards(model, [5, 6, 7], 6)
    said = asyncio.run(engine.generate("s", [5, 6, 7], Sampling(max_tokens=6, stop_ids=(), temperature=0)))
    assert list(said.ids) == ids


def test_joined_weights_stay_the_learners_own(tmp_path):
    model = make_model("qwen2")
    reference = make_model("qwen2")
    engine_of(model)
    attention = model.model.layers[0].self_attn
    storages = {getattr(attention, name).weight.untyped_storage().data_ptr() for name in ("q_proj", "k_proj", "v_proj")}
    assert len(storages) == 1, "they lie side by side"
    for name, weight in model.named_parameters():
        assert torch.equal(weight, reference.get_parameter(name))
    model(torch.tensor([[1, 2, 3]], device=model.device)).logits.sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, weight in model.named_parameters():
        assert torch.equal(weight.cpu(), loaded.get_parameter(name)), name


def test_joined_weights_that_were_moved_are_joined_anew():
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 4)
    joined = Projections((one, two), None)
    x = torch.randn(5, 3)
    one.weight.data = torch.ones(2, 3)
    assert joined.refresh()
    assert not joined.refresh()
    first, second = joined(x)
    assert torch.allclose(first, one(x), atol=1e-6)
    assert torch.allclose(second, two(x), atol=1e-6)
    with torch.no_grad():
        two.weight.mul_(2)
    assert torch.allclose(joined(x)[1], two(x), atol=1e-6), "a step in place is seen at once"


def test_half_precision_copies_follow_their_weights():
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 4)
    joined = Projections((one, two), torch.float64)  # any other type does
    x = torch.randn(5, 3)
    with torch.no_grad():
        one.weight.fill_(0.5)
    assert not joined.refresh(), "they stay in their place"
    assert torch.allclose(joined(x.double())[0].float(), one(x), atol=1e-6)
    assert one.weight.dtype is torch.float32


def test_sizes_are_rounded_up_to_few():
    sizes = [bucket(size) for size in range(1, 300)]
    assert all(rounded >= size for size, rounded in enumerate(sizes, 1))
    assert sorted(set(sizes)) == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
