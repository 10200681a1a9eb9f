"""The vocabulary: the mask drawn as a picture, rewards on the token that earned them, and what is refused."""

import dataclasses
import json
import math

import pytest

from turnwise.errors import RewardError, TokensError
from turnwise.seeds import derive_seed
from turnwise.types import Finish, Message, Row, Step, StopReason, Task, ToolSpec, Trajectory, Turn

TASK = Task(id="t")


def turn(context, action, *, logprobs=None, opens_row=False, finish=Finish.STOP, **rewards):
    return Turn(
        context_ids=tuple(context),
        action_ids=tuple(action),
        logprobs=tuple(logprobs or [-0.5] * len(action)),
        rewards=rewards,
        opens_row=opens_row,
        finish=finish,
    )


def play(*turns, stop=StopReason.DONE, metrics=None, tail=()):
    return Trajectory(task=TASK, turns=turns, stop=stop, metrics=metrics or {}, tail_ids=tail)


def draw(row: Row) -> list[str]:
    """One line per token: id, who it is of, its turn, its reward, its logprob."""
    lines = []
    for i in range(len(row)):
        assert not (row.action_mask[i] and row.prompt_mask[i]), "no token is both prompt and action"
        assert not (row.tail_mask[i] and (row.action_mask[i] or row.prompt_mask[i])), "nor tail and either"
        who = {row.prompt_mask[i]: "prompt", row.action_mask[i]: "action", row.tail_mask[i]: "tail"}.get(True, "reads")
        lines.append(f"{row.ids[i]} {who} {row.turn_index[i]} {row.rewards[i]:g} {row.logprobs[i]:g}")
    return lines


def test_the_mask_as_a_picture():
    episode = play(
        turn([11, 12], [21, 22], logprobs=[-0.25, -0.5], opens_row=True, process=0.25),
        turn([31, 32, 33], [41], logprobs=[-1.0]),
        turn([51], [61, 62], logprobs=[-2.0, -4.0], outcome=1.0, format=0.5),
    )
    [row] = episode.rows()
    assert draw(row) == [
        "11 prompt 0 0 0",
        "12 prompt 0 0 0",
        "21 action 0 0 -0.25",
        "22 action 0 0.25 -0.5",
        "31 reads 1 0 0",
        "32 reads 1 0 0",
        "33 reads 1 0 0",
        "41 action 1 0 -1",
        "51 reads 2 0 0",
        "61 action 2 0 -2",
        "62 action 2 1.5 -4",
    ]


def test_a_rewrite_opens_a_second_row_with_a_prompt_of_its_own():
    episode = play(
        turn([11], [21, 22], opens_row=True, process=0.5),
        turn([31], [41]),
        turn([11, 71, 72], [81], opens_row=True),
        turn([91], [92, 93], outcome=1.0),
    )
    first, second = episode.rows()
    assert draw(first) == [
        "11 prompt 0 0 0",
        "21 action 0 0 -0.5",
        "22 action 0 0.5 -0.5",
        "31 reads 1 0 0",
        "41 action 1 0 -0.5",
    ]
    assert draw(second) == [
        "11 prompt 2 0 0",
        "71 prompt 2 0 0",
        "72 prompt 2 0 0",
        "81 action 2 0 -0.5",
        "91 reads 3 0 0",
        "92 action 3 0 -0.5",
        "93 action 3 1 -0.5",
    ]


def test_the_forced_end_of_a_turn_that_was_cut_off_is_context():
    END = 2
    episode = play(
        turn([11], [21, 22], opens_row=True, finish=Finish.LENGTH),
        turn([END, 31], [41, END], outcome=1.0),
    )
    [row] = episode.rows()
    assert [line.rsplit(" ", 2)[0] for line in draw(row)] == [
        "11 prompt 0",
        "21 action 0",
        "22 action 0",
        "2 reads 1",
        "31 reads 1",
        "41 action 1",
        "2 action 1",
    ]


def test_an_episode_that_ends_in_a_tool_result_keeps_its_reward_on_the_last_action():
    # What the tool answered last was never read by the agent, so it is in no turn; the pay for the call is.
    episode = play(turn([11], [21], opens_row=True), turn([31, 32], [41, 42], outcome=1.0), stop=StopReason.MAX_TURNS)
    [row] = episode.rows()
    assert row.rewards.tolist() == [0, 0, 0, 0, 0, 1]
    assert row.action_mask[-1]


def test_what_the_agent_would_have_read_next_ends_the_last_row():
    episode = play(
        turn([11], [21], opens_row=True, process=0.5),
        turn([31], [41, 42], opens_row=True, outcome=1.0),
        stop=StopReason.MAX_TURNS,
        tail=(51, 52),
    )
    first, second = episode.rows()
    assert draw(first) == ["11 prompt 0 0 0", "21 action 0 0.5 -0.5"]
    played = ["31 prompt 1 0 0", "41 action 1 0 -0.5", "42 action 1 1 -0.5"]
    assert draw(second) == [*played, "51 tail 2 0 0", "52 tail 2 0 0"]
    assert draw(episode.rows(tail=False)[1]) == played
    assert episode.action_tokens == 3


@pytest.mark.parametrize("stop", [StopReason.DONE, StopReason.ENV_FAILED])
def test_only_what_was_cut_off_has_a_tail(stop):
    with pytest.raises(AssertionError, match="cut off"):
        play(turn([1], [2], opens_row=True), stop=stop, tail=(3,))
    with pytest.raises(AssertionError, match="cut off"):
        play(stop=StopReason.TIMEOUT, tail=(3,))


def test_rows_pay_exactly_what_the_trajectory_was_paid():
    episode = play(
        turn([1], [2], opens_row=True, a=0.125),
        turn([1], [2, 3], opens_row=True, a=-0.5, b=2.0),
        turn([4], [5], b=1.0),
    )
    assert sum(row.rewards.sum() for row in episode.rows()) == episode.reward == 2.625


def test_an_append_only_episode_costs_its_tokens_once():
    turns = [turn([1, 2], [3], opens_row=number == 0) for number in range(50)]
    assert [len(row) for row in play(*turns).rows()] == [150]


def test_an_episode_without_a_turn_has_no_rows_and_no_reward():
    episode = play(stop=StopReason.ENV_FAILED)
    assert episode.rows() == ()
    assert (episode.reward, episode.rewards, episode.action_tokens, episode.success) == (0.0, {}, 0, False)


def test_rewards_add_up_by_channel_and_in_all():
    episode = play(turn([1], [2], opens_row=True, found=0.1), turn([3], [4, 5], found=0.1, exact_match=1.0, cost=-0.05))
    assert episode.rewards == {"found": 0.2, "exact_match": 1.0, "cost": -0.05}
    assert episode.reward == pytest.approx(1.15)
    assert [one.reward for one in episode.turns] == [0.1, pytest.approx(1.05)]
    assert episode.action_tokens == 3


@pytest.mark.parametrize(("metrics", "success"), [({"success": 1.0}, True), ({"success": 0.0}, False), ({}, False)])
def test_success_is_the_environments_own_verdict_and_not_the_reward(metrics, success):
    assert play(turn([1], [2], opens_row=True, outcome=1.0), metrics=metrics).success is success


def test_whatever_cuts_an_episode_off_is_truncation():
    assert {reason.name for reason in StopReason if reason.truncated} == {
        "MAX_TURNS",
        "CONTEXT_FULL",
        "TOKEN_BUDGET",
        "TIME_UP",
        "TIMEOUT",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(RewardError, match=f"^reward 'bleu' is {value}: return a finite number[^\n]*$"):
        Step(rewards={"fine": 1.0, "bleu": value})


def test_a_turn_needs_an_action_and_a_logprob_for_each_of_its_ids():
    with pytest.raises(AssertionError, match="without an action"):
        turn([1], [], logprobs=[])
    with pytest.raises(AssertionError, match="one logprob per action id"):
        turn([1], [2, 3], logprobs=[-1.0])


def test_a_trajectory_without_tokens_says_so_where_they_are_needed():
    worded = Turn(rewards={"r": 0.5}, message=Message(role="assistant", content="Up"))
    episode = play(worded, worded)
    assert (episode.has_tokens, episode.reward, episode.action_tokens) == (False, 1.0, 0)
    with pytest.raises(TokensError, match=r"^task '\w+': the agent [^\n]* gave no tokens, so one cannot train on it;"):
        episode.rows()
    assert play(turn([1], [2], opens_row=True)).has_tokens
    with pytest.raises(AssertionError, match="opens a row"):
        play(turn([1], [2], opens_row=True), worded)


def test_the_first_turn_opens_a_row():
    with pytest.raises(AssertionError, match="opens a row"):
        play(turn([1], [2]))


def test_values_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        turn([1], [2], opens_row=True).action_ids = (3,)


def test_a_tool_in_openais_shape():
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    shown = ToolSpec(name="search", description="Finds passages.", parameters=schema).to_openai()
    assert json.loads(json.dumps(shown)) == {
        "type": "function",
        "function": {"name": "search", "description": "Finds passages.", "parameters": schema},
    }


def test_seeds_are_equal_in_every_process_and_differ_with_every_part():
    parts = [(0,), (1,), (0, "luck"), (0, "luck", 1), (0, "luck", 1, 2), (0, "luck", 12), (0, 1, "luck")]
    seeds = [derive_seed(*each) for each in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Written down once: Python's own hash would give another number in every process.
    assert derive_seed(0, "luck", 1, 2) == 6226826667960252416
