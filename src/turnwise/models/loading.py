"""Loading and saving models: the built-in, a Hugging Face id or folder, a GGUF file.

Invariant: what `save_model` writes is loaded by transformers' Auto classes, and by `load_weights` bit for bit.
A source that cannot be loaded is a one-line error before anything slow starts.
"""

import copy
import importlib.util
import shutil
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError  # type: ignore[attr-defined] # httpx's, or httpx2's
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from turnwise.compute.device import copy_to_host
from turnwise.errors import ModelError
from turnwise.models.gguf_cache import converted_folder, is_converted, keep_conversion
from turnwise.models.lora import (
    add_lora,
    has_lora,
    load_adapter,
    merged_weights,
    require_peft,
    save_adapter,
)
from turnwise.models.settings import SMALL, ModelSettings
from turnwise.models.shards import load_sharded_weights, shards_beside
from turnwise.models.small import build_small, train_tokenizer

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_FOLDER = "adapter"
_BROKEN_SOURCE = (
    OSError,
    ValueError,
    RuntimeError,
    ImportError,
    LookupError,
    AttributeError,
    TypeError,
    SafetensorError,
    struct.error,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on its device, in evaluation mode, with its tokenizer."""

    model: "PreTrainedModel | PeftModel"
    tokenizer: PreTrainedTokenizerFast
    context_limit: int
    """The most tokens one conversation can hold."""

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device


def choose_autocast(settings: ModelSettings, loaded: LoadedModel) -> torch.dtype | None:
    """The precision of products: None is that of the weights."""
    if settings.autocast is None and not _computes_in_bfloat16(loaded.device):
        return None
    return torch.bfloat16 if settings.autocasts(parameters=sum(p.numel() for p in loaded.model.parameters())) else None


def _computes_in_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def load_model(
    settings: ModelSettings,
    *,
    seed: int,
    texts: Callable[[], Iterable[str]] = tuple,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> LoadedModel:
    """Loads the model that the settings name.

    `texts` is called for the built-in model alone, to train its tokenizer, unless that is given: a process that joins
    a run takes rank 0's.
    """
    device = find_device(settings.device)
    if settings.lora is not None:
        require_peft()
    if settings.tokenizer is not None:
        _require_pretrained("model.tokenizer", settings.tokenizer, "tokenizer_config.json")
    dtype: torch.dtype = getattr(torch, settings.dtype)
    if settings.name == SMALL:
        if tokenizer is None and settings.tokenizer:
            tokenizer = _load_tokenizer(settings.tokenizer)
        if tokenizer is None:
            tokenizer = train_tokenizer(texts(), settings.small)
        model = build_small(settings.small, tokenizer, seed=seed).to(dtype)
    else:
        model, tokenizer = _load_pretrained(settings, dtype)
    if settings.tokenizer is not None:
        _require_vocabulary(model, tokenizer)
    limit = _context_limit(model, tokenizer)
    if settings.lora is not None:
        model = add_lora(model, settings.lora, seed=seed)
    return LoadedModel(model=model.to(device).eval(), tokenizer=tokenizer, context_limit=limit)


def save_model(
    model: "PreTrainedModel | PeftModel", tokenizer: PreTrainedTokenizerFast, folder: Path, *, weights: bool = True
) -> None:
    """Writes a folder that `AutoModelForCausalLM` and `AutoTokenizer` load as they are.

    Without `weights`, which lie in shards beside it then, it holds all but them, and `load_model` loads it.

    A model with adapters is written merged; `adapter/` beneath it holds the adapter alone, from which training
    resumes on the untouched weights of `model.name`: the merged ones would give other sums.
    """
    with _no_progress_bars():
        if not weights:
            assert not has_lora(model), "adapters are saved whole"
            _describe(model).save_pretrained(folder)
            if model.generation_config is not None:
                model.generation_config.save_pretrained(folder)
        elif has_lora(model):
            model.get_base_model().save_pretrained(folder, state_dict=merged_weights(model))
            save_adapter(model, folder / ADAPTER_FOLDER)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def copy_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Callable[[Path], None]:
    """What writes a model without adapters as it is now, as `save_model` does, whatever becomes of its weights.

    Nobody else may use the tokenizer while that runs.
    """
    weights = copy_to_host(model.state_dict())

    def write(folder: Path) -> None:
        with _no_progress_bars():
            model.save_pretrained(folder, state_dict=weights)
            tokenizer.save_pretrained(folder)

    return write


def load_weights(model: "PreTrainedModel | PeftModel", folder: Path) -> None:
    """Loads what `save_model` wrote into the model, in place, so that an optimizer's references stay valid."""
    if has_lora(model):
        load_adapter(model, folder / ADAPTER_FOLDER)
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no saved model: name a checkpoint of this run")
    if (shards := shards_beside(folder)) is not None:
        load_sharded_weights(model, shards)
        return
    with _no_progress_bars(), _one_line(str(folder)):
        saved, report = type(model).from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    _require_complete(str(folder), report)
    with _one_line(str(folder)):
        model.load_state_dict(saved.state_dict())


def require_context(model_context: int, asked: int) -> None:
    """Refuses a recipe whose conversations would exceed the model's positions."""
    if asked > model_context:
        raise ModelError(
            f"recipe asks for {asked} tokens but the model has {model_context} positions: "
            "lower rollout.context_tokens and rollout.turn_tokens, or pick another model"
        )


def _load_pretrained(settings: ModelSettings, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    path = Path(settings.name).expanduser()
    converted: Path | None = None
    if path.suffix.lower() == ".gguf":
        _require_gguf(path)
        converted = converted_folder(path, settings.dtype)
        known = is_converted(converted)
        source, options = (str(converted), {}) if known else (str(path.parent), {"gguf_file": path.name})
    else:
        source, options = _require_pretrained("model.name", settings.name, "config.json"), {}
    tokenizer = _load_tokenizer(settings.tokenizer) if settings.tokenizer else _load_tokenizer(source, **options)
    if (shards := shards_beside(Path(source))) is not None:
        return _load_sharded(Path(source), shards, dtype), tokenizer
    with _no_progress_bars(), _one_line(settings.name):
        model, report = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, trust_remote_code=False, **options, **_dense(options)
        )
    _require_complete(settings.name, report)
    if not options and getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(f"model.name: {settings.name} is quantised and cannot be trained: name the full weights")
    _make_savable(model)
    if options and settings.tokenizer is None and model.config.eos_token_id is not None:
        # transformers 5.17 reads a GGUF's end token off the begin token's field, in the tokenizer alone.
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    if options and converted is not None and settings.tokenizer is None:
        keep_conversion(converted, lambda folder: save_model(model, tokenizer, folder))
    return model, tokenizer


def write_whole(folder: Path, target: Path) -> None:
    """Writes the model of a checkpoint, its weights in shards or not, as `save_model` does."""
    if (shards := shards_beside(folder)) is None:
        shutil.copytree(folder, target)
        return
    with _one_line(str(folder)):
        dtype: torch.dtype = getattr(torch, str(AutoConfig.from_pretrained(folder).dtype).removeprefix("torch."))
    save_model(_load_sharded(folder, shards, dtype), _load_tokenizer(str(folder)), target)


def _describe(model: PreTrainedModel) -> PreTrainedConfig:
    """The configuration as `save_pretrained` would write it beside the weights."""
    described = copy.deepcopy(model.config)
    described.architectures = [type(model).__name__]
    described.dtype = str(model.dtype).removeprefix("torch.")
    return described


def _load_sharded(folder: Path, shards: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a checkpoint whose weights lie in shards beside its configuration."""
    with _one_line(str(folder)):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    load_sharded_weights(model, shards)
    return model


def _load_tokenizer(source: str, **options: str) -> PreTrainedTokenizerFast:
    with _one_line(str(Path(source) / options["gguf_file"]) if options else source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)


def _dense(options: dict[str, str]) -> dict[str, object]:
    """Newer transformers keep a GGUF's blocks quantised where they find a kernel; such weights cannot be trained."""
    packing = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": packing(dequantize=True)} if options and packing is not None else {}


def _make_savable(model: PreTrainedModel) -> None:
    """Removes what would keep a loaded model from being saved: a failed checkpoint costs a run."""
    for leftover in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(leftover, None)
    vars(model.config).pop("quantization_config", None)
    if model.generation_config is not None:
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # sampling options beside greedy decoding, as some published models carry
            ids = {name: getattr(model.config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
            model.generation_config = GenerationConfig(**ids)


def _require_gguf(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"model.name: no file {path}: give the path of a .gguf file that exists")
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(f"{path.name} needs the packages {' and '.join(missing)}: pip install turnwise[gguf]")


def _require_pretrained(option: str, name: str, file: str) -> str:
    """The folder or id to load from, once it is known to exist; asks the hub once, and only for an id."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / file).is_file():
            raise ModelError(f"{option}: folder {name} has no {file}: name a folder written by save_pretrained")
        return str(path)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(f"{option}: no folder {name}: give a folder, a Hugging Face id, a .gguf file or '{SMALL}'")
    try:
        if not isinstance(try_to_load_from_cache(name, file), str):
            get_hf_file_metadata(hf_hub_url(name, file))
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{option}: the hub shows no model '{name}': check the id, or log in if it is gated"
        ) from error
    except (HTTPError, OSError, ValueError) as error:
        raise ModelError(
            f"{option}: '{name}' is neither a folder nor a model the hub gives ({_first_line(error)}): "
            f"check the name and the network, or take '{SMALL}'"
        ) from error
    return name


def _require_complete(source: str, report: Mapping[str, Collection[str]]) -> None:
    """Refuses a file that lacks weights, which transformers would initialise at random."""
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{source} lacks {len(missing)} weights, such as {missing[0]}: get the complete model")


def _require_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens but the model has {rows}: set model.tokenizer to its own"
        )


def _context_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(positions or tokenizer.model_max_length)


def find_device(asked: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device is cuda but torch sees no GPU: set model.device to auto or cpu")
    return torch.device("cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    """Turns whatever the loading libraries raise about a foreign file into one line about this source."""
    try:
        yield
    except _BROKEN_SOURCE as error:
        raise ModelError(f"{source} cannot be loaded: {_first_line(error)}") from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Disables transformers' progress bars, which would break the live display, and restores the setting."""
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
