"""ToolEnv: tools, tasks and rewards as an environment, every channel paid once and under its own name."""

import asyncio
import math
import random

import pytest

from turnwise.envs import ToolEnv, check_env
from turnwise.errors import EnvError, RewardError, ToolError
from turnwise.rewards import Episode, Reward, exact_match_reward, f1_reward, reward
from turnwise.tools import Bm25Index, Passage, batched_tool, search_tool, tool
from turnwise.types import Message, Step, Task, ToolCall, ToolResult


@reward
def guessed(episode: Episode) -> float:
    return float(any("Correct" in message.content for message in episode.messages if message.role == "tool"))


class GuessTheNumber(ToolEnv):
    """Find the secret number by asking whether a guess is too low or too high."""

    def __init__(self, highest: int = 100) -> None:
        tasks = [{"question": f"I think of a number from 1 to {highest}. Find it with `guess`."}] * 8
        super().__init__(tasks=tasks, rewards=[guessed], process={"closer": 0.1}, max_turns=8)
        self.highest = highest

    def begin(self, task: Task, episode_seed: int) -> None:
        self.secret = random.Random(episode_seed).randint(1, self.highest)
        self.nearest = self.highest

    @tool(quick=True)
    def guess(self, number: int) -> ToolResult:
        """Says whether the number is too low, too high or correct."""
        distance = abs(number - self.secret)
        earned = float(distance < self.nearest)
        self.nearest = min(distance, self.nearest)
        words = "Correct!" if distance == 0 else "Too low." if number < self.secret else "Too high."
        return ToolResult(content=words, rewards={"closer": earned})


def says(content: str) -> Message:
    return Message(role="assistant", content=content)


def calls(name: str, *arguments: str) -> Message:
    made = tuple(ToolCall(id=f"c{i}", name=name, arguments=text) for i, text in enumerate(arguments))
    return Message(role="assistant", content="", tool_calls=made)


async def play(env: ToolEnv, task: Task, *messages: Message, episode_seed: int = 0) -> list[Step]:
    episode = env.spawn()
    await episode.reset(task, episode_seed)
    return [await episode.step(message) for message in messages]


QUESTION = Task(id="q1", data={"question": "Where was Ada born?", "answers": ["Oslo"]})


@tool(quick=True)
def look(word: str) -> ToolResult:
    """Looks a word up."""
    return ToolResult(content=f"about {word}", rewards={"found": 1.0 if word == "Oslo" else 0.0})


def qa(**options) -> ToolEnv:
    given = {"tools": [look], "tasks": [QUESTION], "process": {"found": 0.1}, "rewards": [exact_match_reward]}
    return ToolEnv(**given | options)


def test_a_subclass_of_twenty_lines_is_a_whole_environment():
    env = GuessTheNumber(highest=10)
    task = env.tasks("train")[3]

    async def bisect() -> list[Step]:
        episode = env.spawn()
        (opening,) = await episode.reset(task, episode_seed=5)
        assert opening == Message(role="user", content="I think of a number from 1 to 10. Find it with `guess`.")
        low, high, steps = 1, 10, []
        while not steps or "Correct" not in steps[-1].messages[0].content:
            middle = (low + high) // 2
            steps.append(await episode.step(calls("guess", f'{{"number": {middle}}}')))
            low, high = (middle + 1, high) if "low" in steps[-1].messages[0].content else (low, middle - 1)
        return [*steps, await episode.step(says("Found it."))]

    *steps, last = asyncio.run(bisect())
    assert 1 <= len(steps) <= 4
    assert steps[0].rewards == {"closer": 0.1}
    assert steps[-1].messages == (Message(role="tool", content="Correct!", tool_call_id="c0", name="guess"),)
    assert last.done
    assert last.rewards == {"guessed": 1.0}
    assert last.metrics == {"guessed": 1.0, "success": 1.0, "tool_calls": float(len(steps)), "tool_errors": 0.0}


def test_methods_are_bound_to_the_episode_that_calls_them():
    env = GuessTheNumber(highest=1000)
    assert [spec.name for spec in env.tools] == ["guess"]

    async def secrets() -> tuple[int, int]:
        one, two = env.spawn(), env.spawn()
        await one.reset(env.tasks("train")[0], episode_seed=1)
        await two.reset(env.tasks("train")[0], episode_seed=2)
        assert one.secret != two.secret
        answers = [await e.step(calls("guess", f'{{"number": {one.secret}}}')) for e in (one, two)]
        return [step.messages[0].content for step in answers]

    first, second = asyncio.run(secrets())
    assert first == "Correct!"
    assert second != "Correct!"


def test_the_user_environment_keeps_the_contract():
    assert asyncio.run(check_env(GuessTheNumber())) == []


@pytest.mark.parametrize("quick", [True, False])
def test_begin_may_be_async_and_runs_on_the_event_loop(quick):
    class Awaited(ToolEnv):
        async def begin(self, task: Task, episode_seed: int) -> None:
            await asyncio.sleep(0)
            self.secret, self.loop = episode_seed, asyncio.get_running_loop()

        def prompt(self, task: Task) -> str:
            return f"Say {self.secret}."

        @reward(quick=quick)
        def said(self, episode: Episode) -> float:
            return float(episode.answer == str(self.secret))

    async def main() -> Step:
        env = Awaited(tasks=[QUESTION]).spawn()
        (opening,) = await env.reset(QUESTION, 7)
        assert opening.content == "Say 7."
        assert env.loop is asyncio.get_running_loop()
        return await env.step(says("7"))

    assert asyncio.run(main()).rewards == {"said": 1.0}


def test_an_async_prompt_is_refused():
    class Slow(ToolEnv):
        async def prompt(self, task: Task) -> str:
            return "Where?"

    with pytest.raises(EnvError, match=r"^Slow.prompt is async: write a plain def, and await in begin what it needs$"):
        Slow(rewards=[exact_match_reward])


def test_a_call_earns_its_process_reward_and_an_answer_its_outcome():
    env = qa(system="Be brief.", rewards=[exact_match_reward.weighted(2.0), f1_reward.weighted(0.5)])

    async def main() -> list[Step]:
        episode = env.spawn()
        opening = await episode.reset(QUESTION, 0)
        assert [(m.role, m.content) for m in opening] == [("system", "Be brief."), ("user", "Where was Ada born?")]
        turn = calls("look", '{"word": "Oslo"}', '{"word": "Rome"}', "{}")
        return [await episode.step(turn), await episode.step(says("<answer>Oslo Norway</answer>"))]

    used, answered = asyncio.run(main())
    assert [(m.tool_call_id, m.name) for m in used.messages] == [("c0", "look"), ("c1", "look"), ("c2", "look")]
    assert [m.content for m in used.messages[:2]] == ["about Oslo", "about Rome"]
    assert used.rewards == {"found": pytest.approx(0.1)}
    assert used.metrics == {"tool_calls": 3.0, "tool_errors": 1.0}
    assert not used.done
    assert answered.rewards == {"exact_match": 0.0, "f1": pytest.approx(0.5 * 2 / 3)}
    assert answered.metrics == {
        "exact_match": 0.0,
        "f1": pytest.approx(2 / 3),
        "success": 0.0,
        "tool_calls": 3.0,
        "tool_errors": 1.0,
    }
    assert answered.done


def test_a_state_is_what_was_read_and_when_however_it_was_asked_for():
    async def keys(*messages: Message) -> list[str | None]:
        env = GuessTheNumber().spawn()
        await env.reset(env.tasks("train")[0], episode_seed=3)
        found = [env.state_key()]
        for message in messages:
            await env.step(message)
            found.append(env.state_key())
        return found

    plain, wordy = (
        Message(role="assistant", content=words, tool_calls=calls("guess", '{"number": 1}').tool_calls)
        for words in ("", "Let me try 1.")
    )
    other = calls("guess", '{"number": 100}')
    first, again, different = (asyncio.run(keys(one, plain)) for one in (plain, wordy, other))
    assert first == again
    assert first[0] == different[0]
    assert first[1] != different[1]
    assert len(set(first)) == 3


def test_success_is_the_raw_score_of_the_first_reward_whatever_its_weight():
    (step,) = asyncio.run(play(qa(rewards=[exact_match_reward.weighted(0.2)]), QUESTION, says("<answer>Oslo</answer>")))
    assert step.rewards == {"exact_match": 0.2}
    assert step.metrics["success"] == 1.0


def test_outcomes_are_computed_once_and_nothing_is_paid_after_the_end():
    scored: list[Episode] = []

    @reward
    def counted(episode: Episode) -> float:
        scored.append(episode)
        return 1.0

    env = qa(rewards=[counted])
    with pytest.raises(EnvError, match="ToolEnv was stepped after the episode was done; call reset first"):
        asyncio.run(play(env, QUESTION, calls("look", '{"word": "a"}'), says("Oslo"), says("Oslo")))
    assert len(scored) == 1
    assert [m.role for m in scored[0].messages] == ["user", "assistant", "tool", "assistant"]
    assert (scored[0].answer, scored[0].tool_calls, scored[0].tool_errors) == ("Oslo", 1, 0)
    with pytest.raises(EnvError, match="before reset"):
        asyncio.run(env.spawn().step(says("Oslo")))


def test_the_last_allowed_turn_ends_the_episode_scored_on_no_answer():
    turn = calls("look", '{"word": "Oslo"}')
    first, last = asyncio.run(play(qa(max_turns=2), QUESTION, turn, turn))
    assert not first.done
    assert last.done
    assert last.rewards == {"found": 0.1, "exact_match": 0.0}
    assert last.metrics["success"] == 0.0
    assert [m.content for m in last.messages] == ["about Oslo"]
    _, answered = asyncio.run(play(qa(max_turns=2), QUESTION, turn, says("<answer>Oslo</answer>")))
    assert answered.rewards == {"exact_match": 1.0}


def test_odd_calls_are_answered_in_words_and_counted():
    odd = (
        ToolCall(id="1", name="loook", arguments="{}"),
        ToolCall(id="2", name="", arguments="", problem="the closing tag is missing"),
        ToolCall(id="3", name="bad \ud83d" * 50, arguments="{}"),
    )
    (step,) = asyncio.run(play(qa(), QUESTION, Message(role="assistant", content="", tool_calls=odd)))
    assert step.messages[0].content == "there is no tool 'loook' (did you mean 'look'?). The tools are: look."
    assert step.messages[1].content == "the tool call could not be read: the closing tag is missing"
    assert step.messages[1].name is None
    assert len(step.messages[2].name) == 64
    assert "\ud83d" not in step.messages[2].name + step.messages[2].content
    assert step.metrics == {"tool_calls": 3.0, "tool_errors": 3.0}


def test_a_channel_without_a_weight_says_what_to_add():
    with pytest.raises(RewardError, match=r"pays into 'found', which has no weight; add process=\{'found': 1.0\}"):
        asyncio.run(play(qa(process={}), QUESTION, calls("look", '{"word": "Oslo"}')))


def test_rewards_that_are_not_numbers_name_their_channel():
    @tool(quick=True)
    def odd() -> ToolResult:
        """Pays oddly."""
        return ToolResult(content="", rewards={"found": math.nan})

    with pytest.raises(RewardError, match="reward 'found' is nan"):
        asyncio.run(play(qa(tools=[odd]), QUESTION, calls("odd", "{}")))
    env = qa(rewards=[Reward(name="infinite", function=lambda _: math.inf)])
    with pytest.raises(RewardError, match="reward 'infinite' is inf"):
        asyncio.run(play(env, QUESTION, says("x")))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"process": {"exact_match": 1.0}}, RewardError, "'exact_match' names both a reward and a process channel"),
        ({"rewards": [exact_match_reward, exact_match_reward]}, RewardError, "two rewards are named 'exact_match'"),
        ({"rewards": [Reward(name="success", function=len)]}, RewardError, "cannot be named 'success'"),
        ({"rewards": [len]}, RewardError, "is not a reward; put @reward above the function"),
        ({"rewards": [], "process": {}}, RewardError, "pays nothing"),
        ({"process": {"found": math.nan}}, RewardError, "weight of process channel found"),
        ({"tools": [look, look]}, ToolError, "two tools are named 'look'"),
        ({"tools": [GuessTheNumber.guess]}, ToolError, "is a method without its object"),
        ({"max_turns": 0}, EnvError, "max_turns is 0"),
        ({"tasks": ["What?"]}, EnvError, "tasks must be a list"),
        ({"tasks": {"question": "What?"}}, EnvError, "tasks must be a list.*; this is 'What\\?'"),
        ({"tasks": {"train": {"question": "What?"}}}, EnvError, "tasks must be a list.*; this is {'question'"),
        ({"tasks": [QUESTION, "What?"]}, EnvError, "tasks must be a list.*; this holds 'What\\?'"),
    ],
)
def test_mistakes_are_found_when_the_environment_is_made(options, error, words):
    with pytest.raises(error, match=words):
        qa(**options)


def test_a_method_and_a_given_tool_of_one_name_clash():
    class Clash(ToolEnv):
        @tool
        def look(self) -> str:
            """Looks."""
            return ""

    with pytest.raises(ToolError, match="two tools are named 'look'"):
        Clash(tools=[look], rewards=[exact_match_reward])


def test_a_subclass_may_replace_or_withdraw_a_tool():
    class Blind(GuessTheNumber):
        guess = None

    class Coarse(GuessTheNumber):
        @tool
        def guess(self, number: int, margin: int) -> str:
            """Says whether it is near."""
            return ""

    assert Blind().tools == ()
    assert list(Coarse().tools[0].parameters["properties"]) == ["number", "margin"]


def test_an_override_without_its_decorator_is_refused():
    class Paid(GuessTheNumber):
        @reward
        def settled(self, episode: Episode) -> float:
            return 1.0

    class Strict(Paid):
        def settled(self, episode: Episode) -> float:
            return 0.0

    class Stricter(Strict):
        def settled(self, episode: Episode) -> float:
            return 0.0

    class Mute(GuessTheNumber):
        def guess(self, number: int) -> str:
            return ""

    class Unpaid(Paid):
        settled = None

    class Renamed(Unpaid):
        def settled(self) -> bool:
            return True

    advice = "put @reward above it, or set settled = None to leave it out"
    for env in (Strict, Stricter):
        with pytest.raises(EnvError, match=rf"^{env.__name__}.settled overrides a reward of Paid: {advice}$"):
            env()
    with pytest.raises(EnvError, match=r"^Mute.guess overrides a tool of GuessTheNumber: put @tool above it, or set"):
        Mute()
    for env in (Unpaid, Renamed):
        (step,) = asyncio.run(play(env(), env().tasks("train")[0], says("It is 3.")))
        assert step.rewards == {"guessed": 0.0}


def test_a_subclass_may_use_any_private_name():
    class Busy(GuessTheNumber):
        def begin(self, task: Task, episode_seed: int) -> None:
            super().begin(task, episode_seed)
            self._progress = self._process = self._thread = self._tasks = self._system = self._max_turns = 0

        def _pay(self) -> None:
            raise AssertionError

        _counts = _finish = _offered = _pay

        @tool
        def work(self) -> str:
            """Works."""
            self._progress += 1
            return str(self._progress)

    turns = [calls("work", "{}"), calls("work", "{}"), calls("guess", '{"number": 1}'), says("Done.")]
    *steps, last = asyncio.run(play(Busy(), Busy().tasks("train")[0], *turns))
    assert [step.messages[0].content for step in steps[:2]] == ["1", "2"]
    assert last.metrics["tool_calls"] == 3.0


@pytest.mark.parametrize("name", ["reset", "step", "close", "tasks", "tools", "prompt", "state_key"])
def test_a_tool_or_reward_in_place_of_an_environments_own_method_is_refused(name):
    def stop(self) -> str:
        """Stops."""
        return ""

    def score(self, episode: Episode) -> float:
        return 1.0

    words = f"but every environment has a '{name}' of its own: rename the method and put"
    with pytest.raises(EnvError, match=rf"^Odd.{name} is a tool, {words} @tool\(name='{name}'\) above it$"):
        type("Odd", (GuessTheNumber,), {name: tool(stop)})()
    with pytest.raises(EnvError, match=rf"^Odd.{name} is a reward, {words} @reward\(name='{name}'\) above it$"):
        type("Odd", (GuessTheNumber,), {name: reward(score)})()
    renamed = type("Renamed", (GuessTheNumber,), {"stop": tool(name=name)(stop)})()
    assert [spec.name for spec in renamed.tools] == ["guess", name]


def test_tasks_come_for_every_split_or_by_split():
    assert qa().tasks("train") == qa().tasks("test") == [QUESTION]
    split = qa(tasks={"train": [{"question": "a"}, {"question": "b"}], "test": [QUESTION]})
    assert split.tasks("train")[1] == Task(id="train-1", seed=1, data={"question": "b"})
    assert split.tasks("test") == [QUESTION]
    mixed = qa(tasks=[QUESTION, {"question": "b"}]).tasks("train")
    assert mixed == [QUESTION, Task(id="task-1", seed=1, data={"question": "b"})]
    with pytest.raises(EnvError, match="there is no split 'dev'; the splits are: train, test"):
        split.tasks("dev")
    with pytest.raises(EnvError, match="ToolEnv brings no tasks"):
        qa(tasks=[]).tasks("train")


def test_a_lazy_task_sequence_stays_lazy():
    class Seeds(list):
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, i: int) -> Task:
            return Task(id=str(i), seed=i)

    assert qa(tasks=Seeds()).tasks("train")[10**8].seed == 10**8


def test_a_task_without_a_question_says_what_to_do():
    with pytest.raises(EnvError, match="task 'x' has no 'question' in its data; add one, or override prompt"):
        asyncio.run(qa().reset(Task(id="x"), 0))


def test_batched_calls_of_several_episodes_share_an_invocation():
    sizes: list[int] = []

    @batched_tool()
    def embed(text: list[str]) -> list[str]:
        """Embeds."""
        sizes.append(len(text))
        return text

    async def main() -> None:
        env = qa(tools=[embed])
        await asyncio.gather(*(play(env, QUESTION, calls("embed", '{"text": "a"}')) for _ in range(6)))

    asyncio.run(main())
    assert sizes == [6]


def test_ready_made_question_answering_keeps_the_contract():
    index = Bm25Index(
        [Passage(id="1", title="Ada", text="Born in Oslo."), Passage(id="2", title="Oslo", text="A city.")]
    )
    env = ToolEnv(tools=[search_tool(index, k=2)], tasks=[QUESTION], rewards=[exact_match_reward], max_turns=6)
    assert asyncio.run(check_env(env)) == []
