"""A model that knows the words of the tiny game, so that runs which start from it learn in every step."""

import pytest

from tiny_runs import cold_model


@pytest.fixture(scope="session")
def cold(tmp_path_factory):
    return cold_model(tmp_path_factory)


@pytest.fixture(scope="session")
def sections(cold):
    """Six steps, saved after the fifth and the last: a signal at another step must save by itself."""
    return {"model": {"name": str(cold)}, "steps": 6, "checkpoint": {"every": 5}}
