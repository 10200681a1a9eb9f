"""`benchmarks.tools.demonstrations`: what the demonstrations of a recipe reach."""

import re

import pytest

from benchmarks.tools.demonstrations import main


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 1.0, 1.0), (1.0, 0.0, 0.6)])
def test_a_perfect_expert_always_succeeds_and_a_random_one_seldom(capsys, noise, least, most):
    main(["games-frozen-lake", f"env.args.expert_noise={noise}", "--episodes", "24"])
    printed = re.fullmatch(r"success (\S+) \[(\S+), (\S+)\] in 24 episodes of \d+\.\d ms\n", capsys.readouterr().out)
    success, low, high = map(float, printed.groups())
    assert least <= success <= most
    assert low <= success <= high
