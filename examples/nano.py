"""Multi-turn GRPO, all of it, in one file: a small transformer learns to look things up more than once.

    an expert's chats -> tokenizer -> cold start -> groups of episodes -> advantages -> clipped loss -> and again

The idea to follow from top to bottom: what the agent read and what it sampled are two lists from the very first
(`Turn`), sampled ids are never tokenised again, and they alone carry credit and loss. Nothing of turnwise is used but
the environment; tests/test_nano.py holds the loss and its gradients against those of the package. In three minutes of
one CPU core, exact match on 256 held-out questions goes from 0.000 before RL to 0.945 (seed 0) and 0.996 (seed 1).

Shapes: B episodes side by side, W tokens of the longest, V vocabulary, H width, M tokens under a loss, G groups of K.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import OneCycleLR
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from turnwise.envs.base import Env
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.types import Message, Task, ToolCall


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything there is to tune."""

    lazy: float = 0.6  # the share of demonstrations that stop after the first look-up, and so answer wrongly
    demonstrations: int = 12_000
    width: int = 128  # a head for every 32
    cold_batch: int = 8
    cold_lr: float = 2e-3
    context_weight: float = 0.3  # a model that never saw text learns to copy sooner when it also predicts what it reads
    steps: int = 8
    groups: int = 32
    members: int = 8  # episodes per group: the same question, another episode seed
    turn_tokens: int = 64
    minibatch: int = 128  # episodes per optimizer step
    lr: float = 3e-4
    clip: float = 0.2
    questions: int = 256  # held out, for evaluation
    seed: int = 0


@dataclass(kw_only=True)
class Turn:
    """One move of the agent: the ids it read since its last move, those it sampled, and how likely each one was."""

    context: list[int]
    action: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Episode:
    """Its turns, and all that was paid: here 1 for the right answer and 0 for any other."""

    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0


class Chat:
    """Messages to ids and back: `<user>Who wrote ...?<end><assistant>` is read, `<think>...<end>` is sampled."""

    MARKS = ("<end>", "<system>", "<user>", "<assistant>", "<tool>")
    TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>")

    def __init__(self, messages: Iterable[Message]) -> None:
        """Learns a byte-level BPE from what was said; each mark and tag is one token."""
        texts = (text for message in messages for text in re.split(r"</?\w+>", self.write(message)))
        self.tokenizer = ByteLevelBPETokenizer(add_prefix_space=True)
        self.tokenizer.train_from_iterator(texts, 2048, special_tokens=[*self.MARKS, *self.TAGS], show_progress=False)
        self.end = self.tokenizer.token_to_id("<end>")

    def write(self, message: Message) -> str:
        thinking = f"<think>{message.thinking}</think>" if message.thinking else ""
        calls = (f"<search>{json.loads(call.arguments)['query']}</search>" for call in message.tool_calls)
        return thinking + message.content + "".join(calls)

    def context(self, messages: Iterable[Message], after: Sequence[int] = ()) -> list[int]:
        """What the agent reads next, its own header last. An end that it failed to sample is context too."""
        forced = "<end>" if after and after[-1] != self.end else ""
        text = "".join(f"<{message.role}>{self.write(message)}<end>" for message in messages)
        return self.tokenizer.encode(f"{forced}{text}<assistant>").ids

    def action(self, message: Message) -> list[int]:
        """The ids an agent would have sampled to say this."""
        return self.tokenizer.encode(f"{self.write(message)}<end>").ids

    def parse(self, action: Sequence[int]) -> Message:
        """The agent's move as the environment reads it: one search, or else the final answer."""
        text = self.tokenizer.decode(action, skip_special_tokens=False).removesuffix("<end>")
        queries = re.findall(r"<search>(.*?)</search>", text, re.DOTALL)[:1]
        calls = [ToolCall(id="call", name="search", arguments=json.dumps({"query": q.strip()})) for q in queries]
        return Message(role="assistant", content=text, tool_calls=tuple(calls))


@torch.no_grad()
def make_model(recipe: Recipe, vocabulary: int) -> LlamaForCausalLM:
    """A Llama that can copy from the start: planted in its first two layers is what every pretrained model has.

    "Ada Holm ... Ada" makes an induction circuit expect "Holm". One head looks a token back, by position alone, and
    notes a sketch of what it sees; the other seeks the note that is like the present token, and copies what it is at.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.width,
        intermediate_size=3 * recipe.width,
        num_hidden_layers=2,
        num_attention_heads=recipe.width // 32,
        attention_bias=True,
        tie_word_embeddings=True,
        initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )
    model = LlamaForCausalLM(config)
    frequency = model.model.rotary_emb.inv_freq  # [D / 2] radians per token of a head's dimensions (i, i + D / 2)
    fast = (frequency > 0.01).float()  # [D / 2]: these tell positions apart; the n others hardly turn, and hold content
    still = torch.cat([fast, fast]).eq(0).nonzero()[:, 0]  # [n]
    size, n = 2 * len(fast), len(still)
    basis, note = (torch.linalg.qr(torch.randn(recipe.width, k)).Q for k in (recipe.width, n))  # [H, H], [H, n]
    sketch, copied = basis[:n], basis[-size:]  # [n, H], [D, H]
    one, two = (layer.self_attn for layer in model.model.layers[:2])
    for layer in model.model.layers:  # what is written to the residual stream begins small, as in GPT-2
        layer.self_attn.o_proj.weight /= 2
        layer.mlp.down_proj.weight /= 2
    for projection in (one.q_proj, one.k_proj, one.v_proj, two.q_proj, two.k_proj):  # turned down
        projection.weight[:size] *= 0.1
    one.q_proj.bias[:size] = 6 * torch.cat([fast, 0 * fast])
    one.k_proj.bias[:size] = 6 * torch.cat([fast * frequency.cos(), fast * frequency.sin()])
    one.v_proj.weight[:n], one.o_proj.weight[:, :n] = sketch, 0.05 * note
    two.q_proj.weight[still] += 2 * sketch
    two.k_proj.weight[still] += 2 * note.T
    two.v_proj.weight[:size], two.o_proj.weight[:, :size] = copied, 0.2 * copied.T
    return model


class Sampler:
    """Speaks for B conversations in lock-step; every token goes through the model once, however many turns follow.

    The KV cache lives as long as the episodes. Where one row reads or says less than another it is padded, and `real`
    remembers that: attention passes over padding, and positions do not count it.
    """

    def __init__(self, model: LlamaForCausalLM, rows: int, *, end: int, turn_tokens: int, greedy: bool) -> None:
        self.model, self.end, self.turn_tokens, self.greedy = model, end, turn_tokens, greedy
        self.cache = DynamicCache(config=model.config)
        self.real = torch.zeros(rows, 0, dtype=torch.bool)  # [B, tokens so far]
        self.unread: list[list[int]] = [[]] * rows  # the last token of a turn was sampled, but not yet fed

    @torch.no_grad()
    def speak(self, contexts: Sequence[list[int]]) -> list[Turn]:
        """One turn of each conversation, given what is new in it; nothing new means it is over."""
        turns = [Turn(context=context) for context in contexts]
        blocks = [last + context if context else [] for last, context in zip(self.unread, contexts, strict=True)]
        while any(blocks):
            logprobs = self._read(blocks).log_softmax(-1)  # [B, V]
            token = logprobs.argmax(-1, keepdim=True) if self.greedy else logprobs.exp().multinomial(1)  # [B, 1]
            logprob = logprobs.gather(1, token)  # [B, 1]
            for row, turn in enumerate(turns):
                if blocks[row]:
                    turn.action.append(token[row].item())
                    turn.logprobs.append(logprob[row].item())
                    ended = turn.action[-1] == self.end or len(turn.action) == self.turn_tokens
                    blocks[row] = [] if ended else turn.action[-1:]
        self.unread = [turn.action[-1:] for turn in turns]
        return turns

    def _read(self, blocks: Sequence[list[int]]) -> Tensor:
        """Feeds every row its own new tokens; gives the logits [B, V] of what comes next."""
        ids = pad_sequence([torch.tensor(b, dtype=torch.long) for b in blocks], True, -1, padding_side="left")  # [B, w]
        self.real = torch.cat([self.real, ids >= 0], 1)  # [B, so far + w]
        position = (self.real.cumsum(1) - 1)[:, -ids.shape[1] :].clamp(min=0)  # [B, w]
        past = {"attention_mask": self.real.long(), "position_ids": position, "past_key_values": self.cache}
        return self.model(input_ids=ids.clamp(min=0), logits_to_keep=1, **past).logits[:, -1]


async def play(env: Env, tasks: Sequence[Task], chat: Chat, sampler: Sampler, rng: random.Random) -> list[Episode]:
    """One episode per task, all side by side, until the environment has ended every one."""
    worlds, episodes = [env.spawn() for _ in tasks], [Episode() for _ in tasks]
    contexts = [chat.context(await w.reset(task, rng.getrandbits(62))) for w, task in zip(worlds, tasks, strict=True)]
    while any(contexts):
        for i, turn in enumerate(sampler.speak(contexts)):
            if turn.action:
                step = await worlds[i].step(chat.parse(turn.action))
                episodes[i].turns.append(turn)
                episodes[i].reward += sum(step.rewards.values())
                contexts[i] = [] if step.done else chat.context(step.messages, after=turn.action)
    return episodes


async def watch_expert(env: Env, task: Task, episode_seed: int) -> list[tuple[Sequence[Message], Message]]:
    """A conversation in which the environment's expert plays the agent, as pairs of what it read and what it said."""
    pairs, messages, done = [], await env.reset(task, episode_seed), False
    while not done:
        pairs.append((messages, env.expert()))
        step = await env.step(pairs[-1][1])
        messages, done = step.messages, step.done
    return pairs


def lay_out(episodes: Sequence[Episode]) -> tuple[Tensor, Tensor]:
    """Each episode as one row: its ids, padded with −1, and which of them the agent sampled; both [B, W]."""
    ids = [[i for turn in e.turns for i in turn.context + turn.action] for e in episodes]
    sampled = [[s for t in e.turns for s in [False] * len(t.context) + [True] * len(t.action)] for e in episodes]
    return pad_sequence([*map(torch.tensor, ids)], True, -1), pad_sequence([*map(torch.tensor, sampled)], True, False)


def score(model: LlamaForCausalLM, ids: Tensor, chosen: Tensor) -> Tensor:
    """The logprobs [M] of chosen tokens [B, W], each predicted from the state before it."""
    # Padding needs no mask here: it stands on the right, and attention looks to the left.
    hidden = model.model(input_ids=ids.clamp(min=0), use_cache=False).last_hidden_state  # [B, W, H]
    logits = model.lm_head(hidden[:, :-1][chosen[:, 1:]])  # [M, V]
    return -torch.nn.functional.cross_entropy(logits, ids[chosen], reduction="none")


def sft_loss(model: LlamaForCausalLM, episodes: Sequence[Episode], context_weight: float) -> Tensor:
    ids, sampled = lay_out(episodes)  # [B, W]
    after_prompt = (sampled.cumsum(1) > 0) & (ids >= 0)  # [B, W]
    weight = torch.where(sampled, 1.0, context_weight)[after_prompt]  # [M]
    return -(weight * score(model, ids, after_prompt)).sum() / weight.sum()


def group_advantages(rewards: Tensor) -> Tensor:
    """A = (R − mean) / std within each group, [G, K] to [G, K]; a group whose members are equal teaches nothing."""
    deviation, std = rewards - rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    return torch.where(std > 1e-6, deviation / std, 0.0)


def grpo_loss(model: LlamaForCausalLM, episodes: Sequence[Episode], advantages: Tensor, clip: float) -> Tensor:
    """PPO's clipped surrogate, averaged over all that was sampled; every token has its episode's advantage [B]."""
    ids, sampled = lay_out(episodes)  # [B, W]
    old = torch.tensor([p for episode in episodes for turn in episode.turns for p in turn.logprobs])  # [M]
    ratio = (score(model, ids, sampled) - old).exp()  # [M]
    advantage = advantages[:, None].expand(ids.shape)[sampled]  # [M]
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def descend(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def sft(model: LlamaForCausalLM, demonstrations: Sequence[Episode], recipe: Recipe) -> None:
    """Imitation, once through: the model learns to read, to search and to answer, and mostly to stop too early."""
    batches = torch.randperm(len(demonstrations)).split(recipe.cold_batch)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    rate = OneCycleLR(optimizer, recipe.cold_lr, len(batches), pct_start=0.03, cycle_momentum=False)
    for number, batch in enumerate(batches, 1):
        loss = sft_loss(model, [demonstrations[i] for i in batch], recipe.context_weight)
        descend(model, optimizer, loss)
        rate.step()
        if number % 100 == 0:
            print(f"cold start {number}/{len(batches)}: loss {loss.item():.3f}", flush=True)


async def main(recipe: Recipe) -> None:
    torch.manual_seed(recipe.seed)
    rng, began = random.Random(recipe.seed), time.monotonic()
    env = Encyclopedia(hops=[2], passages=1, lazy=recipe.lazy)  # easier than the package's recipe, which shows two
    train, test = env.tasks("train"), env.tasks("test")[: recipe.questions]
    chats = [await watch_expert(env, task, rng.getrandbits(62)) for task in rng.sample(train, recipe.demonstrations)]
    chat = Chat(message for pairs in chats[:400] for read, said in pairs for message in (*read, said))
    model = make_model(recipe, chat.tokenizer.get_vocab_size())
    shown = [[Turn(context=chat.context(read), action=chat.action(said)) for read, said in pairs] for pairs in chats]
    sft(model, [Episode(turns=turns) for turns in shown], recipe)

    async def sample(tasks: Sequence[Task], what: str, greedy: bool = False) -> list[Episode]:
        sampler = Sampler(model, len(tasks), end=chat.end, turn_tokens=recipe.turn_tokens, greedy=greedy)
        episodes = await play(env, tasks, chat, sampler, rng)
        right = sum(episode.reward for episode in episodes) / len(episodes)
        turns = sum(len(episode.turns) for episode in episodes) / len(episodes)
        print(f"{what}: exact match {right:.3f}, {turns:.2f} turns, {time.monotonic() - began:.0f} s", flush=True)
        return episodes

    await sample(test, "before RL, on held-out questions", greedy=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    for step in range(1, recipe.steps + 1):
        tasks = [task for task in rng.sample(train, recipe.groups) for _ in range(recipe.members)]
        episodes = await sample(tasks, f"step {step}/{recipe.steps}")
        rewards = torch.tensor([episode.reward for episode in episodes]).view(recipe.groups, recipe.members)  # [G, K]
        advantages = group_advantages(rewards).flatten()  # [G · K]
        for part in torch.randperm(len(episodes)).split(recipe.minibatch):
            descend(model, optimizer, grpo_loss(model, [episodes[i] for i in part], advantages[part], recipe.clip))
    await sample(test, "after RL, on held-out questions", greedy=True)


if __name__ == "__main__":
    asyncio.run(main(Recipe()))
