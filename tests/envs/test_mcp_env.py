"""`MCPEnv`: servers in a recipe, and servers that score."""

import pytest

from fake_mcp import DONE, FakeServer, play
from turnwise import Message
from turnwise.envs import EnvSettings, make_env
from turnwise.envs.adapters.mcp import MCPEnv, read_number
from turnwise.errors import TurnwiseError
from turnwise.tools import MCPTools
from turnwise.tools.mcp import ServerLostError
from turnwise.tools.mcp.server import CallAnswer, ListedTool


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (CallAnswer(text="0.5"), 0.5),
        (CallAnswer(text="x", structured={"result": 2}), 2.0),
        (CallAnswer(text="x", structured={"reward": 0.25, "done": True}), 0.25),
        (CallAnswer(text="x", structured=1.5), 1.5),
    ],
)
def test_a_servers_score_is_a_number(answer, number):
    assert read_number("score", answer) == number


@pytest.mark.parametrize(
    "answer",
    [CallAnswer(text="well done"), CallAnswer(text="1.0", ok=False), CallAnswer(text="x", structured={"result": [1]})],
)
def test_a_score_that_is_none_is_a_failure_and_no_zero(answer):
    with pytest.raises(ServerLostError, match="gave no number"):
        read_number("score", answer)


def test_a_recipe_names_servers_and_a_server_may_score(monkeypatch):
    async def score(client, name, arguments):
        return CallAnswer(text="0.75" if arguments.get("answer") == "done" else "0")

    server = FakeServer(answer=score)
    known = {"type": "object", "properties": {"answer": {}, "task": {}}}
    server.tools.append(ListedTool(name="grade", description="g", schema=known))
    monkeypatch.setattr(
        "turnwise.envs.adapters.mcp.MCPTools", lambda *a, **k: MCPTools(*a, connect=server.connect, **k)
    )
    options = {"command": "python serve.py", "per_episode": True, "score": "grade"}
    says_done = Message(role="assistant", content=DONE)
    env = MCPEnv(servers=[options], tasks=[{"question": "?"}], expert=lambda task, messages: says_done)
    assert [spec.name for spec in env.tools] == ["echo"]
    episode = play(env, DONE)
    assert (episode.reward, episode.rewards) == (0.75, {"score": 0.75})
    assert server.seen == [("grade", {"answer": "done", "task": "t"})]
    assert server.opened[0].command[1:] == ("serve.py",)
    with pytest.raises(TurnwiseError, match="a command or a url, one of the two"):
        MCPEnv(servers=[{"per_episode": True}], rewards="exact_match")
    with pytest.raises(TurnwiseError, match="per_epsode: unknown key"):
        MCPEnv(servers=[{"command": "x", "per_epsode": True}], rewards="exact_match")
    settings = EnvSettings(name="mcp", args={"servers": [options], "max_turns": "three"})
    with pytest.raises(TurnwiseError, match="max_turns"):
        make_env(settings)
