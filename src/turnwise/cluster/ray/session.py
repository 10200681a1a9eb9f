"""A connection to a Ray cluster, and room on it for actors.

Invariant: what was started here is stopped here, and what was running stays: a cluster of the user's is only left. Room
that a cluster cannot give is an error after a deadline, in one line that says what was asked for and what is there.
"""

import importlib.util
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from turnwise.cluster.settings import RayCluster
from turnwise.errors import ConfigError, TurnwiseError

_logger = logging.getLogger(__name__)

_NAMES = {"CPU": "CPUs", "GPU": "GPUs"}
_CONNECTED: list[RayCluster] = []
"""By what settings this module has connected the process, if it has."""
_WORD_AFTER = 5.0
"""Seconds after which the log says that the cluster has not made room yet."""


def require_ray() -> None:
    """Raises, before anything slow, if ray is not installed."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise ConfigError("cluster.kind: ray needs the ray package, which is not installed: pip install turnwise[ray]")


@contextmanager
def connect(settings: RayCluster, room: Mapping[str, float] | None = None) -> Iterator[None]:
    """Within it, this process is a driver of the cluster; one that is connected already stays so.

    A cluster that is started here has the `room`, by resource, beside that of rollout workers and learners.
    """
    require_ray()
    import ray

    if ray.is_initialized():
        if settings.working_dir is not None and not _CONNECTED:
            raise ConfigError(
                "cluster.working_dir: this process is connected to Ray already: set it to null, and give "
                "ray.init(runtime_env={'working_dir': ...}) yourself"
            )
        yield
        return
    with _own_signals():
        _start(settings, room or {})
    _CONNECTED.append(settings)
    try:
        yield
    finally:
        _CONNECTED.pop()
        ray.shutdown()


def _start(settings: RayCluster, room: Mapping[str, float]) -> None:
    import ray

    options: dict[str, object] = {"log_to_driver": True, "logging_level": logging.ERROR, "configure_logging": True}
    if settings.working_dir is not None:
        options["runtime_env"] = {"working_dir": settings.working_dir}
    if settings.address is not None:
        try:
            ray.init(address=settings.address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"cluster.address: no Ray cluster at '{settings.address}' ({_first_line(error)}): start one with "
                "`ray start --head`, or set null to have one started on this machine"
            ) from error
        return
    # A CPU of Ray's is a place to run, not a core: workers that were asked for always have theirs.
    asked = {name: settings.rollout_workers * most for name, most in settings.worker_resources.items()}
    asked["CPU"] = settings.rollout_workers * settings.worker_cpus + (settings.learners - 1) * settings.learner_cpus
    asked = {name: asked.get(name, 0.0) + room.get(name, 0.0) for name in asked.keys() | room.keys()}
    options |= {"num_cpus": max(os.cpu_count() or 1, int(asked.pop("CPU") + 1)), "include_dashboard": False}
    options["resources"] = {name: math.ceil(amount) for name, amount in asked.items()}  # Ray has no parts of these
    with _without_own_gpu():
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises nothing narrower when its processes are not up within 30 seconds
            ray.shutdown()
            raise TurnwiseError(
                f"cluster: Ray did not start on this machine ({_first_line(error)}): try again when it is less busy, "
                "or start it with `ray start --head` and set cluster.address to auto"
            ) from error


@contextmanager
def _without_own_gpu() -> Iterator[None]:
    """Within it, a cluster that is started does not see the GPU that this process learns on, if it has others."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = seen.split(",") if seen else [str(index) for index in range(torch.cuda.device_count())]
    if len(every) < 2:
        yield
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(every[1:])
    try:
        yield
    finally:
        if seen is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = seen


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restores the handlers that ray.init replaces by ones that end the process at once, with nothing saved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def reserve(bundles: Sequence[Mapping[str, float]], *, strategy: str, seconds: float, what: str) -> Iterator[object]:
    """A placement group with a bundle for each actor, which is released at the end.

    `what` are the actors in words, with the settings that ask for them.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy.upper())
    try:
        began = time.monotonic()
        if not group.wait(min(_WORD_AFTER, seconds)):
            asked = f"{what}, {_show(bundles[0])} each, in a cluster of {_show(ray.cluster_resources())}"
            _logger.warning("waiting for room for %s", asked)
            if not group.wait(max(0.0, seconds - (time.monotonic() - began))):
                free = _show(ray.available_resources())
                raise ConfigError(
                    f"cluster: no room within {seconds:g} seconds for {asked} ({free} free): ask for less, or add nodes"
                )
        yield group
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def _show(resources: Mapping[str, float]) -> str:
    """`4 CPUs, 1 GPU and 2 cpu_node`; what Ray counts for itself is left out."""
    counted = {
        name: amount
        for name, amount in resources.items()
        if not name.startswith(("node:", "bundle", "memory", "object_store_memory")) and "_group_" not in name
    }
    words = [f"{amount:g} {_NAMES.get(name, name)}" for name, amount in sorted(counted.items())]
    return ", ".join(words) or "nothing"


def reason(error: BaseException) -> str:
    """The sentence of Ray's account that says why: the first one of its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].partition(". ")[0].removesuffix(".") if lines else type(error).__name__


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
