"""One update under many layouts: what is trained in each case, and the gradients it lays down."""

import dataclasses
import itertools

import torch

from episodes_by_hand import episode, group, tiny_llama, turn
from turnwise.credit.estimate import CreditSettings
from turnwise.learner.learner import Learner
from turnwise.learner.optimizer import OptimizerSettings
from turnwise.learner.parallel import SINGLE
from turnwise.learner.settings import CriticSettings, LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.types import StopReason

GROUPS = [
    group(
        episode(turn([1, 2], [3, 4], opens=True, key="a"), turn([5, 6], [7], reward=1.0, key="b")),
        episode(
            turn([1, 2], [9], opens=True, key="a", reward=0.25), turn([3], [4, 4], key="c"), turn([5], [2], key="b")
        ),
        episode(turn([1, 2], [8, 8, 8, 8], opens=True, key="a"), stop=StopReason.MAX_TURNS, tail=(6, 11, 12)),
    ),
    group(
        episode(turn([4], [2, 3], opens=True, reward=0.5), turn([9, 8], [7], opens=True, reward=1.0)),
        episode(turn([4], [6, 6], opens=True), turn([1, 1, 1], [2, 2]), stop=StopReason.TIMEOUT),
        episode(
            turn([4], [5], opens=True),
            turn([10, 11, 12, 13], [2, 9, 2], reward=-0.5),
            stop=StopReason.TOKEN_BUDGET,
            tail=(1, 3),
        ),
    ),
]
"""Uneven turns, rewards on the way, a rewrite, and three ways to be cut off."""

ALIKE = [
    group(
        episode(turn([1, 2, 3], [3, 4], opens=True), turn([5, 6], [7, 1], reward=1.0)),
        episode(turn([1, 2, 3], [9, 9], opens=True, reward=1.0), turn([8, 8], [2, 2], opens=True)),
    ),
    group(episode(turn([7], [1, 2, 3], opens=True)), episode(turn([7], [4], opens=True))),
]
"""Groups whose members are paid alike, one of them with two rows."""
MIXED = [ALIKE[0], GROUPS[0], ALIKE[1], GROUPS[1]]
"""Groups that teach nothing among groups that do."""

CASES = {
    "grpo": {"credit": {"estimator": "grpo"}, "loss": {"entropy_coef": 0.05, "kl_coef": 0.1}},
    "grpo by trajectory": {"credit": {"estimator": "grpo"}, "loss": {"aggregation": "trajectory"}},
    "dr-grpo": {"credit": {"estimator": "dr-grpo"}, "loss": {"aggregation": "fixed", "fixed_length": 9}},
    "gigpo": {"credit": {"estimator": "gigpo"}, "loss": {"form": "cispo"}},
    "gae": {
        "credit": {"estimator": "gae", "gamma": 0.9, "lam": 0.8},
        "loss": {"kl_coef": 0.1, "kl_in": "reward", "value_clip": 0.2},
    },
    "turn-gae": {"credit": {"estimator": "turn-gae"}, "loss": {"aggregation": "trajectory"}},
    "bilevel-gae": {"credit": {"estimator": "bilevel-gae"}, "loss": {"tis_cap": 2.0}},
    "gspo by turn": {"credit": {"estimator": "rloo"}, "loss": {"form": "gspo", "ratio": "turn"}},
    "gspo by trajectory": {"credit": {"estimator": "reward-to-go"}, "loss": {"form": "gspo", "ratio": "trajectory"}},
}
MASKS_OFF = {
    "credit": {"estimator": "gae", "advantage_mask": False, "gamma": 0.9},
    "loss": {"action_mask": False, "kl_coef": 0.1},
}


def one_row_per_step(groups):
    """The same episodes as if every turn had rewritten the conversation, into what it was anyway."""
    return [group(*(_in_steps(trajectory) for trajectory in one.trajectories)) for one in groups]


def _in_steps(trajectory):
    turns, conversation = [], ()
    for move in trajectory.turns:
        conversation = move.context_ids if move.opens_row else conversation + move.context_ids
        turns.append(dataclasses.replace(move, context_ids=conversation, opens_row=True))
        conversation += move.action_ids
    return dataclasses.replace(trajectory, turns=tuple(turns))


def learner_of(
    case,
    *,
    budget=1000,
    packing=False,
    parallel=SINGLE,
    minibatches=1,
    model=None,
    compile=False,
    checkpointing=False,
    activation_offload=False,
    dropout=False,
    skip_zero_rows=None,
    epochs=1,
    total_steps=1,
    **settings,
):
    """A learner in float64 that clips its gradients, with a critic that has opinions."""
    optimizer = OptimizerSettings(lr=0.01, max_grad_norm=0.05)
    learner = Learner(
        tiny_llama() if model is None else model,
        settings=LearnerSettings(
            tokens_per_microbatch=budget,
            packing=packing,
            compile=compile,
            checkpointing=checkpointing,
            activation_offload=activation_offload,
            dropout=dropout,
            skip_zero_rows=skip_zero_rows,
            epochs=epochs,
            minibatches=minibatches,
            optimizer=optimizer,
            critic=CriticSettings(optimizer=optimizer),
        ),
        credit=CreditSettings(**case["credit"]),
        loss=LossSettings(**case["loss"]),
        temperature=0.9,
        total_steps=total_steps,
        device=torch.device("cpu"),
        parallel=parallel,
        **settings,
    )
    if learner.critic is not None:
        with torch.no_grad():
            opinions = torch.linspace(-0.5, 0.5, 16)[None].double()
            learner.critic.head.weight.copy_(parallel.place(opinions, like=learner.critic.head.weight))
    return learner


def update_of(learner, groups=GROUPS):
    """The clipped gradients of every optimizer step, by name, and what the update said of itself."""
    caught, steps = {}, itertools.count()

    def catch(module, area):
        number = next(steps)
        caught.update(
            {
                f"{number} {area} {name}": learner.parallel.whole(p.grad).clone()
                for name, p in module.named_parameters()
                if p.grad is not None
            }
        )

    pairs = [(learner.optimizer, learner.model, "policy"), (learner.critic_optimizer, learner.critic, "critic")]
    for optimizer, module, area in (pair for pair in pairs if pair[0] is not None):
        optimizer._adam.register_step_pre_hook(lambda *_, module=module, area=area: catch(module, area))
    update = learner.update(groups, seed=0)
    return caught, update


def assert_same_gradients(found, expected, tolerance=1e-9):
    assert found.keys() == expected.keys()
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3, "there is something to compare"
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, atol=tolerance, rtol=0, msg=lambda said, name=name: f"{name}: {said}"
        )
