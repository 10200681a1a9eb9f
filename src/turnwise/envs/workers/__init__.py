"""Environments in worker processes that can be killed.

    env.py         WorkerEnv: an environment whose episodes live in workers; moves those of a worker that died
    fleet.py       Fleet: the workers of one environment; which episode is where, deaths, restarts, the limit
    worker.py      Worker: one worker as the trainer sees it: calls, answers, its last known line
    protocol.py    what the two sides say to each other; knows no transport
    server.py      the other side: runs the calls of its episodes
    pipe.py        a transport: frames of pickled messages over a socket
    nursery.py     the process that forks workers: it has neither threads nor torch, so a fork is safe

    settings.py    where a recipe wants its workers: beside the engine, or on other nodes
    placing.py     from settings to an environment in its workers

Workers on other machines have another nursery and another pipe, and nothing else: `cluster/envs`.
"""
