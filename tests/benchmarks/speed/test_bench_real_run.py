"""A real run beside TRL's: the command itself and the peer's own script, on a model of a folder with tiny sizes."""

import ast
import json
import statistics
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from benchmarks.harness import benchmark
from benchmarks.harness.benchmark import Scope, find_benchmark, run_benchmark
from benchmarks.harness.jobs import JobFolders, order_jobs
from benchmarks.harness.worker import run_job
from benchmarks.speed import benchmark as speed
from benchmarks.speed import real_run
from benchmarks.speed.real_report import report_real_run
from benchmarks.speed.real_run import choose_real_run, plan_real_run, read_steps
from tiny_multihop import PASSAGES, write_data
from turnwise.errors import ConfigError
from turnwise.ledger import ACCOUNTS
from turnwise.models.settings import SmallSettings
from turnwise.models.small import build_small, train_tokenizer
from turnwise.runs import read_metrics

PROJECT = Path(__file__).parents[3]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Knows no tools, as SmolLM2's."""
ARGS = {"passages": 1, "found_gold": 0.1, "cache": "off"}
RECIPE = {
    "env": {"name": "search_qa", "args": {**ARGS, "questions": "data/questions"}},
    "sft": {"demonstrations": 8, "batch": 8, "epochs": 3},
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_turns": 3, "turn_tokens": 8, "context_tokens": 1024},
    "loss": {"kl_coef": 0.0, "clip_high": 0.28},
    "learner": {"optimizer": {"lr": 1.0e-3}},
    "evaluate": {"split": "dev", "tasks": 3, "every": 1},
    "checkpoint": {"every": 1},
}
WORDS = " ".join(f"{passage['title']}: {passage['text']}" for passage in PASSAGES)


def write_project(folder):
    """The page and the peer's scripts as they are, a recipe, questions elsewhere than it says, and a model."""
    (folder / "docs").mkdir(parents=True)
    (folder / "docs/speed.md").write_text((PROJECT / "docs/speed.md").read_text())
    (folder / "benchmarks/peers").mkdir(parents=True)
    for script in (PROJECT / "benchmarks/peers").glob("*.py"):
        (folder / "benchmarks/peers" / script.name).write_text(script.read_text())
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    (folder / "elsewhere").mkdir()
    write_data(folder / "elsewhere/questions")
    settings = SmallSettings(layers=1, width=32, heads=2, positions=1024, vocabulary=512, induction=False)
    tokenizer = train_tokenizer([WORDS], settings)
    tokenizer.chat_template = CHATML
    build_small(settings, tokenizer, seed=0).save_pretrained(folder / "weights")
    tokenizer.save_pretrained(folder / "weights")


OPTIONS = {"recipe": "tiny.yaml", "model": "weights", "data": "elsewhere", "device": "cpu"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The whole command, once: our run in a process, and the peer's in another, where a fake TRL plays by a script."""
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        paths = (PROJECT / "tests/support/fake_trl", PROJECT / "src", PROJECT)
        patch.setenv("PYTHONPATH", ":".join(map(str, paths)))
        patch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [run_job(one, root) for one in order_jobs(jobs)])
        console = Console(record=True, width=400)
        code = run_benchmark(find_benchmark("speed"), console, peer=sys.executable, **OPTIONS)
    assert code == 0, console.export_text()
    return folder


def rows_of(part):
    lines = [line.split("|") for line in part.splitlines() if line.startswith("|")]
    return {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}


def section_of(folder):
    page = (folder / "docs/speed.md").read_text()
    return page.partition("<!-- section: cpu-real-run -->")[2].partition("<!-- end of section: cpu-real-run -->")[0]


@pytest.mark.slow
def test_the_table_is_what_the_runs_own_metrics_say(measured):
    run = measured / "runs/bench/speed-cpu-real-run/real-run/turnwise/run"
    records = read_metrics(run / "metrics.jsonl")
    trained = [one for one in records if one["stage"] == "train"]
    assert [one["step"] for one in trained] == list(range(1, 21))
    assert len([one for one in records if one["stage"] == "sft"]) == 1, "8 demonstrations, once, in place of thrice"
    assert [one["step"] for one in records if one["stage"] == "evaluate"] == [0, 20]
    counted = trained[5:]
    results = json.loads((measured / "benchmarks/results/speed-cpu-real-run.json").read_text())
    wall = [one["ledger/wall_seconds"] for one in counted]
    assert results["real-run/turnwise/step_seconds"] == pytest.approx(statistics.median(wall), rel=1e-5)
    assert results["real-run/turnwise/step_seconds/max"] == pytest.approx(max(wall), rel=1e-5)
    decode = statistics.median(one["ledger/decode_seconds"] for one in counted)
    assert results["real-run/turnwise/decode_seconds"] == pytest.approx(decode, rel=1e-5)
    tokens = statistics.median(one["rollout/action_tokens"] for one in counted)
    assert results["real-run/turnwise/sampled_tokens_per_episode"] == pytest.approx(tokens / 4)
    rows = rows_of(section_of(measured))
    assert rows["episodes"] == ["4", "4"]
    assert rows["whole step, seconds"][0].startswith(f"{statistics.median(wall):.2f}")
    assert "model: weights; a cold start of 8 demonstrations; steps 6 to 20. The engine's fused forward" in (
        section_of(measured)
    )


@pytest.mark.slow
def test_the_peer_was_asked_what_we_were_asked_and_paid_as_we_are(measured):
    jobs = measured / "runs/bench/speed-cpu-real-run/real-run"
    asked = json.loads((jobs / "trl/tasks.json").read_text())
    assert asked == [task for step in (5, 6, 7) for task in real_run.read_tasks(jobs / "turnwise/run", step)], (
        "its warm-up is the last step of ours"
    )
    assert len(asked) == 6
    lines = (jobs / "trl/stdout.txt").read_text().splitlines()
    paid = [reward for line in lines[:-1] for reward in ast.literal_eval(line.removeprefix("rewards "))]
    assert set(paid) == {0.1 + 1.0, 0.0}, "`Vardo` is right, and `Lumen` supports it, for one of the two questions"
    told = json.loads(lines[-1])
    assert (told["searches"], told["episodes"], len(told["step_seconds"])) == ([4, 4], 4, 2)
    rows = rows_of(section_of(measured))
    assert rows["searches an episode"][1] == "1.00"
    results = json.loads((measured / "benchmarks/results/speed-cpu-real-run.json").read_text())
    assert results["real-run/trl/sampled_tokens"] == statistics.median(told["sampled_tokens"])
    ratio = results["real-run/trl/step_seconds"] / results["real-run/turnwise/step_seconds"]
    assert results["real-run/ratio_trl"] == pytest.approx(ratio, rel=1e-4)
    assert results["about/peer/trl"].startswith("trl 0.0.fake, transformers ")


@pytest.mark.slow
def test_no_path_of_the_users_and_no_other_section_is_touched(measured):
    page = (measured / "docs/speed.md").read_text()
    assert page.startswith((PROJECT / "docs/speed.md").read_text())
    origin = "From `turnwise bench speed --recipe tiny.yaml --device cpu --model weights --data FOLDER --peer PYTHON"
    assert origin in section_of(measured)
    results = (measured / "benchmarks/results/speed-cpu-real-run.json").read_text()
    assert str(measured) not in page + results


def ours(**changed):
    """Two steps of known seconds: in the first, 2.0 of the 2.25 are in accounts that have a row."""
    columns = {f"{account}_seconds": [0.0, 0.0] for account in ACCOUNTS}
    columns |= {"environment_seconds": [0.5, 0.5], "tool_wait_seconds": [0.25, 0.0], "decode_seconds": [0.25, 0.5]}
    columns |= {"update_seconds": [0.5, 0.75], "logprobs_seconds": [0.5, 0.25], "load_seconds": [0.25, 0.0]}
    columns |= {"step_seconds": [2.25, 2.0], "rollout_seconds": [1.25, 1.0], "searches": [2.0, 3.0]}
    columns |= {"episodes": [4.0, 4.0], "sampled_tokens": [400.0, 500.0], "trained_tokens": [900.0, 1100.0]}
    return {"steps": [6, 7], **columns, "slow_reason": None, **changed}


TOLD = {
    "episodes": 4,
    "step_seconds": [40.0, 20.0],
    "rollout_seconds": [30.0, 15.0],
    "update_seconds": [10.0, 5.0],
    "sampled_tokens": [480, 480],
    "tokens": [1000, 1000],
    "searches": [8, 12],
    "versions": "trl 1.16.0",
}


@pytest.fixture
def run(project):
    return choose_real_run(Scope(quick=False, seeds=1, **OPTIONS))


def test_rows_by_hand(run):
    told = report_real_run(run, {real_run.OURS: ours(), real_run.TRL: TOLD})
    rows = rows_of(told.parts["real-run"])
    assert rows["whole step, seconds"] == ["2.12 (2.00–2.25)", "30.00 (20.00–40.00)"]
    assert rows["– environment (search, rewards)"] == ["0.62 (0.50–0.75)", ""]
    assert rows["of it update, with the logprobs before it"] == ["1.00", "7.50 (5.00–10.00)"]
    assert rows["all else"] == ["0.12 (0.00–0.25)", ""], "2.25 − .75 − .25 − 1.0 and 2.0 − .5 − .5 − 1.0"
    assert rows["sampled tokens an episode"] == ["112.5 (100.0–125.0)", "120.0"]
    assert rows["searches an episode"] == ["2.50 (2.00–3.00)", "2.50 (2.00–3.00)"]
    assert rows["sampled tokens a second of the episodes"] == ["410 (320–500)", "24 (16–32)"]
    assert told.results["real-run/ratio_trl"] == pytest.approx(30 / 2.125)
    assert told.results["real-run/ratio_trl/min"] == pytest.approx(20 / 2.25), "their fastest beside our slowest"
    assert "A step takes TRL 14.1 (8.9–20.0) times as long." in told.parts["real-run"]


def test_a_peer_that_is_missing_or_fails_is_a_cell_that_says_so(run):
    rows = rows_of(report_real_run(run, {real_run.OURS: ours()}).parts["real-run"])
    assert rows["whole step, seconds"][1] == "not measured: give `--peer`"
    failed = {"failure": "trl_search.py ended with exit code 1: no memory"}
    told = report_real_run(run, {real_run.OURS: ours(), real_run.TRL: failed})
    assert rows_of(told.parts["real-run"])["whole step, seconds"][1] == (
        "did not run: trl_search.py ended with exit code 1: no memory"
    )
    assert not any("trl" in name for name in (*told.results, *told.about))


def test_a_slow_forward_is_told_with_its_reason(run):
    told = report_real_run(run, {real_run.OURS: ours(slow_reason="sampling is slower: gemma9 is not known")})
    assert told.parts["setting"].endswith("The model's own forward sampled: sampling is slower: gemma9 is not known.")


def test_steps_of_the_warm_up_do_not_count():
    step = {"stage": "train", "ledger/wall_seconds": 2.0, "ledger/decode_seconds": 0.5, "rollout/episodes": 4.0}
    records = [{"stage": "sft", "step": 9}, *({**step, "step": number} for number in (1, 2, 3, 4))]
    found = read_steps(records, 2)
    assert (found["steps"], found["step_seconds"], found["decode_seconds"]) == ([3, 4], [2.0, 2.0], [0.5, 0.5])
    assert found["render_seconds"] == [0.0, 0.0], "an account that nothing was charged to"


def test_the_peers_settings_are_the_recipes(run, project):
    options = run.peer_options()
    assert json.loads(options.pop("env")) == {**ARGS, "questions": "elsewhere/questions"}
    assert (options["prompts"], options["generations"], options["turns"], options["turn-tokens"]) == (2, 2, 3, 8)
    assert (options["context-tokens"], options["clip-high"], options["learning-rate"]) == (1024, 0.28, 1e-3)
    script = (PROJECT / "benchmarks/peers/trl_search.py").read_text()
    assert all(f'"{name}"' in script or f'"--{name}"' in script for name in options)


@pytest.mark.slow
def test_a_peer_whose_prompts_would_differ_does_not_run(run, project, monkeypatch):
    weights = Path("before/run") / real_run.FIRST_STEP
    weights.parent.mkdir(parents=True)
    Path("weights").rename(weights)
    (weights / "chat_template.jinja").write_text(CHATML.replace("<|im_start|>", "<|im_start|> "))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests/support/fake_trl"))
    monkeypatch.setattr(real_run, "read_tasks", lambda run, step: ["Lumen"])
    settings = {"python": sys.executable, "options": run.peer_options(), "asked_in": [5, 6], "variables": {}}
    found = real_run.run_trl(settings, JobFolders(own=Path(), before=Path("before")))
    assert found == {
        "failure": "trl_search.py ended with exit code 1: the prompts of this model are not ChatML with a system "
        "message, which is all that is known here"
    }


def test_the_shipped_recipe_beside_trl(monkeypatch):
    monkeypatch.setattr(real_run, "has_gpu", lambda: True)
    monkeypatch.setattr(real_run, "find_gpu", lambda: "NVIDIA H200")
    run = choose_real_run(Scope(quick=False, seeds=2, recipe="gpu-multihop-smollm2"))
    run.check_peer()
    assert (run.name, run.config.steps, run.warmup, run.config.sft.demonstrations) == ("h200-real-run", 20, 5, 2000)
    options = run.peer_options()
    assert (options["turn-tokens"], options["temperature"], options["prompts"]) == (128, 1.2, 32)
    assert (options["device"], options["kl"], options["warmup"], options["steps"]) == ("cuda", 0.0, 1, 2)
    assert "sft.epochs=1" in run.overrides


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nowhere"}, "--model: nowhere is no folder with a config.json in it and no .gguf file"),
        ({"data": "nowhere"}, "--data: there is no folder nowhere; give the one that the recipe calls data"),
        ({"recipe": "encyclopedia-grpo"}, "--data: encyclopedia-grpo names no file beneath data/"),
        ({"tokenizer": "weights"}, "bench speed: --tokenizer is for training steps beside TRL's on a CPU"),
        ({"peer": sys.executable}, "has no trl; install one there, or leave it out"),
        ({"overrides": ["steps=3"]}, "steps: what is measured decides it"),
        ({"overrides": ["stepps=3"]}, "did you mean"),
        ({"recipe": None, "model": None, "data": None, "overrides": ["steps=3"]}, "so it goes with --recipe"),
    ],
)
def test_what_a_user_can_get_wrong(project, monkeypatch, options, said):
    monkeypatch.setattr(benchmark, "run_jobs", lambda *args, **_: pytest.fail("the work began"))
    with pytest.raises(ConfigError) as error:
        run_benchmark(find_benchmark("speed"), Console(), **{**OPTIONS, **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_setting_replaces_the_recipes(project):
    run = choose_real_run(Scope(quick=True, seeds=1, overrides=("rollout.turn_tokens=5",), **OPTIONS))
    assert (run.config.rollout.turn_tokens, run.config.steps) == (5, 5)
    assert "rollout.turn_tokens=5" in run.overrides


def test_an_update_that_trl_does_not_make_is_refused_before_the_work(project):
    Path("tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "learner": {"minibatches": 2}}))
    run = choose_real_run(Scope(quick=True, seeds=1, **OPTIONS))
    with pytest.raises(ConfigError, match=r"and tiny\.yaml has another learner\.epochs; leave --peer out"):
        plan_real_run(run, peer="python", code="")
    assert [job.name for job in plan_real_run(run, peer=None, code="")] == ["real-run/turnwise"]


def test_files_that_a_recipe_names_twice_over_are_moved(monkeypatch):
    env = {"train": ["data/a.jsonl", "other/b.jsonl"], "dev": "data/multihop/dev.jsonl"}
    assert real_run._move(env, "/my/data") == {
        "train": ["/my/data/a.jsonl", "other/b.jsonl"],
        "dev": "/my/data/multihop/dev.jsonl",
    }
    assert real_run._move("database.jsonl", "/my") == "database.jsonl"
    assert speed.find_peers(Scope(quick=True, seeds=1, recipe="tiny.yaml")).get("trl") is None
