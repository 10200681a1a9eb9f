"""A GRPOTrainer whose every episode searches once for `Lumen` and answers `Vardo`."""

import dataclasses
import sys
import types

import torch
from transformers import TrainingArguments

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Lumen"}}\n</tool_call>'
ANSWER = "<answer> Vardo </answer>"
OWN_FIELDS = {
    *("shuffle_dataset", "num_generations", "num_iterations", "beta", "epsilon", "epsilon_high", "temperature"),
    *("top_p", "top_k", "max_completion_length", "max_tool_calling_iterations", "generation_kwargs"),
}
"""Those of TRL's config that transformers' own has not."""


class GRPOConfig(types.SimpleNamespace):
    """Knows the same names as TRL's, and no others."""

    def __init__(self, **settings: object) -> None:
        known = OWN_FIELDS | {field.name for field in dataclasses.fields(TrainingArguments)}
        assert settings.keys() <= known, settings.keys() - known
        super().__init__(**settings)


def parse_response(tokenizer: object, ids: list[int], **context: object) -> dict[str, object]:
    """What the script replaces."""
    raise NotImplementedError


class GRPOTrainer:
    def __init__(
        self, *, model, args, processing_class, train_dataset, reward_funcs, environment_factory, callbacks
    ) -> None:
        assert model.dtype == torch.bfloat16
        self.args, self.tokenizer, self.rows = args, processing_class, train_dataset
        self.score, self.make_environment, self.callbacks = reward_funcs[0], environment_factory, callbacks

    def train(self) -> None:
        args = self.args
        prompts = args.per_device_train_batch_size * args.gradient_accumulation_steps // args.num_generations
        for step in range(args.max_steps):
            rows = self.rows[step * prompts : (step + 1) * prompts]
            self._generate_and_score_completions([row for row in rows for _ in range(args.num_generations)])
            for callback in self.callbacks:
                callback.on_step_end(args, None, None)

    def _generate_and_score_completions(self, inputs):
        environments = [self.make_environment() for _ in inputs]
        masks = [self._play(row, environment) for row, environment in zip(inputs, environments, strict=True)]
        completions = [[{"role": "assistant", "content": ANSWER}] for _ in inputs]
        sys.stdout.write(f"rewards {self.score(completions=completions, environments=environments)}\n")
        return {name: torch.cat([mask[name] for mask in masks]) for name in masks[0]}

    def _play(self, row, environment):
        environment.reset(**row)
        prompt, call, answer = self._encode_chat(row["prompt"]), self._encode(CALL), self._encode(ANSWER)
        (asked,) = parse_response(self.tokenizer, call)["tool_calls"]
        told = self._encode(getattr(environment, asked["function"]["name"])(**asked["function"]["arguments"]))
        sampled = torch.tensor([1] * len(call) + [0] * len(told) + [1] * len(answer))
        return {
            "prompt_mask": torch.ones(len(prompt)),
            "completion_mask": torch.ones_like(sampled),
            "tool_mask": sampled,
        }

    def _encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _encode_chat(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
