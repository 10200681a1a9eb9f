"""What a post-mortem reads of a run: its training records, and the episodes of some of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.checks.tokens import TokenScores, flatten
from turnwise.errors import RunError
from turnwise.runs import RunDirectory
from turnwise.runs.episodes import StoredEpisode, read_episodes, trajectory_files
from turnwise.runs.metrics import Record, read_metrics
from turnwise.types import Group, StopReason, Trajectory

_STEPS = 2
"""Steps read from each end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """The episodes of one training step."""

    step: int
    episodes: Sequence[StoredEpisode]

    @property
    def groups(self) -> list[Group]:
        members: dict[int, list[Trajectory]] = {}
        for one in self.episodes:
            members.setdefault(one.line.group, []).append(one.trajectory)
        return [Group(task=some[0].task, trajectories=tuple(some)) for some in members.values()]

    @property
    def played(self) -> list[Trajectory]:
        return [e.trajectory for e in self.episodes if e.trajectory.stop is not StopReason.ENV_FAILED]

    @property
    def learnt(self) -> list[Trajectory]:
        """Those that were trained on, and have their numbers still."""
        return [e.trajectory for e in self.episodes if any(turn.advantages is not None for turn in e.turns)]

    def scores(self, version: int) -> TokenScores:
        """Of turns that this version of the weights sampled and that were trained on."""
        turns = [
            (turn, record)
            for episode in self.episodes
            for turn, record in zip(episode.trajectory.turns, episode.turns, strict=True)
            if turn.versions == ((0, version),) and record.learner_logprobs is not None and record.entropies is not None
        ]
        nan = float("nan")
        return TokenScores(
            sampler=flatten(turn.logprobs for turn, _ in turns),
            learner=flatten([nan if x is None else x for x in r.learner_logprobs or ()] for _, r in turns),
            entropy=flatten([nan if x is None else x for x in r.entropies or ()] for _, r in turns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """`read_run(RunDirectory.open("runs/demo"))`."""

    train: Sequence[Record]
    steps: Sequence[StoredStep]
    """The first and the last ones that are stored."""
    evaluated: Sequence[Trajectory]
    problems: list[str] = field(default_factory=list)
    """Files that could not be read."""

    def series(self, name: str) -> list[float]:
        """A metric of every training step that has it."""
        values = [record.get(name) for record in self.train]
        return [float(value) for value in values if isinstance(value, int | float)]


def read_run(run: RunDirectory) -> RunFiles:
    """Reads what the checks need; a file that cannot be read is a problem, and the others are read."""
    problems: list[str] = []
    records = read_metrics(run.metrics) if run.metrics.is_file() else []
    files = trajectory_files(run, stage="train")
    chosen = dict.fromkeys([*files[:_STEPS], *files[-_STEPS:]])
    steps = []
    for path in chosen:
        try:
            number = int(path.stem.rpartition("-")[2])
            steps.append(StoredStep(step=number, episodes=read_episodes(run, "train", number)))
        except RunError as error:
            problems.append(str(error))
    evaluated: list[Trajectory] = []
    for path in trajectory_files(run, stage="evaluate")[-1:]:
        try:
            number = int(path.stem.rpartition("-")[2])
            evaluated = [episode.trajectory for episode in read_episodes(run, "evaluate", number)]
        except RunError as error:
            problems.append(str(error))
    train = [record for record in records if record["stage"] == "train"]
    return RunFiles(train=train, steps=steps, evaluated=evaluated, problems=problems)
