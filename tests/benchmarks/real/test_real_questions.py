"""What retrieval allows, over a corpus of four passages."""

import gzip
import json

import numpy as np
import pytest

from benchmarks.real.__main__ import main
from turnwise.tools.search import encoders

TEXTS = {
    "Lumen": "Lumen is a firm that Ada Brandt founded.",
    "Ada Brandt": "Ada Brandt was born in Vardo.",
    "Vardo": "Vardo is a town in the north.",
    "Oslo": "Oslo is a capital.",
}
NAMES = {title: f"p{place}" for place, title in enumerate(TEXTS)}


def write(file, entries):
    file.write_bytes(gzip.compress("".join(json.dumps(entry) + "\n" for entry in entries).encode()))


def question(name, text, answer, *titles, source="2wiki", type="compositional"):
    ids = [NAMES[title] for title in titles]
    entry = {"id": name, "source": source, "question": text, "answers": [answer], "type": type}
    return entry | {"supporting_titles": list(titles), "supporting_ids": ids}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "corpus.jsonl.gz", [{"id": NAMES[t], "title": t, "text": x} for t, x in TEXTS.items()])
    return tmp_path / "corpus.jsonl.gz"


def ceilings(capsys, corpus, questions, *options):
    file = corpus.parent / "questions.jsonl.gz"
    write(file, questions)
    assert main(["ceilings", str(file), str(corpus), "--passages", "1", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_ceilings_tell_what_one_search_the_expert_and_known_titles_reach(corpus, capsys):
    born = question("a", "Whence came the founder of Lumen?", "Vardo", "Lumen", "Ada Brandt")
    hidden = question("b", "Which capital?", "a capital", "Oslo", "Vardo", source="hotpot")
    found = ceilings(capsys, corpus, [born, hidden])
    assert found["2wiki"] == {"questions": 1, "question": 0.0, "expert": 1.0, "titles": 1.0, "answer_shown": 1.0}
    # Nothing names Vardo, and a guess does not count; a search for the question shows Oslo, which has the answer.
    assert found["hotpot"] == {"questions": 1, "question": 0.0, "expert": 0.0, "titles": 1.0, "answer_shown": 1.0}
    assert found["all"]["expert"] == 0.5
    cut = ceilings(capsys, corpus, [born], "--chars", "12")
    assert cut["2wiki"]["expert"] == 0.0, "the founder's name is cut off"


class Northward:
    """An encoder by which the north is near to what is up there, and to nothing else."""

    def encode_queries(self, texts):
        return np.array([[1.0, 0.0] if "north" in text or "up there" in text else [0.0, 1.0] for text in texts])

    encode_passages = encode_queries


def test_ceilings_of_an_index_by_meaning(corpus, capsys, monkeypatch):
    monkeypatch.setattr(encoders, "load_encoder", lambda settings: Northward())
    north = question("a", "Which lies up there?", "a town", "Vardo")
    assert ceilings(capsys, corpus, [north])["all"]["question"] == 0.0
    dense = ceilings(capsys, corpus, [north], "--index", "dense", "--encoder", "northward")
    assert (dense["index"], dense["all"]["question"]) == ("dense", 1.0)
