"""Row 7: a task whose reward raises costs its episodes, with task, file and line; only too many of them end the run."""

import re

import pytest

import turnwise
from tiny_runs import SMALLEST, Silent, records, tiny_data
from turnwise import Episode, Task, ToolEnv, reward
from turnwise.errors import EnvError
from turnwise.runs import read_trajectories

TINY = {key: value for key, value in tiny_data().items() if key not in ("env", "steps", "sft", "rollout")}
TINY |= {"model": {"small": {**SMALLEST, "positions": 128}}, "evaluate": {"tasks": 4}}


@reward
def matches(episode: Episode) -> float:
    return float(episode.task.data["gold"] in (episode.answer or ""))


def train(tmp_path, bad, *, resume=False, **rollout):
    """Of four tasks, the last `bad` ones have no gold answer."""
    data = [{"question": f"Say {i}."} | ({} if i >= 4 - bad else {"gold": str(i)}) for i in range(4)]
    env = ToolEnv(tasks=[Task(id=f"t{i}", data=one) for i, one in enumerate(data)], rewards=[matches])
    settings = {"groups_per_step": 4, "group_size": 2, "turn_tokens": 4, **rollout}
    folder = tmp_path / "run"
    return turnwise.train(env=env, steps=2, run=folder, resume=resume, display=Silent(), rollout=settings, **TINY)


def test_the_run_goes_on_and_tells_which_task_and_line(tmp_path, caplog):
    run = train(tmp_path, bad=1)
    assert [record["rollout/failed"] for record in records(run, "train")] == [2.0, 2.0]
    [bad] = [group for group in read_trajectories(run.trajectory_file("train", 1)) if group.task.id == "t3"]
    words = r"task 't3': step: RewardError: reward 'matches' raised KeyError: 'gold' \(.*test_row_07.*:\d+ in matches\)"
    assert all(re.fullmatch(words, trajectory.failure) for trajectory in bad.trajectories)
    assert any(re.search(rf"2 of 8 episodes failed, 2 times alike: {words}", message) for message in caplog.messages)


def test_too_many_end_the_run_with_that_word_and_a_resumed_run_may_allow_more(tmp_path):
    words = r"6 of 8 episodes failed, 6 times alike: task 't\d': .*KeyError: 'gold' .*in matches.*rollout\.max_failures"
    with pytest.raises(EnvError, match=words):
        train(tmp_path, bad=3)
    run = train(tmp_path, bad=3, resume=True, max_failures=0.9)
    assert [record["rollout/failed"] for record in records(run, "train")] == [6.0, 6.0]
