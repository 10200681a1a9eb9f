"""What a command compares: the recipe that all rows share, the configs of rows, the changed games, and the page.

Invariant: a row is the recipe, with the settings that the command gives, but for `stability.mode`; and every row is
evaluated by the same config, whose model alone differs.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.evaluation import leave_to_evaluation
from benchmarks.harness.table import LEAN, name_file, override_model, refuse_hold_out, refuse_overrides
from benchmarks.starpo.changes import GAMES, Change, change_env, changed_games
from benchmarks.starpo.rows import Row
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import ConfigError

_BARE = (*LEAN, "stability.mode=monitor", "evaluate.tasks=1", "evaluate.every=0")
"""For the cold start: a job of its own evaluates it, and no mode of stability has a part in it."""
_SET_BY_ROWS = ("stability.mode",)
"""What rows differ in, and so no setting of all of them."""

_TEMPLATE = """# StarPO and StarPO-S, {name}

[stability.md](stability.md) explains the Echo Trap, the monitor and StarPO-S. Here they are compared over one recipe.
Within a seed, every row that is trained starts from one cold start and has the same tasks and settings; rows differ by
`stability.mode` alone, and no setting was tuned for any of them. What the recipe itself sets, such as a filter of
groups, holds in all of them until StarPO-S replaces it.

| row | what it is |
|---|---|
| `untrained` | the model as it comes |
| `cold-start` | after the recipe's demonstrations, `steps=0` |
| `starpo` | then trained; the monitor reports and changes nothing, `stability.mode=monitor` |
| `starpo-s` | then trained with StarPO-S from the first step, `stability.mode=always` |
| `auto` | then trained, and changed where the monitor raises an alarm, `stability.mode=auto` |

<!-- results: origin -->
<!-- end -->

## Success

On held-out tasks, in the game as trained: greedy, and sampled at temperature 1. The difference to the cold start is of
greedy episodes and within tasks. Intervals of 95% are over tasks: with one seed they say nothing about another cold
start.

<!-- results: table -->
<!-- end -->

## Generalisation

Greedy success in games that no row was trained on, each changed in one thing; below it the difference to the cold start
in the same changed game, within tasks.

<!-- results: generalisation -->
<!-- end -->

## Stability

Of the episodes and updates of training. Means are over seeds; the highest gradient norm, before clipping, is of all
seeds. First and last steps are the first window of the row's own steps and the last.

<!-- results: stability -->
<!-- end -->

<!-- results: curves -->
<!-- end -->

Reward std, entropy and gradient norm are divided by their highest mean, which each title gives; bands are intervals
over seeds.

## Training

Mean per run, over the seeds that came furthest. A critic that StarPO-S brings learns alone for
`stability.starpo_s.critic_warmup` updates first, and a filter leaves fewer tokens to train on: compare updates and
trained tokens before success.

<!-- results: training -->
<!-- end -->
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`Comparison(name="starpo-gpu-sokoban-smollm2", recipe="gpu-sokoban-smollm2", ...)`."""

    name: str
    """Of the jobs' folder, the page and the results file."""
    recipe: str
    overrides: tuple[str, ...]
    """Of all rows."""
    changes: tuple[Change, ...]
    template: str
    """The page's text where there is none yet."""

    def cold_config(self, seed: int) -> Config:
        """The config of the cold start that a seed's rows share."""
        return self._load(seed, "steps=0", *_BARE)

    def trained_config(self, row: Row, seed: int) -> Config:
        """The config of a row's training, which the recipe may evaluate on the way."""
        assert row.mode is not None, "a row that is trained"
        return self._load(seed, *LEAN, f"stability.mode={row.mode}")

    def evaluated_config(self, seed: int) -> Config:
        """The config of the evaluation of any row; the model is that of the job before it."""
        config = self._load(seed, *LEAN, "stability.mode=monitor")
        return leave_to_evaluation(config, tasks=config.evaluate.tasks)

    def check(self) -> None:
        """Makes the games once, so that one that cannot be made is an error before the first job."""
        config = self.evaluated_config(0)
        assert isinstance(config.env, EnvSettings), "one of the games"
        for env in (config.env, *(change_env(config.env, change.args) for change in self.changes)):
            make_env(env).tasks(config.evaluate.split)

    def _load(self, seed: int, *overrides: str) -> Config:
        return load_config(self.recipe, [*self.overrides, f"seed={seed}", *overrides])


def choose_comparison(scope: Scope) -> Comparison:
    """The comparison that the options choose."""
    if scope.quick:
        raise ConfigError(
            "bench starpo: has no quick run: leave --quick, and give fewer --seeds or settings such as steps=10"
        )
    if scope.recipe is None:
        raise ConfigError(
            f"bench starpo: say --recipe NAME, one of {', '.join(GAMES)} with a section sft: gpu-sokoban-smollm2"
        )
    refuse_overrides(scope, *_SET_BY_ROWS)
    overrides = (*scope.overrides, *override_model(scope))
    base = load_config(scope.recipe, overrides)
    if not isinstance(base.env, EnvSettings) or base.env.name not in GAMES:
        raise ConfigError(f"--recipe: {scope.recipe} is no recipe of one of the games: {', '.join(GAMES)}")
    if base.sft is None:
        raise ConfigError(f"--recipe: {scope.recipe} has no section sft, the cold start that all rows begin from")
    refuse_hold_out(base, "starpo")
    short = name_file(Path(scope.recipe).stem)
    return Comparison(
        name=f"starpo-{short}",
        recipe=scope.recipe,
        overrides=overrides,
        changes=changed_games(base.env),
        template=_TEMPLATE.format(name=short),
    )
