"""Without a GPU, Triton kernels run through Triton's interpreter, which is chosen before Triton is first imported."""

import os

import pytest
import torch

from turnwise import sources

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The secret that vouches for runs is kept apart from the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _no_run_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a run that one test opened are not foreign to the next."""
    monkeypatch.setattr(sources, "_ADOPTED", {})
    monkeypatch.setattr(sources, "_TRUSTED", {})
