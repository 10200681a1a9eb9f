"""The models and the tokenizer that speed is measured with, made in place: nothing is downloaded.

Invariant: a model is fixed by its shape and seed, so both sides of a comparison sample from the same weights. A
random model samples as fast as a trained one of that shape would.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import turnwise
from turnwise.models.settings import SmallSettings
from turnwise.models.small import CHAT_TEMPLATE, END, PAD, START, train_tokenizer
from turnwise.types import Json

VOCABULARY = 49_152
POSITIONS = 2_048
TINY, SMOLLM2 = "tiny", "smollm2"
_POOL = 2**20
"""Ids that are drawn once for all."""
_LEARNT = 4_096
"""Tokens that the stand-in tokenizer learns; the rest of its vocabulary is never written."""


def make_model(settings: Mapping[str, Json]) -> PreTrainedModel:
    """The model of a measurement: `{"model": "tiny", "device": "cpu", "dtype": "float32", "seed": 0}`, or a folder."""
    name, dtype = str(settings["model"]), getattr(torch, str(settings["dtype"]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_whole(settings, "seed"))
        if name == TINY:
            model: PreTrainedModel = Qwen2ForCausalLM(tiny_config())
        elif name == SMOLLM2:
            model = LlamaForCausalLM(smollm2_config())
        else:
            model = AutoModelForCausalLM.from_pretrained(name)
            model.generation_config = GenerationConfig()  # a model's own end token would end rows early
    return model.to(device=str(settings["device"]), dtype=dtype).eval()


def tiny_config() -> Qwen2Config:
    """A Qwen2 of 6.8 million parameters, nearly all of them in its vocabulary: what two cores can train."""
    return Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def smollm2_config() -> LlamaConfig:
    """The shape of SmolLM2-135M, without its weights."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def draw_ids(seed: int, length: int, vocabulary: int) -> list[int]:
    """Ids at random, hardly any of which begin like another's: no prefix cache helps.

    They are cut from a long list, so that drawing them takes next to nothing of the time that is measured.
    """
    drawn = _draw_pool(vocabulary)
    start = seed % (len(drawn) - length)
    return drawn[start : start + length]


@functools.cache
def _draw_pool(vocabulary: int) -> list[int]:
    ids: list[int] = np.random.default_rng(0).integers(vocabulary, size=_POOL).tolist()
    return ids


def vocabulary_of(model: PreTrainedModel) -> int:
    size: int = model.config.get_text_config().vocab_size
    return size


def make_stand_in_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 49,152 tokens that learns English from this package's own source, for want of a real one."""
    learnt = train_tokenizer(_own_words(), SmallSettings(vocabulary=_LEARNT))
    state = json.loads(learnt.backend_tokenizer.to_str())
    words, markers = state["model"]["vocab"], state["added_tokens"]
    unused = VOCABULARY - len(markers) - len(words)
    words |= {f"unused-{number}": len(words) + number for number in range(unused)}
    for number, marker in enumerate(markers):
        marker["id"] = VOCABULARY - len(markers) + number
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def _own_words() -> Iterator[str]:
    for file in sorted(Path(turnwise.__file__).parent.glob("*/*.py")):
        yield file.read_text(encoding="utf-8")


def _whole(settings: Mapping[str, Json], name: str) -> int:
    value = settings[name]
    assert isinstance(value, int)
    return value
