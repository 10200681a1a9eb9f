"""Training steps of TRL's GRPOTrainer on the questions, with the search tool, of a recipe of turnwise's.

`turnwise bench speed --recipe RECIPE --peer PYTHON` starts it: weights, questions, limits and temperature are options,
which are read from the run that it stands beside. Prompts, searches and rewards are turnwise's own environment and
renderer, so that the episodes are the same; sampling and update are TRL's, in bfloat16, by transformers' `generate`.
The last line is JSON: the seconds of every step after the warm-up, and how much was sampled and searched in it.

It needs trl, accelerate, datasets and what turnwise needs; turnwise itself is taken from PYTHONPATH.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from trl_clock import StepClock

from turnwise.envs.qa.env import SearchQA
from turnwise.render import make_render, parse_text
from turnwise.types import Message, Task, ToolCall

TEMPLATE = """{% for message in messages %}<|im_start|>{% if message.role == 'tool' %}user
<tool_response>
{{ message.content }}
</tool_response>{% else %}{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""What turnwise writes for models of ChatML; schemas of tools stand in the system message."""


class SearchTool:
    """One episode as TRL plays it: its public method is the tool; turnwise's environment answers and pays."""

    env: ClassVar[SearchQA]
    tasks: ClassVar[Mapping[str, Task]]
    searches: ClassVar[int] = 0
    """Of all episodes so far."""

    def reset(self, *, task: str, **columns: object) -> str | None:
        self._episode, self._reward, self._done = self.env.spawn(), 0.0, False
        asyncio.run(self._episode.reset(self.tasks[task], 0))
        return None

    def search(self, query: str) -> str:
        """
        Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.

        Returns:
            The passages.
        """
        SearchTool.searches += 1
        arguments = json.dumps({"query": query}, ensure_ascii=False)
        return self._play("", ToolCall(id="", name="search", arguments=arguments))

    def _play(self, content: str, *calls: ToolCall) -> str:
        step = asyncio.run(self._episode.step(Message(role="assistant", content=content, tool_calls=calls)))
        self._reward, self._done = self._reward + sum(step.rewards.values()), step.done
        return step.messages[0].content if step.messages else ""

    def _score(self, answer: str) -> float:
        if not self._done:
            self._play(answer)
        return self._reward


def score(completions: list[list[dict[str, object]]], environments: list[SearchTool], **columns: object) -> list[float]:
    """What the environment paid for the searches and for the last message."""
    answers = [str(turns[-1].get("content") or "") if turns else "" for turns in completions]
    return [episode._score(answer) for answer, episode in zip(answers, environments, strict=True)]


def read_call(tokenizer: PreTrainedTokenizerBase, ids: list[int], **context: object) -> dict[str, object]:
    """Stands in for TRL's parser, which reads no calls of this template: turnwise's own."""
    message = parse_text(tokenizer.decode(ids, skip_special_tokens=True))
    calls = []
    for call in message.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            continue
        if isinstance(arguments, dict):
            calls.append({"type": "function", "function": {"name": call.name, "arguments": arguments}})
    return {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}


class Counts:
    """What the rollouts of every step held."""

    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.read: list[int] = []
        self.searches: list[int] = []

    def add(self, batch: Mapping[str, torch.Tensor]) -> None:
        self.sampled.append(int((batch["completion_mask"] * batch.get("tool_mask", 1)).sum()))
        self.read.append(int(batch["prompt_mask"].sum() + batch["completion_mask"].sum()))
        self.searches.append(SearchTool.searches - sum(self.searches))
        sys.stderr.write(f"step {len(self.read)}: {self.sampled[-1]} tokens, {self.searches[-1]} searches\n")


def main() -> None:
    options = read_options()
    env = SearchQA(**json.loads(options.env))
    by_id = {task.id: task for task in env.tasks("train")}
    tasks = [by_id[name] for name in json.loads(options.tasks.read_text(encoding="utf-8"))]
    SearchTool.env, SearchTool.tasks = env, by_id
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    prompts = write_prompts(tokenizer, env, tasks)
    tokenizer.response_schema = {}
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    grpo_trainer.parse_response = read_call
    longest = max(
        len(tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)) for one in prompts
    )
    clock, counts = StepClock(), Counts()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16),
            args=make_config(options, folder, completion=options.context_tokens - longest),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(
                [{"prompt": prompt, "task": task.id} for prompt, task in zip(prompts, tasks, strict=True)]
            ),
            reward_funcs=[score],
            environment_factory=SearchTool,
            callbacks=[clock],
        )
        clock.time_rollouts(trainer, counts.add)
        trainer.train()
    sys.stdout.write(f"{json.dumps(summarise(options, clock, counts))}\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with weights and tokenizer")
    parser.add_argument("--env", required=True, help="the recipe's env.args, as JSON")
    parser.add_argument("--tasks", required=True, type=Path, help="the ids of the questions, in order, as JSON")
    parser.add_argument("--prompts", required=True, type=int, help="questions of a step")
    parser.add_argument("--generations", required=True, type=int, help="episodes of a question")
    for name in ("turns", "turn-tokens", "context-tokens", "top-k"):
        parser.add_argument(f"--{name}", required=True, type=int)
    for name in ("temperature", "top-p", "learning-rate", "clip-low", "clip-high", "kl"):
        parser.add_argument(f"--{name}", required=True, type=float)
    parser.add_argument("--device", required=True, choices=["cpu", "cuda"])
    parser.add_argument("--microbatch", type=int, default=32, help="episodes that the update reads at once")
    parser.add_argument("--warmup", required=True, type=int, help="steps before those that count")
    parser.add_argument("--steps", required=True, type=int, help="steps that count")
    parser.add_argument("--seed", required=True, type=int)
    return parser.parse_args()


def write_prompts(
    tokenizer: PreTrainedTokenizerBase, env: SearchQA, tasks: Sequence[Task]
) -> list[list[dict[str, str]]]:
    """The messages that open each episode, and the template under which they are, to the letter, what turnwise asks."""
    render = make_render(tokenizer)
    openings = [asyncio.run(env.spawn().reset(task, 0)) for task in tasks]
    texts = [render.decode(render.start(opening, env.tools)) for opening in openings]
    tokenizer.chat_template = TEMPLATE
    prompts = []
    for opening, text in zip(openings, texts, strict=True):
        system = text.removeprefix("<|im_start|>system\n").split("<|im_end|>")[0]
        prompts.append([{"role": "system", "content": system}, {"role": "user", "content": opening[-1].content}])
        written = tokenizer.apply_chat_template(prompts[-1], tokenize=False, add_generation_prompt=True)
        if written != text:
            sys.exit("the prompts of this model are not ChatML with a system message, which is all that is known here")
    return prompts


def make_config(options: argparse.Namespace, folder: str, *, completion: int) -> GRPOConfig:
    episodes = options.prompts * options.generations
    return GRPOConfig(
        output_dir=folder,
        use_cpu=options.device == "cpu",
        bf16=options.device == "cuda",
        seed=options.seed,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        shuffle_dataset=False,
        max_steps=options.warmup + options.steps,
        per_device_train_batch_size=min(options.microbatch, episodes),
        gradient_accumulation_steps=max(1, episodes // options.microbatch),
        gradient_checkpointing=False,
        num_generations=options.generations,
        num_iterations=1,
        beta=options.kl,
        epsilon=options.clip_low,
        epsilon_high=options.clip_high,
        learning_rate=options.learning_rate,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_completion_length=completion,
        max_tool_calling_iterations=options.turns - 1,
        generation_kwargs={"max_new_tokens": options.turn_tokens},
    )


def summarise(options: argparse.Namespace, clock: StepClock, counts: Counts) -> dict[str, object]:
    first = max(options.warmup, 1)
    return {
        "episodes": options.prompts * options.generations,
        **clock.summarise(first),
        "sampled_tokens": counts.sampled[first:],
        "tokens": counts.read[first:],
        "searches": counts.searches[first:],
        "versions": ", ".join(f"{package.__name__} {package.__version__}" for package in (trl, transformers, torch)),
    }


if __name__ == "__main__":
    main()
