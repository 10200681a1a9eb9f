"""Answers are compared the SQuAD way; the numbers are worked out by hand."""

import pytest

from turnwise.rewards import exact_match, f1, final_answer, normalise_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("an apple, a day", "apple day"),
        ("Theatre of the Absurd", "theatre of absurd"),
        ("O'Brien\t\n(1950)", "obrien 1950"),
        ("the", ""),
        ("ÆØÅ", "æøå"),
    ],
)
def test_normalising(text, normal):
    assert normalise_answer(text) == normal


def test_exact_match_takes_any_gold_answer_and_no_part_of_one():
    assert exact_match("the Oslo.", ["Bergen", "Oslo"])
    assert not exact_match("Oslo, Norway", ["Oslo"])
    assert not exact_match(None, ["Oslo"])
    assert not exact_match("O", "Oslo")
    assert exact_match("oslo", "Oslo")
    assert not exact_match("Oslo", [])


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Ada Brandt", ["Ada Brandt"], 1.0),
        ("Ada", ["Ada Brandt"], 2 / 3),  # P = 1, R = 1/2
        ("Ada Maria Brandt", ["Ada Brandt"], 0.8),  # P = 2/3, R = 1
        ("Ada Brandt", ["Oslo", "Ada"], 2 / 3),
        ("Ada Ada", ["Ada"], 2 / 3),  # a repeated word counts once
        ("Oslo", ["Ada"], 0.0),
        ("the", ["a"], 1.0),
        ("the", ["Oslo"], 0.0),
        (None, ["Oslo"], 0.0),
        ("Oslo", [], 0.0),
    ],
)
def test_f1(prediction, answers, score):
    assert f1(prediction, answers) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So: <answer> Oslo </answer> it is", "Oslo"),
        ("<answer>Bergen</answer> no, <answer>Oslo</answer>", "Oslo"),
        ("<answer>Bergen <answer>Oslo</answer>", "Oslo"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer></answer>", ""),
        ("<answer>Oslo", None),
        ("Oslo</answer>", None),
        ("Oslo", None),
        ("", None),
    ],
)
def test_the_final_answer_is_inside_the_last_tags(text, answer):
    assert final_answer(text) == answer
