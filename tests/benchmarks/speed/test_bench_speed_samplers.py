"""Sampling and episodes of several turns as they are measured: the same work on both sides, and the same words."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.speed import models as speed_models
from benchmarks.speed import sampling as speed_sampling
from benchmarks.speed import turns as speed_turns
from benchmarks.speed.models import make_model
from benchmarks.speed.sampling import (
    Workload,
    compare_logprobs,
    generate_rows,
    measure_continuous,
    measure_engine,
    measure_generate,
    relative_error,
    score_rows,
    time_sampler,
)
from benchmarks.speed.turns import measure_rereading, measure_sessions
from benchmarks.speed.variant import ON_CPU
from turnwise.engines.base import Completion
from turnwise.types import Finish

pytestmark = pytest.mark.usefixtures("small_models")
BASE = ON_CPU.base()


def test_samplers_are_timed_to_the_first_token_and_to_the_last():
    asked = []
    work = Workload(rows=3, prompt=5, tokens=4, repeats=2, seed=0, vocabulary=50)
    found = time_sampler(lambda prompts, tokens: asked.append((prompts, tokens)), work)
    assert [tokens for _, tokens in asked] == [4, 1, 1, 4, 1, 4]
    assert {(len(prompts), *map(len, prompts)) for prompts, _ in asked} == {(3, 5, 5, 5)}
    assert len({tuple(prompt) for prompts, _ in asked for prompt in prompts}) == 18, "no prompt comes twice"
    assert (len(found["first_seconds"]), len(found["whole_seconds"])) == (2, 2)


def test_the_engine_is_measured_and_agrees_with_the_model():
    settings = {**BASE, "model": "smollm2", "rows": 4, "prompt": 6, "tokens": 5, "repeats": 2}
    found = measure_engine(settings)
    assert len(found["whole_seconds"]) == 2
    assert found["counted_decode_tokens_per_second"] > 0
    assert 0 <= found["engine_minus_model"] < 1e-5
    assert "engine_minus_float32" not in found, "it is float32"


def test_generate_is_measured_on_the_same_work():
    found = measure_generate({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert len(found["first_seconds"]) == len(found["whole_seconds"]) == 1
    assert found["whole_seconds"][0] > 0


def test_continuous_batching_is_timed_by_the_stamps_of_its_tokens(monkeypatch):
    """From the first request to when all rows have a token, and to the last token of all."""

    def answer(self, prompts, *, generation_config, **options):
        tokens = generation_config.max_new_tokens
        rows = [
            SimpleNamespace(
                error=None,
                generated_tokens=[7] * tokens,
                created_time=10.0 + row,
                timestamps=[20.0 + row + place for place in range(tokens)],
            )
            for row in range(len(prompts))
        ]
        return dict(enumerate(rows))

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", answer)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"first_seconds": [12.0], "whole_seconds": [16.0]}


def test_a_peer_that_does_not_run_here_is_a_finding(monkeypatch):
    def fail(self, *args, **options):
        raise RuntimeError("no paged attention\nfor this device")

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", fail)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"failure": "RuntimeError: no paged attention"}


def test_rows_that_a_peer_did_not_finish_are_no_measurement(monkeypatch):
    def lose(self, prompts, **options):
        speed_sampling.logging.getLogger("ContinuousBatchingLogger").error("Generation thread terminated")
        return {}

    monkeypatch.setattr(speed_models.Qwen2ForCausalLM, "generate_batch", lose)
    found = measure_continuous({**BASE, "rows": 3, "prompt": 6, "tokens": 5, "repeats": 1})
    assert found == {"failure": "0 of 3 rows were finished: Generation thread terminated"}


def test_logprobs_are_those_of_one_forward_pass():
    model = make_model(BASE)
    prompt = [1, 2, 3]
    row = generate_rows(model, torch.tensor([prompt]), 4)
    with torch.no_grad():
        logits = model(input_ids=row).logits[0, 2:6]
    expected = [float(logits[i].log_softmax(-1)[row[0, 3 + i]]) for i in range(4)]
    assert score_rows(model, row, 4)[0].tolist() == pytest.approx(expected, rel=1e-5)
    shifted = Completion(
        ids=tuple(row[0, 3:].tolist()), logprobs=(expected[0] + 0.1, *expected[1:]), finish=Finish.LENGTH, version=0
    )
    found = compare_logprobs(model, [prompt], [shifted])
    assert found["engine_minus_model"] == pytest.approx(0.1 / max(map(abs, expected)), rel=1e-3)
    assert found["engine_minus_model_mean"] == pytest.approx(0.025, rel=1e-2)


def test_rounding_is_told_apart_where_weights_are_not_float32():
    """In double, since not every processor multiplies halves."""
    model = make_model({**BASE, "dtype": "float64"})
    row = generate_rows(model, torch.tensor([[1, 2, 3]]), 4)
    own = tuple(score_rows(model, row, 4)[0].tolist())
    completion = Completion(ids=tuple(row[0, 3:].tolist()), logprobs=own, finish=Finish.LENGTH, version=0)
    found = compare_logprobs(model, [[1, 2, 3]], [completion])
    assert found["engine_minus_model"] == 0
    assert 0 < found["engine_minus_float32"] == found["model_minus_float32"] < 1e-6


def test_relative_errors():
    assert relative_error(torch.tensor([1.0, -4.0]), torch.tensor([1.5, -5.0])) == pytest.approx(0.2)


@pytest.mark.parametrize("measure", [measure_sessions, measure_rereading])
def test_episodes_of_several_turns(measure):
    shape = {"groups": 3, "members": 1, "prompt": 5, "turns": 3, "turn": 2, "observation": 4}
    found = measure({**BASE, "shape": shape, "repeats": 2})
    assert found["episodes"] == 3
    assert len(found["seconds"]) == 2, "the first one warms up"
    assert min(found["seconds"]) > 0


@pytest.mark.parametrize("measure", [measure_sessions, measure_rereading])
def test_uneven_episodes_of_several_turns(measure):
    shape = {"groups": 3, "members": 1, "prompt": 5, "turns": 3, "turn": 3, "observation": 4, "jitter": 2}
    found = measure({**BASE, "shape": shape, "repeats": 2})
    assert found["episodes"] == 3
    assert len(found["seconds"]) == 2, "the first one warms up"


def test_the_loop_around_generate_pads_on_the_left_and_cuts_every_row_to_its_length(monkeypatch):
    asked = []

    def generate(model, ids, tokens, live):
        asked.append((ids.tolist(), tokens, live.tolist()))
        said = torch.arange(70, 70 + tokens).expand(len(ids), -1)
        return torch.cat([ids, said], dim=1)

    monkeypatch.setattr(speed_turns, "generate_rows", generate)
    assert speed_turns._generate_turn(None, [[11, 12, 13], [21]], [1, 3]) == [[11, 12, 13, 70], [21, 70, 71, 72]]
    assert asked == [([[11, 12, 13], [0, 0, 21]], 3, [[1, 1, 1], [0, 0, 1]])]


def test_rows_that_are_padded_are_said_on_as_if_they_were_not(monkeypatch):
    monkeypatch.setattr(speed_sampling, "sampling_config", greedy(speed_sampling.sampling_config))
    model = make_model(BASE)
    long, short = [5, 6, 7, 8, 9], [31, 32]
    together = speed_turns._generate_turn(model, [long, short], [4, 4])
    assert together == [
        *speed_turns._generate_turn(model, [long], [4]),
        *speed_turns._generate_turn(model, [short], [4]),
    ]


def greedy(make):
    def made(tokens):
        config = make(tokens)
        config.do_sample = False
        return config

    return made
