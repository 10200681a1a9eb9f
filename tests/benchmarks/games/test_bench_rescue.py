"""The rescue study: what each mode runs, and the table that its runs make. The runs themselves are minutes of CPU."""

import pytest

from benchmarks.games.rescue import LAST, MODES, STEPS, main, make_config, make_panels, make_table, plan


def test_modes_differ_in_their_mode_alone_and_share_a_cold_start():
    jobs = plan(range(2))
    assert list(jobs) == list(MODES)
    assert len({job.after.name for each in jobs.values() for job in each}) == 2
    configs = [make_config(mode, 1).model_dump() for mode in MODES]
    assert [config["stability"].pop("mode") for config in configs] == list(MODES)
    assert configs[0] == configs[1] == configs[2]
    assert configs[0]["learner"]["minibatches"] == 4
    assert make_config(None, 1).steps == 0


def run(success, rollbacks, lr):
    train = {
        "rollout/success": success,
        "stability/rollbacks": [0.0, float(rollbacks)],
        "optim/lr": [0.01, lr],
    }
    return {"train": train}


def test_the_table_compares_within_a_seed():
    flat, saved = [0.5] + [0.0] * (STEPS - 1), [0.5] + [0.0] * (STEPS - 1 - LAST) + [0.8] * LAST
    runs = {
        "monitor": [run(flat, 0, 0.01)] * 2,
        "auto": [run(saved, 1, 0.005), run([*saved[:-1], 0.6], 2, 0.0025)],
    }
    rows = make_table(runs).splitlines()
    assert rows[2].startswith("| monitor | 0.50 [0.50, 0.50] | 0.00 [0.00, 0.00] |  | 0.00, 0.00 | 0, 0 | 0.01, 0.01 |")
    assert "| 0.80, 0.78 | 1, 2 | 0.005, 0.0025 |" in rows[3]
    assert "+0.79 " in rows[3]
    second = make_panels(runs)[1]
    assert (second.title, [series.name for series in second.series]) == ("seed 1", ["monitor", "auto"])
    assert (second.series[1].x[0], second.series[1].y[-1]) == (1.0, 0.6)


def test_a_folder_is_needed(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "--folder" in capsys.readouterr().err
