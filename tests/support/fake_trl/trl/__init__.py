"""As much of TRL as `benchmarks/peers/trl_search.py` calls: episodes are scripted, and nothing is learnt."""

from trl.trainer.grpo_trainer import GRPOConfig, GRPOTrainer

__version__ = "0.0.fake"
__all__ = ["GRPOConfig", "GRPOTrainer"]
