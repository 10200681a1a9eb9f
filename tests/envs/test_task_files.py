"""Tasks from data: every format gives the same tasks, ids and splits hold still, and mistakes name file and row."""

import datetime
import gzip
import json
import sys
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import turnwise
from turnwise.envs import task_files
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.envs.task_files import read_tasks
from turnwise.errors import ConfigError, EnvError
from turnwise.rollout.failures import report_failures
from turnwise.settings import parse_settings
from turnwise.types import StopReason, Trajectory

ROWS = [{"prompt": f"What is {n} + {n}?", "gold": str(2 * n), "level": "easy"} for n in range(40)]
COLUMNS = {"question": "prompt", "answers": "gold"}


def write(folder, name, rows=ROWS):
    path = folder / name
    lines = "".join(json.dumps(row, default=str) + "\n" for row in rows)
    if name.endswith(".jsonl"):
        path.write_text(lines)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows))
    elif name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        mark = "\t" if name.endswith(".tsv") else ","
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        path.write_text("".join(mark.join(line) + "\n" for line in cells))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.parquet"])
def test_every_format_gives_the_same_tasks(tmp_path, name):
    tasks = read_tasks(write(tmp_path, name), columns=COLUMNS)
    assert len(tasks) == 40
    assert tasks[3].data == {"level": "easy", "question": "What is 3 + 3?", "answers": "6"}
    assert tasks[3].id == "2b43df244e0d6b6b", "it follows from the content, on every machine"
    assert len({task.id for task in tasks}) == len({task.seed for task in tasks}) == 40


def test_ids_and_seeds_do_not_depend_on_order_or_number(tmp_path):
    whole = {task.data["prompt"]: task for task in read_tasks(write(tmp_path, "a.jsonl"))}
    part = read_tasks(write(tmp_path, "b.jsonl", ROWS[::-2]))
    assert all(whole[task.data["prompt"]] == task for task in part)


def test_a_column_may_be_the_id_and_the_seed(tmp_path):
    rows = [{"uid": f"q{n}", "n": n, "question": "Why?"} for n in range(3)]
    (task, *_) = read_tasks(write(tmp_path, "a.jsonl", rows), columns={"id": "uid", "seed": "n"})
    assert (task.id, task.seed, task.data) == ("q0", 0, {"question": "Why?"})
    rows = [{"id": 7, "question": "Why?"}]
    assert read_tasks(write(tmp_path, "b.jsonl", rows))[0].id == "7"
    with pytest.raises(EnvError, match=r"c\.jsonl:2: the id '7' is that of .*c\.jsonl:1, too"):
        read_tasks(write(tmp_path, "c.jsonl", rows * 2))


def test_equal_rows_are_numbered(tmp_path):
    first, second, third = read_tasks(write(tmp_path, "a.jsonl", [{"question": "Why?"}] * 3))
    assert (second.id, third.id) == (f"{first.id}-2", f"{first.id}-3")
    assert first.seed == second.seed


def test_dots_lead_into_nested_values(tmp_path):
    """As verl writes its Parquet files."""
    row = {"prompt": [{"role": "user", "content": "Why?"}], "reward_model": {"ground_truth": "So.", "style": "rule"}}
    columns = {"question": "prompt.0.content", "answers": "reward_model.ground_truth"}
    (task,) = read_tasks(write(tmp_path, "a.parquet", [row]), columns=columns)
    assert task.data == {"question": "Why?", "answers": "So."}


def test_a_share_is_held_out_by_content(tmp_path):
    splits = read_tasks({"train": write(tmp_path, "a.jsonl"), "test": 0.25, "validation": 0.1}, columns=COLUMNS)
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 27, "test": 10, "validation": 3}
    ids = [task.id for tasks in splits.values() for task in tasks]
    assert len(set(ids)) == 40
    shuffled = read_tasks({"train": write(tmp_path, "b.jsonl", ROWS[::-1]), "test": 0.25}, columns=COLUMNS)
    assert {t.id for t in shuffled["test"]} == {t.id for t in splits["test"]}
    other = read_tasks({"train": tmp_path / "a.jsonl", "test": 0.25}, columns=COLUMNS, seed=1)
    assert {t.id for t in other["test"]} != {t.id for t in splits["test"]}


def test_equal_rows_are_never_divided(tmp_path):
    for seed in range(8):
        splits = read_tasks({"train": write(tmp_path, "a.jsonl", [*ROWS, *ROWS]), "test": 0.3}, seed=seed)
        questions = [{task.data["prompt"] for task in splits[name]} for name in ("train", "test")]
        assert not questions[0] & questions[1]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", '{"prompt": 1}\n\n{"prompt": \n', r"a\.jsonl:3: not JSON: "),
        ("a.jsonl", '{"prompt": 1}\n[1]\n', r"a\.jsonl:2: a row is a mapping of columns, not list$"),
        ("a.jsonl", "", r"a\.jsonl: there are no rows in it$"),
        (
            "a.jsonl",
            '{"prompt": 1}\n{"promt": 1}\n',
            r"a\.jsonl:2: there is no column 'prompt' for 'question' \(did you mean",
        ),
        ("a.json", "[1, 2", r"a\.json: not JSON: "),
        ("a.csv", "prompt,gold\na,b\nc\n", r"a\.csv:3: 1 values, but 2 columns: prompt, gold$"),
        ("a.csv", 'prompt\n"a\n', r"a\.csv:2: not CSV: "),
        ("a.csv", "a,a\n1,2\n", r"a\.csv:1: two columns have the same name: a, a$"),
        ("a.parquet", "no", r"a\.parquet: not a Parquet file that can be read: "),
        ("a.jsonl.gz", "no", r"a\.jsonl\.gz: cannot be read: "),
    ],
)
def test_a_mistake_names_the_file_and_the_row(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(EnvError, match=told) as raised:
        read_tasks(tmp_path / name, columns={"question": "prompt"})
    assert "\n" not in str(raised.value)


def test_a_failed_episode_names_the_file_and_the_row_of_its_task(tmp_path, caplog):
    path = write(tmp_path, "a.jsonl", [{"question": "Why?"}, {"answers": ["so"]}, {"answers": ["so"]}])
    (well, *broken) = read_tasks(path)
    failed = [
        Trajectory(task=task, turns=(), stop=StopReason.ENV_FAILED, failure=f"task '{task.id}': reset: no question")
        for task in broken
    ]
    report_failures([*failed, Trajectory(task=well, turns=(), stop=StopReason.DONE)])
    assert f"2 times alike: task '{broken[0].id}': reset: no question [{path}:2]" in caplog.text
    assert broken[1].origin == f"{path}:3"


def test_what_is_not_there_is_said(tmp_path):
    write(tmp_path, "train.jsonl")
    with pytest.raises(EnvError, match=r"trian\.jsonl: there is no such file; the folder has: train\.jsonl$"):
        read_tasks(tmp_path / "trian.jsonl")
    with pytest.raises(EnvError, match=r"^tasks: neither a file that ends in one of \.jsonl, "):
        read_tasks("tasks")
    with pytest.raises(EnvError, match=r"a share of 0\.001 of 40 tasks leaves one side empty"):
        read_tasks({"train": tmp_path / "train.jsonl", "test": 0.001})
    with pytest.raises(EnvError, match="a share is held out of 'train', for which there is no file"):
        read_tasks({"test": 0.1})


def test_text_stays_text_and_dates_become_it(tmp_path):
    (tmp_path / "a.csv").write_text('question,gold\n"Which, then?",007\n')
    assert read_tasks(tmp_path / "a.csv")[0].data == {"question": "Which, then?", "gold": "007"}
    rows = [{"question": "When?", "day": datetime.date(2026, 1, 2), "nothing": None}]
    assert read_tasks(write(tmp_path, "a.parquet", rows))[0].data == {"question": "When?", "day": "2026-01-02"}
    with pytest.raises(EnvError, match=r"b\.parquet:row 1: the column 'image' holds bytes"):
        read_tasks(write(tmp_path, "b.parquet", [{"image": b"\x00"}]))


def test_a_large_file_is_read_row_by_row(tmp_path, monkeypatch):
    """Only the first row is looked at before the first task is asked for."""
    monkeypatch.setattr(task_files, "_CHECKED_AT_ONCE", 10)
    path = write(tmp_path, "a.jsonl", ROWS[:20])
    path.write_text(path.read_text() + "broken\n")
    tasks = read_tasks(path, columns=COLUMNS)
    assert len(tasks) == 21
    assert tasks[19].data["answers"] == "38"
    assert [task.data["answers"] for task in tasks[:2]] == ["0", "2"]
    with pytest.raises(EnvError, match=r"a\.jsonl:21: not JSON"):
        _ = tasks[20]


def test_a_dataset_is_loaded_by_the_library(tmp_path, monkeypatch):
    """The real library is not among the tests' packages; what it is asked for, and how its answer is read, is."""
    asked = []

    class DatasetDict(dict):
        pass

    def load_dataset(*names):
        asked.append(names)
        return DatasetDict(train=ROWS, test=ROWS[:5])

    fake = types.ModuleType("datasets")
    fake.DatasetDict, fake.load_dataset, fake.load_from_disk = DatasetDict, load_dataset, lambda folder: ROWS[:7]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    splits = read_tasks({"train": "owner/name/main", "test": "owner/name/main"}, columns=COLUMNS)
    assert (len(splits["train"]), len(splits["test"]), asked[0]) == (40, 5, ("owner/name", "main"))
    assert len(read_tasks("owner/name:test")) == 5
    assert len(read_tasks(tmp_path)) == 7, "a folder that datasets saved"
    with pytest.raises(EnvError, match=r"owner/name:dev: it has no split 'dev'; its splits are: train, test"):
        read_tasks("owner/name:dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvError, match=r"needs the package datasets: pip install 'turnwise\[datasets\]'"):
        read_tasks("owner/name")


def test_a_recipe_gives_any_environment_its_tasks(tmp_path):
    data = {"name": "bandit", "tasks": {"train": str(write(tmp_path, "a.csv")), "test": 0.5, "columns": COLUMNS}}
    env = make_env(parse_settings(EnvSettings, data, source="the test"))
    assert len(env.tasks("train")) == len(env.spawn().tasks("test")) == 20
    with pytest.raises(EnvError, match=r"env\.tasks has no split 'validation': add env\.tasks\.validation, a file or"):
        env.tasks("validation")
    short = make_env(
        parse_settings(EnvSettings, {"name": "bandit", "tasks": str(tmp_path / "a.csv")}, source="the test")
    )
    assert len(short.tasks("train")) == 40
    with pytest.raises(ConfigError, match=r"env\.tasks\.test|tasks\.test: expected"):
        parse_settings(EnvSettings, {"name": "bandit", "tasks": {"train": "a.csv", "test": 1.5}}, source="the test")


def test_tasks_are_those_of_an_environment_of_ones_own(tmp_path):
    tasks = read_tasks({"train": write(tmp_path, "a.jsonl"), "test": 0.25}, columns=COLUMNS)
    env = turnwise.ToolEnv(tasks=tasks, rewards=[turnwise.Reward(name="any", function=lambda episode: 1.0)])
    assert len(env.tasks("test")) == 10
    assert env.prompt(env.tasks("train")[0]).startswith("What is")
