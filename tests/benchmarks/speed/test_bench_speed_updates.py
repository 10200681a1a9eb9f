"""Updates as they are measured, by every method."""

import pytest

from benchmarks.speed import update_methods
from benchmarks.speed.update import make_update_groups
from benchmarks.speed.update_methods import measure_method
from benchmarks.speed.variant import COMPILED, FULL_LOGITS, IN_GROUPS, ON_CPU, OURS

pytestmark = pytest.mark.usefixtures("small_models")
BASE = ON_CPU.base()
WORK = {"rows": 4, "length": 20, "action_share": 0.5, "group_size": 2}


def method_settings(method, **others):
    return {**BASE, "work": WORK, "tokens_per_microbatch": 64, "repeats": 1, "method": method, **others}


@pytest.mark.parametrize("method", [OURS, IN_GROUPS, FULL_LOGITS])
def test_updates_by_every_method(method):
    found = measure_method(method_settings(method))
    assert found["tokens_per_second"] > 0
    assert 0 < found["peak_gib"] < 64


@pytest.mark.parametrize(("method", "prompts"), [(OURS, 4), (IN_GROUPS, 2), (FULL_LOGITS, 4)])
def test_rows_of_a_group_open_with_one_prompt_where_they_are_measured_in_groups(monkeypatch, method, prompts):
    given = []
    for name in ("measure_update", "measure_full_logits"):
        monkeypatch.setattr(update_methods, name, lambda model, work, options, **_: given.append(work) or {})
    measure_method(method_settings(method))
    (work,) = given
    groups = make_update_groups(work, 96)
    rows = [one for group in groups for one in group.trajectories]
    assert [len(group.trajectories) for group in groups] == [2, 2]
    assert len({one.turns[0].context_ids for one in rows}) == prompts
    for first, second in (group.trajectories for group in groups):
        assert (first.turns[0].context_ids == second.turns[0].context_ids) == (method == IN_GROUPS)
        assert first.turns[1].context_ids != second.turns[1].context_ids
    lengths = [sum(len(turn.context_ids) + len(turn.action_ids) for turn in one.turns) for one in rows]
    assert lengths == [20] * 4, "as in every other method"


@pytest.mark.parametrize(
    ("method", "device", "compiled"),
    [
        (OURS, "cpu", False),
        (IN_GROUPS, "cpu", False),
        (OURS, "cuda", False),
        (COMPILED, "cuda", True),
        (IN_GROUPS, "cuda", True),
    ],
)
def test_updates_in_groups_are_compiled_where_compiled_ones_are_measured(monkeypatch, method, device, compiled):
    given = []
    monkeypatch.setattr(update_methods, "measure_update", lambda model, work, options, **_: given.append(options) or {})
    monkeypatch.setattr(update_methods, "make_model", lambda settings: None)
    monkeypatch.setattr(update_methods, "_peak", lambda device: 1.0)
    measure_method(method_settings(method, device=device))
    assert [options.compile for options in given] == [compiled]
