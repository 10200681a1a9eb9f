"""The post-mortem: what a run's own files show, and what its newest checkpoint shows where it can be loaded.

Invariant: a run is only read. Python that its config names is run under the rule of `turnwise eval`: if it is the
user's own, unchanged since, or trusted by name.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.groups import check_identical, check_variance
from turnwise.checks.history import check_history
from turnwise.checks.limits import check_cuts, check_stops
from turnwise.checks.numbers import check_numbers
from turnwise.checks.parity import FLOAT32_TOLERANCE, HALF_TOLERANCE, check_parity
from turnwise.checks.resources import check_fast_path
from turnwise.checks.rewards import check_channels
from turnwise.checks.sampling import check_sampling
from turnwise.checks.settings import check_settings
from turnwise.checks.stored import check_free_disk, check_recorded, check_stored, check_updates
from turnwise.checks.tasks import check_tasks
from turnwise.checks.versions import check_versions
from turnwise.config import Config, load_run_config
from turnwise.doctor.examination import Examination
from turnwise.doctor.run_files import RunFiles, StoredStep, read_run
from turnwise.errors import TurnwiseError
from turnwise.models.settings import SMALL, ModelSettings
from turnwise.recipes import read_recipe
from turnwise.runs import RunDirectory
from turnwise.runs.findings import read_findings
from turnwise.settings import parse_settings
from turnwise.types import Task

Say = Callable[[str], None]
_STEPWISE = ("groups", "numbers", "versions", "parity", "sampling", "history", "accounting", "limits")


def examine_run(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    probe: bool = True,
    trust: bool = False,
    say: Say = lambda line: None,
) -> Examination:
    """Examines the run in a folder; with `probe`, its newest checkpoint as well, if it can be loaded."""
    run = RunDirectory.open(folder)
    examination = Examination(subject=str(folder), place="run")
    say("reading the files of the run")
    config = _read_config(run)
    files = read_run(run)
    examination.notes += files.problems
    if config is not None:
        examination.add("settings", check_settings(config))
    else:
        examination.skip("settings", "the config names plug-ins that were not loaded")
    _examine_findings(run, examination)
    examination.add("disk", check_free_disk(run.path))
    _examine_metrics(files, config, examination)
    _examine_steps(files, config, examination)
    _examine_tasks(files, examination)
    if probe:
        _probe_checkpoint(folder, overrides, trust=trust, say=say, examination=examination)
    return examination


def _read_config(run: RunDirectory) -> Config | None:
    """The run's config, parsed without running anything that it names."""
    try:
        return parse_settings(Config, read_recipe(run.config), source=str(run.config))
    except TurnwiseError:
        return None


def _examine_findings(run: RunDirectory, examination: Examination) -> None:
    recorded = read_findings(run.path / "findings.jsonl")
    slow = [str(one.get("sentence", "")) for one in recorded if one.get("kind") == "slow_sampling"]
    reason = slow[0].partition(": ")[2] if slow else None
    examination.add("fast path", check_fast_path(reason))
    examination.add("findings", check_recorded([one for one in recorded if one.get("kind") != "slow_sampling"]))


def _examine_metrics(files: RunFiles, config: Config | None, examination: Examination) -> None:
    if not files.train:
        for name in ("rewards", "groups", "gradient"):
            examination.skip(name, "no training step is recorded")
        return
    channels = sorted({name for record in files.train for name in record if name.startswith("reward/")})
    means = {name.removeprefix("reward/"): files.series(name) for name in channels if "/env=" not in name}
    examination.add("rewards", check_channels(means, steps=len(files.train)))
    compares = config is None or config.credit.compares_groups
    flat, success = files.series("credit/zero_variance_groups"), files.series("rollout/success")
    found = check_variance(zero_variance=flat, success=success, compares_groups=compares) if len(flat) > 1 else []
    examination.add("groups", found)
    examination.add("gradient", check_updates(files.train))


def _examine_steps(files: RunFiles, config: Config | None, examination: Examination) -> None:
    if not files.steps:
        for name in _STEPWISE:
            if name not in examination.ran:
                examination.skip(name, "no trajectories of a training step are stored")
        return
    half = config is not None and _may_be_half(config.model)
    noisy = config is not None and config.learner.dropout
    rollout = None if config is None else config.rollout
    age = 1 if rollout is None else max(rollout.updates_per_rollout, rollout.staleness + 1)
    for stored in files.steps:
        for name, found in _check_step(stored, age=age, half=half, noisy=noisy).items():
            examination.add(name, found)
    last = [t for stored in files.steps[-2:] for t in stored.played if t.has_tokens]
    examination.add("limits", [*check_stops(last, None), *check_cuts(last)])


def _may_be_half(model: ModelSettings) -> bool:
    """Whether products may have been in half precision: what null chose on the run's device is not recorded."""
    chosen = model.name != SMALL if model.autocast is None else model.autocast
    return chosen or model.dtype != "float32"


def _check_step(stored: StoredStep, *, age: int, half: bool, noisy: bool) -> dict[str, list[Diagnosis]]:
    """The weights of a turn may be `age` steps old; what came too late to be learnt from is not asked."""
    played, newest = [t for t in stored.played if t.has_tokens], stored.step - 1
    scores = stored.scores(newest)
    parity = [] if noisy else check_parity(scores, tolerance=HALF_TOLERANCE if half else FLOAT32_TOLERANCE)
    return {
        "numbers": check_numbers(played),
        "versions": check_versions(stored.learnt, oldest=stored.step - age, newest=newest),
        "parity": parity,
        "sampling": [] if parity or noisy else check_sampling(scores),
        "history": check_history(played),
        "groups": check_identical(stored.groups),
        "accounting": check_stored(stored.episodes),
    }


def _examine_tasks(files: RunFiles, examination: Examination) -> None:
    trained = _distinct([group.task for stored in files.steps for group in stored.groups])
    held_out = _distinct([t.task for t in files.evaluated])
    if trained and held_out:
        examination.add("tasks", check_tasks(trained, held_out, split="evaluate"))
    else:
        examination.skip("tasks", "trajectories of training and of an evaluation are not both stored")


def _distinct(tasks: Sequence[Task]) -> list[Task]:
    return list({task.id: task for task in tasks}.values())


def _probe_checkpoint(
    folder: Path, overrides: Sequence[str], *, trust: bool, say: Say, examination: Examination
) -> None:
    """The preflight's checks on the newest checkpoint; what keeps it from being loaded is a note."""
    try:
        # The cold start is behind it: its own episodes tell of limits and variance.
        config = load_run_config(folder, overrides, trust=trust).model_copy(update={"sft": None})
        from turnwise.doctor.preflight import examine_recipe

        probed = examine_recipe(config, subject=str(folder), folder=folder, say=say)
    except TurnwiseError as error:
        examination.notes.append(f"the newest checkpoint was not probed: {error}")
        return
    examination.probed = probed
