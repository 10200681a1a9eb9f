"""The GPUs of which runs were measured. Others are not guessed at."""

from dataclasses import dataclass

from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A GPU by its data sheet."""

    name: str
    memory: float
    """Bytes."""
    flops: float
    """Per second, bfloat16, dense."""
    bandwidth: float
    """Of its memory, bytes per second."""
    link: float
    """Between two GPUs of a machine, one way, bytes per second. No run here has used it."""


KNOWN = {"h200": Hardware(name="h200", memory=141e9, flops=989e12, bandwidth=4.8e12, link=450e9)}


def find_hardware(name: str) -> Hardware:
    found = KNOWN.get(name.lower())
    if found is None:
        raise ConfigError(
            f"--gpu: no run was measured on '{name}' (known: {', '.join(KNOWN)}): measure a few steps there with "
            "--probe 5, or name a run made there with --run"
        )
    return found
