"""A state as shards keep it: tensors by their paths, all else described, and the way back."""

import torch

from turnwise.learner.parallel import SINGLE
from turnwise.learner.saved_state import describe, named_tensors, read_state

STEP, WEIGHT = torch.tensor(2.0, dtype=torch.double), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
STATE = {"version": 3, "adam": {"state": {0: {"step": STEP}}}, "masters": [WEIGHT, "word"]}


def test_tensors_are_named_by_their_paths():
    found = named_tensors(STATE)
    assert list(found) == ["adam/state/0/step", "masters/0"]
    assert (found["adam/state/0/step"] is STEP, found["masters/0"] is WEIGHT) == (True, True)


def test_a_description_has_the_shapes_of_tensors_and_all_else_as_it_is():
    described = describe(STATE)
    step, (weight, word) = described["adam"]["state"][0]["step"], described["masters"]
    assert (described["version"], word) == (3, "word")
    assert (step.is_meta, step.shape, step.dtype) == (True, (), torch.double)
    assert (weight.is_meta, weight.shape, weight.dtype) == (True, (2, 2), torch.bfloat16)


def test_a_state_comes_back_from_its_description_and_its_shards(tmp_path):
    SINGLE.write_shards(tmp_path, named_tensors(STATE))
    found = read_state(describe(STATE), tmp_path, SINGLE)
    step, (weight, word) = found["adam"]["state"][0]["step"], found["masters"]
    assert (found["version"], word) == (3, "word")
    assert torch.equal(step, STEP)
    assert torch.equal(weight, WEIGHT)
