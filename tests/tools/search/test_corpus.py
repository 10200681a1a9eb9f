"""A corpus is read whole, or refused by file and line."""

import gzip
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise.errors import ToolError
from turnwise.tools.search.corpus import read_corpus
from turnwise.tools.search.retrieval import Passage, read_contents, title_from, write_contents

LINES = [
    {"id": "p1", "title": "Ærø", "text": "En ø — 「島」."},
    {"_id": 7, "title": "Lumen", "text": " Founded by Ada Brandt. "},
    {"contents": '"Oslo"\nThe capital\nof Norway.'},
]
PASSAGES = [
    Passage(id="p1", title="Ærø", text="En ø — 「島」."),
    Passage(id="7", title="Lumen", text="Founded by Ada Brandt."),
    Passage(id="4", title="Oslo", text="The capital\nof Norway."),
]


def write(path, *lines):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_json_lines_in_their_shapes(tmp_path, name):
    """An id by either name, or the line's number; title and text apart, or as the lines of one string."""
    assert read_corpus(write(tmp_path / name, LINES[0], LINES[1], "", LINES[2])) == PASSAGES


def test_parquet_gives_what_json_lines_give(tmp_path):
    rows = [
        {"id": "p1", "title": "Ærø", "text": "En ø — 「島」.", "extra": 1},
        {"id": "p2", "title": None, "text": "b"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    assert read_corpus(tmp_path / "corpus.parquet") == [PASSAGES[0], Passage(id="p2", title="b", text="b")]


def test_passages_without_titles_take_their_first_words_and_that_is_said_once(tmp_path, caplog):
    text = "one two three four five six seven eight nine ten"
    path = write(tmp_path / "c.jsonl", {"text": text}, {"title": "  ", "text": "short"}, {"title": "Own", "text": "x"})
    with caplog.at_level(logging.WARNING):
        titles = [passage.title for passage in read_corpus(path)]
    assert titles == ["one two three four five six seven eight ...", "short", "Own"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 2 of 3 passages have no title; their first words stand in"
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": ', ":2: not JSON"),
        ('["a"]', ":2: a passage is an object"),
        ({"title": "Lumen"}, ":2: this passage has no text"),
        ({"title": "Lumen", "text": " \n"}, ":2: this passage has no text"),
        ({"title": "Lumen", "text": 3}, ":2: this passage has no text"),
        ({"contents": ""}, ":2: this passage has no text"),
        ({"title": ["a"], "text": "b"}, ":2: the title of this passage is not text"),
        ({"id": 1.5, "text": "b"}, ":2: the id of this passage is neither"),
        ({"id": "p1", "text": "b"}, ":2: the id 'p1' is taken by line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = write(tmp_path / "corpus.jsonl", LINES[0], line)
    with pytest.raises(ToolError) as raised:
        read_corpus(path)
    assert str(raised.value).startswith(f"{path}{words}")
    assert "\n" not in str(raised.value)


def test_a_bad_row_is_named(tmp_path):
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"title": ["a", "b"], "text": ["x", ""]}), path)
    with pytest.raises(ToolError, match=r"corpus\.parquet:row 2: this passage has no text"):
        read_corpus(path)
    pq.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(ToolError, match="no column 'text' or 'contents'; its columns are: body"):
        read_corpus(path)
    path.write_text("not this")
    with pytest.raises(ToolError, match="not a Parquet file that can be read"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.jsonl", b"", "this corpus is empty"),
        ("c.jsonl", b"\n \n", "this corpus is empty"),
        ("c.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "not UTF-8 text from here on"),
        ("c.jsonl.gz", b"plain", r"c\.jsonl\.gz:1: the corpus cannot be read from here on"),
        ("c.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 9)[:-9], "the corpus cannot be read from here on"),
        ("c.csv", b"a,b", "a corpus is a .jsonl"),
    ],
    ids=["empty", "blank", "another encoding", "not compressed", "cut", "another kind"],
)
def test_a_file_that_holds_no_corpus_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ToolError, match=words):
        read_corpus(tmp_path / name)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.jsonl", "nowhere.parquet"])
def test_what_is_not_there_is_said_to_be_so(tmp_path, name):
    with pytest.raises(ToolError, match="there is no such corpus"):
        read_corpus(tmp_path / name)


def test_an_empty_parquet_and_an_empty_folder_are_refused(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    with pytest.raises(ToolError, match="this corpus is empty"):
        read_corpus(tmp_path / "c.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolError, match=r"there is no \.txt or \.md file"):
        read_corpus(tmp_path / "folder")
    (tmp_path / "folder" / "blank.txt").write_text("\n\n")
    with pytest.raises(ToolError, match="this corpus is empty"):
        read_corpus(tmp_path / "folder")


def test_a_folder_of_texts_becomes_passages_of_some_hundred_words(tmp_path):
    """Short paragraphs are joined while they fit; a long one is cut where a sentence ends."""
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "secret.txt").write_text("no")
    (tmp_path / "picture.png").write_bytes(b"\x89")
    forty, sixty = " ".join(["forty"] * 40), " ".join(["sixty"] * 60)
    (tmp_path / "b" / "night_train.txt").write_text(f"{forty}\n\n{sixty}\r\n\r\none more\nline")
    (tmp_path / "a.txt").write_text(" ".join(["word"] * 69 + ["end."] + ["rest"] * 50), encoding="utf-8-sig")
    passages = read_corpus(tmp_path)
    assert [(passage.id, passage.title) for passage in passages] == [
        ("a.txt#1", "a"),
        ("a.txt#2", "a"),
        ("b/night_train.txt#1", "night train"),
        ("b/night_train.txt#2", "night train"),
    ]
    assert passages[0].text.endswith("word end.")
    assert passages[1].text == " ".join(["rest"] * 50)
    assert passages[2].text == f"{forty}\n{sixty}"
    assert passages[3].text == "one more line"


def test_a_long_text_without_sentences_is_cut_at_a_hundred_words(tmp_path):
    (tmp_path / "a.txt").write_text(" ".join(str(i) for i in range(250)))
    assert [len(passage.text.split()) for passage in read_corpus(tmp_path)] == [100, 100, 50]


def test_markdown_headings_are_titles_and_part_passages(tmp_path):
    page = "before\n# Oslo\nA city.\n## History #\nOld.\n```\n# a comment\n```\n\nNew.\n# Bergen\nRain."
    (tmp_path / "cities.md").write_text(page)
    assert [(passage.title, passage.text) for passage in read_corpus(tmp_path)] == [
        ("cities", "before"),
        ("Oslo", "A city."),
        ("Oslo: History", "Old. ``` # a comment ```\nNew."),
        ("Bergen", "Rain."),
    ]


def test_a_text_file_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ToolError, match=r"a\.txt: not UTF-8 text; save it as UTF-8"):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("contents", "read"),
    [
        ("Title\ntext\nmore", ("Title", "text\nmore")),
        ('"Quoted"\ntext', ("Quoted", "text")),
        ('"\ntext', ('"', "text")),
        ("only text", ("", "only text")),
        ("only text\n", ("", "only text")),
        ("", ("", "")),
    ],
)
def test_contents_are_a_title_and_a_text(contents, read):
    assert read_contents(contents) == read


def test_contents_come_back_as_they_were():
    for passage in (PASSAGES[0], Passage(id="", title="two\nlines", text="a\nb")):
        title, text = read_contents(write_contents(passage))
        assert (title, text) == (" ".join(passage.title.split()), passage.text)
    assert title_from("a b") == "a b"
