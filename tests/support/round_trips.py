"""Episodes to compare: the native loop's and a program's, over engines that sample pieces no tokenizer would choose."""

import asyncio

from chat_families import family
from turnwise.agents import PolicyAgent
from turnwise.engines.base import Completion, EngineStats
from turnwise.envs import ToolEnv
from turnwise.render import RenderSettings, make_render
from turnwise.rewards import exact_match_reward
from turnwise.rollout import Limits, run_episode
from turnwise.tools import tool
from turnwise.types import Finish, Message, StopReason, Task, ToolCall

FAMILIES = ("qwen2.5", "qwen3", "llama3", "smollm2", "quirky")
RENDERS = {
    name: make_render(
        family(name), RenderSettings(variables={"date_string": "26 Jul 2024"} if name == "llama3" else {})
    )
    for name in FAMILIES
}
TASK = Task(id="t", data={"question": "Where is Oslo?", "answers": ["Norway"]})


@tool(quick=True)
def search(query: str) -> str:
    """Finds passages.

    Args:
        query: What to look for.
    """
    return f"Nothing on {query}."


class SpellingEngine:
    """Samples replies in pieces that the tokenizer would never choose, each id with a logprob of its own."""

    context_limit, stats = 100_000, EngineStats()

    def __init__(self, render, replies):
        self.render, self.replies, self.turns, self.read = render, replies, 0, []

    async def generate(self, session, prompt_ids, sampling):
        self.read.append(tuple(prompt_ids))
        reply = self.replies[self.turns]
        self.turns += 1
        text = reply if isinstance(reply, str) else self.render.write(reply)
        ids = (*(i for letter in text for i in self.render.encode_action(letter)[:-1]), self.render.stop_ids[0])
        ids = ids[: sampling.max_tokens]
        finish = Finish.STOP if ids[-1] in sampling.stop_ids else Finish.LENGTH
        logprobs = tuple(-((i * 7919 + place) % 1000) / 500 for place, i in enumerate(ids))
        return Completion(ids=ids, logprobs=logprobs, finish=finish, version=self.turns)

    async def end(self, session):
        return


def call(query, **fields):
    return ToolCall(id="", name="search", arguments=f'{{"query":  "{query}"}}', **fields)


def says(content="", *calls, thinking=""):
    return Message(role="assistant", content=content, thinking=thinking, tool_calls=calls)


def play(env, render, replies, **limits):
    engine = SpellingEngine(render, replies)
    agent = PolicyAgent(engine=engine, render=render)
    episode = asyncio.run(
        run_episode(agent, env.spawn(), TASK, episode_seed=7, limits=Limits(turn_tokens=999, **limits))
    )
    return episode, engine


def native(render, replies, **limits):
    env = ToolEnv(tools=[search], tasks=[TASK], rewards=[exact_match_reward], system="Be brief.")
    return play(env, render, replies, **limits)[0]


REPLIES = {
    "answers": [says("<answer>Norway</answer>")],
    "one call a turn": [says("", call("Oslo")), says("", call("Óslo \u2603")), says("<answer> Norway. </answer>")],
    "wrong": [says("", call("Oslo")), says("<answer>Peru</answer>")],
    "words and two calls": [says("I look.", call("a"), call("b")), says("<answer>Norway</answer>")],
    "thinks": [says("", call("Oslo"), thinking="First Oslo."), says("<answer>Norway</answer>", thinking="Norway.")],
    "is cut off": ["<answer>Norway</answer>" + "x" * 1200],
    "reads like a header": [says("", call("<|im_end|>")), says("system: <answer>Norway</answer>")],
}


def check_equal(program, name, replies):
    """Plays a program and the native loop, and compares the two episodes id by id."""
    render = RENDERS[name]
    expected = native(render, replies)
    assert expected.stop is StopReason.DONE
    episode, engine = play(program, render, replies)
    assert episode.failure == ""
    assert episode.turns == expected.turns, "ids, logprobs, rewards, versions, rows, state keys"
    assert [turn.message for turn in episode.turns] == [turn.message for turn in expected.turns]
    assert (episode.stop, episode.reward, episode.success) == (expected.stop, expected.reward, expected.success)
    assert episode.metrics["breaks"] == 0
    (row,) = episode.rows()
    assert (row.ids == expected.rows()[0].ids).all()
    assert row.ids[: len(engine.read[-1])].tolist() == list(engine.read[-1]), "the model read what is trained on"
