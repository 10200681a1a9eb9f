"""Indexes opened from settings, kept on disk, and joined; BM25 at speed gives what the plain formula gives."""

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import ToolError, TurnwiseError
from turnwise.tools.search import index_cache
from turnwise.tools.search.bm25 import Bm25Index, Bm25Settings
from turnwise.tools.search.http_index import HttpIndex
from turnwise.tools.search.hybrid import HybridIndex
from turnwise.tools.search.retrieval import Hit, Index, Passage, best_positions
from turnwise.tools.search.tool import open_index

PASSAGES = [
    Passage(id="a", title="Lumen", text="A company founded by Ada Brandt."),
    Passage(id="b", title="Ada Brandt", text="A chemist born in Oslo."),
    Passage(id="c", title="Oslo", text="The capital of Norway, a city."),
]


def ids(hits):
    return [hit.passage.id for hit in hits]


def many(number, seed=0):
    """Passages whose words fall off as words do, so that some are in nearly all and most are in few."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(2000)]
    weights = [1 / (i + 1) for i in range(2000)]
    return [
        Passage(id=str(i), title=f"t{i % 97}", text=" ".join(draw.choices(words, weights, k=30))) for i in range(number)
    ]


def test_best_positions_are_those_of_a_full_stable_sort():
    """With many ties, for every k, on sizes around and beyond that of a block."""
    draw = np.random.default_rng(0)
    for size in (1, 2, 63, 64, 65, 1000):
        scores = draw.integers(0, 6, size).astype(np.float32)
        whole = [i for i in sorted(range(size), key=lambda i: (-scores[i], i)) if scores[i] > 0]
        for k in (1, 2, 3, 15, 16, 64, size, size + 1):
            assert best_positions(scores, k).tolist() == whole[:k]


NAMED = [
    Passage(id="own", title="Vardo", text="A town in the far north by the sea."),
    Passage(id="other", title="Harbours", text="Of Vardo and Vardo."),
]


def test_a_title_that_weighs_more_comes_before_a_passage_that_repeats_the_word():
    assert ids(open_index(NAMED, cache="off").query(["Vardo"], 1)[0]) == ["other"]
    assert ids(open_index(NAMED, cache="off", bm25={"title_weight": 5}).query(["Vardo"], 1)[0]) == ["own"]


def test_length_and_mentions_count_as_asked():
    long = Passage(id="long", title="Long", text=f"oslo {'word ' * 60}")
    short = Passage(id="short", title="Short", text="oslo")
    flat = Bm25Index([long, short], Bm25Settings(b=0.0)).query(["oslo"], 2)[0]
    assert flat[0].score == flat[1].score, "length is not looked at"
    bent = Bm25Index([long, short]).query(["oslo"], 2)[0]
    assert ids(bent) == ["short", "long"]
    twice = Passage(id="twice", title="Twice", text="oslo oslo")
    gains = []
    for k1 in (0.1, 5.0):
        found = Bm25Index([short, twice], Bm25Settings(k1=k1, b=0.0)).query(["oslo"], 2)[0]
        gains.append(found[0].score / found[1].score)
    assert gains[0] < 1.1 < 1.5 < gains[1], "a second mention adds little where k1 is small"


def test_indexes_of_other_settings_are_kept_apart(tmp_path):
    open_index(NAMED, cache=tmp_path)
    weighted = open_index(NAMED, cache=tmp_path, bm25={"title_weight": 5})
    assert len(list(tmp_path.iterdir())) == 2
    again = open_index(NAMED, cache=tmp_path, bm25=Bm25Settings(title_weight=5))
    assert len(list(tmp_path.iterdir())) == 2
    assert again.query(["Vardo"], 2) == weighted.query(["Vardo"], 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"title_wait": 3}, "title_weight"),
        ({"b": 2}, "less than or equal to 1"),
        ({"title_weight": 0}, "at least|equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(TurnwiseError, match=message):
        open_index(NAMED, cache="off", bm25=settings)


def test_settings_of_words_are_for_an_index_of_words():
    with pytest.raises(ToolError, match="this one is http; leave it out"):
        open_index(None, "http", url="http://127.0.0.1:1", bm25={"b": 0.4})


def test_words_that_are_written_out_as_rows_score_as_postings_do(monkeypatch):
    """Bit for bit, since ranks hang on it."""
    passages = many(1500)
    queries = [f"w{i} w{3 * i} w0 t{i} w0" for i in range(40)]
    fast = Bm25Index(passages)
    assert 5 < len(fast._rows) < 200
    monkeypatch.setattr("turnwise.tools.search.bm25._ROW_BYTES", 0)
    plain = Bm25Index(passages)
    assert plain._rows == {}
    assert fast.query(queries, 7) == plain.query(queries, 7)


def test_letters_written_in_two_ways_are_the_same_word():
    index = Bm25Index([Passage(id="a", title="Café", text="ΑΘΉΝΑ Straße"), Passage(id="b", title="東京", text="駅")])
    found = index.query(["cafe\u0301", "αθήνα", "東京", "STRASSE", "\U0001f600 \ud83d"], 1)
    assert [ids(hits) for hits in found] == [["a"], ["a"], ["b"], [], []]


def test_an_index_that_is_kept_is_loaded_and_answers_alike(tmp_path, monkeypatch):
    passages = many(300)
    built = open_index(passages, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(Bm25Index, "__init__", lambda *_: pytest.fail("it was built again"))
    loaded = open_index(passages, cache=tmp_path)
    assert [kept] == list(tmp_path.iterdir())
    queries = ["w1 w2 w30", "t5 w0 w0", "nothing"]
    assert loaded.query(queries, 9) == built.query(queries, 9)
    assert loaded.query(queries, 9)[0] != []


@pytest.mark.parametrize(
    "changed",
    [
        [*PASSAGES, Passage(id="d", title="x", text="y")],
        PASSAGES[::-1],
        [Passage(id="A", title="Lumen", text=PASSAGES[0].text), *PASSAGES[1:]],
        [Passage(id="a", title="Lumen A", text="company founded by Ada Brandt."), *PASSAGES[1:]],
    ],
    ids=["one more", "another order", "another id", "another border between fields"],
)
def test_another_corpus_is_another_index(tmp_path, changed):
    open_index(PASSAGES, cache=tmp_path)
    index = open_index(changed, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert list(index.passages) == changed


def test_other_settings_are_another_index():
    names = {index_cache.digest_index("bm25", PASSAGES, settings) for settings in ("k1=1.5", "k1=1.2")}
    assert len(names) == 2


@pytest.mark.parametrize("broken", ["words.json", "scores.npy", "starts.npy"])
@pytest.mark.parametrize("how", ["cut", "gone", "of another index"])
def test_a_kept_index_that_is_broken_is_built_anew(tmp_path, caplog, broken, how):
    whole = open_index(PASSAGES, cache=tmp_path).query(["ada oslo"], 3)
    (kept,) = tmp_path.iterdir()
    file = kept / broken
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    elif how == "gone":
        file.unlink()
    else:
        open_index(PASSAGES[:2], cache=tmp_path / "other")
        file.write_bytes((next((tmp_path / "other").iterdir()) / broken).read_bytes())
    with caplog.at_level(logging.WARNING):
        assert open_index(PASSAGES, cache=tmp_path).query(["ada oslo"], 3) == whole
    assert "cannot be read" in caplog.text
    caplog.clear()
    assert open_index(PASSAGES, cache=tmp_path).query(["ada oslo"], 3) == whole
    assert caplog.text == ""


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        index = open_index(PASSAGES, cache=tmp_path / "file" / "cache")
    assert "the index cannot be kept here" in caplog.text
    assert ids(index.query(["norway"], 1)[0]) == ["c"]


def test_the_loser_of_a_race_leaves_nothing_behind(tmp_path):
    def build():
        open_index(PASSAGES, cache=tmp_path)
        return Bm25Index(PASSAGES)

    name = index_cache.digest_index("bm25", PASSAGES, Bm25Settings().describe())
    index = index_cache.load_or_build(tmp_path, name, load=pytest.fail, build=build, save=Bm25Index.save)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert ids(index.query(["norway"], 1)[0]) == ["c"]


def test_where_indexes_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TURNWISE_CACHE", raising=False)
    assert index_cache.cache_folder("auto") == tmp_path / "xdg" / "turnwise" / "indexes"
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "own"))
    assert index_cache.cache_folder("auto") == tmp_path / "own" / "indexes"
    assert index_cache.cache_folder("off") is None
    assert index_cache.cache_folder("here") == Path("here")
    open_index(PASSAGES, cache="off")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"corpus": PASSAGES, "kind": "bm52"}, r"there is no index 'bm52' \(did you mean 'bm25'\?\)"),
        ({"corpus": PASSAGES, "kind": "dense"}, "encoder: .* this one is dense; give one, such as"),
        ({"corpus": PASSAGES, "encoder": "x"}, "encoder: .* this one is bm25; leave it out"),
        ({"corpus": PASSAGES, "url": "http://x"}, "kind 'bm25' needs a corpus and no url"),
        ({}, "kind 'bm25' needs a corpus and no url"),
        ({"kind": "http"}, "kind 'http' needs a url and no corpus"),
        ({"kind": "http", "url": "http://x", "corpus": PASSAGES}, "kind 'http' needs a url and no corpus"),
        ({"corpus": []}, "needs at least one passage"),
        ({"corpus": PASSAGES, "kind": "dense", "encoder": ""}, "encoder: expected"),
        ({"corpus": PASSAGES, "kind": "dense", "encoder": {"encoder": "x", "pool": "cls"}}, "did you mean 'pooling'"),
    ],
)
def test_an_index_that_cannot_be_opened_is_refused_in_a_line(arguments, words):
    with pytest.raises(TurnwiseError, match=words):
        open_index(**arguments, cache="off")


def test_open_index_reads_a_corpus(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "lumen.txt").write_text("Founded by Ada Brandt.")
    index = open_index(tmp_path / "notes", cache=tmp_path / "cache")
    assert ids(index.query(["Brandt"], 3)[0]) == ["lumen.txt#1"]
    assert isinstance(open_index(kind="http", url="http://localhost:1"), HttpIndex)


class Fixed:
    """An index that always ranks as it was told to."""

    def __init__(self, ranking, passages=PASSAGES):
        self.passages = passages
        self.ranking = ranking
        self.depths = []

    def query(self, queries, k):
        self.depths.append(k)
        by_id = {passage.id: passage for passage in self.passages}
        hits = [Hit(passage=by_id[name], score=100.0 - rank) for rank, name in enumerate(self.ranking)]
        return [hits[:k] if query else [] for query in queries]


def test_fusion_adds_reciprocal_ranks():
    """By hand: a = 1/61 + 1/63, b = 1/62 + 1/61, c = 1/62 (in the second list alone)."""
    index = HybridIndex([Fixed("ab"), Fixed("bca")])
    assert isinstance(index, Index)
    found, none = index.query(["x", ""], 5)
    assert [(hit.passage.id, hit.score) for hit in found] == [
        ("b", pytest.approx(1 / 62 + 1 / 61)),
        ("a", pytest.approx(1 / 61 + 1 / 63)),
        ("c", pytest.approx(1 / 62)),
    ]
    assert none == []
    assert ids(index.query(["x"], 1)[0]) == ["b"]


def test_fusion_weighs_its_indexes_and_breaks_ties_by_order():
    assert ids(HybridIndex([Fixed("abc"), Fixed("cba")]).query(["x"], 3)[0]) == ["a", "c", "b"]
    assert ids(HybridIndex([Fixed("ab"), Fixed("ba")]).query(["x"], 3)[0]) == ["a", "b"]
    assert ids(HybridIndex([Fixed("ab"), Fixed("ba")], [1, 1.5]).query(["x"], 3)[0]) == ["b", "a"]


def test_fusion_reads_further_than_it_shows():
    one = Fixed("abc")
    HybridIndex([one], depth=20).query(["x"], 3)
    HybridIndex([one], depth=20).query(["x"], 30)
    assert one.depths == [20, 30]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HybridIndex([]), "give it at least one"),
        (lambda: HybridIndex([Fixed("a"), Fixed("a", PASSAGES[::-1])]), "over the same passages"),
        (lambda: HybridIndex([Fixed("a", PASSAGES[:1] * 2)]), "two passages have the same id"),
        (lambda: HybridIndex([Fixed("a")], [1, 2]), "give 1 positive numbers"),
        (lambda: HybridIndex([Fixed("a")], [-1.0]), "give 1 positive numbers"),
        (lambda: HybridIndex([Fixed("a")], constant=-1), "constant is -1"),
        (lambda: HybridIndex([Fixed("a")], depth=0), "depth is 0"),
        (lambda: HybridIndex([Fixed("a")]).query(["x"], 0), "k is 0"),
    ],
)
def test_a_fusion_without_sense_is_refused(make, words):
    with pytest.raises(ToolError, match=words):
        make()
