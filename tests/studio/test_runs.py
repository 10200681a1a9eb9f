"""The list of runs and one run's page: true to its files, live, and unmoved by what is half-written or damaged."""

import json
import math

import pytest

from studio_runs import make_studio_run, serving, write_step
from turnwise.runs import MetricsLog, RunDirectory, read_metrics
from turnwise.runs.ledger.totals import read_totals
from turnwise.runs.listing import describe_run
from turnwise.studio.curves import Stage, keep_extremes


def lines_of(client):
    return {run["name"]: run for run in client.get("/api/runs")["runs"]}


def test_the_list_agrees_with_turnwise_runs(client, folder):
    for name, line in lines_of(client).items():
        same = describe_run(folder / name)
        shown = (line["status"], line["step"], line["steps"], line["best"], line["best_step"], line["last"])
        assert shown == (same.status, same.step, same.steps, same.best, same.best_step, same.last)
        assert (line["environment"], line["estimator"]) == (same.environment, same.estimator)


def test_what_differs_between_configs_is_named(client):
    lines = lines_of(client)
    assert lines["first"]["differs"] == {"seed": "0", "learner.optimizer.lr": "0.0003"}
    assert lines["sweep/second"]["differs"] == {"seed": "1", "learner.optimizer.lr": "0.001"}
    assert client.get("/api/runs")["differing"] == ["seed", "learner.optimizer.lr"]


def test_what_tells_most_comes_first_and_what_has_no_effect_is_left_out(tmp_path):
    own = "engine: {slots: 4}\nlearner: {optimizer: {lr: 0.1}}\nmodel: {name: small, small: {layers: 2}}\n"
    RunDirectory.create(tmp_path / "own", own)
    other = "engine: {slots: 8}\nlearner: {optimizer: {lr: 0.2}}\nmodel: {name: qwen, small: {layers: 4}}\n"
    RunDirectory.create(tmp_path / "other", other)
    with serving(tmp_path) as client:
        lines = lines_of(client)
    order = ["model.name", "learner.optimizer.lr", "engine.slots"]
    assert list(lines["other"]["differs"]) == order
    assert list(lines["own"]["differs"]) == [*order, "model.small.layers"]


def test_a_small_curve_is_of_held_out_success_where_there_are_two(tmp_path):
    """Training success may fall while the greedy agent learns."""
    log = MetricsLog(RunDirectory.create(tmp_path / "run", "steps: 2\n").metrics)
    log.write(0, "evaluate", {"evaluate/success": 0.25})
    for step, reward in ((1, 0.5), (2, 0.125)):
        log.write(step, "train", {"rollout/reward": reward})
    with serving(tmp_path) as client:
        assert lines_of(client)["run"]["spark"] == [0.5, 0.125]
        log.write(2, "evaluate", {"evaluate/success": 0.75})
        assert lines_of(client)["run"]["spark"] == [0.25, 0.75]


def test_a_run_has_its_findings_decisions_checkpoints_and_files(client, first):
    about = client.get(f"/api/runs/{first}")
    assert [(one["step"], one["kind"], one["rollback_to"]) for one in about["findings"]] == [
        (2, "echo_trap", None),
        (2, "enable_starpo_s", 1),
    ]
    assert about["checkpoints"] == [2]
    assert about["files"] == {"evaluate": [0, 2], "train": [1, 2, 3]}
    assert about["problems"] == []
    assert "rollout/reward" in [metric["name"] for metric in about["metrics"]]
    assert not [metric for metric in about["metrics"] if metric["name"].startswith("ledger/")]


def test_curves_are_the_recorded_values_with_their_intervals(client, first, folder):
    asked = "name=rollout/reward&name=evaluate/success&name=nothing/here"
    reward, success = client.get(f"/api/runs/{first}/series?{asked}")["series"]
    train = [record for record in read_metrics(folder / "first" / "metrics.jsonl") if record["stage"] == "train"]
    assert reward["value"] == [record["rollout/reward"] for record in train]
    assert reward["step"] == [1, 2, 3]
    assert (success["stage"], success["value"], success["low"], success["high"]) == (
        "evaluate",
        [0.0, 0.2],
        [0.0, 0.1],
        [0.1, 0.35],
    )


def test_long_curves_keep_their_spikes():
    values = [0.0] * 100_000
    values[31_337], values[77_777] = 9.0, -9.0
    kept = keep_extremes(values, 1000)
    assert len(kept) <= 1000
    assert {0, 31_337, 77_777, 99_999} <= set(kept)
    assert keep_extremes([math.nan] * 50, 10) == [0, 49]


def test_the_ledgers_bars_sum_to_the_ledger(client, first, folder):
    ledger = client.get(f"/api/runs/{first}/ledger")
    totals = read_totals(read_metrics(folder / "first" / "metrics.jsonl")).accounts()
    summed = {name: sum(bar["seconds"].get(name, 0) for bar in ledger["bars"]) for name in totals}
    assert summed == totals
    assert [bar["label"] for bar in ledger["bars"]] == ["cold start", "step 1", "step 2", "step 3"]
    assert [account["name"] for account in ledger["accounts"]] == ["decode", "update", "sft"]


def test_health_counts_failures_stops_and_breaks_by_cause(client, first):
    health = client.get(f"/api/runs/{first}/health")
    rows = {row["name"]: row for row in health["rows"]}
    assert (rows["rollout/failed"]["total"], rows["rollout/failed"]["values"]) == (3, [1, 1, 1])
    assert rows["rollout/stop_max_turns"]["total"] == pytest.approx(0.2)
    assert rows["env/breaks_rewritten"]["about"] == "rows that broke: rewritten"
    (failure,) = health["failures"]
    assert (failure["kind"], failure["count"], failure["example"]["name"]) == ("step: KeyError", 3, "train-3/1/2")


def test_a_live_run_grows_and_a_resumed_one_shrinks(tmp_path):
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    with serving(tmp_path) as client:
        name = client.run_id("live")
        path = f"/api/runs/{name}/series?name=rollout/reward"
        assert client.get(path)["series"][0]["step"] == [1, 2]
        write_step(run, 3)
        assert client.get(path)["series"][0]["step"] == [1, 2, 3]
        assert lines_of(client)["live"]["step"] == 3
        with run.metrics.open("a") as file:
            file.write('{"step": 4, "stage": "train", "ro')  # as a killed process leaves it, or before it is whole
        assert client.get(path)["series"][0]["step"] == [1, 2, 3]
        assert client.get(f"/api/runs/{name}")["problems"] == []
        MetricsLog(run.metrics).truncate_after(1)
        assert client.get(path)["series"][0]["step"] == [1]
        assert lines_of(client)["live"]["step"] == 1


def test_events_tell_which_run_has_written(tmp_path):
    run = make_studio_run(tmp_path / "live", steps=1, ended=False)
    with serving(tmp_path) as client:
        name = client.run_id("live")
        connection = open_events(client, name)
        stream = connection.getresponse()
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert stream.readline() == b"retry: 2000\n"
        write_later(run)
        told = next(line for line in iter(stream.readline, b"") if line.startswith(b"event"))
        assert told == b"event: change\n"
        assert stream.readline() == f"data: {json.dumps({'id': name})}\n".encode()
        connection.close()


def open_events(client, name):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", client.studio.port, timeout=20)
    connection.request("GET", f"/api/events?run={name}", headers={"Cookie": client.cookie})
    return connection


def write_later(run):
    """Twice, apart: the first look at a run only learns how it is."""
    import threading
    import time

    def write():
        for step in (2, 3):
            time.sleep(1.5)
            write_step(run, step)

    threading.Thread(target=write, daemon=True).start()


def test_a_damaged_run_opens_with_what_can_be_read(tmp_path):
    run = make_studio_run(tmp_path / "broken")
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"step": 1, "stage": "train", "time": 1.0, "rollout/rew\x00\xff}\n'
    run.metrics.write_bytes(b"".join(lines))
    run.config.write_text("env: {name: [\n")
    (run.path / "findings.jsonl").write_text("not json\n")
    run.versions.write_bytes(b"\xff\xfe")
    whole = run.trajectory_file("train", 2).read_bytes()
    run.trajectory_file("train", 2).write_bytes(whole[: len(whole) // 2])
    run.trajectory_file("evaluate", 2).write_bytes(b"")
    with serving(tmp_path) as client:
        name = client.run_id("broken")
        about = client.get(f"/api/runs/{name}")
        for part in ("config.yaml", "findings.jsonl", "versions.json", "line 3"):
            assert any(part in problem for problem in about["problems"]), part
        assert client.get(f"/api/runs/{name}/series?name=rollout/reward")["series"][0]["step"] == [2, 3]
        found = client.get(f"/api/runs/{name}/trajectories")
        assert {(row["stage"], row["step"]) for row in found["rows"]} == {("train", 1), ("train", 3), ("evaluate", 0)}
        assert sorted(problem.split()[0] for problem in found["problems"]) == [
            "evaluate-000002.parquet",
            "train-000002.parquet",
        ]
        assert client.get(f"/api/runs/{name}/trajectory/train-1/0/0")["reward"] == 1.25
        for page in ("ledger", "health"):
            client.get(f"/api/runs/{name}/{page}")
        status, _, body = client.ask(f"/api/runs/{name}/trajectory/train-2/0/0")
        assert (status, "train-000002.parquet" in json.loads(body)["error"]) == (404, True)


def test_a_file_that_is_damaged_within_is_one_line(tmp_path):
    run = make_studio_run(tmp_path / "bent")
    path = run.trajectory_file("train", 1)
    content = bytearray(path.read_bytes())
    content[200:6000] = bytes(5800)
    path.write_bytes(content)
    with serving(tmp_path) as client:
        name = client.run_id("bent")
        status, _, body = client.ask(f"/api/runs/{name}/trajectory/train-1/0/0")
        assert (status, "\n" in json.loads(body)["error"]) == (404, False)
        client.get(f"/api/runs/{name}/trajectories?text=Oslo")


def test_a_run_whose_tokenizer_is_gone_or_broken_shows_ids(tmp_path):
    run = make_studio_run(tmp_path / "plain")
    file = run.checkpoints / "step-000002" / "model" / "tokenizer.json"
    file.write_text("{")
    with serving(tmp_path) as client:
        shown = client.get(f"/api/runs/{client.run_id('plain')}/trajectory/train-1/0/0")
        assert shown["pieces"] is False
        token, text = shown["turns"][0]["context"][0]
        assert text == f"⟨{token}⟩"


def test_a_run_that_has_only_begun_is_listed(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("steps: 4\n")
    with serving(tmp_path / "new") as client:
        (line,) = client.get("/api/runs")["runs"]
        assert (line["step"], line["steps"], line["best"]) == (0, 4, None)
        about = client.get(f"/api/runs/{line['id']}")
        assert about["problems"] == ["metrics.jsonl is not there yet"]
        assert client.get(f"/api/runs/{line['id']}/trajectories")["rows"] == []


def test_records_with_other_names_leave_gaps():
    stage = Stage()
    stage.add({"step": 1, "time": 1.0, "a/x": 1.0, "a/y": 2})
    stage.add({"step": 2, "time": 2.0, "a/x": None})
    stage.add({"step": 3, "time": 3.0, "a/x": 3.0, "a/z": 4.0})
    stage.add({"step": 4, "time": 4.0, "a/x": 5.0, "a/y": 6.0})
    shown = {name: [None if value != value else value for value in stage.column(name)] for name in stage.columns}
    assert shown == {"a/x": [1, None, 3, 5], "a/y": [2, None, None, 6], "a/z": [None, None, 4, None]}
