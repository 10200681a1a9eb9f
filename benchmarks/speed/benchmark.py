"""`turnwise bench speed`: whole training steps, sampling, updates and their growth, beside others on the same work; and
with `--recipe`, a real run.

Invariant: one process runs at a time, each side in one of its own; sides that are compared alternate, so that
other load on the machine meets both. Results are kept only as long as neither the settings nor the code change.
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
from benchmarks.harness.benchmark import Benchmark, JobResults, Scope
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import Publication, Report
from benchmarks.speed import report as speed_report
from benchmarks.speed.process import measure_ours, measure_peer
from benchmarks.speed.real_report import PART, report_real_run
from benchmarks.speed.real_run import SCRIPT, RealRun, choose_real_run, plan_real_run
from benchmarks.speed.section import PAGE, Section
from benchmarks.speed.variant import Variant, choose_variant
from turnwise.errors import ConfigError, RunError
from turnwise.types import Json

PEERS = Path("benchmarks/peers")
TRL, VLLM = "trl", "vllm"
_SCRIPTS = {TRL: PEERS / "trl_workload.py", VLLM: PEERS / "vllm_sampling.py"}
_OUTPUT = "made"
"""Where a job writes a tokenizer or a model, in its folder, for the jobs after it."""


def plan(scope: Scope) -> list[Job]:
    """Our steps and the peer's alternately, as many rounds as seeds; then everything else once. Or a real run alone."""
    if scope.recipe is not None:
        return plan_real_run(choose_real_run(scope), peer=find_peers(scope).get(TRL), code=digest_code())
    variant, peers = choose_variant(scope), find_peers(scope)
    jobs = [] if variant.steps is None else list(_plan_steps(scope, variant.steps, peers.get(TRL)))
    jobs += _plan_sampling(variant, peers.get(VLLM))
    for name, jitter in {"turns": 0, "uneven-turns": variant.turn_jitter}.items():
        shape = {**asdict(variant.turns), "jitter": jitter}
        settings = {**variant.base(), "shape": shape, "repeats": variant.turns_repeats}
        jobs.append(_ours(f"{name}/turnwise", "turns:measure_sessions", settings))
        jobs.append(_ours(f"{name}/generate", "turns:measure_rereading", settings))
    for method in variant.update_methods:
        settings = {**variant.base(), **variant.update, "method": method}
        jobs.append(_ours(f"update/{method}", "update_methods:measure_method", settings))
    growth = {**variant.base(), "shape": asdict(variant.growth), "repeats": variant.growth_repeats}
    jobs.append(_ours("growth", "growth:measure_growth", {**growth, "turns": list(variant.growth_turns)}))
    return jobs


def report(scope: Scope, results: JobResults) -> Report:
    """The page and the results of the jobs."""
    if scope.recipe is not None:
        return report_real_run(choose_real_run(scope), results)
    return speed_report.report(choose_variant(scope), results)


def find_peers(scope: Scope) -> dict[str, str]:
    """The python that has each peer: `{"trl": "/home/me/peer/bin/python"}`."""
    found = {VLLM: sys.executable} if importlib.util.find_spec(VLLM) else {}
    if scope.peer is None:
        return found
    scripts = {VLLM: _SCRIPTS[VLLM]} if scope.device == "cuda" else _SCRIPTS
    scripts = scripts if scope.recipe is None else {TRL: SCRIPT}
    wanted = list(scripts)
    installed = [name for name in wanted if name in _ask_python(scope.peer, wanted)]
    if not installed:
        raise ConfigError(f"--peer: {scope.peer} has no {' and no '.join(wanted)}; install one there, or leave it out")
    for name in installed:
        if not scripts[name].is_file():
            raise ConfigError(f"--peer: there is no {scripts[name]} here; run this in the project's own folder")
    return found | dict.fromkeys(installed, scope.peer)


def _ask_python(python: str, packages: list[str]) -> list[str]:
    """Which of the packages a python can import; none is imported."""
    code = f"import importlib.util as u, json; print(json.dumps([n for n in {packages} if u.find_spec(n)]))"
    try:
        printed = subprocess.run([python, "-c", code], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"--peer: {python} is no python that runs ({type(error).__name__}); give its path") from None
    found: list[str] = json.loads(printed)
    return found


def run_our_steps(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of our training steps."""
    with_tokenizer = {**settings, "tokenizer": _input_folder(settings, "tokenizer", folders)}
    return measure_ours({"measurement": f"{__package__}.steps:measure_steps", "settings": with_tokenizer}, folders)


def run_trl_steps(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of TRL's training steps."""
    return _run_script(TRL, settings, folders, made="tokenizer")


def run_vllm(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of vLLM's sampling; it is optional, so a failure to run is a result and not an error."""
    try:
        return _run_script(VLLM, settings, folders, made="model")
    except RunError as error:
        return {"failure": str(error)}


def make_tokenizer(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """Writes the stand-in tokenizer."""
    from benchmarks.speed.models import make_stand_in_tokenizer

    make_stand_in_tokenizer().save_pretrained(folders.own / _OUTPUT)
    return {}


def write_model(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """Writes the model, for a peer that reads it from a folder."""
    from benchmarks.speed.models import make_model

    make_model({**settings, "device": "cpu"}).save_pretrained(folders.own / _OUTPUT)
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


def _plan_sampling(variant: Variant, vllm: str | None) -> Iterator[Job]:
    settings = {**variant.base(), **variant.sampling}
    yield _ours("sampling/turnwise", "sampling:measure_engine", settings)
    yield _ours("sampling/generate", "sampling:measure_generate", settings)
    yield _ours("sampling/continuous", "sampling:measure_continuous", settings)
    if vllm is not None:
        options: dict[str, Json] = {**variant.sampling, "dtype": variant.dtype, "seed": 0, "python": vllm}
        random = "/" not in variant.model
        before = _job("model", "write_model", variant.base()) if random else None
        yield _job("sampling/vllm", "run_vllm", {**options, "model": None if random else variant.model}, before)


def _run_script(peer: str, settings: Mapping[str, Json], folders: JobFolders, *, made: str) -> JobResult:
    options = {name: value for name, value in settings.items() if name not in ("python", "code")}
    options[made] = _input_folder(settings, made, folders)
    command = {"python": settings["python"], "script": str(_SCRIPTS[peer]), "options": options}
    return measure_peer(command, folders)


def _input_folder(settings: Mapping[str, Json], name: str, folders: JobFolders) -> str:
    """The folder that the user named, or that the job before wrote."""
    if settings[name] is not None:
        return str(settings[name])
    assert folders.before is not None
    return str((folders.before / _OUTPUT).absolute())


def _ours(name: str, measurement: str, settings: Mapping[str, Json]) -> Job:
    details: dict[str, Json] = {
        "measurement": f"{__package__}.{measurement}",
        "settings": settings,
        "code": digest_code(),
    }
    return Job(name=name, work=f"{__package__}.process:measure_ours", settings=details)


def _job(name: str, work: str, settings: Mapping[str, Json], after: Job | None = None) -> Job:
    return Job(name=name, work=f"{__name__}:{work}", settings={**settings, "code": digest_code()}, after=after)


def digest_code() -> str:
    """Of the package, the benchmarks and the peers' scripts: timings of other code are not reused."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(turnwise.__file__).parent, Path(__file__).parents[1], PEERS):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBenchmark(Benchmark):
    """Its variants share a page, each with a section of its own."""

    def folder_name(self, scope: Scope) -> str:
        name = f"{self.name}-{_choose(scope).name}"
        return f"{name}-quick" if scope.quick else name

    def publication(self, scope: Scope, root: Path) -> Publication:
        chosen = _choose(scope)
        if isinstance(chosen, Variant):
            return Section(name=PAGE, root=root, section=chosen.name, heading=chosen.about)
        return Section(
            name=PAGE, root=root, section=chosen.name, heading=f"A real run on {chosen.about}", parts=(("", PART),)
        )


def _choose(scope: Scope) -> Variant | RealRun:
    return choose_variant(scope) if scope.recipe is None else choose_real_run(scope)


BENCHMARK = SpeedBenchmark(
    name="speed",
    seeds=2,
    quick_seeds=1,
    plan=plan,
    report=report,
    takes=frozenset({"recipe", "model", "data", "device", "peer", "tokenizer"}),
    serial=True,
)
