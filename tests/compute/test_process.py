"""The settings of the process: in place before torch is loaded, by command and from Python; those of the user stay."""

import os
import subprocess
import sys

import pytest

from turnwise.compute.process import configure_process

STOP_AT_TORCH = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("THP_MEM_ALLOC_ENABLE"))
            sys.exit(0)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "start",
    [
        "import turnwise; turnwise.train(env='bandit', model='small')",
        "from turnwise.cli.main import main; main(['train', 'encyclopedia-grpo'])",
        "from turnwise.compute.process import configure_process; configure_process(); import torch",
    ],
)
def test_the_process_is_configured_before_torch_is_loaded(start):
    clean = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    }
    result = subprocess.run(
        [sys.executable, "-c", STOP_AT_TORCH + start], env=clean, capture_output=True, text=True, check=False
    )
    assert (result.stdout.split(), result.stderr) == (["10000", "1"], "")


def test_training_from_python_configures_the_process_even_if_torch_is_loaded(monkeypatch):
    from turnwise import api

    class Launched(Exception):
        pass

    def launch(train, cluster=None):
        raise Launched

    calls = []
    monkeypatch.setattr(api, "configure_process", lambda: calls.append("configured"))
    monkeypatch.setattr("turnwise.training.launch.launch", launch)
    with pytest.raises(Launched):
        api.train(env="encyclopedia", model="small")
    assert calls == ["configured"]


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    configure_process()
    assert (os.environ["GOMP_SPINCOUNT"], os.environ["THP_MEM_ALLOC_ENABLE"]) == ("7", "1")
