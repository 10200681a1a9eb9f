"""The learner: from trajectories to rows, batches, the objective and optimizer steps, in one process or several."""
