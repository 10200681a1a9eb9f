"""Environment workers on other nodes than their engine. Nothing here knows Ray: `cluster/ray/envs.py` brings it.

actor.py       EnvActor: the process on a node that forks workers there and carries their messages
node.py        EnvNode: one such process as the trainer sees it, and the connections to its workers
nursery.py     NodeNursery: the nodes of one environment; which starts a worker, and what replaces a lost one
"""
