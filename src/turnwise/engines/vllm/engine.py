"""vLLM in this process: its engine is stepped by one task of the caller's event loop.

Invariant: episodes run between two steps, as with the local engine, so that the order of events is fixed if tools run
inline. After `load`, no request reads a cache of older weights, and a completion carries the version that vLLM itself
noted when it sampled the first token.
"""

import asyncio
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.engines.base import Completion, EngineStats, Sampling
from turnwise.engines.probe import WeightProbe
from turnwise.engines.settings import VLLMEngineSettings
from turnwise.engines.vllm.arguments import (
    choose_dtype,
    engine_arguments,
    environment,
    probe_dtype,
    write_config,
)
from turnwise.engines.vllm.sampling import probe_fields, require_room, sampling_fields, to_completion
from turnwise.engines.weights import checkpoint_weights, copy_weights, count_tokens, resolve_context_limit
from turnwise.errors import EngineError, ModelError
from turnwise.ledger import Ledger
from turnwise.types import Versions

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput, WeightVersionSpan
    from vllm.v1.engine.llm_engine import LLMEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A turn, or a probe, that vLLM is working on."""

    session: str
    future: "asyncio.Future[RequestOutput]"


class VLLMEngine:
    """Samples by vLLM from weights that it copies out of `model`, at first and at every `load`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        settings: VLLMEngineSettings,
        context_limit: int | None = None,
        autocast: torch.dtype | None = None,
        ledger: Ledger | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`context_limit` defaults to the model's positions; `prompt_ids` is text for the check of loaded weights."""
        _refuse_torchrun()
        self._model, self._ledger = model, ledger or Ledger()
        self._context_limit = resolve_context_limit(model, context_limit)
        self._vllm = _start(model, settings, autocast, self._context_limit)
        self._probe = WeightProbe(
            model,
            prompt_ids,
            dtype=probe_dtype(settings, model, autocast),
            context_limit=self._context_limit,
            autocast=autocast,
        )
        self._requests: dict[str, _Request] = {}
        self._names = count()
        self._task: asyncio.Task[None] | None = None
        self._arrived = False
        """Whether a prompt came since the last step."""
        self._counts: Counter[str] = Counter()
        self._seconds = {"prefill": 0.0, "decode": 0.0}
        self._loaded: set[str] = set()
        """The versions of all weights so far, in vLLM's spelling."""
        self._put_weights(0)

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        return self._context_limit

    @property
    def stats(self) -> EngineStats:
        """The work done so far; a step that reads a new prompt counts as prefill, whatever it samples beside it."""
        return EngineStats(
            **self._counts, prefill_seconds=self._seconds["prefill"], decode_seconds=self._seconds["decode"]
        )

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids`; blocks of the prompt that the prefix cache has are not computed."""
        room = require_room(
            session, prompt_ids, context_limit=self._context_limit, vocabulary=count_tokens(self._model)
        )
        output = await self._ask(session, prompt_ids, sampling_fields(sampling, room=room))
        (turn,) = output.outputs
        ids = list(turn.token_ids)
        assert turn.logprobs is not None, "asked for"
        cached = output.num_cached_tokens or 0
        self._counts.update(
            prefill_tokens=len(prompt_ids) - cached, reused_tokens=cached, decode_tokens=max(len(ids) - 1, 0)
        )
        return to_completion(
            session,
            ids,
            [given[token].logprob for given, token in zip(turn.logprobs, ids, strict=True)],
            reason=turn.finish_reason,
            versions=self._versions_of(turn.weight_versions),
            stop_ids=sampling.stop_ids,
        )

    async def end(self, session: str) -> None:
        """Forgets a conversation; a turn of it that is being sampled fails. Its cache is vLLM's to keep or reuse."""
        for name, request in list(self._requests.items()):
            if request.session == session:
                self._withdraw(name)
                request.future.set_exception(ModelError(f"session '{session}' was ended during a turn of its own"))

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Loads weights and drops every cache; raises if vLLM then does not sample from these weights.

        A turn that is being sampled continues with the new weights after its context is prefilled again.
        """
        with self._ledger.spend("load"):
            copy_weights(self._model, weights)
            self._put_weights(version)
            expected = self._probe.expect()
        output = await self._ask("", self._probe.ids, probe_fields())
        assert output.prompt_logprobs is not None, "asked for"
        found = [
            given[token].logprob for given, token in zip(output.prompt_logprobs, self._probe.ids, strict=True) if given
        ]
        self._probe.check(found, expected, version=version, where="vLLM")

    def _put_weights(self, version: int) -> None:
        self._vllm.collective_rpc(_reload, args=(checkpoint_weights(self._model),))
        self._vllm.reset_prefix_cache(reset_running_requests=True)
        self._vllm.set_weight_version(str(version))
        self._loaded.add(str(version))

    async def _ask(self, session: str, prompt_ids: Sequence[int], fields: Mapping[str, object]) -> "RequestOutput":
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input

        name = str(next(self._names))
        request = _Request(session=session, future=asyncio.get_running_loop().create_future())
        self._wake()
        try:
            self._vllm.add_request(name, tokens_input(list(prompt_ids)), SamplingParams(**fields))
        except ValueError as error:
            raise ModelError(f"session '{session}': vLLM refuses the prompt: {_one_line(error)}") from error
        self._requests[name], self._arrived = request, True
        try:
            return await request.future
        except asyncio.CancelledError:
            self._withdraw(name)
            raise

    def _wake(self) -> None:
        """Makes sure that the stepping task runs, in the caller's event loop."""
        loop = asyncio.get_running_loop()
        if self._task is not None and not self._task.done():
            if self._task.get_loop() is loop:
                return
            self._drop_all()  # their loop is gone
        self._task = loop.create_task(self._drain())
        self._task.add_done_callback(self._settle)

    async def _drain(self) -> None:
        await asyncio.sleep(0)  # so that episodes that begin together are prefilled together
        while self._requests:
            for output in self._step():
                if output.finished and (request := self._requests.pop(output.request_id, None)):
                    request.future.set_result(output)
            assert not self._requests or self._vllm.has_unfinished_requests(), "vLLM finishes what it was given"
            await asyncio.sleep(0)

    def _step(self) -> "list[RequestOutput]":
        account = "prefill" if self._arrived else "decode"
        self._arrived = False
        began = time.perf_counter()
        with self._ledger.spend(account):
            outputs: list[RequestOutput] = self._vllm.step()
        self._seconds[account] += time.perf_counter() - began
        self._counts.update(decode_steps=1, slot_steps=len(self._requests))
        return outputs

    def _settle(self, task: asyncio.Task[None]) -> None:
        """Passes a failure or cancellation of the stepping task on to every waiting request."""
        waiting = [request.future for request in self._requests.values() if not request.future.done()]
        if not task.cancelled() and task.exception() is None:
            return
        self._drop_all()
        for future in waiting:
            if task.cancelled():
                future.cancel()
            else:
                error = EngineError(f"vLLM failed: {_one_line(task.exception())}")
                error.__cause__ = task.exception()
                future.set_exception(error)

    def _drop_all(self) -> None:
        self._vllm.abort_request(list(self._requests))
        self._requests.clear()

    def _withdraw(self, name: str) -> None:
        if self._requests.pop(name, None):
            self._vllm.abort_request([name])

    def _versions_of(self, spans: "Sequence[WeightVersionSpan] | None") -> Versions:
        """(first token, version) of each span that one version of the weights sampled, as vLLM noted them."""
        given = [(span.start, span.version) for span in spans or ()]
        for _, version in given or [(0, "none")]:
            if version not in self._loaded:
                raise EngineError(f"vLLM sampled with weights of version '{version}'; it was given none such")
        return tuple((start, int(version)) for start, version in given)


def _reload(worker: object, weights: Mapping[str, torch.Tensor]) -> None:
    """In vLLM's worker: replaces all weights, in place."""
    worker.model_runner.reload_weights(weights_iterator=iter(weights.items()))  # type: ignore[attr-defined]  # vLLM's


def _start(
    model: PreTrainedModel, settings: VLLMEngineSettings, autocast: torch.dtype | None, context_limit: int
) -> "LLMEngine":
    on_cpu = not torch.cuda.is_available()
    os.environ.update(environment(settings, on_cpu=on_cpu))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of what cannot be had on this device
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    _mend_llvmlite()
    with tempfile.TemporaryDirectory(prefix="turnwise-vllm-") as folder, _own_random_state(), catch_warnings():
        simplefilter("ignore", FutureWarning)  # of torch's, about vLLM's code
        write_config(model, Path(folder))
        dtype = choose_dtype(settings, model, autocast)
        arguments = engine_arguments(settings, dtype=dtype, context_limit=context_limit, on_cpu=on_cpu)
        try:
            return LLMEngine.from_engine_args(EngineArgs(model=folder, load_format="dummy", **arguments))
        except (ValueError, TypeError, RuntimeError, ImportError, NotImplementedError) as error:
            raise EngineError(f"vLLM does not start: {_one_line(error)}") from error


def _refuse_torchrun() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EngineError(
            "engine.servers: 0 would put vLLM into a process of torchrun's, whose process group it needs for itself: "
            "set engine.servers to 1 or more"
        )


def _mend_llvmlite() -> None:
    """Numba's library claims to have every attribute, `__dict__` too; vLLM on a CPU asks loaded modules for it."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    library = type(ffi.lib) if ffi is not None else None
    find = getattr(library, "__getattr__", None)
    if find is None or getattr(find, "knows_dunders", False):
        return

    def find_function(self: object, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found: object = find(self, name)
        return found

    find_function.knows_dunders = True  # type: ignore[attr-defined]  # so that it is wrapped once
    library.__getattr__ = find_function  # type: ignore[union-attr]


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Restores every random state and the number of threads: vLLM sets them when it starts."""
    threads, python, numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
