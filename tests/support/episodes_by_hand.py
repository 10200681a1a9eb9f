"""Trajectories written token by token, and models small enough to check by hand."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.types import Group, StopReason, Task, Trajectory, Turn

VOCABULARY = 17


def turn(context, action, *, reward=0.0, logprobs=None, opens=False, version=0, key=None):
    return Turn(
        context_ids=tuple(context),
        action_ids=tuple(action),
        logprobs=tuple(logprobs or [-1.0] * len(action)),
        rewards={"outcome": reward} if reward else {},
        opens_row=opens,
        version=version,
        state_key=key,
    )


def episode(*turns, stop=StopReason.DONE, tail=()):
    return Trajectory(task=Task(id="t"), turns=turns, stop=stop, tail_ids=tail)


def group(*trajectories):
    return Group(task=Task(id="t"), trajectories=trajectories)


def tiny_llama(seed=0, dtype=torch.float64, **overrides):
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | overrides))).to(dtype).eval()


def with_exact_logprobs(model, groups, temperature=1.0):
    """The same groups as if `model` had sampled them: logprobs from its own full, unpadded logits."""
    return [group(*(_exact(model, t, temperature) for t in g.trajectories)) for g in groups]


def _exact(model, trajectory, temperature):
    turns, ids = [], []
    for move in trajectory.turns:
        ids = [*([] if move.opens_row else ids), *move.context_ids, *move.action_ids]
        with torch.no_grad():
            logprobs = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
        first = len(ids) - len(move.action_ids)
        said = tuple(float(logprobs[t - 1, ids[t]]) for t in range(first, len(ids)))
        turns.append(
            Turn(
                context_ids=move.context_ids,
                action_ids=move.action_ids,
                logprobs=said,
                rewards=move.rewards,
                opens_row=move.opens_row,
            )
        )
    return Trajectory(task=trajectory.task, turns=tuple(turns), stop=trajectory.stop)


class LogitTable(nn.Module):
    """A 'model' whose logits are its parameters, so that a gradient with respect to logits can be read off."""

    def __init__(self, rows, width, vocabulary=VOCABULARY):
        super().__init__()
        torch.manual_seed(1)
        self.logits = nn.Parameter(torch.randn(rows, width, vocabulary, dtype=torch.double))
        self.config = LlamaConfig(vocab_size=vocabulary)
        self.trunk = _Table(self)

    def get_decoder(self):
        return self.trunk

    def get_output_embeddings(self):
        return nn.Identity()


class _Table(nn.Module):
    def __init__(self, owner):
        super().__init__()
        self._owner = [owner]

    def forward(self, input_ids, use_cache):
        states = self._owner[0].logits[: input_ids.shape[0], : input_ids.shape[1]]
        return type("Output", (), {"last_hidden_state": states})
