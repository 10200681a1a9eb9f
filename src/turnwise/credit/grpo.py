"""Group relative policy optimisation: a trajectory is compared with the others of its task.

    A = (R − mean(R_group)) / std(R_group)        for every token of the trajectory

Source: Shao et al., DeepSeekMath, arXiv 2402.03300 (outcome supervision). With `divide_by_std` off it is the
advantage of Dr. GRPO, which also has a name and a file of its own (dr_grpo.py).
Rewards: R is the sum of all the trajectory earned, process and outcome rewards together; γ does not enter.
Departures: the std is the sample's (n − 1) and has no epsilon; a group of one, or one whose returns are equal,
gives exactly 0. Statistics count trajectories, not rows or tokens.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.statistics import compare_with_group


def grpo(tokens: TokenBatch, *, divide_by_std: bool) -> Credit:
    """One advantage per trajectory, shared by all its tokens."""
    peers = compare_with_group(tokens.returns(), tokens.group, tokens.returns_error())
    advantage = peers.standardised() if divide_by_std else peers.deviation  # [T]
    return Credit(advantage=advantage[tokens.trajectory])
