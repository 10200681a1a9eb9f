"""Many sessions at once whose clients repeat, cancel and abandon requests at random: nothing lost, nothing doubled."""

import asyncio
import os
import random
from collections import Counter

import httpx2

from byte_render import ByteRender
from turnwise.agents import PolicyAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.gateway.env import Score, SessionEnv
from turnwise.gateway.server import Gateway
from turnwise.rollout import Limits, run_episode
from turnwise.types import Task

RENDER = ByteRender()
REQUESTS = int(os.environ.get("TURNWISE_CHAOS_REQUESTS", "800"))
SESSIONS = 20


class Answering(SessionEnv):
    """The episode of a session that a client of this test sends requests to."""

    def __init__(self, gateway, session):
        super().__init__()
        self.gateway, self.session = gateway, session

    async def begin(self, task, episode_seed):
        return self.session

    async def score(self, ended, conversation):
        return Score()

    async def stop(self):
        self.gateway.forget(self.session)


class Hesitant(ScriptedEngine):
    """Answers `reply to ...` to the last message, after a moment of its own."""

    def __init__(self, rng):
        super().__init__(lambda session, prompt: f"re {self.question(prompt)}", RENDER.encode_action)
        self.rng = rng

    @staticmethod
    def question(prompt):
        return RENDER.decode(prompt).rsplit("<says>", 1)[1].removesuffix("<asks>")

    async def generate(self, session, prompt_ids, sampling):
        await asyncio.sleep(self.rng.random() * 0.004)
        return await super().generate(session, prompt_ids, sampling)


class Client:
    """One agent: its conversation only ever grows, whatever happens to its requests."""

    def __init__(self, http, url, name, rng):
        self.http, self.url, self.name, self.rng = http, f"{url}/sessions/{name}", name, rng
        self.messages, self.answered, self.abandoned = [], [], set()

    async def play(self, requests):
        for number in range(requests):
            act = self.rng.choices([self.plain, self.twice, self.retry, self.abandon], [4, 2, 3, 1])[0]
            await act(f"{self.name} {number}")
        await self.http.post(f"{self.url}/end", json={})

    async def plain(self, question, attempt=0):
        self.learn(question, await self.send(question, attempt))

    async def twice(self, question):
        first, second = await asyncio.gather(self.send(question, None), self.send(question, None))
        assert first == second
        self.learn(question, first)

    async def retry(self, question):
        """Times out once or more, as an SDK does, and tries again until it is answered."""
        for attempt in range(self.rng.randint(1, 2)):
            await self.give_up_on(question, attempt)
        await self.plain(question, attempt=2)

    async def abandon(self, question):
        """Times out, and then asks something else."""
        self.abandoned.add(question)
        await self.give_up_on(question, 0)

    async def give_up_on(self, question, attempt):
        sending = asyncio.ensure_future(self.send(question, attempt))
        await asyncio.wait([sending], timeout=self.rng.random() * 0.02)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def send(self, question, attempt):
        headers = {} if attempt is None else {"x-stainless-retry-count": str(attempt)}
        messages = [*self.messages, {"role": "user", "content": question}]
        answer = await self.http.post(f"{self.url}/v1/chat/completions", json={"messages": messages}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def learn(self, question, reply):
        message = reply["choices"][0]["message"]
        assert message["content"] == f"re {question}", "another's answer"
        self.answered.append((reply["id"], question))
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": message["content"]}]
        self.messages = self.messages[-6:]  # short prompts, and a rewrite now and then


def test_nothing_is_lost_and_nothing_doubled():
    async def main():
        rng = random.Random(7)
        limits = Limits(max_turns=10**6, turn_tokens=10**4)
        with Gateway().running() as gateway:
            sessions = [gateway.open(f"s{number}") for number in range(SESSIONS)]
            agent = PolicyAgent(engine=Hesitant(rng), render=RENDER)
            playing = [
                asyncio.ensure_future(
                    run_episode(
                        agent,
                        Answering(gateway, one),
                        Task(id=one.name),
                        episode_seed=0,
                        limits=limits,
                        session=one.name,
                    )
                )
                for one in sessions
            ]
            limit = httpx2.Limits(max_connections=200)
            async with httpx2.AsyncClient(trust_env=False, timeout=60, limits=limit) as http:
                clients = [Client(http, gateway.url, one.name, random.Random(one.name)) for one in sessions]
                await asyncio.gather(*(client.play(REQUESTS // SESSIONS) for client in clients))
            return sessions, clients, await asyncio.gather(*playing)

    sessions, clients, episodes = asyncio.run(main())
    for session, client, episode in zip(sessions, clients, episodes, strict=True):
        assert episode.failure == ""
        said = Counter(turn.message.content.removeprefix("re ") for turn in episode.turns)
        asked = [question for _, question in client.answered]
        assert all(said[question] == 1 for question in asked), "an answer is one turn"
        assert set(said) - set(asked) <= client.abandoned, "a turn that no client received was abandoned"
        assert max(said.values()) == 1
        assert len(episode.turns) == session.counts["requests"] - session.counts["withdrawn"]
        order = [question for question in said if question in set(asked)]
        assert order == asked, "turns are in the order of the answers"
        assert len({answer_id for answer_id, _ in client.answered}) == len(asked)
    assert sum(len(client.answered) for client in clients) > REQUESTS / 2
    assert sum(session.counts["retries"] for session in sessions) > REQUESTS / 10
    assert sum(session.counts["withdrawn"] for session in sessions) > 0 or REQUESTS < 400
