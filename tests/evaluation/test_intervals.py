"""Intervals against known values and, with several samples per task, by their coverage in simulation."""

import itertools

import numpy as np
import pytest

from turnwise.evaluation import clustered_interval, pass_at_k, wilson_interval
from turnwise.evaluation.intervals import pass_curve, student_t

DRAWS = 4000


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # (share + z²/2n ± z √(share (1 − share) / n + z²/4n²)) / (1 + z²/n), with z² = 3.841459
        (8, 10, 0.490162, 0.943318),
        (2, 10, 1 - 0.943318, 1 - 0.490162),
        (0, 10, 0.0, 0.277533),  # z² / (n + z²)
        (10, 10, 1 - 0.277533, 1.0),
        (1, 1, 1 / (1 + 3.841459), 1.0),
        (100, 200, 0.431360, 0.568640),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilsons_interval(successes, trials, low, high):
    assert wilson_interval(successes, trials) == (pytest.approx(low, abs=2e-6), pytest.approx(high, abs=2e-6))


@pytest.mark.parametrize(
    ("trials", "successes", "k", "chance"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 1 − C(3, 2) / C(4, 2) = 1 − 3 / 6
        (4, 1, 4, 1.0),
        (10, 3, 4, 1 - 35 / 210),  # C(7, 4) = 35, C(10, 4) = 210
        (10, 0, 10, 0.0),
        (10, 10, 1, 1.0),
        (5, 3, 3, 1.0),  # two failures cannot fill three places
    ],
)
def test_pass_at_k(trials, successes, k, chance):
    assert pass_at_k(trials, successes, k) == pytest.approx(chance, abs=1e-12)


def test_pass_at_k_is_the_share_of_choices_with_a_success():
    """Counted one by one: every choice of k of the n responses."""
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c <= n and k <= n:
            choices = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


def test_the_curve_of_pass_at_k_goes_by_tasks():
    """A task of which responses failed sits out where it has too few."""
    curve = pass_curve([1, 4, 0], [4, 4, 2])
    assert curve == {1: pytest.approx((0.25 + 1 + 0) / 3), 2: pytest.approx((0.5 + 1 + 0) / 3), 4: pytest.approx(1.0)}
    assert list(pass_curve([3], [6])) == [1, 2, 4]
    assert pass_curve([], []) == {}


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_student_t_as_printed_in_tables(freedom, printed):
    assert student_t(freedom) == pytest.approx(printed, abs=5e-4)


def test_student_t_of_other_levels():
    assert student_t(1, 0.5) == pytest.approx(1.0)  # a Cauchy variable's quartiles
    assert student_t(4, 0.99) == pytest.approx(4.604, abs=5e-4)


def test_the_clustered_interval_by_hand():
    # Rates 1, ½, 0 and the pseudo-tasks 0, 1: c = ½, s² = (¼ + 0 + ¼ + ¼ + ¼) / 4 = ¼, half = 2.776 · ½ / √5 = .6208.
    assert clustered_interval([2, 1, 0], [2, 2, 2]) == (0.0, 1.0)
    # Twenty tasks always solved: c = 21/22, s² = (21/22) / 21 = 1/22, half = 2.0796 / 22.
    assert clustered_interval([4] * 20, [4] * 20) == (pytest.approx(21 / 22 - 2.0796 / 22, abs=1e-5), 1.0)
    assert clustered_interval([0] * 20, [4] * 20) == (0.0, pytest.approx(1 / 22 + 2.0796 / 22, abs=1e-5))
    low, high = clustered_interval([8] * 5 + [0] * 5, [8] * 10)  # c = ½, s² = 12 · ¼ / 11, half = 2.2010 √(s² / 12)
    assert (low, high) == (pytest.approx(0.5 - 0.33181, abs=1e-5), pytest.approx(0.5 + 0.33181, abs=1e-5))


def test_a_task_without_a_scored_sample_says_nothing():
    assert clustered_interval([3, 0, 1], [4, 0, 4]) == clustered_interval([3, 1], [4, 4])
    assert clustered_interval([0], [0]) == clustered_interval([], []) == (0.0, 1.0)


def many_clustered_intervals(rates):
    """`clustered_interval` for every row of task rates [draws, tasks]."""
    edge = np.ones((len(rates), 1))
    rates = np.concatenate([rates, 0 * edge, edge], 1)
    count = rates.shape[1]
    centre, half = rates.mean(1), student_t(count - 1) * rates.std(1, ddof=1) / np.sqrt(count)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def coverage(rng, tasks, samples, success, correlation, *, unequal=False):
    """How often the interval holds the true rate, over tasks whose own rates are Beta draws.

    `correlation` is that between two samples of a task: 0 where all tasks are alike, near 1 where a task is always or
    never solved. Unequal: infrastructure left each task with 1 to `samples` samples, at random.
    """
    own = np.full((DRAWS, tasks), success)
    if correlation:
        own = rng.beta(*((1 / correlation - 1) * np.array([success, 1 - success])), (DRAWS, tasks))
    trials = rng.integers(1, samples + 1, (DRAWS, tasks)) if unequal else np.full((DRAWS, tasks), samples)
    won = rng.binomial(trials, own)
    low, high = many_clustered_intervals(won / trials)
    for draw in range(3):
        assert clustered_interval(won[draw].tolist(), trials[draw].tolist()) == pytest.approx((low[draw], high[draw]))
    return float(np.mean((low <= success) & (success <= high)))


def test_the_clustered_interval_holds_the_true_rate_at_least_94_times_in_100():
    """Why this method: the percentile bootstrap, which knows only what was seen, gives [1, 1] where all tasks were
    solved, and held the true rate .84 to .93 of the time; Wilson's on an effective number of samples .92 to .97.

    Grid: 10, 20 and 50 tasks; 2, 4 and 16 samples; success .05, .3 and .5 (the interval is symmetric in success and
    failure); correlation 0, .5 and .95; and unequal numbers of samples. 4,000 draws a cell, so that a cell's share has
    a standard error of .0034: the bound of .94 leaves three of them below the nominal .95. With 200 tasks and with
    success .1, the cells that came out lowest held it .949 of the time or more when drawn 40,000 times. Where tasks are
    alike or nearly all solved, the interval is wider than it need be.
    """
    rng = np.random.default_rng(0)
    grid = itertools.product((10, 20, 50), (2, 4, 16), (0.05, 0.3, 0.5), (0, 0.5, 0.95))
    cells = {cell: coverage(rng, *cell) for cell in grid}
    assert {cell: share for cell, share in cells.items() if share < 0.94} == {}
    assert min(coverage(rng, 20, 8, p, rho, unequal=True) for p in (0.1, 0.5) for rho in (0, 0.5)) >= 0.94
