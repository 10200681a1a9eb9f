"""Updates as they are measured, in every variant."""

import pytest

from benchmarks.speed import variants as speed_variants
from benchmarks.speed.update import make_update_work
from benchmarks.speed.variant import COMPILED, FULL_LOGITS, IN_GROUPS, ON_CPU, OURS
from benchmarks.speed.variants import measure_variant

pytestmark = pytest.mark.usefixtures("small_models")
BASE = ON_CPU.base()
WORK = {"rows": 4, "length": 20, "action_share": 0.5, "responses": 2}


def variant_settings(variant, **others):
    return {**BASE, "work": WORK, "tokens_per_microbatch": 64, "repeats": 1, "variant": variant, **others}


@pytest.mark.parametrize("variant", [OURS, IN_GROUPS, FULL_LOGITS])
def test_updates_of_every_variant(variant):
    found = measure_variant(variant_settings(variant))
    assert found["tokens_per_second"] > 0
    assert 0 < found["peak_gib"] < 64


@pytest.mark.parametrize(("variant", "prompts"), [(OURS, 4), (IN_GROUPS, 2), (FULL_LOGITS, 4)])
def test_rows_of_a_group_open_with_one_prompt_where_they_are_measured_in_groups(monkeypatch, variant, prompts):
    given = []
    for name in ("measure_update", "measure_full_logits"):
        monkeypatch.setattr(speed_variants, name, lambda model, work, way, **_: given.append(work) or {})
    measure_variant(variant_settings(variant))
    (work,) = given
    groups = make_update_work(work, 96)
    rows = [one for group in groups for one in group.trajectories]
    assert [len(group.trajectories) for group in groups] == [2, 2]
    assert len({one.turns[0].context_ids for one in rows}) == prompts
    for first, second in (group.trajectories for group in groups):
        assert (first.turns[0].context_ids == second.turns[0].context_ids) == (variant == IN_GROUPS)
        assert first.turns[1].context_ids != second.turns[1].context_ids
    lengths = [sum(len(turn.context_ids) + len(turn.action_ids) for turn in one.turns) for one in rows]
    assert lengths == [20] * 4, "as in every other variant"


@pytest.mark.parametrize(
    ("variant", "device", "compiled"),
    [
        (OURS, "cpu", False),
        (IN_GROUPS, "cpu", False),
        (OURS, "cuda", False),
        (COMPILED, "cuda", True),
        (IN_GROUPS, "cuda", True),
    ],
)
def test_updates_in_groups_are_compiled_where_compiled_ones_are_measured(monkeypatch, variant, device, compiled):
    given = []
    monkeypatch.setattr(speed_variants, "measure_update", lambda model, work, way, **_: given.append(way) or {})
    monkeypatch.setattr(speed_variants, "make_model", lambda settings: None)
    monkeypatch.setattr(speed_variants, "_peak", lambda device: 1.0)
    measure_variant(variant_settings(variant, device=device))
    assert [way.compile for way in given] == [compiled]
