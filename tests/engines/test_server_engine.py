"""Engines behind HTTP against servers that speak vLLM's wire: weights, versions, stickiness, and servers that die."""

import asyncio
import gc
import logging
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fake_vllm import FakeVLLM
from tiny_models import SHAPE, logprobs_by_full_forward
from turnwise.engines import OpenAIEngineSettings, Sampling, VLLMEngineSettings, make_engine
from turnwise.engines.servers.engine import ServerEngine
from turnwise.engines.servers.replica import Replica, Weights
from turnwise.engines.servers.wire import VLLMServer
from turnwise.engines.vllm.process import ServerProcess
from turnwise.errors import EngineError, ModelError
from turnwise.ledger import IDLE, Ledger
from turnwise.types import Finish

PROMPT = list(range(3, 23))


def llama(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=tied)).eval()


def moved(model: LlamaForCausalLM, seed: int) -> dict[str, torch.Tensor]:
    """Other weights for the model, tied as its own are."""
    draw = torch.Generator().manual_seed(seed)
    weights = {
        name: weight + 0.1 * torch.randn(weight.shape, generator=draw) for name, weight in model.state_dict().items()
    }
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


@pytest.fixture
def servers():
    made = [FakeVLLM(llama(tied=False)) for _ in range(2)]
    yield made
    for server in made:
        server.close()


def engine_at(*servers: FakeVLLM, model=None, **options) -> ServerEngine:
    settings = VLLMEngineSettings(servers=tuple(server.url for server in servers))
    engine = make_engine(settings, model or llama(), prompt_ids=PROMPT, **options)
    assert isinstance(engine, ServerEngine)
    return engine


def ask(engine, *sessions: str, prompt=PROMPT, **sampling):
    async def everyone():
        settings = Sampling(**{"max_tokens": 5, "stop_ids": ()} | sampling)
        return await asyncio.gather(*(engine.generate(session, prompt, settings) for session in sessions))

    return asyncio.run(everyone())


def test_a_turn_is_what_the_model_gives_token_for_token(servers):
    model = llama()
    (turn,) = ask(engine_at(servers[0], model=model), "a", temperature=1.0, seed=2**63 + 4)
    assert turn.logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, turn.ids), abs=1e-4)
    assert (len(turn.ids), turn.finish, turn.version) == (5, Finish.LENGTH, 0)
    _, body = servers[0].requests[-1]
    assert body["token_ids"] == PROMPT
    assert body["sampling_params"] == {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 4,
        "stop_token_ids": [],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
        "skip_special_tokens": False,
    }


def test_a_stop_id_ends_the_turn_and_is_part_of_it(servers):
    engine = engine_at(servers[0])
    (free,) = ask(engine, "a", temperature=0.0)
    stop = free.ids[2]
    (turn,) = ask(engine, "a", temperature=0.0, stop_ids=(stop,))
    assert (turn.ids[-1], turn.finish) == (stop, Finish.STOP)
    assert turn.ids == free.ids[: free.ids.index(stop) + 1]


def test_the_context_limit_cuts_a_turn_and_refuses_a_prompt_without_room(servers):
    engine = engine_at(servers[0], context_limit=len(PROMPT) + 2)
    (turn,) = ask(engine, "a")
    assert (len(turn.ids), turn.finish) == (2, Finish.LENGTH)
    with pytest.raises(ModelError, match="leaves no room to answer in a context of 22"):
        ask(engine, "a", prompt=[*PROMPT, 3, 3])
    with pytest.raises(ModelError, match="the prompt has ids that are none of the model's 61 tokens"):
        ask(engine, "a", prompt=[5, 61])
    with pytest.raises(ModelError, match="the prompt is empty"):
        ask(engine, "a", prompt=[])


def test_a_conversation_stays_at_its_server_and_new_ones_go_to_the_least_busy(servers):
    engine = engine_at(*servers)
    ask(engine, "a", "b", "c", "d")
    assert [len(server.prompts()) for server in servers] == [2, 2]
    before = [len(server.prompts()) for server in servers]
    ask(engine, "a", "a", "a")  # wherever it is, it is there alone
    grown = [len(server.prompts()) - old for server, old in zip(servers, before, strict=True)]
    assert sorted(grown) == [0, 3]
    asyncio.run(engine.end("a"))
    asyncio.run(engine.end("never begun"))
    home = grown.index(3)
    ask(engine, "e")
    assert len(servers[home].prompts()) == before[home] + 3 + 1, "the place that 'a' left"


def test_the_prefix_cache_of_its_server_has_the_earlier_turns(servers):
    engine = engine_at(*servers)
    ask(engine, "a", "b")
    (first,) = ask(engine, "a", seed=7)
    before = engine.stats
    ask(engine, "a", prompt=[*PROMPT, *first.ids, 3, 4])
    work = engine.stats.since(before)
    assert (work.reused_tokens, work.prefill_tokens) == (len(PROMPT) + len(first.ids), 2)
    assert work.decode_tokens == 4
    assert work.decode_seconds > 0


def test_new_weights_are_sampled_from_and_old_caches_are_not_read(servers):
    model = llama()
    engine = engine_at(*servers, model=model)
    old, _ = ask(engine, "a", "b", temperature=0.0)
    asyncio.run(engine.load(moved(model, 1), 7))
    new, other = ask(engine, "a", "b", temperature=0.0)
    assert (new.version, other.version) == (7, 7)
    assert new == other != old
    assert new.logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, new.ids), abs=1e-4)
    for server in servers:
        paths = [path for path, _ in server.requests if "generate" not in path][-5:]
        assert [path.partition("?")[0] for path in paths] == [
            "/pause",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
            "/resume",
        ]


def test_only_the_newest_weights_stay_on_disk_and_none_after_the_engine(servers, tmp_path):
    model = llama()
    settings = VLLMEngineSettings(servers=(servers[0].url,), weights_folder=str(tmp_path / "shared"))
    engine = make_engine(settings, model)
    for version in (1, 2):
        asyncio.run(engine.load(model.state_dict(), version))
    (own,) = (tmp_path / "shared").iterdir()
    assert len(list(own.iterdir())) == 1
    del engine
    assert not own.exists()


def test_a_head_that_stays_stale_is_an_error(servers):
    model = llama()
    engine = engine_at(servers[0], model=model)
    servers[0].keeps_head = True
    with pytest.raises(EngineError, match=r"127.0.0.1:\d+ does not sample from the weights of version 3: logprobs"):
        asyncio.run(engine.load(moved(model, 1), 3))


def test_another_model_behind_the_address_is_an_error_before_the_first_turn(servers):
    servers[0].model = None
    with pytest.raises(EngineError, match="does not sample from the weights of version 0"):
        engine_at(servers[0])


def test_a_server_that_lost_its_weights_gets_them_again_and_the_turn_is_sampled_anew(servers, caplog):
    model = llama()
    engine = engine_at(servers[0], model=model)
    asyncio.run(engine.load(moved(model, 1), 4))
    (whole,) = ask(engine, "a", seed=1)
    servers[0].model, servers[0].version = llama(tied=False), "default"  # as after a restart by others
    with caplog.at_level(logging.WARNING):
        (turn,) = ask(engine, "a", seed=1)
    assert turn == whole
    assert caplog.messages == [f"{servers[0].url} has the weights of version 4 again"]


def test_a_server_that_comes_back_while_the_learner_updates_is_held_to_the_weights_it_was_given(servers):
    """`rollout.staleness`: the engine samples on while the model's own weights change under it."""
    model = llama()
    engine = engine_at(servers[0], model=model)
    asyncio.run(engine.load(moved(model, 1), 4))
    (whole,) = ask(engine, "a", seed=1)
    servers[0].model, servers[0].version = llama(tied=False), "default"
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    (turn,) = ask(engine, "a", seed=1)
    assert turn == whole


def test_a_server_that_never_keeps_its_weights_is_an_error(servers):
    engine = engine_at(servers[0])
    handle = servers[0].handle

    def forgetful(path, body):
        return handle(path, body | {"new_version": "default"} if "update_weight" in path else body)

    servers[0].version, servers[0].handle = "default", forgetful
    with pytest.raises(EngineError, match="failed 4 times in a row, last: sampled with weights of version 'default'"):
        ask(engine, "a")


def test_when_a_server_of_others_is_gone_its_conversations_go_on_at_the_rest(servers, caplog, monkeypatch):
    monkeypatch.setattr("turnwise.engines.servers.replica._WAITS", (0.0, 0.0))
    model = llama()
    engine = engine_at(*servers, model=model)
    before = ask(engine, "a", "b", seed=3)
    servers[0].close()
    with caplog.at_level(logging.WARNING):
        after = ask(engine, "a", "b", seed=3)
        asyncio.run(engine.load(model.state_dict(), 1))
    assert [turn.ids for turn in after] == [turn.ids for turn in before]
    (line,) = caplog.messages
    assert line == f"{servers[0].url}: is gone (Connection refused); its conversations go on at the other servers"
    servers[1].close()
    with pytest.raises(EngineError, match=f"{servers[1].url}: is gone"):
        ask(engine, "a")


def test_a_server_that_comes_back_gets_weights_and_conversations(servers, caplog, monkeypatch):
    monkeypatch.setattr("turnwise.engines.servers.replica._WAITS", (0.0,))
    model = llama()
    engine = engine_at(*servers, model=model)
    ask(engine, "a", "b")
    port = servers[0]._server.server_port
    servers[0].close()
    ask(engine, "a", "b")
    caplog.clear()
    back = FakeVLLM(llama(tied=False), port=port)
    with caplog.at_level(logging.WARNING):
        asyncio.run(engine.load(model.state_dict(), 5))
    assert caplog.messages == [f"{back.url} is back"]
    assert {turn.version for turn in ask(engine, "c", "d")} == {5}
    assert back.prompts()
    back.close()


def test_a_server_that_is_not_there_is_one_line():
    gone = FakeVLLM()
    gone.close()
    with pytest.raises(EngineError, match=rf"{gone.url}: cannot be reached \(Connection refused\)"):
        engine_at(gone)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/inference/v1/generate", "tokens in, tokens out; start it by: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL"),
        ("/pause", "cannot load weights .*, which training needs; start it by: VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_server_without_the_interface_says_how_to_start_it(servers, path, message):
    servers[0].missing.add(path)
    with pytest.raises(EngineError, match=message):
        engine_at(servers[0])


def test_waiting_for_servers_is_charged_to_decoding(servers):
    ledger = Ledger()
    engine = engine_at(servers[0], ledger=ledger)
    handle = servers[0].handle
    asked = []

    def watched(path, body):
        asked.append(ledger._idle or ledger.idle)
        return handle(path, body)

    servers[0].handle = watched
    ask(engine, "a")
    assert (asked, ledger.idle) == (["decode"], IDLE)
    asyncio.run(engine.load(llama().state_dict(), 1))
    assert set(asked[1:]) == {"load"}
    assert (ledger._idle, ledger.idle) == (None, IDLE)


class AnyWeights:
    """In place of the probe: a program without a model has nothing to compare."""

    ids = (1, 2, 3)

    def check(self, found, expected, *, version, where):
        assert found == [*expected] == [-1.0, -1.0]


def weights_in(folder: Path, version: int) -> Weights:
    return Weights(folder=folder, version=version, expected=(-1.0, -1.0))


def replica_of(log: Path, *flags: str) -> tuple[Replica, ServerProcess]:
    process = ServerProcess(flags, {}, log, module="fake_vllm")
    return Replica(lambda url: VLLMServer(url, timeout=30), AnyWeights(), process=process, start_seconds=60), process


def test_a_server_of_ours_that_is_killed_is_started_again_with_the_newest_weights(tmp_path, caplog):
    (tmp_path / "config.json").touch()
    weights = weights_in(tmp_path, 6)
    replica, process = replica_of(tmp_path / "log")

    async def main(replica, process):
        replica.launch(weights_in(tmp_path / "older", 0))
        await replica.wait_until_ready()
        await replica.load(weights)
        first = replica.server.url
        os.kill(process._running[-1].pid, signal.SIGKILL)
        process._running[-1].wait()
        await asyncio.gather(*(replica.restore(lambda: weights, "no answer") for _ in range(3)))
        turn = await replica.server.complete([5], Sampling(max_tokens=2, stop_ids=()), room=9)
        assert (turn.ids, turn.versions, replica.restarts) == ([6, 7], ((0, "6"),), 1)
        assert replica.server.url != first
        assert str(tmp_path) in process._running[-1].args, "on the newest weights: older ones are removed"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main(replica, process))
    assert caplog.messages[0].startswith("a vLLM server ended (signal SIGKILL); starting it again at http://127.0.0.1:")
    pid = process._running[-1].pid
    del replica, process
    gc.collect()  # from Python 3.12 on, what ran it is let go of later
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_of_ours_that_does_not_start_is_one_line_with_its_last_error(tmp_path):
    replica, _ = replica_of(tmp_path / "log", "--fails")

    async def main():
        replica.launch(weights_in(tmp_path, 0))
        await replica.wait_until_ready()

    with pytest.raises(EngineError, match=r"did not start, exit code 1: ValueError: no such model \(its log: .*log\)"):
        asyncio.run(main())


def openai_at(server: FakeVLLM, model=None) -> ServerEngine:
    settings = OpenAIEngineSettings(url=f"{server.url}/v1", model="policy")
    engine = make_engine(settings, model or llama())
    assert isinstance(engine, ServerEngine)
    return engine


def test_training_by_completions_where_the_server_gives_ids_and_logprobs(servers):
    model = llama()
    engine = openai_at(servers[0], model)
    asyncio.run(engine.load(moved(model, 2), 3))
    (turn,) = ask(engine, "a")
    assert turn.version == 3
    assert turn.logprobs == pytest.approx(logprobs_by_full_forward(model, PROMPT, turn.ids), abs=1e-4)
    path, body = next(one for one in reversed(servers[0].requests) if one[0].endswith("completions"))
    assert (path, body["model"], body["prompt"], body["return_token_ids"]) == (
        "/v1/completions",
        "policy",
        PROMPT,
        True,
    )


def test_a_server_that_gives_no_ids_is_refused_before_any_work(servers):
    servers[0].without_ids = True
    with pytest.raises(EngineError) as raised:
        openai_at(servers[0])
    assert str(raised.value).startswith(
        f"{servers[0].url}: completes no prompt of token ids with ids and logprobs, which training needs; evaluate its "
        "model by `turnwise eval`, or train with engine.kind=vllm (no choices.0.token_ids in its reply"
    )


def test_a_server_that_cannot_load_weights_is_refused_before_any_work(servers):
    servers[0].missing.add("/pause")
    with pytest.raises(EngineError, match=r"cannot load weights .* which training needs"):
        openai_at(servers[0])
