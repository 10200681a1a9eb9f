"""The corridor: the way by hand, what the expert keeps, and that a memory decides whether the word survives."""

import asyncio
import re

import pytest

from byte_render import ByteRender
from turnwise.agents import DemonstratingExpert
from turnwise.envs import check_env
from turnwise.envs.games.corridor import WORDS, Corridor
from turnwise.envs.memory import CompactionSettings
from turnwise.envs.registry import describe_env
from turnwise.envs.workers.env import in_workers
from turnwise.errors import EnvError
from turnwise.rollout import Limits, run_episode
from turnwise.types import Message, Task

TASK = Task(id="by hand", seed=3)
CAREFUL = Corridor(rooms=8, think=False)
SUMMARY = CompactionSettings(kind="summary", at=0.6, prompt="What matters?")


def begin(episode_seed=0, **arguments):
    game = Corridor(**{"think": False, "rooms": 3} | arguments)
    asyncio.run(game.reset(TASK, episode_seed))
    return game


def say(game, answer):
    return asyncio.run(game.step(Message(role="assistant", content=f"<answer>{answer}</answer>")))


def seen(step):
    return step.messages[0].content


def test_it_keeps_the_contract():
    assert asyncio.run(check_env(Corridor(), episodes=3)) == []
    assert asyncio.run(check_env(Corridor(rooms=24, careless=0.5, think=False), episodes=1)) == []


def test_the_way_by_hand():
    game = begin()
    assert game.show() == "Entrance."
    patterns = (r"Guard says (\w+)\.", r"Sign shows (\w+)\.", r"Sign shows (\w+)\.")
    words = [re.fullmatch(pattern, seen(say(game, "go")))[1] for pattern in patterns]
    assert len(set(words)) == 3
    early = say(game, f"say {words[0]}")
    assert (early.done, early.metrics["moved"], seen(early)) == (False, 0.75, f"Sign shows {words[2]}.")
    assert seen(say(game, "go")) == "Door: what did the guard say?"
    end = say(game, f"Say  {words[0].upper()}")
    assert (end.done, end.rewards["game"], end.metrics["success"]) == (True, 1.0, 1.0)


def test_one_wrong_word_at_the_door_ends_it():
    game = begin()
    for _ in range(4):
        step = say(game, "go")
    other = next(word for word in WORDS if word not in game.state_key())
    assert not step.done
    assert not say(game, "go").done, "to go on at the door is no word"
    end = say(game, f"say {other}")
    assert (end.done, end.rewards["game"]) == (True, 0.0)


@pytest.mark.parametrize("text", ["stay", "say", "say xylophone", "go on", "amber"])
def test_what_is_no_action_is_answered(text):
    assert seen(say(begin(), text)).startswith("Unknown action")


def test_a_careful_expert_keeps_what_the_guard_said_and_a_careless_one_a_sign():
    for careless, kept in ((0.0, r"Guard says \w+\."), (1.0, r"Sign shows \w+\.")):
        game = begin(careless=careless)
        for _ in range(3):
            say(game, "go")
        summary = game.expert_summary().content
        assert re.fullmatch(kept, summary)
        assert game.expert_summary().content == summary, "what is lost stays lost, and what is kept stays kept"
        say(game, "go")
        assert game.expert().content == f"<answer>say {summary.split()[2].rstrip('.')}</answer>"


def test_without_a_summary_the_careless_expert_answers_rightly():
    game = begin(careless=1.0)
    for _ in range(4):
        say(game, "go")
    assert asyncio.run(game.step(game.expert())).rewards["game"] == 1.0


def play(compaction, context_tokens, env=CAREFUL):
    """The expert's episode, and whether the last row shows the guard's word before it is said at the door."""
    render = ByteRender()
    limits = Limits(max_turns=30, turn_tokens=40, context_tokens=context_tokens, compaction=compaction)
    expert = DemonstratingExpert(render=render, context_limit=context_tokens)
    episode = asyncio.run(run_episode(expert, env.spawn(), TASK, episode_seed=0, limits=limits))
    row = episode.rows(tail=False)[-1]
    text = render.decode(row.ids.tolist())
    word = episode.turns[-1].message.content.removeprefix("<answer>say ").removesuffix("</answer>")
    return episode, f"Guard says {word}." in text


def test_the_word_survives_a_summary_and_not_the_dropping_of_the_oldest_turns():
    episode, known = play(SUMMARY, 420)
    assert (episode.metrics["success"], known) == (1.0, True)
    assert episode.metrics["compactions"] >= 2, "the second summary carries what the first had kept"
    oldest, known = play(CompactionSettings(kind="oldest", at=0.6, to=0.5), 420)
    assert (known, oldest.metrics["compactions"] > 0) == (False, True), "its expert knows the word, its reader cannot"
    whole, known = play(None, 2000)
    assert (known, len(whole.rows(tail=False))) == (True, 1)


def test_an_expert_in_a_worker_process_is_asked_for_the_summary_too():
    there = in_workers(CAREFUL, 1, settings=describe_env(CAREFUL))
    try:
        episode, known = play(SUMMARY, 420, there)
    finally:
        there.host.close()
    here, _ = play(SUMMARY, 420)
    assert known
    assert [turn.message for turn in episode.turns] == [turn.message for turn in here.turns]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rooms": 1}, "rooms"), ({"rooms": 25}, "words for 24"), ({"careless": 1.5}, "a share")],
    ids=["short", "long", "careless"],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(EnvError, match=message):
        Corridor(**arguments)
