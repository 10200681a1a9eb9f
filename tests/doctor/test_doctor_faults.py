"""Every planted fault is named, by that name and no other, within the probe's steps; and nothing without one."""

from pathlib import Path

import pytest

from doctor_faults import FAULTS, examine, examine_recipe_text
from turnwise.checks.failures import check_failures
from turnwise.checks.tasks import MOST, check_tasks
from turnwise.doctor.catalogue import CHECKS
from turnwise.envs import ToolEnv
from turnwise.envs.mixture import MixedTasks
from turnwise.seeds import seed_of_id
from turnwise.types import StopReason, Task, Trajectory

QUESTIONS = [{"question": f"What is {i} + {i}?"} for i in range(40)]


@pytest.mark.parametrize("patient", ["signals", "shop"])
def test_nothing_is_found_where_nothing_is_wrong(patients, patient):
    assert examine(patients[patient], None) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_named_and_nothing_else_is(patients, fault):
    assert examine(patients[fault.patient], fault) == [fault.kind]


def test_there_are_faults_enough_and_each_has_its_own_name():
    assert len(FAULTS) >= 16
    assert len({fault.kind for fault in FAULTS}) == len(FAULTS)
    assert {fault.kind for fault in FAULTS} <= {kind for check in CHECKS for kind in check.kinds}


def test_every_kind_of_finding_has_a_test_that_makes_it():
    planted = {fault.kind for fault in FAULTS}
    written = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    kinds = {kind for check in CHECKS for kind in check.kinds}
    assert {kind for kind in kinds if kind not in planted and f'"{kind}"' not in written} == set()


def test_a_setting_that_nothing_reads_is_a_finding_and_not_a_traceback():
    text = "env: bandit\ncredit: {estimator: grpo}\nloss: {value_clip: 0.3}\n"
    examination = examine_recipe_text(text)
    (diagnosis,) = examination.diagnoses
    assert diagnosis.kind == "setting_without_effect"
    assert diagnosis.cause.startswith("loss.value_clip has no effect: never read while credit.estimator is grpo")
    assert not examination.sound
    assert [check for check in examination.checks if examination.status(check) == "ok"] == []


def test_failed_episodes_are_counted_with_the_first_reason():
    def episodes(failed, count):
        task, why = Task(id="a"), "task 'a': reset: EnvError: it has no question"
        stops = [StopReason.ENV_FAILED] * failed + [StopReason.DONE] * (count - failed)
        return [Trajectory(task=task, turns=(), stop=stop, failure=why * (stop != "done")) for stop in stops]

    assert check_failures(episodes(0, 40)) == []
    ((few,), (many,)) = check_failures(episodes(1, 40)), check_failures(episodes(20, 40))
    assert (few.severity, many.severity) == ("sign", "alarm")
    assert many.cause == "episodes failed, the first in task 'a': reset: EnvError: it has no question"
    assert many.evidence == {"failed": 20.0, "of": 40.0}


def kinds_of_tasks(train, held_out) -> list[str]:
    return [one.kind for one in check_tasks(train, held_out, split="test")]


def in_splits(train, test):
    env = ToolEnv(tasks={"train": train, "test": test}, process={"found": 1.0})
    return env.tasks("train"), env.tasks("test")


def test_a_question_is_the_same_task_wherever_it_stands_in_its_list():
    (found,) = check_tasks(*in_splits(QUESTIONS[:30], QUESTIONS[25:]), split="test")
    assert found.kind == "tasks_overlap"
    assert found.evidence == {"tasks in both": 5.0, "evaluated": 15.0}
    assert kinds_of_tasks(*in_splits(QUESTIONS[:30], QUESTIONS[30:])) == []
    assert kinds_of_tasks(*in_splits(QUESTIONS[:20] * 2, QUESTIONS[20:])) == ["duplicate_tasks"]


def test_a_question_is_the_same_task_under_another_id():
    def named(split):
        return [Task(id=f"{split}{i}", seed=seed_of_id(f"{split}{i}"), data=one) for i, one in enumerate(QUESTIONS)]

    assert kinds_of_tasks(named("a"), named("b")) == ["tasks_overlap"]
    assert kinds_of_tasks(named("a")[:20], named("b")[20:]) == []


@pytest.mark.parametrize("levels", [1, 3, 40])
def test_a_seed_that_was_chosen_makes_a_task_of_its_own(levels):
    def seeded(first):
        return [Task(id=f"{first}-{i}", seed=first + i, data={"level": i % levels}) for i in range(40)]

    assert kinds_of_tasks(seeded(0), seeded(1000)) == []
    assert kinds_of_tasks(seeded(0), seeded(0)) == ["tasks_overlap"]


def test_a_game_of_a_mixture_is_known_by_its_seeds_beside_questions():
    def mixed(first, questions):
        games = [Task(id=f"game-{i}", seed=first + i, env="game") for i in range(40)]
        return [*games, *(Task(id=f"qa-{i}", seed=i, data=one, env="qa") for i, one in enumerate(questions))]

    assert kinds_of_tasks(mixed(0, QUESTIONS[:20]), mixed(50, QUESTIONS[20:])) == []
    (found,) = check_tasks(mixed(0, QUESTIONS[:20]), mixed(50, QUESTIONS[19:]), split="test")
    assert found.evidence["tasks in both"] == 1.0


def test_questions_of_a_mixture_are_looked_at_behind_a_game_of_very_many_levels():
    def mixed(first, questions):
        games = [Task(id=str(i), seed=first + i) for i in range(MOST)]
        asked = [Task(id=str(i), data=one) for i, one in enumerate(questions)]
        return MixedTasks({"game": games, "qa": asked}, "train")

    (found,) = check_tasks(mixed(0, QUESTIONS[:20]), mixed(MOST, QUESTIONS[15:]), split="test")
    assert found.evidence["tasks in both"] == 5.0
