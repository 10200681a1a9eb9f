"""How fast vLLM samples: `python vllm_sampling.py --model FOLDER`, in the virtual environment that has vllm.

The last line it prints is JSON: seconds to the first token of all rows, and to their last, for each repeat. The prompts
are ids at random, so that no cache of a prefix helps; `turnwise bench speed` starts it, where vllm can be imported.
"""

import argparse
import json
import random
import sys
import time

import vllm
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main() -> None:
    options = read_options()
    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        dtype=options.dtype,
        max_model_len=options.prompt + options.tokens,
        max_num_seqs=options.rows,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.5,
        seed=options.seed,
    )
    draw = random.Random(options.seed)
    sample(llm, draw, options, options.tokens)
    first = [sample(llm, draw, options, 1) for _ in range(options.repeats)]
    whole = [sample(llm, draw, options, options.tokens) for _ in range(options.repeats)]
    found = {"first_seconds": first, "whole_seconds": whole, "versions": f"vllm {vllm.__version__}"}
    sys.stdout.write(f"{json.dumps(found)}\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with the model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens sampled after each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def sample(llm: LLM, draw: random.Random, options: argparse.Namespace, tokens: int) -> float:
    """Seconds until every row has so many tokens, each with its logprob."""
    prompts = [
        TokensPrompt(prompt_token_ids=draw.choices(range(options.vocabulary), k=options.prompt))
        for _ in range(options.rows)
    ]
    how = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
    began = time.perf_counter()
    rows = llm.generate(prompts, how, use_tqdm=False)
    seconds = time.perf_counter() - began
    assert all(len(row.outputs[0].token_ids) == tokens for row in rows)
    return seconds


if __name__ == "__main__":
    main()
