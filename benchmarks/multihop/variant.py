"""The variants of the benchmark: the embedded encyclopedia with the small model, and a recipe on real questions.

Invariant: questions, recipes and file names are decided here and nowhere else. With a recipe, a method's config is the
recipe's but for its algorithm.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.table import LEAN, name_file, override_model, refuse_hold_out, refuse_overrides
from benchmarks.multihop.rows import CEILINGS, ONE_SEARCH, Baseline, Method, Play
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings, MixtureSettings, make_env
from turnwise.errors import ConfigError

DEFAULT_RECIPE = "multihop-smollm2"
_BARE = (*LEAN, "evaluate.tasks=1", "evaluate.every=0")
"""Over every recipe: a job of its own evaluates a row, after its training."""
_CRITIC = ("learner.critic.warmup=5", "learner.critic.optimizer.lr=1e-5")
_SET_BY_ROWS = ("algorithm", "credit.estimator", "credit.advantage_mask", "loss.action_mask")
"""What rows differ in, and so no setting of all of them."""
_KL_IN_REWARD = ("ppo", "reinforce++")
"""As in the papers; read where the recipe has a KL term."""

_TEMPLATE = """# Multi-hop questions, {name}

[multihop.md](multihop.md) explains the rows, what is equal between them and what the results do not say. Here the
questions are real ones, over one corpus that all rows search: those of `train` for demonstrations and training, those
of `dev` for the results. Intervals are over questions.

<!-- results: origin -->
<!-- end -->

<!-- results: table -->
<!-- end -->

<!-- results: ceilings -->
<!-- end -->

## By the source of the questions and by their hops

Exact match, greedy:

<!-- results: kinds -->
<!-- end -->

## The masks

<!-- results: ablations -->
<!-- end -->

## Training

<!-- results: training -->
<!-- end -->

<!-- results: curves -->
<!-- end -->
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`Variant(name="multihop-quick", page="multihop", recipes={"ppo": "encyclopedia-ppo", ...}, ...)`."""

    name: str
    """Of the jobs' folder and of the results file."""
    page: str
    recipes: Mapping[str, str]
    """By algorithm, where it has one of its own."""
    first: int
    """The place, in the split, of the first question that rows are evaluated on."""
    questions: int
    passages: int
    """For naive RAG: as many as the agent can read in all its searches."""
    recipe: str = ""
    """What all rows share, which an algorithm without a recipe of its own sets itself in."""
    overrides: tuple[str, ...] = ()
    kl: bool = False
    """Whether the recipe has a KL term, for which algorithms have their own place."""
    template: str = ""
    """The page's text where there is none yet; empty for a variant whose page exists."""
    beside: tuple[Baseline, ...] = ()
    """Rows that a recipe's table has beside those of all variants."""

    def config(self, algorithm: str, seed: int, *overrides: str) -> Config:
        """The config of a row that is evaluated by another job alone."""
        return self._load(algorithm, seed, *_BARE, *overrides)

    def method_config(self, row: Method, seed: int) -> Config:
        """The config of a row that is trained; over a recipe, it is also evaluated when the recipe says so."""
        if not self.recipe:
            return self.config(row.algorithm, seed, *row.overrides)
        return self._load(row.algorithm, seed, *LEAN, *row.overrides)

    def settings(self, row: Method) -> tuple[str, ...]:
        """What a row sets over the recipe that all share, or over its own."""
        return (*self._algorithm(row.algorithm), *row.overrides)

    def _load(self, algorithm: str, seed: int, *overrides: str) -> Config:
        recipe = self.recipes.get(algorithm, self.recipe)
        return load_config(recipe, [*self.overrides, *self._algorithm(algorithm), f"seed={seed}", *overrides])

    def _algorithm(self, algorithm: str) -> tuple[str, ...]:
        if algorithm in self.recipes:
            return ()
        critic = _CRITIC if algorithm == "ppo" else ()
        place = ("loss.kl_in=reward",) if self.kl and algorithm in _KL_IN_REWARD else ()
        return (f"algorithm={algorithm}", *critic, *place)

    def baseline_env(self, play: Play, env: EnvSettings | MixtureSettings) -> EnvSettings:
        """The agent's environment, or a baseline around it."""
        assert isinstance(env, EnvSettings), "one environment"
        if play == "agent":
            return env
        inner: dict[str, object] = {"name": env.name, "args": {**env.args}}
        if play == "naive-rag":
            inner["args"] = {**env.args, "passages": self.passages}
        rag = {"naive-rag": "NaiveRag", "one-search": "NaiveRag"}
        name = {"closed-book": "ClosedBook", "given-passages": "GivenPassages", **rag}[play]
        return EnvSettings.model_validate({"name": f"turnwise.envs.qa.baselines:{name}", "args": {"env": inner}})

    def check(self) -> None:
        """Makes the environments once, so that unreadable data is an error before the first job."""
        config = self.config("grpo", 0)
        split = config.evaluate.split
        plays: list[Play] = ["agent", "closed-book", "naive-rag", *(row.play for row in self.beside)]
        for play in dict.fromkeys(plays):
            asked = len(make_env(self.baseline_env(play, config.env)).tasks(split))
        if asked <= self.first:
            raise ConfigError(
                f"bench multihop: the split '{split}' has {asked} questions and none from {self.first} on"
            )


QUICK = Variant(
    name="multihop-quick",
    page="multihop",
    recipes={
        "ppo": "encyclopedia-ppo",
        "grpo": "encyclopedia-grpo",
        "rloo": "encyclopedia-rloo",
        "reinforce++": "encyclopedia-reinforce-pp",
        "reinforce++-baseline": "encyclopedia-reinforce-pp-baseline",
    },
    first=256,  # the recipes were tuned on those before
    questions=256,
    passages=6,
)


def choose_variant(scope: Scope) -> Variant:
    """The variant that the options choose."""
    if scope.quick:
        if scope.recipe or scope.model or scope.data or scope.overrides:
            raise ConfigError(
                "bench multihop: --quick has recipes, a model and questions of its own: leave --recipe, --model and "
                "--data, and settings"
            )
        return QUICK
    if scope.recipe is None and (scope.model is None or scope.data is None):
        raise ConfigError(
            "bench multihop: say --quick for the embedded encyclopedia on a CPU; or --recipe NAME, with its own model "
            "and questions or those of --model and --data; or --model NAME --data FOLDER, with corpus, train and dev "
            "files in it"
        )
    return _over_recipe(scope)


def _over_recipe(scope: Scope) -> Variant:
    recipe = scope.recipe or DEFAULT_RECIPE
    refuse_overrides(scope, *_SET_BY_ROWS)
    overrides = [*scope.overrides, *override_model(scope)]
    overrides += [] if scope.data is None else [_choose_data(recipe, scope.data)]
    base = load_config(recipe, overrides)
    if not isinstance(base.env, EnvSettings) or base.env.name != "search_qa":
        raise ConfigError(f"--recipe: {recipe} is no recipe of search_qa, whose questions the rows are asked")
    if base.sft is None:
        raise ConfigError(f"--recipe: {recipe} has no section sft, the cold start that all methods begin from")
    refuse_hold_out(base, "multihop")
    named = Path(scope.recipe).stem.replace("multihop-", "") if scope.recipe else Path(scope.model or "").name
    short = name_file(named)
    passages = base.env.args.get("passages", 5)
    assert isinstance(passages, int)
    return Variant(
        name=f"multihop-{short}",
        page=f"multihop-{short}",
        recipes={},
        recipe=recipe,
        first=0,
        questions=base.evaluate.tasks,
        passages=(base.rollout.max_turns - 1) * passages,
        kl=base.loss.kl_coef > 0,
        template=_TEMPLATE.format(name=short),
        overrides=tuple(overrides),
        beside=(ONE_SEARCH, *CEILINGS),
    )


def _choose_data(recipe: str, folder: str) -> str:
    """The override by which a folder takes the place of the recipe's own."""
    env = load_config(recipe).env
    if isinstance(env, EnvSettings) and not isinstance(env.args.get("questions"), str):
        raise ConfigError(f"--data: {recipe} names the files of its questions itself: put them there, and leave --data")
    if not Path(folder).is_dir():
        raise ConfigError(f"--data: there is no folder {folder}: give one with corpus, train and dev files in it")
    return f"env.args.questions={json.dumps(folder)}"
