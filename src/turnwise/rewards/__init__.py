"""Rewards: what an answer is worth, by name, and how answers are compared."""

from turnwise.rewards.answers import exact_match, f1, final_answer, mentions, normalise_answer
from turnwise.rewards.foreign import from_rubric, from_trl, from_verifiers
from turnwise.rewards.llm_judge import judge
from turnwise.rewards.named import choose_rewards
from turnwise.rewards.retrieval import GoldPassages
from turnwise.rewards.reward import (
    Episode,
    Reward,
    ScoringDownError,
    exact_match_reward,
    f1_reward,
    finite,
    format_gated_exact_match,
    format_gated_f1,
    format_reward,
    reward,
)

__all__ = [
    "Episode",
    "GoldPassages",
    "Reward",
    "ScoringDownError",
    "choose_rewards",
    "exact_match",
    "exact_match_reward",
    "f1",
    "f1_reward",
    "final_answer",
    "finite",
    "format_gated_exact_match",
    "format_gated_f1",
    "format_reward",
    "from_rubric",
    "from_trl",
    "from_verifiers",
    "judge",
    "mentions",
    "normalise_answer",
    "reward",
]
