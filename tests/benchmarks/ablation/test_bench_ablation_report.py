"""The report of `turnwise bench ablation` from made results of jobs, with figures worked out by hand."""

import math

import pytest

from benchmarks.ablation import report as ablation_report
from benchmarks.ablation.changes import read_changes
from benchmarks.ablation.comparison import choose_comparison
from benchmarks.ablation.rows import make_rows
from benchmarks.harness.benchmark import Scope
from benchmarks.harness.report import fill, flat_json
from turnwise.evaluation import clustered_interval, wilson_interval

LR, TURNS, HOT, EPOCHS = "learner.optimizer.lr-1e-5", "rollout.max_turns-2", "rollout.temperature-0.7", "sft.epochs-1"
ROWS = make_rows(
    read_changes(
        ["learner.optimizer.lr=1e-5", "rollout.max_turns=2", "rollout.temperature=0.7"], ["sft.epochs=1"], taken=()
    )
)
STEPS = {row.key: 40 for row in ROWS if row.trained}
T3 = 3.182446
"""Student's t over four tasks."""


def asked(*greedy, sampled=(1.0, 0.0, 0.0, 0.0), own=None):
    """What an evaluation returns, as far as it is read."""
    sections = {"greedy": greedy, "sampled": sampled}
    if own is not None:
        sections |= {"own-greedy": own, "own-sampled": sampled}
    return {name: {"answers": list(right)} for name, right in sections.items()}


def demonstrated(*tokens):
    columns = {"step": [*range(1, len(tokens) + 1)], "sft/tokens": list(tokens), "ledger/wall_seconds": [1.0] * 2}
    return {"sft": columns, "train": {}, "evaluate": {}}


def trained(*success, equal=1.0):
    """What a run has measured so far: of each step's 8 groups, `equal` have rewards that do not differ."""
    count = len(success)
    columns = {
        "step": list(range(1, count + 1)),
        "rollout/success": list(success),
        "health/token_entropy": [0.5] * count,
        "filter/kept": [6.0] * count,
        "filter/dropped": [2.0] * count,
        "filter/zero_variance": [equal] * count,
        "rollout/episodes": [8.0] * count,
        "policy/steps_taken": [2.0] * count,
        "ledger/sampled_tokens": [100.0] * count,
        "batch/tokens": [1000.0] * count,
        "ledger/wall_seconds": [3.0] * count,
    }
    return {"sft": {}, "train": columns, "evaluate": {}}


def some_results():
    """Two seeds: the recipe has both, the learning rate one, the temperature is being trained."""
    return {
        "sft/cold-start/seed-80": demonstrated(500.0, 700.0),
        "evaluation/cold-start/seed-80": asked(1.0, 0.0, 0.0, 0.0),
        "evaluation/cold-start/seed-81": asked(1.0, 1.0, 0.0, 0.0),
        "training/recipe/seed-80": trained(*[0.2] * 5, *[0.6] * 5),
        "training/recipe/seed-81": trained(*[0.4] * 5, *[0.8] * 5, equal=3.0),
        "evaluation/recipe/seed-80": asked(1.0, 1.0, 0.0, 0.0, sampled=(1.0, 1.0, 0.0, 0.0)),
        "evaluation/recipe/seed-81": asked(1.0, 1.0, 1.0, 0.0),
        f"evaluation/{LR}/seed-80": asked(0.0, 1.0, 1.0, 1.0, sampled=(1.0, 1.0, 1.0, 0.0)),
        f"evaluation/{TURNS}/seed-80": asked(1.0, 1.0, 0.0, 0.0, own=(1.0, 1.0, 1.0, 0.0)),
        f"training/{HOT}/seed-80": trained(*[0.5] * 12),
        f"evaluation/{EPOCHS}/seed-80": asked(1.0, 1.0, 1.0, 0.0),
        f"evaluation/{EPOCHS}/seed-81": asked(1.0, 1.0, 1.0, 1.0),
        f"evaluation/{EPOCHS}-cold-start/seed-80": asked(0.0, 0.0, 0.0, None),
    }


@pytest.fixture(scope="module")
def made():
    return ablation_report.report(ROWS, [80, 81], some_results(), STEPS, otherwise=[TURNS, HOT], page="ablation-any")


def show(mean, half):
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def wilson(mean, count=4):
    low, high = wilson_interval(round(mean * count), count)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def clustered(mean, counts):
    low, high = clustered_interval(counts, [2, 2, 2, 2])
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def test_success_and_its_differences(made):
    table = made.parts["table"].splitlines()
    assert table[0] == (
        "|  | success, greedy | sampled | less the recipe's | won, lost | by seed | less its cold start | seeds |"
    )
    assert (
        table[2]
        == f"| cold start only | {clustered(0.375, [2, 1, 0, 0])} | {clustered(0.25, [2, 0, 0, 0])} |  |  |  |  | 2 |"
    )
    # Task by task 0, .5, .5, 0 over the seeds, whose std is √(1/12).
    gained = show(0.25, T3 * math.sqrt(1 / 12) / 2)
    assert table[3] == (
        f"| the recipe | {clustered(0.625, [2, 2, 1, 0])} | {clustered(0.375, [2, 1, 0, 0])} |  |  |  | {gained} | 2 |"
    )
    # Of seed 80 alone: -1, 0, 1, 1 less the recipe, whose std is √(2.75/3), and -1, 1, 1, 1 less the cold start.
    less, gained = show(0.25, T3 * math.sqrt(2.75 / 3) / 2), show(0.5, T3 / 2)
    assert table[4] == (
        f"| `learner.optimizer.lr=1e-5` | {wilson(0.75)} | {wilson(0.75)} | {less} | 2, 1 | +0.250 | {gained} "
        "| 1 of 2 |"
    )
    assert table[6] == "| `rollout.temperature=0.7` | 12 of 40 steps |  |  |  |  |  |  |"
    assert dict(made.about) == {f"state/{HOT}": "12 of 40 steps"}
    assert made.results[f"{LR}/success/less_recipe/won"] == 2.0
    assert made.results[f"{LR}/success_sampled/less_recipe"] == 0.25, "0, 0, 1, 0 in seed 80"


def test_a_cold_change_is_compared_with_the_recipe_and_its_cold_start_with_the_recipes(made):
    table = made.parts["table"].splitlines()
    # 0, 0, .5, .5 over the seeds less the recipe; 1, 1, 1 in the three tasks of seed 80 that its cold start has.
    less = show(0.25, T3 * math.sqrt(1 / 12) / 2)
    everywhere = f"+1.000 [{1 - 2 * wilson_interval(0, 3)[1]:+.3f}, +1.000]"
    assert table[7] == (
        f"| `sft.epochs=1` | {clustered(0.875, [2, 2, 2, 1])} | {clustered(0.25, [2, 0, 0, 0])} | {less} | 2, 0 | "
        f"+0.250, +0.250 | {everywhere} | 2 |"
    )
    # -1, 0, 0 less the recipe's cold start of seed 80.
    less = show(-1 / 3, 4.302653 / 3)
    assert table[8] == (
        f"| `sft.epochs=1`, cold start only | {wilson(0.0, 3)} | {wilson(0.25)} | {less} | 0, 1 | -0.333 |  | 1 of 2 |"
    )
    assert made.results[f"{EPOCHS}/success/less_recipe/seed/81"] == 0.25
    assert not [name for name in made.results if name.startswith(f"{EPOCHS}-cold-start/") and "less_cold" in name]


def test_how_many_comparisons_there_are(made):
    assert made.parts["comparisons"] == (
        "Comparisons with the recipe: 5, of which 4 could be made, 0 of them clear of zero. Were no change worth "
        "anything, 5% would be by the choice of tasks alone, 0.2 of 4 and, if they were independent, at least one in "
        "19% of such tables; and more since training itself differs from run to run, which no interval here holds."
    )
    rows = make_rows(read_changes(["steps=2"], [], taken=()))
    results = {"evaluation/recipe/seed-80": asked(*[0.0] * 8), "evaluation/steps-2/seed-80": asked(*[1.0] * 8)}
    found = ablation_report.report(rows, [80], results, {}, otherwise=[], page="any").parts["comparisons"]
    assert found.startswith("Comparisons with the recipe: 1, of which 1 could be made, 1 of them clear of zero.")


def test_a_row_in_settings_of_its_own(made):
    lines = made.parts["own"].splitlines()[2:]
    # 0, 0, 1, 0 less the recipe in seed 80.
    less = show(0.25, T3 * 0.5 / 2)
    assert lines == [
        f"| `rollout.max_turns=2` | {wilson(0.75)} | {wilson(0.25)} | {less} | 1, 0 |",
        "| `rollout.temperature=0.7` | 12 of 40 steps |  |  |  |",
    ]
    assert made.results[f"{TURNS}/success/less_recipe"] == 0.0
    assert made.results[f"{TURNS}/own_success/less_recipe"] == 0.25


def test_training_by_windows_and_its_picture(made):
    success, entropy, differing = made.parts["windows"].split("\n\n")
    assert success.splitlines()[0] == "| success, steps | 1–2 | 3–4 | 5–6 | 7–8 | 9–10 | 11–12 |"
    # Means of both seeds: .3, then .7.
    assert "| the recipe | 0.300 | 0.300 | 0.500 | 0.700 | 0.700 |  |" in success
    assert "| `rollout.temperature=0.7` | 0.500 | 0.500 | 0.500 | 0.500 | 0.500 | 0.500 |" in entropy
    # 7 and 5 of 8 groups.
    assert "| the recipe | 0.750 | 0.750 | 0.750 | 0.750 | 0.750 |  |" in differing
    assert "| `rollout.temperature=0.7` | 0.875 |" in differing
    assert made.results["recipe/differing_at/1"] == 0.75
    assert made.parts["training"].splitlines()[2:] == [
        "| cold start only | 2 (SFT) |  |  |  | 1,200 | 2 |",
        "| the recipe | 10 of 40 | 80 | 20 | 1,000 | 10,000 | 30 |",
        "| `rollout.temperature=0.7` | 12 of 40 | 96 | 24 | 1,200 | 12,000 | 36 |",
    ]
    (picture,) = made.pictures
    assert [panel.title for panel in picture.panels] == ["the recipe", "rollout.temperature=0.7"]
    (line,) = picture.panels[0].series
    assert line.y[0] == pytest.approx(0.3)
    assert (line.band[0][0], line.band[1][0]) == (0.0, 1.0), "of two seeds, cut to what a share can be"
    assert f"](img/ablation-any-{picture.name}.png)" in made.parts["curves"]


def test_before_anything_is_done():
    found = ablation_report.report(ROWS, [80, 81], {}, STEPS, otherwise=[], page="any")
    assert [line.split(" | ")[1] for line in found.parts["table"].splitlines()[2:]] == ["not run"] * len(ROWS)
    assert found.parts["own"] == "No change acts on the episodes that are evaluated."
    assert found.parts["windows"] == found.parts["training"] == "Nothing was trained yet."
    assert (found.parts["curves"], list(found.pictures), dict(found.results)) == ("", [], {})


def test_the_page_has_a_place_for_every_part_and_the_file_holds_every_result(made, recipe):
    template = choose_comparison(Scope(quick=False, seeds=1, recipe=recipe, changes=("steps=3",))).template
    parts = {**made.parts, "origin": "From here.", "evaluation": "Of 6 tasks."}
    page = fill(template, parts, made.results, source="docs/ablation-any.md")
    assert "| `sft.epochs-1-cold-start` | that cold start |" in page
    assert f'"{LR}/success/less_recipe": 0.25' in flat_json(made.results, made.about)
