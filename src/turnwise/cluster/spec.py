"""What a rollout worker is made from in another process: settings, the model's architecture and its tokenizer.

Invariant: it pickles, names nothing that only the driver has but its files, and needs no download.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from turnwise.agents.policy import PolicyAgent
from turnwise.cluster.home import Home
from turnwise.engines.base import Engine
from turnwise.engines.factory import make_engine
from turnwise.engines.settings import EngineSettings
from turnwise.envs.base import Env
from turnwise.envs.registry import EnvSettings, MixtureSettings
from turnwise.envs.workers.placing import OpenNursery, place_env
from turnwise.models.architecture import Architecture
from turnwise.models.settings import ModelSettings
from turnwise.render import make_render
from turnwise.render.template import RenderSettings
from turnwise.rollout.fleet import LocalWorker
from turnwise.rollout.limits import RolloutSettings
from turnwise.runs import seed_globals
from turnwise.seeds import derive_seed

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All of a rollout worker but the weights."""

    seed: int
    env: EnvSettings | MixtureSettings
    model: ModelSettings
    architecture: Architecture
    tokenizer: PreTrainedTokenizerFast
    context_limit: int
    autocast: torch.dtype | None
    render: RenderSettings
    engine: EngineSettings
    rollout: RolloutSettings
    prompt_ids: tuple[int, ...]
    """A prompt of the run, on which a local engine checks its forward."""
    home: Home | None
    """None: Ray has copied a folder of the user's, which is the working directory."""
    start_seconds: float
    """For the cluster to make room for environment workers on other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWorker:
    """A rollout worker of this process, and its parts."""

    worker: LocalWorker
    engine: Engine
    env: Env


def build_worker(
    spec: WorkerSpec,
    weights: Mapping[str, torch.Tensor],
    *,
    number: int = 0,
    open_nursery: OpenNursery | None = None,
) -> BuiltWorker:
    """The worker in this process, sampling from these weights until it loads others; workers of a run have numbers.

    `open_nursery` starts environment workers on other nodes, where the spec asks for them.
    """
    seed_globals(derive_seed(spec.seed, "rollout worker", number))  # for environments that use the global generators
    if spec.home is not None:
        spec.home.enter()
    env = place_env(spec.env, open_nursery=open_nursery)
    engine = make_engine(
        spec.engine,
        spec.architecture.build(spec.model.device, weights),
        context_limit=spec.context_limit,
        autocast=spec.autocast,
        prompt_ids=spec.prompt_ids,
    )
    slow_reason: str | None = getattr(engine, "slow_reason", None)  # only a local engine has one
    if slow_reason is not None:
        _logger.warning("rollout worker %d: sampling is many times slower than it could be: %s", number, slow_reason)
    agent = PolicyAgent(engine=engine, render=make_render(spec.tokenizer, spec.render), decoding=spec.rollout)
    worker = LocalWorker(agent, env, spec.rollout, concurrency=spec.rollout.concurrency)
    return BuiltWorker(worker=worker, engine=engine, env=env)
