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

from handoff_proofs import prove_the_learner_has_the_samplers_temperature
from rollout_proofs import prove_evaluations_share_their_seed
from tiny_runs import (
    Died,
    Signals,
    Silent,
    cold_model,
    model_folder,
    records,
    run_tiny,
    same_weights,
    tiny_config,
    tiny_data,
    weights,
)
from turnwise.algorithms import ALGORITHMS
from turnwise.config import load_config
from turnwise.errors import ConfigError, ModelError, RunError
from turnwise.runs import Checkpoints, RunDirectory, load_state, read_trajectories
from turnwise.runs.findings import read_findings
from turnwise.stability import monitor
from turnwise.training.trainer import run_training
from turnwise.types import Group, Message, Task

SHORT_COLD_START = {"demonstrations": 128, "batch": 8, "optimizer": {"lr": 3e-2, "schedule": "cosine"}}
DROPOUT = {"learner": {"dropout": True}}
PPO = {
    "credit": {"estimator": "gae", "gamma": 0.99, "lam": 0.95},
    "loss": {"kl_coef": 0.05, "entropy_coef": 0.01},
    "learner": {
        "epochs": 2,
        "minibatches": 2,
        "optimizer": {"lr": 3e-3, "schedule": "cosine", "warmup_steps": 1},
        "critic": {"optimizer": {"lr": 1e-2}, "warmup": 1},
    },
}
"""All the state a learner can have: a critic, a reference, two optimizers, schedules and a warm-up."""
AUTO = {
    "seed": 4,
    "steps": 18,
    "checkpoint": {"every": 2, "keep": 1},
    "rollout": {"groups_per_step": 8, "group_size": 4, "turn_tokens": 4, "max_turns": 3},
    "evaluate": {"tasks": 2},
    "loss": {"kl_coef": 0.01},
    "learner": {"optimizer": {"lr": 6e-2, "warmup_steps": 20}},
    "stability": {
        "mode": "auto",
        "monitor": {"calibration_steps": 3, "window": 1, "patience": 2},
        "starpo_s": {"filter": {"rule": "top_fraction", "keep": 0.5}, "critic_warmup": 3},
        "recovery": 2,
    },
}
"""A learning rate that rises until the policy is trapped, and a controller that is quick to act."""
ONLINE = {
    "steps": 4,
    "checkpoint": {"every": 2},
    "evaluate": {"tasks": 2, "every": 1},
    "rollout": {
        "groups_per_step": 4,
        "group_size": 4,
        "turn_tokens": 4,
        "max_turns": 3,
        "updates_per_rollout": 2,
        "task_sampler": "curriculum",
    },
    "stability": {"filter": {"rule": "nonzero", "refill": 2}},
}
STEPS = 4
WATCHED = {"steps": STEPS, "checkpoint": {"every": 1, "keep": 3}, "evaluate": {"every": 2, "untrained": True}}


@pytest.fixture(scope="module", autouse=True)
def _quick_monitor():
    """A monitor that takes less noise for a sign, so that the runs of `AUTO` are trapped and recover in 18 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "SIGMAS", 1.0)
        yield


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A model that knows the words of the game; runs that try one switch each start from it."""
    return cold_model(tmp_path_factory)


@pytest.fixture(scope="module")
def ways(cold):
    """Kinds of run whose states differ: the policy alone; everything; adapters with noise; a run that was trapped and
    went back; one whose samples serve two updates each and whose tasks depend on how they went."""
    lora = {"name": str(cold), "lora": {"rank": 4, "dropout": 0.1}}
    return {
        "grpo": {**WATCHED, "sft": SHORT_COLD_START},
        "ppo": {**WATCHED, "sft": SHORT_COLD_START, **PPO},
        "lora": {**WATCHED, "sft": {**SHORT_COLD_START, "demonstrations": 16}, "model": lora, **DROPOUT},
        "auto": {**AUTO, "model": {"name": str(cold)}},
        "online": {**ONLINE, "model": {"name": str(cold)}},
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
        *(("sft", step) for step in range(1, 17)),
        ("evaluate", 0),
        ("train", 1),
        ("train", 2),
        ("evaluate", 2),
        ("train", 3),
        ("train", 4),
        ("evaluate", 4),
        ("end", 4),
    ]
    assert {file.stem for file in run.trajectories.iterdir()} == {
        "untrained-000000",
        "sft-000000",
        *(f"evaluate-00000{step}" for step in (0, 2, 4)),
        *(f"train-00000{step}" for step in (1, 2, 3, 4)),
    }
    kept = [int(folder.name.removeprefix("step-")) for folder in run.checkpoints.iterdir()]
    assert sorted(kept) == [0, 2, 3, 4], "the start of training, and the three newest"
    losses = [record["sft/loss"] for record in records(run, "sft")]
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
    file = unbroken("grpo").trajectory_file("sft", 0)
    assert len(read_trajectories(file)) == SHORT_COLD_START["demonstrations"]
    turns = [turn for row in pq.read_table(file).to_pylist() for turn in row["turns"]]
    assert {turn["action_text"] for turn in turns} == {f"{word}<|im_end|>" for word in ("up", "down", "left", "right")}
    assert all(turn["advantages"] is None for turn in turns)


def test_a_run_may_be_saved_at_its_start_and_end_alone(tmp_path):
    run = run_tiny(tmp_path / "run", steps=3, checkpoint={"every": 0, "keep": 9})
    assert Checkpoints(run.checkpoints).steps() == [0, 3]


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
    ("auto", "training", 12, 2),
    ("auto", "training", 13, 2),
    ("auto", "training", 17, 2),
    ("online", "training", 3, 2),
    ("online", "training", 4, 2),
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
    command = [sys.executable, "-m", "turnwise", "train", str(recipe), "--run", str(folder)]
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
        ({"rollout": {"groups_per_step": 3}}, "rollout.groups_per_step is 3 now and was 4"),
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
    ("grpo", {"loss": {"entropy_coef": 0.1}}),
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
    held = one_step("reinforce++", steps=2, loss={"kl_coef": 0.5, "kl_in": place})
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


def test_a_trapped_run_goes_back_and_on_under_starpo_s(unbroken):
    run = unbroken("auto")
    train = {record["step"]: record for record in records(run, "train")}
    actions = [line for line in read_findings(run.path / "findings.jsonl") if "starpo_s" in line["kind"]]
    enable, disable = actions[:2]
    assert (enable["kind"], disable["kind"]) == ("enable_starpo_s", "disable_starpo_s")
    alarm, back = enable["step"], enable["rollback_to"]
    assert train[alarm]["stability/alarm"] == 1.0
    assert 0 < back < alarm
    assert sorted(train) == list(range(1, 19)), "the step goes on counting"
    # The step after it learnt from samples of the weights it went back to, under StarPO-S, the critic warming up.
    after = train[alarm + 1]
    assert (after["stability/trained_from"], after["stability/mode"], after["filter/kept"]) == (back, 1.0, 4.0)
    assert after["critic/warming_up"] == 1.0
    assert "policy/kl_to_reference" not in after
    assert after["health/token_entropy"] > 2 * train[alarm]["health/token_entropy"]
    assert after["optim/lr"] > train[alarm]["optim/lr"], "the schedule goes on"
    # And after recovery, under its own settings again: the reference is as it was.
    later = train[disable["step"] + 1]
    assert (later["stability/mode"], later["filter/kept"]) == (0.0, 8.0)
    assert later["policy/kl_to_reference"] > 0
    assert "critic/loss" not in later


def test_all_evaluations_of_a_run_share_their_seed():
    prove_evaluations_share_their_seed()


def test_no_sample_is_learnt_from_twice(unbroken):
    """Not even around a return to an earlier checkpoint."""
    run = unbroken("auto")
    episode_seeds = [
        member.episode_seed
        for step in range(1, 19)
        for group in read_trajectories(run.trajectory_file("train", step))
        for member in group.trajectories
    ]
    assert len(set(episode_seeds)) == len(episode_seeds) == 18 * 8 * 4


class EitherCue(Signals):
    """Begins with the one cue or the other, by task."""

    async def reset(self, task, episode_seed):
        await super().reset(task, episode_seed)
        self._cues = self._cues[:: 1 if int(task.id[-1]) % 2 else -1]
        return [Message(role="user", content=self._cues[0])]


def test_information_is_measured_when_it_is_due(cold, tmp_path):
    """A policy that has not learnt to read says the same to both prompts, whatever it says."""
    config = tiny_config(
        steps=3, model={"name": str(cold)}, stability={"monitor": {"information_every": 2, "information_sample": 4}}
    )
    run = run_training(config, tmp_path / "run", env=EitherCue(), display=Silent())
    measured = {record["step"]: record for record in records(run, "train") if "health/information" in record}
    assert list(measured) == [2]
    assert measured[2]["health/information"] == pytest.approx(0, abs=0.3)
    assert 0 <= measured[2]["health/retrieval"] <= 1


def test_one_set_of_weights_serves_several_updates(unbroken):
    run = unbroken("online")
    for step in range(1, STEPS + 1):
        groups = read_trajectories(run.trajectory_file("train", step))
        assert {turn.version for turn in _turns(groups)} == {(step - 1) // 2 * 2}
    fresh, stale = records(run, "train")[:2]
    assert fresh["policy/sampler_gap"] < 1e-4 < stale["policy/sampler_gap"], "and ratios know it"
    assert fresh["policy/approx_kl"] < 1e-6 < stale["policy/approx_kl"]


def test_dropped_groups_are_stored_and_have_no_advantage(unbroken):
    run = unbroken("online")
    for record in records(run, "train"):
        rows = pq.read_table(run.trajectory_file("train", record["step"])).to_pylist()
        learnt = {row["group"] for row in rows if row["turns"][0]["advantages"] is not None}
        spread = {
            place
            for place in {row["group"] for row in rows}
            if len({row["reward"] for row in rows if row["group"] == place}) > 1
        }
        assert learnt <= spread
        assert len(learnt) == record["filter/kept"] == min(4, len(spread))
        assert record["rollout/episodes"] == len(rows) == 16 * (1 + record["filter/refills"])
        assert record["batch/trajectories"] == 4 * record["filter/kept"]


def test_a_step_whose_groups_are_all_dropped_is_a_counted_no_op(cold, tmp_path):
    """One response of two tasks that pay alike: greedy episode seed of a policy at almost no temperature."""
    run = run_tiny(
        tmp_path / "run",
        steps=1,
        model={"name": str(cold)},
        rollout={"groups_per_step": 2, "group_size": 2, "temperature": 1e-3, "turn_tokens": 4},
        stability={"filter": {"rule": "nonzero"}},
    )
    (record,) = records(run, "train")
    assert (record["filter/nothing_left"], record["filter/kept"], record["filter/dropped"]) == (1.0, 0.0, 2.0)
    assert record["batch/trajectories"] == 0
    assert same_weights(weights(run, 0), weights(run, 1))


def test_always_is_starpo_s_from_the_first_step(one_step):
    """The same step as a run whose own settings say what StarPO-S does."""
    starpo_s = {"filter": {"rule": "top_fraction", "keep": 0.5}, "critic_warmup": 0}
    always = one_step("grpo", stability={"mode": "always", "starpo_s": starpo_s})
    spelt_out = one_step("ppo", loss={"clip_high": 0.28}, stability={"filter": {"rule": "top_fraction", "keep": 0.5}})
    assert same_weights(weights(always, 1), weights(spelt_out, 1))
    assert not same_weights(weights(always, 1), weights(one_step("grpo"), 1))
    assert records(always, "train")[0]["stability/mode"] == 1.0


def test_clipping_before_any_update_is_found(one_step):
    """Bounds of zero clip the rounding between sampler and learner; only samples of the weights at hand are judged."""
    clipped = one_step("grpo", steps=6, loss={"clip_low": 0.0, "clip_high": 0.0})
    (finding,) = [one for one in read_findings(clipped.path / "findings.jsonl") if one["kind"] == "on_policy_clipping"]
    assert finding["step"] == 3, "after the monitor's patience"
    assert finding["evidence"]["on_policy_clip"]["now"] > 0.03
    others = read_findings(one_step("grpo", steps=6).path / "findings.jsonl")
    assert not any(one["kind"] == "on_policy_clipping" for one in others)


def test_samples_of_older_weights_are_not_on_policy(cold, tmp_path):
    """Of two updates from one set of weights, the first is on-policy: three are seen in six steps."""
    rollout = {"groups_per_step": 4, "group_size": 4, "turn_tokens": 4, "max_turns": 3, "updates_per_rollout": 2}
    sections = {"rollout": rollout, "checkpoint": {"every": 6}, "evaluate": {"tasks": 1}}
    run = run_tiny(tmp_path / "run", steps=6, model={"name": str(cold)}, **sections)
    state = load_state(run.checkpoints / "step-000006" / "state.pt")
    assert len(state["stability"]["monitor"]["tracked"]["on_policy_clip"]["recent"]) == 3


def test_the_learner_has_the_samplers_temperature():
    prove_the_learner_has_the_samplers_temperature()


def test_watching_changes_nothing(one_step):
    watched, unwatched = one_step("grpo", steps=2), one_step("grpo", steps=2, stability={"mode": "off"})
    assert same_weights(weights(watched, 2), weights(unwatched, 2))
    assert not any(name.startswith(("health/", "stability/")) for r in records(unwatched, "train") for name in r)
    assert all(record["health/token_entropy"] > 0 for record in records(watched, "train"))


def _assert_equal_runs(run: RunDirectory, other: RunDirectory, why: str = "") -> None:
    """Equal weights and states bit for bit, equal metrics but for time, equal trajectories but for seconds."""
    steps = load_config(other.config).steps
    assert same_weights(weights(run, steps), weights(other, steps)), why
    here, there = (load_state(one.checkpoints / f"step-{steps:06d}" / "state.pt") for one in (run, other))
    for part in ("learner", "inactive", "sampler", "stability"):
        assert _differences(here[part], there[part], part) == [], why
    assert records(run) == records(other), why
    found = [read_findings(one.path / "findings.jsonl") for one in (run, other)]
    assert found[0] == found[1], why
    names = [file.name for file in sorted(other.trajectories.iterdir())]
    assert [file.name for file in sorted(run.trajectories.iterdir())] == names, why
    for name in names:
        rows = [_untimed(one.trajectories / name) for one in (run, other)]
        assert rows[0] == rows[1], f"{name} {why}"


def _untimed(file: Path) -> list[dict[str, object]]:
    rows = pq.read_table(file).drop_columns("seconds").to_pylist()
    for turn in (turn for row in rows for turn in row["turns"]):
        del turn["seconds"], turn["env_seconds"]
    return rows


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


def test_a_run_that_samples_slowly_reports_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("turnwise.engines.local.forward.read_architecture", lambda *_: None)
    directory = run_tiny(tmp_path / "run", steps=1)
    (finding,) = [one for one in read_findings(directory.path / "findings.jsonl") if one["kind"] == "slow_sampling"]
    assert finding["step"] == 0
    assert "the fused forward does not know the architecture of this" in str(finding["sentence"])
    assert "slow sampling" in (directory.path / "report.html").read_text(encoding="utf-8")


def test_demonstrations_may_be_of_another_split_than_training(tmp_path):
    sft = {"demonstrations": 8, "batch": 8, "split": "shown", "optimizer": {"lr": 1e-3}}
    run = run_tiny(tmp_path / "run", sft=sft)

    def splits(stage: str) -> set[str]:
        (file,) = (run.path / "trajectories").glob(f"{stage}-*.parquet")
        return {name.partition("-")[0] for name in pq.read_table(file, columns=["task_id"])["task_id"].to_pylist()}

    assert splits("sft") == {"shown"}
    assert splits("train") == {"train"}


def test_a_split_without_tasks_fails_before_the_run_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(Signals, "tasks", lambda env, split: [Task(id=f"{split}-0")] if split != "none" else [])
    config = tiny_config(sft={"demonstrations": 2, "split": "none"})
    with pytest.raises(ConfigError, match=r"sft\.split: the environment has no tasks in 'none'"):
        run_training(config, tmp_path / "run", env=Signals(), display=Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("where", "says", "begins"),
    [
        ("learner.learner.Learner.learn", r"lower learner\.[^\n]*--resume", True),
        ("engines.local.runner.ModelRunner.decode", r"lower learner\.[^\n]*--resume", True),
        # Another program had all but 20 MB of the card; the traceback was 200 lines long.
        ("training.build.load_model", r"it has no room for the model: end [^\n]*", False),
        ("engines.local.agreement._float32_logits", r"it has no room for the model: end [^\n]*", False),
    ],
)
def test_a_device_that_is_full_is_one_line_that_says_what_to_do(where, says, begins, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 72.00 MiB.")

    monkeypatch.setattr(f"turnwise.{where}", fail)
    with pytest.raises(ModelError, match=rf"^the device is out of memory: {says}$"):
        run_tiny(tmp_path / "run")
    assert (tmp_path / "run").exists() == begins


def test_what_fits_the_device_may_change_when_a_run_goes_on(tmp_path):
    run_tiny(tmp_path / "run", steps=1)
    fitted = {"learner": {"tokens_per_microbatch": 64, "checkpointing": True}, "engine": {"slots": 2}}
    again = run_tiny(tmp_path / "run", steps=2, resume=True, **fitted)
    assert [record["step"] for record in records(again, "train")] == [1, 2]
    with pytest.raises(RunError, match=r"learner\.epochs is 2 now and was 1"):
        run_tiny(tmp_path / "run", steps=3, resume=True, learner={"epochs": 2})
