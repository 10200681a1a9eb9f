"""What environments on other nodes cost and gain, on a Ray cluster whose nodes are processes of this machine:

    python -m benchmarks.scale.environments

First the milliseconds of a step that does nothing: in process, in `env.workers` processes beside the engine, and in
workers on a node of the cluster; of one episode by itself, and per step where 64 play at once. Then the seconds of a
training step whose environment stands still for 200 ms at each turn, with the workers of 1, 2 and 4 nodes. Prints both
as tables.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.scale.slow import Idle
from turnwise.cluster.home import Home
from turnwise.cluster.ray.envs import RayNurseries
from turnwise.envs.base import Env
from turnwise.envs.registry import EnvSettings
from turnwise.envs.workers.env import in_workers
from turnwise.envs.workers.settings import RayWorkers
from turnwise.types import Message

_HERE = Path(__file__).parent
_ON = RayWorkers(cpus=0.1, resources={"cpu_node": 0.01})
_AT_ONCE = (1, 64)
_ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.environments", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4], help="how many nodes train, in turn")
    parser.add_argument("--workers", type=int, default=4, help="environment workers of a node")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a turn takes")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    with cluster(1):
        sys.stdout.write(table_of_steps({name: measure(make) for name, make in PLACES.items()}))
    trained = {}
    for nodes in options.nodes:
        with cluster(nodes) as address:
            workers = nodes * options.workers
            trained[nodes] = workers, train(address, workers, seconds=options.seconds, steps=options.steps)
    sys.stdout.write(table_of_training(trained))
    return 0


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """A head without room and so many nodes with some; this process is connected, and gets the address."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=1, resources={"cpu_node": 1})
        ray.init(address=made.address, log_to_driver=False)
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def _on_ray(env: Env) -> Env:
    settings = EnvSettings(name="idle", workers=2, workers_on=_ON)
    nurseries = RayNurseries(home=Home.here(), root=None, seconds=60.0)
    return in_workers(env, 2, open_nursery=lambda birth: nurseries.open(birth, settings))


PLACES: Mapping[str, Callable[[Env], Env]] = {
    "in process": lambda env: env,
    "2 processes beside the engine": lambda env: in_workers(env, 2),
    "2 processes on a node of the cluster": _on_ray,
}


def measure(place: Callable[[Env], Env]) -> dict[int, float]:
    """Milliseconds per step, by how many episodes play at once; the median of some rounds."""
    env = place(Idle())
    try:
        asyncio.run(_play(env, 16, 20))  # until each kind of call is known to be fast or slow
        return {
            count: statistics.median(asyncio.run(_play(env, count, 400 // count + 20)) for _ in range(_ROUNDS))
            for count in _AT_ONCE
        }
    finally:
        env.host.close()


async def _play(env: Env, count: int, turns: int) -> float:
    task, reply = env.tasks("train")[0], Message(role="assistant", content="a move of some length" * 4)
    episodes = [env.spawn() for _ in range(count)]
    await asyncio.gather(*(one.reset(task, 0) for one in episodes))
    began = time.monotonic()
    for _ in range(turns):
        await asyncio.gather(*(one.step(reply) for one in episodes))
    took = time.monotonic() - began
    await asyncio.gather(*(one.close() for one in episodes))
    return 1e3 * took / turns / count


def train(address: str, workers: int, *, seconds: float, steps: int) -> float:
    """Seconds of a step, the first one left out."""
    settings = {
        "env.name": f"{_HERE / 'slow.py'}:StandingVowels",
        "env.args": f"{{seconds: {seconds:g}}}",
        "env.workers": str(workers),
        "env.workers_on": _ON.model_dump_json(),
        "cluster": json.dumps({"kind": "ray", "address": address, "rollout_workers": 0}),
        "steps": str(steps),
        "rollout.groups_per_step": "2",
        "evaluate.every": "0",
        "evaluate.tasks": "2",
        "checkpoint.every": str(steps),
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        overrides = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "turnwise", "train", str(_HERE / "vowels.yaml"), *overrides, "--run", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [record["time"] for record in records if record["stage"] == "train"]
    return statistics.fmean(later - earlier for earlier, later in itertools.pairwise(times))


def table_of_steps(measured: Mapping[str, Mapping[int, float]]) -> str:
    lines = ["| environments | one episode, ms a step | 64 at once, ms a step |", "|---|---|---|"]
    lines += [f"| {name} | {found[1]:.3f} | {found[64]:.3f} |" for name, found in measured.items()]
    return "\n".join(lines) + "\n\n"


def table_of_training(trained: Mapping[int, tuple[int, float]]) -> str:
    first = next(iter(trained.values()))[1]
    lines = ["| nodes | environment workers | seconds a training step | against the first |", "|---|---|---|---|"]
    lines += [
        f"| {nodes} | {workers} | {seconds:.2f} | {first / seconds:.2f} x |"
        for nodes, (workers, seconds) in trained.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
