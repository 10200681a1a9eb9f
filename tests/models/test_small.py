"""The built-in transformer and its tokenizer: exact round trips, one result per seed, a template that only appends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.models.small import END, PAD, SPECIAL, START, TAGS, SmallSettings, build_small, train_tokenizer

TINY = SmallSettings(layers=2, width=16, heads=2, positions=64, vocabulary=400)
CALL = '<tool_call>{"name": "search", "arguments": {"query": "Oslo founder"}}</tool_call>'
TEXTS = [
    f"{START}user\nWho founded Oslo in {year}?{END}{START}assistant\n{CALL}{END}<answer>Ada Quill</answer>"
    for year in range(1900, 1920)
]
TOKENIZER = train_tokenizer(TEXTS, TINY)
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds passages. Gives three of them.\nSlow.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    },
}

pieces = st.one_of(st.text(), st.sampled_from([*SPECIAL, *TAGS, " ", "\n", '": "', CALL, "Oslo", " 1907"]))


@given(st.lists(pieces, max_size=8).map("".join))
@settings(max_examples=150, deadline=None)
def test_any_text_survives_encode_and_decode(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("token", [*SPECIAL, *TAGS])
def test_markers_are_one_token_wherever_they_stand(token):
    [marker] = TOKENIZER.encode(token)
    assert TOKENIZER.encode(f"Oslo{token} in") == [*TOKENIZER.encode("Oslo"), marker, *TOKENIZER.encode(" in")]


def test_only_the_three_chat_markers_are_special():
    text = "".join((*SPECIAL, *TAGS))
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=True) == "".join(TAGS)
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == (END, PAD)
    assert TOKENIZER.eos_token_id != TOKENIZER.pad_token_id


def test_pieces_of_a_tool_call():
    name = ["<tool_call>", '{"', "name", '":Ġ"', "search", '",Ġ"']
    arguments = ["arguments", '":Ġ{"', "query", '":Ġ"', "Oslo", "Ġfounder", '"}}', "</tool_call>"]
    assert TOKENIZER.tokenize(CALL) == [*name, *arguments]


def test_cells_of_a_grid_stay_apart():
    grid = "####\n#_@#\n"
    tokenizer = train_tokenizer([grid] * 50, TINY)
    assert tokenizer.tokenize(grid) == ["#", "#", "#", "#", "Ċ", "#", "_", "@", "#", "Ċ"]


def test_vocabulary_is_a_ceiling_and_no_id_is_without_text():
    assert len(TOKENIZER) <= TINY.vocabulary
    unlearnt = train_tokenizer([], TINY)
    assert len(unlearnt) == 256 + len(SPECIAL) + len(TAGS)
    assert build_small(TINY, unlearnt, seed=0).get_input_embeddings().weight.shape[0] == len(unlearnt)


def test_equal_texts_give_equal_ids_whatever_their_order():
    again = train_tokenizer(reversed(TEXTS), TINY)
    assert again.backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
    # Written down, so that another process or machine is held to it too.
    assert TOKENIZER.encode("Who founded Oslo?") == [309, 305, 296, 30]


def test_weights_come_from_the_seed_alone_and_leave_the_global_state():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build_small(TINY, TOKENIZER, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = build_small(TINY, TOKENIZER, seed=7), build_small(TINY, TOKENIZER, seed=8)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
        assert weight.dim() == 1 or not torch.equal(weight, other.get_parameter(name))


def test_weights_that_write_to_the_residual_stream_start_smaller():
    model = build_small(SmallSettings(layers=2, width=64, heads=4, kv_heads=2, induction=False), TOKENIZER, seed=0)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            assert weight.std().item() == pytest.approx(0.025 if writes else 0.05, rel=0.06)  # √(2 × 2) = 2


def test_saved_folder_loads_through_the_auto_classes(tmp_path):
    model = build_small(TINY, TOKENIZER, seed=3)
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = f"{START}user\nÅse, 1907? ☃{END}{CALL} <think>"
    ids = TOKENIZER.encode(text)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.chat_template) == (END, PAD, TOKENIZER.chat_template)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(torch.tensor([ids])).logits, model(torch.tensor([ids])).logits)


def render(messages, tools=None, answer=False):
    return TOKENIZER.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=answer)


CHAT = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Who founded Oslo?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look it up.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": {"query": "Åse"}}},
            {"id": "b", "type": "function", "function": {"name": "search", "arguments": '{"query": '}},
        ],
    },
    {"role": "tool", "content": "Harald did.", "tool_call_id": "a"},
    {"role": "tool", "content": "bad JSON", "tool_call_id": "b"},
    {"role": "assistant", "content": "<answer>Harald</answer>"},
]


def test_template_in_full():
    assert render(CHAT, [SEARCH], answer=True) == (
        "<|im_start|>system\nAnswer briefly.\nsearch(query, limit): Finds passages<|im_end|>"
        "<|im_start|>user\nWho founded Oslo?<|im_end|>"
        "<|im_start|>assistant\n<think>Look it up.</think>"
        '<tool_call>{"name": "search", "arguments": {"query": "Åse"}}</tool_call>'
        '<tool_call>{"name": "search", "arguments": {"query": }</tool_call><|im_end|>'
        "<|im_start|>tool\n<tool_response>Harald did.</tool_response><|im_end|>"
        "<|im_start|>tool\n<tool_response>bad JSON</tool_response><|im_end|>"
        "<|im_start|>assistant\n<answer>Harald</answer><|im_end|>"
        "<|im_start|>assistant\n"
    )


def test_tools_are_listed_without_a_system_message_too():
    bare = {"name": "stop", "description": ""}
    assert render([CHAT[1]], [SEARCH, bare]) == (
        "<|im_start|>system\nsearch(query, limit): Finds passages\nstop()<|im_end|>"
        "<|im_start|>user\nWho founded Oslo?<|im_end|>"
    )


@pytest.mark.parametrize("tools", [None, [SEARCH]])
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:]])
def test_a_longer_conversation_extends_the_shorter(chat, tools):
    whole = render(chat, tools)
    for length in range(1, len(chat) + 1):
        assert whole.startswith(render(chat[:length], tools))
        if length < len(chat) and chat[length]["role"] == "assistant":
            assert whole.startswith(render(chat[:length], tools, answer=True))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"width": 30, "heads": 4}, "width 30 must be a multiple of 2 × heads, that is of 8"),
        ({"heads": 4, "kv_heads": 3}, "heads 4 must be a multiple of kv_heads 3"),
        ({"vocabulary": 200}, "greater than or equal to 267"),
    ],
)
def test_shapes_that_cannot_be_are_refused(shape, words):
    with pytest.raises(ValidationError, match=words):
        SmallSettings(**shape)
