"""Tests that need ray, which `make test` has not: `make test-scale` installs it. Without it, none is collected."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

import turnwise

os.environ["PYTHONPATH"] = str(Path(turnwise.__file__).parents[1])  # of the actors, too
if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def nodes():
    """A cluster of a head without room for actors, and a function that adds nodes of one CPU."""
    import ray
    from ray.cluster_utils import Cluster

    from turnwise.cluster.ray.session import _own_signals

    with _own_signals():  # else Ray's handler of SIGTERM stays, and later tests are ended by what they send themselves
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            yield lambda **given: cluster.add_node(**{"num_cpus": 1, **given}), cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            sys.stdout.flush()
