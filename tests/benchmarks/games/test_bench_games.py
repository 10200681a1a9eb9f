"""`turnwise bench games`: what is planned, what is said of it by hand, and a whole small one from end to end."""

import dataclasses
import importlib.util
import json
import re
import shutil
from math import comb
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from benchmarks.games import benchmark as games
from benchmarks.games import curve as games_curve
from benchmarks.games import health as games_health
from benchmarks.games import shaping as games_shaping
from benchmarks.games.curve import LONG_ENOUGH
from benchmarks.games.shaping import ACTIONS, ENVIRONMENTS, ONLINE, RESPONSES, plan_shaping, shaping_config, values
from benchmarks.games.shaping_report import Shaping
from benchmarks.games.trap import (
    alarm_table,
    count_effort,
    count_shares,
    describe_effort,
    draw_trap,
    flatten_shares,
    read_curves,
    summarise_mode,
    trap_table,
)
from benchmarks.harness import benchmark
from benchmarks.harness.benchmark import Scope, run_benchmark
from benchmarks.harness.jobs import order_jobs
from benchmarks.harness.report import Report
from benchmarks.harness.results import estimate_mean
from benchmarks.harness.worker import run_job
from tiny_bench import tiny_data
from turnwise.cli.main import main
from turnwise.credit.base import TokenBatch
from turnwise.credit.grpo import grpo
from turnwise.credit.rloo import rloo
from turnwise.evaluation import wilson_interval

PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs/stability.md"
QUICK, FULL = Scope(quick=True, seeds=2), Scope(quick=False, seeds=6)


def run(success, *, alarm_at=None, held_out=(0.5, 0.5), rollbacks=0, updates=2, idle=0):
    """The results of a training job, as far as they are read."""
    steps = range(1, len(success) + 1)
    return {
        "evaluate": {"step": [0, len(success)], "evaluate/success": list(held_out)},
        "train": {
            "step": list(steps),
            "rollout/success": list(success),
            "rollout/reward_std_in_group": [0.5 * one for one in success],
            "health/token_entropy": [one**2 for one in success],
            "policy/grad_norm": [4.0] * len(success),
            "rollout/episodes": [8] * len(success),
            "policy/steps_taken": [updates] * len(success),
            "policy/steps_idle": [0] * (len(success) - 1) + [idle],
            "stability/alarm": [float(alarm_at is not None and step >= alarm_at) for step in steps],
            "stability/rollbacks": [0.0] * (len(success) - 1) + [float(rollbacks)],
        },
    }


FALLEN = [0.6] * 10 + [0.0] * 10
RISING = [0.5] * 10 + [0.9] * 10


@pytest.fixture
def in_project(monkeypatch):
    """Where the recipes are."""
    monkeypatch.chdir(PROJECT)


def test_the_modes_differ_in_what_watches_over_them_alone(in_project):
    jobs = {job.name: job for job in games.plan(QUICK)}
    for seed in (50, 51):
        configs = {mode: jobs[f"trap/{mode}/seed-{seed}"].settings["config"] for mode in games.MODES}
        for mode, config in configs.items():
            assert jobs[f"trap/{mode}/seed-{seed}"].after.name == f"trap/cold-start/seed-{seed}"
            assert config["seed"] == seed
            for section in ("env", "model", "steps", "rollout", "loss", "learner", "evaluate", "checkpoint"):
                assert config[section] == configs["vanilla"][section], f"{mode}: {section}"
        assert {mode: config["stability"]["mode"] for mode, config in configs.items()} == {
            "vanilla": "monitor",
            "auto": "auto",
            "always": "always",
            "rloo": "monitor",
        }
        assert {mode: config["credit"]["estimator"] for mode, config in configs.items()} == {
            "vanilla": "grpo",
            "auto": "grpo",
            "always": "grpo",
            "rloo": "rloo",
        }
        starpo_s = configs["always"]["stability"]["starpo_s"]
        assert starpo_s["critic_warmup"] == 0, "a step that only warms the critic up is an update less"
        assert starpo_s["filter"]["refill"] == 0, "a refill is samples more"


def test_seeds_are_apart_from_those_that_thresholds_were_chosen_on():
    assert list(games.trap_seeds(Scope(quick=True, seeds=3))) == [50, 51, 52]
    assert len(games.shaping_seeds(Scope(quick=True, seeds=5))) == 3
    assert len(games.shaping_seeds(Scope(quick=False, seeds=10))) == 5
    assert len(games.shaping_seeds(Scope(quick=False, seeds=1))) == 1


def test_the_cells_of_a_table_differ_in_its_question_alone(in_project):
    cells = {job.name.split("/")[2]: job for job in plan_shaping("frozen_lake", 10, quick=False)}
    base = cells["base"].settings["config"]
    budget = base["rollout"]["groups_per_step"] * base["rollout"]["group_size"]
    for name, job in cells.items():
        if name.startswith("cold-start"):
            continue
        config = json.loads(json.dumps(job.settings["config"]))
        question, _, value = name.partition("-")
        assert config["rollout"]["groups_per_step"] * config["rollout"]["group_size"] == budget
        if question == "responses":
            assert config["rollout"]["group_size"] == int(value)
            config["rollout"] |= {key: base["rollout"][key] for key in ("groups_per_step", "group_size")}
        elif question == "actions":
            assert config["env"]["args"]["max_actions_per_turn"] == int(value)
            config["env"] = base["env"]
        elif question == "online":
            assert config["rollout"]["updates_per_rollout"] == int(value)
            config["rollout"]["updates_per_rollout"] = base["rollout"]["updates_per_rollout"]
        assert config == base, name
        actions = job.settings["config"]["env"]["args"]["max_actions_per_turn"]
        assert job.after is cells[f"cold-start-{actions}"], "demonstrations are played as the agent plays"
    assert set(cells) == {
        "base",
        *(f"cold-start-{actions}" for actions in (1, 2, 3, 4, 5)),
        *(f"responses-{responses}" for responses in (32, 16, 4, 2)),
        *(f"actions-{actions}" for actions in (1, 3, 4, 5)),
        *(f"online-{serves}" for serves in (5, 10)),
    }


def test_one_response_is_tried_where_nothing_compares_groups(in_project):
    by_group, alone = (shaping_config(name, 10, quick=False) for name in ("frozen_lake", "frozen_lake_ppo"))
    assert 1 not in values(RESPONSES, by_group, quick=False)
    assert 1 in values(RESPONSES, alone, quick=False)
    assert 1 in values(ACTIONS, by_group, quick=False)
    assert 1 in values(ONLINE, by_group, quick=False)


def test_every_plan_can_be_made(in_project):
    quick, full = games.plan(QUICK), games.plan(FULL)
    assert {job.name.split("/")[1] for job in full if job.name.startswith("shaping/")} == set(ENVIRONMENTS)
    assert {job.name.split("/")[1] for job in quick if job.name.startswith("shaping/")} == {"frozen_lake"}
    assert len({job.name for job in full}) == len(full)


def test_runs_that_are_meant_to_stay_well_are_long_and_begin_as_others_do(in_project):
    jobs = {job.name: job for job in games.plan(FULL)}
    healthy = {name: job for name, job in jobs.items() if name.startswith("healthy/")}
    assert len(healthy) == 6 * 2 + 5, "six seeds on the bandit by two estimators, five on the lake"
    assert all(job.settings["config"]["steps"] >= LONG_ENOUGH for job in healthy.values())
    assert all(job.settings["config"]["stability"]["mode"] == "monitor" for job in healthy.values())
    by_name = {name: healthy[f"healthy/{name}/seed-50"] for name in ("dr-grpo", "reinforce-pp", "frozen_lake")}
    assert by_name["dr-grpo"].after is by_name["reinforce-pp"].after is jobs["trap/cold-start/seed-50"]
    assert by_name["reinforce-pp"].settings["config"]["credit"]["estimator"] == "reinforce++-baseline"
    lake, base = by_name["frozen_lake"], jobs["shaping/frozen_lake/base/seed-50"]
    assert lake.after is base.after, "two actions per turn, in the demonstrations too"
    quick = [job.name for job in games.plan(QUICK) if job.name.startswith("healthy/")]
    assert len(quick) == 2 * 2, "the lake is of full runs alone"


def test_a_mode_by_hand():
    """Two seeds, so a half-width is 12.706 · |difference| / 2 of the two values."""
    vanilla = [run(FALLEN, alarm_at=9, held_out=(0.5, 0.1)), run(FALLEN, alarm_at=15, held_out=(0.5, 0.0))]
    auto = [run(RISING, alarm_at=9, held_out=(0.5, 0.9), rollbacks=1), run([0.4] * 20, held_out=(0.5, 0.4))]
    found = summarise_mode(auto, vanilla)
    assert found["success"].mean == pytest.approx((0.9 + 0.4) / 2)
    assert found["peak"].mean == pytest.approx((0.9 + 0.4) / 2)
    assert found["success_minus_vanilla"].mean == pytest.approx(0.65)
    assert found["held_out"].mean == pytest.approx(0.65)
    assert found["held_out_minus_vanilla"].mean == pytest.approx((0.8 + 0.4) / 2)
    assert found["held_out_minus_vanilla"].high == pytest.approx(0.6 + 12.7062 * 0.2, abs=1e-3)
    assert found["alarm_at"].mean == 9.0
    assert found["rollbacks"].mean == 0.5
    assert "lead" not in found
    assert "fallen_at" not in found
    assert summarise_mode(vanilla, vanilla)["lead"].mean == pytest.approx((4 - 2) / 2)
    assert count_shares(read_curves(vanilla)) == {"trapped": (2, 2), "alarmed": (2, 2), "warned": (1, 2)}
    assert count_shares(read_curves(auto)) == {"trapped": (0, 2), "alarmed": (1, 2), "warned": (0, 0)}


def test_a_share_of_nothing_is_left_out():
    low, high = wilson_interval(1, 2)
    assert flatten_shares("trap/auto", {"trapped": (1, 2), "warned": (0, 0)}) == {
        "trap/auto/trapped_of": 2.0,
        "trap/auto/trapped": 0.5,
        "trap/auto/trapped/low": low,
        "trap/auto/trapped/high": high,
        "trap/auto/warned_of": 0.0,
    }


def test_the_tables_by_hand():
    modes = {
        "vanilla": [run(FALLEN, alarm_at=9, held_out=(0.5, 0.1))],
        "auto": [run(RISING, alarm_at=9, held_out=(0.5, 0.9), rollbacks=1)],
    }
    summaries = {mode: summarise_mode(runs, modes["vanilla"]) for mode, runs in modes.items()}
    shares = {mode: count_shares(read_curves(runs)) for mode, runs in modes.items()}
    effort = {mode: {"episodes": 15360.0, "updates": 120.0, "idle": 0.0} for mode in modes}
    assert trap_table(summaries, shares, effort).splitlines()[2:] == [
        "| vanilla | 0.60 | 0.00 |  | 0.10 |  | 1 of 1 | 15,360 | 120 |",
        "| auto | 0.90 | 0.90 | +0.90 | 0.90 | +0.80 | 0 of 1 | 15,360 | 120 |",
    ]
    assert alarm_table(summaries, shares).splitlines()[2:] == [
        "| vanilla | 1 of 1 | 9.0 | 13.0 | +4.0 | 1 of 1 | 0.0 |",
        "| auto | 1 of 1 | 9.0 | – | – | 0 of 0 | 1.0 |",
    ]
    assert describe_effort(effort) == (
        "Samples and updates are equal: every run sampled 15,360 episodes and made 120 updates of the policy."
    )
    assert count_effort([run(RISING, updates=2), run(RISING, updates=1, idle=4)]) == {
        "episodes": 160.0,
        "updates": 32.0,
        "idle": 2.0,
    }
    idle = describe_effort({**effort, "always": {"episodes": 15360.0, "updates": 120.0, "idle": 1.5}})
    assert idle.endswith("(some with a gradient of exactly zero: at most 1.5 per run, of always).")
    unequal = describe_effort({**effort, "always": {"episodes": 15360.0, "updates": 118.0, "idle": 0.0}})
    assert "**Samples or updates were not equal**" in unequal
    assert "always: 15,360.0 episodes, 118.0 updates" in unequal
    success, spread, _, gradient = draw_trap(modes, summaries).panels
    assert success.series[0].y[0] == pytest.approx(0.6)
    assert spread.title == "in-group reward std (1 = 0.45)"
    assert max(spread.series[1].y) == pytest.approx(1.0)
    assert spread.series[0].y[0] == pytest.approx(0.3 / 0.45)
    assert gradient.title == "gradient norm (1 = 4)"
    assert (success.series[-1].name, success.series[-1].x) == ("alarm", [9.0, 9.0])


def test_shaping_by_hand(in_project):
    """One environment, two seeds; the recipe's own cell stands in all three tables."""
    config = shaping_config("frozen_lake", 10, quick=True)
    outcomes = {"base": 0.6, "responses-16": 0.7, "responses-2": 0.4, "actions-1": 0.4}
    outcomes |= {"online-5": 0.5, "online-10": 0.4}
    results = {
        f"shaping/frozen_lake/{cell}/seed-{seed}": run([0.5] * 20, held_out=(0.3, success))
        for cell, success in outcomes.items()
        for seed in (50, 51)
    }
    shaping = Shaping(results=results, configs={"frozen_lake": config}, seeds=(50, 51), quick=True)
    parts = shaping.parts()
    assert parts["responses"].splitlines() == [
        "| responses per task | FrozenLake | FrozenLake, gain | RAGEN's FrozenLake |",
        "| --- | ---: | ---: | ---: |",
        "| 16 | 70.0 [70.0, 70.0] | +40.0 [+40.0, +40.0] | 19.5 |",
        "| 8 | 60.0 [60.0, 60.0] | +30.0 [+30.0, +30.0] | 17.2 |",
        "| 2 | 40.0 [40.0, 40.0] | +10.0 [+10.0, +10.0] | 12.5 |",
    ]
    assert parts["actions"].splitlines()[3].startswith("| 2 | 60.0 ")
    assert parts["online"].splitlines()[2].startswith("| 1 | 60.0 ")
    assert parts["shaping-effort"].startswith("FrozenLake. Samples and updates are equal: ")
    results = shaping.flatten()
    assert results["shaping/frozen_lake/online-1/success"] == results["shaping/frozen_lake/responses-8/success"] == 0.6
    assert results["shaping/frozen_lake/actions-1/gain"] == pytest.approx(0.1)
    assert results["shaping/frozen_lake/actions-1/updates"] == 40.0
    assert [len(panel.series) for panel in shaping.picture().panels] == [3, 2, 3]


def pushes(pulls):
    """Of a group of eight with so many pulls of the high arm: by jackpots, the share of such groups, GRPO's summed
    advantage of those pulls, and RLOO's."""
    for jackpots in range(pulls + 1):
        reward = torch.tensor([1.0] * jackpots + [0.0] * (pulls - jackpots) + [0.125] * (8 - pulls))
        episodes = TokenBatch(
            reward=reward,
            trajectory=torch.arange(8),
            turn=torch.zeros(8, dtype=torch.long),
            group=torch.zeros(8, dtype=torch.long),
            truncated=torch.zeros(8, dtype=torch.bool),
        )
        credits = (grpo(episodes, divide_by_std=True), rloo(episodes))
        share = comb(pulls, jackpots) * 0.25**jackpots * 0.75 ** (pulls - jackpots)
        yield share, float(reward.std()), *(float(credit.advantage[:pulls].sum()) for credit in credits)


def mean_pushes(pulls):
    """GRPO's and RLOO's, over all groups with so many pulls of the high arm."""
    found = list(pushes(pulls))
    return tuple(sum(group[0] * group[place] for group in found) for place in (2, 3))


def test_the_pages_arithmetic_is_the_estimators_own():
    """Why GRPO falls into the trap: the table of pushes, recomputed."""
    page = PAGE.read_text().replace("−", "-").replace("| .", "| 0.")
    for jackpots, (share, spread, by_grpo, by_rloo) in enumerate(pushes(4)):
        assert f"| {jackpots} | {share:.3f} | {spread:.3f} | {by_grpo:+.2f} | {by_rloo:+.2f} |" in page
    by_grpo, by_rloo = mean_pushes(4)
    assert f"| in the mean | | | {by_grpo:+.2f} | {by_rloo:+.2f} |" in page
    by_grpo, by_rloo = mean_pushes(1)
    assert f"the mean push is {by_grpo:+.2f} (RLOO's is {by_rloo:+.3f})" in page


def test_the_page_leads_to_files_that_exist():
    targets = re.findall(r"\]\((\.\./(?:src|tests)[^)#]*)\)", PAGE.read_text())
    assert len(targets) >= 4
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


TOY = dataclasses.replace(
    games.BENCHMARK,
    plan=lambda scope: [],
    report=lambda scope, results: Report(results={"one": estimate_mean([1.0]).mean}, parts={"one": "1"}),
)


@pytest.mark.parametrize(("publishes", "place"), [(True, "."), (False, "runs/bench/games-quick")])
def test_a_quick_run_is_published_where_the_benchmark_says_so(tmp_path, monkeypatch, publishes, place):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/stability.md").write_text(
        "<!-- results: one -->\n<!-- end -->\n<!-- results: origin -->\n<!-- end -->\n"
    )
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [])
    toy = dataclasses.replace(TOY, publishes_quick=publishes)
    assert run_benchmark(toy, Console(record=True), quick=True) == 0
    assert "\n1\n" in (Path(place) / "docs/stability.md").read_text()
    assert json.loads((Path(place) / "benchmarks/results/games.json").read_text())["one"] == 1.0
    assert ("\n1\n" in Path("docs/stability.md").read_text()) == publishes


@pytest.fixture
def small_project(tmp_path, monkeypatch):
    """A folder with recipes of a second each and the page; few values are left of every question.

    Jobs run in this process, for speed.
    """
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    shutil.copy(PAGE, "docs/stability.md")
    credit, stability = {"estimator": "grpo"}, {"starpo_s": {"critic_warmup": 0}}
    Path(f"{games.RECIPE}.yaml").write_text(yaml.safe_dump(tiny_data(credit=credit, stability=stability)))
    lake = ENVIRONMENTS["frozen_lake"]
    several = {"size": 2, "think": False, "max_actions_per_turn": 2, "max_actions": 2}
    recipe = tiny_data(credit=credit, env={"args": several}, checkpoint={"every": 2})
    Path(f"{lake.recipe}.yaml").write_text(yaml.safe_dump(recipe))
    few = tuple(
        dataclasses.replace(question, quick=tried)
        for question, tried in ((RESPONSES, (4, 2)), (ACTIONS, (1, 2)), (ONLINE, (1, 2)))
    )
    monkeypatch.setattr(games_shaping, "ACTIONS", few[1])
    monkeypatch.setattr(games_shaping, "QUICK", ())
    monkeypatch.setattr(games_health, "STEPS", 2)
    monkeypatch.setattr(games_curve, "LONG_ENOUGH", 2)
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [run_job(one, root) for one in order_jobs(jobs)])
    monkeypatch.setitem(ENVIRONMENTS, "frozen_lake", dataclasses.replace(lake, questions=few))
    return tmp_path


def test_from_end_to_end(small_project, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.games.shaping_report.QUESTIONS", ENVIRONMENTS["frozen_lake"].questions)
    assert main(["bench", "games", "--quick", "--seeds", "1"]) == 0
    assert "The page is docs/stability.md" in capsys.readouterr().out
    page = Path("docs/stability.md").read_text()
    assert "From `turnwise bench games --quick --seeds 1`: 13 jobs on " in page
    assert re.search(r"\| always \| [\d.]+ \| [\d.]+ \| [+-][\d.]+ \|.*\| 8 \| 2 \|", page)
    assert "Samples and updates are equal: every run sampled 8 episodes and made 2 updates" in page
    results = json.loads(Path("benchmarks/results/games.json").read_text())
    assert {results[f"trap/{mode}/updates"] for mode in games.MODES} == {2.0}
    assert results["healthy/all/false_alarms_of"] == 4.0, "always, rloo, and two other estimators"
    assert results["about/seeds/trap"] == results["about/seeds/shaping"] == "50"
    assert all(isinstance(value, str if name.startswith("about/") else float) for name, value in results.items())
    drawn = importlib.util.find_spec("matplotlib") is not None
    for picture in ("trap", "shaping"):
        assert Path(f"docs/img/games-{picture}.png").is_file() == drawn
        assert f"](img/games-{picture}.png)" in page
