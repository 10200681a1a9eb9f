"""`turnwise bench speed`: what is planned, what a user can get wrong, and all of it from end to end."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.harness import benchmark
from benchmarks.harness.benchmark import Scope, find_benchmark, run_benchmark
from benchmarks.harness.jobs import order_jobs
from benchmarks.harness.worker import run_job
from benchmarks.speed import benchmark as speed
from benchmarks.speed import models as speed_models
from benchmarks.speed import process as speed_process
from benchmarks.speed import variant as speed_variant
from benchmarks.speed.episodes import Shape
from benchmarks.speed.variant import ON_CPU, ON_CUDA, choose_variant, shorten_name
from turnwise.cli.main import main
from turnwise.errors import ConfigError

PROJECT = Path(__file__).parents[3]
ANSWER = {
    "trajectories": 4,
    "step_seconds": [9.0],
    "rollout_seconds": [4.0],
    "update_seconds": [5.0],
    "prompt_tokens": 257,
    "completion_tokens": 29,
    "sampled_tokens": 6,
    "peak_mib": 5000.0,
    "versions": "trl 1.16.0",
}
TINY = dataclasses.replace(
    ON_CPU,
    steps={**ON_CPU.steps, "prompts": 2, "generations": 2, "turns": 2, "turn-tokens": 3, "warmup": 1, "steps": 1},
    sampling={"rows": 3, "prompt": 6, "tokens": 5, "repeats": 1},
    turns=Shape(groups=3, members=1, prompt=5, turns=2, turn=2, observation=4),
    turn_jitter=1,
    turns_repeats=1,
    update={
        "work": {"rows": 4, "length": 20, "action_share": 0.5, "group_size": 2},
        "tokens_per_microbatch": 64,
        "repeats": 1,
    },
    growth=Shape(groups=1, members=2, prompt=3, turns=2, turn=2, observation=2),
    growth_turns=(2, 4, 8),
    growth_repeats=1,
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the page and a peer's script; sides of ours run in this process, with a narrow model."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/speed.md").write_text((PROJECT / "docs/speed.md").read_text())
    Path("benchmarks/peers").mkdir(parents=True)
    for script in speed._SCRIPTS.values():
        script.write_text(f"print({json.dumps(ANSWER)!r})\n")
    monkeypatch.setattr(speed_variant, "ON_CPU", TINY)
    monkeypatch.setattr(speed_models, "tiny_config", lambda make=speed_models.tiny_config: narrow(make()))
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [run_job(one, root) for one in order_jobs(jobs)])
    for module in (speed, speed_process):
        monkeypatch.setattr(module, "measure_ours", measure_here)
    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", fail)


def narrow(config):
    config.hidden_size, config.intermediate_size, config.head_dim = 8, 8, 4
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    return config


def fail(self, *args, **options):
    raise RuntimeError("no paged attention")


def measure_here(settings, folders):
    module, _, name = settings["measurement"].partition(":")
    return getattr(importlib.import_module(module), name)(settings["settings"])


def run(**options):
    console = Console(record=True, width=400)
    return run_benchmark(find_benchmark("speed"), console, **options), console.export_text()


@pytest.fixture
def with_trl(monkeypatch):
    """A python that says it has trl."""
    monkeypatch.setattr(speed, "_ask_python", lambda python, packages: ["trl"])


def names(scope):
    return [job.name for job in order_jobs(speed.plan(scope))]


def test_sides_take_turns_and_all_runs_one_at_a_time(project, with_trl, monkeypatch):
    assert find_benchmark("speed").serial
    scope = Scope(quick=False, seeds=2, peer=sys.executable)
    assert names(scope) == [
        "tokenizer",
        "steps/turnwise/round-0",
        "steps/trl/round-0",
        "steps/turnwise/round-1",
        "steps/trl/round-1",
        "sampling/turnwise",
        "sampling/generate",
        "sampling/continuous",
        "turns/turnwise",
        "turns/generate",
        "uneven-turns/turnwise",
        "uneven-turns/generate",
        "update/turnwise",
        "update/in-groups",
        "update/full-logits",
        "growth",
    ]
    asked = []
    monkeypatch.setattr(benchmark, "run_jobs", lambda *args, processes, **_: asked.append(processes) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(processes=8)
    assert asked == [1]


def test_both_sides_are_told_the_same(project, with_trl):
    jobs = {job.name: job for job in order_jobs(speed.plan(Scope(quick=False, seeds=1, peer="python")))}
    ours, theirs = (dict(jobs[f"steps/{side}/round-0"].settings) for side in ("turnwise", "trl"))
    assert theirs.pop("python") == "python"
    assert ours == theirs


@pytest.mark.parametrize(("name", "jitter"), [("turns", 0), ("uneven-turns", 1)])
def test_both_sides_of_the_turns_play_one_shape(project, name, jitter):
    jobs = {job.name: job for job in speed.plan(Scope(quick=False, seeds=1))}
    ours, theirs = (jobs[f"{name}/{side}"].settings for side in ("turnwise", "generate"))
    told = {key: value for key, value in ours.items() if key != "measurement"}
    assert told == {key: value for key, value in theirs.items() if key != "measurement"}
    shape = {"groups": 3, "members": 1, "prompt": 5, "turns": 2, "turn": 2, "observation": 4, "jitter": jitter}
    assert ours["settings"]["shape"] == shape


def test_a_peers_options_are_those_its_script_takes(project, with_trl, monkeypatch):
    told = {}
    monkeypatch.setattr(speed, "measure_peer", lambda settings, folders: told.update(settings))
    job = next(job for job in speed.plan(Scope(quick=False, seeds=1, peer="python")) if "trl" in job.name)
    speed.run_trl_steps(job.settings, speed.JobFolders(own=Path("here"), before=Path("before")))
    script = (PROJECT / "benchmarks/peers/trl_workload.py").read_text()
    assert told["options"]["tokenizer"] == str(Path("before/made").absolute())
    assert all(f'"--{name}"' in script for name in told["options"])
    vllm = (PROJECT / "benchmarks/peers/vllm_sampling.py").read_text()
    (sampling,) = (job for job in speed._plan_sampling(ON_CUDA, "python") if job.name == "sampling/vllm")
    speed.run_vllm(sampling.settings, speed.JobFolders(own=Path("here"), before=Path("before")))
    assert told["options"]["model"] == str(Path("before/made").absolute())
    assert all(f'"--{name}"' in vllm for name in told["options"])


def test_a_vllm_that_does_not_run_is_a_finding(project):
    Path("benchmarks/peers/vllm_sampling.py").write_text("import sys\nsys.exit('no such device')\n")
    settings = {"rows": 3, "model": "here", "python": sys.executable}
    found = speed.run_vllm(settings, speed.JobFolders(own=Path(), before=None))
    assert found == {"failure": "vllm_sampling.py ended with exit code 1: no such device"}


def test_measurements_of_other_code_are_not_kept(project):
    first = speed.plan(Scope(quick=False, seeds=1))
    Path("benchmarks/peers/trl_workload.py").write_text("changed")
    second = speed.plan(Scope(quick=False, seeds=1))
    assert all(one.identity() != two.identity() for one, two in zip(first, second, strict=True))


def test_all_of_it_from_end_to_end(project, with_trl):
    mark = "<!-- section: h200 -->"
    before = Path("docs/speed.md").read_text()
    code, said = run(peer=sys.executable, seeds=1)
    assert code == 0, said
    page = Path("docs/speed.md").read_text()
    cpu, gpu = page.split(mark)
    assert "Not run yet." not in cpu
    assert gpu == before.split(mark)[1]
    assert "From `turnwise bench speed --peer PYTHON --seeds 1`: " in cpu
    results = json.loads(Path("benchmarks/results/speed-cpu.json").read_text())
    assert results["steps/ratio_trl"] == pytest.approx(9 / results["steps/turnwise/step_seconds"], rel=1e-4)
    assert results["growth/one-row/tokens/4"] == 17
    assert results["about/threads"] == "2"
    assert results["turns/uneven/turnwise/episodes_per_second"] > 0
    assert results["about/settings/turns"] == (
        "groups 3, members 1, prompt 5, turns 2, turn 2, observation 4, jitter 0 and 1, repeats 1"
    )
    assert results["about/settings/sampling"] == "rows 3, prompt 6, tokens 5, repeats 1"
    assert "did not run: RuntimeError: no paged attention" in cpu
    assert str(Path.cwd()) not in json.dumps(results)


def test_a_peer_that_fails_is_told_by_its_last_line(project, with_trl):
    Path("benchmarks/peers/trl_workload.py").write_text("import sys\nsys.exit('ValueError: no such template')\n")
    jobs = order_jobs(speed.plan(Scope(quick=False, seeds=1, peer=sys.executable)))
    outcomes = {job.name: run_job(job, Path("runs")) for job in jobs if job.name in ("tokenizer", "steps/trl/round-0")}
    assert outcomes["steps/trl/round-0"].failure == (
        "trl_workload.py ended with exit code 1: ValueError: no such template"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "any/Any-1B"}, "bench speed: --model goes with --device cuda"),
        ({"data": "questions"}, "bench speed: --data goes with --recipe"),
        ({"device": "cuda", "tokenizer": "here"}, "--tokenizer is for training steps beside TRL's"),
        ({"device": "cuda", "model": "nowhere"}, "--model: nowhere is no folder with a config.json in it"),
        ({"tokenizer": "nowhere"}, "--tokenizer: nowhere has no tokenizer_config.json"),
        ({"peer": "no-such-python"}, "--peer: no-such-python is no python that runs (FileNotFoundError)"),
        ({"peer": sys.executable}, "has no trl and no vllm; install one there, or leave it out"),
    ],
)
def test_what_a_user_can_get_wrong(project, monkeypatch, options, said):
    monkeypatch.setattr(benchmark, "run_jobs", lambda *args, **_: pytest.fail("the work began"))
    with pytest.raises(ConfigError) as error:
        run(**options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_script_that_is_not_here(project, with_trl):
    Path("benchmarks/peers/trl_workload.py").unlink()
    with pytest.raises(ConfigError, match=r"there is no benchmarks/peers/trl_workload\.py here"):
        run(peer=sys.executable)


def test_no_gpu(project, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "speed", "--device", "cuda"]) == 2
    assert "--device cuda, but torch sees no GPU here" in capsys.readouterr().err


def test_a_gpu_has_its_own_variant(project, monkeypatch):
    monkeypatch.setattr(speed_variant, "find_gpu", lambda: "NVIDIA H200")
    Path("weights").mkdir()
    Path("weights/config.json").write_text("{}")
    scope = Scope(quick=False, seeds=2, device="cuda", model="weights")
    variant = choose_variant(scope)
    assert (variant.name, variant.dtype, variant.model) == ("h200", "bfloat16", str(Path("weights").absolute()))
    assert find_benchmark("speed").folder_name(scope) == "speed-h200"
    assert variant.describe()["model"] == "weights", "no path of the user's machine is published"
    assert names(scope)[:3] == ["sampling/turnwise", "sampling/generate", "sampling/continuous"]
    assert "update/compiled" in names(scope)
    publication = find_benchmark("speed").publication(scope, Path())
    assert (str(publication.page), str(publication.results)) == ("docs/speed.md", "benchmarks/results/speed-h200.json")


def test_the_sizes_that_are_promised():
    assert {name: ON_CUDA.sampling[name] for name in ("rows", "prompt", "tokens")} == {
        "rows": 256,
        "prompt": 256,
        "tokens": 256,
    }
    assert (ON_CUDA.turns.turns, ON_CUDA.turns.turn, ON_CUDA.turns.observation) == (4, 32, 64)
    assert (ON_CPU.turn_jitter, ON_CUDA.turn_jitter) == (8, 16), "half of a turn"
    assert ON_CPU.growth_turns == ON_CUDA.growth_turns == (2, 4, 8, 16, 32)
    steps = ON_CPU.steps
    assert (steps["prompts"], steps["generations"], steps["turns"], steps["turn-tokens"]) == (4, 8, 4, 16)
    for variant in (ON_CPU, ON_CUDA):
        longest = dataclasses.replace(variant.growth, turns=variant.growth_turns[-1])
        assert longest.prompt + longest.longest + longest.observation <= speed_models.POSITIONS


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("Something", "something"),
    ],
)
def test_short_names(gpu, name):
    assert shorten_name(gpu) == name


def test_the_command_line_hands_over_what_was_named(project, monkeypatch):
    seen = {}
    monkeypatch.setattr(benchmark, "run_benchmark", lambda one, console, **options: seen.update(options) or 0)
    command = ["bench", "speed", "--device", "cpu", "--peer", "python", "--tokenizer", "here", "--quick"]
    assert main(command) == 0
    assert (seen["device"], seen["peer"], seen["tokenizer"], seen["quick"]) == ("cpu", "python", "here", True)


def test_the_pages_sections_have_a_place_for_every_part():
    page = (PROJECT / "docs/speed.md").read_text()
    for name, parts in {"cpu": 7, "h200": 6, "h200-real-run": 3}.items():
        section = page.partition(f"<!-- section: {name} -->")[2].partition(f"<!-- end of section: {name} -->")[0]
        assert section.count("<!-- results: ") == section.count("<!-- end -->") == parts
