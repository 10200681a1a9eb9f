"""The engines of vLLM against vLLM itself, on a CPU in float32: `make test-vllm`, which installs it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

pytest.importorskip("vllm")

import httpx2

import stale_runs
import turnwise
from tiny_models import logprobs_by_full_forward
from tiny_runs import records
from turnwise.agents import PolicyAgent
from turnwise.engines import (
    LocalEngineSettings,
    OpenAIEngineSettings,
    Sampling,
    VLLMEngineSettings,
    make_engine,
)
from turnwise.engines.servers.engine import ServerEngine
from turnwise.engines.vllm import engine as in_process
from turnwise.errors import EngineError, ModelError
from turnwise.gateway.collect import Collector, serve
from turnwise.models.settings import SmallSettings
from turnwise.models.small import build_small, train_tokenizer
from turnwise.render import make_render
from turnwise.render.template import RenderSettings
from turnwise.rollout import Limits
from turnwise.runs import RunDirectory, read_trajectories
from turnwise.types import Finish

NEAR = 1e-4
"""How far logprobs of two float32 forwards may be apart."""
SHAPE = SmallSettings(layers=2, width=64, heads=2, positions=256, vocabulary=300)
"""Heads of 32: vLLM's attention on a CPU has none that are smaller."""
PROMPT = list(range(20, 90))
OTHER = list(range(30, 71))
PATIENCE = 1800.0
"""Seconds for a run; quiet, it takes one or two minutes."""
VOWELS = Path(__file__).parents[2] / "benchmarks" / "scale"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["hello world", "search(query): finds a page"], SHAPE)


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_small(SHAPE, tokenizer, seed=3).eval()


@pytest.fixture(scope="module")
def engine(model):
    before = torch.get_rng_state(), torch.get_num_threads()
    made = make_engine(VLLMEngineSettings(slots=8), model, prompt_ids=PROMPT)
    assert isinstance(made, in_process.VLLMEngine)
    assert (torch.equal(before[0], torch.get_rng_state()), before[1]) == (True, torch.get_num_threads())
    return made


def ask(engine, *prompts, session="s", **sampling):
    async def everyone():
        settings = [Sampling(**{"max_tokens": 12, "stop_ids": (), "seed": i} | sampling) for i in range(len(prompts))]
        asked = (
            engine.generate(f"{session}{i}", prompt, one)
            for i, (prompt, one) in enumerate(zip(prompts, settings, strict=True))
        )
        return await asyncio.gather(*asked)

    return asyncio.run(everyone())


def move(model, seed, scale=0.05):
    """Changes the model's own weights, as a learner does."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=draw))


def truncated_logprobs(model, prompt, ids, *, temperature, top_k, top_p):
    """The logprob of each id under top-k, then top-p, of the tempered distribution."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    found = []
    for row, token in zip((logits / temperature).softmax(-1), ids, strict=True):
        order = row.sort(descending=True)
        kept = order.values.clone()
        kept[top_k:] = 0
        kept /= kept.sum()
        kept[kept.cumsum(0) - kept >= top_p] = 0
        found.append(float((kept / kept.sum())[order.indices == token].log()))
    return found


def test_sampled_turns_have_the_logprobs_of_the_model(engine, model):
    turns = ask(engine, PROMPT, OTHER, PROMPT[:5])
    for prompt, turn in zip((PROMPT, OTHER, PROMPT[:5]), turns, strict=True):
        assert turn.logprobs == pytest.approx(logprobs_by_full_forward(model, prompt, turn.ids), abs=NEAR)
        assert (len(turn.ids), turn.finish, turn.versions) == (12, Finish.LENGTH, ((0, 0),))


def test_greedy_turns_are_those_of_the_local_engine(engine, model):
    local = make_engine(LocalEngineSettings(slots=2), model)
    for own, other in zip(
        ask(engine, PROMPT, OTHER, temperature=0.0), ask(local, PROMPT, OTHER, temperature=0.0), strict=True
    ):
        assert own.ids == other.ids
        assert own.logprobs == pytest.approx(other.logprobs, abs=NEAR)


def test_truncated_and_greedy_turns_in_one_batch_have_the_logprobs_of_their_own_distributions(engine, model):
    cut = {"temperature": 0.8, "top_k": 7, "top_p": 0.9}

    async def both():
        settings = (
            Sampling(max_tokens=20, stop_ids=(), seed=1, **cut),
            Sampling(max_tokens=20, stop_ids=(), temperature=0),
        )
        return await asyncio.gather(*(engine.generate(str(i), PROMPT, one) for i, one in enumerate(settings)))

    truncated, greedy = asyncio.run(both())
    assert truncated.logprobs == pytest.approx(truncated_logprobs(model, PROMPT, truncated.ids, **cut), abs=NEAR)
    assert greedy.logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, greedy.ids), abs=NEAR)


def test_a_seed_fixes_a_turn_whatever_shares_its_batch(engine):
    (alone,) = ask(engine, PROMPT, seed=2**62 + 5)
    first, *others = ask(engine, PROMPT, PROMPT, OTHER, seed=2**62 + 5)
    assert alone.ids == first.ids == others[0].ids
    (another,) = ask(engine, PROMPT, seed=6)
    assert another.ids != alone.ids


def test_stop_ids_end_a_turn_and_the_end_token_of_the_model_does_not(engine, model):
    (free,) = ask(engine, PROMPT, max_tokens=40)
    stop = free.ids[5]
    (turn,) = ask(engine, PROMPT, max_tokens=40, stop_ids=(stop,))
    assert turn.ids == free.ids[: free.ids.index(stop) + 1]
    assert turn.finish is Finish.STOP
    assert len(free.ids) == 40
    ends = [model.config.eos_token_id in one.ids for one in ask(engine, *[OTHER] * 64, max_tokens=30)]
    assert any(ends), "sampled now and then, and never the end"


def test_the_context_limit(engine):
    (turn,) = ask(engine, [5] * 250, max_tokens=99)
    assert (len(turn.ids), turn.finish) == (6, Finish.LENGTH)
    with pytest.raises(ModelError, match="leaves no room to answer in a context of 256"):
        ask(engine, [5] * 256)
    with pytest.raises(ModelError, match="ids that are none of the model's"):
        ask(engine, [10**6])


def test_the_turns_of_a_conversation_hit_the_prefix_cache(engine, model):
    (first,) = ask(engine, PROMPT)
    before = engine.stats
    longer = [*PROMPT, *first.ids, *OTHER]
    (second,) = ask(engine, longer)
    work = engine.stats.since(before)
    assert work.reused_tokens == 64, "two blocks of 32 out of 82 tokens"
    assert work.prefill_tokens == len(longer) - 64
    assert second.logprobs == pytest.approx(logprobs_by_full_forward(model, longer, second.ids), abs=NEAR)


def test_a_turn_that_is_cancelled_or_whose_session_ends_leaves_the_rest_alone(engine):
    async def main():
        settings = Sampling(max_tokens=30, stop_ids=())
        turns = [asyncio.ensure_future(engine.generate(name, PROMPT, settings)) for name in "abc"]
        await asyncio.sleep(0.05)
        turns[0].cancel()
        await engine.end("b")
        results = await asyncio.gather(*turns, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert str(results[1]) == "session 'b' was ended during a turn of its own"
        assert len(results[2].ids) == 30

    asyncio.run(main())


def test_new_weights_are_sampled_from_at_once(engine, model):
    (old,) = ask(engine, PROMPT, temperature=0.0)
    move(model, 1)
    asyncio.run(engine.load(model.state_dict(), 5))
    local = make_engine(LocalEngineSettings(slots=2), model)
    (new,), (expected,) = (ask(one, PROMPT, temperature=0.0) for one in (engine, local))
    assert (new.ids, new.version) == (expected.ids, 5)
    assert new.logprobs == pytest.approx(expected.logprobs, abs=NEAR)
    assert new.logprobs != pytest.approx(old.logprobs, abs=0.1)


def test_a_turn_under_way_goes_on_with_new_weights_and_says_which_token_is_whose(engine, model):
    old = {name: weight.clone() for name, weight in model.state_dict().items()}

    async def main():
        turn = asyncio.ensure_future(engine.generate("a", PROMPT, Sampling(max_tokens=60, stop_ids=(), seed=2)))
        steps = engine.stats.decode_steps
        while engine.stats.decode_steps < steps + 20:
            await asyncio.sleep(0)
        move(model, 2)
        await engine.load(model.state_dict(), 9)
        return await turn

    turn = asyncio.run(main())
    (start, first), (change, then) = turn.versions
    assert (start, first, then) == (0, 5, 9)
    assert 0 < change < 60
    after = logprobs_by_full_forward(model, PROMPT, turn.ids)
    new = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(old)
    before = logprobs_by_full_forward(model, PROMPT, turn.ids)
    model.load_state_dict(new)
    assert turn.logprobs == pytest.approx([*before[:change], *after[change:]], abs=NEAR)


def test_a_head_that_is_not_sent_is_an_error_not_a_drift(engine, model, monkeypatch):
    whole = in_process.checkpoint_weights
    assert model.config.tie_word_embeddings
    with monkeypatch.context() as patched:
        patched.setattr(
            in_process, "checkpoint_weights", lambda m: {k: w for k, w in whole(m).items() if k != "lm_head.weight"}
        )
        move(model, 3)
        with pytest.raises(EngineError, match="vLLM does not sample from the weights of version 11"):
            asyncio.run(engine.load(model.state_dict(), 11))
    asyncio.run(engine.load(model.state_dict(), 12))
    (turn,) = ask(engine, PROMPT)
    assert turn.logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, turn.ids), abs=NEAR)


def test_the_gateway_serves_it_and_stores_what_was_sampled(engine, model, tokenizer, tmp_path):
    async def main():
        policy = PolicyAgent(engine=engine, render=make_render(tokenizer, RenderSettings()))
        limits = Limits(max_turns=9, turn_tokens=8)
        collector = Collector(policy=policy, limits=limits, folder=tmp_path, idle=60.0, show=lambda line: None)
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(collector, host="127.0.0.1", port=0, ready=ready.set_result))
        messages = [{"role": "user", "content": "hello world"}]
        async with httpx2.AsyncClient(trust_env=False, timeout=120) as http:
            url = await ready
            for _ in range(2):
                sent = {"messages": messages, "model": "policy"}
                reply = await http.post(
                    f"{url}/v1/chat/completions", json=sent, headers={"Authorization": "Bearer one"}
                )
                assert reply.status_code == 200, reply.text
                messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "search"}]
        os.kill(os.getpid(), signal.SIGINT)
        await serving

    asyncio.run(main())
    (group,) = [one for file in tmp_path.glob("session-*.parquet") for one in read_trajectories(file)]
    (stored,) = group.trajectories
    assert len(stored.turns) == 2
    context: list[int] = []
    for turn in stored.turns:
        context = [*turn.context_ids] if turn.opens_row else [*context, *turn.context_ids]
        expected = logprobs_by_full_forward(model, context, turn.action_ids)
        assert turn.logprobs == pytest.approx(expected, abs=NEAR)
        context += turn.action_ids


@pytest.fixture(scope="module")
def servers(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    # With a tokenizer, which OpenAI's completions want though nothing of ours passes through it.
    options = {"tokenizer": str(folder), "skip_tokenizer_init": False, "served_model_name": "policy"}
    settings = VLLMEngineSettings(servers=2, slots=8, options=options)
    engine = make_engine(settings, model, prompt_ids=PROMPT)
    assert isinstance(engine, ServerEngine)
    return engine


def test_servers_of_ours_sample_as_the_engine_in_process_does(servers, engine, model):
    asyncio.run(engine.load(model.state_dict(), 20))
    asyncio.run(servers.load(model.state_dict(), 20))
    own, theirs = ask(engine, PROMPT, OTHER), ask(servers, PROMPT, OTHER)
    assert [turn.ids for turn in own] == [turn.ids for turn in theirs]
    for one, other in zip(own, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=NEAR)
    before = servers.stats
    ask(servers, [*PROMPT, *theirs[0].ids, 7])
    assert servers.stats.since(before).reused_tokens == 64, "at the server where the conversation is"


def test_servers_take_new_weights_and_a_killed_one_is_started_again_with_them(servers, model, caplog):
    move(model, 4)
    asyncio.run(servers.load(model.state_dict(), 23))
    turns = ask(servers, PROMPT, OTHER)
    assert {turn.version for turn in turns} == {23}
    assert turns[0].logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, turns[0].ids), abs=NEAR)
    victim = servers._homes["s0"]._process._running[-1]
    os.killpg(victim.pid, signal.SIGKILL)
    again = ask(servers, PROMPT, OTHER)
    assert [turn.ids for turn in again] == [turn.ids for turn in turns]
    assert {turn.version for turn in again} == {23}
    assert servers.restarts == 1
    assert any("a vLLM server ended (signal SIGKILL); starting it again" in line for line in caplog.messages)


def test_training_by_openai_completions(servers, model):
    url = servers._replicas[0].server.url
    engine = make_engine(OpenAIEngineSettings(url=f"{url}/v1", model="policy"), model)
    move(model, 5)
    asyncio.run(engine.load(model.state_dict(), 8))
    (turn,) = ask(engine, PROMPT, temperature=0.7)
    tempered = truncated_logprobs(model, PROMPT, turn.ids, temperature=0.7, top_k=10**6, top_p=2.0)
    assert turn.logprobs == pytest.approx(tempered, abs=NEAR)
    assert turn.version == 8


def run_python(*arguments):
    """Runs in a process of its own: an engine of vLLM's that ends takes what others of its process need with it."""
    path = os.pathsep.join([str(Path(turnwise.__file__).parents[1]), str(Path(stale_runs.__file__).parent)])
    command = [sys.executable, "-m", *map(str, arguments)]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize("kind", ["local", "vllm"])
def test_a_run_learns_by_either_engine(kind, tmp_path):
    """Five turns that are to be vowels, from random weights: with the local engine, five seeds of five end at 1."""
    settings = {
        "env.name": f"{VOWELS}/slow.py:SlowVowels",
        "env.args": "{seconds: 0}",
        "model.small.width": 64,  # heads of 32
        "rollout.groups_per_step": 8,
        "steps": 25,
        "engine.kind": kind,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    run_python("turnwise", "train", VOWELS / "vowels.yaml", *overrides, "--run", tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    train = records(run, "train")
    success = [record["rollout/success"] for record in train]
    assert success[0] < 0.05
    assert fmean(success[-5:]) > 0.95, success
    before, after = (record["evaluate/success"] for record in records(run, "evaluate"))
    assert (before < 0.05, after > 0.95) == (True, True)
    assert max(record["policy/sampler_gap_max"] for record in train) < NEAR, "sampled from the learner's own weights"


def test_a_run_that_samples_while_it_learns(tmp_path):
    """`rollout.staleness` 1: weights are loaded within turns, and each token names those that sampled it."""
    run_python("stale_runs", "vllm", tmp_path / "run")
    found = stale_runs.check_versions(RunDirectory.open(tmp_path / "run"), stale_runs.STEPS)
    assert found.ages == {0, 1}
    assert found.mixed_turns, "or nothing was loaded within a turn"
    assert found.wrong_by_turn > 1e-2, "one version for the whole of such a turn would be wrong"
