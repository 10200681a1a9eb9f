"""Callbacks see a run from its beginning to its end, and no error of theirs is one of the run."""

import logging

import pytest

from tiny_runs import Died, Silent, records, same_weights, tiny_config, weights
from turnwise.errors import ConfigError
from turnwise.runs import read_metrics
from turnwise.runs.findings import read_findings
from turnwise.training.callbacks import Callback
from turnwise.training.trainer import run_training

SECTIONS = {
    "steps": 6,
    "sft": {"demonstrations": 64, "batch": 8, "optimizer": {"lr": 1e-2}},
    "evaluate": {"tasks": 2, "every": 3, "untrained": True},
    "checkpoint": {"every": 3, "async_save": False},
    "learner": {"optimizer": {"lr": 0.5}},
    "stability": {"monitor": {"calibration_steps": 1, "window": 1, "patience": 1}},
}


class Witness(Callback):
    """Keeps all it is called with, in order."""

    def __init__(self):
        self.events = []

    def on_run_begin(self, config, run):
        assert run.config.is_file()
        self.events.append(("begin", config, run.path))

    def on_sft_step_end(self, step, metrics):
        self.events.append(("sft", step, metrics))

    def on_step_end(self, step, metrics):
        self.events.append(("train", step, metrics))

    def on_evaluation(self, stage, step, metrics):
        self.events.append((stage, step, metrics))

    def on_checkpoint(self, step, path):
        assert (path / "model" / "config.json").is_file()
        self.events.append(("checkpoint", step, path.name))

    def on_finding(self, step, finding):
        self.events.append(("finding", step, finding))

    def on_run_end(self, completed):
        self.events.append(("end", completed, None))


class Broken(Callback):
    """Fails at one kind of event."""

    def __init__(self, event):
        self.event = event

    def __getattribute__(self, name):
        if name.startswith("on_") and name == self.event:
            return self.fail
        return super().__getattribute__(name)

    def fail(self, *arguments):
        raise RuntimeError("the tracker is down")


def train(folder, *callbacks, die=None, **options):
    return run_training(tiny_config(**SECTIONS), folder, display=Silent(die), callbacks=callbacks, **options)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    witness = Witness()
    return train(tmp_path_factory.mktemp("watched") / "run", witness), witness


def test_a_callback_sees_the_run_in_order(watched):
    run, witness = watched
    assert witness.events[0] == ("begin", tiny_config(**SECTIONS), run.path)
    assert witness.events[-1] == ("end", True, None)
    happened = [(kind, step) for kind, step, _ in witness.events[1:-1] if kind != "finding"]
    assert happened == [
        ("untrained", 0),
        *(("sft", step) for step in range(1, 9)),
        ("evaluate", 0),
        ("checkpoint", 0),
        *(("train", step) for step in (1, 2, 3)),
        ("evaluate", 3),
        ("checkpoint", 3),
        *(("train", step) for step in (4, 5, 6)),
        ("evaluate", 6),
        ("checkpoint", 6),
    ]


def test_its_metrics_are_those_that_are_written(watched):
    run, witness = watched
    seen = [(kind, step, told) for kind, step, told in witness.events if isinstance(told, dict)]
    written = [record for record in read_metrics(run.metrics) if record["stage"] != "end"]
    assert len(seen) == len(written)
    for (stage, step, metrics), record in zip(seen, written, strict=True):
        assert metrics == {name: value for name, value in record.items() if name not in ("stage", "step", "time")}
        assert (stage, step) == (record["stage"], record["step"])


def test_its_findings_are_those_that_are_written(watched):
    run, witness = watched
    found = [finding.to_json() for kind, _, finding in witness.events if kind == "finding"]
    assert found == read_findings(run.path / "findings.jsonl")
    assert found, "a learning rate this high is noticed"


def test_a_callback_that_fails_is_logged_once_and_the_run_is_the_same(watched, tmp_path, caplog):
    witness = Witness()
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run", Broken("on_step_end"), witness)
    logged = [record.getMessage() for record in caplog.records if "callback" in record.getMessage()]
    name = f"{__name__}:Broken"
    assert logged == [
        f"callback {name} failed in on_step_end: RuntimeError: the tracker is down; training goes on, "
        "further failures are counted",
        f"callback {name} failed 6 times in all",
    ]
    assert same_weights(weights(run, 6), weights(watched[0], 6))
    assert records(run) == records(watched[0])
    assert len(witness.events) == len(watched[1].events), "the others are called all the same"


def test_a_callback_that_cannot_begin_ends_the_run_with_one_line(tmp_path):
    witness = Witness()
    with pytest.raises(ConfigError, match=r"callback .*:Broken failed as the run began: RuntimeError: the tr") as error:
        train(tmp_path / "run", witness, Broken("on_run_begin"))
    assert "\n" not in str(error.value)
    assert [kind for kind, _, _ in witness.events] == ["begin", "end"]
    assert witness.events[-1] == ("end", False, None)


@pytest.mark.parametrize("wrong", [Witness, "tracker"], ids=["a class", "a name"])
def test_what_is_no_callback_is_refused_before_the_run_begins(tmp_path, wrong):
    with pytest.raises(ConfigError, match=r"^callbacks: .* is not a Callback"):
        train(tmp_path / "run", wrong)
    assert not (tmp_path / "run").exists()


def test_a_run_that_dies_says_so(tmp_path):
    witness = Witness()
    with pytest.raises(Died):
        train(tmp_path / "run", witness, die=lambda *met: met == ("training", 2))
    assert witness.events[-1] == ("end", False, None)
    again = Witness()
    train(tmp_path / "run", again, resume=True)
    assert [event[0] for event in again.events[:2]] == ["begin", "train"], "it goes on from its checkpoint"
    assert again.events[-1] == ("end", True, None)
