"""How one learner is spread over processes: the protocol, one process, data-parallel and sharded processes."""

from turnwise.learner.parallel.base import SINGLE, Parallel, SingleProcess
from turnwise.learner.parallel.data_parallel import DataParallel, join, join_by
from turnwise.learner.parallel.sharded import Sharded, shard_among

__all__ = ["SINGLE", "DataParallel", "Parallel", "Sharded", "SingleProcess", "join", "join_by", "shard_among"]
