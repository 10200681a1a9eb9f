"""An environment of verifiers with a dataset, rewards and turns of its own: it knows nothing of turnwise.

Somebody knows which key opens a door; whoever else is asked says whom to ask. The agent asks as often as the turns
allow, and takes one key. The task pays for the right one, and counts the questions.
"""

import random
from collections.abc import Iterable
from itertools import pairwise

import verifiers.v1 as vf

COLOURS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana"]

__all__ = ["KeysEnv", "KeysTaskset"]


def read_move(reply: str) -> list[str]:
    """The words of a move: `["ask", "Ada"]`, `["take", "red"]`."""
    return reply.split("<move>")[-1].split("</move>")[0].split()


class KeysConfig(vf.TasksetConfig):
    """How many doors there are, and how many people at most stand between the agent and a key."""

    doors: int = 4000
    people: int = 2


class KeysData(vf.TaskData):
    """Who is to be asked, in this order; the last one knows the key."""

    people: list[str]
    key: str


class KeysTask(vf.Task[KeysData, vf.State, vf.TaskConfig]):
    """Pays one for the right key."""

    @vf.reward(weight=1.0)
    async def opened(self, trace: vf.Trace) -> float:
        return float(read_move(trace.last_reply) == ["take", self.data.key])

    @vf.metric
    async def questions(self, trace: vf.Trace) -> float:
        return float(sum(read_move(said.content or "")[:1] == ["ask"] for said in trace.assistant_messages))


class KeysEnvConfig(vf.EnvConfig):
    """One seat, and how often it may move."""

    player: vf.AgentConfig = vf.AgentConfig()
    moves: int = 4


class KeysEnv(vf.Env[KeysEnvConfig]):
    """Answers for whoever is asked, until the agent asks nobody."""

    async def run(self, task: KeysTask, agents: vf.Agents) -> None:
        answers = {asked: f"You may ask {other}." for asked, other in pairwise(task.data.people)}
        answers[task.data.people[-1]] = f"You should take {task.data.key}."
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(self.config.moves - 1):
                move = [] if segment.terminated else read_move(segment.last_reply)
                if move[:1] != ["ask"]:
                    break
                segment = await interaction.turn(answers.get(" ".join(move[1:]), "I do not know."))


class KeysTaskset(vf.Taskset[KeysTask, KeysConfig]):
    """Doors, each with its own people and its own key."""

    def load(self) -> Iterable[KeysTask]:
        for place in range(self.config.doors):
            draw = random.Random(place)
            people = draw.sample(NAMES, draw.randint(1, self.config.people))
            data = KeysData(
                name=f"door-{place}",
                system_prompt="Write a move in <move> tags: ask somebody, or take a key.",
                prompt=f"Which key opens the door? You may ask {people[0]}.",
                people=people,
                key=draw.choice(COLOURS),
            )
            yield KeysTask(data, self.config.task)
