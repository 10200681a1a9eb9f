"""The two variants of the benchmark: the embedded encyclopedia with the small model, and a named model on real data.

Invariant: questions, recipes and file names are decided here and nowhere else.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.report import Publication
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings, MixtureSettings, make_env
from turnwise.errors import ConfigError

_BARE = ("evaluate.tasks=1", "evaluate.every=0", "evaluate.untrained=false", "checkpoint.keep=1")
"""Over every recipe: a job of its own evaluates a row, after its training."""

_TEMPLATE = """# Multi-hop questions, {name}

[multihop.md](multihop.md) explains the rows, what is equal between them and what the results do not say. Here the
questions are real ones, over one corpus that all rows search: those of `train` for demonstrations and training, those
of `dev` for the results.

<!-- results: origin -->
<!-- end -->

<!-- results: table -->
<!-- end -->

By the source of the questions and by their hops, exact match, greedy:

<!-- results: kinds -->
<!-- end -->

## The masks

<!-- results: ablations -->
<!-- end -->

![Success of the episodes sampled in training](img/{page}-learning.png)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`Variant(name="multihop-quick", page="multihop", recipes={"ppo": "encyclopedia-ppo", ...}, ...)`."""

    name: str
    """Of the jobs' folder and of the results file."""
    page: str
    recipes: Mapping[str, str]
    """By method; `grpo`'s also sets what all rows share."""
    first: int
    """The place, in the split, of the first question that rows are evaluated on."""
    questions: int
    passages: int
    """For naive RAG: as many as the agent can read in all its searches."""
    overrides: tuple[str, ...] = ()
    template: str = ""
    """The page's text where there is none yet; empty for a variant whose page exists."""

    def config(self, recipe: str, seed: int, *overrides: str) -> Config:
        """The config of a row."""
        return load_config(self.recipes[recipe], [*self.overrides, *_BARE, f"seed={seed}", *overrides])

    def baseline_env(self, play: str, env: EnvSettings | MixtureSettings) -> EnvSettings:
        """The agent's environment, or a baseline around it."""
        assert isinstance(env, EnvSettings), "one environment"
        if play == "agent":
            return env
        inner: dict[str, object] = {"name": env.name, "args": {**env.args}}
        if play == "naive-rag":
            inner["args"] = {**env.args, "passages": self.passages}
        name = {"closed-book": "ClosedBook", "naive-rag": "NaiveRag"}[play]
        return EnvSettings.model_validate({"name": f"turnwise.envs.qa.baselines:{name}", "args": {"env": inner}})

    def check(self) -> None:
        """Makes the environments once, so that unreadable data is an error before the first job."""
        config = self.config("grpo", 0)
        split = config.evaluate.split
        for play in ("agent", "closed-book", "naive-rag"):
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
        "reinforce-pp": "encyclopedia-reinforce-pp",
        "reinforce-pp-baseline": "encyclopedia-reinforce-pp-baseline",
    },
    first=256,  # the recipes were tuned on those before
    questions=256,
    passages=6,
)


def choose_variant(scope: Scope) -> Variant:
    """The variant that the options choose."""
    if scope.quick:
        if scope.model or scope.data:
            raise ConfigError("bench multihop: --quick has a model and questions of its own: leave --model and --data")
        return QUICK
    if scope.model is None or scope.data is None:
        raise ConfigError(
            "bench multihop: say --quick for the embedded encyclopedia on a CPU, or --model NAME --data FOLDER, with "
            "corpus, train and dev files in it, for real questions"
        )
    if not Path(scope.data).is_dir():
        raise ConfigError(f"--data: there is no folder {scope.data}: give one with corpus, train and dev files in it")
    short = re.sub(r"[^\w.-]+", "-", Path(scope.model).name)
    name = f"multihop-{short}"
    return Variant(
        name=name,
        page=name,
        recipes={
            "ppo": "bench-multihop-ppo",
            "grpo": "multihop-smollm2",
            "rloo": "bench-multihop-rloo",
            "reinforce-pp": "bench-multihop-reinforce-pp",
            "reinforce-pp-baseline": "bench-multihop-reinforce-pp-baseline",
        },
        first=0,
        questions=600,
        passages=12,
        template=_TEMPLATE.format(name=short, page=name),
        # Quoted as JSON, which is YAML too, whatever a name or a path may hold.
        overrides=(f"model.name={json.dumps(scope.model)}", f"env.args.questions={json.dumps(scope.data)}"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages(Publication):
    """A variant's files: results under its name; a page that does not exist yet starts as the template."""

    variant: Variant

    @property
    def results(self) -> Path:
        return self.root / "benchmarks" / "results" / f"{self.variant.name}.json"

    def read_page(self) -> str:
        if self.variant.template and not self.page.is_file():
            return self.variant.template
        return Publication.read_page(self)  # a dataclass with slots is not the class that super() knows
