"""Each health metric by hand, from episodes written turn by turn."""

import math

import numpy as np
import pytest

from turnwise.stability import measure_health, mutual_information
from turnwise.stability.health import action_entropy, repeated_ngrams, repeated_turns
from turnwise.types import Group, StopReason, Task, Trajectory, Turn


def turn(*ids, reward=0.0, logprob=-1.0):
    return Turn(
        context_ids=(1,),
        action_ids=ids,
        logprobs=(logprob,) * len(ids),
        rewards={"paid": reward} if reward else {},
        opens_row=True,
    )


def episode(*turns, stop=StopReason.DONE, **metrics):
    return Trajectory(task=Task(id="t"), turns=turns, stop=stop, metrics=metrics)


def group(*trajectories):
    return Group(task=Task(id="t"), trajectories=trajectories)


GROUPS = [
    group(
        episode(turn(2, 3, logprob=-0.5), turn(2, 3, logprob=-0.5, reward=1.0), success=1.0, invalid_actions=0.0),
        episode(turn(4, logprob=-2.0), success=0.0, invalid_actions=0.5),
    ),
    group(
        episode(turn(2, 3, logprob=-0.5), turn(5, 6, 7, logprob=-1.0), stop=StopReason.MAX_TURNS, success=0.0),
        episode(turn(9, 9, 9, 9, reward=100.0, logprob=-9.0), stop=StopReason.ENV_FAILED),
    ),
]
LEARNT = {"policy/grad_norm": 0.7, "policy/steps_taken": 2.0}


def test_health_metrics_by_hand():
    health = measure_health(GROUPS, LEARNT)
    assert health is not None
    assert health.success == pytest.approx(1 / 3)
    assert health.reward == pytest.approx(1 / 3)
    # Rewards 1 and 0 deviate by a half; the one of the second group that was played has nothing to deviate from.
    assert health.reward_std == pytest.approx(0.5)
    assert health.zero_variance == 0.0
    # Six tokens at .5, one at 2, three at 1.
    assert health.token_entropy == pytest.approx((6 * 0.5 + 2 + 3) / 10)
    # Of five turns three are alike and two alone.
    assert health.action_entropy == pytest.approx(-(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2)) / math.log(5))
    assert health.gradient == 0.7
    assert health.repeated_turns == 0.5
    assert health.repeated_ngrams == 0.0
    assert health.response_length == 2.0
    assert health.invalid_actions == 0.25, "over the episodes that say"
    assert health.early_stops == pytest.approx(1 / 3)
    assert health.information is None
    assert "health/information" not in health.metrics()
    assert health.metrics()["health/reward_std"] == health.reward_std


def test_what_a_step_cannot_tell_is_not_zero():
    health = measure_health([group(episode(turn(2)))], {"policy/steps_taken": 0.0, "policy/grad_norm": 0.0})
    assert health is not None
    assert (health.success, health.gradient, health.invalid_actions) == (None, None, None)
    assert measure_health([group(episode(turn(2)))], {}).gradient is None
    broken = measure_health([group(episode(turn(2)))], {"policy/steps_taken": 1.0, "policy/grad_norm": math.inf})
    assert broken.gradient is None


def test_a_full_context_is_counted_among_the_episodes_that_were_played():
    cut = episode(turn(2), stop=StopReason.CONTEXT_FULL)
    failed = episode(turn(2), stop=StopReason.ENV_FAILED)
    health = measure_health([group(cut, episode(turn(3))), group(failed, episode(turn(4)), episode(turn(5)))], LEARNT)
    assert health.context_full == 0.25
    assert "health/context_full" not in health.metrics(), "rollout/stop_context_full has it"


def test_a_step_without_episodes_has_no_health_metrics():
    assert measure_health([group(episode(turn(2), stop=StopReason.ENV_FAILED)), group(episode())], LEARNT) is None
    assert measure_health([], LEARNT) is None


@pytest.mark.parametrize(
    ("said", "entropy"),
    [((1, 1, 1, 1), 0.0), ((1, 2, 3, 4), 1.0), ((1, 1, 2, 2), 0.5), ((1,), 0.0)],
)
def test_entropy_of_what_whole_turns_say(said, entropy):
    assert action_entropy([turn(one, 7) for one in said]) == pytest.approx(entropy)


def test_turns_are_repeated_within_an_episode_only():
    assert repeated_turns([episode(turn(1), turn(1), turn(2), turn(1)), episode(turn(1))]) == pytest.approx(1 / 3)
    assert repeated_turns([episode(turn(1)), episode(turn(1))]) == 0.0


def test_ngrams_by_hand():
    # 1 2 3 4 1 2 3 4: five 4-grams, the last of which is the first again.
    echo = episode(turn(1, 2, 3, 4, 1, 2, 3, 4))
    assert repeated_ngrams([echo]) == pytest.approx(0.2)
    # None crosses from one turn to the next, and the second turn's only one was there before.
    assert repeated_ngrams([episode(turn(1, 2, 3, 4), turn(1, 2, 3, 4))]) == 0.5
    assert repeated_ngrams([echo, episode(turn(1, 2, 3))]) == pytest.approx(0.2), "too short to have any"
    assert repeated_ngrams([episode(turn(1, 2, 1, 2))], length=2) == pytest.approx(1 / 3)


def test_reasoning_that_names_its_prompt_tells_all():
    information = mutual_information(np.where(np.eye(4, dtype=bool), -3.0, -500.0))
    assert information.nats == pytest.approx(math.log(4))
    assert information.retrieval == 1.0


def test_reasoning_that_fits_every_prompt_tells_nothing():
    information = mutual_information(np.tile([[-5.0], [-50.0], [-7.0]], (1, 3)))
    assert information.nats == pytest.approx(0.0)
    assert information.retrieval == pytest.approx(1 / 3), "no better than chance"


def test_information_by_hand():
    likelihood = np.array([[0.6, 0.2], [0.3, 0.1]])
    information = mutual_information(np.log(likelihood))
    assert information.nats == pytest.approx((math.log(0.6 / 0.4) + math.log(0.1 / 0.2)) / 2)
    assert information.retrieval == 0.5


def test_a_prior_for_some_reasoning_is_no_information():
    matrix = np.log(np.array([[0.6, 0.2], [0.3, 0.1]]))
    likelier = matrix + np.array([[-40.0], [3.0]])  # whatever the prompt
    assert mutual_information(likelier).nats == pytest.approx(mutual_information(matrix).nats)
