"""What the trainer hands from one part to the next, where a whole run's figures would not show that it was lost."""

import gc
import random

import torch

from tiny_runs import run_tiny


def test_global_random_numbers_of_a_resumed_run_go_on_where_they_stopped(tmp_path):
    """An environment of the user's may draw from them."""
    drawn = {}

    def draw_at_step_2(name):
        def watch(event, number):
            if (event, number) == ("training", 2):
                drawn[name] = (random.random(), torch.rand(1).item())
            return False

        return watch

    for name, stops in (("unbroken", (2,)), ("resumed", (1, 2))):
        random.seed(5)
        torch.manual_seed(5)
        for steps in stops:
            run_tiny(tmp_path / name, steps=steps, resume=steps != stops[0], die=draw_at_step_2(name))
            random.seed(6)
            torch.manual_seed(6)
    assert drawn["resumed"] == drawn["unbroken"]


def test_garbage_is_seldom_collected_while_training_and_as_before_after(tmp_path):
    before, during = gc.get_threshold(), []
    run_tiny(tmp_path / "run", die=lambda *_: during.append(gc.get_threshold()[0]))
    assert set(during) == {50_000, 1_000_000}, "the latter within steps, which are collected after"
    assert gc.get_threshold() == before
