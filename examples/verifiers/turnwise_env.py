"""An environment of turnwise as one of verifiers: played over the wire of `turnwise serve-openenv`.

turnwise serve-openenv frozen_lake --port 8003
vf-eval turnwise_env --env.taskset.url http://127.0.0.1:8003
"""

import uuid
from collections.abc import Iterable

import httpx
import verifiers.v1 as vf

__all__ = ["TurnwiseEnv", "TurnwiseTaskset"]


class TurnwiseConfig(vf.TasksetConfig):
    """Where the server is, and which of its tasks are played."""

    url: str = "http://127.0.0.1:8003"
    split: str = "train"
    tasks: int = 1000


class TurnwiseData(vf.TaskData):
    """A task by its place; what the agent reads first, the environment says."""

    url: str
    split: str
    index: int


class TurnwiseTask(vf.Task[TurnwiseData, vf.State, vf.TaskConfig]):
    """Its reward is the environment's."""


class TurnwiseEnvConfig(vf.EnvConfig):
    """One seat."""

    player: vf.AgentConfig = vf.AgentConfig()


class TurnwiseEnv(vf.Env[TurnwiseEnvConfig]):
    """Passes messages on, from the agent to the server and back."""

    async def run(self, task: TurnwiseTask, agents: vf.Agents) -> None:
        data, name = task.data, uuid.uuid4().hex
        async with httpx.AsyncClient(base_url=data.url, timeout=60.0, trust_env=False) as server:

            async def ask(what: str, body: dict) -> dict:
                reply = await server.post(f"/{what}", json={**body, "episode_id": name})
                reply.raise_for_status()
                return reply.json()

            seen = await ask("reset", {"index": data.index, "split": data.split})
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(seen["observation"]["text"])
                while not segment.terminated:
                    seen = await ask("step", {"action": {"message": segment.last_reply}})
                    if seen["done"]:
                        break
                    segment = await interaction.turn(seen["observation"]["text"])
        for channel, value in seen["metadata"]["rewards"].items():
            interaction.trace.record_reward(channel, value, 1.0)


class TurnwiseTaskset(vf.Taskset[TurnwiseTask, TurnwiseConfig]):
    """The tasks of one split."""

    def load(self) -> Iterable[TurnwiseTask]:
        for index in range(self.config.tasks):
            data = TurnwiseData(url=self.config.url, split=self.config.split, index=index, name=f"task-{index}")
            yield TurnwiseTask(data, self.config.task)
