"""`examples/nano.py` is short, stands alone, and computes what the package computes on the same rollouts."""

import ast
import asyncio
import copy
import importlib.util
import random
import re
import sys
from pathlib import Path

import pytest
import torch

from turnwise.credit.estimate import CreditSettings
from turnwise.envs.base import Env
from turnwise.learner.batch import Batch
from turnwise.learner.learner import Learner
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.types import Finish, Group, Message, Step, StopReason, Task, Trajectory, Turn

FILE = Path(__file__).parents[2] / "examples" / "nano.py"
GROUPS, MEMBERS, TURN_TOKENS = 4, 4, 6


def _load():
    spec = importlib.util.spec_from_file_location("nano", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["nano"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


nano = _load()


class Chatter(Env):
    """Asks for words for one to three turns, answers at unequal length, and pays by the length of what was said."""

    def tasks(self, split):
        return [Task(id=str(place)) for place in range(GROUPS)]

    async def reset(self, task, episode_seed):
        self._episode_seed = random.Random(episode_seed)
        self._left = self._episode_seed.randint(1, 3)
        return [Message(role="user", content=f"speak {' again' * int(task.id)}")]

    async def step(self, message):
        self._left -= 1
        words = " ".join(self._episode_seed.choices(["more", "of", "that"], k=self._episode_seed.randint(1, 5)))
        paid = {"words": len(message.content) % 4 / 3}
        return Step(messages=(Message(role="tool", content=words),), rewards=paid, done=self._left == 0)

    def expert(self):
        return Message(
            role="assistant",
            content=" ".join(self._episode_seed.choices(["yes", "no"], k=self._episode_seed.randint(1, 9))),
        )


@pytest.fixture(scope="module")
def played():
    """A chat, a model that has learnt to end some of its turns in time, and groups of episodes it has played."""
    torch.manual_seed(3)
    env = Chatter()
    tasks = env.tasks("train")
    pairs = [asyncio.run(nano.watch_expert(env, tasks[n % GROUPS], n)) for n in range(64)]
    chat = nano.Chat(message for read_said in pairs for read, said in read_said for message in (*read, said))
    recipe = nano.Recipe(width=64, cold_batch=8, cold_lr=1e-2)
    model = nano.make_model(recipe, chat.tokenizer.get_vocab_size())
    shown = [
        nano.Episode(turns=[nano.Turn(context=chat.context(read), action=chat.action(said)) for read, said in one])
        for one in pairs
    ]
    untaught = nano.sft_loss(model, shown, 0.3).item()
    nano.sft(model, shown * 4, recipe)
    assert nano.sft_loss(model, shown, 0.3).item() < untaught / 2
    model.double()
    asked = [task for task in tasks for _ in range(MEMBERS)]
    sampler = nano.Sampler(model, len(asked), end=chat.end, turn_tokens=TURN_TOKENS, greedy=False)
    episodes = asyncio.run(nano.play(env, asked, chat, sampler, random.Random(5)))
    return chat, model, episodes


def _cut(turn, chat):
    return turn.action[-1] != chat.end


def _as_groups(episodes, chat):
    """The same rollouts in the package's words; what nano sums up is paid at the end."""

    def convert(episode):
        turns = [
            Turn(
                context_ids=tuple(turn.context),
                action_ids=tuple(turn.action),
                logprobs=tuple(turn.logprobs),
                rewards={"all": episode.reward} if turn is episode.turns[-1] else {},
                opens_row=turn is episode.turns[0],
                finish=Finish.LENGTH if _cut(turn, chat) else Finish.STOP,
            )
            for turn in episode.turns
        ]
        return Trajectory(task=Task(id="x"), turns=tuple(turns), stop=StopReason.DONE)

    trajectories = [convert(episode) for episode in episodes]
    return [
        Group(task=Task(id="x"), trajectories=tuple(trajectories[start : start + MEMBERS]))
        for start in range(0, len(trajectories), MEMBERS)
    ]


def _learn_by_the_package(model, groups):
    """Loss, gradients by name and metrics of one update, taken where the package would make its step."""
    learner = Learner(
        model,
        settings=LearnerSettings(tokens_per_microbatch=100),
        credit=CreditSettings(estimator="grpo"),
        loss=LossSettings(clip_low=0.2, clip_high=0.2, dual_clip=None, aggregation="token"),
        temperature=1.0,
        total_steps=1,
        device=torch.device("cpu"),
    )
    gradients = {}
    make_step = learner.optimizer.launch

    def keep_gradients(step):
        gradients.update({name: weight.grad.clone() for name, weight in model.named_parameters()})
        return make_step(step)

    learner.optimizer.launch = keep_gradients
    metrics = learner.update(groups, seed=0).metrics
    return metrics["policy/loss"], gradients, metrics


def _learn_by_nano(model, episodes):
    rewards = torch.tensor([episode.reward for episode in episodes]).view(GROUPS, MEMBERS)
    model.zero_grad()
    loss = nano.grpo_loss(model, episodes, nano.group_advantages(rewards).flatten(), 0.2)
    loss.backward()
    return loss.item(), {name: weight.grad for name, weight in model.named_parameters()}


def test_is_short_and_stands_alone():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 300
    borrowed = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != "turnwise" for alias in node.names)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "turnwise":
            borrowed |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert borrowed == {
        "turnwise.envs.base.Env",
        "turnwise.envs.encyclopedia.env.Encyclopedia",
        "turnwise.types.Message",
        "turnwise.types.Task",
        "turnwise.types.ToolCall",
    }


def test_the_rollouts_are_as_various_as_the_comparison_needs(played):
    chat, _, episodes = played
    turns = [turn for episode in episodes for turn in episode.turns]
    assert {len(episode.turns) for episode in episodes} == {1, 2, 3}
    assert len({len(turn.action) for turn in turns}) > 2
    assert 0 < sum(_cut(turn, chat) for turn in turns) < len(turns)
    assert all(len(turn.action) == TURN_TOKENS for turn in turns if _cut(turn, chat))
    assert len({episode.reward for episode in episodes}) > 3


def test_an_end_that_was_not_sampled_is_read_and_no_id_is_lost(played):
    chat, _, episodes = played
    seen = set()
    for episode in episodes:
        for before, turn in zip(episode.turns, episode.turns[1:], strict=False):
            seen.add(_cut(before, chat))
            assert (turn.context[0] == chat.end) == _cut(before, chat)
            read = chat.tokenizer.decode(turn.context, skip_special_tokens=False)
            assert re.fullmatch(r"(<end>)?<tool> (more|of|that| )+<end><assistant>", read)
    assert seen == {True, False}
    batch = Batch.of(_as_groups(episodes, chat))
    ids, sampled = nano.lay_out(episodes)
    assert ids[ids >= 0].tolist() == batch.ids.tolist()
    assert sampled[ids >= 0].tolist() == batch.action.tolist()


def test_the_sampler_says_what_the_learner_finds(played):
    """Whatever was padded in the cache beside it, a token was as likely as in a pass over its own row alone."""
    _, model, episodes = played
    for episode in episodes:
        ids, sampled = nano.lay_out([episode])
        said = [p for turn in episode.turns for p in turn.logprobs]
        assert nano.score(model, ids, sampled).tolist() == pytest.approx(said, abs=1e-12)


def test_greedy_takes_the_likeliest(played):
    chat, model, _ = played
    sampler = nano.Sampler(model, 2, end=chat.end, turn_tokens=TURN_TOKENS, greedy=True)
    openings = [chat.context([Message(role="user", content=f"speak{more}")]) for more in ("", " again again")]
    for turn in sampler.speak(openings):
        ids, _ = nano.lay_out([nano.Episode(turns=[turn])])
        likeliest = model(ids).logits[0].argmax(-1).tolist()
        assert turn.action == likeliest[len(turn.context) - 1 : -1]


@pytest.mark.parametrize("moved", [0.0, 0.03])
def test_loss_and_gradients_are_the_packages(played, moved):
    chat, model, episodes = played
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += moved * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    loss, gradients = _learn_by_nano(copy.deepcopy(model), episodes)
    expected_loss, expected, metrics = _learn_by_the_package(model, _as_groups(episodes, chat))
    if moved:
        assert 0.1 < metrics["policy/clip_fraction"] < 0.9
        assert metrics["policy/sampler_gap"] > 0.1
    else:
        assert metrics["policy/clip_fraction"] == 0
        assert metrics["policy/sampler_gap_max"] < 1e-6
    assert loss == pytest.approx(expected_loss, rel=1e-6, abs=1e-7)
    assert gradients.keys() == expected.keys()
    length = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert length > 0.01
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() < 1e-6 * length, name


def test_advantages_by_hand():
    """Mean ¼ and sample deviation ½; then a group in which nobody differs."""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1]])
    assert nano.group_advantages(rewards).tolist() == [pytest.approx([1.5, -0.5, -0.5, -0.5]), [0, 0, 0, 0]]


def test_a_search_becomes_a_call_and_all_else_the_answer():
    chat = nano.Chat([Message(role="assistant", content="author of The Red Door Ada Holm")])
    call = chat.parse(chat.tokenizer.encode("<think>Look.</think><search>author of The Red Door</search><end>").ids)
    assert [(one.name, one.arguments) for one in call.tool_calls] == [("search", '{"query": "author of The Red Door"}')]
    cut = chat.parse(chat.tokenizer.encode("<think>Look.</think><search>author of").ids)
    assert not cut.tool_calls
    answer = chat.parse(chat.tokenizer.encode("<answer>Ada Holm</answer><end>").ids)
    assert not answer.tool_calls
    assert re.sub(" ", "", answer.content) == "<answer>AdaHolm</answer>"


def test_runs_from_the_first_demonstration_to_the_last_evaluation(capsys):
    tiny = nano.Recipe(
        width=64, demonstrations=16, steps=1, groups=2, members=2, minibatch=2, turn_tokens=8, questions=3
    )
    asyncio.run(nano.main(tiny))
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in said] == ["before RL", "step 1/1", "after RL"]
    assert all(re.search(r"exact match [01]\.\d{3}, [1-4]\.\d\d turns", line) for line in said)
