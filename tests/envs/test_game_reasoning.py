"""Games that pay for reasoning: true earns more than hollow, fresh more than copied, and the expert earns all."""

import asyncio
import inspect
import itertools
import math
import random
import time

import pytest

from turnwise.envs import check_env
from turnwise.envs.games.bandit import Bandit
from turnwise.envs.games.countdown import Countdown
from turnwise.envs.games.frozen_lake import FrozenLake, Lake
from turnwise.envs.games.sokoban.env import Sokoban
from turnwise.errors import ConfigError, EnvError, RewardError
from turnwise.render.formats import parse_text
from turnwise.rewards.reasoning_judge import Judge
from turnwise.types import Message, Step, Task

WEIGHTS = {"truth": 0.1, "consistency": 0.05, "repetition": 0.05}
HOLLOW = "I will think carefully and choose the best move."
FAR = 10**6

# _ P _ O
# _ O _ _
# _ _ O _
# O G _ _
LAKE = Lake(
    size=4,
    holes=frozenset({3, 5, 10, 12}),
    start=1,
    goal=13,
    distances=(4, 5, 6, FAR, 3, FAR, 5, 4, 2, 1, FAR, 3, FAR, 0, 1, 2),
)

ROOM = "######\n#    #\n# $. #\n# @  #\n######"


@pytest.fixture
def lake(monkeypatch):
    """A game on the lake above, begun."""
    monkeypatch.setattr("turnwise.envs.games.frozen_lake.make_lake", lambda *arguments: LAKE)

    def start(**arguments) -> FrozenLake:
        return begin(FrozenLake(**{"slippery": False, "reasoning": WEIGHTS} | arguments), Task(id="lake"))

    return start


def room(**arguments) -> Sokoban:
    return begin(Sokoban(**{"reasoning": WEIGHTS} | arguments), Task(id="room", data={"level": ROOM}))


def begin(env, task, episode_seed: int = 0):
    game = env.spawn()
    asyncio.run(game.reset(task, episode_seed))
    return game


def say(game, thinking: str, answer: str) -> Step:
    return asyncio.run(game.step(parse_text(f"<think>{thinking}</think><answer>{answer}</answer>")))


def earned(step: Step) -> float:
    return math.fsum(value for name, value in step.rewards.items() if name in WEIGHTS)


def test_on_the_lake_true_reasoning_earns_more_than_any_other(lake):
    true = earned(say(lake(), "The player is at (0, 1). The goal is at (3, 1). I go left, then down.", "Left || Down"))
    assert true == pytest.approx(0.2)
    others = {
        "a word": ("Hm.", 0.05),
        "hollow": (HOLLOW, 0.05),
        "hollow with a plan": (f"{HOLLOW} I go left, then down.", 0.1),
        "another plan": ("The player is at (0, 1). The goal is at (3, 1). I go right.", 0.15),
        "half a plan": ("The player is at (0, 1). The goal is at (3, 1). I go left.", 0.175),
        "half the truth": ("The player is at (0, 1). I go left, then down.", 0.15),
        "a lie": ("The player is at (0, 1). The goal is at (3, 3). I go left, then down.", 0.1),
        "guesses": ("I am at (0, 0), (0, 1), (0, 2) or (0, 3). The goal is at (3, 1). I go left, then down.", 0.1),
        "a false direction": (
            "I am at (0, 1). The goal is at (3, 1). The goal is above. I go left, then down.",
            0.4 / 3,
        ),
    }
    for name, (thinking, expected) in others.items():
        assert earned(say(lake(), thinking, "Left || Down")) == pytest.approx(expected), name
        assert expected < true
    silent = asyncio.run(lake().step(Message(role="assistant", content="<answer>Left</answer>")))
    assert earned(silent) == 0


def test_in_the_room_true_reasoning_earns_more_than_any_other():
    true = "The player is at (3, 2). The box is at (2, 2). The target is at (2, 3). Left, up, then right pushes it."
    assert earned(say(room(), true, "Left || Up || Right")) == pytest.approx(0.2)
    for thinking in (
        HOLLOW,
        "The box must go onto the target, so I push it there.",
        "The box is at (2, 2). The target is at (2, 3). Left, up, then right pushes it.",
        "The player is at (3, 2). The box is at (2, 3). The target is at (2, 2). Left, up, then right pushes it.",
        "The player is at (3, 2). The box is at (2, 2) or (2, 3). Left, up, then right pushes it.",
        true.replace("Left, up, then right pushes it", "I push it up"),
        f"{true} {true} {true}",
    ):
        assert earned(say(room(), thinking, "Left || Up || Right")) < 0.2 - 1e-9, thinking


@pytest.mark.parametrize("make", ["lake", "room"])
def test_copied_reasoning_earns_less_than_fresh(make, request):
    start = room if make == "room" else request.getfixturevalue("lake")
    fresh, copied = start(), start()
    place = {name: f"The {name} is at {where}." for name, where in fresh.facts().items()}
    first = f"{place['player']} {place['goal' if make == 'lake' else 'target']} I go left."
    for game in (fresh, copied):
        assert earned(say(game, first, "Left")) == pytest.approx(0.2)
    answer = fresh.plan()[0]
    place = {name: f"The {name} is at {where}." for name, where in fresh.facts().items()}
    again = f"{place['player']} {place['goal' if make == 'lake' else 'target']} I go {answer.lower()}."
    assert earned(say(fresh, again, answer)) == pytest.approx(0.2)
    step = say(copied, first, answer)
    # The player is elsewhere now, so one statement of two is wrong, another move is answered, and what was said of the
    # player, six words, three runs of the twelve that fifteen words make, is stale.
    assert [step.rewards[name] for name in WEIGHTS] == pytest.approx([0.0, 0.0, 0.05 * (1 - 3 / 12)])


def test_hollow_reasoning_copied_turn_after_turn_earns_nothing(lake):
    game = lake()
    assert [earned(say(game, HOLLOW, answer)) for answer in ("Left", "Down", "Down")] == [0.05, 0.0, 0.0]


def test_where_nothing_has_changed_the_same_thought_is_still_right(lake):
    game = lake()
    thinking = "The player is at (0, 1). The goal is at (3, 1). Let me try to leave the map. I go up."
    assert [earned(say(game, thinking, "Up")) for _ in range(3)] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize(
    "env",
    [
        FrozenLake(reasoning=WEIGHTS),
        FrozenLake(slippery=False, size=8, max_actions=30, reasoning=WEIGHTS),
        Sokoban(reasoning=WEIGHTS, max_actions_per_turn=2),
        Sokoban(size=8, boxes=2, max_actions=25, reasoning=WEIGHTS, vocabulary="alternative"),
        FrozenLake(reasoning=WEIGHTS, max_actions_per_turn=1, expert_noise=0.5),
        Bandit(max_actions=5, reasoning={"consistency": 0.1, "repetition": 0.1}),
    ],
    ids=["slippery", "lake", "room", "compass", "noisy", "bandit"],
)
def test_the_experts_own_thinking_earns_full_marks(env):
    solved = 0
    for episode_seed, task in enumerate(env.tasks("train")[:25]):
        for step in asyncio.run(play_expert(env, task, episode_seed)):
            assert {step.metrics.get(name) for name in WEIGHTS} - {None} == {1.0}
        solved += step.metrics["success"]
    assert solved > 0


@pytest.mark.parametrize(
    "env",
    [
        FrozenLake(reasoning={"truth": 0.1, "consistency": 0.1}, expert_reasons=True),
        Sokoban(reasoning={"truth": 0.1, "consistency": 0.1}, expert_reasons=True),
        Sokoban(size=8, boxes=2, max_actions=25, reasoning={"truth": 0.1}, expert_reasons=True),
    ],
    ids=["lake", "room", "boxes"],
)
def test_reasons_that_name_further_cells_are_not_read_as_false_places(env):
    for episode_seed, task in enumerate(env.tasks("train")[:25]):
        for step in asyncio.run(play_expert(env, task, episode_seed)):
            assert {step.metrics.get("truth", 1.0), step.metrics.get("consistency", 1.0)} == {1.0}


async def play_expert(env, task, episode_seed) -> list[Step]:
    game = env.spawn()
    await game.reset(task, episode_seed)
    steps = [await game.step(game.expert())]
    while not steps[-1].done:
        steps.append(await game.step(game.expert()))
    return steps


def test_the_expert_says_its_plan_only_where_that_is_paid(lake):
    plain = "The player is at (0, 1). The goal is at (3, 1)."
    assert lake().expert().thinking == f"{plain} Plan: Left, Down, Down, Right, Down."
    assert lake(reasoning={"truth": 1}).expert().thinking == plain
    assert lake(reasoning=None).expert().thinking == plain


def test_a_turn_is_paid_by_weight_and_an_episode_measured_by_its_mean(lake):
    game = lake(reasoning={"truth": 0.4, "repetition": 0})
    step = say(game, "The player is at (0, 1).", "Left")
    assert step.rewards == {"game": 0.0, "format": 0.0, "truth": 0.2, "repetition": 0.0}
    assert (step.metrics["truth"], step.metrics["repetition"]) == (0.5, 1.0)
    step = say(game, "The player is at (0, 0). The goal is at (3, 1).", "Down")
    assert (step.rewards["truth"], step.metrics["truth"]) == (0.4, 0.75)
    step = asyncio.run(game.step(Message(role="assistant", content="Down", thinking="The player is at (1, 0).")))
    assert step.rewards == {"game": 0.0, "format": -0.1, "truth": 0.0, "repetition": 0.0}, "no action, no pay"
    assert step.metrics["truth"] == 0.5


def test_without_weights_nothing_is_paid_or_measured(lake):
    for nothing in (None, {}):
        step = say(lake(reasoning=nothing), "The player is at (0, 1). The goal is at (3, 1).", "Left")
        assert list(step.rewards) == ["game", "format"]
        assert list(step.metrics) == ["success", "actions", "invalid_actions", "moved"]


def test_forks_go_on_from_the_same_thought_and_count_apart(lake):
    game = lake()
    say(game, HOLLOW, "Left")
    twin = game.fork()
    assert say(game, HOLLOW, "Down").metrics["repetition"] == 0.5
    step = say(twin, "The player is at (0, 0). The goal is at (3, 1). I go down.", "Down")
    assert [step.metrics[name] for name in WEIGHTS] == [0.5, 0.5, 1.0]
    assert say(game, HOLLOW, "Down").metrics["repetition"] == pytest.approx(1 / 3)


def test_the_judge_reads_what_was_shown_and_its_silence_is_counted(lake, monkeypatch):
    asked = []
    verdicts = iter([0.8, None, 0.4])

    async def score(self, *, state, reasoning, actions):
        asked.append((state, reasoning, actions))
        return next(verdicts)

    monkeypatch.setattr(Judge, "score", score)
    game = lake(reasoning={"judge": 0.5}, judge={"url": "http://127.0.0.1:1/v1", "model": "m"})
    steps = [say(game, "Hm.", "Left"), say(game, "Hm?", "Down"), say(game, "Hm!", "Sideways"), say(game, "Ah.", "Down")]
    assert asked[0] == ("_ P _ O\n_ O _ _\n_ _ O _\nO G _ _", "Hm.", ("Left",))
    assert [step.rewards.get("judge") for step in steps] == [0.4, None, None, 0.2]
    assert [step.metrics["judge"] for step in steps] == pytest.approx([0.8, 0.8, 0.8, 0.6])
    assert [step.metrics["judge_silent"] for step in steps] == [0, 1, 1, 1], "the turn without an action was not asked"


@pytest.mark.parametrize("env", [FrozenLake(reasoning=WEIGHTS), Sokoban(reasoning=WEIGHTS)], ids=["lake", "room"])
def test_the_contract_of_an_environment_is_kept(env):
    assert asyncio.run(check_env(env)) == []


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: FrozenLake(think=False, reasoning=WEIGHTS), EnvError, "reasoning is paid, but think is off"),
        (lambda: Bandit(reasoning={"truth": 1}), EnvError, "Bandit states no facts, so reasoning cannot pay 'truth'"),
        (lambda: Countdown(reasoning={"consistency": 1}), EnvError, "Countdown has no fixed list of actions"),
        (lambda: Bandit(reasoning={"trutz": 1}), RewardError, "no channel 'trutz' .did you mean 'truth'"),
        (lambda: Bandit(judge={"url": "http://a/v1"}), ConfigError, "model: required, but missing in judge"),
        (lambda: Bandit(judge={"url": "http://a/v1", "model": "m"}), RewardError, "a judge is given, but not paid"),
    ],
)
def test_what_a_game_cannot_pay_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_the_arguments_are_those_of_every_game():
    assert {"reasoning", "judge"} <= set(inspect.signature(FrozenLake).parameters)


def test_no_generated_sokoban_level_is_both_trained_and_tested_on():
    """Boards so small that the same level comes again and again: 400 draws of each split would share some."""
    env = Sokoban(size=5, min_moves=1, max_moves=2, train_tasks=400, test_tasks=400)
    drawn = {split: {level_of(env, task) for task in env.tasks(split)} for split in ("train", "test")}
    assert not drawn["train"] & drawn["test"]
    seen = [
        sum(1 for _ in group) for _, group in itertools.groupby(sorted(level_of(env, t) for t in env.tasks("test")))
    ]
    assert max(seen) > 1, "levels come twice within a split, so they would have been in both"


def level_of(env: Sokoban, task: Task) -> str:
    game = env.spawn()
    game.begin(task, 0)
    return game.show()


@pytest.mark.parametrize(("reasoning", "floor"), [(None, 5_000), (WEIGHTS, 1_000)], ids=["off", "on"])
def test_steps_stay_fast(reasoning, floor):
    """A fraction of what is aimed at (20,000 where nothing is paid for): other processes may be running."""
    env = FrozenLake(reasoning=reasoning)
    answers = random.Random(0).choices(env.actions, k=2_000)
    texts = [f"The player is at (0, 1). The goal is at (3, 1). I go {answer}." for answer in answers]
    script = [
        Message(role="assistant", content=f"<answer>{answer}</answer>", thinking=text)
        for answer, text in zip(answers, texts, strict=True)
    ]
    assert max(asyncio.run(steps_per_second(env, script)) for _ in range(3)) > floor


async def steps_per_second(env, script) -> float:
    task = env.tasks("train")[0]
    await env.reset(task, 0)
    start = time.process_time()
    for message in script:
        if (await env.step(message)).done:
            await env.reset(task, 0)
    return len(script) / (time.process_time() - start)
