"""What the engine and the learner share: device transfers, CUDA graphs, attention over packed rows, compiled layers."""
