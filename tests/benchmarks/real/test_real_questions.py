"""What retrieval allows, over a corpus of four passages."""

import gzip
import json

import numpy as np
import pytest

from benchmarks.real.__main__ import main
from tiny_encyclopedia import CORPUS as ENCYCLOPEDIA
from turnwise.envs.qa.writer.facts import FactBook
from turnwise.envs.qa.writer.files import to_entry
from turnwise.envs.qa.writer.questions import write_questions
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


def test_of_held_out_questions_those_that_a_writer_who_does_not_know_them_would_ask_about(tmp_path, capsys):
    passages = [{"id": one.id, "title": one.title, "text": one.text} for one in ENCYCLOPEDIA]
    written = write_questions(FactBook(ENCYCLOPEDIA), count=40)
    known = next(to_entry(one) for one in written if one.type == "compositional") | {"source": "2wiki"}
    five = passages[:5]  # no written question has so many
    other = {"supporting_ids": [one["id"] for one in five], "supporting_titles": [one["title"] for one in five]}
    write(tmp_path / "corpus.jsonl.gz", passages)
    write(tmp_path / "train.jsonl.gz", [to_entry(written[0])])
    write(tmp_path / "dev.jsonl.gz", [known, known | other | {"id": "other", "source": "hotpot", "type": "bridge"}])
    assert main(["reach", str(tmp_path), "--count", "40", "--bridges", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["held_out"], found["reached"]) == (2, 1)
    assert found["kinds"] == {
        "2wiki compositional": {"held_out": 1, "reached": 1},
        "hotpot bridge": {"held_out": 1, "reached": 0},
    }
