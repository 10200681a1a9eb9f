"""Trackers have a run's config, every record and every finding once, however often it was killed and resumed.

Each is read back with its own package, in offline mode; where that is not installed: make test-trackers.
"""

import json
import logging
import sqlite3
import struct
import sys
from unittest.mock import MagicMock

import pytest

import turnwise
from tiny_runs import Died, Silent, records, run_tiny, same_weights, tiny_config, tiny_data, weights
from turnwise.errors import ConfigError
from turnwise.runs import RunDirectory, read_metrics
from turnwise.runs.findings import read_findings
from turnwise.settings import leaves
from turnwise.stability.findings import SENTENCES
from turnwise.training.callbacks import make_callbacks
from turnwise.training.trackers import TRACKERS
from turnwise.training.trackers.base import Tracker
from turnwise.training.trainer import run_training

SECTIONS = {
    "steps": 6,
    "sft": {"demonstrations": 64, "batch": 8, "optimizer": {"lr": 1e-2}},
    "evaluate": {"tasks": 2, "every": 3, "untrained": True, "samples_per_task": 2, "temperature": 1.0},
    "checkpoint": {"every": 3},
    "learner": {"optimizer": {"lr": 0.5}},
    "stability": {"monitor": {"calibration_steps": 1, "window": 1, "patience": 1}},
}
CONFIG = tiny_config(**SECTIONS)


class Memory(Tracker):
    """A tracker whose server is a list of this process, and may be down."""

    NAME = "memory"

    def __init__(self, server, *, down=False):
        super().__init__()
        self.server, self.down = server, down

    def start(self, run_id, config, run):
        if self.down:
            raise ConnectionError("nobody is home")
        self.server.setdefault("config", config)
        return run_id or "r1"

    def log(self, stage, step, metrics):
        self.server.setdefault("points", []).extend((name, step, value) for name, value in metrics.items())

    def log_finding(self, step, kind, sentence, *, alarm):
        self.server.setdefault("findings", []).append((step, kind, sentence, alarm))

    def finish(self, completed):
        self.server["completed"] = completed


def train(folder, *callbacks, die=None, resume=False, **sections):
    config = tiny_config(**SECTIONS | sections)
    return run_training(config, folder, display=Silent(die), callbacks=callbacks, resume=resume)


def interrupted(folder, *callbacks, **sections):
    """Dies at the end of step 5, before callbacks see it, and goes on from the checkpoint of step 3."""
    with pytest.raises(Died):
        train(folder, *callbacks, die=lambda *met: met == ("training", 5), **sections)


def expected(run):
    """`{(name, step): value}` of a run's own record, under the names that trackers use."""
    found = {}
    for record in read_metrics(run.metrics):
        stage = str(record["stage"])
        for name, value in record.items():
            if "/" not in name or value is None or stage == "end":
                continue
            own = name.startswith(f"{stage}/") or stage == "train"
            shown = name if own else f"{stage}/{name.removeprefix('evaluate/')}"
            found[shown, record["step"]] = float(value)
    return found


def timeless(points):
    return {key: value for key, value in points.items() if "_second" not in key[0] and not key[0].startswith("time")}


def check_points(points, run, spelt=lambda name: name):
    """Every number once, and equal to the run's own; times of repeated steps differ."""
    wanted = {(spelt(name), step): value for (name, step), value in expected(run).items()}
    assert len(points) == len(set(points)), "no step is doubled"
    found = {(name, step): value for name, step, value in points}
    assert len(found) == len(points), "no name has two values at a step"
    wanted, found = timeless(wanted), timeless(found)
    assert found.keys() >= wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key
    assert {name for name, step in found} - {name for name, _ in wanted} <= {f"finding/{kind}" for kind in KINDS}


KINDS = tuple(SENTENCES)


def test_a_killed_and_resumed_run_is_sent_once(tmp_path):
    server = {}
    interrupted(tmp_path / "run", Memory(server))
    assert server["completed"] is False
    run = train(tmp_path / "run", Memory(server), resume=True)
    assert server["completed"] is True
    check_points(server["points"], run)
    assert server["config"] == {".".join(path): value for path, value in leaves(CONFIG.model_dump(mode="json"))}
    found = read_findings(run.path / "findings.jsonl")
    assert found, "a learning rate this high is noticed"
    assert [(step, kind, sentence) for step, kind, sentence, _ in server["findings"]] == [
        (one["step"], one["kind"], one["sentence"]) for one in found
    ]
    assert [alarm for *_, alarm in server["findings"]] == [one.get("severity") != "sign" for one in found]


def test_the_untrained_model_and_the_trained_one_have_names_of_their_own(tmp_path):
    server = {}
    train(tmp_path / "run", Memory(server), steps=0)
    names = {name for name, step, _ in server["points"] if step == 0}
    assert {"untrained/success", "evaluate/success", "untrained/ledger/wall_seconds"} <= names
    assert "sft/loss" in {name for name, _, _ in server["points"]}


def test_a_tracker_that_is_named_later_gets_what_it_missed(tmp_path):
    interrupted(tmp_path / "run")
    server = {}
    run = train(tmp_path / "run", Memory(server), resume=True)
    check_points(server["points"], run)


def test_a_resumed_run_goes_on_without_a_tracker_that_is_down(tmp_path, caplog):
    server = {}
    interrupted(tmp_path / "run", Memory(server))
    with caplog.at_level(logging.WARNING):
        down = train(tmp_path / "run", Memory(server, down=True), resume=True)
    repeated = sum(one["step"] > 3 for one in read_findings(down.path / "findings.jsonl"))
    logged = [record.getMessage() for record in caplog.records if "memory" in record.getMessage()]
    assert logged == [
        "memory cannot go on: ConnectionError: nobody is home; training goes on without it, the next --resume sends "
        "what it missed",
        f"memory missed {4 + repeated} records; the next --resume sends them",
    ], "steps 4, 5, 6, their evaluation and their findings"
    run = train(tmp_path / "run", Memory(server), resume=True)
    check_points(server["points"], run)


def test_a_new_run_whose_tracker_cannot_start_ends_with_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"Memory failed as the run began: ConnectionError: nobody is home") as error:
        train(tmp_path / "run", Memory({}, down=True))
    assert "\n" not in str(error.value)


def test_a_tracker_that_fails_in_the_middle_is_counted_and_the_run_is_the_same(tmp_path, caplog):
    class Failing(Memory):
        def log(self, stage, step, metrics):
            if stage == "train":
                raise ConnectionError("the server is down")
            super().log(stage, step, metrics)

    alone = run_tiny(tmp_path / "alone", **SECTIONS)
    server = {}
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run", Failing(server))
    logged = [record.getMessage() for record in caplog.records if "Failing" in record.getMessage()]
    assert len(logged) == 2, "once as it happens, and once as the run ends"
    assert logged[1].endswith("Failing failed 6 times in all")
    assert same_weights(weights(run, 6), weights(alone, 6))
    assert records(run) == records(alone)


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_package_a_tracker_names_the_extra_before_the_run_begins(tmp_path, monkeypatch, name):
    for module in (name, f"torch.utils.{name}"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"^callbacks: {name} needs .*pip install 'turnwise\[{name}\]'$"):
        run_tiny(tmp_path / "run", callbacks=[name])
    assert not (tmp_path / "run").exists()


def test_a_misspelt_tracker_is_suggested():
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        make_callbacks(tiny_config(callbacks=["wandbb"]).callbacks)


def require(name):
    return pytest.importorskip(name, reason=f"{name} is not installed: make test-trackers")


def survive(tmp_path, tracker):
    """A run that was killed and resumed under a tracker, by name."""
    interrupted(tmp_path / "run", callbacks=[tracker])
    return train(tmp_path / "run", resume=True, callbacks=[tracker])


def test_tensorboard(tmp_path):
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = survive(tmp_path, "tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    points = [(tag, one.step, one.value) for tag in events.Tags()["scalars"] for one in events.Scalars(tag)]
    check_points(points, run)
    (config,) = events.Tensors("config/text_summary")
    assert run.config.read_text().encode() in config.tensor_proto.string_val[0]
    for finding in read_findings(run.path / "findings.jsonl"):
        texts = {
            one.step: one.tensor_proto.string_val[0].decode()
            for one in events.Tensors(f"finding/{finding['kind']}/text_summary")
        }
        assert texts[finding["step"]] == finding["sentence"]


def scan_wandb(path):
    """The records of a .wandb file, which is a LevelDB log: blocks of 32 KiB, headers of checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_a_busy_machine_has_time_to_start_wandb(tmp_path, monkeypatch):
    """Its process needs seconds of a core; it was given up after 30 of the clock."""
    require("wandb")
    import wandb

    begun = {}
    monkeypatch.setattr(wandb, "init", lambda **given: begun.update(given) or MagicMock(id="x"))
    make_callbacks(tiny_config(callbacks=["wandb"]).callbacks)[0].start(None, {}, RunDirectory(tmp_path))
    assert begun["settings"].init_timeout == begun["settings"].x_service_wait == 300


def test_wandb(tmp_path, monkeypatch):
    require("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = survive(tmp_path, {"name": "wandb", "args": {"mode": "offline", "project": "tests", "tags": ["a"]}})
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1, "both parts are of one run"
    found = [record for file in files for record in scan_wandb(file)]
    points, rows = [], []
    for record in found:
        if record.WhichOneof("record_type") == "history":
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows.append(record.history.step.num)
            step = row["sft/step"] if "sft/loss" in row else row["step"]
            own = {name: value for name, value in row.items() if "/" in name and name != "sft/step"}
            points += [(name, step, value) for name, value in own.items()]
    check_points(points, run)
    assert rows == list(range(len(rows))), "a row of the resumed part would overwrite one of the first"
    begun = next(record.run for record in found if record.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (begun.project, list(begun.tags)) == ("tests", ["a"])
    assert {"steps": 6, "learner.optimizer.lr": 0.5}.items() <= config.items()
    alerts = [record.alert for record in found if record.WhichOneof("record_type") == "alert"]
    alarms = [one for one in read_findings(run.path / "findings.jsonl") if one.get("severity") != "sign"]
    assert [alert.title for alert in alerts] == [one["kind"].replace("_", " ") for one in alarms]
    assert [alert.text for alert in alerts] == [f"step {one['step']}: {one['sentence']}" for one in alarms]
    assert alarms


def test_mlflow(tmp_path):
    mlflow = require("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = survive(tmp_path, {"name": "mlflow", "args": {"experiment": "tests", "uri": uri}})
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    history = [one for key in found.data.metrics for one in client.get_metric_history(found.info.run_id, key)]
    check_points([(one.key, one.step, one.value) for one in history], run, lambda name: name.replace("@", "_"))
    assert any("@" in name for name, _ in expected(run)), "a name that MLflow would refuse"
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert {"steps": "6", "learner.optimizer.lr": "0.5"}.items() <= found.data.params.items()
    for finding in read_findings(run.path / "findings.jsonl"):
        assert found.data.tags[f"finding.{finding['step']}.{finding['kind']}"] == finding["sentence"]


def test_mlflow_run_that_died(tmp_path):
    mlflow = require("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    interrupted(tmp_path / "run", callbacks=[{"name": "mlflow", "args": {"uri": uri}}])
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("turnwise").experiment_id])
    assert found.info.status == "FAILED"


def test_trackio(tmp_path, monkeypatch, capsys):
    trackio = require("trackio")
    from trackio import sqlite_storage, utils

    for module in (trackio, utils, sqlite_storage):  # each keeps the folder that it was imported with
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    run = survive(tmp_path, {"name": "trackio", "args": {"project": "tests"}})
    assert capsys.readouterr().out == "", "the terminal is the live display's"
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics").fetchall()
        configs = base.execute("select config from configs").fetchall()
        alerts = base.execute("select step, title, text from alerts").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    check_points([(name, step, value) for _, step, row in rows for name, value in json.loads(row).items()], run)
    assert {"steps": 6, "learner.optimizer.lr": 0.5}.items() <= json.loads(configs[0][0]).items()
    assert alerts == [
        (one["step"], one["kind"].replace("_", " "), one["sentence"])
        for one in read_findings(run.path / "findings.jsonl")
    ]


def test_a_tracker_by_name_in_python(tmp_path):
    require("tensorboard")
    data = tiny_data(steps=0)
    sections = {name: value for name, value in data.items() if name not in ("env", "model", "steps")}
    sections |= {"env": data["env"]["name"], "model": data["model"], "callbacks": ["tensorboard"]}
    run = turnwise.train(run=tmp_path / "run", steps=0, **sections)
    assert list((run.path / "tensorboard").iterdir())
