"""`TextGame`: a turn-based game in text, by RAGEN's protocol: think, then answer with one action or several.

Invariant: a game knows its rules and nothing of tags, limits, penalties or metrics; those are here, once for all games.
Its level comes from the task's seed and its noise from the episode's, so a group's members begin alike, then differ.
"""

import copy
import inspect
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypedDict, TypeVar

from turnwise.envs.base import Env
from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.errors import EnvError
from turnwise.rewards import final_answer
from turnwise.rewards.reasoning import ReasoningRewards, Tally, read_thought
from turnwise.rewards.reasoning_judge import Judge, JudgeSettings
from turnwise.seeds import derive_seed
from turnwise.settings import parse_settings
from turnwise.types import Json, Message, Step, Task

T = TypeVar("T")

SEPARATOR = "||"
SPLITS = ("train", "test")
_MOST_QUOTED_CHARS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The outcome of one action: `Move(reward=1.0, done=True, success=True)`."""

    reward: float = 0.0
    done: bool = False
    success: bool = False
    moved: bool = True
    """Whether the state changed; a walk into a wall does not."""
    truncated: bool = False
    """Done by a clock of the game's own, though it could have gone on."""


class GameOptions(TypedDict, total=False):
    """The arguments that all games share; documented in `TextGame`."""

    think: bool
    max_actions_per_turn: int
    max_actions: int
    format_penalty: float
    expert_noise: float
    reasoning: Mapping[str, float] | None
    judge: Mapping[str, Json] | None
    train_tasks: int
    test_tasks: int
    seed: int


@dataclass(slots=True, kw_only=True)
class _Progress:
    """How far an episode has come; made anew by `reset`, so spawned copies never share one."""

    episode_seed: int
    turns: int = 0
    actions: int = 0
    moved: int = 0
    unknown: int = 0
    """Actions that the game does not have, and turns in which none was found."""
    done: bool = False
    truncated: bool = False
    success: bool = False
    thought: str = ""
    """What the turn before thought, and the state it was in: kept only where reasoning is paid."""
    state: str = ""
    tally: Tally = field(default_factory=Tally)


class TextGame(Env):
    """Rules become an environment: write `begin`, `rules`, `show`, `play`, `plan`, `explain` and `state_key`.

    An agent that thinks replies `<think>...</think><answer>Up || Left</answer>`. Where it must think, an answer without
    a thought is as good as none. Attributes of a game hold numbers, text and tuples, or a `random.Random`, list, set or
    dict of these: that is what `fork` knows how to part.
    """

    actions: tuple[str, ...] = ()
    """What the agent may do, as it is spelt; a game without a fixed list overrides `legal` and `wander`."""
    noun: ClassVar[str] = "action"
    """What the system message calls an action."""
    __signature__: ClassVar[inspect.Signature]

    def __init__(
        self,
        *,
        think: bool = True,
        max_actions_per_turn: int = 5,
        max_actions: int = 10,
        format_penalty: float = 0.1,
        expert_noise: float = 0.0,
        reasoning: Mapping[str, float] | None = None,
        judge: Mapping[str, Json] | None = None,
        train_tasks: int = 10_000,
        test_tasks: int = 256,
        seed: int = 0,
    ) -> None:
        """What all games share.

        Args:
            think: The agent must think before it answers.
            max_actions_per_turn: Actions beyond these are ignored, and the reply to the agent notes it.
            max_actions: Part of the game: the last one allowed ends the episode.
            format_penalty: What a turn without a single action of the game costs.
            expert_noise: The share of the expert's turns that play random actions, for demonstrations of mixed quality.
            reasoning: What a turn's thought can earn, by channel: `{"truth": 0.1, "consistency": 0.05, "repetition":
                0.05, "judge": 0.1}`; see `rewards.reasoning`. Every turn with an action is paid, so
                keep their sum times `max_actions` below what winning pays, or walking about becomes the better game.
            judge: The language model behind the channel `judge`: `{"url": "http://127.0.0.1:8000/v1", "model": "..."}`
                and what else `JudgeSettings` has.
            train_tasks: How many levels there are to train on.
            test_tasks: How many others there are to test on.
            seed: Another seed makes other levels.
        """
        counts = {
            "max_actions_per_turn": max_actions_per_turn,
            "max_actions": max_actions,
            "train_tasks": train_tasks,
            "test_tasks": test_tasks,
        }
        for name, value in counts.items():
            check_count(name, value)
        if not (math.isfinite(format_penalty) and format_penalty >= 0):
            raise EnvError(f"format_penalty is {format_penalty}; it is taken away, so give 0 or more")
        if not 0 <= expert_noise <= 1:
            raise EnvError(f"expert_noise is {expert_noise}; it is a share, from 0 to 1")
        self._think = think
        self._max_actions_per_turn = max_actions_per_turn
        self._max_actions = max_actions
        self._format_penalty = format_penalty
        self._expert_noise = expert_noise
        self._sizes = dict(zip(SPLITS, (train_tasks, test_tasks), strict=True))
        self._seed = seed
        self._reasoning = self._read_reasoning(reasoning, judge)
        self._progress: _Progress | None = None

    def __init_subclass__(cls) -> None:
        """Lists the shared arguments in a game's signature, so that a recipe's misspelt one finds its neighbour."""
        super().__init_subclass__()
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        kept = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        if len(kept) < len(own):
            names = {parameter.name for parameter in kept}
            inherited = inspect.signature(cls.__mro__[1]).parameters.values()
            kept += [parameter for parameter in inherited if parameter.name not in names]
        cls.__signature__ = inspect.Signature(kept)

    @abstractmethod
    def begin(self, task: Task, episode_seed: int) -> None:
        """Sets all state of an episode: the level from `task.seed`, the noise from `episode_seed`."""

    @abstractmethod
    def rules(self) -> str:
        """The system message's description of the game: symbols, actions, reward."""

    @abstractmethod
    def show(self) -> str:
        """The state as the agent reads it, as short as can be."""

    @abstractmethod
    def play(self, action: str) -> Move:
        """Does one legal action."""

    @abstractmethod
    def plan(self) -> list[str]:
        """The expert's next actions from here, as far as it can foresee; empty where nothing helps any more."""

    @abstractmethod
    def explain(self) -> str:
        """A short sentence or two, true of this state: what the expert thinks."""

    @abstractmethod
    def state_key(self) -> str:
        """A name for the state, equal exactly when the game's own states are; noise yet to come is no part of it."""

    async def run_game(self, work: Callable[[], T]) -> T:
        """Runs `begin` or some calls of `play`: inline, unless the game is played where it may take its time."""
        return work()

    def legal(self, text: str) -> str | None:
        """The action that the agent wrote, as it is spelt (`"up"` is `"Up"`); None when the game has no such action."""
        wanted = text.casefold()
        return next((action for action in self.actions if action.casefold() == wanted), None)

    def wander(self, rng: random.Random) -> str:
        """A random action."""
        return rng.choice(self.actions)

    def facts(self) -> dict[str, tuple[int, int]]:
        """Where things are, in the coordinates that `explain` describes: `{"player": (0, 1), "goal": (3, 2)}`."""
        return {}

    def metrics(self) -> dict[str, float]:
        """What this game counts beyond what all games do."""
        return {}

    @property
    def actions_left(self) -> int:
        """How many actions the episode still allows."""
        return self._max_actions - (self._progress.actions if self._progress else 0)

    @property
    def thinks(self) -> bool:
        """Whether the agent must think before it answers."""
        return self._think

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._sizes:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(SPLITS)}")
        return LazyTasks(lambda place: self._task(split, place), range(self._sizes[split]))

    def _task(self, split: str, place: int) -> Task:
        """A level is its seed, whose last bit is its split."""
        seed = derive_seed(f"{type(self).__name__}/{self._seed}", split, place)
        return Task(id=f"{split}-{place}", seed=seed - seed % 2 + SPLITS.index(split))

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._progress = _Progress(episode_seed=episode_seed)
        await self.run_game(lambda: self.begin(task, episode_seed))
        return (
            Message(role="system", content=f"{self.rules()}\n{self._protocol()}"),
            Message(role="user", content=self.show()),
        )

    async def step(self, message: Message) -> Step:
        progress = self._live()
        progress.turns += 1
        actions, remarks = self._read(message, progress)
        # First, because a thought is about the state that was shown, not the one it leads to.
        earned = await self._pay_thought(message.thinking, actions, progress) if self._reasoning else {}
        rewards = {
            "game": await self.run_game(lambda: self._play(actions, progress)),
            "format": 0.0 if actions else -self._format_penalty,
            **earned,
        }
        seen = Message(role="user", content="\n".join((*remarks, self.show())))
        metrics = _counts(progress) | self.metrics()
        if self._reasoning:
            metrics |= self._count_thoughts(progress)
        return Step(
            messages=(seen,), rewards=rewards, done=progress.done, truncated=progress.truncated, metrics=metrics
        )

    def expert(self) -> Message:
        """The solver's move, as many actions as a turn allows; a share `expert_noise` of the turns plays at random."""
        progress = self._live()
        room = min(self._max_actions_per_turn, self.actions_left)
        rng = random.Random(derive_seed(progress.episode_seed, "expert", progress.turns))
        wanders = rng.random() < self._expert_noise
        actions = [] if wanders else self.plan()[:room]
        if not actions:
            actions = [self.wander(rng) for _ in range(rng.randint(1, room))]
        answer = f"<answer>{f' {SEPARATOR} '.join(actions)}</answer>"
        thinking = self.explain() if self._think else ""
        if self._reasoning and "consistency" in self._reasoning.weights:
            thinking += f" Plan: {', '.join(actions)}."
        return Message(role="assistant", content=answer, thinking=thinking)

    def fork(self) -> Self:
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, random.Random | list | set | dict | _Progress):
                setattr(twin, name, copy.copy(value))
        return twin

    def _protocol(self) -> str:
        """How to reply, for the system message."""
        several = min(self._max_actions_per_turn, self._max_actions) > 1
        answer = f"<answer>{self.noun} {SEPARATOR} {self.noun}</answer>" if several else f"<answer>{self.noun}</answer>"
        reply = f"<think>thoughts</think>{answer}" if self._think else answer
        if self._max_actions == 1:
            return f"Reply: {reply}"
        per_turn = self._max_actions_per_turn if several else "one"
        return f"Reply: {reply}\nAt most {per_turn} a turn, {self._max_actions} in all."

    def _read_reasoning(
        self, weights: Mapping[str, float] | None, judge: Mapping[str, Json] | None
    ) -> ReasoningRewards | None:
        """The rewards for reasoning, if any; refuses those that this game has no way to check."""
        if not weights and not judge:
            return None
        asked = dict(weights or {})
        judged = Judge(parse_settings(JudgeSettings, judge, source="judge")) if judge else None
        rewards = ReasoningRewards(asked, judged)
        name = type(self).__name__
        if not self._think:
            raise EnvError("reasoning is paid, but think is off; set think to true, or remove reasoning")
        if "truth" in asked and type(self).facts is TextGame.facts:
            raise EnvError(f"{name} states no facts, so reasoning cannot pay 'truth'; remove it, or write facts()")
        if "consistency" in asked and type(self).legal is not TextGame.legal:
            raise EnvError(f"{name} has no fixed list of actions, so reasoning cannot pay 'consistency'; remove it")
        return rewards

    async def _pay_thought(self, text: str, actions: Sequence[str], progress: _Progress) -> dict[str, float]:
        """What a turn's reasoning earns, by channel."""
        assert self._reasoning is not None, "asked only where reasoning is paid"
        state = self.state_key()
        before = "" if state == progress.state else progress.thought
        progress.state, progress.thought = state, text
        thought = read_thought(text, facts=self.facts(), actions=actions, known=self.actions, before=before)
        scores = await self._reasoning.score(thought, text, self.show())
        progress.tally = progress.tally.add(scores)
        return self._reasoning.pay(scores)

    def _count_thoughts(self, progress: _Progress) -> dict[str, float]:
        """Raw scores so far, by channel, and how often the judge was silent."""
        assert self._reasoning is not None, "asked only where reasoning is paid"
        silent = {"judge_silent": float(progress.tally.silent)} if self._reasoning.judge else {}
        return progress.tally.means() | silent

    def _live(self) -> _Progress:
        progress = self._progress
        if progress is None or progress.done:
            moment = "before reset" if progress is None else "after the episode was done"
            raise EnvError(f"{type(self).__name__} was stepped {moment}; call reset first")
        return progress

    def _read(self, message: Message, progress: _Progress) -> tuple[list[str], list[str]]:
        """The legal actions of a message, and the notes to the agent about the rest."""
        answer = final_answer(message.content)
        if answer is None or (self._think and not message.thinking):
            progress.unknown += 1
            return [], [f"No {'<answer>' if answer is None else '<think>'} found."]
        parts = [part for part in map(str.strip, answer.split(SEPARATOR)) if part]
        actions: list[str] = []
        remarks: list[str] = []
        for part in parts[: self._max_actions_per_turn]:
            action = self.legal(part)
            if action is None:
                progress.unknown += 1
                remarks.append(f"Unknown {self.noun}: {_quote(part)}")
            else:
                actions.append(action)
        if not parts:
            progress.unknown += 1
            remarks.append("The <answer> is empty.")
        if len(parts) > self._max_actions_per_turn:
            remarks.append(f"Only the first {self._max_actions_per_turn} count.")
        return actions, remarks

    def _play(self, actions: Sequence[str], progress: _Progress) -> float:
        """Plays until the game or its limit of actions ends it, and returns what it paid."""
        paid = 0.0
        for action in actions:
            move = self.play(action)
            paid += move.reward
            progress.actions += 1
            progress.moved += move.moved
            progress.success = move.success
            progress.truncated = move.truncated
            progress.done = move.done or progress.actions == self._max_actions
            if progress.done:
                break
        return paid


def of_same_split(seed: int, level: str) -> bool:
    """Whether a level belongs to the split of a task's seed; its own hash decides, so that it is never in both.

    A generator of small levels draws again until it holds: seeds that differ are no promise that levels do.
    """
    return derive_seed("split", level) % 2 == seed % 2


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuses what is not a whole number of at least `least`, in one line that names the argument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise EnvError(f"{name} is {value}; give a whole number of at least {least}")


def _counts(progress: _Progress) -> dict[str, float]:
    asked = progress.actions + progress.unknown
    return {
        "success": float(progress.success),
        "actions": float(progress.actions),
        "invalid_actions": progress.unknown / asked if asked else 0.0,
        "moved": progress.moved / progress.actions if progress.actions else 0.0,
    }


def _quote(text: str) -> str:
    """What the agent wrote, cut short and without the characters that could pass for tags or special tokens."""
    # The cut comes first: what a model can write has no other limit.
    plain = "".join(letter if letter.isalnum() or letter in "+-*/()=" else " " for letter in text[:_MOST_QUOTED_CHARS])
    return " ".join(plain.split()) or "?"
