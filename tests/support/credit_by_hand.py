"""Episodes written as nested lists: trajectories of turns of token rewards."""

import random

import torch

from turnwise.credit.base import TokenBatch


def episodes(rewards, *, group=None, value=None, truncated=None, final_value=None, state=None):
    """`rewards[i][k][t]` is what token t of turn k of trajectory i earned; values likewise, `state[i][k]` per turn."""
    count = len(rewards)
    final_value = final_value or [0.0] * count
    return TokenBatch(
        reward=torch.tensor([r for turns in rewards for tokens in turns for r in tokens], dtype=torch.double),
        trajectory=torch.tensor([i for i, turns in enumerate(rewards) for tokens in turns for _ in tokens]),
        turn=torch.tensor([k for turns in rewards for k, tokens in enumerate(turns) for _ in tokens]),
        group=torch.tensor(group or [0] * count),
        truncated=torch.tensor(truncated or [False] * count),
        value=None
        if value is None
        else torch.tensor([v for turns in value for tokens in turns for v in tokens], dtype=torch.double),
        final_value=None if value is None else torch.tensor(final_value, dtype=torch.double),
        state=None
        if state is None
        else torch.tensor(
            [
                s
                for i, turns in enumerate(rewards)
                for k, tokens in enumerate(turns)
                for s in [state[i][k]] * len(tokens)
            ]
        ),
    )


def per_turn(values, rewards):
    """One number per turn, and a failure where the tokens of a turn disagree."""
    flat, result = iter(values.tolist()), []
    for turns in rewards:
        said = [[next(flat) for _ in tokens] for tokens in turns]
        assert all(len(set(tokens)) == 1 for tokens in said), "every token of a turn has the turn's own"
        result.append([tokens[0] for tokens in said])
    return result


def random_rewards(seed, *, trajectories=6, on_every_token=False):
    """Uneven turns of uneven lengths; a turn's reward on its last token, or rewards all over."""
    draw = random.Random(seed)
    rewards = []
    for _ in range(trajectories):
        lengths = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
        rewards.append([[draw.gauss(0, 1) if on_every_token or t == n - 1 else 0.0 for t in range(n)] for n in lengths])
    return rewards


def random_values(seed, rewards):
    draw = random.Random(f"values {seed}")
    return [[[draw.gauss(0, 1) for _ in tokens] for tokens in turns] for turns in rewards]
