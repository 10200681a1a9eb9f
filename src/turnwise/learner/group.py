"""The learners of all processes as one: rank 0 drives, and the other ranks repeat its calls on a model of their own.

Invariant: only rank 0 has an engine, environments, a controller and a run directory, and it alone decides what comes
next; the other ranks know nothing of a run but the calls they receive, so no two processes can race on its files.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from turnwise.credit.settings import CreditSettings
from turnwise.errors import RunError, TurnwiseError
from turnwise.learner.batch import Batch
from turnwise.learner.learner import Learner
from turnwise.learner.parallel import SINGLE, Parallel, shard_among
from turnwise.learner.saved_state import describe, named_tensors, read_state
from turnwise.learner.settings import LearnerSettings, SFTSettings
from turnwise.learner.sft import SFTLearner
from turnwise.learner.update import Update
from turnwise.losses.settings import LossSettings
from turnwise.models.loading import LoadedModel, load_model
from turnwise.models.settings import ModelSettings
from turnwise.models.shards import weights_of
from turnwise.types import Group

if TYPE_CHECKING:
    from turnwise.ledger import Ledger

T = TypeVar("T")


class LearnerWorker:
    """One process's model and what trains it; every rank has one, and all make the same calls on it."""

    learner: Learner

    def __init__(self, parallel: Parallel, model: nn.Module | None = None, ledger: "Ledger | None" = None) -> None:
        self.parallel, self.ledger = parallel, ledger
        self._model = model
        self._sft: SFTLearner | None = None
        self._inactive: dict[str, object] = {}
        """What a learner under other algorithm settings had (a critic, a reference) and the present one has not."""
        self.autocast: torch.dtype | None = None
        self.stopped = False

    def load_model(
        self,
        settings: ModelSettings,
        tokenizer: PreTrainedTokenizerFast,
        *,
        seed: int,
        autocast: torch.dtype | None,
        shard: bool,
    ) -> None:
        """Loads this rank's copy of the model; rank 0 has its own already, which its engine samples from."""
        self.autocast = autocast
        if self._model is None:
            self._model = load_model(settings, seed=seed, tokenizer=tokenizer).model
        self.device = next(self._model.parameters()).device
        if shard:
            self.parallel = shard_among(self.parallel, self.device)

    @property
    def model(self) -> nn.Module:
        assert self._model is not None, "the model is loaded first"
        return self._model

    def make_learner(
        self,
        *,
        settings: LearnerSettings,
        credit: CreditSettings,
        loss: LossSettings,
        temperature: float,
        total_steps: int,
    ) -> None:
        self._sft = None  # its moments are as large as the model
        self.learner = Learner(
            self.model,
            settings=settings,
            credit=credit,
            loss=loss,
            temperature=temperature,
            total_steps=total_steps,
            device=self.device,
            autocast=self.autocast,
            parallel=self.parallel,
            ledger=self.ledger,
        )

    def learn(self, batch: Batch, *, seed: int) -> Update:
        update = self.learner.learn(batch, seed=seed)
        self.parallel.publish(self.learner.model, self.model)
        return update

    def keep_state(self) -> None:
        self._inactive |= self.learner.own_state()

    def restore(self, *, version: int, saved: Mapping[str, object] | None, shards: Path | None) -> None:
        known = self._inactive
        if saved is not None:
            sections = self._read(saved, shards)
            known = {**_section(sections, "inactive"), **_section(sections, "learner")}
        own = self.learner.own_state()
        self.learner.load_state_dict({**own, **known, "version": version})
        self._inactive = {name: part for name, part in known.items() if name not in own}

    def full_state(self) -> dict[str, object]:
        return self.parallel.gather_state(self._own_state())

    def write_shards(self, folder: Path, *, weights: bool) -> tuple[dict[str, object], dict[str, str]]:
        state = self._own_state()
        trained = self.learner.model if self._sft is None else self._sft.model
        tensors = named_tensors(state) | (weights_of(trained) if weights else {})
        return describe(state), self.parallel.write_shards(folder, tensors)

    def _own_state(self) -> dict[str, object]:
        """The sections of a checkpoint, with this rank's part of each tensor."""
        if self._sft is not None:
            return {"sft": self._sft.own_state()}
        return {"learner": self.learner.own_state(), "inactive": self._inactive}

    def _read(self, saved: Mapping[str, object], shards: Path | None) -> Mapping[str, object]:
        if shards is None:
            return saved
        return read_state(saved, shards, self.parallel)

    def begin_sft(
        self,
        settings: SFTSettings,
        *,
        total_steps: int,
        seed: int,
        saved: Mapping[str, object] | None,
        shards: Path | None,
    ) -> None:
        self._sft = SFTLearner(
            self.model, settings, total_steps=total_steps, seed=seed, autocast=self.autocast, parallel=self.parallel
        )
        if saved is not None:
            self._sft.load_state_dict(_section(self._read(saved, shards), "sft"))

    def sft_step(self, batch: Batch, *, step: int) -> list[dict[str, float]]:
        assert self._sft is not None, "begin_sft comes first"
        return self._sft.step(batch, step=step)

    def finish_sft(self) -> list[dict[str, float]]:
        assert self._sft is not None, "begin_sft comes first"
        metrics = self._sft.finish()
        self.parallel.publish(self._sft.model, self.model)
        return metrics

    def stop(self) -> None:
        self.stopped = True


class LearnerGroup:
    """Rank 0's handle on every rank's learner; in one process, a learner like any other.

    Used as a context, it lets the other ranks go at its end.
    """

    def __init__(self, parallel: Parallel = SINGLE, model: nn.Module | None = None) -> None:
        assert parallel.is_main, "the other ranks follow"
        self._parallel = parallel
        self._worker = LearnerWorker(parallel, model)
        self._in_call = False

    def __enter__(self) -> "LearnerGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        # Within a call the others wait for its sums, not for the next call: they notice when this process leaves.
        if not self._in_call:
            with nullcontext() if kind is None else suppress(TurnwiseError):
                self._parallel.broadcast(LearnerWorker.stop)
                self._parallel.barrier()

    def load_model(
        self,
        loaded: LoadedModel,
        settings: ModelSettings,
        *,
        seed: int,
        autocast: torch.dtype | None = None,
        shard: bool = False,
        ledger: "Ledger | None" = None,
    ) -> None:
        """Takes the model that is trained; the other ranks load theirs by the same settings.

        With `shard`, ranks train shares of one copy of it, and this model gets the weights after each update.
        """
        self._worker = LearnerWorker(self._parallel, loaded.model, ledger)
        self._run(
            partial(
                LearnerWorker.load_model,
                settings=settings,
                tokenizer=loaded.tokenizer,
                seed=seed,
                autocast=autocast,
                shard=shard,
            )
        )

    def make_learner(
        self,
        *,
        settings: LearnerSettings,
        credit: CreditSettings,
        loss: LossSettings,
        temperature: float,
        total_steps: int,
    ) -> None:
        """Replaces the learner by a new one on every rank, all with rank 0's weights."""
        self._run(
            partial(
                LearnerWorker.make_learner,
                settings=settings,
                credit=credit,
                loss=loss,
                temperature=temperature,
                total_steps=total_steps,
            )
        )

    def update(self, groups: Sequence[Group], *, seed: int) -> Update:
        """Learns from groups sampled by this policy, each rank from its share of the rows."""
        learner = self._worker.learner
        with learner.accounted():
            return self._run(partial(LearnerWorker.learn, batch=learner.lay_out(groups), seed=seed))

    def keep_state(self) -> None:
        """Keeps the learner's state for the one that is made next, to be restored there."""
        self._run(LearnerWorker.keep_state)

    def restore(self, *, version: int, saved: Mapping[str, object] | None = None, shards: Path | None = None) -> None:
        """Goes on from the sections of a checkpoint, whose tensors may lie in `shards`, or from what was kept.

        What this learner has no use for under its settings is kept, for one that has.
        """
        self._run(partial(LearnerWorker.restore, version=version, saved=saved, shards=shards))

    def full_state(self) -> dict[str, object]:
        """The sections of a checkpoint, `{"learner": ..., "inactive": ...}` or in SFT `{"sft": ...}`, in full."""
        return self._run(LearnerWorker.full_state)

    def write_shards(self, folder: Path, *, weights: bool) -> tuple[dict[str, object], dict[str, str]]:
        """The same with tensors described, which all ranks write into `folder`; and the SHA-256 of its files.

        With `weights`, the policy's weights are written there too.
        """
        described, digests = self._run(partial(LearnerWorker.write_shards, folder=folder, weights=weights))
        if unseen := sorted(name for name in digests if not (folder / name).is_file()):
            raise RunError(
                f"{folder}: another process wrote {unseen[0]} to a disk that this one does not see: name a folder that "
                "all machines share, or set checkpoint.format=whole"
            )
        return described, digests

    @property
    def is_sharded(self) -> bool:
        """Whether all ranks share one copy of the model."""
        return self._worker.parallel.is_sharded

    def begin_sft(
        self,
        settings: SFTSettings,
        *,
        total_steps: int,
        seed: int,
        saved: Mapping[str, object] | None = None,
        shards: Path | None = None,
    ) -> None:
        """Prepares supervised fine-tuning; with a checkpoint's section, to go on from there, with present weights."""
        begin = partial(LearnerWorker.begin_sft, settings=settings, total_steps=total_steps, seed=seed)
        self._run(partial(begin, saved=saved, shards=shards))

    def sft_step(self, batch: Batch, *, step: int) -> list[dict[str, float]]:
        """Launches a step on a batch, each rank on its share of the rows; the metrics of steps that are complete."""
        return self._run(partial(LearnerWorker.sft_step, batch=batch, step=step))

    def finish_sft(self) -> list[dict[str, float]]:
        """The metrics of the steps still under way."""
        return self._run(LearnerWorker.finish_sft)

    def _run(self, call: Callable[[LearnerWorker], T]) -> T:
        """Makes a call on every rank at once, and returns this rank's result."""
        self._in_call = True  # and so it stays, should the call fail
        self._parallel.broadcast(call)
        result = call(self._worker)
        self._in_call = False
        return result


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section


def follow(parallel: Parallel) -> None:
    """Repeats rank 0's calls until it lets this rank go."""
    worker = LearnerWorker(parallel)
    while not worker.stopped:
        call: Callable[[LearnerWorker], object] = parallel.broadcast(None)
        call(worker)
    parallel.barrier()
