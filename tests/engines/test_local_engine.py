"""The local engine's tokens and logprobs against plain full forwards of the same model."""

import asyncio
import random

import pytest
import torch

from tiny_models import ALL_KINDS, VOCABULARY, greedy_by_full_forwards, logprobs_by_full_forward, make_model
from turnwise.engines import Completion, LocalEngineSettings, Sampling
from turnwise.engines.local.engine import LocalEngine
from turnwise.errors import ModelError
from turnwise.ledger import Ledger
from turnwise.types import Finish


def engine_of(model, *, slots: int = 4, prefill_tokens: int = 64, **options) -> LocalEngine:
    return LocalEngine(model, settings=LocalEngineSettings(slots=slots, prefill_tokens=prefill_tokens), **options)


def ask(engine: LocalEngine, prompt: list[int], *, session: str = "s", **sampling) -> Completion:
    settings = Sampling(**{"max_tokens": 6, "stop_ids": ()} | sampling)
    return asyncio.run(engine.generate(session, prompt, settings))


def tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_greedy_turns_equal_full_forwards(kind):
    model = make_model(kind)
    engine = engine_of(model, slots=3)

    async def episode(number: int) -> None:
        source = random.Random(number)
        prompt = tokens(source, 5 + 4 * number)
        for turn in range(3):
            count = 3 + number + turn
            greedy = Sampling(max_tokens=count, stop_ids=(), temperature=0)
            completion = await engine.generate(f"episode {number}", prompt, greedy)
            ids, logprobs = greedy_by_full_forwards(model, prompt, count)
            assert list(completion.ids) == ids
            assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)
            prompt = prompt + ids + tokens(source, 4)
        await engine.end(f"episode {number}")

    async def everyone() -> None:
        await asyncio.gather(*(episode(number) for number in range(5)))

    asyncio.run(everyone())


@pytest.mark.parametrize(("slots", "prefill_tokens"), [(1, 5), (3, 16), (3, 1000), (16, 64)])
def test_logprobs_equal_full_forwards_whatever_happens_to_the_caches(slots, prefill_tokens):
    model = make_model()
    engine = engine_of(model, slots=slots, prefill_tokens=prefill_tokens)
    system = tokens(random.Random("system"), 12)
    turns: list[tuple[list[int], Sampling, Completion]] = []

    async def episode(number: int) -> None:
        source = random.Random(number)
        prompt = system + tokens(source, source.randrange(1, 20))
        for turn in range(4):
            for _ in range(source.randrange(12)):
                await asyncio.sleep(0)
            sampling = Sampling(
                max_tokens=source.randrange(1, 12),
                stop_ids=(3, 4),
                temperature=source.choice([0.0, 0.6, 1.0, 1.4]),
                top_p=source.choice([1.0, 1.0, 0.7]),
                top_k=source.choice([0, 0, 5]),
                seed=100 * number + turn,
            )
            completion = await engine.generate(f"episode {number}", prompt, sampling)
            turns.append((prompt, sampling, completion))
            if source.random() < 0.3:
                prompt = prompt[: source.randrange(1, len(prompt))]
            else:
                prompt = prompt + list(completion.ids)
            prompt = prompt + tokens(source, source.randrange(1, 8))
        await engine.end(f"episode {number}")

    async def everyone() -> None:
        await asyncio.gather(*(episode(number) for number in range(9)))

    asyncio.run(everyone())
    assert len(turns) == 36
    for prompt, sampling, completion in turns:
        expected = logprobs_by_full_forward(
            model,
            prompt,
            completion.ids,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert engine.stats.reused_tokens > 0
    assert (engine.stats.evictions > 0) == (slots < 9)


def test_a_seed_gives_the_same_tokens_alone_and_in_company():
    model = make_model()
    source = random.Random(0)
    prompts = [tokens(source, 4 + 3 * number) for number in range(6)]
    samplings = [
        Sampling(max_tokens=12, stop_ids=(3,), seed=number, top_k=5 * (number % 2), temperature=0.5 + number / 4)
        for number in range(6)
    ]
    alone = [
        asyncio.run(engine_of(model).generate("s", prompt, sampling))
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    crowd = engine_of(model, slots=4)

    async def everyone() -> list[Completion]:
        asked = zip(prompts, samplings, strict=True)
        return await asyncio.gather(*(crowd.generate(str(seed), *turn) for seed, turn in enumerate(asked)))

    assert [completion.ids for completion in asyncio.run(everyone())] == [completion.ids for completion in alone]
    other = ask(engine_of(model), prompts[0], max_tokens=12, stop_ids=(3,), seed=99, temperature=0.5)
    assert other.ids != alone[0].ids


def test_nothing_that_the_engine_does_is_charged_to_the_environment(monkeypatch):
    """Slots are assigned, compacted and freed between two forwards: each call of these takes a second here."""
    now = [0.0]
    ledger = Ledger(lambda: now[0])
    engine = LocalEngine(make_model(), settings=LocalEngineSettings(slots=4), ledger=ledger)

    def slow(owner, name):
        plain = getattr(owner, name)

        def call(*args):
            now[0] += 1.0
            return plain(*args)

        monkeypatch.setattr(owner, name, call)

    slow(engine._table, "start")
    slow(engine._table, "swaps")
    slow(engine._runner, "deactivate")

    async def play():
        with ledger.spend("environment"):
            lengths = (9, 2, 2, 9)
            samplings = [Sampling(max_tokens=length, stop_ids=()) for length in lengths]
            await asyncio.gather(*(engine.generate(str(i), [5, 6, 7], one) for i, one in enumerate(samplings)))

    asyncio.run(play())
    seconds = ledger.close_step().seconds
    assert seconds["environment"] == 0
    assert seconds["prefill"] == 4, "four slots were assigned"
    assert seconds["decode"] == now[0] - 4 > 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU is never waited for")
def test_the_host_waits_for_a_gpu_where_it_takes_tokens_and_nowhere_else():
    """Turns of uneven length, so that slots are assigned, copied, compacted and freed; torch raises at a wait."""
    engine = engine_of(make_model(), slots=6)

    async def play(source: random.Random) -> None:
        async def episode(number: int) -> None:
            prompt = tokens(random.Random(number // 2), 12)
            for turn in range(3):
                sampling = Sampling(max_tokens=source.randrange(1, 12), stop_ids=(3,), seed=10 * number + turn)
                completion = await engine.generate(str(number), prompt, sampling)
                prompt = [*prompt, *completion.ids, *tokens(source, 5)]
            await engine.end(str(number))

        await asyncio.gather(*(episode(number) for number in range(9)))

    for _ in range(3):  # kernels are compiled and graphs captured, which waits
        asyncio.run(play(random.Random(0)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        asyncio.run(play(random.Random(0)))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_session_pays_only_for_what_is_new():
    engine = engine_of(make_model())
    prompt = tokens(random.Random(1), 20)
    reply = ask(engine, prompt, max_tokens=5)
    assert (engine.stats.prefill_tokens, engine.stats.reused_tokens) == (20, 0)
    assert (engine.stats.decode_tokens, engine.stats.decode_steps) == (4, 4)
    # The reply's last token was sampled but never fed: it is read with the three new ones.
    ask(engine, [*prompt, *reply.ids, 7, 8, 9])
    assert (engine.stats.prefill_tokens, engine.stats.reused_tokens) == (20 + 4, 24)
    # A rewritten conversation shares its first eleven tokens.
    ask(engine, [*prompt[:11], (prompt[11] + 1) % VOCABULARY, 5])
    assert (engine.stats.prefill_tokens, engine.stats.reused_tokens) == (20 + 4 + 2, 24 + 11)


def test_a_group_reads_its_prompt_once():
    engine = engine_of(make_model())
    prompt = tokens(random.Random(1), 30)

    async def group() -> list[Completion]:
        turns = (
            engine.generate(str(seed), prompt, Sampling(max_tokens=4, stop_ids=(), seed=seed)) for seed in range(4)
        )
        return await asyncio.gather(*turns)

    completions = asyncio.run(group())
    assert (engine.stats.prefill_tokens, engine.stats.reused_tokens) == (30 + 3, 3 * 29)
    assert len({completion.ids for completion in completions}) == 4
    for completion in completions:
        expected = logprobs_by_full_forward(make_model(), prompt, completion.ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_forward_stays_in_its_budget_and_scores_only_last_tokens():
    model = make_model()
    sizes: list[int] = []
    scored: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, output: scored.append(output.shape[0]))
    engine = engine_of(model, slots=8, prefill_tokens=24)
    model.model.embed_tokens.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].numel()))
    scored.clear()

    async def everyone() -> None:
        source = random.Random(5)
        prompts = [tokens(source, length) for length in (3, 70, 11, 24, 25, 8, 8, 5)]
        turns = (
            engine.generate(str(n), prompt, Sampling(max_tokens=2, stop_ids=())) for n, prompt in enumerate(prompts)
        )
        await asyncio.gather(*turns)

    asyncio.run(everyone())
    assert engine.stats.prefill_tokens == 3 + 70 + 11 + 24 + 25 + 8 + 8 + 5
    most_tokens, most_scored = (256, 16) if torch.cuda.is_available() else (24, 8)
    assert max(sizes) == most_tokens, "a GPU pads small prefills to one of few sizes"
    assert len(sizes) == len(scored)
    assert max(scored) <= most_scored, "a slot is scored once a forward"


def test_stop_ids_end_a_turn_and_belong_to_it():
    model = make_model()
    prompt = tokens(random.Random(2), 9)
    ids, _ = greedy_by_full_forwards(model, prompt, 8)
    stop = ids[4]
    stopped = ask(engine_of(model), prompt, max_tokens=8, temperature=0, stop_ids=(stop,))
    first = ids.index(stop)
    assert (list(stopped.ids), stopped.finish) == (ids[: first + 1], Finish.STOP)
    cut = ask(engine_of(model), prompt, max_tokens=first, temperature=0, stop_ids=(stop,))
    assert (list(cut.ids), cut.finish) == (ids[:first], Finish.LENGTH)


def test_the_context_limit_clips_a_turn_and_refuses_a_full_prompt():
    engine = engine_of(make_model(), context_limit=20)
    assert engine.context_limit == 20
    clipped = ask(engine, [5] * 17, max_tokens=50)
    assert (len(clipped.ids), clipped.finish) == (3, Finish.LENGTH)
    with pytest.raises(ModelError, match="20 tokens leaves no room to answer in a context of 20"):
        ask(engine, [5] * 20)
    with pytest.raises(ModelError, match="prompt is empty"):
        ask(engine, [])


def test_the_context_limit_is_the_models_unless_less_is_asked():
    assert engine_of(make_model()).context_limit == 160
    with pytest.raises(ModelError, match="200 tokens does not fit a model of 160 positions"):
        engine_of(make_model(), context_limit=200)


def test_a_model_that_learns_is_lent_and_given_back():
    model = make_model().train()
    model.model.layers[0].mlp.eval()
    attention = model.config._attn_implementation
    first = ask(engine_of(model), [5, 6, 7], temperature=0)
    assert model.training
    assert model.model.layers[1].training
    assert not model.model.layers[0].mlp.training
    assert model.config._attn_implementation == attention
    model(torch.tensor([[5, 6, 7]], device=model.device)).logits.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    assert list(first.ids) == greedy_by_full_forwards(make_model(), [5, 6, 7], 6)[0]


def test_dropout_and_gradient_checkpointing_are_off_while_sampling():
    model = make_model()
    prompt = tokens(random.Random(3), 15)
    expected, _ = greedy_by_full_forwards(model, prompt, 6)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    model.gradient_checkpointing_enable()
    model.train()
    assert list(ask(engine_of(model), prompt, temperature=0).ids) == expected


def test_a_lora_adapter_is_sampled_with():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make_model(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    engine = engine_of(model)
    before = ask(engine, [5, 6, 7], temperature=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    asyncio.run(engine.load(dict(model.named_parameters()), version=1))
    after = ask(engine, [5, 6, 7], temperature=0)
    ids, logprobs = greedy_by_full_forwards(model.eval(), [5, 6, 7], 6)
    assert list(after.ids) == ids
    assert after.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert after.logprobs != before.logprobs


def test_layers_that_cannot_be_cached_are_refused():
    model = make_model("qwen2")
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match="qwen2 has layers of kind 'linear_attention'"):
        engine_of(model)


def test_prompt_tuning_is_refused():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ModelError, match="PROMPT_TUNING adapters cannot be sampled from"):
        engine_of(peft.get_peft_model(make_model(), config))


@pytest.mark.gpu  # half precision is for GPUs; many CPUs lack its instructions
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_autocast_samples_in_half_precision_from_the_same_weights(kind):
    model = make_model(kind)
    prompt = tokens(random.Random(4), 12)
    completion = ask(engine_of(model, autocast=torch.bfloat16), prompt, max_tokens=10)
    expected = logprobs_by_full_forward(model, prompt, completion.ids)
    assert completion.logprobs == pytest.approx(expected, abs=0.4)
    assert completion.logprobs != pytest.approx(expected, abs=1e-5), "autocast changed nothing"
    assert model.dtype is torch.float32
