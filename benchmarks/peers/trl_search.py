"""Training steps of TRL's GRPOTrainer on multi-hop questions with a search tool, on one GPU.

python trl_search.py --model CHECKPOINT --questions rl.jsonl.gz --corpus corpus.jsonl.gz --cache INDEX

It asks what `gpu-multihop-smollm2` asks: the same weights, prompt text, BM25 index, passages, limits of turns and
tokens, temperature and number of episodes; so `benchmarks.real curve` of that recipe is the same work. TRL samples by
transformers' `generate` in bfloat16. The last line is JSON: the seconds of every step after the warm-up, and how many
tokens were sampled. It needs trl, accelerate and datasets beside turnwise, whose search and rewards it uses.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from turnwise.envs.qa.env import SearchQA
from turnwise.render import make_render, parse_text
from turnwise.rewards import exact_match, final_answer
from turnwise.tools.search import Searcher, open_index
from turnwise.types import Json, Task

TEMPLATE = """{% for message in messages %}<|im_start|>{% if message.role == 'tool' %}user
<tool_response>
{{ message.content }}
</tool_response>{% else %}{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""What turnwise writes for SmolLM2, whose own template knows no tools: schemas stand in the system message."""


class SearchTool:
    """One episode as TRL plays it: `search` is the tool; exact match and found passages are the reward."""

    searcher: ClassVar[Searcher]
    chars: ClassVar[int]

    def reset(self, *, answers: str, gold: str, **columns: object) -> str | None:
        self.answers, self.gold, self.found = json.loads(answers), set(json.loads(gold)), set[str]()
        return None

    def search(self, query: str) -> str:
        """
        Finds the passages that match a query best.

        Args:
            query: What to look for: names and key words.

        Returns:
            The passages.
        """
        hits = self.searcher.find_now(query)
        self.found |= {hit.passage.id for hit in hits} & self.gold
        shown = [f"{hit.passage.title}: {hit.passage.text[: self.chars]}" for hit in hits]
        return "\n".join(f"[{rank}] {text}" for rank, text in enumerate(shown, 1))


def score(completions: list[list[dict[str, object]]], environments: list[SearchTool], **columns: object) -> list[float]:
    """Exact match of the last message, and a tenth for each supporting passage that was found."""
    answers = [str(turns[-1].get("content") or "") if turns else "" for turns in completions]
    return [
        float(exact_match(final_answer(answer), env.answers)) + 0.1 * len(env.found)
        for answer, env in zip(answers, environments, strict=True)
    ]


class Clock(TrainerCallback):
    """When every step ended, how long its rollouts took, and what they held."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.rollouts: list[float] = []
        self.sampled: list[int] = []
        self.read: list[int] = []
        self.rewards: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.ends.append(_now())

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **kwargs: object) -> None:
        self.rewards.append(logs.get("reward", float("nan")))
        sys.stderr.write(f"{json.dumps({k: v for k, v in logs.items() if 'tool' in k or k == 'reward'})}\n")

    def time_rollouts(self, trainer: GRPOTrainer) -> None:
        sample = trainer._generate_and_score_completions

        def timed(inputs: object) -> dict[str, torch.Tensor]:
            began = _now()
            batch = sample(inputs)
            self.rollouts.append(_now() - began)
            self.sampled.append(int((batch["completion_mask"] * batch.get("tool_mask", 1)).sum()))
            self.read.append(int(batch["prompt_mask"].sum() + batch["completion_mask"].sum()))
            return batch

        trainer._generate_and_score_completions = timed


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


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


def main() -> None:
    options = read_options()
    random.seed(options.seed)
    SearchTool.searcher = Searcher(open_index(options.corpus, cache=options.cache), options.passages)
    SearchTool.chars = options.passage_chars
    env = SearchQA(questions={"train": options.questions}, corpus=options.corpus, cache=options.cache)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    system = write_system(tokenizer, env)
    tokenizer.chat_template, tokenizer.response_schema = TEMPLATE, {}
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    grpo_trainer.parse_response = read_call
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    clock = Clock()
    wait_for(options.wait_for)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            args=make_config(options, folder),
            processing_class=tokenizer,
            train_dataset=make_dataset(system, env.tasks("train"), options),
            reward_funcs=[score],
            environment_factory=SearchTool,
            callbacks=[clock],
        )
        clock.time_rollouts(trainer)
        trainer.train()
    sys.stdout.write(f"{json.dumps(summarise(options, clock))}\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with weights and tokenizer")
    parser.add_argument("--questions", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--cache", default="auto")
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--passage-chars", type=int, default=600)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--turn-tokens", type=int, default=128)
    parser.add_argument("--context-tokens", type=int, default=3072)
    parser.add_argument("--temperature", type=float, default=1.2)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--microbatch", type=int, default=32, help="episodes that the update reads at once")
    parser.add_argument("--warmup", type=int, default=1, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=3, help="steps that count")
    parser.add_argument("--wait-for", type=Path, help="begin to train once this file exists")
    parser.add_argument("--cpu", action="store_true", help="to try it out")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def wait_for(file: Path | None) -> None:
    while file is not None and not file.exists():
        time.sleep(0.2)


def write_system(tokenizer: PreTrainedTokenizerBase, env: SearchQA) -> str:
    """The system message with the tool's schema, as turnwise writes it under this tokenizer's own template."""
    render = make_render(tokenizer)
    opening = asyncio.run(env.spawn().reset(env.tasks("train")[0], 0))
    text = render.decode(render.start(opening, env.tools))
    return text.removeprefix("<|im_start|>system\n").split("<|im_end|>")[0]


def make_dataset(system: str, tasks: Sequence[Task], options: argparse.Namespace) -> Dataset:
    drawn = random.sample(list(tasks), options.prompts * (options.warmup + options.steps))
    return Dataset.from_list([_write_row(system, task.data) for task in drawn])


def _write_row(system: str, data: Mapping[str, Json]) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": data["question"]}]
    return {
        "prompt": messages,
        "answers": json.dumps(data["answers"]),
        "gold": json.dumps(data.get("supporting_ids") or []),
    }


def make_config(options: argparse.Namespace, folder: str) -> GRPOConfig:
    episodes = options.prompts * options.generations
    return GRPOConfig(
        output_dir=folder,
        use_cpu=options.cpu,
        bf16=not options.cpu,
        seed=options.seed,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=options.warmup + options.steps,
        per_device_train_batch_size=min(options.microbatch, episodes),
        gradient_accumulation_steps=max(1, episodes // options.microbatch),
        gradient_checkpointing=False,
        num_generations=options.generations,
        num_iterations=1,
        beta=0.0,
        epsilon_high=0.28,
        learning_rate=options.learning_rate,
        temperature=options.temperature,
        max_completion_length=options.context_tokens - 300,
        max_tool_calling_iterations=options.turns - 1,
        generation_kwargs={"max_new_tokens": options.turn_tokens},
    )


def summarise(options: argparse.Namespace, clock: Clock) -> dict[str, object]:
    first = max(options.warmup, 1)  # the first step has no end before it to count from
    steps = [end - before for before, end in zip(clock.ends[first - 1 :], clock.ends[first:], strict=False)]
    rollouts = clock.rollouts[first:]
    return {
        "episodes": options.prompts * options.generations,
        "step_seconds": steps,
        "rollout_seconds": rollouts,
        "update_seconds": [step - rollout for step, rollout in zip(steps, rollouts, strict=True)],
        "sampled_tokens": clock.sampled[first:],
        "tokens": clock.read[first:],
        "rewards": clock.rewards,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": ", ".join(f"{package.__name__} {package.__version__}" for package in (trl, transformers, torch)),
    }


if __name__ == "__main__":
    main()
