"""The gradient that the real learner lays down, in every layout a batch can take, and the same one written out by hand.

Both point uphill: they are minus the gradient of the loss.
"""

import copy
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from claims import assert_same
from credit_reference import credit_by_hand
from turnwise.credit.estimate import CreditSettings
from turnwise.learner.learner import Learner
from turnwise.learner.optimizer import Optimizer
from turnwise.learner.parallel import SINGLE, DataParallel
from turnwise.learner.parallel.data_parallel import _pack, _Unpickler
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.oracle import TEMPERATURE, WORLDS, TableCritic, consult, wrong_values
from turnwise.types import Group, StopReason, Task, Trajectory

PLAIN = LossSettings(aggregation="fixed", fixed_length=1)
"""The policy gradient as it is: a mean over trajectories of sums over tokens."""


class CatchingOptimizer(Optimizer):
    """Keeps the gradient it is given, and steps nowhere."""

    caught: torch.Tensor | None = None

    def launch(self, step):
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        self.caught = torch.cat([gradient.flatten() for gradient in found])
        self._adam.zero_grad(set_to_none=True)
        return self.caught.norm()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the threads that play ranks exchange what they have."""

    barrier: threading.Barrier
    brought: list[object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRanks(DataParallel):
    """Ranks that are threads of one process: everything but torch.distributed itself is the real thing."""

    meeting: Meeting

    def gather(self, note):
        self.meeting.brought[self.rank] = note
        self.meeting.barrier.wait(60)
        notes = list(self.meeting.brought)
        self.meeting.barrier.wait(60)
        return notes

    def sum_(self, tensor):
        return tensor.copy_(sum(self.gather(tensor.clone())))

    def barrier(self):
        self.meeting.barrier.wait(60)

    def broadcast(self, value):
        packed, tensors = self.gather(_pack(value))[0]
        return _Unpickler(packed, [tensor.clone() for tensor in tensors]).load()

    def prepare(self, module):
        for tensor, from_rank_0 in zip(
            module.state_dict().values(), self.gather(module.state_dict())[0].values(), strict=True
        ):
            tensor.copy_(from_rank_0)
        return module

    def sum_gradients(self, parameters):
        for parameter in parameters:
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.sum_(mine.clone())


def in_two_ranks(work):
    """What `work(parallel)` gives on each of two ranks."""
    meeting = Meeting(barrier=threading.Barrier(2), brought=[None, None])

    def run(rank):
        try:
            return work(ThreadRanks(rank=rank, world=2, meeting=meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(run, rank) for rank in range(2)]
        broken = [error for error in (result.exception() for result in results) if error is not None]
        if broken:
            # The rank that waited in vain only says so; the other one knows why.
            raise min(broken, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [result.result() for result in results]


def one_row_per_step(trajectory: Trajectory) -> Trajectory:
    """The same episode as if every turn had been given the whole conversation anew."""
    turns, row = [], ()
    for turn in trajectory.turns:
        row = (*(() if turn.opens_row else row), *turn.context_ids)
        turns.append(dataclasses.replace(turn, context_ids=row, opens_row=True))
        row = (*row, *turn.action_ids)
    return dataclasses.replace(trajectory, turns=tuple(turns))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    tokens: int = 10_000
    packing: bool = False
    steps: bool = False
    ranks: int = 1
    minibatches: int = 1
    """More than one and the gradient is that of the last."""


LAYOUTS = {
    "merged rows, padded": Layout(),
    "one row per step": Layout(steps=True),
    "packed": Layout(packing=True),
    "micro-batches": Layout(tokens=25),
    "packed micro-batches, one row per step": Layout(tokens=25, packing=True, steps=True),
    "two ranks": Layout(ranks=2),
    "two ranks, packed, one row per step": Layout(ranks=2, packing=True, steps=True),
}
MERGED = {"merged rows, padded": Layout()}


def learner_gradient(model, groups, credit, layout, *, loss=PLAIN, values=None, temperature=TEMPERATURE):
    """[P] of one update by the learner itself; `values` takes the place of the critic's words.

    With a critic, one more number: the gradient of its loss as if all its words had a common offset.
    """
    groups = [
        Group(task=Task(id=str(g)), trajectories=tuple(map(one_row_per_step, group) if layout.steps else group))
        for g, group in enumerate(groups)
    ]

    def work(parallel):
        learner = Learner(
            model if parallel.world == 1 else copy.deepcopy(model),
            settings=LearnerSettings(
                tokens_per_microbatch=layout.tokens, packing=layout.packing, minibatches=layout.minibatches
            ),
            credit=credit,
            loss=loss,
            temperature=temperature,
            total_steps=1,
            device=torch.device("cpu"),
            parallel=parallel,
        )
        learner.optimizer = CatchingOptimizer(learner.model, learner.settings.optimizer, total_steps=1)
        if values is not None:
            learner.critic = TableCritic(values)
            learner.critic_optimizer = CatchingOptimizer(
                learner.critic, learner.settings.critic.optimizer, total_steps=1
            )
        learner.update(groups, seed=3)
        optimizers = [learner.optimizer, *([] if values is None else [learner.critic_optimizer])]
        return torch.cat([-optimizer.caught for optimizer in optimizers])

    found = in_two_ranks(work) if layout.ranks == 2 else [work(SINGLE)]
    assert all(torch.equal(found[0], other) for other in found), "every rank has the same bits"
    return found[0]


def gradient_by_hand(oracle, members, credit, *, values=None, aggregation="fixed"):
    """What `learner_gradient` should be, of one batch of members, lists of numbers of episodes.

    Σ weight · advantage · ∇log π over action tokens; and for the critic Σ weight · (target − value) over the tokens
    whose value is read, which is the sum of advantages before any whitening.
    """
    groups = [[oracle.trajectories[member] for member in group] for group in members]
    flat = [member for group in members for member in group]
    judged = credit_by_hand(groups, credit, values)
    weight = weights_by_hand([len(advantages) for advantages in judged], aggregation)
    pushed = torch.zeros(len(oracle.jacobian), dtype=torch.double)
    for member, advantages, each in zip(flat, judged, weight, strict=True):
        pushed.index_add_(0, oracle.choice[member], torch.tensor(advantages, dtype=torch.double) * each)
    gradient = pushed @ oracle.jacobian
    if values is None:
        return gradient
    errors = credit_by_hand(groups, credit.model_copy(update={"whiten": False}), values)
    if credit.estimator == "turn-gae":
        errors = [_of_first_tokens(oracle.trajectories[m], one) for m, one in zip(flat, errors, strict=True)]
    weight = weights_by_hand([len(one) for one in errors], aggregation)
    offset = sum(each * sum(one) for each, one in zip(weight, errors, strict=True))
    return torch.cat([gradient, torch.tensor([offset], dtype=torch.double)])


def weights_by_hand(lengths, aggregation):
    """What a token of each trajectory weighs; `fixed` is to a length of 1."""
    forms = {
        "token": lambda length: 1 / sum(lengths),
        "trajectory": lambda length: 1 / (len(lengths) * length),
        "fixed": lambda length: 1 / len(lengths),
    }
    return [forms[aggregation](length) for length in lengths]


def _of_first_tokens(trajectory, per_token):
    first = [place == 0 for turn in trajectory.turns for place in range(len(turn.action_ids))]
    return [x for x, is_first in zip(per_token, first, strict=True) if is_first]


def draw(oracle, *sizes, seed=0):
    """Groups of these sizes, every episode as likely as any other, so that rare ones are met too."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(len(oracle.trajectories), (size,), generator=generator).tolist() for size in sizes]


def prove_layouts(credit, world, layouts=LAYOUTS, loss=PLAIN, *, seed=0, tolerance=1e-6):
    """Fails unless the learner's gradient is the formula's in all of these layouts, for a batch of uneven groups."""
    oracle = consult(WORLDS[world])
    values = wrong_values(oracle) if credit.needs_critic else None
    members = draw(oracle, 3, 2, 4, seed=seed)
    groups = [[oracle.trajectories[member] for member in group] for group in members]
    expected = gradient_by_hand(oracle, members, credit, values=values, aggregation=loss.aggregation)
    for name, layout in layouts.items():
        found = learner_gradient(oracle.policy, groups, credit, layout, loss=loss, values=values)
        assert_same(found, expected, f"{credit.estimator}, {world}, {name}", tolerance)


def prove_failures_teach_nothing(world="search"):
    """Fails unless an episode whose infrastructure broke leaves the gradient as if it had never been played."""
    oracle = consult(WORLDS[world])
    credit = CreditSettings(estimator="rloo")
    members = draw(oracle, 3, 3)
    groups = [[oracle.trajectories[member] for member in group] for group in members]
    broken = dataclasses.replace(groups[0][0], stop=StopReason.ENV_FAILED)
    found = learner_gradient(oracle.policy, [[*groups[0], broken], groups[1]], credit, Layout())
    assert_same(found, gradient_by_hand(oracle, members, credit), "beside a failure", 1e-6)


def prove_rounding_teaches_nothing(estimator="grpo", world="search"):
    """Fails unless a world that pays nothing, played by the reference itself, has a gradient of exactly zero.

    All that the KL penalty in the reward holds is the rounding of the sampler's logprobs, in float32.
    """
    oracle = consult(WORLDS[world])
    noise = torch.Generator().manual_seed(0)

    def unpaid(turn):
        off = 8 * torch.finfo(torch.float32).eps * torch.randn(len(turn.logprobs), generator=noise)
        logprobs = tuple(p + max(1.0, -p) * e for p, e in zip(turn.logprobs, off.tolist(), strict=True))
        return dataclasses.replace(turn, rewards={}, logprobs=logprobs)

    groups = [
        [
            dataclasses.replace(played, turns=tuple(map(unpaid, played.turns)))
            for played in (oracle.trajectories[member] for member in group)
        ]
        for group in draw(oracle, 4, 4)
    ]
    credit = CreditSettings(estimator=estimator)
    values = dict.fromkeys(oracle.values, 0.0) if credit.needs_critic else None
    loss = LossSettings(kl_coef=1e-3, kl_in="reward")
    for name, layout in LAYOUTS.items():
        found = learner_gradient(oracle.policy, groups, credit, layout, loss=loss, values=values)
        policy = found if values is None else found[:-1]
        assert not policy.any(), f"{estimator}, {world}, {name}: a gradient of norm {float(policy.norm()):.3g} of noise"


def prove_the_head_runs_on_trained_tokens_alone(world="search"):
    """Fails when logits are computed for more states than those that predict what is trained."""
    oracle = consult(WORLDS[world])
    groups = [[oracle.trajectories[member] for member in group] for group in draw(oracle, 4, 4)]
    states = []
    hook = oracle.policy.lm_head.register_forward_hook(
        lambda _, inputs, __: states.append(inputs[0].shape[:-1].numel())
    )
    try:
        learner_gradient(oracle.policy, groups, CreditSettings(estimator="rloo"), Layout())
    finally:
        hook.remove()
    actions = sum(trajectory.action_tokens for group in groups for trajectory in group)
    assert states[-1] == actions, f"{states[-1]} states for {actions} tokens"


def prove_a_seed_is_an_update(world="search"):
    """Fails unless the same update with the same seed comes out the same, mini-batches and all."""
    oracle = consult(WORLDS[world])
    groups = [[oracle.trajectories[member] for member in group] for group in draw(oracle, 4, 4, 4)]
    layout = Layout(minibatches=3)
    found = [learner_gradient(oracle.policy, groups, CreditSettings(estimator="rloo"), layout) for _ in range(3)]
    assert all(torch.equal(found[0], other) for other in found[1:]), "the last mini-batch's gradient differs"
