"""`turnwise bench multihop`: what is planned, what a user can get wrong, and both variants from end to end."""

import dataclasses
import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import benchmark
from benchmarks.harness.benchmark import Scope, find_benchmark, run_benchmark
from benchmarks.harness.jobs import order_jobs
from benchmarks.harness.worker import run_job
from benchmarks.multihop import benchmark as multihop
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop import variant as multihop_variant
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS
from benchmarks.multihop.variant import QUICK, choose_variant
from tiny_multihop import PROJECT, run_multihop, write_data
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.runs import read_trajectories
from turnwise.settings import leaves
from turnwise.training.build import assemble

QUICKLY = Scope(quick=True, seeds=2)


@pytest.fixture
def planned(monkeypatch):
    """The jobs of the quick variant, by name."""
    monkeypatch.chdir(PROJECT)
    return {job.name: job for job in multihop.plan(QUICKLY)}


def differences(one, other):
    """The settings in which two jobs' configs differ."""
    plain, others = (dict(leaves(job.settings["config"])) for job in (one, other))
    return {".".join(path): plain.get(path) for path in plain | others if plain.get(path) != others.get(path)}


def test_the_rows_of_the_paper_and_ours():
    assert [row.key for row in METHODS] == ["ppo", "grpo", "rloo", "reinforce-pp", "reinforce-pp-baseline"]
    assert {(row.masked, row.without) for row in ABLATIONS if row.masked} == {
        ("ppo", "no advantage mask"),
        ("ppo", "neither mask"),
        ("grpo", "no loss mask"),
    }
    assert {(row.play, row.sft) for row in BASELINES} == {
        (play, sft) for play in ("closed-book", "naive-rag", "agent") for sft in (False, True)
    }


def test_an_ablation_differs_by_its_masks_alone(planned):
    expected = {
        "no advantage mask": {"credit.advantage_mask": False},
        "no loss mask": {"loss.action_mask": False},
        "neither mask": {"credit.advantage_mask": False, "loss.action_mask": False},
    }
    for row in ABLATIONS:
        ours, whole = (planned[f"training/{key}/seed-20"] for key in (row.key, row.masked or "ppo"))
        assert differences(ours, whole) == (expected[row.without] if row.masked else {"credit.lam": 0.95})


def test_all_methods_begin_from_one_cold_start_a_seed_and_share_what_is_not_the_algorithm(planned):
    base = planned["sft/cold-start/seed-20"].settings["config"]
    assert base["sft"]["demonstrations"] == 9600
    assert base["steps"] == 0
    for row in (*METHODS, *ABLATIONS):
        for seed in (20, 21):
            job = planned[f"training/{row.key}/seed-{seed}"]
            assert job.after is planned[f"sft/cold-start/seed-{seed}"]
            config = job.settings["config"]
            assert config["seed"] == seed
            assert config["evaluate"]["tasks"] == 1
            assert config["steps"] > 0
            for section in ("env", "model", "rollout", "evaluate"):
                assert config[section] == base[section]


def test_baselines_imitate_as_much_and_wrap_the_agents_environment(planned):
    agent = planned["sft/cold-start/seed-21"]
    for row in BASELINES:
        trained = planned.get(f"sft/{row.key}/seed-21")
        assert (trained is not None) == row.sft
        if trained is not None:
            assert all(setting.startswith("env.") for setting in differences(trained, agent))
    rag = planned["sft/naive-rag-shown/seed-21"].settings["config"]["env"]
    assert rag["name"] == "turnwise.envs.qa.baselines:NaiveRag"
    args = agent.settings["config"]["env"]["args"]
    assert rag["args"] == {"env": {"name": "encyclopedia", "args": {**args, "passages": 6}}}


def test_naive_rag_reads_as_many_passages_as_the_agent_can():
    defaults = {name: given.default for name, given in inspect.signature(Encyclopedia).parameters.items()}
    assert QUICK.passages == (defaults["max_turns"] - 1) * defaults["passages"]
    real = load_config("multihop-smollm2")
    with_model = choose_variant(
        Scope(quick=False, seeds=1, model="any/Any-1B", data=str(PROJECT / "src/turnwise/recipes"))
    )
    assert with_model.name == "multihop-Any-1B"
    assert with_model.passages == (real.rollout.max_turns - 1) * real.env.args["passages"]
    assert with_model.questions == real.evaluate.tasks


def test_every_row_is_asked_the_same_questions_after_its_training(planned):
    asked = {row.key: planned[f"evaluation/{row.key}/seed-20"] for row in (*BASELINES, *METHODS, *ABLATIONS)}
    for row in (*METHODS, *ABLATIONS):
        assert asked[row.key].after is planned[f"training/{row.key}/seed-20"]
    for row in BASELINES:
        assert asked[row.key].after is planned.get(f"sft/{row.key}/seed-20")
    for job in asked.values():
        config = job.settings["config"]
        assert (job.settings["first"], config["evaluate"]["tasks"], config["evaluate"]["split"]) == (256, 256, "test")
        assert (config["steps"], config["sft"]) == (0, None)
        tasks = make_env(EnvSettings(**config["env"])).tasks("test")
        assert tasks[256] == Encyclopedia(lazy=0.6).tasks("test")[256]


def test_the_cold_starts_come_first_since_the_methods_wait_for_them(planned):
    assert list(planned)[:2] == ["sft/cold-start/seed-20", "sft/cold-start/seed-21"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "bench multihop: say --quick for the embedded encyclopedia on a CPU; or --recipe NAME"),
        ({"model": "a/b"}, "say --quick"),
        ({"data": "."}, "say --quick"),
        ({"model": "a/b", "data": "nowhere"}, "--data: there is no folder nowhere: give one with corpus"),
        ({"quick": True, "model": "a/b"}, "--quick has recipes, a model and questions of its own: leave --recipe"),
        ({"quick": True, "overrides": ["steps=2"]}, "leave --recipe, --model and --data, and settings"),
        ({"recipe": "no-such-recipe"}, "no-such-recipe: no such recipe"),
        ({"recipe": "encyclopedia-grpo"}, "--recipe: encyclopedia-grpo is no recipe of search_qa"),
        ({"recipe": "gpu-multihop-smollm2", "data": "."}, "names the files of its questions itself"),
        ({"recipe": "multihop-smollm2", "data": "nowhere"}, "--data: there is no folder nowhere"),
        ({"recipe": "multihop-smollm2", "overrides": ["sft=null"]}, "has no section sft"),
        ({"recipe": "multihop-smollm2", "overrides": ["algorithm=gspo"]}, "algorithm: is what rows differ in"),
        ({"recipe": "multihop-smollm2", "overrides": ["seed=4"]}, "seed: is different for each run of a row"),
        (
            {"recipe": "gpu-multihop-smollm2", "overrides": ["evaluate.hold_out=100"]},
            "evaluate.hold_out: bench multihop evaluates its rows on the split 'dev', and on no tasks that are held",
        ),
        ({"quick": True, "rows": ["grop"]}, "--rows: there is no 'grop' (did you mean 'grpo'?); the rows are ppo, "),
        ({"quick": True, "minutes": 0.0}, "--minutes: 0 would run nothing; give more than 0"),
        ({"model": "a/b", "data": "empty"}, "empty"),
    ],
)
def test_what_cannot_be_meant_is_one_line_before_any_job(small_project, monkeypatch, asked, said):
    Path("empty").mkdir()
    monkeypatch.setattr(benchmark, "run_jobs", lambda *args, **options: pytest.fail("the work began"))
    with pytest.raises(TurnwiseError) as caught:
        run_benchmark(find_benchmark("multihop"), Console(quiet=True), **asked)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_benchmark_without_models_takes_none(small_project):
    with pytest.raises(ConfigError, match="bench credit: takes no --model and no --data, since it brings its own"):
        run_benchmark(find_benchmark("credit"), Console(quiet=True), model="a/b", data=".")
    with pytest.raises(ConfigError, match="bench credit: takes no --recipe and no --rows, since it brings its own"):
        run_benchmark(find_benchmark("credit"), Console(quiet=True), recipe="encyclopedia-grpo", rows=["grpo"])


def test_a_split_too_short_to_have_the_questions(small_project, monkeypatch):
    late = dataclasses.replace(QUICK, first=10_000)
    monkeypatch.setattr(multihop_variant, "QUICK", late)
    with pytest.raises(ConfigError, match="the split 'test' has 6400 questions and none from 10000 on"):
        multihop.plan(QUICKLY)


@pytest.fixture
def few_rows(small_project, monkeypatch):
    """One algorithm of each kind, and one ablation; the sentences of the page, which are about all, have no results."""
    methods = tuple(row for row in METHODS if row.key in ("ppo", "grpo"))
    ablations = tuple(row for row in ABLATIONS if row.key == "ppo-no-masks")
    for module in (multihop, multihop_report):
        monkeypatch.setattr(module, "METHODS", methods)
        monkeypatch.setattr(module, "ABLATIONS", ablations)
    page = Path("docs/multihop.md")
    page.write_text(re.sub(r"<!-- result: .*?-->(.*?)<!-- end -->", r"\1", page.read_text(), flags=re.DOTALL))


def test_the_quick_variant_from_end_to_end(few_rows):
    code, said = run_multihop(quick=True, seeds=1)
    assert code == 0, said
    assert "The page is docs/multihop.md, the results are in benchmarks/results/multihop-quick.json." in said
    page = Path("docs/multihop.md").read_text()
    assert "| naive RAG, with demonstrations | 0." in page
    assert "| PPO, neither mask | 0." in page
    assert "From `turnwise bench multihop --quick --seeds 1`: 15 jobs on " in page
    results = json.loads(Path("benchmarks/results/multihop-quick.json").read_text())
    assert results["grpo/episodes"] == 4.0
    assert results["about/seeds"] == "20"
    assert results["about/settings/ppo-no-masks"] == "credit.advantage_mask=false, loss.action_mask=false"
    assert all(isinstance(value, str if name.startswith("about/") else float) for name, value in results.items())
    assert Path("docs/img/multihop-learning.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)

    # Behind every number: the episodes it was counted from, and those of training.
    folder = Path("runs/bench/multihop-quick")
    for name in ("closed-book", "naive-rag-shown", "cold-start", "ppo-no-masks"):
        greedy = read_trajectories(folder / f"evaluation/{name}/seed-20/greedy.parquet")
        assert [group.task.id for group in greedy] == ["test-256", "test-257", "test-258"]
        success = sum(group.trajectories[0].success for group in greedy) / 3
        assert results[f"{name}/em"] == pytest.approx(success, abs=1e-5)
        assert (folder / f"evaluation/{name}/seed-20/sampled.parquet").is_file()
    assert list(folder.glob("training/ppo/seed-20/run/trajectories/*.parquet"))

    # The page is made from the jobs' results alone, wherever they were done.
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "result.json":
            file.unlink()
    Path("benchmarks/results/multihop-quick.json").unlink()
    assert run_multihop(quick=True, seeds=1)[0] == 0
    assert json.loads(Path("benchmarks/results/multihop-quick.json").read_text()) == results


def test_an_evaluation_asks_the_model_that_training_ended_with(small_project, monkeypatch):
    jobs = {job.name: job for job in order_jobs(multihop.plan(Scope(quick=True, seeds=1)))}
    for kind in ("sft/cold-start", "training/grpo"):
        assert run_job(jobs[f"{kind}/seed-20"], small_project).result is not None
    seen = []

    def remember(config, **options):
        seen.append(config.model.name)
        return assemble(config, **options)

    monkeypatch.setattr(multihop, "assemble", remember)
    for key in ("grpo", "cold-start", "tools"):
        outcome = run_job(jobs[f"evaluation/{key}/seed-20"], small_project)
        assert outcome.result["greedy"]["evaluate/episodes"] == 3
    trained, cold, untrained = seen
    assert trained.endswith("training/grpo/seed-20/run/checkpoints/step-000001/model")
    assert cold.endswith("sft/cold-start/seed-20/run/checkpoints/step-000000/model")
    assert untrained == "small"


def test_what_is_published_has_no_path_of_the_users(small_project):
    """A folder of the user's is shown by its own name, as in the command."""
    write_data(small_project / "questions")
    model = small_project / "models" / "Tiny-1K"
    model.mkdir(parents=True)
    for given, shown in ((str(model), "Tiny-1K"), ("a/Tiny-1K", "a/Tiny-1K")):
        about = multihop.report(Scope(quick=False, seeds=1, model=given, data="questions"), {}).about
        assert about["model"] == shown
        assert not [value for value in about.values() if str(small_project) in str(value)]


def test_the_command_line_names_the_model_and_the_data(small_project, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **options: seen.append((jobs[0], root)) or [])
    write_data(small_project / "questions")
    assert (
        main(["bench", "multihop", "--model", "a/Tiny-1K", "--data", "questions", "--seeds", "1", "--jobs", "1"]) == 0
    )
    assert "30 of 30 jobs are still to do: nothing was published" in capsys.readouterr().out
    ((job, root),) = seen
    assert root == Path("runs/bench/multihop-Tiny-1K")
    config = job.settings["config"]
    assert (config["model"]["name"], config["env"]["args"]["questions"]) == ("a/Tiny-1K", "questions")
    assert main(["bench", "multihop", "--model", "a/b"]) == 2
    assert capsys.readouterr().err.startswith("error: bench multihop: say --quick")
