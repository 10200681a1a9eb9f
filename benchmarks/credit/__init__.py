"""Which estimator is right, and which learns: the oracle's figures and runs on FrozenLake."""
