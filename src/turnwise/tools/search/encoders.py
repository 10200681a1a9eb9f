"""Encoders of texts: any Hugging Face model by pooling, or a sentence-transformers model. Imported only when used.

Invariant: rows come back in the order of the texts and have length 1, and a text's vector does not depend on its
neighbours in the batch beyond rounding. A fork of the process encodes on the CPU.

Shapes: B texts, T tokens, D dimensions of a vector.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from transformers import AutoModel, AutoTokenizer

from turnwise.errors import ModelError
from turnwise.tools.search.dense import DenseSettings, Encoder, require
from turnwise.tools.search.nearest import OnDevice, pick_device
from turnwise.tools.search.retrieval import Vectors

_logger = logging.getLogger(__name__)
_PATIENCE = 10.0
"""Seconds of encoding before a line says how far it is."""
_AGAIN = 2.0
"""The next line comes when so many times as long has passed."""


def load_encoder(settings: DenseSettings) -> Encoder:
    """The encoder these settings name."""
    if settings.pooling == "auto" and _is_sentence_transformer(settings.encoder):
        hint = f"'{settings.encoder}' (a sentence-transformers model; or say how to pool it, such as pooling: mean)"
        require("sentence_transformers", hint)
        return _SentenceTransformer(settings)
    return _HuggingFace(settings)


def fingerprint(settings: DenseSettings) -> str:
    """All that the vectors of passages depend on: settings, and the files of an encoder that is a folder."""
    read = settings.model_dump_json(include={"encoder", "pooling", "passage_prefix", "max_tokens", "faiss"})
    folder = Path(settings.encoder)
    files = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []
    stats = [(file.relative_to(folder).as_posix(), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return f"{read}{stats}"


class _Batches(ABC):
    """What the two kinds of encoder share: prefixes, batches of like length, and vectors of length 1."""

    def __init__(self, settings: DenseSettings) -> None:
        self._settings = settings
        # A fast tokenizer fails when two threads use it at once.
        self._one_at_a_time = threading.Lock()

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self._settings.query_prefix + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self._settings.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        encoded: Vectors | None = None
        told = _Progress(sum(map(len, texts)))
        for first in range(0, len(order), self._settings.batch):
            places = order[first : first + self._settings.batch]
            with self._one_at_a_time, torch.inference_mode():
                vectors = self._embed([texts[place] for place in places]).float()  # (B, D)
                rows = torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()  # (B, D)
            if encoded is None:
                encoded = np.empty((len(texts), rows.shape[1]), np.float32)
            encoded[places] = rows
            told.add(sum(len(texts[place]) for place in places))
        assert encoded is not None, "there is at least one text"
        return encoded

    @abstractmethod
    def _embed(self, texts: list[str]) -> torch.Tensor:
        """One vector per text (B, D), of any length."""


class _Progress:
    """Tells how far a long encoding is, which may take minutes on a CPU; texts come in order of length."""

    def __init__(self, characters: int) -> None:
        self._characters, self._done = characters, 0
        self._began = time.monotonic()
        self._next = _PATIENCE

    def add(self, characters: int) -> None:
        self._done += characters
        elapsed = time.monotonic() - self._began
        if elapsed >= self._next and self._done < self._characters:
            self._next = _AGAIN * elapsed
            share = self._done / self._characters
            left = elapsed * (1 / share - 1)
            _logger.warning("encoding passages for search: %.0f%%, about %.0f s left", 100 * share, left)


class _HuggingFace(_Batches):
    def __init__(self, settings: DenseSettings) -> None:
        super().__init__(settings)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(settings.encoder, trust_remote_code=False)
            loaded = AutoModel.from_pretrained(settings.encoder, dtype=torch.float32, trust_remote_code=False)
            self._model = OnDevice(loaded.eval(), pick_device(settings.device))
        except (OSError, ValueError) as error:
            raise _not_an_encoder(settings.encoder, error) from None
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        positions = getattr(loaded.config, "max_position_embeddings", settings.max_tokens)
        self._max_tokens = min(settings.max_tokens, self._tokenizer.model_max_length, positions)

    def _embed(self, texts: list[str]) -> torch.Tensor:
        model = self._model.here
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        ).to(model.device)
        hidden: torch.Tensor = model(**tokens).last_hidden_state  # (B, T, D)
        if self._settings.pooling == "cls":
            return hidden[:, 0]  # (B, D)
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
        mean: torch.Tensor = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)  # (B, D)
        return mean


class _SentenceTransformer(_Batches):
    def __init__(self, settings: DenseSettings) -> None:
        super().__init__(settings)
        library = import_module("sentence_transformers")
        try:
            loaded = library.SentenceTransformer(settings.encoder, device="cpu")
        except (OSError, ValueError) as error:
            raise _not_an_encoder(settings.encoder, error) from None
        loaded.max_seq_length = min(settings.max_tokens, loaded.max_seq_length or settings.max_tokens)
        self._model = OnDevice(loaded, pick_device(settings.device))

    def _embed(self, texts: list[str]) -> torch.Tensor:
        vectors: torch.Tensor = self._model.here.encode(
            texts, batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False
        )
        return vectors


def _is_sentence_transformer(name: str) -> bool:
    if Path(name).is_dir():
        return (Path(name) / "modules.json").is_file()
    try:
        hf_hub_download(name, "modules.json")
    except EntryNotFoundError:
        return False
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise _not_an_encoder(name, error) from None
    return True


def _not_an_encoder(name: str, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200]
    return ModelError(f"encoder '{name}' cannot be loaded; give a folder or a model on the Hugging Face hub ({reason})")
