"""`turnwise doctor` on the command line: what it prints, and its exit code."""

import json

import yaml

from tiny_runs import run_tiny, tiny_data
from turnwise.cli.main import main


def write_recipe(folder, **sections):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(tiny_data(**sections)))))
    return str(path)


def test_a_sound_recipe_ends_with_0_and_says_what_it_will_take(tmp_path, capsys):
    recipe = write_recipe(tmp_path, sft={"demonstrations": 16}, steps=4)
    assert main(["doctor", recipe, "--run", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "✗" not in printed
    assert "a training step will take about" in printed
    assert "recipe.yaml: 0 alarms, 0 signs" in printed
    assert not (tmp_path / "run").exists()


def test_a_fault_ends_with_1_in_words_and_in_json(tmp_path, capsys):
    recipe = write_recipe(tmp_path, steps=4)
    command = ["doctor", recipe, "--json", "learner.optimizer.warmup_steps=9", "rollout.turn_tokens=1"]
    assert main(command) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] is False
    assert [one["kind"] for one in told["findings"]] == ["setting_without_effect", "turns_too_short"]
    first = told["findings"][0]
    assert first["check"] == "settings"
    assert first["evidence"] == {"warmup_steps": 9.0, "steps": 4.0}
    assert told["checks"]["limits"] == {"status": "found"}
    assert told["checks"]["parity"] == {"status": "ok"}
    assert told["figures"]["step_seconds"] > 0


def test_a_run_is_read_and_its_checkpoint_probed(tmp_path, capsys):
    run = run_tiny(tmp_path / "run", steps=2)
    before = sorted(path for path in run.path.rglob("*") if path.is_file())
    main(["doctor", str(run.path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoint"]["checks"]["weights"] == {"status": "ok"}
    assert told["checks"]["parity"] == {"status": "ok"}
    assert sorted(path for path in run.path.rglob("*") if path.is_file()) == before, "a run is only read"


def test_what_is_neither_a_recipe_nor_a_run_is_one_line(tmp_path, capsys):
    assert main(["doctor", str(tmp_path)]) == 2
    assert "not a run" in capsys.readouterr().err
    assert main(["doctor", "no-such-recipe"]) == 2
    assert "no such recipe" in capsys.readouterr().err
