"""Transfers to the host: what was computed then, and no waiting for what was launched since."""

import pytest
import torch

from turnwise.compute.device import Arriving


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_arrives_is_what_the_tensor_was(device):
    tensor = torch.arange(3, device=device)
    arriving = Arriving(tensor)
    tensor += 5
    assert arriving.wait().tolist() == [0, 1, 2]
    assert Arriving(torch.tensor(2.5, device=device)).wait().item() == 2.5


@pytest.mark.gpu
def test_the_host_waits_for_a_tensor_and_not_for_what_was_launched_since():
    arriving = Arriving(torch.ones(3, device="cuda") * 2)
    later = torch.cuda.Event()
    torch.cuda._sleep(1_000_000_000)  # cycles: more than half a second
    later.record()
    assert arriving.wait().tolist() == [2, 2, 2]
    assert not later.query()
    torch.cuda.synchronize()
