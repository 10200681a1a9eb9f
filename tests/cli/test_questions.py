"""`turnwise questions` writes files that `search_qa` reads, and never what it must avoid."""

import gzip
import json

from chat_stub import says, serve
from tiny_encyclopedia import CORPUS
from turnwise.cli.main import main
from turnwise.envs.qa.env import SearchQA
from turnwise.envs.qa.formats import read_question
from turnwise.envs.qa.writer.files import to_entry


def test_it_writes_what_search_qa_reads(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"id": one.id, "title": one.title, "text": one.text}) for one in CORPUS]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    train = {"question": "Who directed The Lamp?", "answers": ["Robert A. Stemmle"], "supporting_ids": ["p1"]}
    (folder / "train.jsonl").write_text(json.dumps(train), encoding="utf-8")
    dev = {"question": "What?", "answers": ["x"], "supporting_ids": ["p0", "p3"]}
    (folder / "dev.jsonl").write_text(json.dumps(dev), encoding="utf-8")
    target = tmp_path / "written.jsonl.gz"
    assert main(["questions", str(folder), str(target), "--count", "200"]) == 0
    assert "compositional" in capsys.readouterr().out
    entries = [json.loads(line) for line in gzip.decompress(target.read_bytes()).splitlines()]
    assert all(set(entry["supporting_ids"]) != {"p0", "p3"} for entry in entries)
    first = read_question("here", entries[0], {})
    assert to_entry(first) == entries[0]
    before = target.read_bytes()
    assert main(["questions", str(folder), str(target), "--count", "200"]) == 0
    assert target.read_bytes() == before
    parts = []
    for part in ("0:10", "10:"):
        assert main(["questions", str(folder), str(target), "--count", "200", "--take", part]) == 0
        parts += [json.loads(line) for line in gzip.decompress(target.read_bytes()).splitlines()]
    assert parts == entries
    assert main(["questions", str(folder), str(target), "--take", "ten"]) == 2
    assert "write FIRST:LAST" in capsys.readouterr().err
    explained = tmp_path / "train.jsonl"
    assert main(["questions", str(folder), str(explained), "--explain"]) == 0
    assert [json.loads(line)["question"] for line in explained.read_text().splitlines()] == [train["question"]]
    assert main(["questions", str(tmp_path), str(target)]) == 2
    assert "corpus" in capsys.readouterr().err


def test_a_corpus_file_will_do_and_questions_to_avoid_may_be_given(tmp_path, capsys):
    corpus, target, avoid = (tmp_path / name for name in ("passages.jsonl", "written.jsonl", "secret.jsonl"))
    lines = [json.dumps({"id": one.id, "title": one.title, "text": one.text}) for one in CORPUS]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    avoid.write_text(json.dumps({"question": "What?", "answers": ["x"], "supporting_ids": ["p0", "p3"]}))

    def pairs(*options: str) -> set[frozenset[str]]:
        assert main(["questions", str(corpus), str(target), "--count", "200", *options]) == 0
        return {frozenset(json.loads(line)["supporting_ids"]) for line in target.read_text().splitlines()}

    assert any({"p0", "p3"} <= ids for ids in pairs())
    assert not any({"p0", "p3"} <= ids for ids in pairs("--avoid", str(avoid)))
    assert main(["questions", str(corpus), str(target), "--explain"]) == 2
    assert "train.jsonl" in capsys.readouterr().err


def test_a_corpus_without_facts_is_one_line(tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "a", "title": "Note", "text": "Buy milk."}))
    assert main(["questions", str(tmp_path / "corpus.jsonl"), str(tmp_path / "out.jsonl")]) == 2
    assert "encyclopedic passages" in capsys.readouterr().err


def test_a_folder_of_documents_is_read_as_search_qa_reads_it(tmp_path, capsys):
    folder, target = tmp_path / "documents", tmp_path / "written.jsonl"
    folder.mkdir()
    assert main(["questions", str(folder), str(target)]) == 2
    assert "no .txt or .md files" in capsys.readouterr().err
    for place, one in enumerate(CORPUS):
        (folder / f"{place:02d}.txt").write_text(f"{one.title}\n\n{one.text}", encoding="utf-8")
    assert main(["questions", str(folder), str(target), "--count", "50"]) == 0
    env = SearchQA(questions=str(target), corpus=str(folder))
    assert env.tasks("train")
    assert all(task.data["supporting_ids"] for task in env.tasks("train")), "which the corpus has"


def test_a_models_questions_are_written_through_an_endpoint(tmp_path, capsys):
    corpus, target = tmp_path / "notes.jsonl", tmp_path / "asked.jsonl"
    notes = {"Alpha Rock": "Alpha Rock is near Beta Rock", "Beta Rock": "Beta Rock stands in the sea near Alpha Rock"}
    corpus.write_text("\n".join(json.dumps({"id": t, "title": t, "text": x}) for t, x in notes.items()))
    avoid = tmp_path / "dev.jsonl"
    avoid.write_text(json.dumps({"question": "?", "answers": ["x"], "supporting_ids": list(notes)}))

    def play(body, number):
        prompt = body["messages"][0]["content"]
        if "Write one question" in prompt:
            kind = (
                "Is Alpha Rock or Beta Rock drier?"
                if "compares them" in prompt
                else f"What does it stand in, {number}?"
            )
            return says(json.dumps({"question": kind, "answer": "Alpha Rock" if "compares" in prompt else "the sea"}))
        return says("Alpha Rock" if "drier" in prompt else "the sea" if prompt.count(": ") == 2 else "unknown")

    with serve(play) as stub:
        command = ["questions", str(corpus), str(target), "--endpoint", stub.url]
        options = ["--api-model", "m", "--api", "concurrency=1"]
        assert main([*command, *options]) == 0
        assert "1 questions: 1 " in capsys.readouterr().out
        entry = json.loads(target.read_text())
        assert (entry["source"], set(entry["supporting_ids"])) == ("asked", set(notes))
        assert read_question("here", entry, {}).hops == 2
        assert {body["model"] for body in stub.bodies} == {"m"}
        assert main([*command, *options, "--avoid", str(avoid)]) == 2
        assert "wrote no question" in capsys.readouterr().err
        assert main(command) == 2
        assert "--api-model NAME" in capsys.readouterr().err
        assert main([*command, *options, "--explain"]) == 2
        assert "leave them out" in capsys.readouterr().err
    with serve(lambda body, number: says("I cannot.")) as stub:
        assert main(["questions", str(corpus), str(target), "--endpoint", stub.url, "--api-model", "m"]) == 2
        assert "no question in the reply" in capsys.readouterr().err
