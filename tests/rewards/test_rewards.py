"""Reward functions score finished episodes; a score that is no finite number is an error that names its reward."""

import math

import pytest

from turnwise.errors import RewardError
from turnwise.rewards import (
    Episode,
    Reward,
    exact_match_reward,
    f1_reward,
    format_gated_exact_match,
    format_reward,
    reward,
)
from turnwise.types import Message, Task, ToolCall

TASK = Task(id="t", data={"question": "Where?", "answers": ["Oslo"]})
GOOD_CALL = ToolCall(id="1", name="search", arguments='{"query": "x"}')


def episode(answer: str | None, *calls: ToolCall, task: Task = TASK) -> Episode:
    return Episode(task=task, messages=(Message(role="assistant", content="", tool_calls=calls),), answer=answer)


BAD_CALLS = [
    ToolCall(id="2", name="", arguments="", problem="no closing tag"),
    ToolCall(id="2", name="search", arguments="{"),
    ToolCall(id="2", name="search", arguments="[]"),
    ToolCall(id="2", name="search", arguments=""),
]


def test_outcomes_read_the_text_inside_the_tags():
    assert exact_match_reward.score(episode("<answer>oslo</answer>")) == 1.0
    assert exact_match_reward.score(episode("Oslo")) == 0.0
    assert exact_match_reward.score(episode(None)) == 0.0
    assert f1_reward.score(episode("<answer>Oslo Norway</answer>")) == pytest.approx(2 / 3)
    assert (exact_match_reward.name, f1_reward.name, format_reward.name) == ("exact_match", "f1", "format")


@pytest.mark.parametrize("bad", BAD_CALLS)
def test_format_is_the_mean_of_answer_format_and_call_syntax(bad):
    assert format_reward.score(episode("<answer>Rome</answer>", GOOD_CALL)) == 1.0
    assert format_reward.score(episode("<answer>Rome</answer>", GOOD_CALL, bad)) == 0.5
    assert format_reward.score(episode("Rome", GOOD_CALL)) == 0.5
    assert format_reward.score(episode("<answer> </answer>", GOOD_CALL)) == 0.5
    assert format_reward.score(episode(None, bad)) == 0.0


@pytest.mark.parametrize(
    ("answer", "calls", "score"),
    [
        ("<answer>Oslo</answer>", [GOOD_CALL], 1.0),
        ("<answer>Rome</answer>", [GOOD_CALL], 0.0),
        ("<answer>Oslo</answer>", BAD_CALLS[:1], -0.5),
        ("Oslo", [GOOD_CALL], -0.5),
        (None, BAD_CALLS[:1], -1.0),
    ],
)
def test_the_gated_rule_pays_for_the_answer_only_when_the_format_is_right(answer, calls, score):
    assert format_gated_exact_match.score(episode(answer, *calls)) == score


def test_gold_answers_may_be_one_or_many_or_numbers_but_not_missing():
    def gold(**data):
        return episode(None, task=Task(id="q7", data=data)).gold_answers

    assert gold(answers=["a", 2]) == ("a", "2")
    assert gold(answer="a") == ("a",)
    assert gold(answers=[42.0, -3.0, 0.5]) == ("42", "-3", "0.5")
    for data in ({}, {"answers": []}, {"answer": None}, {"answers": [None]}, {"answer": math.nan}):
        with pytest.raises(RewardError, match="task 'q7' has no gold answer"):
            gold(**data)


def test_a_whole_number_that_a_table_made_a_float_is_matched_by_the_number():
    task = Task(id="q7", data={"answer": 42.0})
    assert exact_match_reward.score(episode("<answer>42</answer>", task=task)) == 1.0
    assert exact_match_reward.score(episode("<answer>420</answer>", task=task)) == 0.0


def test_the_decorator_names_weighs_and_keeps_raw_scores_raw():
    @reward
    def brevity(episode: Episode) -> float:
        return 1 / len(episode.messages)

    @reward(name="calls", weight=-0.1)
    def cost(episode: Episode) -> float:
        return episode.tool_calls

    assert (brevity.name, brevity.weight, brevity.score(episode(None))) == ("brevity", 1.0, 1.0)
    assert (cost.name, cost.weight) == ("calls", -0.1)
    assert cost.score(Episode(task=TASK, messages=(), tool_calls=3)) == 3.0
    assert cost.weighted(0.5).weight == 0.5
    assert Reward(name="flag", function=lambda _: True).score(episode(None)) == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high", [1.0]])
def test_a_score_that_is_no_finite_number_names_its_reward(value):
    with pytest.raises(RewardError, match=r"reward 'odd' is .*; return a finite number from it"):
        Reward(name="odd", function=lambda _: value).score(episode(None))


def test_a_function_that_raises_and_a_reward_that_cannot_be_are_named_too():
    with pytest.raises(RewardError, match="reward 'odd' raised KeyError: 'level'"):
        Reward(name="odd", function=lambda e: e.task.data["level"]).score(episode(None))
    with pytest.raises(RewardError, match="reward 'odd' has weight nan"):
        Reward(name="odd", function=lambda _: 0.0, weight=math.nan)
    with pytest.raises(RewardError, match="needs a name"):
        Reward(name="", function=lambda _: 0.0)
