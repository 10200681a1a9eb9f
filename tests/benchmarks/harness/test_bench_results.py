"""Means, intervals and tables, by hand."""

import math

import pytest

from benchmarks.harness.results import Estimate, estimate_mean, markdown_table, show_number


def test_an_interval_by_hand():
    # mean 2, s = 1, so 2 ± 4.3027 / √3
    estimate = estimate_mean([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.seeds) == (2.0, 3)
    assert (estimate.low, estimate.high) == pytest.approx((-0.48414, 4.48414), abs=1e-5)
    assert estimate.show(2) == "2.00 [-0.48, 4.48]"
    assert estimate.show(1, signed=True) == "+2.0 [-0.5, +4.5]"
    assert estimate.flat("a/b") == {"a/b": 2.0, "a/b/low": estimate.low, "a/b/high": estimate.high}


def test_equal_values_leave_no_doubt():
    assert estimate_mean([0.5, 0.5]) == Estimate(mean=0.5, low=0.5, high=0.5, seeds=2)


def test_one_seed_has_no_interval():
    estimate = estimate_mean([0.25])
    assert (estimate.mean, estimate.seeds) == (0.25, 1)
    assert math.isnan(estimate.low)
    assert estimate.show() == "0.250"
    assert estimate.flat("a") == {"a": 0.25}


def test_a_table():
    table = markdown_table(["estimator", "critic", "success"], [["grpo", "no", "0.5"], ["gae", "yes", "0.6"]], left=2)
    assert table.splitlines() == [
        "| estimator | critic | success |",
        "| --- | --- | ---: |",
        "| grpo | no | 0.5 |",
        "| gae | yes | 0.6 |",
    ]
    with pytest.raises(AssertionError, match="a cell for every column"):
        markdown_table(["a", "b"], [["1"]])


def test_numbers_in_tables():
    assert show_number(0.12345) == "0.123"
    assert show_number(-1234.5, 1) == "-1234.5"
    assert show_number(math.inf) == "–"
