"""Where a run's rollout workers and learners are: in this process, or on a Ray cluster."""
