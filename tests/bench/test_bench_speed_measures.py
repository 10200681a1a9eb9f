"""What is measured is the work it is said to be: shapes, token counts, logprobs, layouts."""

import asyncio
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from turnwise.bench import speed_models, speed_sampling, speed_steps, speed_turns, speed_variants
from turnwise.bench.speed_edition import COMPILED, FULL_LOGITS, IN_GROUPS, OURS
from turnwise.bench.speed_episodes import Shape, play
from turnwise.bench.speed_growth import (
    ONE_ROW,
    ROW_PER_TURN,
    count_tokens,
    fit_exponent,
    lay_out,
    measure_growth,
    open_row_per_turn,
)
from turnwise.bench.speed_models import (
    VOCABULARY,
    draw_ids,
    make_model,
    make_stand_in_tokenizer,
    smollm2_config,
    tiny_config,
)
from turnwise.bench.speed_sampling import (
    Workload,
    compare_logprobs,
    generate_rows,
    measure_continuous,
    measure_engine,
    measure_generate,
    relative_error,
    score_rows,
    time_sampler,
)
from turnwise.bench.speed_steps import ForcedCalls, GuessEnv, fit_env, fit_text, measure_steps
from turnwise.bench.speed_turns import measure_rereading, measure_sessions
from turnwise.bench.speed_update import make_update_work
from turnwise.bench.speed_variants import measure_variant
from turnwise.engines.base import Completion
from turnwise.engines.local import EngineSettings, LocalEngine
from turnwise.envs import check_env
from turnwise.errors import ConfigError
from turnwise.render import RenderSettings
from turnwise.types import Finish, Message, ToolCall

SHAPE = Shape(groups=2, members=2, prompt=7, turns=3, turn=4, observation=5)
UNEVEN = dataclasses.replace(SHAPE, spread=3)
BASE = {"model": "tiny", "device": "cpu", "dtype": "float32", "seed": 0}
STEPS = {
    "prompts": 2,
    "generations": 2,
    "turns": 2,
    "turn-tokens": 3,
    "prompt-tokens": 257,
    "observation-tokens": 23,
    "learning-rate": 1e-5,
    "warmup": 1,
    "steps": 2,
    "seed": 0,
}


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    """The same shapes with fewer words, for speed."""

    def shrink(make):
        def shrunk():
            config = make()
            config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers = 96, 16, 16, 1
            config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 8
            config.layer_types = ["full_attention"]
            return config

        return shrunk

    monkeypatch.setattr(speed_models, "tiny_config", shrink(tiny_config))
    monkeypatch.setattr(speed_models, "smollm2_config", shrink(smollm2_config))


@pytest.fixture(scope="module")
def tokenizer():
    return make_stand_in_tokenizer()


@pytest.fixture
def played():
    return play_here(SHAPE, seed=0)


def play_here(shape, *, seed):
    model = make_model({**BASE, "model": "smollm2"})
    engine = LocalEngine(model, settings=EngineSettings(slots=4), context_limit=64)
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
    assert UNEVEN.longest == 3 * 7 + 2 * 5, "each turn as long as luck can make it"
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


def test_texts_are_filled_up_to_their_counts(tokenizer):
    def count(text):
        return len(tokenizer.encode(text))

    fitted = fit_text("higher", 9, count)
    assert count(fitted) == 9
    assert fitted == "higher" + " a" * (9 - count("higher"))
    with pytest.raises(ConfigError, match="--tokenizer: 'higher lower' does not come to 1 tokens"):
        fit_text("higher lower", 1, count)


def test_the_guessing_game_keeps_the_contract_and_pays_for_the_best_guess(tokenizer):
    env = fit_env(Shape(groups=3, members=1, prompt=257, turns=3, turn=4, observation=23), forced(tokenizer))
    assert asyncio.run(check_env(env)) == []
    number = _number_of(env)
    paid = asyncio.run(_guess(env, [1, number, 10]))
    assert [step.messages[0].content.split()[0] for step in paid] == [
        "equal" if number == 1 else "higher",
        "equal",
        "equal" if number == 10 else "lower",
    ]
    assert sum(step.rewards["nearer"] for step in paid) == pytest.approx(1.0), "1 − (distance 0) / 9"
    assert [step.done for step in paid] == [False, False, True]


def forced(tokenizer):
    return ForcedCalls(tokenizer, RenderSettings())


def _number_of(env):
    env.begin(env.tasks("train")[0], 0)
    return env._number


async def _guess(env, numbers):
    env = env.spawn()
    await env.reset(env.tasks("train")[0], 0)
    return [await env.step(forced_call(number)) for number in numbers]


def forced_call(number):
    return Message(
        role="assistant", content="", tool_calls=(ToolCall(id="0", name="guess", arguments=f'{{"n": {number}}}'),)
    )


def test_a_forced_turn_never_ends_itself_and_is_a_guess(tokenizer):
    render = forced(tokenizer)
    assert render.stop_ids == ()
    message = render.parse([3, 4, 15])
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("guess", '{"n": 3}')]
    answer = [Message(role="tool", content="higher", tool_call_id="call-0", name="guess")]
    text = tokenizer.decode(render.extend([3, 4], answer))
    assert text.startswith("<|im_start|>"), "no end that was not sampled"
    assert text.endswith("<|im_start|>assistant\n")
    assert render.extend([tokenizer.eos_token_id], answer) == render.extend([3], answer)


def test_training_steps_of_the_stand_in(tokenizer, tmp_path, monkeypatch):
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(speed_models, "tiny_config", lambda: _narrow(tiny_config()))
    found = measure_steps({**STEPS, "tokenizer": str(tmp_path)})
    assert (found["trajectories"], found["prompt_tokens"], found["completion_tokens"]) == (4, 257, 29)
    assert found["sampled_tokens"] == 6
    assert len(found["step_seconds"]) == 2, "the warm-up does not count"
    for step, rollout, update in zip(
        found["step_seconds"], found["rollout_seconds"], found["update_seconds"], strict=True
    ):
        assert step == pytest.approx(rollout + update)
        assert min(rollout, update) > 0


def _narrow(config):
    config.hidden_size, config.intermediate_size, config.head_dim = 8, 8, 4
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    return config


def test_other_token_counts_are_no_measurement(tokenizer, tmp_path, monkeypatch):
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(speed_models, "tiny_config", lambda: _narrow(tiny_config()))

    def lengthen(shape, render):
        env = fit_env(shape, render)
        return GuessEnv(
            question=env.tasks("train")[0].data["question"] + " a",
            answers=env._answers,
            turns=shape.turns,
            tasks=shape.groups,
        )

    monkeypatch.setattr(speed_steps, "fit_env", lengthen)
    with pytest.raises(AssertionError, match="258"):
        measure_steps({**STEPS, "tokenizer": str(tmp_path)})


def test_samplers_are_timed_to_the_first_token_and_to_the_last():
    asked = []
    work = Workload(rows=3, prompt=5, tokens=4, repeats=2, seed=0, vocabulary=50)
    found = time_sampler(lambda prompts, tokens: asked.append((prompts, tokens)), work)
    assert [tokens for _, tokens in asked] == [4, 1, 1, 4, 1, 4]
    assert {(len(prompts), *map(len, prompts)) for prompts, _ in asked} == {(3, 5, 5, 5)}
    assert len({tuple(prompt) for prompts, _ in asked for prompt in prompts}) == 18, "no prompt comes twice"
    assert (len(found["first_seconds"]), len(found["whole_seconds"])) == (2, 2)


def test_the_engine_is_measured_and_agrees_with_the_model():
    settings = {**BASE, "model": "smollm2", "rows": 4, "prompt": 6, "tokens": 5, "repeats": 2}
    found = measure_engine(settings)
    assert len(found["whole_seconds"]) == 2
    assert found["counted_decode_tokens_per_second"] > 0
    assert 0 <= found["engine_minus_model"] < 1e-5
    assert "engine_minus_float32" not in found, "it is float32"


def test_generate_is_measured_on_the_same_work():
    found = measure_generate({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert len(found["first_seconds"]) == len(found["whole_seconds"]) == 1
    assert found["whole_seconds"][0] > 0


def test_continuous_batching_is_timed_by_the_stamps_of_its_tokens(monkeypatch):
    """From the first request to when all rows have a token, and to the last token of all."""

    def answer(self, prompts, *, generation_config, **options):
        tokens = generation_config.max_new_tokens
        rows = [
            SimpleNamespace(
                error=None,
                generated_tokens=[7] * tokens,
                created_time=10.0 + row,
                timestamps=[20.0 + row + place for place in range(tokens)],
            )
            for row in range(len(prompts))
        ]
        return dict(enumerate(rows))

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", answer)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"first_seconds": [12.0], "whole_seconds": [16.0]}


def test_a_peer_that_does_not_run_here_is_a_finding(monkeypatch):
    def fail(self, *args, **options):
        raise RuntimeError("no paged attention\nfor this device")

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", fail)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"failure": "RuntimeError: no paged attention"}


def test_rows_that_a_peer_did_not_finish_are_no_measurement(monkeypatch):
    def lose(self, prompts, **options):
        speed_sampling.logging.getLogger("ContinuousBatchingLogger").error("Generation thread terminated")
        return {}

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", lose)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"failure": "0 of 3 rows were finished: Generation thread terminated"}


def test_logprobs_are_those_of_one_forward_pass():
    model = make_model(BASE)
    prompt = [1, 2, 3]
    row = generate_rows(model, torch.tensor([prompt]), 4)
    with torch.no_grad():
        logits = model(input_ids=row).logits[0, 2:6]
    expected = [float(logits[i].log_softmax(-1)[row[0, 3 + i]]) for i in range(4)]
    assert score_rows(model, row, 4)[0].tolist() == pytest.approx(expected, rel=1e-5)
    shifted = Completion(
        ids=tuple(row[0, 3:].tolist()), logprobs=(expected[0] + 0.1, *expected[1:]), finish=Finish.LENGTH, version=0
    )
    found = compare_logprobs(model, [prompt], [shifted])
    assert found["engine_minus_model"] == pytest.approx(0.1 / max(map(abs, expected)), rel=1e-3)
    assert found["engine_minus_model_mean"] == pytest.approx(0.025, rel=1e-2)


def test_rounding_is_told_apart_where_weights_are_not_float32():
    """In double, since not every processor multiplies halves."""
    model = make_model({**BASE, "dtype": "float64"})
    row = generate_rows(model, torch.tensor([[1, 2, 3]]), 4)
    own = tuple(score_rows(model, row, 4)[0].tolist())
    completion = Completion(ids=tuple(row[0, 3:].tolist()), logprobs=own, finish=Finish.LENGTH, version=0)
    found = compare_logprobs(model, [[1, 2, 3]], [completion])
    assert found["engine_minus_model"] == 0
    assert 0 < found["engine_minus_float32"] == found["model_minus_float32"] < 1e-6


def test_relative_errors():
    assert relative_error(torch.tensor([1.0, -4.0]), torch.tensor([1.5, -5.0])) == pytest.approx(0.2)


@pytest.mark.parametrize("measure", [measure_sessions, measure_rereading])
def test_episodes_of_several_turns(measure):
    shape = {"groups": 3, "members": 1, "prompt": 5, "turns": 3, "turn": 2, "observation": 4}
    found = measure({**BASE, "shape": shape, "repeats": 2})
    assert found["episodes"] == 3
    assert len(found["seconds"]) == 2, "the first one warms up"
    assert min(found["seconds"]) > 0


@pytest.mark.parametrize("measure", [measure_sessions, measure_rereading])
def test_uneven_episodes_of_several_turns(measure):
    shape = {"groups": 3, "members": 1, "prompt": 5, "turns": 3, "turn": 3, "observation": 4, "spread": 2}
    found = measure({**BASE, "shape": shape, "repeats": 2})
    assert found["episodes"] == 3
    assert len(found["seconds"]) == 2, "the first one warms up"


def test_the_loop_around_generate_pads_on_the_left_and_cuts_every_row_to_its_length(monkeypatch):
    asked = []

    def generate(model, ids, tokens, live):
        asked.append((ids.tolist(), tokens, live.tolist()))
        said = torch.arange(70, 70 + tokens).expand(len(ids), -1)
        return torch.cat([ids, said], dim=1)

    monkeypatch.setattr(speed_turns, "generate_rows", generate)
    assert speed_turns._say_on(None, [[11, 12, 13], [21]], [1, 3]) == [[11, 12, 13, 70], [21, 70, 71, 72]]
    assert asked == [([[11, 12, 13], [0, 0, 21]], 3, [[1, 1, 1], [0, 0, 1]])]


def test_rows_that_are_padded_are_said_on_as_if_they_were_not(monkeypatch):
    monkeypatch.setattr(speed_sampling, "sampling_config", greedy(speed_sampling.sampling_config))
    model = make_model(BASE)
    long, short = [5, 6, 7, 8, 9], [31, 32]
    together = speed_turns._say_on(model, [long, short], [4, 4])
    assert together == [*speed_turns._say_on(model, [long], [4]), *speed_turns._say_on(model, [short], [4])]


def greedy(make):
    def made(tokens):
        config = make(tokens)
        config.do_sample = False
        return config

    return made


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


def test_the_peers_text_is_ours():
    """The workload is the same on both sides; the peer's script cannot import it."""
    script = (Path(__file__).parents[2] / "benchmarks/peers/trl_workload.py").read_text()
    assert f'QUESTION = "{speed_steps.QUESTION}"' in script
    assert "Guess the hidden number.\n\n        Args:\n            n: The number guessed, from 1 to 10." in script
