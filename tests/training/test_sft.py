"""The cold start: demonstrations as trajectories, the loss against a formula written out by hand."""

import asyncio
import dataclasses
import json
import math
import os

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from turnwise.envs.base import Env
from turnwise.envs.tool_env import ToolEnv
from turnwise.errors import ConfigError, EnvError
from turnwise.learner.forward_runner import Packing, choose_packing
from turnwise.learner.group import LearnerGroup
from turnwise.learner.settings import OptimizerSettings, SFTSettings
from turnwise.models.small import SmallSettings, build_small, train_tokenizer
from turnwise.render import make_render
from turnwise.rewards import exact_match_reward
from turnwise.rollout import Limits
from turnwise.seeds import derive_seed
from turnwise.tools import tool
from turnwise.training.sft import count_sft_steps, play_expert, read_chats, run_sft
from turnwise.types import Finish, Message, Step, StopReason, Task, ToolCall, Trajectory, Turn

SMALL = SmallSettings(layers=2, width=32, heads=2, positions=256, vocabulary=300)
TOKENIZER = train_tokenizer(["What is x? look_up key answer"] * 4, SMALL)
RENDER = make_render(TOKENIZER)


class Desk(ToolEnv):
    """Its expert looks a key up, then says what it found."""

    def __init__(self):
        tasks = [{"question": f"What is {key}?", "key": key, "answers": [f"{key}{key}"]} for key in "xyz"]
        super().__init__(tasks=tasks, rewards=[exact_match_reward], system="Ask.")

    def begin(self, task, episode_seed):
        self.key, self.episode_seed = task.data["key"], episode_seed

    @tool(quick=True)
    def look_up(self, key: str) -> str:
        """Looks a key up.

        Args:
            key: Which one.
        """
        return f"{key} is {key}{key}"

    def expert(self):
        if self.turns_taken == 1:
            return Message(role="assistant", content=f"<answer>{self.key}{self.key}</answer>")
        call = ToolCall(id="", name="look_up", arguments=json.dumps({"key": self.key}))
        return Message(role="assistant", content="", thinking="Look.", tool_calls=(call,))


def demonstrate(env, tasks=None, seed=3, limits=None, context_limit=256, **options):
    tasks = env.tasks("train") if tasks is None else tasks
    return asyncio.run(
        play_expert(
            env,
            tasks,
            render=RENDER,
            limits=limits or Limits(),
            context_limit=context_limit,
            seed=seed,
            **options,
        )
    )


def split(trajectory):
    """What was read and what was said, turn by turn, as text."""
    return [(RENDER.decode(turn.context_ids), RENDER.decode(turn.action_ids)) for turn in trajectory.turns]


CALL = '<tool_call>\n{"name": "look_up", "arguments": {"key": "x"}}\n</tool_call>'


def test_the_experts_words_are_actions_and_all_else_is_context():
    told = []
    played = demonstrate(Desk(), progress=lambda done, total: told.append((done, total)))
    assert split(played[0]) == [
        (
            "<|im_start|>system\nAsk.\nlook_up(key): Looks a key up<|im_end|><|im_start|>user\nWhat is x?<|im_end|>"
            "<|im_start|>assistant\n",
            f"<think>\nLook.\n</think>\n\n{CALL}<|im_end|>",
        ),
        (
            "<|im_start|>tool\n<tool_response>x is xx</tool_response><|im_end|><|im_start|>assistant\n",
            "<answer>xx</answer><|im_end|>",
        ),
    ]
    assert [(one.task.id, one.stop, one.reward, one.success) for one in played] == [
        (f"task-{place}", StopReason.DONE, 1.0, True) for place in range(3)
    ]
    assert [one.episode_seed for one in played] == [derive_seed(3, "expert", place) for place in range(3)]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_demonstrations_that_a_token_limit_cuts_off_are_counted(caplog):
    demonstrate(Desk())
    assert not caplog.records
    demonstrate(Desk(), limits=Limits(turn_tokens=5))
    assert "3 of 3 demonstrations have a turn that rollout.turn_tokens" in caplog.text


def test_a_demonstration_obeys_the_limits_of_a_rollout():
    one = Desk().tasks("train")[:1]
    [short] = demonstrate(Desk(), one, limits=Limits(max_turns=1))
    assert (short.stop, split(short)) == (StopReason.MAX_TURNS, split(demonstrate(Desk(), one)[0])[:1])
    [cut] = demonstrate(Desk(), one, limits=Limits(turn_tokens=5))
    assert (len(cut.turns[0].action_ids), cut.turns[0].finish) == (5, Finish.LENGTH)
    [full] = demonstrate(Desk(), one, context_limit=4)
    assert (full.stop, full.turns) == (StopReason.CONTEXT_FULL, ())


def test_an_environment_without_an_expert_says_what_to_do():
    class NoExpert(Env):
        async def reset(self, task, episode_seed):
            return (Message(role="user", content="hi"),)

        async def step(self, message):
            return Step(done=True)

    with pytest.raises(EnvError, match=r"^NoExpert has no expert: give sft a file of chats instead$"):
        demonstrate(NoExpert(), [Task(id="t")])


def test_when_every_demonstration_fails_the_run_ends_in_one_line():
    class Broken(Desk):
        def begin(self, task, episode_seed):
            raise OSError("no disk")

    words = r"^every demonstration failed, 3 times alike: task 'task-0': reset: OSError: no disk \([^\n]*$"
    with pytest.raises(EnvError, match=words):
        demonstrate(Broken())


def test_forked_processes_play_the_same_demonstrations():
    shown = []
    alone = demonstrate(Desk())
    forked = demonstrate(Desk(), workers=2, progress=lambda done, total: shown.append((done, total)))
    assert [dataclasses.replace(one, seconds=0.0) for one in forked] == [
        dataclasses.replace(one, seconds=0.0) for one in alone
    ]
    assert shown[-1] == (len(alone), len(alone))
    assert sorted(shown) == shown


def test_what_fails_in_a_forked_process_is_raised_here_and_one_that_dies_is_named():
    class Broken(Desk):
        def begin(self, task, episode_seed):
            raise EnvError("no such desk")

    class Deadly(Desk):
        def begin(self, task, episode_seed):
            os._exit(3)

    with pytest.raises(EnvError, match="no such desk"):
        demonstrate(Broken(), workers=2)
    with pytest.raises(ConfigError, match=r"^sft.workers: a forked process died; set it to 0 to see why in this one$"):
        demonstrate(Deadly(), workers=2)


LOOK_UP = {
    "name": "look_up",
    "description": "Looks a key up.",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
}


def chat(arguments, *, wrapped):
    call = {"name": "look_up", "arguments": arguments}
    wrap = {"id": "c1", "type": "function", "function": call} if wrapped else call
    messages = [
        {"role": "system", "content": "Ask."},
        {"role": "user", "content": "What is x?"},
        {"role": "assistant", "content": None, "reasoning_content": "Look.", "tool_calls": [wrap]},
        {"role": "tool", "content": "x is xx", "tool_call_id": "c1", "name": "look_up"},
        {"role": "assistant", "content": "<answer>xx</answer>"},
        {"role": "user", "content": "Thanks!"},
    ]
    tools = [{"type": "function", "function": LOOK_UP} if wrapped else LOOK_UP]
    return {"messages": messages, "tools": tools}


@pytest.mark.parametrize("arguments", [{"key": "x"}, '{"key": "x"}'], ids=["object", "text"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_chat_from_a_file_is_the_trajectory_an_expert_would_have_made(tmp_path, arguments, wrapped):
    file = tmp_path / "chats.jsonl"
    file.write_text(f"\n{json.dumps(chat(arguments, wrapped=wrapped))}\n\n", encoding="utf-8")
    [read] = read_chats(str(file), RENDER)
    [played, *_] = demonstrate(Desk())
    assert split(read) == split(played)
    assert [turn.opens_row for turn in read.turns] == [True, False]
    assert (read.task.id, read.stop, read.reward) == ("chats-2", StopReason.DONE, 0.0)


def test_assistants_may_speak_twice_in_a_row_and_separators_inside_a_text_are_text(tmp_path):
    file = tmp_path / "chats.jsonl"
    messages = [("user", "a\u2028b\x85c"), ("assistant", "one"), ("assistant", "two")]
    line = json.dumps({"messages": [{"role": r, "content": c} for r, c in messages]}, ensure_ascii=False)
    file.write_text(f"{line}\r\n{line}", encoding="utf-8")
    first, second = read_chats(str(file), RENDER)
    assert split(first) == split(second)
    assert split(first) == [
        ("<|im_start|>user\na\u2028b\x85c<|im_end|><|im_start|>assistant\n", "one<|im_end|>"),
        ("<|im_start|>assistant\n", "two<|im_end|>"),
    ]


GOOD = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not a chat"),
        ("[1, 2]", "not a chat"),
        ("7", "not a chat"),
        ('{"prompt": "a"}', "not a chat (KeyError: 'messages')"),
        ('{"messages": null}', "not a chat"),
        ('{"messages": ["a"]}', "not a chat"),
        ('{"messages": [{"content": "a"}]}', "not a chat (KeyError: 'role')"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "role 'robot' is none of"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}', "content is text or null"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}', "'arguments'"),
        ('{"messages": [{"role": "assistant", "tool_calls": 3}]}', "not a chat"),
        (GOOD[:-1] + ', "tools": [{"name": "f"}]}', "not a chat (TypeError"),
        ('{"messages": []}', "must open with"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "have an assistant's reply"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "must open with"),
    ],
)
def test_a_line_that_is_no_chat_is_named_with_its_place(tmp_path, line, said):
    file = tmp_path / "chats.jsonl"
    file.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_chats(str(file), RENDER)
    message = str(caught.value)
    assert message.startswith(f"{file}:2: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("written", "said"), [(None, "no file"), (b"\n \n", "holds no chat"), (b"\xff\xfe{", "is not UTF-8 text")]
)
def test_a_file_that_holds_no_chats_is_one_line(tmp_path, written, said):
    file = tmp_path / "chats.jsonl"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(ConfigError, match=rf"^sft\.chats: [^\n]*{said}[^\n]*$"):
        read_chats(str(file), RENDER)


def by_hand(*turns, stop=StopReason.DONE):
    made = [
        Turn(context_ids=context, action_ids=action, logprobs=(0.0,) * len(action), opens_row=number == 0)
        for number, (context, action) in enumerate(turns)
    ]
    return Trajectory(task=Task(id="t"), turns=tuple(made), stop=stop)


class Table(nn.Module):
    """A 'model' whose logits [W, V] are its parameters: what a token's loss did can be read off its row."""

    def __init__(self, width, vocabulary=7):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(width, vocabulary, generator=torch.Generator().manual_seed(1)))
        self.config = LlamaConfig(vocab_size=vocabulary)

    def get_decoder(self):
        return _Trunk(self)

    def get_output_embeddings(self):
        return nn.Identity()


class _Trunk(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = [table]

    def forward(self, input_ids, use_cache):
        rows = self.table[0].logits[: input_ids.shape[1]].expand(len(input_ids), -1, -1)
        return type("Output", (), {"last_hidden_state": rows})


#           prompt    said     read       said
EPISODE = (((1, 2), (3, 4)), ((5, 6, 0), (1,)))
TARGETS = {"said": (2, 3, 7), "read": (4, 5, 6)}
IDS = (1, 2, 3, 4, 5, 6, 0, 1)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_loss_is_the_weighted_mean_of_what_was_said_and_what_was_read(weight):
    table = Table(len(IDS))
    before = table.logits.detach().clone()
    logprob = before.log_softmax(-1)  # [W, V]
    cost = {t: -float(logprob[t - 1, IDS[t]]) for t in range(1, len(IDS))}
    said, read = (sum(cost[t] for t in TARGETS[who]) for who in ("said", "read"))
    settings = SFTSettings(batch=1, context_weight=weight, optimizer=OptimizerSettings(lr=0.1, max_grad_norm=None))
    [metrics] = run_sft(LearnerGroup(model=table), [by_hand(*EPISODE)], settings, seed=0)
    assert metrics["sft/loss"] == pytest.approx((said + weight * read) / (3 + weight * 3), rel=1e-5)
    assert metrics["sft/tokens"] == 8
    # d loss / d logits = share of the target × (softmax − one-hot), row by row.
    squares = 0.0
    for who, share in (("said", 1.0), ("read", weight)):
        for t in TARGETS[who]:
            row = before[t - 1].softmax(-1)
            row[IDS[t]] -= 1
            squares += float((row * share / (3 + weight * 3)).square().sum())
    assert metrics["sft/grad_norm"] == pytest.approx(math.sqrt(squares), rel=1e-5)
    moved = {t + 1 for t in range(len(IDS)) if not torch.equal(table.logits[t], before[t])}
    # The prompt (target 1) is never trained, and neither is what comes after the last token (8).
    assert moved == {*TARGETS["said"], *(TARGETS["read"] if weight else ())}


def test_every_token_of_a_batch_weighs_the_same_however_long_its_demonstration():
    table = Table(4)
    cost = -table.logits.detach().log_softmax(-1)  # [W, V]
    short, long = by_hand(((1,), (2,))), by_hand(((1,), (3, 4, 5)))
    expected = (cost[0, 2] + cost[0, 3] + cost[1, 4] + cost[2, 5]) / 4
    [metrics] = run_sft(LearnerGroup(model=table), [short, long], SFTSettings(batch=2), seed=0)
    assert metrics["sft/loss"] == pytest.approx(float(expected), rel=1e-5)


def test_the_size_of_micro_batches_changes_nothing():
    demonstrations = [by_hand(((1,), (2, 3))), by_hand(*EPISODE), by_hand(((4,), (5,)), ((6,), (0, 1)))]
    results = []
    for budget in (1, 12, 10_000):
        table = Table(len(IDS))
        settings = SFTSettings(batch=3, epochs=2, context_weight=0.5, tokens_per_microbatch=budget)
        losses = [
            metrics["sft/loss"] for metrics in run_sft(LearnerGroup(model=table), demonstrations, settings, seed=0)
        ]
        results.append(([pytest.approx(loss, rel=1e-5) for loss in losses], table.logits.detach()))
    assert results[0][0] == results[1][0] == results[2][0]
    assert torch.allclose(results[0][1], results[2][1], atol=1e-6)


def test_a_demonstration_that_failed_teaches_nothing():
    table = Table(len(IDS))
    before = table.logits.detach().clone()
    failed = by_hand(*EPISODE, stop=StopReason.ENV_FAILED)
    [metrics] = run_sft(LearnerGroup(model=table), [failed], SFTSettings(batch=1), seed=0)
    assert (metrics["sft/loss"], metrics["sft/tokens"]) == (0.0, 0.0)
    assert torch.equal(table.logits, before)


def test_imitation_lowers_the_loss_of_a_real_model_and_a_seed_repeats_it():
    demonstrations = demonstrate(Desk())
    settings = SFTSettings(batch=3, epochs=25, optimizer=OptimizerSettings(lr=1e-2))
    curves = []
    for _ in range(2):
        model = build_small(SMALL, TOKENIZER, seed=0)
        curves.append(
            [metrics["sft/loss"] for metrics in run_sft(LearnerGroup(model=model), demonstrations, settings, seed=4)]
        )
    losses = curves[0]
    assert len(losses) == 25
    assert losses[0] == pytest.approx(math.log(len(TOKENIZER)), abs=0.7), "an untrained model knows nothing"
    assert losses[-1] < 0.3 * losses[0]
    assert curves[1] == losses


@pytest.mark.parametrize(
    ("demonstrations", "batch", "epochs", "steps"), [(8, 4, 1, 2), (9, 4, 1, 3), (10, 4, 3, 8), (1, 16, 1, 1)]
)
def test_steps_cover_every_demonstration(demonstrations, batch, epochs, steps):
    settings = SFTSettings(batch=batch, epochs=epochs)
    assert count_sft_steps(demonstrations, settings) == steps
    given = [by_hand(((1,), (2,)))] * demonstrations
    assert len(list(run_sft(LearnerGroup(model=Table(2)), given, settings, seed=0))) == steps


def test_launching_a_step_before_the_last_one_is_read_changes_no_figure(monkeypatch):
    demonstrations = demonstrate(Desk())
    settings = SFTSettings(batch=2, epochs=3, optimizer=OptimizerSettings(lr=1e-2))
    curves = []
    for ahead in (0, 1):
        monkeypatch.setattr("turnwise.learner.sft._steps_ahead", lambda device, ahead=ahead: ahead)
        model = build_small(SMALL, TOKENIZER, seed=0)
        curves.append(list(run_sft(LearnerGroup(model=model), demonstrations, settings, seed=4)))
    assert len(curves[0]) == count_sft_steps(len(demonstrations), settings)
    assert curves[0] == curves[1]


def test_packed_rows_train_as_padded_rows_do(monkeypatch):
    demonstrations = demonstrate(Desk())
    settings = SFTSettings(batch=len(demonstrations), optimizer=OptimizerSettings(lr=1e-2))
    found = []
    for packing in (Packing.PADDED, Packing.BY_ROWS):
        monkeypatch.setattr("turnwise.learner.sft.choose_packing", lambda *_, packing=packing, **__: packing)
        model = build_small(SMALL, TOKENIZER, seed=0)
        [metrics] = run_sft(LearnerGroup(model=model), demonstrations, settings, seed=4)
        found.append((metrics, torch.cat([weight.detach().flatten() for weight in model.parameters()])))
    assert choose_packing(model, torch.device("cpu"), asked=None) is Packing.BY_ROWS
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-4)
