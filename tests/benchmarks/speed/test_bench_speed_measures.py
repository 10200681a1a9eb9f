"""The work that is measured: models, episodes of a shape, and how their cost grows with turns."""

import asyncio
import dataclasses
import re

import pytest
import torch

from benchmarks.speed import models as speed_models
from benchmarks.speed.episodes import Shape, play
from benchmarks.speed.growth import (
    ONE_ROW,
    ROW_PER_TURN,
    count_tokens,
    fit_exponent,
    lay_out,
    measure_growth,
    open_row_per_turn,
)
from benchmarks.speed.models import (
    VOCABULARY,
    draw_ids,
    make_model,
    smollm2_config,
    tiny_config,
)
from benchmarks.speed.variant import ON_CPU
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.settings import LocalEngineSettings

pytestmark = pytest.mark.usefixtures("small_models")
SHAPE = Shape(groups=2, members=2, prompt=7, turns=3, turn=4, observation=5)
UNEVEN = dataclasses.replace(SHAPE, jitter=3)
BASE = ON_CPU.base()


@pytest.fixture
def played():
    return play_here(SHAPE, seed=0)


def play_here(shape, *, seed):
    model = make_model({**BASE, "model": "smollm2"})
    engine = LocalEngine(model, settings=LocalEngineSettings(slots=4), context_limit=64)
    groups, seconds = asyncio.run(play(engine, shape, 96, seed=seed))
    assert seconds > 0
    return groups


def test_the_shapes_of_the_models():
    with torch.device("meta"):
        tiny = speed_models.Qwen2ForCausalLM(tiny_config())
        smollm2 = speed_models.LlamaForCausalLM(smollm2_config())
    assert sum(weight.numel() for weight in tiny.parameters()) == 6_784_128
    assert sum(weight.numel() for weight in smollm2.parameters()) == 134_515_008


def test_a_model_is_fixed_by_its_seed():
    first, same, other = (make_model({**BASE, "seed": seed}) for seed in (3, 3, 4))
    one, two, three = (model.get_input_embeddings().weight for model in (first, same, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert make_model({**BASE, "dtype": "bfloat16"}).dtype is torch.bfloat16


def test_a_model_from_a_folder(tmp_path):
    made = make_model(BASE)
    made.save_pretrained(tmp_path)
    read = make_model({**BASE, "model": str(tmp_path)})
    assert torch.equal(read.get_input_embeddings().weight, made.get_input_embeddings().weight)


def test_the_stand_in_tokenizer_has_every_id_and_reads_what_it_writes(tokenizer):
    assert len(tokenizer) == VOCABULARY == max(tokenizer.get_vocab().values()) + 1
    ids = tokenizer.encode("<|im_start|>user\nHello, 世界!<|im_end|>")
    assert tokenizer.decode(ids) == "<|im_start|>user\nHello, 世界!<|im_end|>"
    assert ids[-1] == tokenizer.eos_token_id == VOCABULARY - 9
    assert "tools" in tokenizer.chat_template, "so that a peer takes it as it is"


def test_draws_are_fixed_by_their_seed():
    assert draw_ids(1, 4, 10) == draw_ids(1, 4, 10) != draw_ids(2, 4, 10)
    assert {*draw_ids(1, 1000, 3)} == {0, 1, 2}


def test_what_a_shape_holds():
    assert (SHAPE.episodes, SHAPE.sampled, SHAPE.longest) == (4, 12, 22)
    assert UNEVEN.longest == 3 * 7 + 2 * 5, "each turn as long as episode seed can make it"
    trl = Shape(groups=4, members=8, prompt=257, turns=4, turn=16, observation=23)
    assert (trl.episodes, trl.sampled, trl.longest) == (32, 64, 133)


def test_every_episode_has_its_shape(played):
    (first, second), _ = (group.trajectories for group in played)
    assert [len(turn.context_ids) for turn in first.turns] == [7, 5, 5]
    assert [len(turn.action_ids) for turn in first.turns] == [4, 4, 4]
    assert first.turns[0].context_ids == second.turns[0].context_ids, "a group shares its prompt"
    assert first.turns[1].context_ids != second.turns[1].context_ids, "and not what its members read later"
    assert first.reward != second.reward, "so that there is something to learn"
    SHAPE.check(played)
    with pytest.raises(AssertionError, match=r"\[7, 5, 5\]"):
        dataclasses.replace(SHAPE, observation=6).check(played)
    with pytest.raises(AssertionError, match=r"\[4, 4, 4\]"):
        dataclasses.replace(SHAPE, turn=5).check(played)


def test_uneven_turns_are_as_long_as_their_session_draws():
    sessions = [f"0/{episode}/0" for episode in range(200)]
    drawn = [UNEVEN.draw_turns(session) for session in sessions]
    assert drawn == [UNEVEN.draw_turns(session) for session in sessions]
    assert {len(turns) for turns in drawn} == {3}
    assert {length for turns in drawn for length in turns} == {1, 2, 3, 4, 5, 6, 7}, "every one of 4 − 3 to 4 + 3"
    assert len({tuple(turns) for turns in drawn}) > 100, "of 343 that there are"
    assert UNEVEN.draw_turns("1/0/0") != UNEVEN.draw_turns("0/0/0")
    assert SHAPE.draw_turns("0/0/0") == [4, 4, 4]


def test_uneven_episodes_are_played_to_the_lengths_of_their_sessions():
    groups = play_here(UNEVEN, seed=3)
    said = [[len(turn.action_ids) for turn in one.turns] for group in groups for one in group.trajectories]
    assert said == [UNEVEN.draw_turns(session) for session in ("3/0/0", "3/0/1", "3/1/0", "3/1/1")]
    UNEVEN.check(groups, seed=3)
    with pytest.raises(AssertionError):
        UNEVEN.check(groups, seed=4)


@pytest.mark.parametrize(("change", "said"), [(-1, "[4, 4, 3]"), (1, "[4, 4, 5]")])
def test_one_turn_of_another_length_is_no_measurement(played, change, said):
    first, *others = played[1].trajectories
    last = first.turns[-1]
    ids, logprobs = (
        numbers[:3] if change < 0 else (*numbers, numbers[0]) for numbers in (last.action_ids, last.logprobs)
    )
    cut = dataclasses.replace(last, action_ids=ids, logprobs=logprobs)
    other = dataclasses.replace(first, turns=(*first.turns[:-1], cut))
    groups = [played[0], dataclasses.replace(played[1], trajectories=(other, *others))]
    with pytest.raises(AssertionError, match=re.escape(said)):
        SHAPE.check(groups)


def test_a_row_per_turn_reads_all_that_came_before(played):
    trajectory = played[0].trajectories[0]
    rows = open_row_per_turn(trajectory).rows()
    (whole,) = trajectory.rows(tail=False)
    assert [len(row) for row in rows] == [11, 20, 29]
    for row, end in zip(rows, (11, 20, 29), strict=True):
        assert row.ids.tolist() == whole.ids[:end].tolist()
        assert row.action_mask.tolist() == [False] * (end - 4) + [True] * 4
    assert sum(row.rewards.sum() for row in rows) == pytest.approx(trajectory.reward)
    assert count_tokens(lay_out(played, ONE_ROW)) == 29
    assert count_tokens(lay_out(played, ROW_PER_TURN)) == 11 + 20 + 29


@pytest.mark.parametrize(("power", "factor"), [(1.0, 3.0), (2.0, 0.01), (0.5, 7.0)])
def test_exponents_of_known_curves(power, factor):
    turns = [4.0, 8.0, 16.0, 32.0]
    assert fit_exponent(turns, [factor * x**power for x in turns]) == pytest.approx(power)


def test_growth_is_linear_in_one_row_and_squares_in_many():
    shape = {"groups": 1, "members": 2, "prompt": 1, "turns": 2, "turn": 2, "observation": 2}
    found = measure_growth({**BASE, "shape": shape, "turns": [4, 8, 16], "repeats": 1})
    assert found["turns"] == [4, 8, 16]
    assert found["one-row"]["tokens"] == [15, 31, 63], "1 + 2·turns + 2·(turns − 1)"
    assert found["row-per-turn"]["tokens"] == [36, 136, 528], "the sum of 3, 7, 11, ..."
    assert fit_exponent([4, 8, 16], found["one-row"]["tokens"]) == pytest.approx(1.04, abs=0.01)
    assert fit_exponent([4, 8, 16], found["row-per-turn"]["tokens"]) == pytest.approx(1.94, abs=0.01)
    seconds = [found["rollout_seconds"], *(found[layout]["update_seconds"] for layout in (ONE_ROW, ROW_PER_TURN))]
    assert all(len(column) == 3 and min(column) > 0 for column in seconds)
