"""How training questions are divided, and what retrieval allows, over a corpus of four passages."""

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


def read(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


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


def test_questions_that_are_divided_are_demonstrated_whole_and_else_left_to_rl(corpus, capsys):
    folder = corpus.parent
    whole = question("w", "Whence came the founder of Lumen?", "Vardo", "Lumen", "Ada Brandt")
    unread = question("u", "Which town?", "Bergen", "Vardo", "Oslo")
    hotpot = question("h", "Who founded Lumen?", "Ada Brandt", "Lumen", source="hotpot", type="bridge")
    musique = question("m", "Where?", "Vardo", "Ada Brandt", source="musique", type="2hop")
    write(folder / "train-explained.jsonl.gz", [whole, unread, hotpot, musique])
    write(folder / "written-sft.jsonl.gz", [whole | {"id": "ws", "source": "written"}])
    write(folder / "written-rl.jsonl.gz", [whole | {"id": "wr", "source": "written"}])
    assert main(["divide", str(folder), "--corpus", str(corpus)]) == 0
    counts = json.loads(capsys.readouterr().out)
    names = {name: {entry["id"] for entry in read(folder / f"{name}.jsonl.gz")} for name in ("sft", "rl")}
    assert names == {"sft": {"w", "ws", "h"}, "rl": {"h", "m", "wr"}}, "nor an answer that nothing shows"
    assert counts["rl"] == {"hotpot bridge": 1, "musique 2hop": 1, "written compositional": 1}


def test_one_may_leave_comparisons_without_evidence_to_rl(corpus, capsys):
    folder = corpus.parent
    plain = question("p", "Who founded Lumen?", "Ada Brandt", "Lumen", source="2wiki", type="comparison")
    told = plain | {"id": "t", "evidence": "Ada Brandt did."}
    few = question("m", "Whence came Ada Brandt?", "Vardo", "Ada Brandt", source="musique", type="2hop")
    write(folder / "train-explained.jsonl.gz", [plain, told, few])
    for name in ("written-sft", "written-rl"):
        write(folder / f"{name}.jsonl.gz", [])
    assert main(["divide", str(folder), "--corpus", str(corpus), "--like", "qwen-500m"]) == 0
    names = {name: {entry["id"] for entry in read(folder / f"{name}.jsonl.gz")} for name in ("sft", "rl")}
    assert names == {"sft": {"t", "m"}, "rl": {"p", "m"}}
    assert main(["divide", str(folder), "--corpus", str(corpus), "--like", "qwen-1.5b"]) == 0
    assert {entry["id"] for entry in read(folder / "rl.jsonl.gz")} == {"p"}, "nothing that was demonstrated"
