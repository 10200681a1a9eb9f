"""One run and one studio for all tests that only read."""

import pytest

from studio_runs import make_studio_run, serving


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_studio_run(folder / "first")
    make_studio_run(folder / "sweep" / "second", seed=1, lr=1e-3)
    return folder


@pytest.fixture(scope="session")
def client(folder):
    with serving(folder) as client:
        yield client


@pytest.fixture(scope="session")
def first(client):
    return client.run_id("first")
