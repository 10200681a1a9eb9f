"""The changes that a command asks for: one or several settings each, and the key of the row that they make.

Invariant: a change sets neither what is evaluated nor the seeds, which all rows share; and one that acts on the cold
start has a cold start of its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from benchmarks.harness.benchmark import split_settings
from benchmarks.harness.table import name_file
from turnwise.errors import ConfigError

_SHARED = ("evaluate", "seed")
"""Sections that say what is evaluated, and on which seed."""
_OF_COLD_START = ("sft", "model")
_LONGEST_KEY = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`Change(key="learner.optimizer.lr-1e-5", settings=("learner.optimizer.lr=1e-5",), cold=False)`."""

    key: str
    """Of its row, in the names of jobs and results."""
    settings: tuple[str, ...]
    cold: bool
    """It acts on the cold start as well."""

    @property
    def shown(self) -> str:
        """Its settings, without the folders of this machine: `rollout.temperature=1.0 rollout.group_size=16`."""
        return " ".join(map(_without_folder, self.settings))


def read_changes(words: Sequence[str], cold_words: Sequence[str], *, taken: Collection[str]) -> tuple[Change, ...]:
    """The changes of `--change` and of `--cold-change`, each with a key of its own that is not `taken`."""
    changes: list[Change] = []
    for option, given in (("--change", words), ("--cold-change", cold_words)):
        for word in given:
            settings = tuple(split_settings(word))
            for setting in settings:
                _check(option, setting)
            key = _name(settings, option, taken={*taken, *(change.key for change in changes)})
            changes.append(Change(key=key, settings=settings, cold=option == "--cold-change"))
    return tuple(changes)


def name_option(change: Change) -> str:
    """As the command had it, for an error: `--change learner.optimizer.lr=1e-5`."""
    return f"--{'cold-' if change.cold else ''}change {' '.join(change.settings)}"


def _check(option: str, setting: str) -> None:
    section = setting.partition("=")[0].strip().partition(".")[0]
    if section in _SHARED:
        raise ConfigError(
            f"{option} {setting}: what is evaluated and the seeds are the same for all rows: give evaluate.* as a "
            "setting of the command, and --seeds"
        )
    if option == "--change" and section in _OF_COLD_START:
        raise ConfigError(
            f"{option} {setting}: acts on the cold start, which all rows of --change share: give it as --cold-change"
        )


def _name(settings: Sequence[str], option: str, *, taken: Collection[str]) -> str:
    """`a.b-1+c.d-2` of `a.b=1 c.d=2`; one that is too long, or taken, ends with a digest of the whole."""
    plain = "+".join(name_file(_without_folder(setting)).strip("-") for setting in settings)
    if len(plain) <= _LONGEST_KEY and plain not in taken:
        return plain
    digest = blake2b(f"{option} {' '.join(settings)}".encode(), digest_size=3).hexdigest()
    return f"{plain[: _LONGEST_KEY - len(digest) - 1]}-{digest}"


def _without_folder(setting: str) -> str:
    """A path of the user's is shown by its own name alone."""
    key, equals, value = setting.partition("=")
    return f"{key}{equals}{Path(value).name if Path(value).is_absolute() else value}"
