"""Supporting passages are counted once each; rewards are chosen by name."""

import pytest

from turnwise.errors import RewardError
from turnwise.rewards import (
    Episode,
    GoldPassages,
    Reward,
    choose_rewards,
    exact_match_reward,
    format_gated_f1,
    reward,
)
from turnwise.rewards.retrieval import normalise_title
from turnwise.tools.search.retrieval import Passage
from turnwise.types import Message, Task, ToolCall

ADA = Passage(id="p1", title="Ada Brandt", text="An engineer.")
ADA_TOO = Passage(id="p2", title="ADA  Brandt", text="Her early years.")
LUMEN = Passage(id="p3", title="Lumen", text="Lamps.")
TASK = Task(id="t", data={"supporting_titles": ["Lumen", "Ada Brandt"], "supporting_ids": ["p3", "p1"]})


def test_a_passage_counts_the_first_time_it_is_returned_and_never_again():
    gold = GoldPassages.of(TASK, by_id=True)
    assert gold.recall == 0.0
    assert gold.take([LUMEN, LUMEN]) == 1
    assert gold.recall == 0.5
    assert gold.take([LUMEN]) == 0
    assert gold.take([ADA_TOO, ADA, LUMEN]) == 1
    assert (gold.take([ADA, LUMEN]), gold.recall) == (0, 1.0)


def test_by_id_another_passage_of_the_same_title_is_not_it_and_by_title_it_is():
    assert GoldPassages.of(TASK, by_id=True).take([ADA_TOO]) == 0
    by_title = GoldPassages.of(TASK, by_id=False)
    assert by_title.take([ADA_TOO]) == 1
    assert by_title.take([ADA]) == 0, "the title was found already"


def test_what_the_task_does_not_name_by_one_it_names_by_the_other():
    ids_alone = Task(id="t", data={"supporting_ids": ["p3"], "supporting_titles": []})
    titles_alone = Task(id="t", data={"supporting_titles": ["lumen"]})
    assert GoldPassages.of(ids_alone, by_id=False).take([LUMEN]) == 1
    assert GoldPassages.of(titles_alone, by_id=True).take([LUMEN]) == 1


def test_a_question_that_names_no_passage_finds_none_and_has_no_recall():
    gold = GoldPassages.of(Task(id="t", data={"question": "?"}), by_id=True)
    assert (gold.take([LUMEN, ADA]), gold.recall) == (0, None)


def test_titles_differ_by_more_than_case_spacing_and_encoding():
    assert normalise_title(" Vardø\u00a0 Light ") == normalise_title("VARDØ light") == "vardø light"
    assert normalise_title("Café") == normalise_title("Cafe\u0301")
    assert normalise_title("Mercury (planet)") != normalise_title("Mercury")


def episode(answer: str, *calls: ToolCall) -> Episode:
    task = Task(id="t", data={"answers": ["the old harbour"]})
    return Episode(task=task, messages=(Message(role="assistant", content="", tool_calls=calls),), answer=answer)


@pytest.mark.parametrize(
    ("said", "calls", "score"),
    [
        ("<answer>harbour light</answer>", [], 0.5),  # one of two words, of two: P = R = 1/2
        ("<answer>old harbour</answer>", [], 1.0),
        ("harbour light", [], -0.5),  # no answer in tags: the format score is 1/2
        ("harbour light", [ToolCall(id="", name="search", arguments="{")], -1.0),
    ],
)
def test_f1_behind_the_gate_is_f1_where_the_format_is_right(said, calls, score):
    assert format_gated_f1.score(episode(said, *calls)) == pytest.approx(score)


def test_rewards_are_chosen_by_name_and_weight():
    both = choose_rewards({"exact_match": 2.0, "f1": 0.5})
    assert [(one.name, one.weight) for one in both] == [("exact_match", 2.0), ("f1", 0.5)]
    assert choose_rewards(["exact_match"]) == (exact_match_reward,)
    own = reward(name="own")(lambda episode: 1.0)
    assert choose_rewards([own, "f1"])[0] is own


@reward(weight=0.05)
def cheap(episode: Episode) -> float:
    return 1.0


def short(most: int) -> Reward:
    return Reward(name="short", function=lambda episode: float(len(episode.messages) <= most), weight=0.05)


@pytest.mark.parametrize("named", [{"name": "cheap"}, {"name": "short", "args": {"most": 2}}])
def test_a_reward_keeps_its_own_weight_unless_one_is_given(named):
    by_file = {**named, "name": f"{__file__}:{named['name']}"}
    assert [one.weight for one in choose_rewards([by_file, {**by_file, "weight": 2.0}])] == [0.05, 2.0]


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        (
            {"exact_mach": 1.0},
            r"there is no reward 'exact_mach' \(did you mean 'exact_match'\?\); there are: exact_match, f1,",
        ),
        (["bleu"], "there is no reward 'bleu'"),
        ({"f1": "much"}, "reward 'weight of f1' is 'much'"),
    ],
)
def test_a_wrong_name_or_weight_is_one_line(rewards, words):
    with pytest.raises(RewardError, match=words) as error:
        choose_rewards(rewards)
    assert "\n" not in str(error.value)
