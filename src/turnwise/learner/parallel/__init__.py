"""How one learner is spread over processes: the protocol, one process, and data-parallel processes."""

from turnwise.learner.parallel.base import SINGLE, Parallel, SingleProcess
from turnwise.learner.parallel.data_parallel import DataParallel, join

__all__ = ["SINGLE", "DataParallel", "Parallel", "SingleProcess", "join"]
