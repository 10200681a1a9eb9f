"""A renderer whose ids can be read off a page, an environment that does what it is told, and an engine that is watched.

A letter is its code; a message is `SAYS` and its letters; the agent's turn opens with `ASKS` and ends with `END`.
"""

import asyncio
import copy

from turnwise.agents import Decoding, PolicyAgent
from turnwise.engines.base import Completion
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.rollout import Limits, run_episode
from turnwise.types import Message, Step, Task

END, SAYS, ASKS = 256, 257, 258
TASK = Task(id="t")


class ByteRender:
    stop_ids = (END,)

    def start(self, messages, tools):
        return (*(i for message in messages for i in (SAYS, *message.content.encode())), ASKS)

    def extend(self, action_ids, messages):
        forced = () if action_ids[-1] == END else (END,)
        return (*forced, *self.start(messages, ()))

    def parse(self, action_ids):
        return Message(role="assistant", content=self.decode([i for i in action_ids if i != END]))

    def write(self, message):
        return message.content

    def encode_action(self, text):
        return (*text.encode(), END)

    def decode(self, ids):
        return "".join({END: "<end>", SAYS: "<says>", ASKS: "<asks>"}.get(i) or chr(i) for i in ids)


def says(text, **kw):
    return Step(messages=(Message(role="user", content=text),), **kw)


class Scripted(Env):
    """Answers its moves with the given steps; an exception is raised, a coroutine function awaited with the episode."""

    def __init__(self, *steps, opening="hi", closing=None, keys=()):
        self.steps, self.opening, self.closing, self.keys = steps, opening, closing, keys
        self.heard, self.closed = [], []
        """Shared by all episodes: (task, turn, what the agent said), and the tasks that were closed."""

    async def reset(self, task, episode_seed):
        self.task, self.episode_seed, self.turn = task, episode_seed, 0
        text = await self._act(self.opening)
        return (Message(role="user", content=text),)

    async def step(self, message):
        self.heard.append((self.task.id, self.turn, message.content))
        step = self.steps[min(self.turn, len(self.steps) - 1)]
        self.turn += 1
        return await self._act(step)

    async def close(self):
        self.closed.append(self.task.id)
        await self._act(self.closing)

    def state_key(self):
        key = self.keys[self.turn] if self.keys else None
        if isinstance(key, Exception):
            raise key
        return key

    async def _act(self, what):
        if isinstance(what, Exception):
            raise copy.copy(what)
        return await what(self) if callable(what) else what


class Watched(ScriptedEngine):
    """Says the given replies in turn, in every session alike, and remembers what it was asked."""

    def __init__(self, *replies, context_limit=10_000):
        self.asked = []
        """(session, prompt ids, sampling) of every turn."""
        self.ended = []
        self._replies = replies
        super().__init__(self._say, ByteRender().encode_action, context_limit=context_limit)

    def _say(self, session, prompt):
        number = sum(before == session for before, _, _ in self.asked) - 1
        return self._replies[number % len(self._replies)]

    async def generate(self, session, prompt_ids, sampling) -> Completion:
        self.asked.append((session, tuple(prompt_ids), sampling))
        await asyncio.sleep(0)
        return await super().generate(session, prompt_ids, sampling)

    async def end(self, session):
        self.ended.append(session)


def policy(engine, **given):
    return PolicyAgent(engine=engine, render=ByteRender(), **given)


def play(engine, env, *, episode_seed=7, task=TASK, decoding=None, **limits):
    agent = policy(engine, decoding=decoding or Decoding())
    return asyncio.run(
        run_episode(agent, env.spawn(), task, episode_seed=episode_seed, limits=Limits(**limits), session="s")
    )


def ids(text):
    """`ids("<says>hi<asks>")`: the reverse of `ByteRender.decode`."""
    for name, token in (("<end>", END), ("<says>", SAYS), ("<asks>", ASKS)):
        text = text.replace(name, chr(0xE000 + token))
    return tuple(ord(letter) - 0xE000 if ord(letter) >= 0xE000 else ord(letter) for letter in text)


def rows(episode):
    """Each row as text; what the agent sampled stands in brackets."""
    render, drawn = ByteRender(), []
    for row in episode.rows(tail=False):
        text = ""
        for token, sampled in zip(row.ids.tolist(), row.action_mask, strict=True):
            text += f"[{render.decode([token])}]" if sampled else render.decode([token])
        drawn.append(text.replace("][", "").replace("<says>", "/").replace("<asks>", ">").replace("<end>", "."))
    return drawn
