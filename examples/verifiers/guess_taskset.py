"""An environment of verifiers, as its documentation would write one: it knows nothing of turnwise.

A colour is hidden; the agent may ask for it once, or guess at once. The environment answers in turns, and a reward of
the task is paid by the environment.
"""

import random
from collections.abc import Iterable

import verifiers.v1 as vf

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    """The hidden colour."""

    colour: str


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    """Pays one for the right colour."""


class GuessEnvConfig(vf.EnvConfig):
    """One seat."""

    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    """Tells the colour to an agent that looks."""

    async def run(self, task: GuessTask, agents: vf.Agents) -> None:
        right = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(2):
                if segment.terminated:
                    break
                said = segment.last_reply.split("<move>")[-1].split("</move>")[0].strip()
                if said != "look":
                    right = float(said == task.data.colour)
                    break
                segment = await interaction.turn(f"The door is {task.data.colour}.")
        interaction.trace.record_reward("opened", right, 1.0)


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    """As many doors as one likes."""

    def load(self) -> Iterable[GuessTask]:
        for place in range(2000):
            colour = random.Random(place).choice(COLOURS)
            data = GuessData(
                name=f"door-{place}",
                system_prompt="Name a key in <move> tags, or look.",
                prompt="It is dark. Which key opens the door?",
                colour=colour,
            )
            yield GuessTask(data, self.config.task)
