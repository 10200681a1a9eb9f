"""What a thought earns, by hand: true before hollow, carried out before contradicted, fresh before copied."""

import asyncio
import re

import pytest

from turnwise.errors import RewardError
from turnwise.rewards.reasoning import (
    ReasoningRewards,
    Tally,
    Thought,
    consistency,
    read_thought,
    repetition,
    truth,
)

# _ P _ O
# _ O _ _
# _ _ O _
# O G _ _
LAKE = {"player": (0, 1), "goal": (3, 1), "hole 1": (0, 3), "hole 2": (1, 1), "hole 3": (2, 2), "hole 4": (3, 0)}
BOARD = {"player": (3, 1), "box 1": (2, 1), "box 2": (2, 3), "target 1": (1, 1), "target 2": (1, 4)}
STEPS = ("Up", "Right", "Down", "Left")
TRUE = "The player is at (0, 1). The goal is at (3, 1)."
HOLLOW = "I will think carefully and choose the best move."


def read(text: str, *actions: str, facts=LAKE, before: str = "", known=STEPS) -> Thought:
    return read_thought(text, facts=facts, actions=actions or ("Left",), known=known, before=before)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (TRUE, 1.0),
        ("I'm at (0,1); the goal: [3, 1]", 1.0),
        ("My position is (0, 1) and the holes are at (0, 3), (1, 1) and (2, 2).", 1.0),
        ("Player (0, 1)\nGOAL (3, 1)", 1.0),
        ("The player is at (0, 1).", 0.5),
        ("The goal is at (3, 1). Hole 1 is at (0, 3). Hole 2 is at (1, 1).", 0.5),
        # Two right and one wrong: (2 − 1) / 3.
        (f"{TRUE} Hole 1 is at (1, 1).", 1 / 3),
        ("The player is at (0, 1). The goal is at (3, 2).", 0.0),
        ("The player is at (1, 0). The goal is at (1, 3).", 0.0),
        (HOLLOW, 0.0),
        ("", 0.0),
        # Nothing is claimed of the state as it is.
        ("The player was at (0, 1). The goal is not at (9, 9). I move from (0, 1) to (0, 0).", 0.0),
        ("The wall is at (0, 1). There are 3 holes, (0, 1).", 0.0),
    ],
)
def test_truth_weighs_wrong_statements_against_right_ones(text, score):
    assert truth(read(text)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (f"{TRUE} The goal is below.", 1.0),
        (f"{TRUE} The goal lies directly below the player, and I am above the goal.", 1.0),
        (f"{TRUE} The goal is right below me. Hole 4 is to the left of the goal.", 1.0),
        (f"{TRUE} A hole is below and to the right.", 1.0),
        (f"{TRUE} The goal is above.", 1 / 3),
        # Straight below is not to the right.
        (f"{TRUE} The goal is below and to the right.", 1 / 3),
        # A direction alone is too easily guessed to be paid for.
        ("The goal is below.", 0.0),
        ("The player is at (0, 1). The goal is below.", 0.5),
        # What it is seen from is not known, or it says nothing.
        (f"{TRUE} The goal is below the wall. I am right.", 1.0),
    ],
)
def test_directions_are_statements_too(text, score):
    assert truth(read(text)) == pytest.approx(score)


def test_of_several_things_a_kind_means_any_and_a_number_that_one():
    def score(text):
        return truth(read(f"I am at (3, 1). {text}", facts=BOARD))

    assert score("A box is at (2, 3).") == score("Boxes are at (2, 1) and (2, 3).") == score("Box 2 is at (2, 3).") == 1
    assert score("Box 1 is at (2, 3).") == score("Box 3 is at (2, 3).") == score("A box is at (1, 1).") == 0
    assert truth(read("I am at (3, 1). Box 1 is at (2, 1).", facts={"player": (3, 1), "box": (2, 1)})) == 1


def test_guesses_do_not_pay():
    cells = [(row, column) for row in range(4) for column in range(4)]
    everywhere = " or ".join(map(str, cells))
    for text in (
        f"The player is at {everywhere}.",
        " ".join(f"The player is at {cell}." for cell in cells),
        f"The player is at (0, 1). The goal is at {everywhere}.",
        "The player is at (0, 1). The player is at (0, 2). The goal is at (3, 1). The goal is at (3, 2).",
        "The goal is above. The goal is below. The player is at (0, 1). The player is at (1, 0).",
    ):
        assert truth(read(text)) == 0, text
    known = "The player is at (0, 1)."
    guesses = [truth(read(f"{known} The goal is at {cell}.")) for cell in cells if cell != (0, 1)]
    assert sum(guesses) / len(guesses) < truth(read(known)), "who does not know the goal does better not to name it"


@pytest.mark.parametrize(
    ("text", "actions", "score"),
    [
        ("I go up, then left.", ("Up", "Left"), 1.0),
        ("I go up, then left.", ("Up",), 0.5),
        ("I go up, then left.", ("Up", "Up"), 0.5),
        ("I go up, then left.", ("Left", "Up"), 0.5),
        ("I go up, then left.", ("Down",), 0.0),
        ("Right looks good. But it is better to move DOWNWARDS!", ("Down",), 1.0),
        ("I avoid left and go up.", ("Up",), 0.5),
        ("Up, down, left, right.", ("Up",), 0.25),
        # Where things lie is no plan.
        ("A hole is to the right, so I go left.", ("Left",), 1.0),
        ("The goal is below.", ("Down",), 0.0),
        (HOLLOW, ("Up",), 0.0),
        ("", ("Up",), 0.0),
        ("Bright uproar.", ("Up",), 0.0),
    ],
)
def test_consistency_compares_the_plan_with_the_answer(text, actions, score):
    assert consistency(read(text, *actions)) == score


def test_moves_go_by_the_names_of_the_game():
    compass = ("North", "South", "West", "East")
    assert consistency(read("I go up, then east.", "North", "East", known=compass)) == 1
    assert consistency(read("The Dragon pays more than the Phoenix. Plan: Dragon.", "Dragon", known=("Dragon",))) == 1
    assert consistency(read("I go up.", "Dragon", known=("Dragon",))) == 0


@pytest.mark.parametrize(
    ("text", "before", "score"),
    [
        (HOLLOW, "", 1.0),
        (HOLLOW, HOLLOW, 0.0),
        (HOLLOW.upper(), HOLLOW, 0.0),
        # Nine words are six runs; "pick" for "choose" is in four of them.
        ("I will think carefully and pick the best move.", HOLLOW, 4 / 6),
        ("Go.", "Go.", 0.0),
        ("Go!", "Stay.", 1.0),
        # Eight words are five runs, of which two are new.
        ("go on go on go on go on", "", 2 / 5),
        ("", "", 0.0),
        ("...", "", 0.0),
    ],
)
def test_repetition_is_what_was_said_before(text, before, score):
    assert repetition(read(text, before=before)) == pytest.approx(score)


def test_what_a_true_thought_must_repeat_is_no_repetition():
    before = "The player is at (0, 2). The goal is at (3, 1). Plan: Left, Left, Left, Left, Left."
    fresh = "The player is at (0, 1). The goal is at (3, 1). Plan: Left, Left, Left, Left, Left."
    assert repetition(read(fresh, *["Left"] * 5, before=before)) == 1
    # Copied, its 18 words are 15 runs. It is wrong of the player, whose 6 words are three stale runs, and the 6 words
    # of a plan that is not carried out are three more; the goal is still where it was.
    copied = read(before, "Up", before=before)
    assert repetition(copied) == pytest.approx(1 - (3 + 3) / 15)
    assert truth(copied) == 0


def test_a_statement_is_needed_once():
    once, often = read(TRUE), read(f"{TRUE} " * 10)
    assert (truth(once), truth(often)) == (1, 1)
    assert repetition(once) == 1
    assert repetition(often) < 0.2


def score(rewards: ReasoningRewards, thought: Thought) -> dict[str, float | None]:
    return asyncio.run(rewards.score(thought, thought.text, "P G"))


def test_channels_are_scored_raw_and_paid_by_weight():
    rewards = ReasoningRewards({"repetition": 0.05, "truth": 0.1})
    scores = score(rewards, read(f"{TRUE} Hole 1 is at (1, 1)."))
    assert scores == {"truth": pytest.approx(1 / 3), "repetition": 1.0}
    assert rewards.pay(scores) == {"truth": pytest.approx(0.1 / 3), "repetition": 0.05}
    silent: dict[str, float | None] = {"truth": 0.5, "judge": None}
    assert ReasoningRewards({"truth": 2}).pay(silent) == {"truth": 1.0}, "no verdict, no payment"


def test_a_thought_that_leads_to_no_action_earns_nothing():
    thought = read_thought(TRUE, facts=LAKE, actions=(), known=STEPS)
    rewards = ReasoningRewards({"truth": 0.1, "consistency": 0.1, "repetition": 0.1})
    assert score(rewards, thought) == {"truth": 0.0, "consistency": 0.0, "repetition": 0.0}


def test_a_tally_is_the_mean_of_the_turns_that_were_scored():
    start = Tally()
    one = start.add({"truth": 1.0, "judge": None})
    two = one.add({"truth": 0.5, "judge": 0.8})
    assert (one.means(), one.silent) == ({"truth": 1.0}, 1)
    assert (two.means(), two.silent) == ({"truth": 0.75, "judge": 0.8}, 1)
    assert start == Tally(), "a fork that keeps the old one is not disturbed"


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"thruth": 0.1}, "reasoning has no channel 'thruth' (did you mean 'truth'?); it has: truth, consistency, "),
        ({"truth": -0.1}, "reasoning.truth is -0.1; give a weight of 0 or more"),
        ({"truth": float("nan")}, "reasoning.truth is nan"),
        ({"truth": True}, "reasoning.truth is True"),
        ({"judge": 0.1}, "reasoning pays 'judge', but there is none; add judge="),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, says):
    with pytest.raises(RewardError, match=f"^{re.escape(says)}"):
        ReasoningRewards(weights)


def test_long_and_odd_texts_are_read_in_a_moment():
    """Nothing a model can write is slow to read: the patterns go through a text once, whatever it repeats."""
    for text in (
        "left " * 20_000,
        "the player is at " * 5_000,
        "player" + " :" * 20_000,
        "i" + " " * 50_000,
        "\x00\ud83d",
    ):
        thought = read(text)
        assert 0 <= repetition(thought) <= 1
        assert truth(thought) == 0
