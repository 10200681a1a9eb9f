"""A run writes down what it did, ends where it must however often it was killed, and obeys every switch."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny_runs import (
    COLD_START,
    Died,
    model_folder,
    records,
    run_tiny,
    same_weights,
    tiny_config,
    tiny_data,
    weights,
)
from turnwise.config import ALGORITHMS, load_config
from turnwise.errors import RunError
from turnwise.runs import RunDirectory, load_state, read_trajectories
from turnwise.types import Group

SHORT_COLD_START = {"demonstrations": 128, "batch": 8, "optimizer": {"lr": 3e-2, "schedule": "cosine"}}
PPO = {
    "credit": {"estimator": "gae", "gamma": 0.99, "lam": 0.95},
    "loss": {"kl": 0.05, "entropy": 0.01},
    "learner": {
        "epochs": 2,
        "minibatches": 2,
        "optimizer": {"lr": 3e-3, "schedule": "cosine", "warmup_steps": 1},
        "critic": {"optimizer": {"lr": 1e-2}, "warmup": 1},
    },
}
"""All the state a learner can have: a critic, a reference, two optimizers, schedules and a warm-up."""
STEPS = 4
WATCHED = {"steps": STEPS, "checkpoint": {"every": 1, "keep": 3}, "evaluate": {"every": 2, "untrained": True}}


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A model that knows the words of the game; runs that try one switch each start from it."""
    return model_folder(run_tiny(tmp_path_factory.mktemp("cold") / "run", steps=0, cold_start=COLD_START), 0)


@pytest.fixture(scope="module")
def ways(cold):
    """Three kinds of run, whose states differ: the policy alone; everything; adapters with noise."""
    lora = {"name": str(cold), "lora": {"rank": 4, "dropout": 0.1}}
    return {
        "grpo": {**WATCHED, "cold_start": SHORT_COLD_START},
        "ppo": {**WATCHED, "cold_start": SHORT_COLD_START, **PPO},
        "lora": {**WATCHED, "cold_start": {**SHORT_COLD_START, "demonstrations": 16}, "model": lora},
    }


@pytest.fixture(scope="module")
def unbroken(ways, tmp_path_factory):
    """Runs that nobody killed, by way; made once each."""
    made: dict[str, RunDirectory] = {}

    def make(way: str) -> RunDirectory:
        if way not in made:
            made[way] = run_tiny(tmp_path_factory.mktemp("unbroken") / way, **ways[way])
        return made[way]

    return make


def test_a_run_holds_its_config_metrics_and_files(unbroken, ways):
    run = unbroken("grpo")
    assert load_config(run.config) == tiny_config(**ways["grpo"])
    assert [(record["stage"], record["step"]) for record in records(run)] == [
        ("untrained", 0),
        *(("cold_start", step) for step in range(1, 17)),
        ("evaluate", 0),
        ("train", 1),
        ("train", 2),
        ("evaluate", 2),
        ("train", 3),
        ("train", 4),
        ("evaluate", 4),
    ]
    assert {file.stem for file in run.trajectories.iterdir()} == {
        "untrained-000000",
        "cold_start-000000",
        *(f"evaluate-00000{step}" for step in (0, 2, 4)),
        *(f"train-00000{step}" for step in (1, 2, 3, 4)),
    }
    kept = [int(folder.name.removeprefix("step-")) for folder in run.checkpoints.iterdir()]
    assert sorted(kept) == [0, 2, 3, 4], "the start of training, and the three newest"
    losses = [record["sft/loss"] for record in records(run, "cold_start")]
    assert losses[-1] < losses[0]


def test_what_was_sampled_is_what_is_learnt_from(unbroken):
    """The learner scores the sampler's tokens as the sampler did, to float32's rounding, at every step."""
    train = records(unbroken("grpo"), "train")
    assert all(record["policy/steps_taken"] == 1 for record in train)
    assert max(record["policy/sampler_gap_max"] for record in train) < 1e-4
    assert [record["rollout/episodes"] for record in train] == [16.0] * STEPS


def test_trajectories_are_stored_with_their_advantages(unbroken):
    """GRPO's advantage, computed here from the stored rewards alone, stands beside every token of its trajectory."""
    run = unbroken("grpo")
    groups = read_trajectories(run.trajectory_file("train", 1))
    rows = pq.read_table(run.trajectory_file("train", 1)).to_pylist()
    assert [len(group.trajectories) for group in groups] == [4, 4, 4, 4]
    assert any(len({member.reward for member in group.trajectories}) > 1 for group in groups), "somebody was right"
    for place, group in enumerate(groups):
        returns = torch.tensor([member.reward for member in group.trajectories], dtype=torch.double)
        expected = (returns - returns.mean()) / (returns.std() if returns.std() > 0 else 1.0)
        stored = [row for row in rows if row["group"] == place]
        for row, advantage, member in zip(stored, expected, group.trajectories, strict=True):
            assert [len(turn["advantages"]) for turn in row["turns"]] == [len(t.action_ids) for t in member.turns]
            everywhere = [one for turn in row["turns"] for one in turn["advantages"]]
            assert everywhere == pytest.approx([float(advantage)] * member.action_tokens)
    mean = sum(member.reward for group in groups for member in group.trajectories) / 16
    assert records(run, "train")[0]["rollout/reward"] == pytest.approx(mean)


def test_turns_know_the_weights_that_sampled_them(unbroken):
    for step in range(1, STEPS + 1):
        groups = read_trajectories(unbroken("grpo").trajectory_file("train", step))
        assert {turn.version for turn in _turns(groups)} == {step - 1}


def test_demonstrations_are_stored_and_have_no_advantage(unbroken):
    file = unbroken("grpo").trajectory_file("cold_start", 0)
    assert len(read_trajectories(file)) == SHORT_COLD_START["demonstrations"]
    turns = [turn for row in pq.read_table(file).to_pylist() for turn in row["turns"]]
    assert {turn["action_text"] for turn in turns} == {f"{word}<|im_end|>" for word in ("up", "down", "left", "right")}
    assert all(turn["advantages"] is None for turn in turns)


@pytest.mark.parametrize("way", ["grpo", "lora"])
def test_a_checkpoint_is_a_hugging_face_model(unbroken, way):
    """transformers' own greedy decoding says what our evaluation of the same weights said."""
    run = unbroken(way)
    model = AutoModelForCausalLM.from_pretrained(model_folder(run, STEPS)).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder(run, STEPS))
    (first, *_) = read_trajectories(run.trajectory_file("evaluate", STEPS))
    read: list[int] = []
    for turn in first.trajectories[0].turns:
        read += turn.context_ids
        said = model.generate(torch.tensor([read]), max_new_tokens=4, do_sample=False)[0, len(read) :].tolist()
        assert said == list(turn.action_ids)
        read += said
    opening = [{"role": "user", "content": "sun"}]
    text = tokenizer.apply_chat_template(opening, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text) == list(first.trajectories[0].turns[0].context_ids)


DEATHS = [
    ("grpo", "training", 3, 1),
    ("grpo", "episodes", 7, 1),
    ("grpo", "cold start", 2, 1),
    ("grpo", "evaluation after step 0", 2, 1),
    ("grpo", "evaluation after step 4", 1, 3),
    ("ppo", "training", 3, 1),
    ("ppo", "training", 4, 3),
    ("lora", "training", 3, 2),
]


@pytest.mark.parametrize(("way", "event", "number", "every"), DEATHS)
def test_a_run_that_died_goes_on_as_if_it_had_not(unbroken, ways, way, event, number, every, tmp_path):
    """It dies at an event, with checkpoints every so many steps; once resumed, nothing tells the two runs apart."""
    sections = {**ways[way], "checkpoint": {"every": every}}
    with pytest.raises((Died, ExceptionGroup)) as death:
        run_tiny(tmp_path / "run", die=lambda *met: met == (event, number), **sections)
    assert f"Died('{event} {number}')" in repr(death.value)
    run = run_tiny(tmp_path / "run", resume=True, **sections)
    _assert_equal_runs(run, unbroken(way))


def test_a_run_that_was_killed_goes_on_as_if_it_had_not(unbroken, ways, tmp_path):
    """SIGKILL, at a moment that nobody chose."""
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tiny_data(**ways["ppo"])))
    command = [sys.executable, "-m", "turnwise.cli", "train", str(recipe), "--run", str(folder)]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, env={**os.environ, **threads}, stdout=subprocess.DEVNULL)
    delay = random.random() * 1.5
    try:
        _wait_for(folder / "metrics.jsonl", process)
        time.sleep(delay)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    steps = sorted(file.name for file in (folder / "trajectories").iterdir())
    run = run_tiny(folder, resume=True, **ways["ppo"])
    _assert_equal_runs(run, unbroken("ppo"), f"killed {delay:.2f} s after its metrics began, with {steps} written")


def test_a_run_can_be_made_longer(unbroken, ways, tmp_path):
    run_tiny(tmp_path / "run", **{**ways["grpo"], "steps": 2})
    run = run_tiny(tmp_path / "run", resume=True, **ways["grpo"])
    assert same_weights(weights(run, STEPS), weights(unbroken("grpo"), STEPS))
    assert [record["step"] for record in records(run, "train")] == [1, 2, 3, 4]
    assert load_config(run.config).steps == STEPS


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = run_tiny(tmp_path / "run", steps=1)
    before = first.metrics.read_text()
    run_tiny(tmp_path / "run", steps=1, resume=True)
    assert first.metrics.read_text() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed is 1 now and was 0"),
        ({"rollout": {"tasks": 3}}, "rollout.tasks is 3 now and was 4"),
        ({"credit": {"estimator": "rloo"}}, "credit.estimator is 'rloo' now and was 'grpo'"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(unbroken, ways, change, said):
    before = unbroken("grpo").config.read_text()
    with pytest.raises(RunError, match=said) as error:
        run_tiny(unbroken("grpo").path, resume=True, **{**ways["grpo"], **change})
    assert "\n" not in str(error.value)
    assert unbroken("grpo").config.read_text() == before


@pytest.mark.parametrize("way", ["grpo", "lora"])
def test_the_seed_decides(unbroken, ways, way, tmp_path):
    """Dropout, too, whatever else drew from torch's generator in the meantime."""
    again = run_tiny(tmp_path / "again", **ways[way])
    _assert_equal_runs(again, unbroken(way))
    other = run_tiny(tmp_path / "other", seed=1, **ways[way])
    assert not same_weights(weights(other, STEPS), weights(unbroken(way), STEPS))
    assert records(other, "train") != records(unbroken(way), "train")


@pytest.fixture(scope="module")
def one_step(cold, tmp_path_factory):
    """One step from the same weights, by algorithm and switches; equal ones are run once."""
    made: dict[str, RunDirectory] = {}

    def make(algorithm: str, steps: int = 1, **sections: object) -> RunDirectory:
        key = repr((algorithm, steps, sections))
        if key not in made:
            given = {name: dict(values) for name, values in ALGORITHMS[algorithm].items()}
            for name, values in sections.items():
                given[name] = {**given.get(name, {}), **values}
            folder = tmp_path_factory.mktemp("one_step") / "run"
            made[key] = run_tiny(folder, steps=steps, model={"name": str(cold)}, evaluate={"tasks": 1}, **given)
        return made[key]

    return make


SWITCHES = [
    ("ppo", {"credit": {"advantage_mask": False}}),
    ("ppo", {"loss": {"action_mask": False}}),
    ("grpo", {"loss": {"action_mask": False}}),
    ("ppo", {"credit": {"advantage_mask": False}, "loss": {"action_mask": False}}),
    ("grpo", {"loss": {"entropy": 0.1}}),
    ("grpo", {"loss": {"aggregation": "trajectory"}}),
    ("grpo", {"learner": {"minibatches": 2, "optimizer": {"lr": 3e-3}}}),
    ("grpo", {"credit": {"divide_by_std": False}}),
]


@pytest.mark.parametrize(("algorithm", "sections"), SWITCHES, ids=str)
def test_a_switch_changes_what_is_learnt_and_not_what_was_sampled(one_step, algorithm, sections):
    plain, switched = one_step(algorithm), one_step(algorithm, **sections)
    (before,), (after,) = records(plain, "train"), records(switched, "train")
    sampled = {name for name in before if name.startswith(("rollout/", "reward/", "env/"))}
    assert {name: before[name] for name in sampled} == {name: after[name] for name in sampled}
    assert all(value is not None for value in after.values()), "a null stands for NaN"
    assert after["policy/steps_taken"] > 0
    assert not same_weights(weights(switched, 1), weights(plain, 1))


def test_the_advantage_mask_is_nothing_to_grpo(one_step):
    """A trajectory has one advantage, whichever of its tokens are counted: the switch must not disturb it."""
    masked, unmasked = one_step("grpo"), one_step("grpo", credit={"advantage_mask": False})
    assert same_weights(weights(masked, 1), weights(unmasked, 1))


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_kl_holds_a_policy_that_has_moved(one_step, place):
    """Nobody has moved at the first step; at the second the divergence changes what is learnt, not what was paid."""
    free = one_step("reinforce++", steps=2)
    held = one_step("reinforce++", steps=2, loss={"kl": 0.5, "kl_in": place})
    assert records(held, "train")[0]["policy/kl_to_reference"] == pytest.approx(0, abs=1e-6)
    assert records(held, "train")[1]["policy/kl_to_reference"] > 1e-6
    assert not same_weights(weights(free, 2), weights(held, 2))
    paid = [pq.read_table(run.trajectory_file("train", 2)).column("reward").to_pylist() for run in (free, held)]
    assert paid[0] == paid[1]


def test_the_critic_warms_up_before_the_policy_moves(one_step):
    critic = {"optimizer": {"lr": 1e-2}, "warmup": 1}
    run = one_step("ppo", steps=2, learner={"optimizer": {"lr": 3e-3}, "critic": critic})
    first, second = records(run, "train")
    assert (first["critic/warming_up"], second["critic/warming_up"]) == (1.0, 0.0)
    assert "policy/loss" not in first
    assert first["critic/steps_taken"] == 1
    start, after = weights(run, 0), weights(run, 2)
    assert not same_weights(start, after)
    assert same_weights(start, weights(one_step("ppo", steps=1, learner={"critic": critic}), 1))


def test_epochs_and_minibatches_are_optimizer_steps(one_step):
    run = one_step("grpo", learner={"epochs": 3, "minibatches": 2, "optimizer": {"lr": 3e-3}})
    (record,) = records(run, "train")
    assert record["policy/steps_taken"] + record["policy/steps_idle"] == 6
    assert record["policy/clip_fraction"] >= 0
    assert record["policy/approx_kl"] > 0, "later steps meet a policy that earlier ones moved"


def test_adapters_train_and_leave_the_weights_beneath_alone(unbroken, cold):
    run = unbroken("lora")
    state = load_file(run.checkpoints / f"step-{STEPS:06d}" / "model" / "adapter" / "adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in state.items() if "lora_B" in name), "B began at zero"
    before, after = load_file(cold / "model.safetensors"), weights(run, STEPS)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("_proj.weight" in name for name in moved), "embeddings, norms and biases have no adapter"


def _assert_equal_runs(run: RunDirectory, other: RunDirectory, why: str = "") -> None:
    """Equal weights and states bit for bit, equal metrics but for time, equal trajectories but for seconds."""
    assert same_weights(weights(run, STEPS), weights(other, STEPS)), why
    here, there = (load_state(one.checkpoints / f"step-{STEPS:06d}" / "state.pt") for one in (run, other))
    assert _differences(here["learner"], there["learner"]) == [], why
    assert records(run) == records(other), why
    names = [file.name for file in sorted(other.trajectories.iterdir())]
    assert [file.name for file in sorted(run.trajectories.iterdir())] == names, why
    for name in names:
        rows = [pq.read_table(one.trajectories / name).drop_columns("seconds").to_pylist() for one in (run, other)]
        assert rows[0] == rows[1], f"{name} {why}"


def _differences(one: object, other: object, where: str = "") -> list[str]:
    """Where two states differ, down to the last bit of every tensor."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in _differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for place, pair in pairs for found in _differences(*pair, f"{where}[{place}]")]
    equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if equal else [where]


def _turns(groups: list[Group]):
    return [turn for group in groups for member in group.trajectories for turn in member.turns]


def _wait_for(file: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert file.exists(), "the run never began"
