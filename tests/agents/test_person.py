"""A person's episode goes the way a model's does, and the shorthand means what it says."""

import asyncio
from collections.abc import Sequence

import pytest
from rich.text import Text

from turnwise.envs.base import Env
from turnwise.envs.games.bandit import Bandit
from turnwise.errors import EnvError
from turnwise.rollout.play import play, play_in_terminal
from turnwise.types import Message, Step, Task, ToolSpec


class Echo(Env):
    """Tells what it received; pays 0.5 for a call and 1 for the word `done`, which ends it."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.closed: list[int] = []

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        year = {"type": "object", "properties": {"year": {"type": "string"}, "k": {"type": "integer"}}}
        return (ToolSpec(name="search", description="Finds.", parameters=year),)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-0"), Task(id=f"{split}-1")]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self.episode_seed = episode_seed
        return [Message(role="user", content=f"Begin {task.id} [bold]{episode_seed}[/bold]")]

    async def step(self, message: Message) -> Step:
        self.received.append(message)
        if message.content == "done":
            return Step(rewards={"end": 1.0}, done=True, metrics={"success": 1.0})
        if message.content == "forget":
            return Step(rewrites=(Message(role="user", content="Afresh."),))
        said = Message(role="tool", name="search", content="found") if message.tool_calls else None
        return Step(messages=(said,) if said else (), rewards={"call": 0.5} if said else {})

    async def close(self) -> None:
        self.closed.append(self.episode_seed)


def play_lines(env: Env, *lines: str) -> tuple[float, str]:
    script = iter(lines)
    shown: list[str] = []

    def ask() -> str:
        try:
            return next(script)
        except StopIteration:
            raise EOFError from None

    def show(drawn: object) -> None:
        assert isinstance(drawn, Text)
        shown.append(drawn.plain)

    return asyncio.run(play(env, Task(id="t"), 7, ask, show)), "\n".join(shown)


def test_an_episode_from_the_opening_to_the_total() -> None:
    env = Echo()
    reward, shown = play_lines(env, "/call search year=1990 k=3", "", "<think>so</think>done", "never read")
    assert reward == 1.5
    call, end = env.received
    assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == ("search", '{"year": "1990", "k": 3}')
    assert (end.thinking, end.content) == ("so", "done")
    assert env.closed == [7]
    for words in (
        "Begin t [bold]7[/bold]",
        "search: Finds.",
        "tool search\nfound",
        "reward: call 0.5",
        "The episode is over. success 1",
        "Reward 1.5 (call 0.5, end 1)",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ('/call search {"k": 1.0}', '{"k": 1.0}'),
        ('/call search year="two words" k=many', '{"year": "two words", "k": "many"}'),
        ("/call search", "{}"),
        ("/call nowhere on=true tags=[1,2]", '{"on": true, "tags": [1, 2]}'),
    ],
)
def test_shorthand_becomes_a_call(line: str, arguments: str) -> None:
    env = Echo()
    play_lines(env, line)
    assert [call.arguments for call in env.received[0].tool_calls] == [arguments]
    assert env.received[0].tool_calls[0].problem == ""


def test_malformed_json_reaches_the_environment_as_a_models_would() -> None:
    env = Echo()
    play_lines(env, '/call search {"k": ')
    assert "not valid JSON" in env.received[0].tool_calls[0].problem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/call", "/call: which tool? search"),
        ("/call search Oslo", "/call: 'Oslo' is not key=value"),
        ('/call search year="19', "/call: No closing quotation"),
    ],
)
def test_bad_shorthand_is_explained_and_costs_no_move(line: str, words: str) -> None:
    env = Echo()
    reward, shown = play_lines(env, line, "done")
    assert words in shown
    assert (reward, len(env.received)) == (1.0, 1)


def test_leaving_early_closes_the_episode() -> None:
    env = Echo()
    reward, shown = play_lines(env, "/help", "forget", "/quit", "done")
    assert (reward, len(env.received), env.closed) == (0.0, 1, [7])
    assert shown.count("/quit") == 2
    assert "The conversation now reads:\nuser\nAfresh." in shown
    assert shown.endswith("Reward 0")


def test_in_a_game_a_line_without_tags_is_the_answer() -> None:
    env = Bandit(max_actions=3, max_actions_per_turn=2, low="Owl", high="Hawk")
    reward, shown = play_lines(env, "/help", "Owl || owl", "<think>Dive.</think><answer>Owl</answer>", "never read")
    assert shown.count("In this game a line without tags is your answer: <think>.</think><answer>...</answer>") == 2
    assert "\n<think>.</think><answer>Owl || owl</answer>\n" in shown, "what was meant is shown"
    assert "<think>Dive.</think>" not in shown, "what needs no expansion is not said twice"
    assert "actions 3, invalid_actions 0" in shown
    assert 0.3 <= reward <= 0.45

    _, shown = play_lines(Bandit(think=False), "Phoenix")
    assert "\n<answer>Phoenix</answer>\n" in shown


def test_a_line_with_a_tag_goes_to_a_game_as_it_is() -> None:
    _, shown = play_lines(Bandit(max_actions=2), "<answer>Phoenix</answer>", "/quit")
    assert "No <think> found." in shown


def test_in_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "done")
    assert play_in_terminal(Echo(), task_index=1, split="test", episode_seed=3) == 1.0
    shown = capsys.readouterr().out
    assert "Task test-1, episode seed 3" in shown
    assert "[bold]3[/bold]" in shown


def test_the_terminal_plays_the_first_training_task_unless_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "done")
    play_in_terminal(Echo())
    shown = capsys.readouterr().out
    assert "Task train-0, episode seed 0" in shown
    assert "Reward 1" in shown


def test_a_task_that_is_not_there_is_one_line() -> None:
    with pytest.raises(EnvError, match="no task 2 in 'train': it has 2, counted from 0"):
        play_in_terminal(Echo(), task_index=2)
