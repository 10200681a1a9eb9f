"""How training questions are divided into those that are demonstrated and those that RL learns on."""

import gzip
import json
from pathlib import Path

import pytest

from tiny_encyclopedia import CORPUS
from turnwise import recipes
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.division import Division, divide, keep_complete
from turnwise.recipes import packaged_divisions, read_recipe
from turnwise.settings import parse_settings
from turnwise.tools.search.bm25 import Bm25Settings
from turnwise.tools.search.retrieval import Passage

TEXTS = {
    "Lumen": "Lumen is a firm that Ada Brandt founded.",
    "Ada Brandt": "Ada Brandt was born in Vardo.",
    "Vardo": "Vardo is a town in the north.",
    "Oslo": "Oslo is a capital.",
}
NAMES = {title: f"p{place}" for place, title in enumerate(TEXTS)}
PASSAGES = [Passage(id=NAMES[title], title=title, text=text) for title, text in TEXTS.items()]


def question(name, text, answer, *titles, source="2wiki", type="compositional", evidence=""):
    return Question(
        id=name,
        text=text,
        answers=(answer,),
        supporting_titles=titles,
        supporting_ids=tuple(NAMES[title] for title in titles),
        source=source,
        type=type,
        evidence=evidence,
    )


def division(**settings):
    return Division.model_validate({"written_sft": 9, "written_rl": 9, "rl_written": 9, **settings})


def names(questions):
    return sorted(question.id for question in questions)


WHOLE = question("whole", "Whence came the founder of Lumen?", "Vardo", "Lumen", "Ada Brandt")
FOUNDER = question("founder", "Who founded Lumen?", "Ada Brandt", "Lumen", source="hotpot", type="bridge")
BORN = question("born", "Where?", "Vardo", "Ada Brandt", source="musique", type="2hop")


def test_what_is_not_demonstrated_is_left_to_rl():
    shown, rl = divide([], [WHOLE, FOUNDER, BORN], division(demonstrated_real={"2wiki": 5, "hotpot": 5}))
    assert (names(shown), names(rl)) == (["founder", "whole"], ["born"])


def test_a_source_of_which_there_are_too_few_is_in_both():
    wanted = division(demonstrated_real={"hotpot": 1}, in_both=("hotpot",))
    shown, rl = divide([], [WHOLE, FOUNDER], wanted)
    assert (names(shown), names(rl)) == (["founder"], ["founder", "whole"])


def test_so_many_of_each_source_and_of_each_written_type():
    real = [question(f"r{number}", "?", "Vardo", "Lumen") for number in range(6)]
    written = [question(f"w{number}", "?", "Vardo", "Lumen", type="ab"[number % 2]) for number in range(6)]
    shown, rl = divide(written, real, division(demonstrated_real={"2wiki": 4}, demonstrated_written={"a": 2}))
    assert [one.id for one in shown[:2]] == ["w0", "w2"], "the first of their type"
    assert len(shown) == 2 + 4
    assert names([*shown[2:], *rl]) == names(real), "each once"


def test_comparisons_without_evidence_are_left_to_rl_where_asked():
    plain = question("plain", "Who?", "Ada Brandt", "Lumen", type="bridge_comparison")
    told = question("told", "Who?", "Ada Brandt", "Lumen", type="comparison", evidence="Ada Brandt did.")
    for sources, expected in {("2wiki",): ["told"], (): ["plain", "told"], ("hotpot",): ["plain", "told"]}.items():
        shown, rl = divide([], [plain, told], division(demonstrated_real={"2wiki": 5}, needs_evidence=sources))
        assert names(shown) == expected
        assert names([*shown, *rl]) == ["plain", "told"]


def test_demonstrations_that_do_not_show_what_the_answer_follows_from_are_left_out():
    unread = question("unread", "Which town?", "Bergen", "Vardo", "Oslo")
    hidden = question("hidden", "Whence came the founder of Lumen?", "Vardo", "Lumen", "Oslo")
    compared = question("compared", "Are Lumen and Vardo towns?", "no", "Lumen", "Vardo", type="comparison")
    kept = keep_complete([WHOLE, unread, hidden, compared], PASSAGES, division(passages=1), cache="off")
    assert names(kept) == ["compared", "whole"], "no passage has Bergen, and nothing names Oslo"
    assert names(keep_complete([WHOLE], PASSAGES, division(passages=1, passage_chars=12), cache="off")) == []
    assert keep_complete([], PASSAGES, division(), cache="off") == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "encyclopedia"
    folder.mkdir()
    lines = [json.dumps({"id": one.id, "title": one.title, "text": one.text}) for one in CORPUS]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    asked = [
        {"question": "Who directed The Lamp?", "answers": ["Robert A. Stemmle"], "supporting_ids": ["p1"]},
        {"question": "Who?", "answers": ["nobody at all"], "supporting_ids": ["p0"], "source": "own"},
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    return folder


def read(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_one_command_writes_all_that_a_recipe_trains_on(folder, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        "count: 40\nwritten_sft: 20\nwritten_rl: 6\nrl_written: 4\n"
        "demonstrated_written: {compositional: 50, comparison: 50}\ndemonstrated_real: {own: 1}\n"
    )
    command = ["questions", str(folder), str(tmp_path / "data"), "--divide", str(tmp_path / "mine.yaml")]
    assert main(command) == 0
    told = capsys.readouterr().out
    data = tmp_path / "data" / "mine"
    files = {file.name.removesuffix(".jsonl.gz"): read(file) for file in data.iterdir()}
    assert files.keys() == {"written-sft", "written-rl", "train-explained", "sft", "rl"}
    assert all(f"{data / name}.jsonl.gz: {len(kept)} questions" in told for name, kept in files.items())
    assert len(files["written-sft"]) == 20
    assert files["rl"] == [files["train-explained"][0], *files["written-rl"][:4]]
    assert files["sft"] == [one for one in files["written-sft"] if one["type"] in ("compositional", "comparison")]
    assert "left out 1 that the expert does not answer by search" in told
    before = {file: file.read_bytes() for file in data.iterdir()}
    assert main(command) == 0
    assert {file: file.read_bytes() for file in data.iterdir()} == before
    (tmp_path / "other.yaml").write_text("extends: mine.yaml\nrl_written: 1\n")
    assert main([*command[:-1], str(tmp_path / "other.yaml")]) == 0
    assert {file: file.read_bytes() for file in data.iterdir()} == before, "each division has a folder of its own"
    assert len(read(tmp_path / "data" / "other" / "rl.jsonl.gz")) == 2


def test_bridges_are_written_besides_and_demonstrated_where_asked_for(folder, tmp_path, capsys):
    settings = "count: 40\nwritten_sft: 25\nwritten_rl: 5\nrl_written: 5\n"
    (tmp_path / "plain.yaml").write_text(settings)
    (tmp_path / "mine.yaml").write_text(f"{settings}bridges: 12\ndemonstrated_written: {{bridge: 4}}\n")
    for name in ("plain", "mine"):
        assert main(["questions", str(folder), str(tmp_path), "--divide", str(tmp_path / f"{name}.yaml")]) == 0
    files = {name: read(tmp_path / name / "written-sft.jsonl.gz") for name in ("plain", "mine")}
    assert not any(one["type"] == "bridge" for one in files["plain"])
    others = [one["question"] for one in files["mine"] if one["type"] != "bridge"]
    assert others == [one["question"] for one in files["plain"]][: len(others)], "the others are the same"
    assert len(others) < 25
    shown = read(tmp_path / "mine" / "sft.jsonl.gz")
    assert shown
    assert {one["type"] for one in shown} == {"bridge"}
    assert len(shown) <= 4
    capsys.readouterr()
    assert main(["questions", str(folder), str(tmp_path / "all.jsonl"), "--count", "10", "--bridges", "7"]) == 0
    assert "7 bridge" in capsys.readouterr().out


def test_the_folders_own_bridges_are_explained_where_asked_for(folder, tmp_path):
    asked = {
        "question": "The Lamp is by the son of Otto Stemmle and which woman?",
        "answers": ["Clara Winter"],
        "supporting_ids": ["p1", "p4"],
        "type": "bridge",
    }
    own = (folder / "train.jsonl").read_text(encoding="utf-8")
    (folder / "train.jsonl").write_text(f"{own}\n{json.dumps(asked)}", encoding="utf-8")
    for name, more in {"plain": "", "mine": "explain_bridges: true\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"count: 40\nwritten_sft: 9\nwritten_rl: 5\nrl_written: 5\n{more}")
        assert main(["questions", str(folder), str(tmp_path), "--divide", str(tmp_path / f"{name}.yaml")]) == 0
    told = {name: read(tmp_path / name / "train-explained.jsonl.gz")[-1].get("evidence") for name in ("plain", "mine")}
    assert told["plain"] is None
    assert told["mine"] == (
        "The Lamp is a 1955 West German film directed by Robert A. Stemmle. "
        "Robert A. Stemmle was the son of Otto Stemmle and his wife Clara Winter."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["data", "--divide", "qwen-500n"], "did you mean 'qwen-500m'?"),
        (["data", "--divide", "absent.yaml"], "there is no file 'absent.yaml'"),
        (
            ["data", "--divide", "qwen-500m", "--take", "0:5"],
            "leave out --count, --bridges, --contrasts, --seed, --take and --explain",
        ),
        (["data", "--divide", "qwen-500m", "--bridges", "5"], "leave out --count, --bridges, --contrasts, --seed,"),
        (["data", "--divide", "qwen-500m", "--contrasts", "5"], "leave out --count, --bridges, --contrasts, --seed,"),
        (["data", "--bridges", "5", "--endpoint", "http://x/v1", "--api-model", "m"], "leave them out with --endpoint"),
        (["data/sft.jsonl.gz", "--divide", "qwen-500m"], "give a folder, such as data, in place of data/sft.jsonl.gz"),
        (["data", "--divide", "wrong.yaml"], "wriiten_sft: unknown key in wrong.yaml; did you mean 'written_sft'?"),
        (
            ["afile", "--divide", "qwen-500m"],
            "--divide writes several files: give a folder, such as data, in place of afile",
        ),
        (
            ["data", "--divide", "qwen-500m"],
            "demonstrated_real: no training question has the source '2wiki'; there are: ",
        ),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text("wriiten_sft: 3\n")
    Path("afile").touch()
    assert main(["questions", str(folder), *options]) == 2
    assert message in capsys.readouterr().err
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 24}, "written_sft and written_rl are 25 questions and count is 24: raise count, or lower them"),
        (
            {"count": 14, "bridges": 9},
            "written_sft and written_rl are 25 questions and count is 14, and bridges 9: raise count, or lower them",
        ),
        ({"rl_written": 6}, "rl_written is 6 of the 5 questions in written_rl: lower it, or raise written_rl"),
        ({"demonstrated_written": "{comparison: -1}"}, "demonstrated_written.comparison: "),
        (
            {"demonstrated_written": "{compositonal: 5}"},
            "no question in written-sft has the type 'compositonal' (did you mean 'compositional'?)",
        ),
        ({"demonstrated_real": "{owm: 1}"}, "no training question has the source 'owm' (did you mean 'own'?)"),
        ({"in_both": "[musique]"}, "in_both: no training question has the source 'musique'; there are: "),
        ({"needs_evidence": "[musique]"}, "needs_evidence: no training question has the source 'musique'"),
        ({"count": 20000, "written_sft": 16000}, "takes the first 16000 and leaves none to written_rl; lower it"),
    ],
)
def test_a_division_that_would_leave_a_part_empty_is_one_line(folder, tmp_path, monkeypatch, capsys, changes, message):
    monkeypatch.chdir(tmp_path)
    settings = {"count": 40, "written_sft": 20, "written_rl": 5, "rl_written": 5} | changes
    Path("mine.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    assert main(["questions", str(folder), "data", "--divide", "mine.yaml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("data").exists(), "nothing is left half-written"


def test_a_corpus_without_training_questions_is_refused_before_anything_is_written(folder, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("count: 40\nwritten_sft: 20\nwritten_rl: 5\nrl_written: 5\n")
    data, mine = tmp_path / "data", tmp_path / "mine.yaml"
    assert main(["questions", str(folder / "corpus.jsonl"), str(data), "--divide", str(mine)]) == 2
    assert "there are no training questions" in capsys.readouterr().err
    assert not data.exists()


@pytest.mark.parametrize("name", packaged_divisions())
def test_a_packaged_division_fits_the_recipe_that_names_it(name):
    file = packaged_divisions()[name]
    division = parse_settings(Division, read_recipe(file), source=name)
    assert division.rl_written <= division.written_rl
    assert division.written_sft + division.written_rl <= division.count + division.bridges + division.contrasts
    named = [path for path in recipes.packaged_recipes().values() if f"--divide {name}\n" in path.read_text()]
    for path in named:
        args = load_config(path).env.args
        bm25 = parse_settings(Bm25Settings, args.get("bm25", {}), source=path.name)
        shown = division.passages, division.passage_chars, division.bm25
        assert (args["passages"], args["passage_chars"], bm25) == shown, "as the expert was tried"
        files = args["questions"]
        assert files.pop("dev") == "data/multihop/dev.jsonl.gz"
        assert files.pop("sft") == f"data/{name}/sft.jsonl.gz"
        train = files["train"] if isinstance(files["train"], list) else [files["train"]]
        assert {str(Path(file).parent) for file in train} == {f"data/{name}"}
    assert len(named) == (0 if name == "qwen-1.5b-all" else 1), "docs/results.md alone names that one"
