"""reasoning-gym's own datasets: every one is made and scored; splits do not share a question; hangs cost nothing."""

import asyncio

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.reasoning_gym import ReasoningGym
from turnwise.errors import EnvError
from turnwise.types import Message

pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS

from turnwise.envs.adapters.worlds.reasoning_gym import REUSED, ReasoningGymServer

OPTIONS = {
    "composite": {"datasets": [{"name": "gcd", "weight": 1, "config": {}}]},
    "futoshiki": {"min_board_size": 4, "max_board_size": 4},
    "knight_swap": {"min_nodes": 6, "max_nodes": 6, "min_pieces": 2, "max_pieces": 2, "min_steps": 2, "max_steps": 8},
    "zebra_puzzles": {"num_people": 2, "num_characteristics": 2},
}
"""What makes a dataset, or one that takes long at its defaults, quick to make."""
NO_ANSWER = {"boxnet", "rush_hour"}


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_dataset_is_made_from_a_seed_and_pays_its_own_answer(name):
    served, again = (ReasoningGymServer(dataset=name, options=OPTIONS.get(name, {})) for _ in range(2))
    made = served.question(11)
    assert made == again.question(11)
    assert made["question"]
    if name in NO_ANSWER:
        assert made["answer"] is None
    else:
        assert served.score(11, made["answer"]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(REUSED))
def test_a_dataset_that_is_reused_makes_what_a_fresh_one_makes(name):
    served = ReasoningGymServer(dataset=name, options={})
    served.question(3)
    fresh = ReasoningGymServer(dataset=name, options={})
    fresh._shared = None
    assert served.question(12) == fresh.question(12)


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "prime_factorization", "rush_hour", "graph_color"])
def test_it_keeps_the_contract_of_an_environment(name):
    assert asyncio.run(check_env(make_env(EnvSettings(name="reasoning_gym", args={"dataset": name})), episodes=1)) == []


async def answer(env, task, content):
    episode = env.spawn()
    opening = await episode.reset(task, 0)
    return opening[1].content, await episode.step(Message(role="assistant", content=content))


def test_no_question_is_both_trained_and_tested_on():
    async def questions(env, split):
        tasks = env.tasks(split)
        return {(await answer(env, tasks[i], ""))[0] for i in range(60)}

    env = ReasoningGym(dataset="gcd", options={"min_value": 1, "max_value": 8})
    train, test = (asyncio.run(questions(env, split)) for split in ("train", "test"))
    assert len(train) > 10
    assert len(test) > 10
    assert train & test == set()


def test_rewards_and_metrics_by_hand():
    env = ReasoningGym(dataset="countdown")
    task = env.tasks("train")[0]
    _, step = asyncio.run(answer(env, task, "no tags"))
    assert (step.rewards, step.metrics["success"]) == ({"score": 0.0, "format": -0.1}, 0.0)
    _, step = asyncio.run(answer(env, task, "<answer>1 + 1</answer>"))
    assert step.rewards == {"score": 0.05, "format": 0.0}, "what countdown pays for an expression of other numbers"


def test_an_answer_that_hangs_its_scorer_scores_nothing_and_is_counted():
    env = ReasoningGym(dataset="countdown", seconds=3.0)
    task = env.tasks("train")[0]
    _, step = asyncio.run(answer(env, task, "<answer>9**9**9**9</answer>"))
    assert (step.rewards["score"], step.metrics["unscored"]) == (0.0, 1.0)

    async def solve():
        episode = env.spawn()
        await episode.reset(task, 0)
        return await episode.step(episode.expert())

    assert asyncio.run(solve()).metrics == {"success": 1.0, "score": 1.0, "unscored": 0.0}


def test_an_answer_that_its_scorer_cannot_read_scores_nothing_and_is_counted():
    env = ReasoningGym(dataset="prime_factorization")
    _, step = asyncio.run(answer(env, env.tasks("test")[0], "<answer>none</answer>"))
    assert (step.rewards["score"], step.metrics["unscored"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"dataset": "cuntdown"}, r"did you mean 'countdown'\?"),
        ({"dataset": "countdown", "options": {"min_numbres": 3}}, "min_numbres"),
        ({"dataset": "countdown", "options": {"min_numbers": 9, "max_numbers": 3}}, "reasoning-gym cannot make"),
    ],
)
def test_a_wrong_setting_is_one_line(args, message):
    with pytest.raises(EnvError, match=message):
        ReasoningGym(**args)


def test_options_in_json_become_what_the_dataset_declares():
    served = ReasoningGymServer(dataset="aiw", options={"task_types": ["siblings"], "task_type_weights": [1.0]})
    assert "brother" in served.question(1)["question"]
