"""GAE by hand, on the example over which three trainers disagree, and across truncation."""

import pytest
import torch

from turnwise.credit.base import TokenBatch
from turnwise.credit.gae import gae
from turnwise.errors import ConfigError


def _episodes(reward, value, *, trajectory=None, truncated=(False,), final_value=(0.0,)):
    n = len(reward)
    return TokenBatch(
        reward=torch.tensor(reward, dtype=torch.double),
        trajectory=torch.tensor(trajectory or [0] * n),
        turn=torch.zeros(n, dtype=torch.long),
        group=torch.arange(len(truncated)),
        truncated=torch.tensor(truncated),
        value=None if value is None else torch.tensor(value, dtype=torch.double),
        final_value=torch.tensor(final_value, dtype=torch.double),
    )


def test_observation_tokens_are_skipped_when_they_are_not_credited():
    """[act, obs, obs, act(r=1)] with V = [.5, .2, .2, .6]: the estimator sees the two actions alone."""
    credit = gae(_episodes([0.0, 1.0], [0.5, 0.6]), gamma=0.9, lam=0.9, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.364, 0.4])
    assert credit.value_target.tolist() == pytest.approx([0.864, 1.0])


def test_observation_tokens_bootstrap_when_they_are_credited():
    credit = gae(_episodes([0.0, 0.0, 0.0, 1.0], [0.5, 0.2, 0.2, 0.6]), gamma=0.9, lam=0.9, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.0994504, 0.51784, 0.664, 0.4])


def test_truncation_bootstraps_and_termination_does_not():
    """The final value 2 enters only the trajectory that a limit cut off: .5 + 1·2 − 1 against .5 − 1."""
    episodes = _episodes([0.5, 0.5], [1.0, 1.0], trajectory=[0, 1], truncated=(False, True), final_value=(2.0, 2.0))
    credit = gae(episodes, gamma=1.0, lam=1.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([-0.5, 1.5])


def test_a_trajectory_does_not_see_the_next_one():
    episodes = _episodes(
        [0.0, 1.0, 0.0], [0.0, 0.0, 5.0], trajectory=[0, 0, 1], truncated=(False, False), final_value=(9.0, 9.0)
    )
    assert gae(episodes, gamma=1.0, lam=1.0, whiten=False).advantage.tolist() == pytest.approx([1.0, 1.0, -5.0])


def test_process_rewards_count_where_they_were_earned():
    credit = gae(_episodes([0.5, 0.0, 1.0], [0.0, 0.0, 0.0]), gamma=0.5, lam=1.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.75, 0.5, 1.0])


def test_lambda_zero_is_the_one_step_error():
    credit = gae(_episodes([0.0, 0.0, 1.0], [0.1, 0.2, 0.3]), gamma=1.0, lam=0.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.1, 0.1, 0.7])


def test_whitening_touches_advantages_and_not_targets():
    episodes = _episodes([0.0, 1.0, 2.0], [0.0, 0.0, 0.0])
    credit = gae(episodes, gamma=0.0, lam=0.0, whiten=True)
    assert credit.advantage.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert credit.value_target.tolist() == pytest.approx([0.0, 1.0, 2.0])


def test_long_uneven_batches_equal_the_recursion_written_out():
    generator = torch.Generator().manual_seed(3)
    lengths = [1, 7, 3, 40]
    trajectory = [i for i, length in enumerate(lengths) for _ in range(length)]
    reward = torch.randn(len(trajectory), generator=generator).tolist()
    value = torch.randn(len(trajectory), generator=generator).tolist()
    truncated, final_value = (True, False, True, False), (0.3, 0.4, -0.5, 0.6)
    episodes = _episodes(reward, value, trajectory=trajectory, truncated=truncated, final_value=final_value)
    expected, at = [], 0
    for i, length in enumerate(lengths):
        after, advantage, part = (final_value[i] if truncated[i] else 0.0), 0.0, []
        for t in reversed(range(at, at + length)):
            advantage = reward[t] + 0.97 * after - value[t] + 0.97 * 0.8 * advantage
            after = value[t]
            part.append(advantage)
        expected += reversed(part)
        at += length
    assert gae(episodes, gamma=0.97, lam=0.8, whiten=False).advantage.tolist() == pytest.approx(expected)


def test_a_missing_critic_is_an_error():
    with pytest.raises(ConfigError, match="gae needs a critic"):
        gae(_episodes([1.0], None), gamma=1.0, lam=1.0, whiten=True)
