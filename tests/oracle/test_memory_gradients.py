"""Episodes with a memory, played by the rollout: the learner's gradient is the one written out row by row in float64.

Every sampled token trains in the row it was sampled in, those of summaries as well, with the advantage of its episode.
"""

import pytest
import torch

from byte_render import Scripted, Watched, play, says
from claims import assert_same
from credit_reference import credit_by_hand
from episodes_by_hand import tiny_llama, with_exact_logprobs
from learner_gradients import LAYOUTS, PLAIN, learner_gradient
from turnwise.credit.settings import CreditSettings
from turnwise.envs.memory import CompactionSettings
from turnwise.losses.settings import LossSettings
from turnwise.types import Group, Step, Task

MEMORIES = {
    "oldest": CompactionSettings(kind="oldest", at=0.2, to=0.1),
    "summary": CompactionSettings(kind="summary", at=0.2, prompt="sum", summary_tokens=6),
    "summary, latest turn kept": CompactionSettings(kind="summary", at=0.2, keep_turns=1, prompt="sum"),
}


def episodes(memory):
    """Two groups of episodes that differ in length, reward, words and number of rows."""
    played = []
    for reward, replies in [(1.0, "ab"), (0.0, "ccd"), (0.3, "xyz"), (-0.5, "q")]:
        steps = [says(letter, rewards={"way": 0.1 * reward}) for letter in "pqrs"[: len(replies) + 1]]
        env = Scripted(*steps, Step(done=True, rewards={"end": reward}))
        words = [letter * (1 + place % 3) for place, letter in enumerate(replies * 3)]
        played.append(play(Watched(*words), env, context_tokens=64, max_turns=12, compaction=memory))
    return [played[:2], played[2:]]


def gradient_row_by_row(model, groups, credit, aggregation):
    """Σ weight · advantage · ∇ log π(token), each row by itself, unpadded, in float64."""
    judged = credit_by_hand(groups, credit)
    flat = [trajectory for group in groups for trajectory in group]
    tokens = sum(len(advantages) for advantages in judged)
    total = torch.zeros((), dtype=torch.double)
    for trajectory, advantages in zip(flat, judged, strict=True):
        left = list(advantages)
        for row in trajectory.rows(tail=False):
            logprobs = model(torch.from_numpy(row.ids)[None]).logits[0].log_softmax(-1)
            for place in row.action_mask.nonzero()[0]:
                weight = 1 / tokens if aggregation == "token" else 1 / len(flat)
                total = total + weight * left.pop(0) * logprobs[place - 1, row.ids[place]]
        assert not left, "every sampled token is in one row"
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(total, list(model.parameters()))])


@pytest.mark.parametrize("aggregation", ["token", "fixed"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_learners_gradient_is_that_of_every_row(memory, aggregation):
    model = tiny_llama(vocab_size=260, max_position_embeddings=128)
    played = [Group(task=Task(id="t"), trajectories=tuple(group)) for group in episodes(MEMORIES[memory])]
    groups = [group.trajectories for group in with_exact_logprobs(model, played)]
    assert max(len(t.rows()) for group in groups for t in group) >= 3
    loss = PLAIN if aggregation == "fixed" else LossSettings(aggregation=aggregation)
    for credit in (CreditSettings(estimator="rloo"), CreditSettings(estimator="grpo")):
        expected = gradient_row_by_row(model, groups, credit, aggregation)
        assert expected.norm() > 1e-3
        for name, layout in LAYOUTS.items():
            if layout.steps or layout.ranks > 1:
                continue  # what these split is the same for any rows, and proved in test_layouts
            found = learner_gradient(model, groups, credit, layout, loss=loss, temperature=1.0)
            assert_same(found, expected, f"{memory}, {credit.estimator}, {name}", 1e-6)


def test_a_summary_has_the_advantage_of_its_episode():
    credit = CreditSettings(estimator="rloo")
    (first, second), _ = groups = episodes(MEMORIES["summary"])
    judged = credit_by_hand(groups, credit)
    asked = [any("".join(map(chr, turn.context_ids[-4:-1])) == "sum" for turn in t.turns) for t in (first, second)]
    assert asked == [True, True]
    for trajectory, other, advantages in ((first, second, judged[0]), (second, first, judged[1])):
        assert len(advantages) == sum(len(turn.action_ids) for turn in trajectory.turns)
        assert advantages == pytest.approx([trajectory.reward - other.reward] * len(advantages))


def test_the_gradient_of_summaries_alone_is_not_zero():
    """A learner that left summaries out would be caught: their part of the gradient is as large as the others'."""
    model = tiny_llama(vocab_size=260, max_position_embeddings=128)
    (trajectory, _), _ = episodes(MEMORIES["summary"])
    total = torch.zeros((), dtype=torch.double)
    for row in trajectory.rows(tail=False):
        logprobs = model(torch.from_numpy(row.ids)[None]).logits[0].log_softmax(-1)
        for place in row.action_mask.nonzero()[0]:
            turn = trajectory.turns[row.turn_index[place]]
            if "".join(map(chr, turn.context_ids[-4:-1])) == "sum":
                total = total + logprobs[place - 1, row.ids[place]]
    total.backward()
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() > 0.1
