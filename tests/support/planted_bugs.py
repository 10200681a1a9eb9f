"""Bugs that others have shipped, planted in our own code one at a time, each with the proof that must notice it.

A mutant replaces a function or method of the package by one that is wrong in the way the field has been wrong; the
proofs are those of tests/oracle, called as they are called there.
"""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pytest
import torch

import turnwise.compute.score
import turnwise.credit.reinforce_pp
import turnwise.credit.reward_to_go
import turnwise.learner.batch
import turnwise.learner.learner
import turnwise.learner.loss_inputs
import turnwise.models.critic
import turnwise.types
from claims import CLAIMS, prove
from handoff_proofs import (
    prove_kl_to_reference,
    prove_schedules,
    prove_the_learner_has_the_samplers_temperature,
)
from learner_gradients import (
    LAYOUTS,
    MERGED,
    prove_a_seed_is_an_update,
    prove_failures_teach_nothing,
    prove_layouts,
    prove_rounding_teaches_nothing,
    prove_the_head_runs_on_trained_tokens_alone,
)
from mask_proofs import Shape, prove_loss_mask, prove_text_changes_nothing, prove_worked_example
from turnwise.compute.score import Scores, backbone_of, hidden_states, score
from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.estimate import CreditSettings
from turnwise.credit.scan import discounted_sum
from turnwise.credit.statistics import Peers, normalise
from turnwise.credit.turns import Turns
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.learner import Learner
from turnwise.learner.objective import policy_objective
from turnwise.losses.kl import kl_estimate
from turnwise.losses.settings import LossSettings
from turnwise.training.trainer import Trainer
from turnwise.types import Row, lay_out

BY_STEP = {"one row per step": LAYOUTS["one row per step"]}
PACKED = {"packed": LAYOUTS["packed"]}
RANKS = {"two ranks": LAYOUTS["two ranks"]}
TALK = [
    [([Shape(2, 2, 0.0, True, None), Shape(3, 1, 1.0, False, None), Shape(1, 2, 0.5, False, None)], 0)] * 2,
    [([Shape(1, 2, 0.0, True, None), Shape(2, 2, 0.0, False, None)], 2)] * 2,
]
"""Turns with text between them, and a tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug, the words it has been reported in, and what must fail."""

    name: str
    seen: str
    plant: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[], None]


def _credit(estimator: str, **settings: float | bool) -> CreditSettings:
    return CreditSettings.model_validate({"estimator": estimator, **settings})


def _layouts(estimator: str, world: str, layouts=MERGED, loss=None, **settings) -> Callable[[], None]:
    extra = {} if loss is None else {"loss": LossSettings(**loss)}
    return lambda: prove_layouts(_credit(estimator, **settings), world, layouts, **extra)


def _batch_of(change: Callable[[Batch, Batch], Batch]) -> Callable[[pytest.MonkeyPatch], None]:
    """Changes every batch that is made; it is also given the one with both masks off."""

    def plant(patch):
        real = Batch.of.__func__

        def of(cls, groups, **settings):
            unmasked = real(cls, groups, **settings | {"advantage_mask": False, "action_mask": False})
            return change(real(cls, groups, **settings), unmasked)

        patch.setattr(Batch, "of", classmethod(of))

    return plant


def _rows(change) -> Callable[[pytest.MonkeyPatch], None]:
    """Changes every row that is laid out."""

    def lay_out_changed(trajectories, **settings):
        rows = lay_out(trajectories, **settings)
        ends = itertools.accumulate(rows.lengths, initial=0)
        changed = [change(rows.every.part(start, end)) for start, end in itertools.pairwise(ends)]
        names = [field.name for field in dataclasses.fields(rows.every)]
        return replace(
            rows,
            every=Row(**{name: np.concatenate([getattr(row, name) for row in changed]) for name in names}),
            lengths=[len(row) for row in changed],
            prompts=[int(row.prompt_mask.sum()) for row in changed],
        )

    return _set(turnwise.learner.batch, "lay_out", lay_out_changed)


def _set(owner: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def _inverted(patch):
    _batch_of(lambda batch, unmasked: replace(batch, trained=unmasked.trained & ~batch.action))(patch)
    # A mean over sampled tokens would divide by zero: the gradient, and not a crash, shall give it away.
    patch.setattr(Learner, "_measure", lambda self, optimizer, step: ({}, optimizer.settle(0, float(step.norm))))


def _only_last_rows(patch):
    real = Batch.spread

    def spread(self, per_credited):
        last = {trajectory: row for row, trajectory in enumerate(self.row_trajectory.tolist())}
        kept = torch.tensor(
            [row == last[t] for row, t in zip(self.row.tolist(), self.trajectory.tolist(), strict=True)]
        )
        return real(self, per_credited) * kept

    patch.setattr(Batch, "spread", spread)


def _cut_at_turn_cap(row):
    """The prompt and the first four tokens after it, as if the whole conversation were one turn."""
    end = int(row.prompt_mask.sum()) + 4
    while end < len(row) and not row.action_mask[end - 1]:
        end -= 1
    return replace(row, **{field.name: getattr(row, field.name)[:end] for field in dataclasses.fields(row)})


def _reset_at_tools(tokens: TokenBatch, *, gamma: float) -> Credit:
    return Credit(advantage=normalise(discounted_sum(tokens.reward, Turns.of(tokens).of_token, gamma)))


def _divergence_of_what_was_read(patch):
    scored, laid_out = ForwardRunner.logprobs, Batch.credited_tokens

    def logprobs(self, model, batch, select):
        every = torch.ones_like(select)
        every[list(batch.row_start[:-1])] = False  # nothing predicts a row's first token
        return scored(self, model, batch, every)

    def credited_tokens(self, reward, state_value):
        following = self.credited.cumsum(0) - self.credited.long()
        folded = reward.new_zeros(int(self.credited.sum()) + 1).index_add(0, following, reward)
        return replace(laid_out(self, reward, state_value), reward=folded[:-1])

    patch.setattr(ForwardRunner, "logprobs", logprobs)
    patch.setattr(Batch, "credited_tokens", credited_tokens)


def _reward_after_the_action(row):
    rewards = row.rewards.copy()
    rewards[1:] = row.rewards[:-1]
    rewards[-1] += row.rewards[-1]
    return replace(row, rewards=rewards)


def _values_of_text_are_zero(patch):
    real = Batch.credited_tokens
    _batch_of(lambda batch, unmasked: replace(batch, credited=unmasked.credited))(patch)

    def credited_tokens(self, reward, state_value):
        seen = real(self, reward, state_value)
        return replace(seen, value=seen.value * self.action[self.credited])

    patch.setattr(Batch, "credited_tokens", credited_tokens)


def _rows_are_trajectories(patch):
    real = Batch.credited_tokens

    def credited_tokens(self, reward, state_value):
        of_row = self.row_trajectory
        return replace(
            real(self, reward, state_value),
            trajectory=self.row[self.credited],
            group=self.group[of_row],
            truncated=self.truncated[of_row],
        )

    patch.setattr(Batch, "credited_tokens", credited_tokens)


def _rows_weigh_alike(patch):
    real = Batch.weights
    patch.setattr(Batch, "weights", lambda self, *a, **k: real(replace(self, trajectory=self.row), *a, **k))


def _text_counts_in_the_mean(patch):
    real = Batch.weights

    def weights(self, *arguments, **settings):
        found = real(self, *arguments, **settings)
        return found * (self.trained.sum() / len(self.ids))

    patch.setattr(Batch, "weights", weights)


def _even_shares(patch):
    real = Batch.share

    def share(self, rows, parallel):
        rows = list(rows)
        most = max(len(real(self, rows, replace(parallel, rank=other))) for other in range(parallel.world))
        mine = real(self, rows, parallel)
        return mine + [mine[-1]] * (most - len(mine))

    patch.setattr(Batch, "share", share)


def _written_anew(row):
    """Decoded and encoded again, an earlier turn's 2 has become a 1."""
    ids = row.ids.copy()
    ids[(row.turn_index < row.turn_index.max()) & row.action_mask & (ids == 2)] = 1
    return replace(row, ids=ids)


def _forced_prefix_is_an_action(row):
    mask = row.action_mask.copy()
    mask[:-1] |= row.action_mask[1:] & ~row.prompt_mask[:-1]
    return replace(row, action_mask=mask)


def _all_logits(model, micro, temperature, entropy=True):
    hidden = hidden_states(backbone_of(model), micro.ids, micro.positions)
    logprobs = (model.lm_head(hidden) / temperature).log_softmax(-1).flatten(0, 1)[micro.position - 1]
    spread = -(logprobs.exp() * logprobs).sum(-1)
    return Scores(logprob=logprobs.gather(-1, micro.target[:, None]).squeeze(-1), entropy=spread)


def _untempered(model, micro, temperature, entropy=True):
    return score(model, micro, 1.0, entropy)


def _shuffled_by_nobody(self, count, seed):
    generator = torch.Generator()
    generator.seed()
    parts = torch.tensor_split(torch.randperm(len(self.group), generator=generator), min(count, len(self.group)))
    return [torch.isin(self.row_trajectory, part).nonzero().flatten().tolist() for part in parts]


def _without_tails(patch):
    real = Batch.of.__func__
    patch.setattr(Batch, "of", classmethod(lambda cls, groups, **k: real(cls, groups, **k | {"tails": False})))


def _deaf_to_its_discount(patch):
    real = turnwise.credit.reward_to_go.reward_to_go
    patch.setattr(turnwise.credit.reward_to_go, "reward_to_go", lambda tokens, turn_gamma: real(tokens, turn_gamma=1.0))


def _rows_see_each_other(patch):
    for module in (turnwise.compute.score, turnwise.models.critic):
        patch.setattr(module, "hidden_states", lambda trunk, ids, positions=None: hidden_states(trunk, ids))
    patch.setattr(turnwise.learner.learner, "check_packing", lambda model, device, **_: None)


def _given_the_temperature_of_evaluation(patch):
    real = Trainer._make_learner

    def make_learner(self, *arguments, **settings):
        config = self.config
        rollout = config.rollout.model_copy(update={"temperature": config.evaluate.temperature})
        self.config = config.model_copy(update={"rollout": rollout})
        try:
            real(self, *arguments, **settings)
        finally:
            self.config = config

    patch.setattr(Trainer, "_make_learner", make_learner)


def _one_step_ahead(step: str) -> Callable[[pytest.MonkeyPatch], None]:
    """The rate of the next update."""

    def plant(patch):
        real = getattr(Learner, step)

        def ahead(self, *arguments):
            self.version += 1
            try:
                return real(self, *arguments)
            finally:
                self.version -= 1

        patch.setattr(Learner, step, ahead)

    return plant


def _distance_from_the_wrong_side(scores, inputs, settings):
    loss, measures = policy_objective(scores, inputs, settings)
    swapped = kl_estimate(inputs.reference_logprob, scores.logprob.detach(), "k3")
    return loss, measures | {"policy/kl_to_reference": swapped}


MUTANTS = (
    Mutant(
        name="only the last step is taught",
        seen="step rows trained with zero advantage for all but the last step",
        plant=_only_last_rows,
        check=_layouts("grpo", "search", BY_STEP),
    ),
    Mutant(
        name="a conversation cut at the cap of a turn",
        seen="a merged rollout cut at the per-turn token cap",
        plant=_rows(_cut_at_turn_cap),
        check=_layouts("rloo", "search"),
    ),
    Mutant(
        name="returns reset at tool text",
        seen="REINFORCE++ return reset at tool tokens",
        plant=_set(turnwise.credit.reinforce_pp, "reinforce_pp", _reset_at_tools),
        check=_layouts("reinforce++", "rooms", gamma=0.9),
    ),
    Mutant(
        name="the divergence of tool text is paid for",
        seen="KL of tool tokens leaking into returns",
        plant=_divergence_of_what_was_read,
        check=lambda: prove_text_changes_nothing(
            TALK, _credit("rloo"), [3, 0, 2, 1], loss=LossSettings(kl_coef=0.2, kl_in="reward")
        ),
    ),
    Mutant(
        name="loss mask inverted",
        seen="loss mask inverted",
        plant=_inverted,
        check=lambda: prove_loss_mask(TALK, "rloo", loss_settings={"entropy_coef": 0.1}),
    ),
    Mutant(
        name="loss mask forgotten",
        seen="tool text trained on",
        plant=_batch_of(lambda batch, unmasked: replace(batch, trained=unmasked.trained)),
        check=lambda: prove_loss_mask(TALK, "rloo", loss_settings={"entropy_coef": 0.1}),
    ),
    Mutant(
        name="rewards on the token after the action",
        seen="reward erased by the mask",
        plant=_rows(_reward_after_the_action),
        check=_layouts("rloo", "rooms"),
    ),
    Mutant(
        name="values bootstrap through tool text",
        seen="three trainers, three answers: .100",
        plant=_batch_of(lambda batch, unmasked: replace(batch, credited=unmasked.credited)),
        check=prove_worked_example,
    ),
    Mutant(
        name="values of tool text are zero",
        seen="three trainers, three answers: .067",
        plant=_values_of_text_are_zero,
        check=prove_worked_example,
    ),
    Mutant(
        name="one's own return in the baseline of a turn",
        seen="per-turn-index normalisation is biased when the policy controls when to stop",
        plant=_set(Peers, "leave_one_out", lambda self: self.deviation),
        check=lambda: prove(CLAIMS["reward-to-go"][0], "rooms"),
    ),
    Mutant(
        name="rows weigh alike",
        seen="a long rollout that yields many rows is over-weighted in the loss",
        plant=_rows_weigh_alike,
        check=_layouts("grpo", "notebook", loss={"aggregation": "trajectory"}),
    ),
    Mutant(
        name="rows are members of the group",
        seen="a rollout of many rows is counted several times in the group baseline",
        plant=_rows_are_trajectories,
        check=_layouts("rloo", "notebook"),
    ),
    Mutant(
        name="rows repeated until ranks have as many",
        seen="padding rows for data parallelism bias gradients",
        plant=_even_shares,
        check=_layouts("rloo", "notebook", RANKS),
    ),
    Mutant(
        name="tool text counts in the mean",
        seen="normalisation over all response tokens, tool text included",
        plant=_text_counts_in_the_mean,
        check=_layouts("grpo", "search", loss={"aggregation": "token"}),
    ),
    Mutant(
        name="old turns written anew",
        seen="re-tokenisation drift",
        plant=_rows(_written_anew),
        check=_layouts("rloo", "search"),
    ),
    Mutant(
        name="scored without the sampler's temperature",
        seen="raw logprobs while sampling is tempered",
        plant=_set(turnwise.learner.learner, "score", _untempered),
        check=_layouts("rloo", "search"),
    ),
    Mutant(
        name="a forced prefix is an action",
        seen="a forced token that was never sampled, trained on",
        plant=_rows(_forced_prefix_is_an_action),
        check=lambda: prove_loss_mask(TALK, "rloo", loss_settings={"entropy_coef": 0.1}),
    ),
    Mutant(
        name="truncation is termination",
        seen="truncation treated as termination",
        plant=_batch_of(lambda batch, _: replace(batch, truncated=torch.zeros_like(batch.truncated))),
        check=_layouts("gae", "corridor"),
    ),
    Mutant(
        name="truncation is failure",
        seen="truncation treated as failure",
        plant=_set(turnwise.learner.batch, "_trainable", lambda t: bool(t.turns) and not t.stop.truncated),
        check=_layouts("reward-to-go", "corridor"),
    ),
    Mutant(
        name="bootstrapped from before the answer was read",
        seen="truncation bootstraps from a state no value was trained on",
        plant=_without_tails,
        check=_layouts("gae", "corridor"),
    ),
    Mutant(
        name="a failure of infrastructure is scored",
        seen="infrastructure failure scored as reward 0",
        plant=_set(turnwise.learner.batch, "_trainable", lambda trajectory: bool(trajectory.turns)),
        check=prove_failures_teach_nothing,
    ),
    Mutant(
        name="logits for everything",
        seen="logits materialised for prompt and tool tokens",
        plant=_set(turnwise.learner.learner, "score", _all_logits),
        check=prove_the_head_runs_on_trained_tokens_alone,
    ),
    Mutant(
        name="mini-batches shuffled by nobody's seed",
        seen="a seed does not reproduce",
        plant=_set(Batch, "minibatches", _shuffled_by_nobody),
        check=prove_a_seed_is_an_update,
    ),
    Mutant(
        name="a discount that nobody reads",
        seen="a config key that is known but read by nobody",
        plant=_deaf_to_its_discount,
        check=lambda: prove(CLAIMS["reward-to-go"][1], "rooms"),
    ),
    Mutant(
        name="rounding of logprobs is a reward",
        seen="a KL penalty of rounding alone divided by its own std: unit advantages",
        plant=_set(turnwise.learner.loss_inputs, "kl_error", lambda *given: torch.zeros_like(given[-1])),
        check=prove_rounding_teaches_nothing,
    ),
    Mutant(
        name="the temperature of evaluation",
        seen="the learner scores samples at another temperature than they were sampled at",
        plant=_given_the_temperature_of_evaluation,
        check=prove_the_learner_has_the_samplers_temperature,
    ),
    Mutant(
        name="the critic's schedule is one step ahead",
        seen="a warm-up that begins at its second rate",
        plant=_one_step_ahead("_critic_step"),
        check=prove_schedules,
    ),
    Mutant(
        name="the policy's schedule is one step ahead",
        seen="a schedule that ends a step early",
        plant=_one_step_ahead("_policy_step"),
        check=prove_schedules,
    ),
    Mutant(
        name="the distance to the reference from the wrong side",
        seen="KL with its arguments swapped",
        plant=_set(turnwise.learner.learner, "policy_objective", _distance_from_the_wrong_side),
        check=prove_kl_to_reference,
    ),
    Mutant(
        name="packed rows see each other",
        seen="attention across the rows of a packed sequence",
        plant=_rows_see_each_other,
        check=_layouts("rloo", "search", PACKED),
    ),
)
BY_NAME = MappingProxyType({mutant.name: mutant for mutant in MUTANTS})
