"""Row 3: after three steps in which no rewards differ, the run says that nothing is being learnt, and why."""

import asyncio
import json

from test_row_07_failing_rewards import TINY

import turnwise
from tiny_runs import Silent
from turnwise import Episode, Task, ToolEnv, reward
from turnwise.agents import ScriptedAgent
from turnwise.rollout import run_episode
from turnwise.stability import Monitor, MonitorSettings, measure_health
from turnwise.types import Finish, Group, StopReason, Trajectory, Turn


@reward
def solved(episode: Episode) -> float:
    return 0.0


def test_a_run_whose_reward_never_fires_is_told_so(tmp_path):
    tasks = [Task(id=f"t{i}", data={"question": f"Say {i}."}) for i in range(2)]
    rollout = {"groups_per_step": 2, "group_size": 2, "turn_tokens": 4}
    env = ToolEnv(tasks=tasks, rewards=[solved])
    given = TINY | {"evaluate": {"tasks": 2}}
    run = turnwise.train(env=env, steps=4, run=tmp_path / "run", display=Silent(), rollout=rollout, **given)
    findings = [json.loads(line) for line in (run.path / "findings.jsonl").read_text().splitlines()]
    [found] = [finding for finding in findings if finding["kind"] == "no_signal"]
    assert found["step"] == 3
    assert found["sentence"] == (
        "nothing is being learnt: rewards do not differ, so there is no gradient; likely causes: most turns are cut "
        "off before they end: raise rollout.turn_tokens, or show how turns end (sft); reward 'solved' was never paid "
        "in this run; no episode succeeds; there was no cold start: give the policy demonstrations (sft), or easier "
        "tasks"
    )


def group(*rewards, success=None, stop=StopReason.DONE, finish=Finish.STOP, **metrics):
    metrics |= {} if success is None else {"success": success}
    played = [
        Trajectory(
            task=Task(id="t"),
            turns=(turn(value, finish),) if value is not None else (),
            stop=stop,
            metrics=metrics,
        )
        for value in rewards
    ]
    return Group(task=Task(id="t"), trajectories=tuple(played))


def turn(paid, finish):
    return Turn(
        context_ids=(1,), action_ids=(2,), logprobs=(-1.0,), opens_row=True, rewards={"paid": paid}, finish=finish
    )


def sentences(steps, *, compares_groups=True, cold_start=True):
    monitor = Monitor(MonitorSettings(), cold_start=cold_start)
    found = []
    for step, groups in enumerate(steps, 1):
        health = measure_health(groups, {})
        found += monitor.observe(step, health, compares_groups=compares_groups)
        monitor.load_state_dict(monitor.state_dict())
    return [(finding.step, finding.causes) for finding in found if finding.kind == "no_signal"]


EQUAL, DIFFERENT = [group(1.0, 1.0, success=1.0), group(0.0, 0.0, success=0.0)], [group(0.0, 1.0), group(1.0, 1.0)]


def test_three_steps_in_a_row_and_then_once():
    assert [step for step, _ in sentences([EQUAL] * 6)] == [3]
    assert sentences([EQUAL, EQUAL, DIFFERENT] * 3) == []
    assert [step for step, _ in sentences([EQUAL] * 3 + [DIFFERENT] + [EQUAL] * 3)] == [3, 7]


def test_an_estimator_that_compares_no_groups_learns_from_differences_between_them():
    assert sentences([EQUAL] * 5, compares_groups=False) == []
    assert len(sentences([[group(0.5, 0.5), group(0.5, 0.5)]] * 3, compares_groups=False)) == 1


def test_the_causes_are_looked_up():
    [(_, causes)] = sentences([[group(1.0, 1.0, success=1.0)]] * 3)
    assert causes == ("every episode succeeds: take harder tasks, or stop here",)
    [(_, causes)] = sentences([[group(0.0), group(1.0)]] * 3)
    assert causes == ("groups have one episode each: raise rollout.group_size",)
    [(_, causes)] = sentences([[group(0.0, 0.0, success=0.0)]] * 3)
    assert causes == ("reward 'paid' was never paid in this run: check it with `turnwise play`", "no episode succeeds")
    [(_, causes)] = sentences([DIFFERENT] + [[group(0.5, 0.5)]] * 3)
    assert causes == ("all episodes of a group earn the same: check the rewards with `turnwise play`",)


TOO_LONG = "most prompts do not fit the context: raise rollout.context_tokens, or shorten them"
CUT_OFF = "most turns are cut off before they end: raise rollout.turn_tokens, or show how turns end (sft)"
NO_CALLS = "the policy calls no tool: look at what it writes (turnwise show), or show it how (sft)"


def test_what_keeps_every_episode_from_earning_comes_first():
    """A reward that nothing can earn is not what to look at first."""
    never_paid = "reward 'paid' was never paid in this run"
    unread = group(*[None] * 9, success=0.0, stop=StopReason.CONTEXT_FULL)
    [(_, causes)] = sentences([[unread, group(0.0, success=0.0)]] * 3)
    assert causes == (TOO_LONG, never_paid, "no episode succeeds")
    [(_, causes)] = sentences([[group(0.0, 0.0, success=0.0, finish=Finish.LENGTH)]] * 3)
    assert causes == (CUT_OFF, never_paid, "no episode succeeds")
    [(_, causes)] = sentences([[group(0.0, 0.0, success=0.0, tool_calls=0.0)]] * 3)
    assert causes == (NO_CALLS, never_paid, "no episode succeeds")


def test_what_happens_to_some_episodes_explains_nothing():
    filled = group(None, success=0.0, stop=StopReason.CONTEXT_FULL)
    cut, calls = group(0.0, success=0.0, finish=Finish.LENGTH), group(0.0, success=0.0, tool_calls=1.0)
    [(_, causes)] = sentences([[filled, cut, calls, group(0.0, 0.0, success=0.0, tool_calls=0.0)]] * 3)
    assert not {TOO_LONG, CUT_OFF, NO_CALLS} & set(causes)
    four_in_five = [*[cut] * 4, group(0.0, 0.0, success=0.0)]
    assert CUT_OFF not in sentences([four_in_five] * 3)[0][1], "four of six"
    assert CUT_OFF in sentences([[*four_in_five, *[cut] * 4]] * 3)[0][1], "eight of ten"


def test_an_environment_without_tools_counts_no_calls():
    """Else every one of its runs would be told to show the policy how to call one."""
    task = Task(id="t", data={"question": "Say 1."})
    env, agent = ToolEnv(tasks=[task], rewards=[solved]), ScriptedAgent(replies=["1"])
    episode = asyncio.run(run_episode(agent, env.spawn_for(task), task, episode_seed=0))
    assert set(episode.metrics) == {"solved", "success"}


def test_failed_episodes_are_no_part_of_it():
    failed = group(9.0, stop=StopReason.ENV_FAILED)
    assert [step for step, _ in sentences([[*EQUAL, failed]] * 3)] == [3]
