"""Bugs of rollouts, sampling and evaluation, planted one at a time; the proofs are those of `rollout_proofs`."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch

import turnwise.engines.local.sampling
import turnwise.learner.batch
from planted_bugs import Mutant, _set
from rollout_proofs import (
    prove_a_rewrite_pays_nothing_again,
    prove_evaluations_share_their_seed,
    prove_the_clock_keeps_the_last_reward,
    prove_top_p_cuts_between_equals,
)
from turnwise.engines.local.sampling import _kept
from turnwise.rollout.episode import _Conversation
from turnwise.training.trainer import Trainer
from turnwise.types import lay_out


def _unpaid_when_time_is_up(patch):
    real = _Conversation._take

    async def take(self, turn, message):
        step = await real(self, turn, message)
        if step.truncated:
            self.turns[-1] = turn
        return step

    patch.setattr(_Conversation, "_take", take)


def _paid_again_after_a_rewrite(patch):
    real = _Conversation._take

    async def take(self, turn, message):
        step = await real(self, turn, message)
        if turn.opens_row and len(self.turns) > 1:
            self.turns[-1] = replace(self.turns[-1], rewards={**self.turns[0].rewards, **step.rewards})
        return step

    patch.setattr(_Conversation, "_take", take)


def _laid_out_again_after_a_rewrite(trajectories, **settings):
    """The first turn's reward also on the last token of every further row."""
    rows = lay_out(trajectories, **settings)
    rewards = rows.every.rewards.copy()
    ends = np.cumsum(rows.lengths)
    for number in range(1, len(rows.owner)):
        if rows.owner[number] == rows.owner[number - 1]:
            rewards[ends[number] - 1] += trajectories[rows.owner[number]].turns[0].reward
    return replace(rows, every=replace(rows.every, rewards=rewards))


def _one_more_at_the_edge(mass, top_k, top_p):
    ordered, order = torch.sort(mass.double(), dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(mass, dtype=torch.bool).scatter(1, order, before <= top_p * ordered.sum(-1, keepdim=True))


def _all_equals_of_the_last(mass, top_k, top_p):
    kept = _kept(mass, top_k, top_p)
    return mass >= mass.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)


def _seed_by_step(patch):
    evaluate, seed = Trainer._evaluate, Trainer._seed
    steps = []

    async def evaluate_at(self, stage, step):
        steps.append(step)
        await evaluate(self, stage, step)

    patch.setattr(Trainer, "_evaluate", evaluate_at)
    patch.setattr(
        Trainer,
        "_seed",
        lambda self, *parts: seed(self, *parts, *(steps[-1:] if parts == ("evaluate",) else ())),
    )


MUTANTS = (
    Mutant(
        name="no reward for the move that the environment's clock cut off",
        seen="the reward of the last move lost on truncation",
        plant=_unpaid_when_time_is_up,
        check=prove_the_clock_keeps_the_last_reward,
    ),
    Mutant(
        name="the first turn's reward in the turn after a rewrite",
        seen="a rewritten conversation pays for its first turn again",
        plant=_paid_again_after_a_rewrite,
        check=prove_a_rewrite_pays_nothing_again,
    ),
    Mutant(
        name="the first turn's reward in every row",
        seen="a trajectory's reward copied to each of its rows",
        plant=_set(turnwise.learner.batch, "lay_out", _laid_out_again_after_a_rewrite),
        check=prove_a_rewrite_pays_nothing_again,
    ),
    Mutant(
        name="an evaluation seeded by its step",
        seen="evaluations of one run that play other episodes, so that curves move by chance",
        plant=_seed_by_step,
        check=prove_evaluations_share_their_seed,
    ),
    Mutant(
        name="top_p keeps the token past its edge",
        seen="nucleus sampling keeps one token too many where the mass is met exactly",
        plant=_set(turnwise.engines.local.sampling, "_kept", _one_more_at_the_edge),
        check=prove_top_p_cuts_between_equals,
    ),
    Mutant(
        name="top_p keeps all equals of the last token",
        seen="a threshold on probability instead of a count: ties survive together",
        plant=_set(turnwise.engines.local.sampling, "_kept", _all_equals_of_the_last),
        check=prove_top_p_cuts_between_equals,
    ),
)
BY_NAME = MappingProxyType({mutant.name: mutant for mutant in MUTANTS})
