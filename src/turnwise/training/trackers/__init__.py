"""Trackers: TensorBoard, Weights & Biases, MLflow and Trackio as callbacks, each imported when a recipe names it."""

from turnwise.plugins import Known

TRACKERS: Known = {
    "tensorboard": "turnwise.training.trackers.tensorboard:TensorBoard",
    "wandb": "turnwise.training.trackers.wandb:WandB",
    "mlflow": "turnwise.training.trackers.mlflow:MLflow",
    "trackio": "turnwise.training.trackers.trackio:Trackio",
}
"""By the name that a recipe gives under `callbacks`."""
