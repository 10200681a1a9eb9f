"""The benchmark of one recipe on every engine and cluster: what it runs, and what it prints."""

import json
from types import SimpleNamespace

from benchmarks.scale import ways
from turnwise.config import load_config


def write_run(folder, last):
    folder.mkdir(parents=True)
    interval = {"evaluate/success_low": 0.1, "evaluate/success_high": 1.0}
    records = [
        {"stage": "evaluate", "step": 0, "evaluate/success": 0.0, **interval},
        {"stage": "train", "step": 1, "rollout/success": 0.25},
        {"stage": "evaluate", "step": 1, "evaluate/success": last, **interval},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "report.html").touch()


def test_ways_differ_in_their_own_settings_alone_and_start_from_one_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = []

    def run(command, **options):
        start = command.index("train") + 1
        arguments, folder = command[start:-3], tmp_path / command[-2]
        asked.append((folder.name, command[2], load_config(arguments[0], arguments[1:])))
        write_run(folder, last=0.5)

    monkeypatch.setattr(ways, "subprocess", SimpleNamespace(run=run, DEVNULL=None))
    assert ways.main(["local", "asynchronous", "ray", "fsdp2", "vllm", "--run", "runs"]) == 0
    assert [name for name, _, _ in asked] == ["cold", "local", "asynchronous", "ray", "fsdp2", "vllm"]
    assert [module for _, module, _ in asked] == [*["turnwise"] * 4, "torch.distributed.run", "turnwise"]
    _, base, *others = (config.model_dump() for _, _, config in asked)
    assert base["model"]["name"] == str(tmp_path / "runs/cold/checkpoints/step-000000/model")
    assert (base["sft"], base["steps"]) == (None, 8)
    changed = [{name for name in base if base[name] != other[name]} for other in others]
    assert changed == [{"rollout", "loss"}, {"cluster"}, {"learner"}, {"engine"}]
    assert ways.main(["--run", "runs"]) == 0, "prints what there is"
    assert len(asked) == 6, "and runs nothing twice"
    rows = capsys.readouterr().out.splitlines()[-5:]
    assert rows[0] == (
        "| local | `turnwise train encyclopedia-grpo` | 0 | .000 [.100, 1.000] |  | .500 [.100, 1.000] | .25 |"
    )
    torchrun = "torchrun --standalone --nproc-per-node 2 -m -- turnwise train encyclopedia-grpo learner.shard=true"
    assert rows[3].startswith(f"| FSDP2, two ranks | `{torchrun}` | 0 |")
    results = json.loads((tmp_path / ways.RESULTS).read_text())
    assert results["fsdp2/seed-0"] == {"held_out": [[0, 0.0, 0.1, 1.0], [1, 0.5, 0.1, 1.0]], "sampled": [0.25]}
