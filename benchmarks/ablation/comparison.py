"""What a command compares: the recipe that all rows share, the configs of rows, the tasks they are asked, and the page.

Invariant: a row is the recipe, with the settings that the command gives, but for its change; and all rows play the same
tasks, which none of them was trained on, in the recipe's own environment and limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ablation.changes import Change, name_option, read_changes
from benchmarks.ablation.rows import COLD_START, RECIPE, Row, make_rows
from benchmarks.harness.benchmark import Scope
from benchmarks.harness.evaluation import leave_to_evaluation
from benchmarks.harness.table import LEAN, name_file, override_model, refuse_overrides
from turnwise.config import Config, load_config
from turnwise.envs.registry import MixtureSettings, make_env
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.rollout import Limits
from turnwise.training.build import evaluation_tasks
from turnwise.types import Json, Task

HOLD_OUT = 300
"""How many tasks are split off training where neither recipe nor command says: ± .06 at a success of one half."""

_TEMPLATE = """# What single settings are worth, {name}

Every row is one recipe but for the change that its name shows. Within a seed, rows start from one cold start; those
whose change acts on the cold start as well have one of their own, which is a row, too. No setting was tuned for a
change: what would suit it better, such as another learning rate, is a change of its own.

<!-- results: rows -->
<!-- end -->

<!-- results: origin -->
<!-- end -->

## Success

<!-- results: evaluation -->
<!-- end -->

<!-- results: table -->
<!-- end -->

Greedy, and sampled at temperature 1. Differences are of greedy episodes, within tasks and seeds; a cold start of a
change is compared with the recipe's cold start, other rows with the recipe. Intervals of 95% are over tasks: they tell
how far other tasks may differ, not how far another seed may. Runs that differ in their seed alone differ, too: trust a
difference that all seeds show, and repeat others with more seeds.

<!-- results: comparisons -->
<!-- end -->

## Rows in settings of their own

Above, all rows play in the recipe's environment, limits and prompts. A change of one of these acts on the episodes that
are evaluated, too, so its rows also play the same tasks as they were trained, and are compared with the recipe in its
own settings. Where a change makes tasks harder, or counts something else as success, only the table above compares
like with like.

<!-- results: own -->
<!-- end -->

## Training

Mean per run, over the seeds that came furthest. Compare updates and trained tokens before success.

<!-- results: training -->
<!-- end -->

Of the episodes that training sampled, by windows of steps: success, entropy per token, and the share of groups whose
rewards differ, which are all that most estimators learn from. Means are over seeds.

<!-- results: windows -->
<!-- end -->

<!-- results: curves -->
<!-- end -->
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`Comparison(name="ablation-gpu-multihop-smollm2", recipe="gpu-multihop-smollm2", rows=(...), ...)`."""

    name: str
    """Of the jobs' folder, the page and the results file."""
    recipe: str
    overrides: tuple[str, ...]
    """Of all rows."""
    rows: tuple[Row, ...]
    """As the page lists them."""
    sets_hold_out: bool
    """The benchmark says how many tasks are held out, since neither recipe nor command does."""
    template: str
    """The page's text where there is none yet."""

    @property
    def evaluation(self) -> str:
        """What rows are evaluated on, in sentences."""
        base = self.trained_config(RECIPE, 0)
        count = base.evaluate.hold_out
        each = " of each environment" if isinstance(base.env, MixtureSettings) else ""
        source = "; the recipe sets none, so the number is the benchmark's own" if self.sets_hold_out else ""
        files = [
            row.key for row in self.rows if not row.trained and (sft := self.cold_config(row, 0).sft) and sft.chats
        ]
        learnt = "No step of training" if files else "No demonstration and no step of training"
        words = (
            f"All rows are asked the same {count} tasks{each}, split off training "
            f"(`evaluate.hold_out={count}`{source}). {learnt} of any row had one of them, and the recipe's "
            f"`{base.evaluate.split}` was not looked at: use it once, for what you choose."
        )
        if files:
            shown = ", ".join(f"`{key}`" for key in files)
            words += f" The demonstrations of {shown} are those of `sft.chats`, which was not searched for these tasks."
        return words

    def cold_config(self, row: Row, seed: int) -> Config:
        """The config of the cold start that a row starts from, or is."""
        change = () if row.start == COLD_START.key else _settings(row)
        return self._load(seed, *change, "steps=0", "evaluate.every=0")

    def trained_config(self, row: Row, seed: int) -> Config:
        """The config of a row's training, which the recipe may evaluate on the way."""
        return self._load(seed, *_settings(row))

    def evaluated_config(self, row: Row, seed: int) -> Config:
        """The config of an evaluation; the model is that of the job before it."""
        config = self.trained_config(row, seed)
        return leave_to_evaluation(config, tasks=config.evaluate.tasks)

    def plays_otherwise(self, row: Row) -> bool:
        """Whether a row's change acts on the episodes that are evaluated, as one of environment or limits does."""
        return _conditions(self.evaluated_config(row, 0)) != _conditions(self.evaluated_config(RECIPE, 0))

    def check(self) -> None:
        """Refuses changes that do nothing or are the same, and those with other tasks; all before the first job."""
        self._check_different()
        recipe = self.evaluated_config(RECIPE, 0)
        asked = _tasks_of(recipe)
        for row in self.rows:
            own = self.evaluated_config(row, 0)
            if row.change is None or own.env == recipe.env:
                continue
            try:
                same = _tasks_of(own) == asked
            except TurnwiseError as error:
                raise ConfigError(f"{name_option(row.change)}: {error}") from None
            if not same:
                raise ConfigError(
                    f"{name_option(row.change)}: has other training tasks, so that those to evaluate on would not be "
                    "the same for all rows"
                )

    def _check_different(self) -> None:
        recipe = self.trained_config(RECIPE, 0).model_dump(mode="json")
        known: list[tuple[Change, object]] = []
        for change in (row.change for row in self.rows if row.change is not None and row.trained):
            option, config = name_option(change), self._resolve(change)
            if config == recipe:
                raise ConfigError(f"{option}: changes nothing: the recipe, with the command's settings, has it so")
            for other, its in known:
                if its == config and other.cold == change.cold:
                    raise ConfigError(f"{option}: is the same as {name_option(other)}")
            known.append((change, config))

    def _resolve(self, change: Change) -> object:
        """Every setting of its training."""
        try:
            return self._load(0, *change.settings).model_dump(mode="json")
        except ConfigError as error:
            raise ConfigError(f"{name_option(change)}: {error}") from None

    def _load(self, seed: int, *overrides: str) -> Config:
        return load_config(self.recipe, [*self.overrides, f"seed={seed}", *LEAN, *overrides])


def choose_comparison(scope: Scope) -> Comparison:
    """The comparison that the options choose."""
    if scope.quick:
        raise ConfigError(
            "bench ablation: has no quick run: leave --quick, and give fewer --seeds or settings such as steps=10"
        )
    if scope.recipe is None:
        raise ConfigError("bench ablation: say --recipe NAME, one with a section sft: gpu-multihop-lazy-smollm2")
    if not scope.changes and not scope.cold_changes:
        raise ConfigError("bench ablation: give at least one --change a.b=c or --cold-change a.b=c")
    refuse_overrides(scope)
    changes = read_changes(scope.changes, scope.cold_changes, taken=(COLD_START.key, RECIPE.key))
    overrides = (*scope.overrides, *override_model(scope))
    base = load_config(scope.recipe, overrides)
    if base.sft is None:
        raise ConfigError(f"--recipe: {scope.recipe} has no section sft, the cold start that all rows begin from")
    if not base.evaluate.hold_out:
        overrides = (*overrides, f"evaluate.hold_out={HOLD_OUT}")
    short = name_file(Path(scope.recipe).stem)
    return Comparison(
        name=f"ablation-{short}",
        recipe=scope.recipe,
        overrides=overrides,
        rows=make_rows(changes),
        sets_hold_out=not base.evaluate.hold_out,
        template=_TEMPLATE.format(name=short),
    )


def _settings(row: Row) -> Sequence[str]:
    return () if row.change is None else row.change.settings


def _conditions(config: Config) -> list[Json]:
    """What an evaluation reads beside the model, its tasks and how they are decoded."""
    limits = {name: getattr(config.rollout, name) for name in Limits.model_fields}
    return [part.model_dump(mode="json") for part in (config.env, config.render, Limits.model_validate(limits))]


def _tasks_of(config: Config) -> list[Task]:
    return list(evaluation_tasks(make_env(config.env), config, None))
