"""The reference in the policy's place, and a device that is full at any moment of it."""

import pytest
import torch
from torch import nn

from turnwise.models.reference import Reference


def make_policy():
    """Weights of 1 as the reference, and of 7 since; of two dtypes."""
    policy = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5).bfloat16())
    with torch.no_grad():
        for weight in policy.parameters():
            weight.fill_(1)
        reference = Reference(policy)
        for weight in policy.parameters():
            weight.fill_(7)
    return policy, reference


def values(policy):
    return {float(value) for weight in policy.parameters() for value in weight.detach().flatten()}


def test_both_change_places_and_change_back():
    policy, reference = make_policy()
    with reference.in_place():
        assert values(policy) == {1}
        assert {float(value) for kept in reference.state_dict().values() for value in kept.flatten()} == {7}
    assert values(policy) == {7}


def test_memory_that_runs_out_mixes_no_weights(monkeypatch):
    policy, reference = make_policy()

    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        for name in ("empty", "empty_like", "clone"):
            patch.setattr(torch, name, full)
        patch.setattr(torch.Tensor, "clone", full)
        with pytest.raises(torch.OutOfMemoryError), reference.in_place():
            pass
    assert values(policy) == {7}
    with reference.in_place(), monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        patch.setattr(torch.Tensor, "clone", full)
        # The way back needs no memory: here the device is full, and stays so.
        assert values(policy) == {1}
    assert values(policy) == {7}
