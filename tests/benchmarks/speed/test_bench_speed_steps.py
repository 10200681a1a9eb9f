"""Training steps as they are measured: the game, its texts, and counts of tokens that are the peer's."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.speed import models as speed_models
from benchmarks.speed import steps as speed_steps
from benchmarks.speed.episodes import Shape
from benchmarks.speed.models import tiny_config
from benchmarks.speed.steps import ForcedCalls, GuessEnv, fit_env, fit_text, measure_steps
from turnwise.envs import check_env
from turnwise.errors import ConfigError
from turnwise.render import RenderSettings
from turnwise.types import Message, ToolCall

pytestmark = pytest.mark.usefixtures("small_models")
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


def test_the_peers_text_is_ours():
    """The workload is the same on both sides; the peer's script cannot import it."""
    script = (Path(__file__).parents[3] / "benchmarks/peers/trl_workload.py").read_text()
    assert f'QUESTION = "{speed_steps.QUESTION}"' in script
    assert "Guess the hidden number.\n\n        Args:\n            n: The number guessed, from 1 to 10." in script
