"""Question sets in each public format, by hand; every way to get a file wrong is one line that names the place."""

import gzip
import json
import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise.envs.qa.data import find_corpus, join_contexts, read_questions, read_splits, to_tasks
from turnwise.envs.qa.formats import Question
from turnwise.errors import EnvError
from turnwise.tools.search.retrieval import Passage

HOTPOT = {
    "_id": "5a7a",
    "question": "Which light did the founder of Lumen build?",
    "answer": "Vardø",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Ada Brandt", 1], ["Lumen &amp; Sons", 0], ["Ada Brandt", 0]],
    "context": [
        ["Oslo", ["Oslo is a city.", " It is large."]],
        ["Lumen &amp; Sons", ["Lumen was founded by Ada Brandt."]],
        ["Ada Brandt", ["Ada was an engineer.", " She built the light of Vardø."]],
    ],
}
HOTPOT_READ = Question(
    id="5a7a",
    text="Which light did the founder of Lumen build?",
    answers=("Vardø",),
    supporting_titles=("Ada Brandt", "Lumen & Sons"),
    hops=2,
    source="hotpot",
    type="bridge",
    context=(
        Passage(id="", title="Oslo", text="Oslo is a city. It is large."),
        Passage(id="", title="Lumen & Sons", text="Lumen was founded by Ada Brandt."),
        Passage(id="", title="Ada Brandt", text="Ada was an engineer. She built the light of Vardø."),
    ),
    gold=(2, 1),
)
TWO_WIKI = {
    "_id": "0bdd",
    "type": "compositional",
    "question": "Who is the spouse of the director of film Fog?",
    "context": [
        ["Fog (film)", ["Fog is a film by Jo Ek."]],
        ["Jo Ek", ["Jo Ek married Bo Lind.", "They live in Lund."]],
    ],
    "supporting_facts": [["Fog (film)", 0], ["Jo Ek", 0]],
    "evidences": [["Fog", "director", "Jo Ek"], ["Jo Ek", "spouse", "Bo Lind"]],
    "answer": "Bo Lind",
    "evidences_id": [],
    "answer_id": "Q9",
}
MUSIQUE = {
    "id": "2hop__132469_533882",
    "paragraphs": [
        {"idx": 0, "title": "Martin Marietta", "paragraph_text": "It followed Glenn Martin.", "is_supporting": True},
        {"idx": 1, "title": "Oslo", "paragraph_text": "A city.", "is_supporting": False},
        {"idx": 2, "title": "Oriole", "paragraph_text": "A missile by Glenn Martin.", "is_supporting": True},
    ],
    "question": "Which company followed the one that made Oriole?",
    "question_decomposition": [
        {"id": 132469, "question": "Oriole >> made by", "answer": "Glenn Martin", "paragraph_support_idx": 2},
        {"id": 533882, "question": "#1 >> followed by", "answer": "Martin Marietta", "paragraph_support_idx": 0},
    ],
    "answer": "Martin Marietta",
    "answer_aliases": ["Martin-Marietta", "Martin Marietta Corp.", "..."],
    "answerable": True,
}
PLAIN = {"question": "What is 6 × 7?", "answers": [42, "forty-two"]}


def write_lines(path, entries):
    text = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def read_one(path):
    (question,) = read_questions(path)
    return question


def test_hotpot_as_its_authors_publish_it(tmp_path):
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps([HOTPOT]))
    assert read_one(path) == HOTPOT_READ


def test_hotpot_as_the_hub_holds_it(tmp_path):
    row = {
        "id": "5a7a",
        **{key: HOTPOT[key] for key in ("question", "answer", "type", "level")},
        "supporting_facts": {"title": [title for title, _ in HOTPOT["supporting_facts"]], "sent_id": [1, 0, 0]},
        "context": {
            "title": [title for title, _ in HOTPOT["context"]],
            "sentences": [sentences for _, sentences in HOTPOT["context"]],
        },
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "validation.parquet")
    assert read_one(tmp_path / "validation.parquet") == HOTPOT_READ


def test_two_wiki_is_told_from_hotpot_and_counts_its_gold_passages_as_hops(tmp_path):
    question = read_one(write_lines(tmp_path / "dev.json", [TWO_WIKI]))
    assert (question.source, question.type, question.hops, question.gold) == ("2wiki", "compositional", 2, (0, 1))
    assert question.supporting_titles == ("Fog (film)", "Jo Ek")
    assert question.context[1].text == "Jo Ek married Bo Lind. They live in Lund."
    assert question.answers == ("Bo Lind",)


def test_two_wiki_takes_the_aliases_that_lie_beside_it(tmp_path):
    write_lines(tmp_path / "id_aliases.json", [{"Q_id": "Q9", "aliases": ["B. Lind", "🇸🇪"], "demonyms": []}])
    assert read_one(write_lines(tmp_path / "dev.json", [TWO_WIKI])).answers == ("Bo Lind", "B. Lind", "🇸🇪")
    write_lines(tmp_path / "id_aliases.json", [{"id": "Q9", "aliases": ["B. Lind"]}])
    with pytest.raises(EnvError, match=r"id_aliases\.json:1: not aliases of 2WikiMultihopQA"):
        read_one(tmp_path / "dev.json")


def test_two_wiki_with_json_in_its_columns_as_the_hub_holds_it(tmp_path):
    packed = ("context", "supporting_facts", "evidences")
    row = {key: json.dumps(value) if key in packed else value for key, value in TWO_WIKI.items() if value != []}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "dev.parquet")
    assert read_one(tmp_path / "dev.parquet") == read_one(write_lines(tmp_path / "dev.jsonl", [TWO_WIKI]))


def test_musique_is_in_the_order_of_its_hops(tmp_path):
    question = read_one(write_lines(tmp_path / "musique_ans_v1.0_dev.jsonl", [MUSIQUE]))
    assert (question.source, question.type, question.hops) == ("musique", "2hop", 2)
    assert question.supporting_titles == ("Oriole", "Martin Marietta")
    assert [question.context[place].title for place in question.gold] == ["Oriole", "Martin Marietta"]
    assert question.answers == ("Martin Marietta", "Martin-Marietta", "Martin Marietta Corp."), (
        "'...' compares to nothing"
    )


@pytest.mark.parametrize(("name", "hops", "kind"), [("3hop1__a_b_c", 3, "3hop1"), ("q7", 2, "")])
def test_musique_says_its_hops_in_its_id(tmp_path, name, hops, kind):
    question = read_one(write_lines(tmp_path / "m.jsonl", [MUSIQUE | {"id": name}]))
    assert (question.hops, question.type) == (hops, kind)


def test_what_cannot_be_asked_is_left_out_aloud(tmp_path, caplog):
    odd = [MUSIQUE | {"answerable": False}, MUSIQUE, PLAIN | {"answers": ["The"]}]
    path = write_lines(tmp_path / "musique_full.jsonl", odd)
    with caplog.at_level(logging.WARNING):
        assert [question.id for question in read_questions(path)] == [MUSIQUE["id"]]
    (said,) = caplog.messages
    assert said == f"2 of 3 questions are left out: {path}:1 is marked as unanswerable, and 1 more"


def test_the_plain_format(tmp_path):
    full = {
        "id": 7,
        "question": " Who? ",
        "golden_answers": ["Ada  Brandt", "Brandt", "Ada Brandt"],
        "supporting_titles": ["Ada Brandt"],
        "supporting_ids": ["p1"],
        "hops": 1,
        "source": "own",
        "type": "person",
        "note": "kept out",
    }
    bare, one, rich = read_questions(
        write_lines(tmp_path / "q.jsonl.gz", [PLAIN, {"question": "?!", "answer": "x"}, full])
    )
    assert bare == Question(text="What is 6 × 7?", answers=("42", "forty-two"))
    assert one.answers == ("x",)
    assert rich == Question(
        id="7",
        text="Who?",
        answers=("Ada Brandt", "Brandt"),
        supporting_titles=("Ada Brandt",),
        supporting_ids=("p1",),
        hops=1,
        source="own",
        type="person",
    )


def test_a_whole_number_is_an_answer_without_its_point(tmp_path):
    """A table makes 42.0 of 42 where its column has gaps, and without punctuation that reads as 420."""
    (tmp_path / "q.jsonl").write_text(
        '{"question": "How many?", "answer": 42.0}\n{"question": "How far?", "answer": 2.5}'
    )
    assert [question.answers for question in read_questions(tmp_path / "q.jsonl")] == [("42",), ("2.5",)]


def test_tasks_carry_plain_data_and_a_name(tmp_path):
    questions = read_questions([PLAIN, HOTPOT])
    plain, hotpot = to_tasks("train", questions)
    assert (plain.id, hotpot.id) == ("train-0", "5a7a")
    assert hotpot.data == {
        "question": HOTPOT["question"],
        "answers": ["Vardø"],
        "supporting_titles": ["Ada Brandt", "Lumen & Sons"],
        "supporting_ids": [],
        "hops": 2,
        "source": "hotpot",
        "type": "bridge",
    }
    assert json.loads(json.dumps(plain.data)) == {
        "question": PLAIN["question"],
        "answers": ["42", "forty-two"],
        "supporting_titles": [],
        "supporting_ids": [],
    }


def test_contexts_join_into_one_corpus_with_each_passage_once():
    again = HOTPOT | {"_id": "other", "supporting_facts": [["Oslo", 0]]}
    lost = HOTPOT | {"_id": "lost", "supporting_facts": [["Bergen", 0], ["Oslo", 0]]}
    splits = read_splits({"train": [HOTPOT, again], "test": [MUSIQUE, lost]})
    passages, named = join_contexts(splits)
    assert [passage.title for passage in passages] == [
        "Oslo",
        "Lumen & Sons",
        "Ada Brandt",
        "Martin Marietta",
        "Oslo",
        "Oriole",
    ]
    assert len({passage.id for passage in passages}) == 6
    titles = {passage.id: passage.title for passage in passages}
    assert [titles[name] for name in named["train"][0].supporting_ids] == ["Ada Brandt", "Lumen & Sons"]
    assert named["train"][1].supporting_ids == (passages[0].id,)
    assert [titles[name] for name in named["test"][0].supporting_ids] == ["Oriole", "Martin Marietta"]
    assert named["test"][1].supporting_ids == (), "one of its gold passages did not come with it"


def many(number, start=0):
    return [{"id": f"q{i}", "question": f"Number {i}?", "answers": [str(i)]} for i in range(start, start + number)]


def test_of_one_set_the_same_share_is_held_out_in_any_order():
    splits = read_splits(many(10), test_share=0.3)
    assert sorted(q.id for q in splits["train"] + splits["test"]) == sorted(f"q{i}" for i in range(10))
    assert len(splits["test"]) == 3
    turned = read_splits(many(10)[::-1], test_share=0.3)
    assert {q.id for q in turned["test"]} == {q.id for q in splits["test"]}
    assert len(read_splits(many(2), test_share=0.01)["test"]) == 1
    assert len(read_splits(many(2), test_share=0.99)["train"]) == 1


def test_a_folder_has_a_file_for_each_split_and_dev_stands_in_for_test(tmp_path):
    write_lines(tmp_path / "train.jsonl.gz", many(3))
    write_lines(tmp_path / "validation.json", many(2, start=3))
    (tmp_path / "test.jsonl.gz.sealed").write_bytes(b"\x00")
    splits = read_splits(tmp_path)
    assert {split: len(listed) for split, listed in splits.items()} == {"train": 3, "dev": 2, "test": 2}
    assert find_corpus(tmp_path) is None
    write_lines(tmp_path / "corpus.jsonl", [{"text": "x"}])
    assert find_corpus(tmp_path) == tmp_path / "corpus.jsonl"
    write_lines(tmp_path / "test.jsonl", many(1, start=9))
    assert len(read_splits(tmp_path)["test"]) == 1
    write_lines(tmp_path / "dev.jsonl", many(1, start=9))
    with pytest.raises(EnvError, match=r"dev\.jsonl and validation\.json are both 'dev'; keep one of them"):
        read_splits(tmp_path)


def test_several_files_make_one_split_and_their_ids_must_differ(tmp_path):
    one, two = write_lines(tmp_path / "a.jsonl", many(2)), write_lines(tmp_path / "b.jsonl", many(2, start=2))
    assert len(read_splits({"train": [str(one), two]})["train"]) == 4
    with pytest.raises(EnvError, match=r"a\.jsonl:1: the id 'q0' is taken by .*a\.jsonl:1; ids must differ"):
        read_splits({"train": [one, one]})


@pytest.mark.parametrize("learnt", ["train", "sft"])
def test_a_question_that_is_learnt_and_in_test_is_said(learnt, caplog):
    with caplog.at_level(logging.WARNING):
        read_splits({"train": many(2), learnt: many(5), "test": [{"question": "number 3", "answer": "3"}]})
    assert caplog.messages == [
        f"1 questions of 'test' are in '{learnt}' as well, so what it says of them is not about new questions"
    ]


def test_a_question_that_is_demonstrated_and_trained_on_is_not(caplog):
    with caplog.at_level(logging.WARNING):
        read_splits({"train": many(5), "sft": many(3), "test": many(2, start=5)})
    assert not caplog.messages


GOOD = '{"question": "a?", "answers": ["b"]}'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("q.jsonl", f"{GOOD}\n\n{{oops", "q.jsonl:3: not JSON: "),
        ("q.jsonl", f"{GOOD}\n[1]", "q.jsonl:2: a question is an object such as"),
        ("q.jsonl", f'{GOOD}\n{{"question": "a?"}}', 'q.jsonl:2: this question has no answer; give it "answers"'),
        ("q.jsonl", '{"question": "a?", "answers": []}', "q.jsonl:1: this question has no answer"),
        ("q.jsonl", '{"question": "a?", "answer": NaN}', "q.jsonl:1: this question has no answer"),
        ("q.jsonl", '{"question": "a?", "answers": [" "]}', "q.jsonl:1: the gold answer of this question is empty"),
        ("q.jsonl", '{"question": "a?", "answers": [["b"]]}', 'q.jsonl:1: this question has ["b"] for an answer'),
        ("q.jsonl", '{"question": "a?", "answers": true}', "q.jsonl:1: this question has true for an answer"),
        ("q.jsonl", '{"answers": ["b"]}', "q.jsonl:1: 'question' is missing; it must be text"),
        ("q.jsonl", '{"question": 3, "answers": ["b"]}', "q.jsonl:1: 'question' is 3; it must be text"),
        ("q.jsonl", GOOD[:-1] + ', "hops": "two"}', 'q.jsonl:1: hops is "two"; give a whole number'),
        ("q.jsonl", GOOD[:-1] + ', "supporting_titles": "Oslo"}', "'supporting_titles' is \"Oslo\"; give a list"),
        (
            "q.jsonl",
            GOOD[:-1] + ', "supporting_titles": ["A", "B"], "supporting_ids": ["p"]}',
            "q.jsonl:1: 2 supporting_titles, 1 supporting_ids; give them in pairs",
        ),
        ("q.jsonl", "\n", "q.jsonl: there is no question here that can be asked"),
        ("q.json", "[]", "q.json: there is no question here that can be asked"),
        ("q.json", f'[{GOOD}, {{"question": "a?"}}]', "q.json:entry 2: this question has no answer"),
        ("q.json", f"[{GOOD}", "q.json: not JSON"),
        (
            "q.json",
            json.dumps([HOTPOT | {"context": [["Oslo"]]}]),
            "q.json:entry 1: 'context' is not a list of [title,",
        ),
        ("q.json", json.dumps([HOTPOT | {"context": "{"}]), "q.json:entry 1: 'context' is text that is not JSON"),
        ("q.json", json.dumps([MUSIQUE | {"paragraphs": [{}]}]), "q.json:entry 1: 'title' is missing"),
        (
            "q.json",
            json.dumps([MUSIQUE | {"paragraphs": [{"idx": [], "title": "t", "paragraph_text": "p"}]}]),
            "q.json:entry 1: 'idx' is []; give the number of a paragraph",
        ),
        (
            "q.json",
            json.dumps([MUSIQUE | {"question_decomposition": [{"paragraph_support_idx": {}}]}]),
            "q.json:entry 1: 'paragraph_support_idx' is {}; give the number of a paragraph",
        ),
        ("q.csv", "question,answer", "q.csv: a file of questions ends in one of .jsonl, .json"),
        ("q.parquet", "no", "q.parquet: not a Parquet file that can be read"),
        ("q.jsonl.gz", "no", "q.jsonl.gz:1: the questions cannot be read from here on: Not a gzipped file"),
    ],
)
def test_every_mistake_in_a_file_is_one_line_that_names_the_place(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(EnvError) as error:
        read_questions(str(tmp_path / name))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_text_that_is_not_utf8_and_files_that_are_not_there(tmp_path):
    (tmp_path / "q.jsonl").write_bytes(f"{GOOD}\n".encode() * 2 + b"\xff\xfe")
    with pytest.raises(EnvError, match="not UTF-8 text from here on"):
        read_questions(tmp_path / "q.jsonl")
    for name in ("none.jsonl", "none.parquet"):
        with pytest.raises(EnvError, match=f"{name}: there is no such file of questions"):
            read_questions(tmp_path / name)
    with pytest.raises(EnvError, match="no questions here; a folder of them has train"):
        read_splits(tmp_path)
    with pytest.raises(EnvError, match=r"write it with: turnwise questions data/multihop data --divide smollm2 \("):
        read_questions("data/smollm2/sft.jsonl.gz")
    with pytest.raises(EnvError, match="there are no questions"):
        read_splits({})


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_a_share_that_leaves_a_split_empty_is_refused(share):
    with pytest.raises(EnvError, match=f"test_share is {share}; it is the share"):
        read_splits(many(4), test_share=share)
    with pytest.raises(EnvError, match="one question cannot be held out from itself"):
        read_splits(many(1))


def test_the_hub_is_asked_only_for_an_address_and_gives_files(tmp_path, monkeypatch):
    write_lines(tmp_path / "b.jsonl", many(2))
    write_lines(tmp_path / "a.jsonl", many(2, start=5))
    asked = []

    def download(repository, file, *, repo_type, revision):
        asked.append((repository, file, repo_type, revision))
        return str(tmp_path / Path(file).name)

    files = ["README.md", "data/b.jsonl", "data/a.jsonl", "other/c.jsonl"]
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda self, repository, *, repo_type, revision: files)
    found = read_questions("hf://datasets/some/set@v2/data/*.jsonl")
    assert [question.id for question in found] == ["q5", "q6", "q0", "q1"]
    assert asked == [("some/set", f"data/{name}.jsonl", "dataset", "v2") for name in "ab"]
    assert len(read_questions("hf://datasets/some/set/data/b.jsonl")) == 2
    assert asked[-1] == ("some/set", "data/b.jsonl", "dataset", None)
    with pytest.raises(EnvError, match=r"no file of that data set is called so"):
        read_questions("hf://datasets/some/set/none-*.jsonl")


def test_offline_the_hub_is_one_line(monkeypatch):
    def offline(*args, **options):
        raise ConnectionError("Cannot reach the hub\nand a page of advice")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    address = "hf://datasets/some/set/train.jsonl"
    with pytest.raises(EnvError) as error:
        read_questions(address)
    assert str(error.value) == (
        f"{address}: the hub does not give it (Cannot reach the hub); download it and name the file"
    )
    with pytest.raises(EnvError, match="write hf://datasets/OWNER/NAME/PATH"):
        read_questions("hf://datasets/some/set")


def find_multihop():
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("TURNWISE_MULTIHOP") or root.parent / "shared" / "data" / "multihop")
    if not (folder / "train.jsonl.gz").is_file():
        pytest.skip("the multihop question set is not here: set TURNWISE_MULTIHOP to its folder")
    return folder


def test_the_ready_set_is_read_whole():
    splits = read_splits(find_multihop())
    assert {split: len(listed) for split, listed in splits.items()} == {"train": 1971, "dev": 600, "test": 600}
    sources = [question.source for question in splits["train"]]
    assert {name: sources.count(name) for name in set(sources)} == {"2wiki": 1349, "hotpot": 561, "musique": 61}
    assert all(len(q.supporting_ids) == len(q.supporting_titles) >= 2 for q in splits["dev"])
    assert sum(question.hops == 4 for question in splits["dev"]) == 59 + 14
