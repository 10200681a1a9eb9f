"""Stored episodes are read back as conversations, whatever the template, without losing a word."""

import math

import pytest

from chat_families import family
from turnwise.errors import RunError
from turnwise.render import make_render
from turnwise.runs import RunDirectory, write_trajectories
from turnwise.runs.conversation import read_conversation, split_context
from turnwise.runs.episodes import list_episodes, read_episode, read_episodes, trajectory_files
from turnwise.types import Finish, Group, Message, StopReason, Task, ToolCall, Trajectory, Turn

TASK = Task(id="t1", data={"question": "Who founded Lumen?"})
ASKED = (Message(role="system", content="Be brief."), Message(role="user", content="Who founded Lumen?"))
CALLS = '<think>\nLook.\n</think>\n\n<tool_call>\n{"name": "search", "arguments": {"query": "Lumen"}}\n</tool_call>'
FOUND = (Message(role="tool", content="Oslo\nopens", tool_call_id="call_0", name="search"),)


def make_run(folder):
    return RunDirectory.create(folder, "env: {name: bandit}\nsteps: 3\ncredit: {estimator: grpo}\n")


def play(render, *, rewrites=False):
    """Two turns: a call with its answer, and a reply that was cut off."""
    first = render.start(ASKED, ())
    call, reply = render.encode_action(CALLS), render.encode_action("<answer>Ada</answer>")[:-1]
    second = render.start(ASKED, ()) if rewrites else render.extend(call, FOUND)
    turns = (
        Turn(context_ids=first, action_ids=call, logprobs=(-0.5,) * len(call), opens_row=True, version=2),
        Turn(
            context_ids=second,
            action_ids=reply,
            logprobs=(-0.25,) * len(reply),
            rewards={"exact_match": 1.0},
            opens_row=rewrites,
            finish=Finish.LENGTH,
            version=2,
        ),
    )
    return Trajectory(task=TASK, turns=turns, stop=StopReason.MAX_TURNS, metrics={"success": 1.0})


def store(folder, render, *trajectories, stage="train", step=3, per_token=None):
    run = make_run(folder)
    groups = [Group(task=one.task, trajectories=(one,)) for one in trajectories]
    write_trajectories(run.trajectory_file(stage, step), step, groups, per_token, render.decode if render else None)
    return run


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "smollm2", "llama3"])
def test_the_messages_of_an_episode(tmp_path, name):
    render = make_render(family(name))
    run = store(tmp_path / "run", render, play(render))
    system, user, call, tool, reply = read_conversation(read_episode(run, "train-3/0/0"))
    roles = [block.role for block in (system, user, call, tool, reply)]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert "Be brief." in system.text
    assert user.text == "Who founded Lumen?"
    assert (call.thinking, call.text, call.turn) == ("Look.", "", 0)
    assert [(one.name, one.arguments) for one in call.calls] == [("search", '{"query": "Lumen"}')]
    assert "Oslo" in tool.text
    assert "opens" in tool.text
    assert (reply.text, reply.turn, reply.rewards, reply.cut) == ("<answer>Ada</answer>", 1, {"exact_match": 1.0}, True)
    assert not call.cut
    assert not any(block.rewritten for block in (system, user, call, tool, reply))


def test_a_template_that_is_not_known_is_shown_as_it_is(tmp_path):
    render = make_render(family("quirky"))
    asked = render.start((Message(role="user", content="Who founded Lumen?"),), ())
    turn = Turn(context_ids=asked, action_ids=render.encode_action("Ada"), logprobs=(0.0,) * 4, opens_row=True)
    assert len(turn.action_ids) == 4
    run = store(tmp_path / "run", render, Trajectory(task=TASK, turns=(turn,), stop=StopReason.DONE))
    context, reply = read_conversation(read_episode(run, "train-3/0/0"))
    assert context.role == "context"
    assert context.text == "<turn>user\nWho founded Lumen?<end>\n<turn>model"
    assert reply.text.removesuffix("<end>") == "Ada"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", [("user", "Hi"), ("assistant", "")]),
        ("<s>[INST]Hi[/INST]", [("user", "Hi")]),
        ('[TOOL_RESULTS]{"a": 1}[/TOOL_RESULTS]', [("tool", '{"a": 1}')]),
        (
            "<|system|>\nS<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
            [("system", "S"), ("user", "Hi"), ("assistant", "")],
        ),
        ("<｜begin▁of▁sentence｜>S<｜User｜>Hi<｜Assistant｜>", [("context", "S"), ("user", "Hi"), ("assistant", "")]),
        ("just words", [("context", "just words")]),
        ("", []),
        ("<|im_end|>\n<|im_start|>user\nNo <answer> found.<|im_end|>", [("user", "No <answer> found.")]),
        (
            "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>",
            [("tool", "a"), ("tool", "b")],
        ),
        (
            "<|im_start|>user\nread <tool_response>a</tool_response> again<|im_end|>",
            [("user", "read <tool_response>a</tool_response> again")],
        ),
    ],
)
def test_headers_of_other_families(text, expected):
    assert [(block.role, block.text) for block in split_context(text)] == expected


def test_a_rewritten_conversation_is_marked(tmp_path):
    render = make_render(family("qwen2.5"))
    run = store(tmp_path / "run", render, play(render, rewrites=True))
    marks = [block.rewritten for block in read_conversation(read_episode(run, "train-3/0/0"))]
    assert marks == [False, False, False, True, False, False]


def test_an_agent_without_tokens_is_read_by_its_messages(tmp_path):
    call = ToolCall(id="c1", name="search", arguments="{}")
    messages = (*ASKED, Message(role="assistant", content="", tool_calls=(call,)), *FOUND)
    turns = (Turn(rewards={"found": 0.5}),)
    run = store(tmp_path / "run", None, Trajectory(task=TASK, turns=turns, stop=StopReason.DONE, messages=messages))
    blocks = read_conversation(read_episode(run, "train-3/0/0"))
    assert [block.role for block in blocks] == ["system", "user", "assistant", "tool"]
    assert (blocks[2].calls, blocks[2].turn, blocks[2].rewards) == ((call,), 0, {"found": 0.5})


def test_an_episode_has_the_numbers_of_its_tokens(tmp_path):
    render = make_render(family("qwen2.5"))
    played = play(render)
    count, cut = played.action_tokens, len(played.turns[0].action_ids)
    advantages = [place / 4 for place in range(count)]
    logprobs = [*([-0.5] * (count - 1)), math.nan]
    per_token = {"advantages": {(0, 0): advantages}, "learner_logprobs": {(0, 0): logprobs}}
    run = store(tmp_path / "run", render, played, per_token=per_token)
    episode = read_episode(run, "train-3/0/0")
    assert episode.trajectory == played
    assert [list(turn.advantages) for turn in episode.turns] == [advantages[:cut], advantages[cut:]]
    assert list(episode.turns[1].learner_logprobs) == [*logprobs[cut:-1], None]
    assert episode.turns[0].entropies is None
    assert read_episodes(run, "train", 3) == [episode]


def test_episodes_are_listed_and_a_broken_file_is_reported(tmp_path):
    failed = Trajectory(task=Task(id="t2"), turns=(), stop=StopReason.ENV_FAILED, failure="no network")
    render = make_render(family("qwen2.5"))
    run = store(tmp_path / "run", render, play(render), failed)
    write_trajectories(run.trajectory_file("evaluate", 0), 0, [], None, None)
    run.trajectory_file("train", 12).write_bytes(b"PAR1 half of a file")
    (run.trajectories / "notes.txt").write_text("mine")
    problems = []
    files = trajectory_files(run)
    assert [file.name for file in files] == ["evaluate-000000.parquet", "train-000003.parquet", "train-000012.parquet"]
    first, second = list_episodes(files, problems)
    assert (first.name, first.reward, first.success, first.failed) == ("train-3/0/0", 1.0, 1.0, False)
    assert (second.name, second.failure, second.failed) == ("train-3/1/0", "no network", True)
    assert len(problems) == 1
    assert "train-000012.parquet: cannot be read" in problems[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "name it as STAGE-STEP/GROUP/MEMBER"),
        ("../../etc-1/0/0", "name it as STAGE-STEP/GROUP/MEMBER"),
        ("train-9/0/0", "no such file; the last ones of this run are: train-000003"),
        ("train-3/0/7", "has no group 0 with a member 7"),
    ],
)
def test_a_name_that_is_not_there_is_one_line(tmp_path, name, message):
    render = make_render(family("qwen2.5"))
    run = store(tmp_path / "run", render, play(render))
    with pytest.raises(RunError, match=message) as error:
        read_episode(run, name)
    assert "\n" not in str(error.value)
