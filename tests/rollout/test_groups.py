"""Many episodes at once: order, episode seed, what one may do to the others, and the numbers for the curves."""

import asyncio
import dataclasses
import random

import pytest

from byte_render import ByteRender, Scripted, Watched, policy, says
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.errors import EnvError, ModelError
from turnwise.rollout import Limits, Shuffled, run_episode, run_groups, summarise
from turnwise.rollout.summary import reward_std
from turnwise.seeds import derive_seed
from turnwise.types import Finish, Group, Message, Step, StopReason, Task, Trajectory, Turn

TASKS = [Task(id=name) for name in ("a", "b", "c")]


def run(env, *, tasks=TASKS, responses=2, seed=5, engine=None, limits=None, **options):
    who, limits = policy(engine or Watched("x")), Limits(**(limits or {}))
    rollout = run_groups(who, env, tasks, group_size=responses, seed=seed, limits=limits, **options)
    return asyncio.run(asyncio.wait_for(rollout, 20))


def test_groups_stand_in_the_order_of_tasks_and_members_whoever_finishes_first():
    finished = []

    async def dawdle(episode):
        # The later the task, the sooner it is done.
        for _ in range(20 * (3 - "abc".index(episode.task.id))):
            await asyncio.sleep(0)
        finished.append(episode.task.id)
        return Step(done=True)

    groups = run(Scripted(dawdle))
    assert finished == ["c", "c", "b", "b", "a", "a"]
    assert [group.task.id for group in groups] == ["a", "b", "c"]
    expected = [[derive_seed(5, "luck", index, member) for member in range(2)] for index in range(3)]
    assert [[one.episode_seed for one in group.trajectories] for group in groups] == expected


def test_a_slow_episode_holds_nobody_up():
    """The first episode waits within its first turn until all others are over: turns in lock-step would never end."""
    others_done = asyncio.Event()
    order = []

    async def answer(episode):
        order.append((episode.task.id, episode.turn))
        if episode.task.id == "a":
            await others_done.wait()
            return Step(done=True)
        if episode.turn < 3:
            return says("go on")
        if sum(turn == 3 for _, turn in order) == 2:
            others_done.set()
        return Step(done=True)

    groups = run(Scripted(answer), responses=1)
    assert order == [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("c", 2), ("b", 3), ("c", 3)]
    assert {one.stop for group in groups for one in group.trajectories} == {StopReason.DONE}


@pytest.mark.parametrize("concurrency", [1, 2, 6])
def test_no_more_episodes_than_asked_for_are_under_way(concurrency):
    under_way, most = 0, 0

    class Counted(Scripted):
        async def reset(self, task, episode_seed):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            return await super().reset(task, episode_seed)

        async def close(self):
            nonlocal under_way
            under_way -= 1

    run(Counted(says("x"), Step(done=True)), concurrency=concurrency)
    assert most == concurrency


def test_progress_counts_up_to_all():
    told = []
    run(Scripted(Step(done=True)), progress=lambda done, total: told.append((done, total)))
    assert told == [(number, 6) for number in range(1, 7)]


class Dice(Env):
    """Noise from episode seed in what is read and paid, so that episodes of other seeds differ."""

    async def reset(self, task, episode_seed):
        self.random = random.Random(episode_seed)
        return (Message(role="user", content=task.id),)

    async def step(self, message):
        roll = self.random.randrange(10**9)
        return says(str(roll), rewards={"roll": roll / 10**9}, done=roll % 3 == 0)


class Sampler(ScriptedEngine):
    """Samples by the seed it is given, as an engine must."""

    def __init__(self):
        super().__init__(lambda session, prompt: str(random.Random(self.seed).random()), ByteRender().encode_action)

    async def generate(self, session, prompt_ids, sampling):
        await asyncio.sleep(0)
        self.seed = sampling.seed
        return await super().generate(session, prompt_ids, sampling)


def timeless(trajectory):
    return dataclasses.replace(trajectory, seconds=0.0)


def test_luck_differs_between_members_and_any_episode_can_be_replayed_alone():
    groups = run(Dice(), responses=3, engine=Sampler())
    again = run(Dice(), responses=3, engine=Sampler(), concurrency=2)
    everyone = [timeless(one) for group in groups for one in group.trajectories]
    assert everyone == [timeless(one) for group in again for one in group.trajectories]
    assert len({one.episode_seed for one in everyone}) == 9
    assert len({one.turns[0].action_ids for one in everyone}) == 9
    assert len({one.turns[0].reward for one in everyone}) == 9
    alone = run_episode(policy(Sampler()), Dice(), TASKS[1], episode_seed=derive_seed(5, "luck", 1, 2), session="alone")
    assert timeless(asyncio.run(alone)) == timeless(groups[1].trajectories[2])


def test_another_seed_is_other_luck():
    [one], [other] = (run(Dice(), tasks=TASKS[:1], responses=1, seed=seed) for seed in (5, 6))
    assert one.trajectories[0].episode_seed != other.trajectories[0].episode_seed


def test_sessions_are_not_shared():
    engine = Watched("x")
    run(Scripted(Step(done=True)), engine=engine)
    assert len({session for session, _, _ in engine.asked}) == 6
    assert sorted(engine.ended) == sorted(session for session, _, _ in engine.asked)


def test_a_few_failures_are_counted_and_end_nothing(caplog):
    async def answer(episode):
        if episode.task.id == "b":
            raise ConnectionError("no simulator")
        return Step(done=True)

    groups = run(Scripted(answer))
    assert [[one.stop for one in group.trajectories] for group in groups] == [
        [StopReason.DONE] * 2,
        [StopReason.ENV_FAILED] * 2,
        [StopReason.DONE] * 2,
    ]
    [words] = caplog.messages
    assert words.startswith("2 of 6 episodes failed, 2 times alike: task 'b': step: ConnectionError: no simulator (")


def test_when_every_episode_fails_the_run_ends_in_one_line():
    words = r"^every episode failed, 6 times alike: task 'a': step: KeyError: 'gold' \([^\n]*$"
    with pytest.raises(EnvError, match=words):
        run(Scripted(KeyError("gold")))


def test_too_many_failures_end_the_run_with_the_commonest_of_them():
    async def answer(episode):
        if episode.task.id == "c":
            return Step(done=True)
        if episode.episode_seed == derive_seed(5, "luck", 0, 0):
            raise OSError("once")
        raise KeyError(f"gold of {episode.task.id}")

    words = r"^4 of 6 episodes failed, 3 times alike: task 'a': step: KeyError: 'gold of a' \(.*test_groups\.py:\d+ in "
    with pytest.raises(EnvError, match=words + r"answer\); mend it, or raise rollout\.max_failures above 0\.5$"):
        run(Scripted(answer), max_failures=0.5)
    assert len(run(Scripted(answer), max_failures=0.7)) == 3


def test_a_mistake_of_the_engines_ends_the_run_with_that_one_error_and_cleans_up():
    class Full(Watched):
        async def generate(self, session, prompt_ids, sampling):
            if "/1/" in session:
                raise ModelError("no room")
            return await super().generate(session, prompt_ids, sampling)

    async def answer(episode):
        await asyncio.sleep(60)

    env, engine = Scripted(answer), Full("x")
    with pytest.raises(ModelError, match=r"^no room$"):
        run(env, engine=engine)
    assert sorted(env.closed) == ["a", "a", "b", "b", "c", "c"]
    assert len(engine.ended) == 6


def test_a_bug_of_ours_is_not_taken_for_a_mistake_of_the_users():
    class Broken(Watched):
        async def generate(self, session, prompt_ids, sampling):
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        run(Scripted(Step(done=True)), engine=Broken("x"))
    assert caught.group_contains(ZeroDivisionError)


def test_each_epoch_covers_every_item_once_in_an_order_of_its_own():
    order = Shuffled(range(7), per_step=3, seed=1)
    drawn = [item for step in range(14) for item in order.draw(step)]
    epochs = [drawn[start : start + 7] for start in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_a_step_draws_what_it_draws_whatever_was_drawn_before():
    order = Shuffled("abcdefg", per_step=4, seed=1)
    forwards = [order.draw(step) for step in range(10)]
    backwards = [Shuffled("abcdefg", per_step=4, seed=1).draw(step) for step in reversed(range(10))][::-1]
    assert forwards == backwards
    assert forwards != [Shuffled("abcdefg", per_step=4, seed=2).draw(step) for step in range(10)]


def test_a_step_may_draw_more_than_there_is():
    drawn = Shuffled("ab", per_step=5, seed=0).draw(0)
    assert sorted(drawn[:2]) == sorted(drawn[2:4]) == ["a", "b"]


def test_nothing_to_draw_from_is_an_error_of_one_line():
    with pytest.raises(EnvError, match=r"^there is nothing to sample: [^\n]*$"):
        Shuffled([], per_step=1, seed=0)


def turn(context, action, *, finish=Finish.STOP, opens_row=True, **rewards):
    return Turn(
        context_ids=(1,) * context,
        action_ids=(2,) * action,
        logprobs=(0.0,) * action,
        rewards=rewards,
        opens_row=opens_row,
        finish=finish,
    )


def episode(*turns, stop=StopReason.DONE, **metrics):
    return Trajectory(task=TASKS[0], turns=turns, stop=stop, metrics=metrics)


def group(*trajectories):
    return Group(task=TASKS[0], trajectories=trajectories)


def test_a_summary_by_hand():
    groups = [
        group(
            episode(turn(4, 2, found=0.5), turn(3, 1, opens_row=False, win=1.0), success=1.0, depth=2.0),
            episode(turn(4, 5, finish=Finish.LENGTH), stop=StopReason.MAX_TURNS, success=0.0),
        ),
        group(
            episode(turn(2, 2, win=1.0), success=1.0, depth=4.0),
            episode(turn(2, 7, win=100.0), stop=StopReason.ENV_FAILED, success=1.0, broken=1.0),
        ),
        group(episode(stop=StopReason.ENV_FAILED)),
    ]
    assert summarise(groups) == {
        "rollout/episodes": 5,
        "rollout/failed": 2,
        "rollout/reward": pytest.approx((1.5 + 0 + 1) / 3),
        "rollout/success": pytest.approx(2 / 3),
        # 1.5 and 0 lie 0.75 from their mean; of the second group one is left, and the third was not played.
        "rollout/reward_std_in_group": pytest.approx(0.75),
        "rollout/turns": pytest.approx((2 + 1 + 1) / 3),
        "rollout/action_tokens": 2 + 1 + 5 + 2 + 7,
        "rollout/context_tokens": 4 + 3 + 4 + 2 + 2,
        "rollout/turns_cut": 0.25,
        "rollout/stop_done": pytest.approx(2 / 3),
        "rollout/stop_max_turns": pytest.approx(1 / 3),
        "rollout/stop_context_full": 0,
        "rollout/stop_token_budget": 0,
        "rollout/stop_timeout": 0,
        "rollout/stop_time_up": 0,
        "reward/found": pytest.approx(0.5 / 3),
        "reward/win": pytest.approx(2 / 3),
        "env/success": pytest.approx(2 / 3),
        "env/depth": pytest.approx(6 / 2),  # the second episode was not measured
    }


def test_a_summary_of_a_mixture_is_also_one_of_each_environment():
    def of(env, *trajectories):
        return Group(task=Task(id="t", env=env), trajectories=trajectories)

    groups = [
        of("bandit", episode(turn(1, 2, win=1.0), success=1.0), episode(turn(1, 2), success=0.0)),
        of("maze", episode(turn(1, 5, win=4.0), depth=3.0)),
        of("bandit", episode(stop=StopReason.ENV_FAILED)),
    ]
    summary = summarise(groups)
    assert (summary["rollout/episodes"], summary["rollout/reward"]) == (4, pytest.approx(5 / 3))
    bandit = {"rollout/episodes": 3, "rollout/failed": 1, "rollout/reward": 0.5, "reward/win": 0.5, "env/success": 0.5}
    maze = {"rollout/episodes": 1, "rollout/failed": 0, "rollout/reward": 4.0, "reward/win": 4.0, "env/depth": 3.0}
    for env, expected in (("bandit", bandit), ("maze", maze)):
        assert {name: summary[name.replace("/", f"/env={env}/")] for name in expected} == expected
    assert "env/env=maze/success" not in summary


def test_a_summary_of_nothing_but_failures_is_still_a_summary():
    summary = summarise([group(episode(stop=StopReason.ENV_FAILED))])
    assert (summary["rollout/failed"], summary["rollout/reward"], summary["rollout/stop_done"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("rewards", "std"),
    [
        ((0.1 + 0.2, 0.3), 0.0),  # equal but for rounding
        ((1e6, 1e6 + 1e-4), 0.0),  # what rounds away grows with the rewards
        ((-1.0, 1.0), 1.0),
        ((0.0, 1e-6), 0.5e-6),
    ],
)
def test_rewards_that_differ_by_rounding_alone_have_no_std(rewards, std):
    assert reward_std(group(*(episode(turn(1, 1, win=reward)) for reward in rewards))) == pytest.approx(std, rel=1e-6)


@pytest.mark.parametrize(("rewards", "std"), [((0.0, 1e-9), 0.0), ((0.0, 2e-9), 1e-9), ((5.0, 5.0 + 4e-9), 0.0)])
def test_rewards_that_differ_by_a_rounding_are_equal(rewards, std):
    assert reward_std(group(*(episode(turn(1, 1, win=reward)) for reward in rewards))) == pytest.approx(std, abs=1e-15)
