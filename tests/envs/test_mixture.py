"""Several environments as one: tasks that know theirs, episodes played there, and tables that cannot work refused."""

import asyncio

import pytest

from turnwise import Entry, Episode, Mixture, reward
from turnwise.agents import ExpertAgent, ScriptedAgent
from turnwise.envs import Env, ToolEnv, make_env
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.envs.games.bandit import Bandit
from turnwise.envs.mixture import MixedTasks, first_tasks, members_of
from turnwise.envs.registry import MixtureSettings, describe_env
from turnwise.envs.workers.env import in_workers
from turnwise.errors import ConfigError, EnvError
from turnwise.rollout import Limits, run_groups
from turnwise.settings import parse_settings
from turnwise.tools import tool
from turnwise.types import Message, Step, StopReason, Task


class Counting(Env):
    """Ends after as many turns as it was made with; half a point for each."""

    def __init__(self, turns: int = 1, has_tasks: bool = True) -> None:
        self._turns, self._has_tasks = turns, has_tasks

    def tasks(self, split):
        return [Task(id=f"{split}-{n}", seed=n) for n in range(3)] if self._has_tasks else []

    async def reset(self, task, episode_seed):
        self.played, self._left = task, self._turns
        return [Message(role="user", content=f"{self._turns} to go")]

    async def step(self, message):
        self._left -= 1
        say = (Message(role="user", content="on"),)
        return Step(messages=say, done=not self._left, rewards={"half": 0.5}, metrics={"success": 1.0})


def mixture(**options):
    return Mixture({"one": Counting(1), "three": Entry(env=Counting(3), **options)})


def play(env, tasks, *, size=2, limits=None):
    agent = ScriptedAgent(replies=["go"] * 9)
    return asyncio.run(run_groups(agent, env, tasks, group_size=size, seed=0, limits=limits))


def test_tasks_carry_their_environment():
    tasks = mixture().tasks("train")
    assert [(task.id, task.env, task.seed) for task in tasks] == [
        *((f"one/train-{n}", "one", n) for n in range(3)),
        *((f"three/train-{n}", "three", n) for n in range(3)),
    ]
    assert tasks[-1] == tasks[5] == tasks[5:][0]
    with pytest.raises(IndexError):
        tasks[6]
    assert [task.id for task in first_tasks(tasks, 1)] == ["one/train-0", "three/train-0"], "of each environment"
    assert [task.id for task in first_tasks([Task(id="x"), Task(id="y")], 1)] == ["x"]


def test_episodes_are_played_in_their_environment():
    env = mixture()
    groups = play(env, list(env.tasks("train")))
    assert [len(group.trajectories[0].turns) for group in groups] == [1, 1, 1, 3, 3, 3]
    assert {trajectory.reward for trajectory in groups[3].trajectories} == {1.5}


def test_each_task_may_have_a_group_size_of_its_own():
    env = mixture()
    groups = play(env, list(env.tasks("train"))[2:5], size=[1, 4, 2])
    assert [len(group.trajectories) for group in groups] == [1, 4, 2]


def test_limits_are_the_rollouts_but_for_an_environments_own():
    env = mixture(max_turns=2)
    groups = play(env, list(env.tasks("train")), limits=Limits(max_turns=8))
    assert [group.trajectories[0].stop for group in groups] == [StopReason.DONE] * 3 + [StopReason.MAX_TURNS] * 3
    assert env.episode_limits(env.tasks("train")[3]) == {"max_turns": 2}


def test_limits_of_a_task_are_the_environments_word():
    class Long(Counting):
        def episode_limits(self, task):
            return {"max_turns": 1 + task.seed}

    groups = play(Long(9), Long().tasks("train"))
    assert [len(group.trajectories[0].turns) for group in groups] == [1, 2, 3]


def test_rewards_are_scaled_and_the_environments_own_are_not():
    env = mixture(reward_scale=0.25)
    groups = play(env, list(env.tasks("train")))
    assert [group.trajectories[0].reward for group in groups] == pytest.approx([0.5] * 3 + [0.375] * 3)
    assert play(env.entries["three"].env, Counting().tasks("train"))[0].trajectories[0].reward == 1.5


def test_rewards_of_a_rewrite_are_scaled_too():
    class Full(Counting):
        async def overflow(self):
            return Step(rewards={"half": 1.0}, rewrites=(Message(role="user", content="anew"),))

    env = Mixture({"full": Entry(env=Full(), reward_scale=3.0)})
    step = asyncio.run(env.spawn_for(env.tasks("train")[0]).overflow())
    assert step.rewards == {"half": 3.0}


def test_a_tool_environment_keeps_its_tools_and_expert():
    class Adder(ToolEnv):
        def __init__(self) -> None:
            super().__init__(system="Add.")

        def tasks(self, split):
            return [Task(id="sum", data={"question": "2+2?", "answers": ["4"]})]

        @reward
        def right(self, episode: Episode) -> float:
            return float("4" in episode.messages[-1].content)

        @tool(quick=True)
        def add(self, a: int, b: int) -> int:
            """Adds."""
            return a + b

        def expert(self):
            return Message(role="assistant", content="<answer>4</answer>")

    env = Mixture({"adder": Adder(), "bandit": Bandit()})
    spawned = env.spawn_for(env.tasks("train")[0])
    assert [spec.name for spec in spawned.tools] == ["add"]
    tasks = first_tasks(env.tasks("train"), 1)
    groups = asyncio.run(run_groups(ExpertAgent(), env, tasks, group_size=1, seed=0))
    assert [group.trajectories[0].stop for group in groups] == [StopReason.DONE] * 2
    assert groups[0].trajectories[0].success


def test_an_expert_is_wanted_of_each_environment_that_is_demonstrated():
    assert Mixture({"bandit": Bandit()}).has_expert
    assert not mixture().has_expert
    with pytest.raises(EnvError, match=r"env\.mixture\.one: this environment has no expert: set its demonstrations"):
        mixture().expert()
    kept = Mixture({"bandit": Bandit(), "one": Entry(env=Counting(), demonstrations=0)})
    assert kept.has_expert


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "a mixture needs an environment"),
        ({"a/b": Counting()}, "letters, digits, - and _ alone"),
        ({"a": Counting}, "is not an environment; if it is a class, call it"),
        ({"a": Mixture({"b": Counting()})}, "a mixture within a mixture"),
        ({"a": Entry(env=Counting(), opens_after={"c": 0.5}), "b": Counting()}, "no environment 'c' in the mixture"),
        (
            {"a": Entry(env=Counting(), opens_after={"b": 0.5}), "b": Entry(env=Counting(), opens_after={"a": 0.5})},
            "a and b wait for each other",
        ),
        ({"a": Entry(env=Counting(), opens_after={"a": 0.5})}, "a wait for each other"),
    ],
)
def test_a_table_that_cannot_work_is_refused(entries, message):
    with pytest.raises(EnvError, match=message):
        Mixture(entries)


def test_an_environment_without_tasks_is_named():
    with pytest.raises(EnvError, match=r"env\.mixture\.b: no tasks in the split 'train'"):
        Mixture({"a": Counting(), "b": Counting(has_tasks=False)}).tasks("train")


def test_a_mixture_is_played_by_task():
    env = mixture()
    with pytest.raises(EnvError, match="names no environment of the mixture"):
        env.spawn_for(Task(id="train-0"))
    for call in (env.spawn().reset(Task(id="x"), 0), env.spawn().step(Message(role="assistant", content=""))):
        with pytest.raises(EnvError, match="spawn_for"):
            asyncio.run(call)


def test_the_workers_of_all_its_environments_are_its_own():
    first, second = (in_workers(Bandit(), number) for number in (1, 2))
    env = Mixture({"first": first, "second": second, "here": Counting(1)})
    try:
        assert env.host.workers == 3
        first._fleet.counts["moved"] += 1
        second._fleet.counts["moved"] += 2
        assert env.host.counts() == {"deaths": 0, "killed": 0, "moved": 3}
    finally:
        env.host.close()
    assert [env._fleet._workers for env in (first, second)] == [[], []], "ended with it"


def test_members_are_those_of_the_mixture_or_the_one_there_is():
    env = mixture()
    assert [(type(one), len(own)) for one, own in members_of(env, env.tasks("train"))] == [(Counting, 3)] * 2
    alone = Counting()
    assert list(members_of(alone, alone.tasks("train"))) == [(alone, alone.tasks("train"))]


DATA = {
    "mixture": {
        "questions": {"name": "encyclopedia", "args": {"people": 6}, "weight": 2, "group_size": 4, "max_turns": 5},
        "arms": "bandit",
    },
    "sampling": "curriculum",
}


def read(data, **changes):
    return parse_settings(MixtureSettings, {**data, **changes}, overrides=(), source="the test")


def test_a_recipe_makes_a_mixture_and_a_mixture_tells_its_recipe():
    from turnwise.settings import Layer, Recipe, add_overrides

    recipe = add_overrides(MixtureSettings, Recipe([Layer("the test", DATA)]))
    settings = parse_settings(MixtureSettings, recipe, source="the test")
    env = make_env(settings)
    assert isinstance(env, Mixture)
    assert isinstance(env.entries["questions"].env, Encyclopedia)
    assert isinstance(env.entries["arms"].env, Bandit), "a name stands for its section"
    assert (env.sampling, env.entries["questions"].weight, env.entries["questions"].group_size) == ("curriculum", 2, 4)
    assert settings.name == "questions + arms"
    told = describe_env(env)
    assert told.mixture["questions"].args == {"people": 6}
    again = make_env(told)
    assert describe_env(again) == told
    assert isinstance(again.tasks("train"), MixedTasks)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "bandit", "max_turn": 1}, r"mixture\.arms\.max_turn: unknown key .*did you mean 'max_turns'"),
        ({"name": "bandit", "weight": 0}, r"mixture\.arms\.weight: expected a value greater than 0, got 0"),
        ({"weight": 1}, r"mixture\.arms\.name: required"),
        ({"name": "bandit", "opens_after": {"question": 0.5}}, "no environment 'question' in the mixture.*'questions'"),
        ({"name": "bandit", "opens_after": {"questions": 2}}, r"opens_after\.questions: expected a value less than"),
        ({"name": "bandits"}, r"env\.mixture\.arms\.name: 'bandits' is not an environment \(did you mean 'bandit'"),
        ({"name": "bandit", "args": {"lo": 1}}, r"env\.mixture\.arms\.args: bandit has no argument 'lo'"),
    ],
)
def test_mistakes_are_told_with_their_place(entry, message):
    data = {"mixture": {**DATA["mixture"], "arms": entry}}
    with pytest.raises(ConfigError, match=message):
        make_env(read(data))
