"""Whether an engine that keeps weights of its own has the newest: logprobs of one text, the model's and the engine's.

Invariant: an engine that kept an old weight, or an old cache, is an EngineError, never a silent drift; differences of
rounding are not.
"""

import random
from collections.abc import Sequence
from typing import Literal

import torch
from transformers import PreTrainedModel

from turnwise.engines.weights import count_tokens, sampled_model
from turnwise.errors import EngineError

_PROMPT_TOKENS = 32
"""Of the text: the first of a prompt of the run."""
_RANDOM_TOKENS = 32
"""Of the text: so that rows from all over the head are read."""
_TOLERANCE = {"float32": 5e-3, "bfloat16": 0.1}
"""The mean absolute difference of logprobs that rounding may make; a stale head differs by .6 and more."""


class WeightProbe:
    """`expected = probe.expect()` when weights are taken from the model; `probe.check(found, expected, ...)` once the
    engine has loaded them, by when a learner may have changed the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_ids: Sequence[int],
        *,
        dtype: Literal["float32", "bfloat16"],
        context_limit: int,
        autocast: torch.dtype | None = None,
    ) -> None:
        """`dtype` is the coarser one of model and engine; `autocast` is the type of the model's matrix products."""
        draw, tokens = random.Random(0), count_tokens(model)
        text = [*prompt_ids[:_PROMPT_TOKENS], *(draw.randrange(tokens) for _ in range(_RANDOM_TOKENS))]
        self.ids = text[-(context_limit - 1) :]
        """The text: at least two tokens, which leave room for one more."""
        self._model, self._dtype, self._autocast = model, dtype, autocast

    @torch.no_grad()
    def expect(self) -> list[float]:
        """The logprob of each token of the text after the first, by the model as it is now."""
        model = sampled_model(self._model)
        training = model.training
        model.eval()  # the engine samples without dropout
        ids = torch.tensor([self.ids], device=model.get_input_embeddings().weight.device)  # [1, T]
        with torch.autocast(ids.device.type, self._autocast, enabled=self._autocast is not None):
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]  # [T - 1, V]
        model.train(training)
        logprobs = logits.float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]  # [T - 1]
        listed: list[float] = logprobs.tolist()
        return listed

    def check(self, found: Sequence[float], expected: Sequence[float], *, version: int, where: str) -> None:
        """Raises if the engine's logprobs of the text are not those that the model had."""
        assert len(found) == len(expected), "a logprob for every token but the first"
        gap = sum(abs(one - other) for one, other in zip(found, expected, strict=True)) / len(expected)
        if not gap <= _TOLERANCE[self._dtype]:  # NaN is no agreement either
            raise EngineError(
                f"{where} does not sample from the weights of version {version}: logprobs of a probe are off by "
                f"{gap:.2g} on average (rounding in {self._dtype}: at most {_TOLERANCE[self._dtype]:g}); check that it "
                "loads this model and all its weights"
            )
