"""The planted circuit: what came after a token once is expected after it again, before any training."""

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from turnwise.errors import ModelError
from turnwise.models.loading import load_weights, save_model
from turnwise.models.small import SmallSettings, build_small, train_tokenizer

SHAPE = SmallSettings(layers=2, width=64, heads=2, positions=128, vocabulary=270)
TOKENIZER = train_tokenizer(["ab"], SHAPE)
LENGTH = 24


def build(shape=SHAPE, *, planted=True, seed=0):
    return build_small(shape.model_copy(update={"induction": planted}), TOKENIZER, seed=seed).eval()


def losses_of_two_copies(model):
    """Random tokens, then the same once more: the mean loss of the first copy and of the second."""
    generator = torch.Generator().manual_seed(1)
    copy = torch.randint(0, len(TOKENIZER), (16, LENGTH), generator=generator)
    ids = torch.cat([copy, copy], 1)  # [B, 2 × LENGTH]
    with torch.no_grad():
        logprob = model(ids).logits.log_softmax(-1)  # [B, 2 × LENGTH, V]
    loss = -logprob[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)  # [B, 2 × LENGTH − 1]
    return float(loss[:, : LENGTH - 1].mean()), float(loss[:, LENGTH:].mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_second_copy_is_expected(seed):
    first, second = losses_of_two_copies(build(seed=seed))
    plain_first, plain_second = losses_of_two_copies(build(planted=False, seed=seed))
    assert second < first - 0.5
    assert second < plain_second - 0.5
    assert abs(plain_first - plain_second) < 0.1, "without the circuit, a repetition means nothing"
    assert abs(first - plain_first) < 0.1, "and what is new is no harder with it"


@pytest.mark.parametrize("shape", [{"width": 128, "heads": 4}, {"width": 128, "heads": 4, "layers": 4}, {"heads": 3}])
def test_other_shapes_hold_it_too(shape):
    settings = SmallSettings(**({"layers": 2, "width": 48, "positions": 128, "vocabulary": 270} | shape))
    first, second = losses_of_two_copies(build(settings))
    assert second < first - 0.05


def test_it_looks_one_token_back():
    model = build()
    model.set_attn_implementation("eager")
    ids = torch.randint(0, len(TOKENIZER), (4, 64), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        attention = model(ids, output_attentions=True).attentions[0]  # [B, heads, 64, 64]
    before = attention[:, :, range(1, 64), range(63)].mean((0, 2))  # [heads]
    assert before[0] > 0.9, "half of the heads do"
    assert before[1] < 0.1, "and the rest are left to training"


def test_as_many_heads_hold_it_as_are_asked_for():
    shape = SmallSettings(layers=2, width=128, heads=4, positions=128, vocabulary=270, induction_heads=2)
    model = build(shape)
    model.set_attn_implementation("eager")
    ids = torch.randint(0, len(TOKENIZER), (4, 64), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        attention = model(ids, output_attentions=True).attentions[0]  # [B, heads, 64, 64]
    before = attention[:, :, range(1, 64), range(63)].mean((0, 2))  # [heads]
    assert (before > 0.9).tolist() == [True, True, False, False]
    with pytest.raises(ValidationError, match="induction_heads: 3 is more than half of 4 heads"):
        SmallSettings(heads=4, induction_heads=3)


def test_it_is_fixed_by_the_seed():
    one, same, other = build(seed=0), build(seed=0), build(seed=1)
    weights = dict(same.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in one.named_parameters())
    name = "model.layers.1.self_attn.o_proj.weight"
    assert not torch.equal(weights[name], other.get_parameter(name))


@pytest.mark.parametrize("shape", [{"layers": 1}, {"heads": 1}, {"heads": 4, "kv_heads": 2}])
def test_shapes_without_room_for_it_are_refused_unless_it_is_off(shape):
    with pytest.raises(ValidationError, match="induction needs 2 layers, 2 heads and kv_heads null"):
        SmallSettings(**shape)
    assert not SmallSettings(**shape, induction=False).induction


def test_heads_too_narrow_for_it_are_refused():
    narrow = SmallSettings(layers=2, width=8, heads=4, vocabulary=270)
    with pytest.raises(ModelError, match=r"^model\.small: heads of size 2 [^\n]*set induction: false$"):
        build_small(narrow, TOKENIZER, seed=0)


def test_it_is_saved_and_loaded_like_any_weights(tmp_path):
    model = build()
    save_model(model, TOKENIZER, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert losses_of_two_copies(loaded) == losses_of_two_copies(model)
    other = build(seed=9)
    load_weights(other, tmp_path)
    assert losses_of_two_copies(other) == losses_of_two_copies(model)
