"""Every reasoning under every prompt, against a forward pass of one pair at a time."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.learner.cross_score import Reply, cross_score, first_replies, measure_information
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.stability import mutual_information
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

REPLIES = [
    Reply(prompt=(1, 2), reasoning=(3, 4, 5)),
    Reply(prompt=(1, 6, 7, 8), reasoning=(9,)),
    Reply(prompt=(2,), reasoning=(3, 3, 3, 3)),
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).double().eval()


def runner(budget=1000, temperature=0.7):
    return ForwardRunner(device=torch.device("cpu"), autocast=None, temperature=temperature, token_budget=budget)


def one_by_one(model, replies, temperature):
    matrix = np.zeros((len(replies), len(replies)))
    for i, reply in enumerate(replies):
        for j, other in enumerate(replies):
            ids = [*other.prompt, *reply.reasoning]
            with torch.no_grad():
                logprobs = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
            matrix[i, j] = sum(float(logprobs[t - 1, ids[t]]) for t in range(len(other.prompt), len(ids)))
    return matrix


@pytest.mark.parametrize("budget", [8, 1000])
def test_the_matrix_is_that_of_single_passes(model, budget):
    matrix = cross_score(model, REPLIES, runner(budget), context_limit=32)
    assert matrix == pytest.approx(one_by_one(model, REPLIES, 0.7), abs=1e-5)
    assert measure_information(model, REPLIES, runner(budget), context_limit=32) == mutual_information(matrix)


def test_reasoning_is_cut_where_the_longest_prompt_leaves_no_room(model):
    cut = [Reply(prompt=reply.prompt, reasoning=reply.reasoning[:2]) for reply in REPLIES]
    expected = one_by_one(model, cut, 0.7)
    assert cross_score(model, REPLIES, runner(), context_limit=6) == pytest.approx(expected, abs=1e-5)


def test_one_prompt_is_nothing_to_compare(model):
    assert measure_information(model, REPLIES[:1], runner(), context_limit=32) is None


def group(*openings, stop=StopReason.DONE):
    task = Task(id="t")
    return Group(
        task=task,
        trajectories=tuple(
            Trajectory(
                task=task,
                turns=tuple(
                    Turn(context_ids=context, action_ids=action, logprobs=(0.0,) * len(action), opens_row=True)
                    for context, action in turns
                ),
                stop=stop,
            )
            for turns in openings
        ),
    )


def test_replies_are_the_first_turns_of_tasks_whose_prompts_differ():
    groups = [
        group([], [((1,), (5, 8, 6)), ((9,), (9,))], [((1,), (7,))]),
        group([((1,), (4,))]),
        group([((2,), (4, 8, 8))]),
        group([((3,), (4,))]),
    ]
    assert first_replies(groups, most=2, end_of_thinking=(8,)) == [
        Reply(prompt=(1,), reasoning=(5, 8)),
        Reply(prompt=(2,), reasoning=(4, 8)),
    ]


@pytest.mark.parametrize(("end", "kept"), [((), 5), ((8,), 2), ((3, 4), 4), ((4, 5), 5), ((7,), 5)])
def test_thinking_ends_where_its_end_first_stands(end, kept):
    ids = (1, 8, 3, 4, 5)
    (reply,) = first_replies([group([((2,), ids)])], most=1, end_of_thinking=end)
    assert reply.reasoning == ids[:kept]
