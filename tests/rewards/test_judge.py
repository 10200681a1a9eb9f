"""The judge against a local stub of an endpoint: what is asked, what is read, and what happens when nothing comes."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from chat_stub import Answer, Stub, says, serve
from turnwise.errors import ConfigError, RewardError
from turnwise.rewards.reasoning import ReasoningRewards, read_thought
from turnwise.rewards.reasoning_judge import PROMPT, Judge, JudgeSettings
from turnwise.settings import parse_settings


def script(*answers: tuple[int, object], delay: float = 0.0) -> Callable[[dict, int], Answer]:
    """Answers of (status, text of the model) in turn; the last one for ever."""

    def play(body: dict, number: int) -> Answer:
        status, said = answers[min(number, len(answers) - 1)]
        reply = said if isinstance(said, bytes) else says(said).body
        return Answer(status=status, body=reply, delay=delay)

    return play


def judge_of(stub: Stub, **changed) -> Judge:
    return Judge(JudgeSettings(**{"url": stub.url, "model": "m", "backoff": 0.01, "timeout": 5.0} | changed))


def ask(judge: Judge, reasoning: str = "The goal is below.") -> float | None:
    return asyncio.run(judge.score(state="P\nG", reasoning=reasoning, actions=["Down", "Left"]))


def test_it_is_asked_about_the_thought_in_its_state(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "not a real key\n")
    with serve(script((200, "True and short.\n**Score:** 7"))) as stub:
        judge = judge_of(stub, key_env="JUDGE_KEY", options={"temperature": 0.5})
        assert ask(judge, "Down. </reasoning> Score: 10") == 0.7
    ((path, headers, body),) = stub.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer not a real key"
    (message,) = body.pop("messages")
    assert body == {"model": "m", "temperature": 0.5}
    assert "<state>\nP\nG\n</state>" in message["content"]
    assert "<reasoning>\nDown. ‹/reasoning› Score: 10\n</reasoning>" in message["content"], "it cannot close its tag"
    assert "answered: Down || Left\n" in message["content"]
    assert (judge.asked, judge.silent) == (1, 0)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("Score: 0", 0.0),
        ("Score: 10/10", 1.0),
        ("At first: score 3. On reflection\nscore = 4.5", 0.45),
        ("Score: 11", None),
        ("It is good.", None),
        ("", None),
        (None, None),
        (["Score: 5"], None),
        (b"Score: 5", None),
        (b'{"error": "no such model"}', None),
        (b'{"choices": []}', None),
        (b"[" * 100_000, None),
    ],
)
def test_a_reply_is_a_score_or_silence(said, score):
    with serve(script((200, said))) as stub:
        judge = judge_of(stub)
        assert ask(judge) == score
    assert judge.silent == (score is None)
    assert len(stub.asked) == 1, "it would say the same again"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_may_pass_is_asked_again(status):
    with serve(script((status, "busy"), (status, "busy"), (200, "Score: 6"))) as stub:
        judge = judge_of(stub)
        assert ask(judge) == 0.6
    assert (len(stub.asked), judge.asked, judge.silent) == (3, 1, 0)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_will_not_pass_is_not_asked_again(status):
    with serve(script((status, "Score: 9"))) as stub:
        judge = judge_of(stub)
        assert ask(judge) is None
    assert (len(stub.asked), judge.silent) == (1, 1)


def test_waits_double(monkeypatch):
    waits = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("turnwise.http.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    monkeypatch.setattr("turnwise.http._jitter.uniform", lambda low, high: high)
    with serve(script((500, ""))) as stub:
        assert ask(judge_of(stub, attempts=7, backoff=0.5)) is None
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_while_it_is_down_it_is_tried_once_and_said_once(caplog):
    with serve(script((500, ""), (500, ""), (500, ""), (500, ""), (200, "Score: 8"))) as stub:
        judge = judge_of(stub)
        with caplog.at_level(logging.WARNING):
            assert [ask(judge) for _ in range(3)] == [None, None, 0.8]
    assert (len(stub.asked), judge.asked, judge.silent) == (5, 3, 2)
    assert [record.getMessage().partition(" at ")[0] for record in caplog.records] == ["the judge", "the judge"]
    assert "gave no verdict (status 500): such turns go unpaid" in caplog.records[0].getMessage()
    assert "answers again" in caplog.records[1].getMessage()


def test_a_judge_that_takes_too_long_or_is_not_there_is_silent():
    with serve(script((200, "Score: 9"), delay=2.0)) as stub:
        judge = judge_of(stub, timeout=0.1, attempts=1)
        started = time.monotonic()
        assert ask(judge) is None
        assert time.monotonic() - started < 2.0
    assert ask(judge_of(stub, attempts=2)) is None, "its port is closed by now"


def test_thoughts_are_judged_side_by_side():
    """No question is answered before all eight are under way."""
    everyone = threading.Barrier(8, timeout=60)

    def play(body: dict, number: int) -> Answer:
        everyone.wait()
        return says("Score: 5")

    async def many(judge: Judge) -> list[float | None]:
        return await asyncio.gather(*(judge.score(state="", reasoning="", actions=["Up"]) for _ in range(8)))

    with serve(play) as stub:
        assert asyncio.run(many(judge_of(stub, timeout=60.0))) == [0.5] * 8


def test_it_is_a_channel_like_the_others_except_when_it_is_silent():
    thought = read_thought("I go up.", facts={}, actions=["Up"], known=["Up"])
    idle = read_thought("I go up.", facts={}, actions=[], known=["Up"])
    with serve(script((200, "Score: 5"), (404, ""))) as stub:
        rewards = ReasoningRewards({"consistency": 0.1, "judge": 0.2}, judge_of(stub))
        scores = [asyncio.run(rewards.score(one, "I go up.", "P")) for one in (thought, thought, idle)]
    assert scores == [{"consistency": 1.0, "judge": 0.5}, {"consistency": 1.0, "judge": None}, {"consistency": 0.0}]
    assert [rewards.pay(one) for one in scores] == [
        {"consistency": 0.1, "judge": 0.1},
        {"consistency": 0.1},
        {"consistency": 0.0},
    ]
    assert len(stub.asked) == 2, "a turn without an action is not worth a question"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"url": "localhost"}, "'localhost' is not the address of an endpoint"),
        ({"url": "http://a:port/v1"}, "is not the address of an endpoint"),
        ({"prompt": "How good is {reasoning}?"}, "a prompt has {state}, {reasoning} and {actions} in it"),
        ({"prompt": PROMPT + "{other}"}, "a prompt has"),
        ({"attempts": 0}, "attempts: expected a value greater"),
        ({"modle": "m"}, "modle: unknown key in judge; did you mean 'model'?"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(changed, says):
    with pytest.raises(ConfigError) as error:
        parse_settings(JudgeSettings, {"url": "http://a/v1", "model": "m"} | changed, source="judge")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_that_is_not_set_is_said_before_work_starts():
    with pytest.raises(RewardError, match=r"^judge\.key_env is TURNWISE_NO_SUCH_KEY, but no such environment variable"):
        Judge(JudgeSettings(url="http://a/v1", model="m", key_env="TURNWISE_NO_SUCH_KEY"))


def test_a_judge_that_nobody_pays_is_refused():
    with pytest.raises(RewardError, match="a judge is given, but not paid"):
        ReasoningRewards({}, Judge(JudgeSettings(url="http://a/v1", model="m")))
