"""The distribution that an agent's turns are sampled from."""

from pydantic import Field

from turnwise.engines.base import Sampling
from turnwise.errors import ConfigError
from turnwise.settings import Settings


class Decoding(Settings):
    """The distribution a turn is sampled from."""

    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability is sampled from; 1 keeps every token."""
    top_k: int = Field(default=0, ge=0)
    """0 keeps every token."""

    def sampling(self, *, max_tokens: int, stop_ids: tuple[int, ...], seed: int) -> Sampling:
        """One turn's request to an engine."""
        return Sampling(
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=seed,
        )

    def require_trainable(self, where: str) -> None:
        """Training needs the probability of every token it may see again after an update."""
        if self.temperature == 0 or self.top_p < 1 or self.top_k > 0:
            raise ConfigError(
                f"{where}: to train, sample with temperature > 0, top_p = 1 and top_k = 0; a truncated distribution"
                " has no ratio to the updated one (set these for evaluation alone)"
            )
