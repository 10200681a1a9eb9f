"""`turnwise bench speed`: whole training steps, sampling, updates and their growth, beside others on the same work.

Invariant: one process runs at a time, each side in one of its own; sides that are compared take turns, so that what
else the machine does meets both. Figures are kept only as long as neither the settings nor the code change.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import turnwise
from benchmarks.harness.benchmark import Benchmark, Results, Scope
from benchmarks.harness.jobs import Figures, Job, Place
from benchmarks.harness.report import Publication, Report
from benchmarks.speed import report as speed_report
from benchmarks.speed.process import measure_ours, measure_peer
from benchmarks.speed.variant import PAGE, Edition, Section, choose_edition
from turnwise.errors import ConfigError, RunError
from turnwise.types import Json

PEERS = Path("benchmarks/peers")
TRL, VLLM = "trl", "vllm"
_SCRIPTS = {TRL: PEERS / "trl_workload.py", VLLM: PEERS / "vllm_sampling.py"}
_MADE = "made"
"""The folder, in that of a job that makes a tokenizer or a model, which the jobs after it read."""


def plan(scope: Scope) -> list[Job]:
    """Ours and the peer's steps by turns, as many rounds as seeds; then all else once."""
    edition, peers = choose_edition(scope), find_peers(scope)
    jobs = [] if edition.steps is None else list(_plan_steps(scope, edition.steps, peers.get(TRL)))
    jobs += _plan_sampling(edition, peers.get(VLLM))
    for name, spread in {"turns": 0, "uneven-turns": edition.turns_spread}.items():
        shape = {**asdict(edition.turns), "spread": spread}
        settings = {**edition.base(), "shape": shape, "repeats": edition.turns_repeats}
        jobs.append(_ours(f"{name}/turnwise", "turns:measure_sessions", settings))
        jobs.append(_ours(f"{name}/generate", "turns:measure_rereading", settings))
    for variant in edition.update_variants:
        settings = {**edition.base(), **edition.update, "variant": variant}
        jobs.append(_ours(f"update/{variant}", "variants:measure_variant", settings))
    growth = {**edition.base(), "shape": asdict(edition.growth), "repeats": edition.growth_repeats}
    jobs.append(_ours("growth", "growth:measure_growth", {**growth, "turns": list(edition.growth_turns)}))
    return jobs


def report(scope: Scope, results: Results) -> Report:
    """What the jobs came to."""
    return speed_report.report(choose_edition(scope), results)


def find_peers(scope: Scope) -> dict[str, str]:
    """The python that has each peer: `{"trl": "/home/me/peer/bin/python"}`."""
    found = {VLLM: sys.executable} if importlib.util.find_spec(VLLM) else {}
    if scope.peer is None:
        return found
    wanted = [VLLM] if scope.device == "cuda" else [TRL, VLLM]
    installed = [name for name in wanted if name in _ask_python(scope.peer, wanted)]
    if not installed:
        raise ConfigError(f"--peer: {scope.peer} has no {' and no '.join(wanted)}; install one there, or leave it out")
    for name in installed:
        if not _SCRIPTS[name].is_file():
            raise ConfigError(f"--peer: there is no {_SCRIPTS[name]} here; run this in the project's own folder")
    return found | dict.fromkeys(installed, scope.peer)


def _ask_python(python: str, packages: list[str]) -> list[str]:
    """Which of the packages a python could import; none is imported."""
    code = f"import importlib.util as u, json; print(json.dumps([n for n in {packages} if u.find_spec(n)]))"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"--peer: {python} is no python that runs ({type(error).__name__}); give its path") from None
    found: list[str] = json.loads(said)
    return found


def run_our_steps(settings: Mapping[str, Json], place: Place) -> Figures:
    """The job of our training steps."""
    told = {**settings, "tokenizer": _made(settings, "tokenizer", place)}
    return measure_ours({"measurement": f"{__package__}.steps:measure_steps", "settings": told}, place)


def run_trl_steps(settings: Mapping[str, Json], place: Place) -> Figures:
    """The job of TRL's."""
    return _run_script(TRL, settings, place, made="tokenizer")


def run_vllm(settings: Mapping[str, Json], place: Place) -> Figures:
    """The job of vLLM's sampling; it is measured where it happens to be, so that it does not run is a finding."""
    try:
        return _run_script(VLLM, settings, place, made="model")
    except RunError as error:
        return {"failure": str(error)}


def make_tokenizer(settings: Mapping[str, Json], place: Place) -> Figures:
    """Writes the stand-in tokenizer."""
    from benchmarks.speed.models import make_stand_in_tokenizer

    make_stand_in_tokenizer().save_pretrained(place.folder / _MADE)
    return {}


def write_model(settings: Mapping[str, Json], place: Place) -> Figures:
    """Writes the model, for those who read it from a folder."""
    from benchmarks.speed.models import make_model

    make_model({**settings, "device": "cpu"}).save_pretrained(place.folder / _MADE)
    return {}


def _plan_steps(scope: Scope, steps: Mapping[str, Json], python: str | None) -> Iterator[Job]:
    tokenizer = None if scope.tokenizer is None else str(_require_tokenizer(scope.tokenizer).absolute())
    before = _job("tokenizer", "make_tokenizer", {}) if tokenizer is None else None
    for seed in range(scope.seeds):
        settings: dict[str, Json] = {**steps, "seed": seed, "tokenizer": tokenizer}
        yield _job(f"steps/turnwise/round-{seed}", "run_our_steps", settings, before)
        if python is not None:
            yield _job(f"steps/trl/round-{seed}", "run_trl_steps", {**settings, "python": python}, before)


def _require_tokenizer(folder: str) -> Path:
    if not (Path(folder) / "tokenizer_config.json").is_file():
        raise ConfigError(
            f"--tokenizer: {folder} has no tokenizer_config.json; give a folder that a tokenizer is saved in"
        )
    return Path(folder)


def _plan_sampling(edition: Edition, vllm: str | None) -> Iterator[Job]:
    settings = {**edition.base(), **edition.sampling}
    yield _ours("sampling/turnwise", "sampling:measure_engine", settings)
    yield _ours("sampling/generate", "sampling:measure_generate", settings)
    yield _ours("sampling/continuous", "sampling:measure_continuous", settings)
    if vllm is not None:
        options: dict[str, Json] = {**edition.sampling, "dtype": edition.dtype, "seed": 0, "python": vllm}
        random = "/" not in edition.model
        before = _job("model", "write_model", edition.base()) if random else None
        yield _job("sampling/vllm", "run_vllm", {**options, "model": None if random else edition.model}, before)


def _run_script(peer: str, settings: Mapping[str, Json], place: Place, *, made: str) -> Figures:
    options = {name: value for name, value in settings.items() if name not in ("python", "code")}
    options[made] = _made(settings, made, place)
    told = {"python": settings["python"], "script": str(_SCRIPTS[peer]), "options": options}
    return measure_peer(told, place)


def _made(settings: Mapping[str, Json], name: str, place: Place) -> str:
    """The folder that a user named, or that the job before has made."""
    if settings[name] is not None:
        return str(settings[name])
    assert place.before is not None
    return str((place.before / _MADE).absolute())


def _ours(name: str, measurement: str, settings: Mapping[str, Json]) -> Job:
    told: dict[str, Json] = {"measurement": f"{__package__}.{measurement}", "settings": settings, "code": digest_code()}
    return Job(name=name, work=f"{__package__}.process:measure_ours", settings=told)


def _job(name: str, work: str, settings: Mapping[str, Json], after: Job | None = None) -> Job:
    return Job(name=name, work=f"{__name__}:{work}", settings={**settings, "code": digest_code()}, after=after)


def digest_code() -> str:
    """Of the package, the benchmarks and the peers' scripts: seconds that other code took are nobody's any more."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(turnwise.__file__).parent, Path(__file__).parents[1], PEERS):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBenchmark(Benchmark):
    """One whose editions share a page, each with a section of its own."""

    def edition(self, scope: Scope) -> str:
        name = f"{self.name}-{choose_edition(scope).name}"
        return f"{name}-quick" if scope.quick else name

    def publication(self, scope: Scope, root: Path) -> Publication:
        return Section(name=PAGE, root=root, edition=choose_edition(scope))


BENCHMARK = SpeedBenchmark(
    name="speed",
    seeds=2,
    quick_seeds=1,
    plan=plan,
    report=report,
    takes=frozenset({"model", "device", "peer", "tokenizer"}),
    serial=True,
)
