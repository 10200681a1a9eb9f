"""`turnwise bench multihop` over a recipe: what rows share, rows of one's choice, and a table made in pieces."""

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.harness.benchmark import Scope
from benchmarks.multihop import benchmark as multihop
from benchmarks.multihop.rows import ABLATIONS, METHODS
from benchmarks.multihop.variant import choose_variant
from tiny_multihop import PROJECT, run_multihop, write_data
from turnwise.config import load_config
from turnwise.models.loading import save_model
from turnwise.runs import read_trajectories
from turnwise.settings import leaves
from turnwise.training.build import assemble
from turnwise.training.recorder import Recorder

TWO_STEPS = ("steps=2", "evaluate.every=1", "loss.entropy_coef=0.1")
"""No episode of so small a model succeeds, so that the entropy alone moves its weights."""
FOLDER = Path("runs/bench/multihop-smollm2")
RUNS = ("whole/training/grpo", "pieces/training/grpo", "whole/sft/cold-start")


@pytest.fixture
def questions(small_project):
    """A project with questions, over which the recipe of the tests is run."""
    write_data(small_project / "questions")
    return small_project


def run(*rows, **options):
    return run_multihop(recipe="multihop-smollm2", data="questions", seeds=1, rows=rows, **options)


def differences(config, other):
    plain, others = (dict(leaves(one.model_dump(mode="json"))) for one in (config, other))
    return {".".join(path): plain[path] for path in plain if plain[path] != others.get(path)}


@pytest.mark.parametrize(
    ("recipe", "place"),
    [
        ("gpu-multihop-smollm2", {}),
        ("gpu-multihop-qwen-500m", {}),
        ("gpu-multihop-qwen-1.5b", {}),
        ("multihop-smollm2", {"loss.kl_in": "reward"}),
    ],
)
def test_a_method_differs_from_the_recipe_by_its_algorithm_alone(recipe, place, monkeypatch):
    monkeypatch.chdir(PROJECT)
    variant = choose_variant(Scope(quick=False, seeds=1, recipe=recipe, model="any/Any-1B"))
    base = load_config(recipe, ["model.name=any/Any-1B", "evaluate.untrained=false", "checkpoint.keep=1"])
    found = {row.key: differences(variant.method_config(row, 0), base) for row in (*METHODS, *ABLATIONS)}
    assert found == {
        "ppo": {"credit.estimator": "gae", "learner.critic.warmup": 5, **place},
        "grpo": {},
        "rloo": {"credit.estimator": "rloo"},
        "reinforce-pp": {"credit.estimator": "reinforce++", **place},
        "reinforce-pp-baseline": {"credit.estimator": "reinforce++-baseline"},
        "ppo-no-advantage-mask": {**found["ppo"], "credit.advantage_mask": False},
        "ppo-no-masks": {**found["ppo"], "credit.advantage_mask": False, "loss.action_mask": False},
        "grpo-no-loss-mask": {"loss.action_mask": False},
    }
    assert variant.questions == 600
    assert variant.passages == (base.rollout.max_turns - 1) * base.env.args["passages"]


def test_the_name_of_the_page_is_the_recipes():
    names = [
        choose_variant(Scope(quick=False, seeds=1, recipe=recipe)).name
        for recipe in ("gpu-multihop-smollm2", "gpu-multihop-qwen-500m", "multihop-smollm2")
    ]
    assert names == ["multihop-gpu-smollm2", "multihop-gpu-qwen-500m", "multihop-smollm2"]


def test_on_a_gpu_jobs_share_its_memory_only_where_asked_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    real, quick = Scope(quick=False, seeds=1, recipe="gpu-multihop-smollm2"), Scope(quick=True, seeds=1)
    assert multihop.BENCHMARK.default_processes(real) == 1
    assert multihop.BENCHMARK.default_processes(quick) == os.cpu_count()


def test_ceilings_are_asked_for_beside_the_rows(questions):
    scope = Scope(quick=False, seeds=1, recipe="multihop-smollm2", data="questions")
    jobs = {job.name: job for job in multihop.plan(scope)}
    agent = jobs["sft/cold-start/seed-20"]
    reading = jobs["sft/given-passages-shown/seed-20"].settings["config"]
    assert reading["env"]["name"] == "turnwise.envs.qa.baselines:GivenPassages"
    assert reading["sft"] == agent.settings["config"]["sft"]
    exploring = jobs["evaluation/cold-start-pass/seed-20"]
    assert exploring.after is agent, "the one cold start of the seed"
    assert exploring.settings["config"]["evaluate"]["samples_per_task"] == 16
    assert not any(name.startswith("sft/cold-start-pass") for name in jobs)


def test_naive_rag_reads_what_the_agent_can_or_what_one_search_shows_it(questions):
    scope = Scope(quick=False, seeds=1, recipe="multihop-smollm2", data="questions")
    jobs = {job.name: job for job in multihop.plan(scope)}
    agent = jobs["sft/cold-start/seed-20"].settings["config"]
    read = {}
    for key in ("naive-rag-shown", "naive-rag-one-shown"):
        env = jobs[f"sft/{key}/seed-20"].settings["config"]["env"]
        assert env["name"] == "turnwise.envs.qa.baselines:NaiveRag"
        read[key] = env["args"]["env"]["args"].get("passages")
    shown = agent["env"]["args"]["passages"]
    searches = agent["rollout"]["max_turns"] - 1
    assert searches > 1
    assert read == {"naive-rag-shown": searches * shown, "naive-rag-one-shown": shown}


def test_rows_of_ones_choice_run_with_what_they_need_and_the_others_are_not_run(questions):
    code, said = run("closed-book", "given-passages-shown", "cold-start-pass")
    assert code == 0, said
    assert {file.parent.parent.name for file in FOLDER.rglob("result.json")} == {
        *("closed-book", "given-passages-shown", "cold-start-pass", "cold-start")
    }
    page = Path("docs/multihop-smollm2.md").read_text()
    assert page.startswith("# Multi-hop questions, smollm2\n")
    assert "| GRPO (`grpo`) | not run |  |  |  |  |  |" in page
    assert "| tool calls, cold start only (`cold-start`) | not run, but 1 steps of SFT |" in page, (
        "trained, and not evaluated"
    )
    assert "| closed book, as the model comes (`closed-book`) | 0.000 [0.000, 0.561] | 0.000 [0.000, 0.561] |" in page
    assert "| reading: supporting passages given, with demonstrations (`given-passages-shown`), greedy | 0." in page
    assert "(`cold-start-pass`), pass@16 | 0." in page
    assert "--recipe multihop-smollm2 --data FOLDER --seeds 1`: 5 of 30 jobs on " in page
    results = json.loads(Path("benchmarks/results/multihop-smollm2.json").read_text())
    assert results["cold-start-pass/pass_at/16"] >= results["cold-start-pass/pass_at/1"]
    assert results["about/state/rloo"] == "not run"
    assert "grpo/em" not in results

    # Another time, another row: the table has all that is done.
    assert run("tools")[0] == 0
    later = json.loads(Path("benchmarks/results/multihop-smollm2.json").read_text())
    assert later.keys() > results.keys() - {"about/state/tools"}
    assert later["closed-book/em"] == results["closed-book/em"]


def stop_in_step_one(monkeypatch):
    """The signal that the pool sends when time is over, in the first step of training."""
    whole = Recorder.record_step

    def record(recorder, step, *args, **options):
        whole(recorder, step, *args, **options)
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "record_step", record)


def test_a_table_in_pieces_has_the_figures_of_one_that_was_not_stopped(questions, monkeypatch):
    file, page = Path("benchmarks/results/multihop-smollm2.json"), Path("docs/multihop-smollm2.md")
    assert run("grpo", "cold-start", overrides=TWO_STEPS, out="whole")[0] == 0
    whole = json.loads(file.read_text())
    with monkeypatch.context() as patch:
        stop_in_step_one(patch)
        code, said = run("grpo", "cold-start", overrides=TWO_STEPS, out="pieces")
    assert code == 75, said
    assert "3 of 4 jobs are left; the same command goes on with them." in said
    assert "failed" not in said
    assert "| GRPO (`grpo`) | 1 of 2 steps |" in page.read_text()
    part = json.loads(file.read_text())
    assert part["about/state/grpo"] == "1 of 2 steps"
    assert part["grpo/success_at/1"] == whole["grpo/success_at/1"]
    assert {"grpo/success_at/2", "grpo/em"}.isdisjoint(part)

    assert run("grpo", "cold-start", overrides=TWO_STEPS, out="pieces")[0] == 0
    assert "resumed after step 1" in Path("pieces/training/grpo/seed-20/log.txt").read_text()
    pieces = json.loads(file.read_text())
    timed = {name for name in whole if name.endswith(("/seconds", "process_minutes"))}
    assert {name: value for name, value in pieces.items() if name not in timed} == {
        name: value for name, value in whole.items() if name not in timed
    }
    for name in ("grpo/evaluated_at/0", "grpo/evaluated_at/2", "grpo/less_cold_start/low", "grpo/trained_tokens"):
        assert name in pieces
    weights = [load_file(max(Path(one).glob("*/run/checkpoints/*/model/model.safetensors"))) for one in RUNS]
    whole_weights, in_pieces, cold = [
        sum(float(one.double().abs().sum()) for one in found.values()) for found in weights
    ]
    assert whole_weights == in_pieces != cold
    assert pieces["about/settings/grpo"] == "algorithm=grpo"
    assert pieces["about/command/grpo"].endswith("--seeds 1 steps=2 evaluate.every=1 loss.entropy_coef=0.1 --rows grpo")


def test_a_recipe_on_a_model_from_end_to_end(questions):
    parts = assemble(load_config("multihop-smollm2", ["env.args.questions=questions"]))
    save_model(parts.loaded.model, parts.loaded.tokenizer, Path("models/Tiny-1K"))
    asked = {"model": "models/Tiny-1K", "data": "questions", "seeds": 1}
    rows = ("cold-start", "naive-rag-shown", "ppo", "ppo-no-masks")
    code, said = run_multihop(**asked, rows=rows)
    assert code == 0, said
    name = "multihop-Tiny-1K"
    assert f"The page is docs/{name}.md, the results are in benchmarks/results/{name}.json." in said
    page = Path(f"docs/{name}.md").read_text()
    assert page.startswith("# Multi-hop questions, Tiny-1K\n")
    assert "|  | hops 2 | hops 4 | source 2wiki | source musique |" in page
    assert "From `turnwise bench multihop --model models/Tiny-1K --data FOLDER --seeds 1`" in page
    assert f"](img/{name}-learning.png)" in page
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert Path(f"docs/img/{name}-learning.png").is_file() == drawn
    results = json.loads(Path(f"benchmarks/results/{name}.json").read_text())
    for row in ("naive-rag-shown", "ppo", "ppo-no-masks"):
        parts_by_hops = 2 * results[f"{row}/em/hops=2"] + results[f"{row}/em/hops=4"]
        assert parts_by_hops / 3 == pytest.approx(results[f"{row}/em"], abs=1e-5)
    folder = Path(f"runs/bench/{name}")
    asked_of = read_trajectories(folder / "evaluation/ppo/seed-20/greedy.parquet")
    assert [group.task.data["source"] for group in asked_of] == ["2wiki", "2wiki", "musique"], "the dev split"
    config = (folder / "training/ppo/seed-20/run/config.yaml").read_text()
    assert "estimator: gae" in config
    assert "questions: questions" in config

    # What was written into the page by hand stays when the results are made again.
    Path(f"docs/{name}.md").write_text(page.replace("## The masks", "## The masks, for once"))
    assert run_multihop(**asked, rows=rows)[0] == 0
    assert "## The masks, for once" in Path(f"docs/{name}.md").read_text()


def test_the_embedded_benchmark_is_published_only_whole(small_project):
    before = Path("docs/multihop.md").read_text()
    code, said = run_multihop(quick=True, seeds=1, rows=["closed-book"])
    assert (code, said) == (0, "24 of 25 jobs are still to do: nothing was published.\n")
    assert Path("docs/multihop.md").read_text() == before
