"""Our sampling settings in vLLM's words, and its outputs in ours.

Invariant: only our own stop ids end a turn, and the one that did is the last of its ids; every id has the logprob of
the distribution it was drawn from.
"""

import math
from collections.abc import Sequence

from turnwise.engines.base import Completion, Sampling
from turnwise.errors import EngineError, ModelError
from turnwise.types import Finish, Versions


def require_room(session: str, prompt_ids: Sequence[int], *, context_limit: int, vocabulary: int) -> int:
    """The tokens that a context leaves after a prompt; raises if there are none, or for an id that would end vLLM."""
    room = context_limit - len(prompt_ids)
    if not prompt_ids:
        raise ModelError(f"session '{session}': the prompt is empty; a model needs a token to start from")
    if room < 1:
        raise ModelError(
            f"session '{session}': a prompt of {len(prompt_ids)} tokens leaves no room to answer in a context of "
            f"{context_limit}; shorten it or raise the context limit"
        )
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
        raise ModelError(f"session '{session}': the prompt has ids that are none of the model's {vocabulary} tokens")
    return room


def sampling_fields(sampling: Sampling, *, room: int) -> dict[str, object]:
    """The fields of vLLM's SamplingParams for one turn."""
    return {
        "max_tokens": min(sampling.max_tokens, room),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed % 2**63,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # the stop ids are the whole list
        "logprobs": 0,  # the sampled token's alone
        "detokenize": False,
        "skip_special_tokens": False,
    }


def probe_fields() -> dict[str, object]:
    """The fields of vLLM's SamplingParams for the logprobs of a prompt; one token is sampled, and dropped."""
    return {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "ignore_eos": True, "detokenize": False}


def to_completion(
    session: str,
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    reason: str | None,
    versions: Versions,
    stop_ids: Sequence[int],
) -> Completion:
    """A completion out of vLLM's parts of one; `versions` are those of its spans."""
    if reason not in ("stop", "length") or not ids:
        raise EngineError(
            f"session '{session}': vLLM ended the turn with '{reason}' after {len(ids)} tokens; see its log"
        )
    if not all(map(math.isfinite, logprobs)):
        raise ModelError("the model's logits are not finite: lower the learning rate or load earlier weights")
    finish = Finish.STOP if ids[-1] in stop_ids else Finish.LENGTH
    return Completion(
        ids=tuple(ids), logprobs=tuple(logprobs), finish=finish, version=versions[0][1], versions=versions
    )
