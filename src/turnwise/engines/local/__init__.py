"""The local engine: continuous batching in process, over the learner's own weights."""
