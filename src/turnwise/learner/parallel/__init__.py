"""How gradients, norms and checkpoints are spread over processes."""
