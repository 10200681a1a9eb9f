"""From a config to a trained model: build the components, run the trainer, the cold start, and evaluation."""
