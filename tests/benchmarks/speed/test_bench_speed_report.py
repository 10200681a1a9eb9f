"""What the results come to, from jobs whose every number is known."""

import dataclasses
import json

import pytest

from benchmarks.harness.report import Report
from benchmarks.speed.report import MedianRange, report
from benchmarks.speed.section import Section
from benchmarks.speed.variant import ON_CPU, ON_CUDA

UPDATES = {
    "update/turnwise": {"tokens_per_second": 200.0, "peak_gib": 1.0, "seconds": 0.5},
    "update/in-groups": {"tokens_per_second": 250.0, "peak_gib": 0.5, "seconds": 0.4},
    "update/full-logits": {"tokens_per_second": 50.0, "peak_gib": 4.0, "seconds": 2.0},
}
OURS = {
    "trajectories": 32,
    "step_seconds": [2.0, 4.0, 3.0],
    "rollout_seconds": [1.0, 1.0, 1.0],
    "update_seconds": [1.0, 3.0, 2.0],
    "prompt_tokens": 257,
    "completion_tokens": 133,
    "sampled_tokens": 64,
    "parameters": 6784128,
    "threads": 2,
    "peak_mib": 900.0,
    "versions": "turnwise 0.1.0",
}
TRL = {
    **OURS,
    "step_seconds": [16.0, 18.0],
    "rollout_seconds": [6.0, 6.0],
    "update_seconds": [10.0, 12.0],
    "peak_mib": 5000.0,
    "versions": "trl 1.16.0",
}
MEASURED = {
    "tokenizer": {},
    "steps/turnwise/round-0": OURS,
    "steps/turnwise/round-1": {**OURS, "step_seconds": [3.0], "rollout_seconds": [1.0], "update_seconds": [2.0]},
    "sampling/turnwise": {
        "first_seconds": [1.0, 1.0],
        "whole_seconds": [3.0, 2.0],
        "counted_decode_tokens_per_second": 2000.0,
        "engine_minus_model": 2e-7,
        "engine_minus_model_mean": 1e-8,
    },
    "sampling/generate": {"first_seconds": [2.0], "whole_seconds": [12.0]},
    "sampling/continuous": {"failure": "RuntimeError: no paged attention"},
    "turns/turnwise": {"seconds": [1.0, 2.0, 4.0], "episodes": 32},
    "turns/generate": {"seconds": [20.0], "episodes": 32},
    "uneven-turns/turnwise": {"seconds": [4.0, 4.0, 8.0], "episodes": 32},
    "uneven-turns/generate": {"seconds": [16.0], "episodes": 32},
    **UPDATES,
    "growth": {
        "turns": [2, 4, 8, 16],
        "rollout_seconds": [0.5, 0.4, 0.8, 1.6],
        "one-row": {"tokens": [64.0, 96.0, 160.0, 288.0], "update_seconds": [0.3, 0.4, 0.8, 1.6]},
        "row-per-turn": {"tokens": [1.0, 16.0, 64.0, 256.0], "update_seconds": [9.0, 0.16, 0.64, 2.56]},
    },
}
WITH_PEER = {**MEASURED, "steps/trl/round-0": TRL, "steps/trl/round-1": {**TRL, "step_seconds": [17.0]}}


def rows_of(part):
    lines = [line.split("|") for line in part.splitlines() if line.startswith("|")]
    return {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}


@pytest.fixture(scope="module")
def told():
    return report(ON_CPU, WITH_PEER)


def test_spreads():
    assert MedianRange.of([3.0, 1.0, 2.0, 10.0]) == MedianRange(median=2.5, low=1.0, high=10.0)
    assert MedianRange.of([6.0, 9.0]).over(MedianRange.of([2.0, 3.0])) == MedianRange(median=3.0, low=2.0, high=4.5)
    assert MedianRange.of([2.0, 4.0, 8.0]).per(16) == MedianRange(median=4.0, low=2.0, high=8.0)
    assert MedianRange.of([1000.0, 2000.0, 4000.0]).show(0) == "2,000 (1,000–4,000)"
    assert MedianRange.of([0.5]).show(2) == "0.50"


def test_training_steps_are_medians_over_all_rounds(told):
    results = told.results
    assert results["steps/turnwise/step_seconds"] == 3.0
    assert (results["steps/turnwise/step_seconds/min"], results["steps/turnwise/step_seconds/max"]) == (2.0, 4.0)
    assert results["steps/turnwise/trajectories_per_second"] == pytest.approx(32 / 3)
    assert results["steps/trl/trajectories_per_second"] == pytest.approx(32 / 17)
    assert results["steps/ratio_trl"] == pytest.approx(17 / 3)
    assert results["steps/ratio_trl/min"] == pytest.approx(16 / 4), "their fastest beside our slowest"
    assert results["steps/ratio_trl/max"] == pytest.approx(18 / 2)
    assert results["steps/trl/completion_tokens"] == 133
    rows = rows_of(told.parts["steps"])
    assert rows["TRL GRPOTrainer"] == [
        "1.88 (1.78–2.00)",
        "17.00 (16.00–18.00)",
        "6.00",
        "11.00",
        "257 + 133",
        "5.7 (4.0–9.0) ×",
    ]
    assert rows["turnwise"][0] == "10.67 (8.00–16.00)"
    assert told.about["peer/trl"] == "trl 1.16.0"


def test_a_peer_that_was_not_given_is_said_to_be_missing():
    made = report(ON_CPU, MEASURED)
    assert rows_of(made.parts["steps"])["TRL GRPOTrainer"][0] == "not measured: give `--peer`"
    assert not any("trl" in name for name in (*made.results, *made.about))


def test_a_side_that_did_other_work_is_not_compared():
    with pytest.raises(AssertionError, match="trl did other work"):
        report(ON_CPU, {**WITH_PEER, "steps/trl/round-0": {**TRL, "prompt_tokens": 200}})


def test_sampling_with_and_without_the_prompts(told):
    results = told.results
    assert results["sampling/turnwise/decode_tokens_per_second"] == pytest.approx(32 * 63 / 1.5)
    assert results["sampling/turnwise/decode_tokens_per_second/max"] == pytest.approx(32 * 63 / 1)
    assert results["sampling/turnwise/overall_tokens_per_second"] == pytest.approx(32 * 64 / 2.5)
    assert results["sampling/ratio_generate/decode"] == pytest.approx(10 / 1.5)
    assert results["sampling/ratio_generate/overall"] == pytest.approx(12 / 2.5)
    assert results["sampling/turnwise/engine_minus_model"] == 2e-7
    rows = rows_of(told.parts["sampling"])
    assert rows["transformers continuous batching"][0] == "did not run: RuntimeError: no paged attention"
    assert rows["vLLM"][0] == "not installed"
    assert rows["transformers `generate`"] == ["202", "171", "6.7 ×", "4.8 ×"]
    assert "as a share of the largest logprob: 2.0e-07." in told.parts["sampling"]


def test_rounding_is_told_where_it_was_measured():
    own = {**MEASURED["sampling/turnwise"], "engine_minus_float32": 0.004, "model_minus_float32": 0.003}
    made = report(ON_CPU, {**MEASURED, "sampling/turnwise": own})
    assert "4.0e-03 for the engine, 3.0e-03 for the model's own forward pass" in made.parts["sampling"]
    assert made.results["sampling/turnwise/model_minus_float32"] == 0.003


def test_episodes_and_updates(told):
    results = told.results
    assert results["turns/turnwise/episodes_per_second"] == 16
    assert results["turns/ratio_generate"] == pytest.approx(10)
    assert results["turns/uneven/turnwise/episodes_per_second"] == 8
    assert results["turns/uneven/turnwise/episodes_per_second/min"] == 4
    assert results["turns/uneven/generate/episodes_per_second"] == 2
    assert results["turns/uneven/ratio_generate"] == 4
    rows = rows_of(told.parts["turns"])
    assert rows[""] == ["episodes/s, turns of 16 tokens", "we are faster by", "turns of 8 to 24", "we are faster by"]
    assert rows["turnwise"] == ["16.0 (8.0–32.0)", "", "8.0 (4.0–8.0)", ""]
    assert rows["loop around `generate`"] == ["1.6", "10.0 ×", "2.0", "4.0 ×"]
    assert (results["update/ratio_turnwise"], results["update/memory_ratio_turnwise"]) == (4, 4)
    rows = rows_of(told.parts["update"])
    assert rows["turnwise"] == ["200", "1.00", "4.00 ×", "4.00 ×"]
    assert rows["turnwise, groups with one prompt each"] == ["250", "0.50", "5.00 ×", "8.00 ×"]


def test_growth_is_fitted_from_four_turns_on(told):
    results = told.results
    assert results["growth/rollout_seconds/exponent"] == pytest.approx(1)
    assert results["growth/one-row/update_seconds/exponent"] == pytest.approx(1)
    assert results["growth/row-per-turn/tokens/exponent"] == pytest.approx(2)
    assert results["growth/row-per-turn/update_seconds/exponent"] == pytest.approx(2)
    assert results["growth/one-row/tokens/16"] == 288
    rows = rows_of(told.parts["growth"])
    assert rows["one row per turn: tokens"] == ["1", "16", "64", "256", "2.00"]
    assert rows["rollout, ms"] == ["500.0", "400.0", "800.0", "1600.0", "1.00"]


def test_a_gpu_has_no_training_steps_and_a_compiled_update():
    variant = dataclasses.replace(ON_CUDA, name="h200", about="NVIDIA H200")
    results = {name: found for name, found in MEASURED.items() if not name.startswith("steps/")}
    results["update/compiled"] = {"tokens_per_second": 400.0, "peak_gib": 2.0}
    made = report(variant, results)
    assert set(made.parts) == {"setting", "sampling", "turns", "update", "growth"}
    assert made.results["update/ratio_compiled"] == 8
    assert made.parts["setting"] == (
        "Device: NVIDIA H200; model: random weights of SmolLM2-135M's shape, bfloat16; 2 threads."
    )
    assert made.about["device"] == "NVIDIA H200"


PAGE = """# Speed
<!-- section: cpu -->
<!-- results: one -->
old
<!-- end -->
<!-- end of section: cpu -->
<!-- section: h200 -->
<!-- results: one -->
kept
<!-- end -->
<!-- end of section: h200 -->
"""


def section(tmp_path, variant=ON_CPU):
    return Section(name="speed", root=tmp_path, section=variant.name, heading=variant.about)


def publish(tmp_path, variant, text):
    publication = section(tmp_path, variant)
    publication.publish(Report(results={"x": 1.0}, parts={"one": text}), page=publication.read_page())
    return publication


def test_each_device_fills_its_own_section_and_file(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/speed.md").write_text(PAGE)
    gpu = dataclasses.replace(ON_CUDA, name="h200", about="NVIDIA H200")
    publish(tmp_path, ON_CPU, "new")
    assert (tmp_path / "docs/speed.md").read_text() == PAGE.replace("old", "new")
    publish(tmp_path, gpu, "fast")
    assert (tmp_path / "docs/speed.md").read_text() == PAGE.replace("old", "new").replace("kept", "fast")
    for name in ("speed-cpu", "speed-h200"):
        assert json.loads((tmp_path / f"benchmarks/results/{name}.json").read_text()) == {"x": 1.0}


def test_a_device_without_a_section_is_given_one(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/speed.md").write_text(PAGE)
    page = section(tmp_path, dataclasses.replace(ON_CUDA, name="a100", about="NVIDIA A100-SXM4-80GB")).read_page()
    assert page.startswith(PAGE)
    assert "<!-- section: a100 -->\n## NVIDIA A100-SXM4-80GB\n" in page
    for part in ("origin", "setting", "sampling", "turns", "update", "growth"):
        assert page.count(f"<!-- results: {part} -->") == 1


def test_a_section_that_does_not_end(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/speed.md").write_text(PAGE.replace("<!-- end of section: cpu -->", ""))
    with pytest.raises(ValueError, match="the section 'cpu' needs <!-- section: cpu --> and <!-- end of section: cpu"):
        section(tmp_path).read_page()
