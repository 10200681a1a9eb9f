"""Runs an environment of `verifiers` in an interpreter that has that package, and needs nothing else of turnwise.

    python verifiers_worker.py '{"taskset": {"id": "my_taskset"}}'

    <- {"ready": true}
    -> {"id": 1, "method": "tasks", "start": 0, "stop": 100}           <- {"id": 1, "tasks": [{"idx": 0, ...}, ...]}
    -> {"id": 2, "method": "run", "task": {...}, "base_url": "..."}    <- {"id": 2, "rewards": {...}, "metrics": {...}}

Invariant: an episode that failed in the environment's code answers with `error`, never with rewards. The model is
reached through verifiers' own interception and the OpenAI-compatible endpoint that `base_url` names. An episode leaves
nothing open here: neither a connection nor a client.
"""

import asyncio
import functools
import itertools
import json
import os
import sys
import types

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.harness import Harness
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.utils.loaders import load_environment

HARNESS = "turnwise_chat"
KEY = "TURNWISE_API_KEY"
"""The variable of the gateway's API key, by which its clients are told from those of other models."""


@functools.cache
def http_client() -> httpx.AsyncClient:
    """One for all episodes: to make one reads the certificates anew, which takes longer than the rest of an episode."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)


class GatewayClient(EvalClient):
    """The way to one episode's model, over connections that are shared."""

    def __init__(self, config: EvalClientConfig) -> None:
        self.base_url, self.api_key, self.headers = config.base_url, os.environ[KEY], {}
        self.client = http_client()

    async def close(self) -> None:
        """Other episodes go on with the connections."""


def make_client(server: InterceptionServer, config: EvalClientConfig, others) -> EvalClient:  # noqa: ANN001
    """In place of verifiers' own, which keeps a client for each address to the end: the gateway has one an episode."""
    return GatewayClient(config) if config.api_key_var == KEY else others(server, config)


class ChatHarnessConfig(vf.HarnessConfig):
    """The harness below has no settings."""

    id: str = HARNESS


class ChatHarness(Harness[ChatHarnessConfig]):
    """Asks the model once a turn, in this process; the environment speaks in between. It has no tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # noqa: ANN001, ANN201
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        messages += [_plain(message) for message in asked]
        reply = await http_client().post(
            f"{endpoint}/chat/completions",
            headers={"Authorization": f"Bearer {secret}"},
            json={"model": ctx.model, "messages": messages},
        )
        failed = reply.status_code != 200
        return ProgramResult(exit_code=int(failed), stdout="", stderr=reply.text[-2000:] if failed else "")


def _plain(message) -> dict:  # noqa: ANN001
    return message if isinstance(message, dict) else message.model_dump(mode="json", exclude_none=True)


def make_environment(config: dict) -> vf.Env:
    """The environment of a config; an agent that names no harness gets the one above, in a plain process."""
    module = types.ModuleType(HARNESS)
    module.ChatHarness, module.ChatHarnessConfig, module.__all__ = ChatHarness, ChatHarnessConfig, ["ChatHarness"]
    sys.modules[HARNESS] = module
    module.__spec__ = types.SimpleNamespace(name=HARNESS)
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.utils.generic import concrete_type
    from verifiers.v1.utils.loaders import environment_class, taskset_config_type

    cls = environment_class(config["taskset"]["id"], config.get("id", ""))
    config_cls = concrete_type(cls, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
    given = {**config, "taskset": taskset_config_type(config["taskset"]["id"]).model_validate(config["taskset"])}
    roles = [name for name, field in config_cls.model_fields.items() if isinstance(field.default, AgentConfig)]
    for role in roles:
        seat = dict(given.get(role) or {})
        seat.setdefault("harness", ChatHarnessConfig())
        seat.setdefault("runtime", SubprocessConfig())
        given[role] = seat
    return load_environment(config_cls.model_validate(given))


async def answer(env: vf.Env, request: dict) -> dict:
    """The reply to one request."""
    if request["method"] == "tasks":
        chosen = itertools.islice(iter(env.taskset), request["start"], request["stop"])
        return {"tasks": [task.data.model_dump(mode="json") for task in chosen]}
    task_cls = type(env.taskset).task_type()
    task = task_cls(task_cls.data_type().model_validate(request["task"]), env.config.taskset.task)
    client = EvalClientConfig(base_url=request["base_url"], api_key_var=KEY)
    context = ModelContext(client=client, model=request.get("model", "policy"), sampling=vf.SamplingConfig())
    (slot,) = env.slots(task)
    episode = await env.run_slot(slot, context)
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        return {"error": f"{errors[-1].type}: {errors[-1].message}"}
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for trace in episode.traces:
        for name, reward in trace.rewards.items():
            rewards[name] = rewards.get(name, 0.0) + (reward.value if reward is not None else 0.0)
        metrics |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
    return {"rewards": rewards, "metrics": metrics}


async def main() -> None:
    """Answers requests side by side, until its input ends."""
    os.environ.setdefault(KEY, "turnwise")
    if (own := getattr(InterceptionServer, "_client", None)) is not None:  # else clients are verifiers' own
        InterceptionServer._client = functools.partialmethod(make_client, others=own)
    # What else writes to standard output must not end up between replies.
    wire, sys.stdout = sys.stdout, sys.stderr

    def write(reply: dict) -> None:
        wire.write(json.dumps(reply) + "\n")
        wire.flush()

    async def handle(request: dict) -> None:
        try:
            write({"id": request["id"], **await answer(env, request)})
        except Exception as error:  # noqa: BLE001 - whatever a taskset raises is the reply
            write({"id": request["id"], "error": f"{type(error).__name__}: {error}"})

    env = make_environment(json.loads(sys.argv[1]))
    running: set[asyncio.Task] = set()
    async with env.serving():
        write({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = asyncio.create_task(handle(json.loads(line)))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
