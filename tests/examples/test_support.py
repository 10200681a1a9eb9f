"""The support agent: rewards look at its database, one of its tools fails by chance, no customer is in both splits."""

import asyncio
import json
import random
from pathlib import Path

import pytest

import turnwise
from turnwise import check_env
from turnwise.config import Config, load_config
from turnwise.envs import EnvSettings, make_env
from turnwise.envs.registry import BUILT_IN, ENV
from turnwise.plugins import find_plugin
from turnwise.types import Message, Step, ToolCall

ROOT = Path(__file__).parents[2]
FILE = f"{ROOT / 'examples' / 'support.py'}"


def support(**args):
    return make_env(EnvSettings(name=f"{FILE}:Support", args=args))


def call(name: str, **arguments: object) -> Message:
    return Message(
        role="assistant", content="", tool_calls=(ToolCall(id="a", name=name, arguments=json.dumps(arguments)),)
    )


SORRY = Message(role="assistant", content="We are sorry.")


def play(env, moves, *, task: int = 0, episode_seed: int = 0) -> list[Step]:
    """The steps of one episode; `moves` gets the episode's environment and yields the agent's messages."""

    async def run() -> list[Step]:
        player, steps = env.spawn(), []
        await player.reset(env.tasks("train")[task], episode_seed)
        for move in moves(player):
            steps.append(await player.step(await player.run_sync(move) if callable(move) else move))
            if steps[-1].done:
                break
        return steps

    return asyncio.run(run())


def by_expert(player):
    while True:
        yield player.expert


def paid(steps: list[Step]) -> dict[str, float]:
    total: dict[str, float] = {}
    for step in steps:
        for name, value in step.rewards.items():
            total[name] = total.get(name, 0.0) + value
    return total


def facts(env, task: int = 0) -> dict[str, object]:
    """The customer's order, what is due on it, and an order of another customer."""
    found = find_plugin(ENV, f"{FILE}:open_shop", BUILT_IN)
    chosen = env.tasks("train")[task]
    shop = found(chosen.seed, chosen.data["customer"])
    query = "SELECT number, item, remedy FROM orders JOIN policies USING (item) WHERE customer {} ?"
    number, item, remedy = shop.execute(query.format("="), (chosen.data["customer"],)).fetchone()
    other, _, others_remedy = shop.execute(query.format("!="), (chosen.data["customer"],)).fetchone()
    return {"number": number, "item": item, "remedy": remedy, "other": other, "others_remedy": others_remedy}


def test_it_keeps_the_contract():
    assert asyncio.run(check_env(support(), episodes=2)) == []


def test_a_careful_expert_is_paid_for_the_state_of_the_database_and_for_reading_the_policy():
    env = support(hasty=0.0, fail=0.0)
    steps = play(env, by_expert)
    assert [step.messages[0].content if step.messages else "" for step in steps] == [
        json.dumps({"order": facts(env)["number"], "item": facts(env)["item"]}),
        json.dumps({"item": facts(env)["item"], "remedy": facts(env)["remedy"]}),
        json.dumps({"settled": facts(env)["number"], "remedy": facts(env)["remedy"]}),
        "",
    ]
    assert paid(steps) == {"informed": 0.1, "settled": 1.0}


def test_a_hasty_one_is_paid_exactly_where_a_refund_is_due():
    env = support(hasty=1.0, fail=0.0)
    for task in range(12):
        due = facts(env, task)["remedy"] == "refund"
        assert paid(play(env, by_expert, task=task)) == {"settled": float(due)}
    assert {facts(env, task)["remedy"] for task in range(12)} == {"refund", "replace", "repair"}


def test_words_are_not_paid():
    env = support(fail=0.0)
    told = Message(role="assistant", content=f"We {facts(env)['remedy']} it.")
    assert paid(play(env, lambda player: [told])) == {"settled": 0.0}


def test_touching_another_order_costs_the_reward():
    env = support(fail=0.0)
    own = call("settle", order=facts(env)["number"], remedy=facts(env)["remedy"])
    other = call("settle", order=facts(env)["other"], remedy=facts(env)["others_remedy"])
    assert paid(play(env, lambda player: [own, SORRY])) == {"settled": 1.0}
    assert paid(play(env, lambda player: [own, other, SORRY])) == {"settled": 0.0}


def test_an_order_is_settled_once():
    env = support(fail=0.0)
    wrong = next(remedy for remedy in ("refund", "repair") if remedy != facts(env)["remedy"])
    number = facts(env)["number"]
    moves = [call("settle", order=number, remedy=remedy) for remedy in (wrong, facts(env)["remedy"])]
    steps = play(env, lambda player: [*moves, SORRY])
    assert steps[1].messages[0].content == "no open order"
    assert paid(steps) == {"settled": 0.0}


def test_the_policy_pays_once_and_only_for_the_customers_item():
    env = support()
    item = facts(env)["item"]
    another = next(one for one in ("lamp", "kettle") if one != item)
    moves = [call("read_policy", item=one) for one in (another, item, item)]
    assert [step.rewards for step in play(env, lambda player: moves)] == [
        {"informed": 0.0},
        {"informed": 0.1},
        {"informed": 0.0},
    ]


def test_settling_fails_by_the_episodes_seed_and_leaves_the_order_open():
    env = support(fail=0.5)
    move = call("settle", order=facts(env)["number"], remedy=facts(env)["remedy"])

    def failures(episode_seed: int) -> list[bool]:
        steps = play(env, lambda player: [move] * 4, episode_seed=episode_seed)
        words = [step.messages[0].content for step in steps]
        assert [word for word in words if word.startswith("settle failed")] == [
            "settle failed: ConnectionError: try again"
        ] * int(steps[-1].metrics["tool_errors"])
        return [word.startswith("settle failed") for word in words]

    assert failures(1) == failures(1)
    assert len({tuple(failures(seed)) for seed in range(8)}) > 2
    assert paid(play(support(fail=1.0), lambda player: [move, SORRY])) == {"settled": 0.0}


def test_a_careful_expert_tries_again():
    steps = play(support(hasty=0.0, fail=0.5), by_expert, episode_seed=next(_seeds_that_fail_first()))
    assert steps[2].metrics["tool_errors"] == 1
    assert paid(steps)["settled"] == 1.0


def _seeds_that_fail_first():
    """Episode seeds whose first settling fails and whose second works, at a rate of a half."""
    for seed in range(100):
        rng = random.Random(seed)
        rng.random()  # whether the expert is hasty
        if rng.random() < 0.5 <= rng.random():
            yield seed


def test_no_customer_is_in_both_splits_and_every_name_is_met_in_training():
    env = support()
    customers = {split: {str(task.data["customer"]) for task in env.tasks(split)} for split in ("train", "test")}
    assert customers["train"] & customers["test"] == set()
    names = {split: {name for customer in found for name in customer.split()} for split, found in customers.items()}
    assert names["test"] <= names["train"]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "starpo-s"])
def test_python_and_the_recipe_are_the_same_experiment(algorithm, monkeypatch, tmp_path):
    seen: list[Config] = []
    monkeypatch.setattr("turnwise.training.trainer.run_training", lambda config, run, **rest: seen.append(config))
    experiment = find_plugin(ENV, f"{FILE}:experiment", BUILT_IN)
    turnwise.train(env=support(), algorithm=algorithm, run=tmp_path, **experiment(algorithm))
    name = "support" if algorithm == "grpo" else f"support-{algorithm}"
    recipe = load_config(ROOT / "examples" / f"{name}.yaml")
    assert recipe.env.name == "examples/support.py:Support"
    assert seen[0].model_copy(update={"env": recipe.env}) == recipe
