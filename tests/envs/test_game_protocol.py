"""What all games share, on a game small enough to play by hand: a stair of four steps, from the ground to the top."""

import asyncio
import inspect
import random
import subprocess
import sys

import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.games.game import Move, TextGame, of_same_split
from turnwise.errors import ConfigError, EnvError
from turnwise.render.formats import parse_text
from turnwise.types import Message, Task


class Stairs(TextGame):
    """Up or Down; the top, step 3, pays 1, and every other step −.25; on episode seed that is odd, Up may trip."""

    actions = ("Up", "Down")

    def __init__(self, *, top: int = 3, **shared) -> None:
        super().__init__(**shared)
        self._top = top

    def begin(self, task, episode_seed):
        self._height = task.seed % 2
        self._visited = [self._height]
        self._trips = random.Random(episode_seed)
        self._clumsy = episode_seed % 2 == 1

    def rules(self):
        return "Climb."

    def show(self):
        return f"step {self._height}"

    def play(self, action):
        before = self._height
        if not (self._clumsy and self._trips.random() < 0.5):
            self._height = max(0, before + (1 if action == "Up" else -1))
        self._visited.append(self._height)
        won = self._height == self._top
        return Move(reward=1.0 if won else -0.25, done=won, success=won, moved=self._height != before)

    def plan(self):
        return ["Up"] * (self._top - self._height)

    def explain(self):
        return f"The step is {self._height}."

    def state_key(self):
        return f"{self._height}"


GROUND = Task(id="ground", seed=0)


def begin(episode_seed=0, task=GROUND, **arguments):
    game = Stairs(**{"think": False} | arguments).spawn()
    asyncio.run(game.reset(task, episode_seed))
    return game


def say(game, text):
    return asyncio.run(game.step(parse_text(text)))


def test_it_keeps_the_contract_of_an_environment():
    for arguments in ({}, {"think": False}, {"expert_noise": 0.5}, {"max_actions_per_turn": 1, "max_actions": 3}):
        assert asyncio.run(check_env(Stairs(**arguments))) == []


def test_the_opening_says_the_rules_once_and_how_to_reply():
    game = Stairs().spawn()
    system, user = asyncio.run(game.reset(GROUND, 0))
    assert (system.role, user.role, user.content) == ("system", "user", "step 0")
    assert system.content == (
        "Climb.\nReply: <think>thoughts</think><answer>action || action</answer>\nAt most 5 a turn, 10 in all."
    )
    (system, _) = asyncio.run(Stairs(think=False, max_actions_per_turn=1).spawn().reset(GROUND, 0))
    assert system.content == "Climb.\nReply: <answer>action</answer>\nAt most one a turn, 10 in all."
    (system, _) = asyncio.run(Stairs(think=False, max_actions=1).spawn().reset(GROUND, 0))
    assert system.content == "Climb.\nReply: <answer>action</answer>"


def test_an_episode_by_hand():
    """Down goes nowhere on the ground: −.25; Up, Up: −.5; Up reaches the top: 1. Three of four actions moved."""
    game = begin()
    step = say(game, "<answer>Down</answer>")
    assert (step.messages[0].content, step.rewards, step.done) == ("step 0", {"game": -0.25, "format": 0.0}, False)
    assert step.metrics == {"success": 0.0, "actions": 1.0, "invalid_actions": 0.0, "moved": 0.0}
    step = say(game, "I climb. <answer>Up || up</answer>")
    assert (step.messages[0].content, step.rewards, step.done) == ("step 2", {"game": -0.5, "format": 0.0}, False)
    step = say(game, "<answer> UP || Down || Down </answer>")
    assert (step.messages[0].content, step.rewards, step.done) == ("step 3", {"game": 1.0, "format": 0.0}, True)
    assert step.metrics == {"success": 1.0, "actions": 4.0, "invalid_actions": 0.0, "moved": 0.75}
    with pytest.raises(EnvError, match=r"^Stairs was stepped after the episode was done; call reset first$"):
        say(game, "<answer>Up</answer>")
    with pytest.raises(EnvError, match="before reset"):
        say(Stairs().spawn(), "<answer>Up</answer>")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("", "No <answer> found."),
        ("Up", "No <answer> found."),
        ("<answer>Up", "No <answer> found."),
        ("Up</answer>", "No <answer> found."),
        ("<think>I should go <answer>Up</answer>", "No <answer> found."),
        ('<tool_call>{"name": "Up", "arguments": {}}</tool_call>', "No <answer> found."),
        ("<answer></answer>", "The <answer> is empty."),
        ("<answer> || \n || </answer>", "The <answer> is empty."),
        ("<answer>Jump</answer>", "Unknown action: Jump"),
        ("<answer>Up, Up</answer>", "Unknown action: Up Up"),
        ("<answer>Up | Up</answer>", "Unknown action: Up Up"),
        ("<answer><|im_end|></answer>", "Unknown action: im end"),
        ("<answer>\x00\ud83d</answer>", "Unknown action: ?"),
        (f"<answer>{'left ' * 20_000}</answer>", "Unknown action: left left left left"),
        ("<answer>Up</answer> no: <answer>Sideways</answer>", "Unknown action: Sideways"),
    ],
)
def test_a_turn_without_an_action_is_told_why_and_costs_the_penalty(text, remark):
    game = begin(format_penalty=0.2)
    step = say(game, text)
    assert step.messages[0].content == f"{remark}\nstep 0"
    assert step.rewards == {"game": 0.0, "format": -0.2}
    assert step.metrics == {"success": 0.0, "actions": 0.0, "invalid_actions": 1.0, "moved": 0.0}
    assert game.actions_left == 10, "what was not played is not counted"


def test_actions_that_are_known_are_played_beside_those_that_are_not():
    """Two of four are unknown: half of what was asked for, and no penalty, for something valid was parsed."""
    game = begin()
    step = say(game, "<answer>Up || fly || Up || swim</answer>")
    assert step.messages[0].content == "Unknown action: fly\nUnknown action: swim\nstep 2"
    assert step.rewards == {"game": -0.5, "format": 0.0}
    assert step.metrics["invalid_actions"] == 0.5


def test_actions_beyond_those_of_a_turn_are_ignored_and_said():
    game = begin(max_actions_per_turn=2)
    step = say(game, "<answer>Up || Up || Up || fly</answer>")
    assert step.messages[0].content == "Only the first 2 count.\nstep 2"
    assert (step.done, step.metrics["invalid_actions"], game.actions_left) == (False, 0.0, 8)


def test_the_last_action_allowed_ends_the_episode_in_the_middle_of_a_turn():
    game = begin(max_actions=2)
    step = say(game, "<answer>Up || Down || Up || Up || Up</answer>")
    assert (step.messages[0].content, step.done, step.rewards["game"]) == ("step 0", True, -0.5)
    assert (step.metrics["success"], step.metrics["actions"]) == (0.0, 2.0)
    game = begin(max_actions=3)
    assert say(game, "<answer>Up || Up || Up</answer>").metrics["success"] == 1.0, "the last one may still win"


def test_where_thinking_is_asked_for_an_answer_without_a_thought_is_none():
    game = begin(think=True)
    step = say(game, "<answer>Up</answer>")
    assert (step.messages[0].content, step.rewards["format"]) == ("No <think> found.\nstep 0", -0.1)
    step = say(game, "<think>Higher.</think><answer>Up</answer>")
    assert (step.messages[0].content, step.rewards["format"]) == ("step 1", 0.0)
    thoughtful = begin(think=False)
    assert say(thoughtful, "<think>Higher.</think><answer>Up</answer>").rewards["format"] == 0.0


def test_the_expert_plays_its_plan_as_far_as_a_turn_and_the_episode_allow():
    game = begin(think=True, max_actions_per_turn=2)
    message = game.expert()
    assert message == Message(role="assistant", content="<answer>Up || Up</answer>", thinking="The step is 0.")
    asyncio.run(game.step(message))
    assert game.expert().content == "<answer>Up</answer>"
    assert begin(max_actions=1).expert() == Message(role="assistant", content="<answer>Up</answer>")


async def first_turns(game, episode_seeds):
    turns = []
    for episode_seed in episode_seeds:
        await game.reset(GROUND, episode_seed)
        turns.append(game.expert().content)
    return turns


def test_a_share_of_the_experts_turns_is_random_and_asking_twice_changes_nothing():
    turns = asyncio.run(first_turns(Stairs(expert_noise=0.5), range(0, 4000, 2)))
    planned = turns.count("<answer>Up || Up || Up</answer>") / 2000
    # Half by plan; the other half is one to five coin flips, three times Up in one of 5 × 8: .5 + .5 / 40.
    assert abs(planned - 0.5125) < 4 * 0.0112
    game = begin(expert_noise=1.0)
    assert game.expert() == game.expert()
    lost = begin(top=0, task=Task(id="above", seed=1))
    assert lost.plan() == []
    assert set(lost.expert().content.removeprefix("<answer>").removesuffix("</answer>").split(" || ")) <= {"Up", "Down"}


def test_a_fork_goes_its_own_way_with_the_same_luck():
    game = begin(episode_seed=7, max_actions=100, top=50)
    say(game, "<answer>Up || Up || Up</answer>")
    twin, other = game.fork(), game.fork()
    steps = [say(game, "<answer>Up || Up || Up || Up || Up</answer>") for _ in range(5)]
    assert [say(twin, "<answer>Up || Up || Up || Up || Up</answer>") for _ in range(5)] == steps
    assert len({step.metrics["moved"] for step in steps}) > 1, "some steps tripped, others did not"
    assert (len(other._visited), len(game._visited)) == (4, 29)
    assert say(other, "<answer>Down</answer>").metrics["actions"] == 4.0


def test_tasks_are_lazy_and_no_seed_is_in_two_splits():
    game = Stairs(train_tasks=10**9, test_tasks=300)
    train, test = game.tasks("train"), game.tasks("test")
    assert (len(train), len(test)) == (10**9, 300)
    assert train[10**9 - 1].id == "train-999999999"
    assert train[5] == Stairs().tasks("train")[5]
    assert train[5:9][1] == train[6]
    assert [one.seed % 2 for one in (*train[:50], *test[:50])] == [0] * 50 + [1] * 50
    assert len({task.seed for task in train[:300]}) == 300
    assert train[5].seed != Stairs(seed=1).tasks("train")[5].seed
    with pytest.raises(IndexError):
        test[300]
    with pytest.raises(EnvError, match=r"^there is no split 'dev'; the splits are: train, test$"):
        game.tasks("dev")


def test_a_level_is_of_one_split_and_half_of_them_are_of_each():
    shares = [of_same_split(0, f"level {place}") for place in range(1000)]
    assert [of_same_split(1, f"level {place}") for place in range(1000)] == [not share for share in shares]
    assert abs(sum(shares) - 500) < 4 * 16, "a coin's standard deviation is √250 = 15.8"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_actions": 0}, "max_actions is 0; give a whole number of at least 1"),
        ({"max_actions_per_turn": 1.5}, "max_actions_per_turn is 1.5; give a whole number"),
        ({"train_tasks": True}, "train_tasks is True; give a whole number"),
        ({"test_tasks": -1}, "test_tasks is -1"),
        ({"format_penalty": -0.1}, "format_penalty is -0.1; it is taken away, so give 0 or more"),
        ({"format_penalty": float("nan")}, "format_penalty is nan"),
        ({"expert_noise": 1.01}, "expert_noise is 1.01; it is a share, from 0 to 1"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments, said):
    with pytest.raises(EnvError, match=f"^{said}[^\n]*$"):
        Stairs(**arguments)


def test_a_game_lists_its_own_arguments_and_the_shared_ones_so_a_misspelt_one_finds_its_neighbour():
    names = ["think", "max_actions_per_turn", "max_actions", "format_penalty", "expert_noise", "reasoning", "judge"]
    assert list(inspect.signature(Stairs).parameters) == ["top", *names, "train_tasks", "test_tasks", "seed"]

    class Tower(Stairs):
        def __init__(self, *, floors: int, **shared) -> None:
            super().__init__(top=floors, **shared)

    assert list(inspect.signature(Tower).parameters)[:3] == ["floors", "top", "think"]
    with pytest.raises(ConfigError, match=r"no argument 'max_action' \(did you mean 'max_actions'\?\)"):
        make_env(EnvSettings(name="frozen_lake", args={"max_action": 3}))


def test_games_need_neither_torch_nor_gymnasium():
    modules = "games.game, adapters.gymnasium, games.bandit, games.frozen_lake, games.countdown"
    imports = "; ".join(f"import turnwise.envs.{name}" for name in modules.split(", "))
    code = f"import sys; {imports}; sys.exit(', '.join({{'torch', 'transformers', 'gymnasium'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == ""
