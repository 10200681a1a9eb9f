"""How one learner is spread over processes: the protocol, one process, data-parallel and sharded processes."""

from turnwise.learner.parallel.base import SINGLE, Parallel, SingleProcess
from turnwise.learner.parallel.data_parallel import DataParallel, host_store, join, join_by, reach_store
from turnwise.learner.parallel.sharded import Sharded, shard_among

__all__ = [
    "SINGLE",
    "DataParallel",
    "Parallel",
    "Sharded",
    "SingleProcess",
    "host_store",
    "join",
    "join_by",
    "reach_store",
    "shard_among",
]
