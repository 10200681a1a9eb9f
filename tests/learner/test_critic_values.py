"""The critic: nothing promised at first, a backbone of its own, and values that no layout changes."""

import torch

from episodes_by_hand import episode, group, tiny_llama, turn
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.models.critic import Critic


def test_it_begins_at_zero_and_learns_without_moving_the_policy():
    policy = tiny_llama()
    before = [p.clone() for p in policy.parameters()]
    critic = Critic(policy)
    ids = torch.tensor([[1, 2, 3]])
    assert critic(ids).tolist() == [[0.0, 0.0, 0.0]]
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        (critic(ids) - 1).square().sum().backward()
        optimizer.step()
    assert (critic(ids) - 1).abs().max() < 0.3
    assert not torch.equal(critic.backbone.layers[0].mlp.up_proj.weight, policy.model.layers[0].mlp.up_proj.weight)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_values_after_each_token_do_not_depend_on_the_layout():
    critic = Critic(tiny_llama())
    torch.nn.init.normal_(critic.head.weight)
    batch = Batch.of([group(episode(turn([1, 2, 3], [4], opens=True)), episode(turn([5], [6], opens=True)))])
    common = {"device": torch.device("cpu"), "autocast": None, "temperature": 1.0}
    together = ForwardRunner(**common, token_budget=100).state_values(critic, batch)
    with torch.no_grad():
        alone = torch.cat([critic(torch.tensor([[1, 2, 3, 4]]))[0], critic(torch.tensor([[5, 6]]))[0]])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-6)
    packed = ForwardRunner(**common, token_budget=100, packing=True).state_values(critic, batch)
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=1e-6)
