"""Whole training steps of TRL's GRPOTrainer with an environment, on a CPU: `python trl_workload.py --tokenizer FOLDER`.

It runs in a virtual environment of its own and needs nothing of turnwise: torch 2.13, trl 1.16, transformers 5.22,
accelerate, datasets. The last line it prints is JSON: the seconds of every step after the warm-up, and the tokens that
each trajectory held. `turnwise bench speed --peer PYTHON` starts it; `benchmarks.speed.steps` is the same work.

The work has a fixed shape: a random Qwen2 of 6.8 million parameters; prompts x generations episodes a step; turns of
exactly so many sampled tokens; one optimizer step per batch, no reference, temperature 1, float32. A random model
writes no tool call, so the parser is replaced by one that reads a guess out of any turn; all else is TRL's own.
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from trl_clock import StepClock

QUESTION = "I am thinking of a number from 1 to 10. Find it with the guess tool."
ANSWERS = ("higher", "lower", "equal")
FILLER = " a"


class GuessEnv:
    """Guess a number with a tool; the reward is how near the best guess came. The texts are set by `fit_texts`."""

    question = QUESTION
    answers: ClassVar = {word: word for word in ANSWERS}

    def reset(self, **columns: object) -> str:
        self.number, self.distance = random.randint(1, 10), 9
        return self.question

    def get_reward(self) -> float:
        return 1 - self.distance / 9

    def guess(self, n: int) -> str:
        """
        Guess the hidden number.

        Args:
            n: The number guessed, from 1 to 10.

        Returns:
            Whether the hidden number is higher, lower or equal.
        """
        self.distance = min(self.distance, abs(n - self.number))
        return self.answers["equal" if n == self.number else "higher" if n < self.number else "lower"]


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    tokenizer = load_tokenizer(options.tokenizer)
    fit_texts(tokenizer, options)
    grpo_trainer.parse_response = read_guess
    clock, held = StepClock(), set[tuple[int, int, int]]()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=make_model(tokenizer),
            args=make_config(options, folder),
            processing_class=tokenizer,
            environment_factory=GuessEnv,
            callbacks=[clock],
        )
        clock.time_rollouts(trainer, lambda batch: held.update(count_tokens(batch)))
        trainer.train()
    check_tokens(options, held)
    sys.stdout.write(f"{json.dumps(summarise(options, trainer, clock))}\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder with a tokenizer of 49,152 tokens")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=257)
    parser.add_argument("--observation-tokens", type=int, default=23)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--warmup", type=int, default=2, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=10, help="steps that count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """With its own chat template where that knows tools, else with the one TRL has for Qwen 2.5."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if "tools" in (tokenizer.chat_template or ""):
        tokenizer.response_schema = {}  # TRL asks for one of templates it does not know; the parser is ours anyway
    else:
        templates = Path(trl.__file__).parent / "chat_templates"
        tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text(encoding="utf-8")
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config).float()


def make_config(options: argparse.Namespace, folder: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        fp16=False,
        seed=options.seed,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=options.warmup + options.steps,
        per_device_train_batch_size=options.prompts * options.generations,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_generations=options.generations,
        num_iterations=1,
        beta=0.0,
        learning_rate=options.learning_rate,
        temperature=1.0,
        max_completion_length=options.turns * (options.turn_tokens + options.observation_tokens),
        max_tool_calling_iterations=options.turns - 1,
        generation_kwargs={"max_new_tokens": options.turn_tokens, "min_new_tokens": options.turn_tokens},
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def read_guess(tokenizer: object, ids: list[int], **context: object) -> dict[str, object]:
    """Stands in for TRL's parser: any turn is a call of the tool."""
    call = {"type": "function", "function": {"name": "guess", "arguments": {"n": sum(ids) % 10 + 1}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def fit_texts(tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace) -> None:
    """Brings prompt and answers to the workload's token counts, as written by the tokenizer's template."""
    call = {"type": "function", "function": {"name": "guess", "arguments": {}}}
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def write(messages: list[dict[str, object]], **how: object) -> list[int]:
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **how)

    def count_prompt(text: str) -> int:
        asked = [{"role": "user", "content": text}]
        return len(write(asked, tools=[GuessEnv().guess], add_generation_prompt=True))

    def count_answer(text: str) -> int:
        """From the end of the turn on, as TRL counts: an end that was not sampled is not put in."""
        answer = {"role": "tool", "name": "guess", "content": text}
        head = write(before)
        end = len(head) - head[::-1].index(tokenizer.eos_token_id)
        return len(write([*before, answer], add_generation_prompt=True)) - end

    GuessEnv.question = fit_text(QUESTION, options.prompt_tokens, count_prompt)
    GuessEnv.answers = {word: fit_text(word, options.observation_tokens, count_answer) for word in ANSWERS}


def fit_text(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The text with as many words after it as bring it to exactly this many tokens."""
    for words in range(tokens + 1):
        if count(fitted := text + FILLER * words) == tokens:
            return fitted
    sys.exit(f"'{text}' does not come to {tokens} tokens: it has {count(text)} already")


def count_tokens(batch: Mapping[str, torch.Tensor]) -> set[tuple[int, int, int]]:
    """Tokens of the prompt, of all after it, and of these the sampled ones, of every trajectory."""
    counts = [batch[name].sum(1).tolist() for name in ("prompt_mask", "completion_mask", "tool_mask")]
    return {(int(a), int(b), int(c)) for a, b, c in zip(*counts, strict=True)}


def check_tokens(options: argparse.Namespace, held: set[tuple[int, int, int]]) -> None:
    """That no trajectory held anything else than the workload says."""
    assert held == {(options.prompt_tokens, completion_tokens(options), sampled_tokens(options))}, held


def sampled_tokens(options: argparse.Namespace) -> int:
    return options.turns * options.turn_tokens


def completion_tokens(options: argparse.Namespace) -> int:
    return sampled_tokens(options) + (options.turns - 1) * options.observation_tokens


def summarise(options: argparse.Namespace, trainer: GRPOTrainer, clock: StepClock) -> dict[str, object]:
    return {
        "trajectories": options.prompts * options.generations,
        **clock.summarise(options.warmup),
        "prompt_tokens": options.prompt_tokens,
        "completion_tokens": completion_tokens(options),
        "sampled_tokens": sampled_tokens(options),
        "parameters": sum(weight.numel() for weight in trainer.model.parameters()),
        "threads": torch.get_num_threads(),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "versions": ", ".join(f"{package.__name__} {package.__version__}" for package in (trl, transformers, torch)),
    }


if __name__ == "__main__":
    main()
