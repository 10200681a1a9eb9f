"""BM25: the scores are the formula's, ties are settled, and nothing is found where nothing matches."""

import asyncio
import logging
import math
import os
import subprocess
import sys

import pytest

from turnwise.errors import ToolError
from turnwise.tools import Bm25Index, Passage, search_tool
from turnwise.tools.search.retrieval import Hit, Index
from turnwise.tools.search.tool import Searcher, show_hits

PASSAGES = [
    Passage(id="a", title="Lumen", text="A company founded by Ada Brandt."),
    Passage(id="b", title="Ada Brandt", text="A chemist born in Oslo."),
    Passage(id="c", title="Oslo", text="The capital of Norway, a city."),
    Passage(id="d", title="", text="..."),
]


def lucene(query: list[str], document: list[str], corpus: list[list[str]], k1: float = 1.5, b: float = 0.75) -> float:
    """The formula written out, term by term."""
    length = sum(map(len, corpus)) / len(corpus)
    score = 0.0
    for word in query:
        containing = sum(word in other for other in corpus)
        idf = math.log(1 + (len(corpus) - containing + 0.5) / (containing + 0.5))
        count = document.count(word)
        score += idf * count / (count + k1 * (1 - b + b * len(document) / length))
    return score


def test_scores_are_those_of_the_formula_over_title_and_text():
    corpus = [
        ["lumen", "a", "company", "founded", "by", "ada", "brandt"],
        ["ada", "brandt", "a", "chemist", "born", "in", "oslo"],
        ["oslo", "the", "capital", "of", "norway", "a", "city"],
        [],
    ]
    (hits,) = Bm25Index(PASSAGES).query(["ADA Brandt, Oslo?"], k=10)
    expected = {p.id: lucene(["ada", "brandt", "oslo"], d, corpus) for p, d in zip(PASSAGES, corpus, strict=True)}
    assert [hit.passage.id for hit in hits] == ["b", "a", "c"]
    assert [hit.score for hit in hits] == pytest.approx([expected["b"], expected["a"], expected["c"]], rel=1e-5)


def test_a_batch_of_queries_is_answered_one_by_one():
    found = Bm25Index(PASSAGES).query(["norway", "", "zzz !", "lumen"], k=1)
    assert [[hit.passage.id for hit in hits] for hits in found] == [["c"], [], [], ["a"]]


def test_ties_go_to_the_earlier_passage_whatever_k():
    same = [Passage(id=str(i), title="twin", text="alike") for i in range(50)]
    index = Bm25Index(same)
    for k in (1, 7, 49, 50, 99):
        (hits,) = index.query(["twin"], k)
        assert [hit.passage.id for hit in hits] == [str(i) for i in range(min(k, 50))]


def test_the_tool_numbers_its_lines_and_says_when_nothing_matches():
    search = search_tool(Bm25Index(PASSAGES), k=2)
    assert search.spec.name == "search"
    assert search.spec.parameters["required"] == ["query"]
    found = asyncio.run(search.call('{"query": "chemist Ada Brandt"}'))
    assert found.content == "[1] Ada Brandt: A chemist born in Oslo.\n[2] Lumen: A company founded by Ada Brandt."
    nothing = asyncio.run(search.call('{"query": "zebra"}'))
    assert nothing.ok
    assert nothing.content == "No passage matches this query; try other words."


def test_two_search_tools_search_their_own_index():
    one = search_tool(Bm25Index(PASSAGES[:1]), k=1)
    two = search_tool(Bm25Index(PASSAGES[1:2]), k=1)
    assert one("brandt").startswith("[1] Lumen")
    assert two("brandt").startswith("[1] Ada Brandt")


class Echo:
    """An index, unknown to the package, that finds a passage called as the query, and remembers what it was asked."""

    passages = ()

    def __init__(self):
        self.batches = []

    def query(self, queries, k):
        self.batches.append((list(queries), k))
        if "boom" in queries:
            raise OSError("the index is gone")
        return [[Hit(passage=Passage(id=query, title=query, text="text"), score=1.0)] for query in queries]


def gather(make, *queries):
    async def main():
        return await asyncio.gather(*map(make, queries), return_exceptions=True)

    return asyncio.run(main())


def test_any_index_can_be_searched_and_is_asked_once_for_all_queries_of_a_moment():
    index = Echo()
    assert isinstance(index, Index)
    search = search_tool(index, k=4)
    results = gather(lambda query: search.call(f'{{"query": "{query}"}}'), "a", "b", "c")
    assert [result.content for result in results] == ["[1] a: text", "[1] b: text", "[1] c: text"]
    assert index.batches == [(["a", "b", "c"], 4)]
    assert search.spec == search_tool(Bm25Index(PASSAGES), k=4).spec, "a model is told the same of every index"


def test_a_searcher_gives_the_hits_themselves():
    index = Echo()
    found = gather(Searcher(index, 2).find, *map(str, range(65)))
    assert [hits[0].passage.id for hits in found] == [str(i) for i in range(65)]
    assert sorted(len(queries) for queries, _ in index.batches) == [1, 64]
    (hits,) = gather(Searcher(Bm25Index(PASSAGES), 1).find, "norway")
    assert show_hits(hits) == "[1] Oslo: The capital of Norway, a city."
    assert show_hits([]) == "No passage matches this query; try other words."


def test_a_query_asked_again_is_answered_from_memory_with_the_same_hits(monkeypatch):
    index = Bm25Index(PASSAGES)
    asked = []
    query = index.query
    monkeypatch.setattr(index, "query", lambda queries, k: asked.append(list(queries)) or query(queries, k))
    searcher = Searcher(index, 2)
    first, second, other = gather(searcher.find, "norway", "norway", "capital")
    assert first == second == query(["norway"], 2)[0]
    assert other == query(["capital"], 2)[0]
    assert asked == [["norway"], ["capital"]]
    first.clear()  # what a caller does with its list is its own affair
    assert searcher.find_now("norway") == second
    assert Searcher(index, 1).find_now("norway") == second[:1], "another searcher has its own k"


def test_an_index_that_fails_is_an_observation_and_the_searcher_stays_usable():
    index = Echo()
    search = search_tool(index, k=1)
    broken = gather(lambda query: search.call(f'{{"query": "{query}"}}'), "a", "boom")
    assert [(result.ok, result.content) for result in broken] == [
        (False, "search failed: OSError: the index is gone")
    ] * 2
    assert gather(lambda query: search.call(f'{{"query": "{query}"}}'), "a")[0].ok


def test_a_search_that_was_cancelled_leaves_the_others_alone():
    index = Echo()
    searcher = Searcher(index, 1)

    async def main():
        leaving, staying = (asyncio.ensure_future(searcher.find(query)) for query in "ab")
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(main())[0].passage.id == "b"
    assert index.batches[-1][0][-1] == "b"


def test_what_a_search_shows_is_cut_where_it_is_told_to():
    found = asyncio.run(search_tool(Bm25Index(PASSAGES), k=1, max_chars=9).call('{"query": "norway"}'))
    assert found.content == "[1] Oslo:\n[cut: 31 of 40 characters are not shown]"
    with pytest.raises(ToolError, match="max_chars is 0"):
        search_tool(Bm25Index(PASSAGES), k=1, max_chars=0)


def test_building_is_silent(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        Bm25Index(PASSAGES).query(["oslo"], 1)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ToolError, match="needs at least one passage"):
        Bm25Index([])
    with pytest.raises(ToolError, match="none of the 1 passages has a word"):
        Bm25Index(PASSAGES[3:])
    with pytest.raises(ToolError, match="k is 0"):
        search_tool(Bm25Index(PASSAGES), k=0)
    with pytest.raises(ToolError, match="k is -1"):
        Bm25Index(PASSAGES).query(["oslo"], k=-1)


def test_search_leaves_jax_alone(tmp_path):
    """bm25s would start jax, which takes most of a GPU's memory from the training beside it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("started = True\n")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(values, k): return values, k\n")
    script = "import turnwise.tools.search.tool, sys; assert 'jax' not in sys.modules; import jax; assert jax.started"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
