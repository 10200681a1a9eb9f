"""Where a run's own Python came from, and whether it may be run again.

Invariant: Python that a run's config names is run only if its file has the content it had when the run was made, or if
the user trusts the run by name. A recipe, an override and an object given in Python are the user's own.
"""

import hashlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from turnwise.errors import ConfigError, RunError

logger = logging.getLogger(__name__)

FILE = "sources.json"
"""In a run's folder."""
_TRUST = "pass --trust (trust=True in Python)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`Source(name="support:Support", file="/home/me/support.py", sha256="9f...")`."""

    name: str
    """As the config has it."""
    file: str | None
    """None where the code was typed into an interactive session."""
    sha256: str | None

    @property
    def state(self) -> str:
        """`same`, `changed`, `gone`, or `interactive`."""
        if self.file is None:
            return "interactive"
        found = hash_file(Path(self.file))
        return "gone" if found is None else "same" if found == self.sha256 else "changed"


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A name that a run's config holds."""

    run: str
    source: Source | None


_ADOPTED: dict[str, _Adopted] = {}
"""What runs that were opened name, and not the user; those that may be run are in `_TRUSTED` as well."""
_TRUSTED: dict[str, Source | None] = {}


def describe_source(name: str, found: object) -> Source:
    """Where the object that a config names was defined."""
    module = sys.modules.get(getattr(found, "__module__", ""))
    file = getattr(module, "__file__", None)
    if file is None:
        with_code = inspect.unwrap(found) if callable(found) else found
        file = getattr(getattr(with_code, "__code__", None), "co_filename", None)
    path = Path(file).resolve() if file and Path(file).is_file() else None
    return Source(name=name, file=str(path) if path else None, sha256=hash_file(path) if path else None)


def hash_file(path: Path) -> str | None:
    """The hash of a file's content; None where there is no file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def write_sources(folder: Path, sources: Mapping[str, Source], write: Callable[[Path, str], None]) -> None:
    """Writes a run's sources; a run that is resumed with other code warns, and records that."""
    before = read_sources(folder)
    for name, source in sources.items():
        if name in before and before[name].sha256 != source.sha256:
            logger.warning("%s is resumed with another %s: %s has changed", folder, name, source.file)
    write(folder / FILE, json.dumps([asdict(one) for one in (before | dict(sources)).values()], indent=2) + "\n")


def read_sources(folder: Path) -> dict[str, Source]:
    """What a run recorded, by name; nothing where it has no such file."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {one["name"]: Source(name=one["name"], file=one["file"], sha256=one["sha256"]) for one in data}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def adopt_run(folder: Path, data: Mapping[str, object], *, own: Collection[str] = (), trust: bool = False) -> None:
    """Notes the names that an opened run's config holds, so that none of them is run unless it may be.

    `own` are names that the user gave in place of the run's.
    """
    sources = read_sources(folder)
    for name in {text for text in strings_of(data) if ":" in text and not text.startswith("turnwise.")}:
        _TRUSTED.pop(name, None)
        if name in own:
            _ADOPTED.pop(name, None)
            continue
        _ADOPTED[name] = _Adopted(str(folder), sources.get(name))
        source = sources.get(name)
        if trust or (source is not None and source.state == "same"):
            _TRUSTED[name] = source
        if trust and source is not None and source.state == "changed":
            logger.warning("%s has changed since %s was made: %s may be another now", source.file, folder, name)


def claim_names(data: object) -> None:
    """The names in a recipe or a call of the user's are the user's own, even if a run that was opened has them, too."""
    for name in strings_of(data):
        _ADOPTED.pop(name, None)
        _TRUSTED.pop(name, None)


def require_trusted(key: str, name: str) -> Source | None:
    """Refuses a name that stands in an opened run's config and may not be run; else its source, where one is known."""
    adopted = _ADOPTED.get(name)
    if adopted is None or name in _TRUSTED:
        return _TRUSTED.get(name)
    own = name.rpartition(":")[2].rpartition(".")[2]
    instead = f"or give your own: turnwise.evaluate(run='{adopted.run}', env={own}(...))"
    raise ConfigError(f"{key}: {_explain(name, adopted)}, {instead}")


def _explain(name: str, adopted: _Adopted) -> str:
    source = adopted.source
    if source is None:
        return (
            f"the config of {adopted.run} names Python, {name}, of which it records no source: {_TRUST} if "
            "you know whose it is"
        )
    if source.state == "interactive":
        return f"{name} was typed into an interactive session, and so is in no file"
    if source.state == "gone":
        return f"{name} was defined in {source.file}, which is not there: put it back"
    return f"{source.file} has changed since {adopted.run} was made: {_TRUST} to run it as it is"


def strings_of(data: object) -> Iterator[str]:
    """Every text in plain data, keys included."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from strings_of(key)
            yield from strings_of(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from strings_of(value)
    elif isinstance(data, str):
        yield data
