"""Agents that play the probe's tasks beside the policy: the environment's expert, and one that answers nonsense.

Rewards are judged by what these three earn on the same tasks.
"""

from collections.abc import Sequence

from turnwise.agents import ScriptedAgent
from turnwise.envs.mixture import Mixture
from turnwise.rollout import run_episode
from turnwise.rollout.limits import RolloutSettings, limits_for
from turnwise.seeds import derive_seed
from turnwise.training.build import Components
from turnwise.training.sft import play_expert
from turnwise.types import Group, StopReason, Task, Trajectory

_NONSENSE = ("qzq", "<answer>qzq</answer>", "qzq")
EPISODES = 24
"""Of each of them."""


def chosen_tasks(groups: Sequence[Group], tasks: Sequence[Task]) -> list[Task]:
    """The probe's tasks, each once, and as many more as there are episodes to play."""
    known = {group.task.id: group.task for group in groups}
    spread = range(0, len(tasks), max(1, len(tasks) // EPISODES))
    known |= {tasks[place].id: tasks[place] for place in spread if len(known) < EPISODES or tasks[place].id in known}
    return list(known.values())[:EPISODES]


async def play_demonstrations(
    parts: Components, tasks: Sequence[Task], limits: RolloutSettings, *, seed: int
) -> list[Trajectory]:
    """The expert's episodes, cut off as a policy's are; none without an expert."""
    able = [task for task in tasks if _has_expert(parts, task)]
    if not able:
        return []
    limit, seed = parts.engine.context_limit, derive_seed(seed, "doctor")
    return await play_expert(parts.env, able, render=parts.render, limits=limits, context_limit=limit, seed=seed)


async def play_nonsense(
    parts: Components, tasks: Sequence[Task], limits: RolloutSettings, *, seed: int
) -> list[Trajectory]:
    """Episodes of an agent whose answers cannot be right; one that it left before the end is not scored.

    None where the environment keeps its own conversation: its program would have to be started for each.
    """
    if parts.env.keeps_conversation:
        return []
    agent = ScriptedAgent(replies=_NONSENSE * max(1, -(-limits.max_turns // len(_NONSENSE))))
    played = []
    for place, task in enumerate(tasks):
        episode_seed = derive_seed(seed, "nonsense", place)
        own = limits_for(parts.env, task, limits)
        env = parts.env.spawn_for(task)
        played.append(await run_episode(agent, env, task, episode_seed=episode_seed, limits=own))
    return [t for t in played if t.stop is not StopReason.AGENT_QUIT]


def _has_expert(parts: Components, task: Task) -> bool:
    env = parts.env.entry_of(task).env if isinstance(parts.env, Mixture) else parts.env
    return env.has_expert
