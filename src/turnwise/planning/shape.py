"""The shape of a decoder, as far as its cost depends on it. No weights are loaded."""

import functools
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.models.settings import SMALL, ModelSettings, SmallSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder with a gated MLP: SmolLM2-135M has 30 layers, 576 wide, 9 heads of 64, 3 for keys and values."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    tied: bool

    @property
    def body(self) -> int:
        """Parameters of the layers."""
        attention = self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.ffn + 2 * self.width) + self.width

    @property
    def head(self) -> int:
        """Parameters of the LM head."""
        return self.width * self.vocabulary

    @property
    def parameters(self) -> int:
        return self.body + self.head * (1 if self.tied else 2)

    @property
    def kv_numbers(self) -> int:
        """Numbers that one token adds to a KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def attention_flops(self, context: float) -> float:
        """Of one token's forward pass beyond its products with weights, with this many tokens before it."""
        return 4.0 * self.layers * self.heads * self.head_size * context


def find_shape(settings: ModelSettings, known: dict[str, ModelShape]) -> ModelShape:
    """The shape of the model that a recipe names: `known` by its name, or read from its configuration."""
    if settings.name == SMALL:
        return _of_small(settings.small)
    return known.get(settings.name) or _of_config(settings.name)


def _of_small(small: SmallSettings) -> ModelShape:
    ffn = small.ffn or 32 * -(-small.width * 8 // 3 // 32)
    return ModelShape(
        layers=small.layers,
        width=small.width,
        heads=small.heads,
        kv_heads=small.kv_heads or small.heads,
        head_size=small.width // small.heads,
        ffn=ffn,
        vocabulary=small.vocabulary,
        tied=True,
    )


@functools.cache
def _of_config(name: str) -> ModelShape:
    from transformers import AutoConfig

    try:
        path = Path(name).expanduser()
        source, options = (str(path.parent), {"gguf_file": path.name}) if path.suffix.lower() == ".gguf" else (name, {})
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options).get_text_config()
        return ModelShape(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            ffn=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )
    except (OSError, ValueError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model.name: the shape of '{name}' cannot be read ({reason}): give a folder with its config.json, "
            "or a .gguf file"
        ) from None
