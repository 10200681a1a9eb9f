"""Rewards written for TRL and for verifiers score our episodes as their libraries would call them."""

import asyncio
import re
import threading
from types import SimpleNamespace

import pytest

from turnwise.envs import ToolEnv
from turnwise.errors import ConfigError, RewardError
from turnwise.rewards import Episode, Reward, choose_rewards, from_rubric, from_trl, from_verifiers
from turnwise.types import Message, Task, ToolCall

CALL = ToolCall(id="1", name="search", arguments='{"query": "Norway"}')
DATA = {"question": "Capital of Norway?", "answers": ["Oslo"], "solution": "Oslo", "hops": 2}
EPISODE = Episode(
    task=Task(id="t", data=DATA),
    messages=(
        Message(role="system", content="Be brief."),
        Message(role="user", content="Capital of Norway?"),
        Message(role="assistant", content="", thinking="Look.", tool_calls=(CALL,)),
        Message(role="tool", content="Oslo is it", tool_call_id="1", name="search"),
        Message(role="assistant", content="<answer>Oslo</answer>", thinking="Found."),
    ),
    answer="<answer>Oslo</answer>",
)
WRITTEN_CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Norway"}'}}
FIRST = {"role": "assistant", "content": "<think>\nLook.\n</think>\n", "tool_calls": [WRITTEN_CALL]}
FOUND = {"role": "tool", "content": "Oslo is it", "tool_call_id": "1", "name": "search"}
LAST = {"role": "assistant", "content": "<think>\nFound.\n</think>\n<answer>Oslo</answer>"}
PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of Norway?"}]


def score(reward: Reward, episode: Episode = EPISODE) -> float:
    return asyncio.run(reward.score_episode(episode))


def accuracy_reward(completions: list[list[dict[str, str]]], solution: list[str], **kwargs) -> list[float | None]:
    """The shape of TRL's own."""
    contents = [completion[0]["content"] for completion in completions]
    return [float(gold in content) for content, gold in zip(contents, solution, strict=True)]


def think_format_reward(completions: list[list[dict[str, str]]], **kwargs) -> list[float]:
    pattern = r"^<think>(?!.*<think>)(.*?)</think>.*$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL | re.MULTILINE) else 0.0 for content in contents]


def applies_to_three_hops(prompts, completions, hops):
    return [None if hop < 3 else 1.0 for hop in hops]


async def slow_reward(completions, **kwargs):
    await asyncio.sleep(0)
    return [0.25 for _ in completions]


def test_functions_of_trl():
    assert score(from_trl(accuracy_reward)) == 1.0
    assert score(from_trl(think_format_reward)) == 1.0, "thinking stands in its tags"
    assert score(from_trl(applies_to_three_hops)) == 0.0, "None does not apply"
    assert score(from_trl(slow_reward)) == 0.25
    reward = from_trl(accuracy_reward, weight=0.5)
    assert (reward.name, reward.weight, reward.is_async) == ("accuracy_reward", 0.5, False)
    assert from_trl(slow_reward).is_async


@pytest.mark.parametrize(
    ("shape", "completion", "prompt"),
    [
        ("answer", [LAST], PROMPT),
        ("conversation", [FIRST, FOUND, LAST], PROMPT),
        ("text", LAST["content"], "Be brief.\nCapital of Norway?"),
    ],
)
def test_what_a_function_of_trl_is_given(shape, completion, prompt):
    seen = {}

    def watch(prompts, completions, **columns):
        seen.update(prompts=prompts, completions=completions, columns=columns)
        return [1.0]

    assert score(from_trl(watch, shape=shape)) == 1.0
    assert seen["completions"] == [completion]
    assert seen["prompts"] == [prompt]
    assert seen["columns"] == {key: [value] for key, value in DATA.items()}


def test_an_episode_without_a_move_has_an_empty_completion():
    silent = Episode(task=Task(id="t"), messages=EPISODE.messages[:2])
    seen = []

    def watch(completions, **kwargs):
        seen.append(completions)
        return [0.0]

    score(from_trl(watch), silent)
    score(from_trl(watch, shape="conversation"), silent)
    assert seen == [[[{"role": "assistant", "content": ""}]], [[]]]


@pytest.mark.parametrize("result", [1.0, [], [1.0, 2.0], "1", None])
def test_what_is_no_list_of_one_score_is_an_error_that_names_it(result):
    def odd(completions, **kwargs):
        return result

    with pytest.raises(RewardError, match=r"reward 'odd' returned .* for one completion"):
        score(from_trl(odd))


@pytest.mark.parametrize("value", [float("nan"), "high"])
def test_a_score_that_is_no_finite_number_is_an_error_that_names_it(value):
    with pytest.raises(RewardError, match="reward 'trl' is"):
        score(_named("trl", [value]))
    with pytest.raises(RewardError, match="reward 'fixed' is"):
        score(from_verifiers(_fixed(value)))


def _named(name, result):
    def function(completions, **kwargs):
        return result

    function.__name__ = name
    return from_trl(function)


def _fixed(value):
    def fixed(completion):
        return value

    return fixed


def test_tokens_are_not_there():
    def soft_overlong_punishment(completion_ids, **kwargs):
        return [0.0]

    with pytest.raises(RewardError, match="takes completion_ids: rewards see messages"):
        from_trl(soft_overlong_punishment)


def correct_answer(completion, answer) -> float:
    return 1.0 if answer in completion[-1]["content"] else 0.0


async def parsed_answer(parser, completion, answer, **kwargs) -> float:
    return float(parser.parse_answer(completion) == answer)


def cheap(state, info, task, prompt) -> float:
    assert state["completion"][-1] == LAST
    assert (info["hops"], task, prompt) == (2, "t", PROMPT)
    return 1 / state["turn"]


class AnswerParser:
    def parse_answer(self, completion):
        return re.search(r"<answer>(.*)</answer>", completion[-1]["content"]).group(1)


def test_functions_of_verifiers():
    assert score(from_verifiers(correct_answer)) == 1.0
    assert score(from_verifiers(parsed_answer, parser=AnswerParser())) == 1.0
    assert score(from_verifiers(cheap)) == 0.5
    assert from_verifiers(cheap, name="turns", weight=0.1).name == "turns"


def test_the_environments_state_is_there():
    def stocked(state):
        return float(state["env"].stock)

    episode = Episode(task=EPISODE.task, messages=EPISODE.messages, env=SimpleNamespace(stock=3))
    assert score(from_verifiers(stocked), episode) == 3.0


def test_a_rubric_is_its_functions_at_their_weights():
    rubric = SimpleNamespace(
        funcs=[correct_answer, parsed_answer, helped],
        weights=[1.0, 0.5, 0.0],
        parser=AnswerParser(),
        class_objects={"helper": 7},
    )
    rewards = from_rubric(rubric)
    assert [(one.name, one.weight, score(one)) for one in rewards] == [
        ("correct_answer", 1.0, 1.0),
        ("parsed_answer", 0.5, 1.0),
        ("helped", 0.0, 7.0),
    ]
    with pytest.raises(RewardError, match="2 functions and 1 weights"):
        from_rubric(SimpleNamespace(funcs=[correct_answer] * 2, weights=[1.0]))


def helped(completion, helper) -> float:
    return float(helper)


def test_a_function_that_scores_a_group_at_once_is_refused():
    def ranked(completions, states):
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match="'ranked' takes completions, states: it scores a group at once"):
        from_verifiers(ranked)


def test_a_sync_function_runs_in_a_thread_and_its_error_names_it():
    """It may be slow, and episodes share one event loop."""
    seen = []

    def slow(completions, **kwargs):
        seen.append(threading.current_thread())
        raise KeyError("column")

    with pytest.raises(RewardError, match="reward 'slow' raised KeyError: 'column'"):
        score(from_trl(slow))
    assert seen[0] is not threading.main_thread()


RUBRIC = SimpleNamespace(funcs=[correct_answer, cheap], weights=[1.0, 0.5])
LONE_RUBRIC = SimpleNamespace(funcs=[cheap], weights=[0.5])


def test_a_recipe_names_them_and_the_signature_tells_whose_they_are():
    here = __file__
    rewards = choose_rewards(
        [
            f"{here}:accuracy_reward",
            {"name": f"{here}:applies_to_three_hops", "weight": 0.5, "args": {"shape": "text"}},
            f"{here}:correct_answer",
            {"name": f"{here}:cheap", "weight": 2.0},
        ]
    )
    assert [(one.name, one.weight) for one in rewards] == [
        ("accuracy_reward", 1.0),
        ("applies_to_three_hops", 0.5),
        ("correct_answer", 1.0),
        ("cheap", 2.0),
    ]
    assert [score(one) for one in rewards] == [1.0, 0.0, 1.0, 0.5]
    by_weight = choose_rewards({f"{here}:RUBRIC": 2.0})
    assert [(one.name, one.weight) for one in by_weight] == [("correct_answer", 2.0), ("cheap", 1.0)]
    alone = [f"{here}:LONE_RUBRIC", {"name": f"{here}:LONE_RUBRIC"}, {"name": f"{here}:LONE_RUBRIC", "weight": 2.0}]
    assert [one.weight for one in choose_rewards(alone)] == [0.5, 0.5, 1.0]
    assert [one.weight for one in choose_rewards({f"{here}:LONE_RUBRIC": 2.0})] == [1.0]
    with pytest.raises(ConfigError, match="has no argument 'shap'"):
        choose_rewards([{"name": f"{here}:accuracy_reward", "args": {"shap": "text"}}])


def test_they_are_paid_in_an_environment():
    env = ToolEnv(tasks=[DATA], rewards=[from_trl(accuracy_reward), from_verifiers(correct_answer, weight=0.5)])

    async def play():
        await env.reset(env.tasks("train")[0], 0)
        return await env.step(Message(role="assistant", content="Oslo"))

    step = asyncio.run(play())
    assert dict(step.rewards) == {"accuracy_reward": 1.0, "correct_answer": 0.5}
    assert step.metrics["success"] == 1.0
