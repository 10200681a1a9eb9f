"""The short way to a tokenizer gives its own ids and its own text; what a renderer keeps changes nothing it returns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chat_families import family
from turnwise.render import ChatRender, RenderSettings
from turnwise.render.codec import TextCodec
from turnwise.types import Message, ToolSpec

FAMILIES = ("qwen2.5", "qwen3", "llama3", "smollm2", "quirky")
CODECS = {name: (family(name), TextCodec(family(name))) for name in FAMILIES}
TEXT = st.text(max_size=60) | st.text(st.sampled_from("ab1 .,\n\té☃[]<|im_end|>'s"), max_size=60)


@pytest.mark.parametrize("name", FAMILIES)
@given(text=TEXT)
@settings(max_examples=60, deadline=None)
def test_ids_and_text_are_the_tokenizers_own(name: str, text: str) -> None:
    tokenizer, codec = CODECS[name]
    sound = text.encode("utf-8", "replace").decode()
    ids = tokenizer.encode(sound, add_special_tokens=False)
    assert list(codec.encode(text)) == ids
    own = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert codec.decode(tuple(ids)) == own


@pytest.mark.parametrize("name", FAMILIES)
def test_many_texts_at_once_have_the_ids_of_each(name: str) -> None:
    _, codec = CODECS[name]
    texts = ["one two", "", "\ud83d é", "<|im_end|>\n[1] Vardø: a town"]
    assert codec.encode_many(texts) == [codec.encode(text) for text in texts]
    assert codec.encode_many([]) == []


LINES = st.lists(
    st.sampled_from(["one two", "1", "[2] Vardø: é", " ", "\n", "\t", "'s", "<|im_end|>", "\u0301", "\xa0"])
)


@given(parts=LINES)
@settings(max_examples=200, deadline=None)
def test_a_text_has_the_ids_of_its_lines_only_where_it_may_be_cut(parts: list[str]) -> None:
    tokenizer, codec = CODECS["smollm2"]
    for text in ("".join(parts), "\n".join(parts)):
        assert list(codec.encode(text)) == tokenizer.encode(text, add_special_tokens=False)


def test_a_line_is_tokenised_once_and_those_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = TextCodec(family("smollm2"))
    assert codec.encode("[1] Oslo\n[2] Vardø\nend") == codec.encode("[1] Oslo\n[2] Vardø\nend")
    assert list(codec._lines) == ["[1] Oslo\n", "[2] Vardø\nend"], "after ø it is not cut"
    monkeypatch.setattr("turnwise.render.codec._LINES_KEPT", 3)
    codec.encode_many([str(number) for number in range(9)])
    assert list(codec._lines) == ["6", "7", "8"]
    monkeypatch.setattr("turnwise.render.codec._LONGEST_KEPT", 4)
    assert codec.encode("long line\nend") == (*codec.encode("long line\n"), *codec.encode("end"))
    assert list(codec._lines) == ["7", "8", "end"], "long lines are not kept"


def test_no_text_is_cut_where_a_tokenizer_may_look_past_the_line() -> None:
    def cuts(tokenizer: PreTrainedTokenizerFast) -> bool:
        return TextCodec(tokenizer)._by_lines

    def changed(**stages: object) -> PreTrainedTokenizerFast:
        backend = Tokenizer.from_str(family("smollm2").backend_tokenizer.to_str())
        for name, stage in stages.items():
            setattr(backend, name, stage)
        return PreTrainedTokenizerFast(tokenizer_object=backend)

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    assert cuts(changed(pre_tokenizer=pre_tokenizers.Sequence([digits, byte_level])))
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)))
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.Metaspace()))
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), byte_level])))
    assert not cuts(changed(normalizer=normalizers.NFC()))
    # Qwen's own: its split takes newlines in with the punctuation before them.
    qwen = pre_tokenizers.Split(Regex(r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s+|\S+"), behavior="isolated")
    without_split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.Sequence([qwen, without_split])))
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.Sequence([qwen, byte_level])))
    assert not cuts(changed(pre_tokenizer=pre_tokenizers.Sequence([])))
    greedy = changed()
    greedy.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert not cuts(greedy), "it takes the line's end as well"


@pytest.mark.parametrize("name", FAMILIES)
def test_many_sequences_at_once_have_the_text_of_each(name: str) -> None:
    tokenizer, codec = CODECS[name]
    batch = [(), tuple(codec.encode("one <|im_end|> é")), tuple(codec.encode("☃")[:1]), (len(tokenizer) - 1,)]
    assert codec.decode_many(batch) == [codec.decode(ids) for ids in batch]
    assert codec.decode_many([]) == []


@given(ids=st.lists(st.integers(0, 300), max_size=40))
@settings(max_examples=60, deadline=None)
def test_ids_that_no_text_has_decode_as_the_tokenizer_decodes_them(ids: list[int]) -> None:
    tokenizer, codec = CODECS["smollm2"]
    ids = [i % len(tokenizer) for i in ids]
    own = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert codec.decode(ids) == own


def test_truncation_and_padding_of_the_tokenizers_file_are_switched_off() -> None:
    tokenizer = family("smollm2")
    tokenizer.backend_tokenizer.enable_truncation(max_length=2)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert len(TextCodec(tokenizer).encode("one two three four five")) > 2
    assert len(TextCodec(tokenizer).encode("one")) < 64


def test_a_tokenizer_with_methods_of_its_own_keeps_them() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def encode(self, text, **options):
            return super().encode(text.upper(), **options)

    plain = family("smollm2")
    loud = Shouting(tokenizer_object=plain.backend_tokenizer)
    assert TextCodec(loud).encode("abc") == TextCodec(plain).encode("ABC")


def test_equal_prompts_are_rendered_once_and_other_tools_or_messages_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    render = ChatRender(family("smollm2"), RenderSettings())
    written: list[str] = []
    write = render._template.write
    monkeypatch.setattr(render._template, "write", lambda m, t: written.append("") or write(m, t))

    def start(content: str, description: str) -> tuple[int, ...]:
        tool = ToolSpec(name="search", description=description, parameters={"type": "object", "properties": {}})
        return render.start([Message(role="user", content=content)], [tool])

    first = start("Who?", "Finds.")
    assert start("Who?", "Finds.") == first
    assert len(written) == 1
    assert start("When?", "Finds.") != first
    assert start("Who?", "Seeks.") != first
    assert len(written) == 3
    assert start("Who?", "Finds.") == first


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.render.chat._KEPT", 4)
    render = ChatRender(family("smollm2"), RenderSettings())
    for number in range(10):
        render.start([Message(role="user", content=str(number))], [])
    assert len(render._prompts) == 4


@pytest.mark.parametrize("name", ["smollm2", "llama3", "quirky"])
def test_what_is_read_ahead_is_what_would_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ahead = (ChatRender(family(name), RenderSettings()) for _ in range(2))
    batch = [(Message(role="user", content=content),) for content in ("no", "Vardø is a town.", "no")]
    ahead.read_ahead(batch)
    assert len(ahead._extensions) == 2, "equal messages are tokenised once"
    monkeypatch.setattr(ahead._codec, "encode", lambda text: pytest.fail("it has been read"))
    for messages in batch:
        for action in ((), (5,), (5, ahead.stop_ids[0])):
            assert ahead.extend(action, messages) == plain.extend(action, messages)


def test_what_was_read_ahead_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.render.chat._KEPT", 2)
    render = ChatRender(family("smollm2"), RenderSettings())
    one, two, three = ((Message(role="user", content=content),) for content in "abc")
    render.read_ahead([one, two])
    render.extend((), one)
    render.read_ahead([three])
    assert list(render._extensions) == [one, three]
