"""Dense search: cosines of an encoder's vectors, the same whether exact, kept, padded or batched."""

import copy
import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from turnwise.errors import ModelError, ToolError
from turnwise.tools.search import dense
from turnwise.tools.search.dense import DenseIndex, DenseSettings
from turnwise.tools.search.hybrid import HybridIndex
from turnwise.tools.search.nearest import open_nearest
from turnwise.tools.search.retrieval import Index, Passage
from turnwise.tools.search.tool import open_index

WORDS = [
    "ada",
    "brandt",
    "oslo",
    "norway",
    "city",
    "lumen",
    "company",
    "founded",
    "capital",
    "query",
    "passage",
    "born",
]
PASSAGES = [
    Passage(id="a", title="lumen", text="company founded ada brandt"),
    Passage(id="b", title="ada brandt", text="born oslo"),
    Passage(id="c", title="oslo", text="capital norway city"),
]


class Directions:
    """A fake encoder: each text is the direction its angle says, in degrees."""

    def __init__(self):
        self.batches = []

    def encode_passages(self, texts):
        return self.encode_queries([text.splitlines()[-1] for text in texts])

    def encode_queries(self, texts):
        self.batches.append(list(texts))
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def on_a_circle(*angles):
    return [Passage(id=str(i), title="t", text=str(angle)) for i, angle in enumerate(angles)]


@pytest.fixture
def _without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr("turnwise.tools.search.nearest.find_spec", lambda _: None)
    monkeypatch.setattr("turnwise.tools.search.dense.find_spec", lambda _: None)


def ids(hits):
    return [hit.passage.id for hit in hits]


@pytest.mark.usefixtures("_without_faiss")
def test_the_nearest_passages_come_first_with_their_cosines():
    encoder = Directions()
    index = DenseIndex(on_a_circle(0, 90, 180, 60), encoder)
    assert isinstance(index, Index)
    first, blank, second = index.query(["30", "  ", "80"], 3)
    assert ids(first) == ["0", "3", "1"]
    assert [hit.score for hit in first] == pytest.approx([3**0.5 / 2, 3**0.5 / 2, 0.5], abs=1e-5)
    assert blank == []
    assert ids(second) == ["1", "3", "0"]
    assert encoder.batches[1:] == [["30", "80"]]
    assert ids(index.query(["0"], 99)[0]) == ["0", "3", "1", "2"]


@pytest.mark.usefixtures("_without_faiss")
def test_ties_go_to_the_earlier_passage_whatever_k_and_however_many_queries():
    index = DenseIndex(on_a_circle(*[10, 50] * 40), Directions())
    whole = [*map(str, range(1, 80, 2)), *map(str, range(0, 80, 2))]
    for k in (1, 39, 40, 41, 80):
        for queries in (1, 7):
            assert [ids(hits) for hits in index.query(["70"] * queries, k)] == [whole[:k]] * queries


@pytest.mark.usefixtures("_without_faiss")
def test_many_queries_are_searched_in_parts_that_fit_the_memory(monkeypatch):
    index = DenseIndex(on_a_circle(0, 45, 90), Directions())
    whole = index.query([str(angle) for angle in range(0, 90, 7)], 2)
    monkeypatch.setattr("turnwise.tools.search.nearest._CELLS", 6)
    assert index.query([str(angle) for angle in range(0, 90, 7)], 2) == whole


@pytest.mark.usefixtures("_without_faiss")
def test_a_kept_index_encodes_nothing_again(tmp_path):
    passages = on_a_circle(0, 90, 180, 60)
    built = DenseIndex(passages, Directions())
    built.save(tmp_path)
    encoder = Directions()
    loaded = DenseIndex.load(tmp_path, passages, encoder)
    assert loaded.query(["100"], 3) == built.query(["100"], 3)
    assert encoder.batches == [["100"]]
    with pytest.raises(ValueError, match="it has 4 vectors for 3 passages"):
        DenseIndex.load(tmp_path, passages[:3], encoder)


@pytest.mark.usefixtures("_without_faiss")
def test_bad_requests_are_refused_in_a_line():
    with pytest.raises(ToolError, match="needs at least one passage"):
        DenseIndex([], Directions())
    with pytest.raises(ToolError, match="k is 0"):
        DenseIndex(on_a_circle(1), Directions()).query(["1"], 0)
    with pytest.raises(ToolError, match="device 'nowhere' cannot be used here"):
        DenseIndex(on_a_circle(1), Directions(), device="nowhere")
    with pytest.raises(ToolError, match=r"faiss='Flat' needs faiss, .*: pip install 'turnwise\[dense\]'"):
        DenseIndex(on_a_circle(1), Directions(), faiss="Flat")


@pytest.mark.parametrize("factory", ["", "Flat", "IVF4,Flat"])
def test_faiss_finds_what_exact_search_finds(tmp_path, factory, request):
    pytest.importorskip("faiss", reason="FAISS is not installed: pip install 'turnwise[dense]'")
    passages = on_a_circle(*range(0, 360, 2))
    indexes = [DenseIndex(passages, Directions(), faiss=factory, device="cpu")]
    assert type(indexes[0]._nearest).__name__ == "Faiss"
    indexes[0].save(tmp_path)
    indexes.append(DenseIndex.load(tmp_path, passages, Directions(), faiss=factory, device="cpu"))
    assert (tmp_path / "faiss.index").exists() == (factory == "IVF4,Flat")
    request.getfixturevalue("_without_faiss")
    exact = DenseIndex(passages, Directions()).query(["20.5", "21.5"], 1)
    for index in indexes:
        found = index.query(["20.5", "21.5"], 1)
        assert [ids(hits) for hits in found] == [ids(hits) for hits in exact] == [["10"], ["11"]]
        assert found[0][0].score == pytest.approx(exact[0][0].score, abs=1e-5)


def test_a_faiss_factory_that_does_not_fit_is_refused():
    pytest.importorskip("faiss", reason="FAISS is not installed: pip install 'turnwise[dense]'")
    for factory in ("IVF400,Flat", "Nonsense"):
        with pytest.raises(ToolError, match=f"faiss='{factory}' does not fit 3 passages"):
            DenseIndex(on_a_circle(1, 2, 3), Directions(), faiss=factory)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A random BERT of two layers with a vocabulary of a dozen words, as a folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=12, **sizes)
    BertModel(config).save_pretrained(folder)
    return folder


def hidden(folder, text):
    """The states (T, D) of one text, alone and so without padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        return AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0].numpy()


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_vectors_are_means_over_the_tokens_without_the_padding(bert):
    from turnwise.tools.search.encoders import load_encoder

    encoder = load_encoder(DenseSettings(encoder=str(bert), batch=2, device="cpu"))
    texts = ["oslo", "ada brandt born oslo norway", "lumen company"]
    expected = np.stack([unit(hidden(bert, text).mean(0)) for text in texts])
    np.testing.assert_allclose(encoder.encode_queries(texts), expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(texts), expected, atol=1e-5)


def test_pooling_prefixes_and_the_cut_are_as_set(bert):
    from turnwise.tools.search.encoders import load_encoder

    settings = DenseSettings(
        encoder=str(bert), pooling="cls", query_prefix="query ", passage_prefix="passage ", max_tokens=4, device="cpu"
    )
    encoder = load_encoder(settings)
    first = [unit(hidden(bert, text)[0]) for text in ("query ada", "passage ada")]
    np.testing.assert_allclose(encoder.encode_queries(["ada", "ada oslo city"])[0], first[0], atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(["ada"])[0], first[1], atol=1e-5)
    # Four tokens: [CLS] query ada [SEP], whatever follows.
    np.testing.assert_allclose(encoder.encode_queries(["ada norway city"])[0], first[0], atol=1e-5)


def test_a_text_longer_than_the_model_can_read_is_cut_to_its_positions(bert):
    from turnwise.tools.search.encoders import load_encoder

    encoder = load_encoder(DenseSettings(encoder=str(bert), device="cpu"))
    long, longer = encoder.encode_queries([" ".join(["oslo"] * 10), " ".join(["oslo"] * 100)])
    np.testing.assert_allclose(long, longer, atol=1e-6)


def test_a_long_encoding_says_how_far_it_is(bert, monkeypatch, caplog):
    from turnwise.tools.search import encoders

    encoder = encoders.load_encoder(DenseSettings(encoder=str(bert), device="cpu", batch=1))
    seconds = iter(range(0, 100, 6))
    # Not the clock itself, which other threads of the process read.
    monkeypatch.setattr(encoders, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    encoder.encode_passages(["oslo"] * 6)
    # After 6, 12, ... seconds: at 12 for the first time, then not before 24; at the end there is nothing left.
    assert caplog.messages == [
        "encoding passages for search: 33%, about 24 s left",
        "encoding passages for search: 67%, about 12 s left",
    ]


@pytest.mark.usefixtures("_without_faiss")
def test_a_fork_searches_on_the_cpu_whatever_device_its_parent_uses(bert):
    """A forked process cannot use a GPU; `meta` stands in for one, since nothing can be read from it either."""
    from turnwise.tools.search.encoders import load_encoder
    from turnwise.training.forked import map_forked

    expected = DenseIndex(PASSAGES, load_encoder(DenseSettings(encoder=str(bert), device="cpu")), device="cpu")
    found = expected.query(["ada oslo", "lumen"], k=3)
    index = copy.copy(expected)
    index._encoder = load_encoder(DenseSettings(encoder=str(bert), device="meta"))
    index._nearest = open_nearest(expected._vectors, "", "meta", None)
    with pytest.raises((NotImplementedError, RuntimeError)):
        index.query(["ada oslo"], k=3)
    asked = map_forked(lambda places: [index.query(["ada oslo", "lumen"], k=3)], 1, workers=1, setting="sft.workers")
    assert asked == [found]


def test_dense_and_hybrid_indexes_are_opened_kept_and_made_anew_when_the_encoder_changes(bert, tmp_path, monkeypatch):
    settings = {"encoder": str(bert), "device": "cpu"}
    built = open_index(PASSAGES, "dense", cache=tmp_path, encoder=settings)
    assert isinstance(built, DenseIndex)
    # A passage's own words, as the encoder reads them, are nearest to it.
    assert ids(built.query(["oslo\ncapital norway city"], 1)[0]) == ["c"]
    kept = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(DenseIndex, "__init__", lambda *_, **__: pytest.fail("it was built again"))
        loaded = open_index(PASSAGES, "dense", cache=tmp_path, encoder={**settings, "query_prefix": "", "batch": 1})
    assert loaded.query(["ada"], 3) == built.query(["ada"], 3)
    hybrid = open_index(PASSAGES, "hybrid", cache=tmp_path, encoder=settings)
    assert isinstance(hybrid, HybridIndex)
    assert ids(hybrid.query(["oslo\ncapital norway city"], 1)[0]) == ["c"]
    assert len(set(tmp_path.iterdir()) - kept) == 1, "the hybrid index adds a BM25 one and shares the vectors"
    open_index(PASSAGES, "dense", cache=tmp_path, encoder={**settings, "pooling": "cls"})
    (bert / "touched.txt").write_text("the model changed")
    open_index(PASSAGES, "dense", cache=tmp_path, encoder=settings)
    assert len(set(tmp_path.iterdir()) - kept) == 3


def test_a_sentence_transformers_model_needs_its_library_or_a_word_on_pooling(bert, monkeypatch):
    from turnwise.tools.search.encoders import load_encoder

    (bert / "modules.json").write_text("[]")
    try:
        monkeypatch.setattr(dense, "find_spec", lambda _: None)
        with pytest.raises(ToolError, match=r"needs sentence_transformers, .*: pip install 'turnwise\[dense\]'"):
            load_encoder(DenseSettings(encoder=str(bert)))
        assert load_encoder(DenseSettings(encoder=str(bert), pooling="mean", device="cpu"))
    finally:
        (bert / "modules.json").unlink()


def test_a_sentence_transformers_model_pools_as_it_says(bert, tmp_path):
    pytest.importorskip("sentence_transformers", reason="not installed: pip install 'turnwise[dense]'")
    from turnwise.tools.search.encoders import load_encoder

    model = tmp_path / "model"
    shutil.copytree(bert, model)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    encoder = load_encoder(DenseSettings(encoder=str(model), device="cpu", query_prefix="query "))
    np.testing.assert_allclose(
        encoder.encode_queries(["ada", "oslo norway"])[0], unit(hidden(bert, "query ada")[0]), atol=1e-5
    )


def test_what_is_no_encoder_is_refused_in_a_line(tmp_path):
    with pytest.raises(ModelError, match="cannot be loaded; give a folder or a model") as raised:
        open_index(PASSAGES, "dense", cache="off", encoder={"encoder": str(tmp_path), "device": "cpu"})
    assert "\n" not in str(raised.value)
