"""How much of a choice's true advantage reaches it over an observation, exactly: the estimator itself, on two episodes.

One episode chose right and is paid 1 at the end of its second turn, the other chose wrong and is paid nothing; the
critic knows nothing. What the choice is worth is 1; what GAE credits it with is the difference of the two.
"""

from collections.abc import Sequence

import torch

from turnwise.credit.estimate import estimate
from turnwise.credit.settings import CreditSettings
from turnwise.learner.batch import Batch
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

ACTION_TOKENS = 4
"""`<answer>`, a word, `</answer>` and the end of the turn; the word is the choice."""
_CHOICE = 1
"""The place of the choice among the tokens of the first action."""
LENGTHS = (0, 10, 20, 40, 80, 160)


def measure_reach(lam: float, tokens: int, *, advantage_mask: bool) -> float:
    """The credit of a choice before an observation of so many tokens: `.53` at λ = .9 with the mask, for any."""
    batch = Batch.of([_group(tokens)], advantage_mask=advantage_mask)
    credit = CreditSettings(estimator="gae", lam=lam, whiten=False, advantage_mask=advantage_mask)
    values = torch.zeros(len(batch.ids), dtype=torch.double)  # [L]
    advantage = batch.spread(estimate(batch.credited_tokens(batch.reward, values), credit).advantage)  # [L]
    first = batch.action.nonzero().flatten()  # [actions]
    starts = [int(first[batch.trajectory[first] == number][0]) for number in (0, 1)]
    right, wrong = (float(advantage[start + _CHOICE]) for start in starts)
    return right - wrong


def _group(tokens: int) -> Group:
    task = Task(id="fork")
    return Group(task=task, trajectories=(_episode(task, tokens, 1.0), _episode(task, tokens, 0.0)))


def _episode(task: Task, tokens: int, paid: float) -> Trajectory:
    """A choice, an observation, and a second action that is paid; the header of a turn is one token."""
    turns: Sequence[Turn] = (_turn([1], 0.0, opens=True), _turn([2] * tokens + [1], paid, opens=False))
    return Trajectory(task=task, turns=tuple(turns), stop=StopReason.DONE)


def _turn(context: Sequence[int], reward: float, *, opens: bool) -> Turn:
    return Turn(
        context_ids=tuple(context),
        action_ids=(3,) * ACTION_TOKENS,
        logprobs=(-1.0,) * ACTION_TOKENS,
        rewards={"game": reward},
        opens_row=opens,
    )
