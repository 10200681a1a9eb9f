"""A newcomer has questions in files and an environment of their own, and joins the two in a recipe."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import turnwise
from tiny_runs import Silent, tiny_data
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.runs import RunDirectory, read_trajectories

ENV = '''
from turnwise import ToolEnv, tool
from turnwise.rewards import exact_match_reward

class Support(ToolEnv):
    def __init__(self, fail: float = 0.0):
        super().__init__(rewards=[exact_match_reward], max_turns=2)
        self.fail = fail

    @tool
    def price(self, item: str) -> str:
        """Looks up what an item costs.

        Args:
            item: Its name.
        """
        return "3"
'''
RECIPE = """
env:
  name: support.py:Support
  args: {fail: 0.2}
  tasks:
    train: data/train.jsonl
    test: data/test.parquet
    columns: {question: prompt, answers: gold}
model: {name: small, small: {layers: 1, width: 32, heads: 2, positions: 256, vocabulary: 300, induction: false}}
steps: 1
rollout: {groups_per_step: 2, group_size: 2, turn_tokens: 4, max_turns: 2}
evaluate: {tasks: 3}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "support.py").write_text(ENV)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    rows = [{"prompt": f"What do {n} teas cost?", "gold": [str(3 * n)]} for n in range(12)]
    (tmp_path / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    pq.write_table(pa.Table.from_pylist(rows[8:]), tmp_path / "data/test.parquet")
    return tmp_path


def test_a_recipe_joins_files_and_environment(folder, monkeypatch, capsys):
    assert main(["check", "mine.yaml"]) == 0
    assert "✓ Support keeps the contract" in capsys.readouterr().out
    assert main(["train", "mine.yaml", "--run", "run"]) == 0
    groups = read_trajectories(RunDirectory.open(folder / "run").trajectory_file("train", 1))
    assert all(group.task.data["question"].startswith("What do") for group in groups)
    config = load_config(folder / "run/config.yaml")
    assert config.env.tasks.train == str((folder / "data/train.jsonl").resolve())
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["eval", "../run"]) == 0
    assert "3 episodes" in capsys.readouterr().out


def test_a_mistake_in_the_data_is_one_line(folder, capsys):
    with (folder / "data/train.jsonl").open("a") as file:
        file.write('{"promt": "What?", "gold": ["1"]}\n')
    assert main(["train", "mine.yaml", "--run", "run"]) == 2
    told = capsys.readouterr().err
    assert "data/train.jsonl:9: there is no column 'prompt' for 'question' (did you mean 'promt'?)" in told
    assert main(["train", "mine.yaml", "env.tasks.tran=x"]) == 2
    assert "env.tasks.tran: unknown key in override; did you mean 'train'?" in capsys.readouterr().err


def test_python_takes_them_as_well(folder):
    tasks = turnwise.read_tasks("data/train.jsonl", columns={"question": "prompt", "answers": "gold"})
    sections = {key: value for key, value in tiny_data().items() if key not in ("env", "steps", "model")}
    small = load_config("mine.yaml").model.model_dump(mode="json", exclude_unset=True)
    env = f"{folder / 'support.py'}:Support"
    run = turnwise.train(env=env, tasks=tasks, steps=1, run="run", display=Silent(), model=small, **sections)
    played = {group.task.id for group in read_trajectories(run.trajectory_file("train", 1))}
    assert played <= {task.id for task in tasks}
