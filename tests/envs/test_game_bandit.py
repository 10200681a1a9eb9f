"""The bandit: two arms by name, what they pay, and the variant that has changed the names."""

import asyncio

import pytest

from turnwise.envs import check_env
from turnwise.envs.games.bandit import Bandit
from turnwise.errors import EnvError
from turnwise.types import Message


async def pull_with(env, arm, episode_seeds):
    game, steps = env.spawn(), []
    for episode_seed in episode_seeds:
        await game.reset(env.tasks("train")[0], episode_seed)
        steps.append(await game.step(Message(role="assistant", content=f"<answer>{arm}</answer>", thinking="Hm.")))
    return steps


def pull(env, arm):
    return asyncio.run(pull_with(env, arm, [0]))[0]


@pytest.mark.parametrize("arguments", [{}, {"reverse": True}, {"think": False}, {"max_actions": 4}])
def test_it_keeps_the_contract_of_an_environment(arguments):
    assert asyncio.run(check_env(Bandit(**arguments))) == []


def test_the_low_arm_always_pays_a_little_and_is_no_success():
    steps = asyncio.run(pull_with(Bandit(), "phoenix", range(400)))
    assert all(step.done and step.metrics["success"] == 0.0 for step in steps)
    paid = [step.rewards["game"] for step in steps]
    assert all(0.1 <= one <= 0.15 for one in paid)
    # Evenly between: mean .125, of which 400 have a standard deviation of .05 / √12 / 20 = .00072.
    assert abs(sum(paid) / 400 - 0.125) < 4 * 0.00072
    assert len(set(paid)) > 300, "episode seed decides how much"


def test_the_high_arm_pays_one_a_quarter_of_the_time_and_is_the_success():
    steps = asyncio.run(pull_with(Bandit(), "Dragon", range(1000)))
    assert all(step.done and step.metrics["success"] == 1.0 for step in steps)
    paid = [step.rewards["game"] for step in steps]
    assert set(paid) == {0.0, 1.0}
    # The standard deviation is √(.25 × .75 / 1000) = .0137.
    assert abs(sum(paid) / 1000 - 0.25) < 4 * 0.0137


def test_reversed_the_names_have_changed_places():
    assert pull(Bandit(reverse=True), "Phoenix").metrics["success"] == 1.0
    assert pull(Bandit(reverse=True), "Dragon").metrics["success"] == 0.0
    assert 0.1 <= pull(Bandit(reverse=True), "Dragon").rewards["game"] <= 0.15
    mine = Bandit(low="Teacher", high="Trader")
    assert pull(mine, "trader").metrics["success"] == 1.0
    assert pull(mine, "Dragon").rewards == {"game": 0.0, "format": -0.1}


def test_the_tasks_seed_decides_who_is_named_first_and_luck_does_not():
    env = Bandit()
    game = env.spawn()
    opening = [
        [asyncio.run(game.reset(env.tasks("train")[place], episode_seed))[1].content for episode_seed in range(5)]
        for place in range(300)
    ]
    assert all(len(set(seen)) == 1 for seen in opening)
    first = [seen[0] for seen in opening]
    assert set(first) == {"Phoenix or Dragon?", "Dragon or Phoenix?"}
    assert abs(first.count("Dragon or Phoenix?") - 150) < 4 * 8.7


def test_of_several_pulls_each_is_told_and_the_last_decides_success():
    env = Bandit(max_actions=3, max_actions_per_turn=2)
    game = env.spawn()
    asyncio.run(game.reset(env.tasks("train")[0], 1))
    key = game.state_key()
    step = asyncio.run(game.step(Message(role="assistant", content="<answer>Dragon||Phoenix</answer>", thinking="?")))
    assert not step.done
    assert step.messages[0].content.startswith("Phoenix paid 0.1")
    assert game.state_key() == key, "a bandit has no memory"
    step = asyncio.run(game.step(game.expert()))
    assert (step.done, step.metrics["success"], step.metrics["actions"]) == (True, 1.0, 3.0)


def test_the_expert_always_takes_the_high_arm_and_says_what_is_true():
    for env, high in ((Bandit(), "Dragon"), (Bandit(reverse=True), "Phoenix")):
        for place in range(20):
            game = env.spawn()
            asyncio.run(game.reset(env.tasks("test")[place], place))
            message = game.expert()
            assert message.content == f"<answer>{high}</answer>"
            assert message.thinking.startswith(f"{high} pays more than")
            assert asyncio.run(game.step(message)).metrics["success"] == 1.0


@pytest.mark.parametrize("names", [{"low": "Dragon"}, {"high": "phoenix "}, {"low": " "}, {"high": "a || b"}])
def test_arms_need_two_names(names):
    with pytest.raises(EnvError, match=r"^the arms are called .*; give two different names, without '\|'$"):
        Bandit(**names)
