"""Where a run's own Python came from, and whether it may be run again.

Invariant: Python or a command that a run's config names is run only if the run was made by this user on this machine
and the file of the Python has the content it had then, or if the user trusts the run by name. That a run is the user's
own is vouched for by a secret in the user's home, since whoever hands a run on can write any hash into it. A recipe, an
override and an object given in Python are the user's own.
"""

import hashlib
import hmac
import inspect
import json
import logging
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    vouched: bool


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


def write_sources(
    folder: Path, config: Mapping[str, object], sources: Mapping[str, Source], write: Callable[[Path, str], None]
) -> None:
    """Writes a run's sources and vouches for them; a run that is resumed with other code warns, and records that."""
    before = read_sources(folder)
    for name, source in sources.items():
        if name in before and before[name].sha256 != source.sha256:
            logger.warning("%s is resumed with another %s: %s has changed", folder, name, source.file)
    recorded = [asdict(one) for one in (before | dict(sources)).values()]
    vouch = _vouch(recorded, config)
    write(folder / FILE, json.dumps({"sources": recorded, "vouch": vouch}, indent=2) + "\n")


def read_sources(folder: Path) -> dict[str, Source]:
    """What a run recorded, by name; nothing where it has no such file."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["sources"]
        return {one["name"]: Source(name=one["name"], file=one["file"], sha256=one["sha256"]) for one in data}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def adopt_run(folder: Path, data: Mapping[str, object], *, own: Collection[str] = (), trust: bool = False) -> None:
    """Notes what an opened run's config would run, so that none of it is run unless it may be.

    `own` are names that the user gave in place of the run's.
    """
    sources = read_sources(folder)
    vouched, commands = _is_vouched(folder, sources, data), set(_commands(data))
    for name in _runnable(data):
        _TRUSTED.pop(name, None)
        if name in own:
            _ADOPTED.pop(name, None)
            continue
        source = sources.get(name)
        _ADOPTED[name] = _Adopted(str(folder), source, vouched)
        unchanged = name in commands if source is None else source.state == "same"
        if trust or (vouched and unchanged):
            _TRUSTED[name] = source
        if trust and source is not None and source.state == "changed":
            logger.warning("%s has changed since %s was made: %s may be another now", source.file, folder, name)


def _runnable(data: object) -> set[str]:
    """Names of Python, which have a colon, and commands, as `spell_command` writes them."""
    names = {text for text in strings_of(data) if ":" in text and not text.startswith("turnwise.")}
    return names | set(_commands(data))


def _commands(data: object) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key == "command" and isinstance(value, str | list | tuple):
                yield spell_command(split_command(value))
            else:
                yield from _commands(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _commands(value)


def split_command(command: str | Sequence[object]) -> list[str]:
    """The words of a command that a config has as a list or as one line."""
    if not isinstance(command, str):
        return [str(word) for word in command]
    try:
        return shlex.split(command)
    except ValueError:  # an open quote, which whoever would run it refuses
        return [command]


def spell_command(words: Collection[str]) -> str:
    """A command as one name: `'python' 'agent.py'`."""
    return " ".join(map(repr, words))


def _is_vouched(folder: Path, sources: Mapping[str, Source], config: Mapping[str, object]) -> bool:
    """Whether the run was made by this user on this machine, with these sources, names and commands."""
    if not (folder / FILE).is_file():
        return False
    written = json.loads((folder / FILE).read_text(encoding="utf-8")).get("vouch")
    own = _vouch([asdict(one) for one in sources.values()], config)
    return isinstance(written, str) and own is not None and hmac.compare_digest(written, own)


def _vouch(recorded: list[dict[str, object]], config: Mapping[str, object]) -> str | None:
    """A code that only the holder of the user's secret can write; None where no secret can be kept."""
    key = _secret()
    if key is None:
        return None
    told = json.dumps([recorded, sorted(_runnable(config))], sort_keys=True)
    return hmac.new(key, told.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def _secret() -> bytes | None:
    """The user's secret, made when it is first needed: `~/.local/state/turnwise/secret`."""
    file = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "turnwise" / "secret"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            made = file.with_name(f".secret.{os.getpid()}")
            made.touch(mode=0o600)
            made.write_bytes(secrets.token_bytes(32))
            made.rename(file)
        return file.read_bytes()
    except OSError:
        return None


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
            f"the config of {adopted.run} names {name}, of which it records no source: {_TRUST} if you know whose it is"
        )
    if not adopted.vouched:
        return f"{adopted.run}, which names {name}, was made elsewhere or was changed: {_TRUST} if you know whose it is"
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
