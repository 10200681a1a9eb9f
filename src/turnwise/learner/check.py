"""Refuses settings and models that a learner cannot work with, before anything is made."""

import logging

from torch import nn

from turnwise.compute.layers import require_layers
from turnwise.errors import ConfigError
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings

logger = logging.getLogger(__name__)


def check_settings(model: nn.Module, settings: LearnerSettings, loss: LossSettings, temperature: float) -> None:
    if temperature <= 0:
        raise ConfigError(f"temperature: {temperature} samples nothing to learn from; set it above 0")
    if loss.kl_coef > 0 and loss.kl_in == "loss" and loss.kl_form == "k1":
        logger.warning("loss.kl_estimator: k1 in the loss has a gradient of zero mean; k2 and k3 hold the policy")
    for option in ("compile", "checkpointing"):
        if getattr(settings, option):
            require_layers(model, setting=f"learner.{option}")
