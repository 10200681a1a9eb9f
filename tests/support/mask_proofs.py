"""What the masks promise, as functions that fail when a promise is broken; for trajectories of every kind.

The model is a table: the logits after a token are a row of parameters of its own. Every token of a batch has an id of
its own, so a gradient tells, exactly and token by token, whose prediction a loss has touched.
"""

import dataclasses
from itertools import pairwise
from types import SimpleNamespace

import torch
from hypothesis import strategies as st
from torch import nn

from learner_gradients import CatchingOptimizer
from turnwise.credit.estimate import CreditSettings
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.oracle import TableCritic
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

HEADER = 0
"""What every context ends with, as chat templates do: the words before an agent's turn."""


class TableModel(nn.Module):
    """A causal model that looks at one token: the logits after token i are row i."""

    def __init__(self, size):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=size, hidden_size=size)
        self.table = _Table(size)

    @property
    def logits(self):
        return self.table.rows

    def get_decoder(self):
        return self.table

    def get_output_embeddings(self):
        return nn.Identity()

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=self.table.rows[input_ids])


class _Table(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=size, hidden_size=size)
        self.rows = nn.Parameter(
            torch.randn(size, size, dtype=torch.double, generator=torch.Generator().manual_seed(1))
        )

    def forward(self, input_ids, use_cache, position_ids=None):
        return SimpleNamespace(last_hidden_state=self.rows[input_ids])


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A turn without its tokens."""

    context: int
    action: int
    reward: float
    opens: bool
    state: str | None


turns = st.builds(
    Shape,
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([-1.0, 0.0, 0.0, 0.5, 1.0]),
    st.booleans(),
    st.sampled_from(["a", "b", None]),
)
episodes = st.tuples(st.lists(turns, min_size=1, max_size=4), st.integers(0, 2))
"""Turns, and the length of a tail; without one the environment ended the episode."""
batches = st.lists(st.lists(episodes, min_size=2, max_size=3), min_size=1, max_size=2)


def write(batch, tokens):
    """Groups of these shapes, in words that `tokens` gives: `tokens.read(3)` are read and `tokens.said(2)` are said."""
    return [
        Group(task=Task(id=str(number)), trajectories=tuple(_episode(episode, tokens) for episode in group))
        for number, group in enumerate(batch)
    ]


def _episode(shape, tokens):
    moves, tail = shape
    turns = []
    for number, move in enumerate(moves):
        context, action = tokens.read(move.context), tokens.said(move.action)
        turns.append(
            Turn(
                context_ids=context,
                action_ids=action,
                logprobs=tuple(-0.5 - 0.1 * place for place in range(len(action))),
                rewards={"r": move.reward},
                opens_row=move.opens or number == 0,
                state_key="a" if number == 0 else move.state,
            )
        )
    stop = StopReason.MAX_TURNS if tail else StopReason.DONE
    return Trajectory(task=Task(id="t"), turns=tuple(turns), stop=stop, tail_ids=tokens.read(tail) if tail else ())


class OwnIds:
    """Every token of a batch is another one."""

    def __init__(self):
        self.used = 1

    def said(self, count):
        self.used += count
        return tuple(range(self.used - count, self.used))

    read = said


class Chatter(OwnIds):
    """What is said are ids of its own; what is read is `lengths` of noise, and then the header."""

    def __init__(self, lengths):
        super().__init__()
        self.lengths = lengths
        self.heard = 0

    def read(self, count):
        self.heard += 1
        return (*[HEADER] * self.lengths[self.heard % len(self.lengths)], HEADER)


def make_learner(size, credit, loss, **layout):
    learner = Learner(
        TableModel(size),
        settings=LearnerSettings(**layout),
        credit=credit,
        loss=loss,
        temperature=0.9,
        total_steps=1,
        device=torch.device("cpu"),
    )
    learner.optimizer = CatchingOptimizer(learner.model, learner.settings.optimizer, total_steps=1)
    if learner.critic is not None:
        nn.init.normal_(learner.critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(2))
    return learner


def prove_loss_mask(batch, estimator, *, loss_settings, action_mask=True, **layout):
    """Fails unless a loss reaches the logits that predict what the mask lets through, all of them and no other."""
    ids = OwnIds()
    groups = write(batch, ids)
    settings = LossSettings(action_mask=action_mask, **loss_settings)
    learner = make_learner(ids.used, CreditSettings(estimator=estimator, whiten=False), settings, **layout)
    learner.update(groups, seed=0)
    touched = learner.optimizer.caught.view(ids.used, ids.used).abs().amax(-1) > 0
    expected = torch.zeros(ids.used, dtype=torch.bool)
    for trajectory in (t for group in groups for t in group.trajectories):
        for before, sampled, prompt in walk(trajectory):
            expected[before] = sampled or (not action_mask and not prompt)
    assert touched.tolist() == expected.tolist()


def walk(trajectory):
    """Token after token: the one before it, whether the agent said it, and whether it is of a prompt."""
    row = []
    for turn in trajectory.turns:
        row = [] if turn.opens_row else row[-1:]
        row += [(token, False, turn.opens_row) for token in turn.context_ids]
        row += [(token, True, False) for token in turn.action_ids]
        for (before, _, _), (_, sampled, prompt) in pairwise(row):
            yield before, sampled, prompt


def prove_text_changes_nothing(batch, credit, lengths, *, loss=None):
    """Fails unless advantages are the same, bit for bit, whatever the agent was given to read between its turns."""
    found = []
    for some in ([0], lengths):
        ids = Chatter(some)
        groups = write(batch, ids)
        learner = make_learner(ids.used, credit, loss or LossSettings())
        if learner.reference is not None:
            for kept in learner.reference.state_dict().values():
                kept += 0.3 * torch.randn(kept.shape, dtype=kept.dtype, generator=torch.Generator().manual_seed(4))
        found.append(learner.update(groups, seed=0).advantages)
    assert found[0] == found[1]


def worked_example(advantage_mask):
    """[act, obs, obs, act that earns 1] with γ = λ = .9 and values .5, .2, .2, .6: the first action's advantage."""
    first = Turn(context_ids=(1,), action_ids=(2,), logprobs=(-1.0,), opens_row=True)
    second = Turn(context_ids=(3, 4), action_ids=(5,), logprobs=(-1.0,), rewards={"r": 1.0})
    episode = Trajectory(task=Task(id="t"), turns=(first, second), stop=StopReason.DONE)
    credit = CreditSettings(estimator="gae", gamma=0.9, lam=0.9, whiten=False, advantage_mask=advantage_mask)
    learner = make_learner(6, credit, LossSettings())
    learner.critic = TableCritic({(1,): 0.5, (1, 2): 0.2, (1, 2, 3): 0.2, (1, 2, 3, 4): 0.6})
    update = learner.update([Group(task=Task(id="t"), trajectories=(episode,))], seed=0)
    return update.advantages[0][0][0]


def prove_worked_example():
    assert abs(worked_example(True) - 0.364) < 1e-6
    assert abs(worked_example(False) - 0.100) < 1e-3
