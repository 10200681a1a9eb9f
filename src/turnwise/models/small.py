"""The built-in small transformer and the tokenizer trained for it: a laptop trains it in minutes.

Invariant: both are fixed by (settings, texts, seed); nothing here reads or moves the global random state. Any
text survives encode and decode unchanged, and a conversation that grows only appends to its rendered text.
"""

import math
import re
from collections.abc import Iterable, Iterator

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnwise.models.induction import plant_induction
from turnwise.models.settings import FEWEST_TOKENS, SmallSettings
from turnwise.seeds import derive_seed

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END)
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
)
"""One token each, yet ordinary text: a decoder that skips special tokens still shows them."""

assert 256 + len(SPECIAL) + len(TAGS) == FEWEST_TOKENS, "the settings know how many tokens are always there"

_MARKERS = re.compile("|".join(map(re.escape, (*SPECIAL, *TAGS))))

# A piece is the most that one token can hold: a word or number with the space before it, or a run of JSON
# punctuation with the spaces inside it (`": {"`), so that a tool call costs few tokens. Every other symbol
# stands alone, so that the cells of a drawn grid stay apart.
_PIECES = r""" ?\p{L}+| ?\p{N}+| ?[{}\[\]":,]+(?: [{}\[\]":,]+)*| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+"""

# ChatML, as short as it can be: no newline after a turn, and a tool is `name(arg, arg): first sentence`.
CHAT_TEMPLATE = r"""
{%- set opened = messages and messages[0].role == 'system' -%}
{%- set system = messages[0].content if opened else '' -%}
{%- if system or tools -%}
    {{- '<|im_start|>system\n' ~ system -}}
    {%- for tool in tools or [] -%}
        {%- set spec = tool.function if tool.function is defined else tool -%}
        {%- set arguments = (spec.parameters or {}).properties or {} -%}
        {%- set summary = (spec.description or '').split('\n')[0].split('. ')[0].rstrip('.') -%}
        {{- ('\n' if system or not loop.first else '') ~ spec.name ~ '(' ~ (arguments | join(', ')) ~ ')' -}}
        {{- ': ' ~ summary if summary else '' -}}
    {%- endfor -%}
    {{- '<|im_end|>' -}}
{%- endif -%}
{%- for message in (messages[1:] if opened else messages) -%}
    {{- '<|im_start|>' ~ message.role ~ '\n' -}}
    {%- if message.role == 'tool' -%}
        {{- '<tool_response>' ~ message.content ~ '</tool_response>' -}}
    {%- else -%}
        {{- '<think>' ~ message.reasoning_content ~ '</think>' if message.reasoning_content else '' -}}
        {{- message.content or '' -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set spec = call.function if call.function is defined else call -%}
            {%- set arguments = spec.arguments if spec.arguments is string else spec.arguments | tojson -%}
            {{- '<tool_call>{"name": ' ~ (spec.name | tojson) ~ ', "arguments": ' ~ arguments ~ '}</tool_call>' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
""".strip()


def train_tokenizer(texts: Iterable[str], settings: SmallSettings) -> PreTrainedTokenizerFast:
    """Learns a byte-level BPE from the texts; equal texts give equal ids.

    `<tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>` is about a dozen tokens.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary - len(SPECIAL) - len(TAGS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_between_markers(texts), trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def build_small(settings: SmallSettings, tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """A Llama of this shape in float32 on the CPU, its weights drawn from the seed alone."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.ffn or 32 * math.ceil(settings.width * 8 / 3 / 32),
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads or settings.heads,
        max_position_embeddings=settings.positions,
        tie_word_embeddings=True,
        attention_bias=settings.induction,  # induction heads find the previous token by a bias
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    _draw_weights(model, seed=seed)
    if settings.induction:
        count = settings.induction_heads or max(1, settings.heads // 4)
        plant_induction(model, count=count, generator=torch.Generator().manual_seed(derive_seed(seed, "induction")))
    return model


def _draw_weights(model: LlamaForCausalLM, *, seed: int) -> None:
    """Normal weights; projections into the residual stream are scaled by 1 / √(2 × layers), as in GPT-2.

    At widths around 128, a std of 0.05 learns to recall sooner than the usual 0.02 or than 1 / √fan_in.
    """
    into_residual = 0.05 / math.sqrt(2 * model.config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            std = into_residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.05
            weight.normal_(std=std, generator=torch.Generator().manual_seed(derive_seed(seed, "weights", name)))


def _between_markers(texts: Iterable[str]) -> Iterator[str]:
    """The text between markers, which are tokens already and must not be learnt again in pieces."""
    for text in texts:
        yield from filter(None, _MARKERS.split(text))
