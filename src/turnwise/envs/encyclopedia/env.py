"""Multi-hop questions over a generated encyclopedia, to be answered with a search tool.

Invariant: a task is a function of its split and place alone, and no world is shared between splits, so nothing learnt
by heart in training helps in the test: only reading does.
"""

import json
import random
from collections.abc import Sequence
from functools import lru_cache

from turnwise.envs.encyclopedia.questions import Question, ask
from turnwise.envs.encyclopedia.world import FIRM_BACK, FIRM_FRONT, make_world
from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import EnvError
from turnwise.rewards import exact_match_reward
from turnwise.seeds import derive_seed
from turnwise.tools import tool
from turnwise.tools.search import Bm25Index
from turnwise.types import Json, Message, Task, ToolCall

SYSTEM = "Answer the question in <answer> tags. Look things up with search."
WORLDS = {"train": 256, "test": 32}
MOST_HOPS = 6
"""In the smallest world, chains longer than this seldom get by without meeting an entity twice."""
MOST_PEOPLE = 2 * len(FIRM_FRONT) * len(FIRM_BACK)
"""Half as many companies, of which there are the fewest names."""


class Encyclopedia(ToolEnv):
    """`Encyclopedia(hops=[2], lazy=0.7)`: its expert looks up every hop, but is lazy in 7 episodes of 10."""

    def __init__(
        self,
        *,
        hops: Sequence[int] = (2,),
        people: int = 24,
        passages: int = 2,
        questions_per_world: int = 200,
        max_turns: int = 4,
        lazy: float = 0.7,
    ) -> None:
        """Makes no world yet: each is made when one of its tasks is asked for.

        Args:
            hops: How many relations a question chains; one of these, drawn anew for each question.
            people: The size of a world: so many people, and half as many cities, companies and works.
            passages: How many passages a search shows.
            questions_per_world: How many tasks share a world; there are 256 worlds to train in, 32 others to test in.
            max_turns: Part of the task: the last turn must be the answer.
            lazy: The share of the expert's episodes that answer after the first hop, and so answer wrongly.
        """
        super().__init__(rewards=[exact_match_reward], system=SYSTEM, max_turns=max_turns)
        if not hops or not all(isinstance(number, int) and 1 <= number <= MOST_HOPS for number in hops):
            raise EnvError(f"hops is {list(hops)}; give at least one whole number, each from 1 to {MOST_HOPS}")
        if max(hops) >= max_turns:
            raise EnvError(
                f"max_turns is {max_turns}; {max(hops)} hops take {max(hops) + 1} turns, the answer included"
            )
        if not 0 <= lazy <= 1:
            raise EnvError(f"lazy is {lazy}; it is a share, from 0 to 1")
        if not 6 <= people <= MOST_PEOPLE:
            raise EnvError(f"people is {people}; a world has from 6 to {MOST_PEOPLE}, for which there are names")
        for name, value in {"passages": passages, "questions_per_world": questions_per_world}.items():
            if value < 1:
                raise EnvError(f"{name} is {value}; give at least 1")
        self._hops = tuple(hops)
        self._people = people
        self._passages = passages
        self._questions_per_world = questions_per_world
        self._lazy = lazy

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in WORLDS:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(WORLDS)}")
        return LazyTasks(lambda place: self.task(split, place), range(WORLDS[split] * self._questions_per_world))

    def task(self, split: str, place: int) -> Task:
        """The task at a place of a split; neighbours are of different worlds, so that a few tasks show many."""
        seed = derive_seed("encyclopedia", split, place % WORLDS[split])
        rng = random.Random(derive_seed(seed, place))
        question = ask(make_world(seed, self._people), rng, rng.choice(self._hops))
        data: dict[str, Json] = {
            "question": question.text,
            "answers": [question.answer],
            "subject": question.subject,
            "chain": list(question.chain),
            "met": list(question.met),
            "hops": len(question.chain),
        }
        return Task(id=f"{split}-{place}", seed=seed, data=data)

    def begin(self, task: Task, episode_seed: int) -> None:
        self._index = _index(task.seed, self._people)
        self._question = _read_question(task)
        lazy = random.Random(derive_seed(episode_seed, "lazy")).random() < self._lazy
        self._last_hop = 1 if lazy else len(self._question.chain)

    @tool(quick=True)
    def search(self, query: str) -> str:
        """Searches the encyclopedia.

        Args:
            query: What to look for.
        """
        hits = self._index.query([query], self._passages)[0]
        if not hits:
            return "Nothing found."
        return "\n".join(f"{hit.passage.title}: {hit.passage.text}" for hit in hits)

    def expert(self) -> Message:
        """Plans, looks up hop after hop and answers with what it read; when lazy, it stops after the first hop."""
        question, hop = self._question, self.turns_taken
        known = (question.subject, *question.met)
        if hop == 0:
            rest = "".join(f", then the {relation} of that" for relation in question.chain[1:])
            thinking = f"First the {question.chain[0]} of {question.subject}{rest}."
        else:
            thinking = f"The {question.chain[hop - 1]} of {known[hop - 1]} is {known[hop]}."
        if hop == self._last_hop:
            return Message(role="assistant", content=f"<answer> {known[hop]} </answer>", thinking=thinking)
        call = ToolCall(id="", name="search", arguments=json.dumps({"query": f"{question.chain[hop]} of {known[hop]}"}))
        return Message(role="assistant", content="", thinking=thinking, tool_calls=(call,))


@lru_cache(maxsize=512)
def _index(seed: int, people: int) -> Bm25Index:
    return Bm25Index(make_world(seed, people).passages)


def _read_question(task: Task) -> Question:
    data = task.data
    try:
        return Question(
            text=str(data["question"]),
            subject=str(data["subject"]),
            chain=tuple(map(str, data["chain"])),  # type: ignore[arg-type]  # a list, as `task` wrote it
            met=tuple(map(str, data["met"])),  # type: ignore[arg-type]  # likewise
        )
    except (KeyError, TypeError) as error:
        raise EnvError(
            f"task '{task.id}' is not of the encyclopedia: {error}; take tasks from its tasks(split)"
        ) from None
