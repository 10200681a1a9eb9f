"""From a run, a recipe or a model to a gateway that serves it, by itself or following a run's newest checkpoint.

Invariant: it samples by the `evaluate` section, as `turnwise eval` does; while newer weights are loaded, requests are
told to come back.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from turnwise.agents import PolicyAgent
from turnwise.config import Config
from turnwise.engines import Engine, make_engine
from turnwise.errors import ConfigError, RunError
from turnwise.gateway.collect import Collector, Follow, serve
from turnwise.gateway.server import Gateway
from turnwise.models.loading import LoadedModel, choose_autocast, load_model, load_weights
from turnwise.models.settings import SMALL
from turnwise.recipes import find_recipe
from turnwise.render import make_render
from turnwise.rollout import Limits
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.settings import parse_settings
from turnwise.targets import load_target

logger = logging.getLogger(__name__)

_FOLLOW_SECONDS: Final = 2.0
_MOST_TURNS: Final = 1_000_000


def run_gateway(
    what: str,
    overrides: Sequence[str],
    *,
    host: str,
    port: int,
    save: str | None,
    idle: float,
    follow: bool,
    show: Callable[[str], None],
) -> None:
    """Serves the model of a run, a checkpoint or a recipe, or one by name, until it is interrupted."""
    config = find_target(what, overrides)
    if config.model.name == SMALL:
        raise ConfigError(f"{what}: the built-in model is made by training; name a run: turnwise gateway runs/...")
    checkpoints = _followed(what) if follow else None
    folder = _make_folder(save)
    loaded = load_model(config.model, seed=config.seed)
    autocast = choose_autocast(config.model, loaded)
    engine = make_engine(config.engine, loaded.model, context_limit=loaded.context_limit, autocast=autocast)
    render = make_render(loaded.tokenizer, config.render)
    policy = PolicyAgent(engine=engine, render=render, decoding=config.evaluate)

    async def main() -> None:
        fields = {name: getattr(config.rollout, name) for name in ("turn_tokens", "episode_tokens", "context_tokens")}
        limits = Limits(max_turns=_MOST_TURNS, **fields)
        collector = Collector(policy=policy, limits=limits, folder=folder, idle=idle, show=show)
        following = _follow(checkpoints, loaded, engine, show) if checkpoints is not None else None
        await serve(collector, host=host, port=port, ready=lambda url: _announce(show, what, url), follow=following)
        show(f"{collector.stored} sessions stored in {folder}" if folder else "stopped")

    asyncio.run(main())


def find_target(what: str, overrides: Sequence[str]) -> Config:
    """The config of a run, a checkpoint or a recipe; a model's name, or the folder of one, has the default settings."""
    path = Path(what)
    in_a_run = (path / "config.yaml").is_file() or "checkpoints" in (path.parent.name, path.parent.parent.name)
    if in_a_run or (not path.is_dir() and find_recipe(what).is_file()) or path.suffix in (".yaml", ".yml"):
        return load_target(what, overrides)
    data = {"env": {"name": "program"}, "model": {"name": what}, "steps": 0}
    return parse_settings(Config, data, overrides=overrides, source=what)


def _announce(show: Callable[[str], None], what: str, url: str) -> None:
    show(f"{what} at {url}; any API key is a session; Ctrl-C stops it")
    show(f"  OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=my-session")
    show(f"  ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=my-session")


def _make_folder(save: str | None) -> Path | None:
    if save is None:
        return None
    folder = Path(save)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"--save: cannot make the folder {save} ({error.strerror}); name another") from None
    if any(folder.glob("session-*.parquet")):
        raise RunError(f"--save: {save} has sessions already; name another folder, or remove them")
    return folder


def _followed(what: str) -> Checkpoints:
    if not (Path(what) / "config.yaml").is_file():
        raise ConfigError(f"--follow: {what} is not a run, so it gets no newer weights; name a run directory")
    return Checkpoints(RunDirectory.open(what).checkpoints)


def _follow(checkpoints: Checkpoints, loaded: LoadedModel, engine: Engine, show: Callable[[str], None]) -> Follow:
    """Loads each newer checkpoint of a run, and stamps the turns that follow with its step."""

    async def follow(gateway: Gateway) -> None:
        newest = checkpoints.latest()
        while True:
            await asyncio.sleep(_FOLLOW_SECONDS)
            latest = checkpoints.latest()
            if latest is None or latest == newest:
                continue
            newest = latest  # before it is loaded: a broken one is one warning, and the next one is looked at
            step = int(latest.name.rpartition("-")[2])
            try:
                await asyncio.to_thread(checkpoints.require_whole, step)
                with gateway.paused(retry_after=1.0):
                    load_weights(loaded.model, latest / "model")
                    await engine.load(loaded.model.state_dict(), step)
            except (OSError, RunError) as error:  # removed meanwhile: a run keeps its newest checkpoints alone
                logger.warning("cannot load %s: %s", latest, error)
                continue
            show(f"weights of {latest.name}")

    return follow
