"""Tasks split off training: the same ones in every run, and in nothing that is learnt from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_runs import Signals, run_tiny, tiny_config
from turnwise import Mixture
from turnwise.checks.tasks import MOST
from turnwise.cli.main import main
from turnwise.config import load_run_config
from turnwise.errors import ConfigError, EnvError
from turnwise.runs import read_trajectories
from turnwise.training.build import evaluation_tasks
from turnwise.training.evaluate import run_evaluation
from turnwise.training.hold_out import hold_out
from turnwise.types import Task

QUESTIONS = [Task(id=f"q{n}", seed=n, data={"question": f"What is {n}?"}) for n in range(20)]
LEVELS = [Task(id=f"train-{n}", seed=1000 + n) for n in range(20)]


def ids(tasks):
    return {task.id for task in tasks}


@pytest.mark.parametrize("tasks", [QUESTIONS, LEVELS])
def test_so_many_are_held_out_and_the_others_are_left(tasks):
    held = hold_out(Signals(), tasks, 6)
    assert len(held.tasks) == 6
    assert ids(held.tasks) | ids(held.leave_out(tasks)) == ids(tasks)
    assert ids(held.tasks).isdisjoint(ids(held.leave_out(tasks)))


def test_which_ones_follows_from_what_tasks_hold():
    held = {task.data["question"] for task in hold_out(Signals(), QUESTIONS, 6).tasks}
    renamed = [replace(task, id=f"other-{task.id}", seed=task.seed + 7) for task in reversed(QUESTIONS)]
    assert {task.data["question"] for task in hold_out(Signals(), renamed, 6).tasks} == held
    more = [*QUESTIONS, *(Task(id=f"r{n}", data={"question": f"Who was {n}?"}) for n in range(2))]
    assert len({str(task.data["question"]) for task in hold_out(Signals(), more, 6).tasks} & held) >= 4


def test_a_question_is_left_out_wherever_it_stands_and_a_level_by_its_seed():
    held = hold_out(Signals(), QUESTIONS, 6)
    demonstrated = [replace(task, id=f"sft-{task.id}", seed=99 + task.seed) for task in QUESTIONS]
    assert ids(held.leave_out(demonstrated)) == {f"sft-{one.id}" for one in held.leave_out(QUESTIONS)}
    levels = hold_out(Signals(), LEVELS, 6)
    assert len(levels.leave_out([replace(task, seed=task.seed + 500) for task in LEVELS])) == 20
    assert len(levels.leave_out([replace(task, id=f"sft-{task.id}") for task in LEVELS])) == 14


def test_a_question_is_the_same_one_with_evidence_beside_it():
    """As the file that is demonstrated has it, and the one that is trained on has not."""
    held = hold_out(Signals(), QUESTIONS, 6)
    explained = [
        replace(task, id=f"sft-{task.id}", data={"question": f" {task.data['question']}".upper(), "evidence": "It is."})
        for task in QUESTIONS
    ]
    assert ids(held.leave_out(explained)) == {f"sft-{one.id}" for one in held.leave_out(QUESTIONS)}
    assert ids(hold_out(Signals(), explained, 6).tasks) == {f"sft-{one.id}" for one in held.tasks}


def test_a_split_of_which_nothing_is_left_is_refused_by_name():
    held = hold_out(Signals(), QUESTIONS, 6)
    with pytest.raises(EnvError, match=r"^evaluate\.hold_out: all 6 tasks in a split are held out: lower it$"):
        held.leave_out(held.tasks)
    env = Mixture({"one": Signals(), "two": Signals()})
    with pytest.raises(EnvError, match=r"^evaluate\.hold_out: 8 of 8 training tasks of env\.mixture\.one leaves none"):
        hold_out(env, env.tasks("train"), 8)


def test_where_tasks_share_a_question_all_their_data_makes_them():
    sums = [Task(id=str(n), data={"question": "What is the sum?", "numbers": [n, 1]}) for n in range(20)]
    held = hold_out(Signals(), sums, 6)
    assert len(held.tasks) == 6
    assert len(held.leave_out(sums)) == 14


def test_a_task_that_is_there_twice_is_held_out_as_one():
    held = hold_out(Signals(), [*QUESTIONS, *(replace(task, id=f"again-{task.id}") for task in QUESTIONS)], 19)
    assert len(held.tasks) == 19
    assert len(held.leave_out(QUESTIONS)) == 1


def test_of_a_mixture_so_many_of_each():
    env = Mixture({"one": Signals(), "two": Signals()})
    tasks = env.tasks("train")
    held = hold_out(env, tasks, 3)
    left = held.leave_out(tasks)
    assert [task.env for task in held.tasks] == ["one"] * 3 + ["two"] * 3
    assert {name: len(part) for name, part in left.parts.items()} == {"one": 5, "two": 5}
    assert ids(left) == ids(tasks) - ids(held.tasks), "with their names in the mixture"


class Game(Signals):
    """As many levels as the checks of a task list look at, and no data."""

    def tasks(self, split):
        return [Task(id=f"{split}-{place}", seed=place) for place in range(1, MOST + 1)]


class Questions(Signals):
    """The same questions in every split, by other seeds."""

    def tasks(self, split):
        return [replace(task, id=f"{split}-{task.id}", seed=len(split) * 100 + task.seed) for task in QUESTIONS]


@pytest.mark.parametrize("names", [("questions", "game"), ("game", "questions")])
def test_questions_of_a_mixture_are_known_by_their_data_wherever_they_stand_in_it(names):
    made = {"game": Game(), "questions": Questions()}
    env = Mixture({name: made[name] for name in names})
    held = hold_out(env, env.tasks("train"), 6)
    assert len(held.leave_out(env.tasks("demonstrated")).parts["questions"]) == len(QUESTIONS) - 6


def test_some_must_be_left_to_train_on():
    assert len(hold_out(Signals(), LEVELS, 19).leave_out(LEVELS)) == 1
    with pytest.raises(EnvError, match=r"evaluate\.hold_out: 20 of 20 training tasks leaves none to train on"):
        hold_out(Signals(), LEVELS, 20)


class Numbered(Signals):
    """Every split has the same levels, whatever they are called there."""

    def tasks(self, split):
        return [Task(id=f"{split}-{place}", seed=place) for place in range(1, 9)]


def test_a_run_evaluates_them_and_learns_from_others(tmp_path):
    run = run_tiny(
        tmp_path / "run",
        env={"name": f"{Path(__file__).resolve()}:Numbered"},
        sft={"demonstrations": 20, "batch": 4, "split": "demonstrated"},
        evaluate={"hold_out": 3, "tasks": 1},
        steps=2,
    )
    files = {stage: (run.path / "trajectories").glob(f"{stage}-*.parquet") for stage in ("sft", "train", "evaluate")}
    played = {
        stage: {group.task.seed for file in listed for group in read_trajectories(file)}
        for stage, listed in files.items()
    }
    assert len(played["evaluate"]) == 3, "and not one, as evaluate.tasks has it"
    for stage in ("sft", "train"):
        assert played[stage] == set(range(1, 9)) - played["evaluate"], stage


def test_an_evaluation_of_the_run_has_the_same_tasks_unless_others_are_given():
    config = tiny_config(evaluate={"hold_out": 3})
    held = evaluation_tasks(Signals(), config, None)
    assert ids(held) == ids(hold_out(Signals(), Signals().tasks("train"), 3).tasks)
    assert ids(evaluation_tasks(Signals(), tiny_config(seed=5, evaluate={"hold_out": 3}), None)) == ids(held)
    played = run_evaluation(config, tasks=Signals().tasks("train")[:2])
    assert [group.task.id for group in played.groups] == ["train-0", "train-1"]
    assert {task.id.split("-")[0] for task in evaluation_tasks(Signals(), tiny_config(), None)} == {"test"}, "0: none"


def test_an_evaluation_says_that_its_tasks_are_of_training(tmp_path, capsys):
    run = run_tiny(tmp_path / "run", steps=0, evaluate={"hold_out": 3})
    for overrides, expected in (([], ("train", 3)), (["evaluate.hold_out=0"], ("test", 0))):
        assert main(["eval", str(run.path), "--json", *overrides]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["split"], told["hold_out"]) == expected


@pytest.mark.parametrize("other", ["split=test", "tasks=5"])
def test_no_other_tasks_can_be_asked_for_beside_them(tmp_path, other):
    run = run_tiny(tmp_path / "run", steps=0, evaluate={"hold_out": 3})
    with pytest.raises(ConfigError, match=r"^evaluate\.\w+: never read while evaluate\.hold_out is 3: remove it"):
        load_run_config(run.path, [f"evaluate.{other}"])
    assert load_run_config(run.path, [f"evaluate.{other}", "evaluate.hold_out=0"])
