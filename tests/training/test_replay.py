"""Branches of stored trajectories: without a change they repeat token for token; a change changes what it should."""

import pytest
import torch

from tiny_runs import SFT, run_tiny, tiny_config
from turnwise.agents.replay import Changes
from turnwise.cli.main import main
from turnwise.doctor.preflight import examine_recipe
from turnwise.errors import ModelError, RunError
from turnwise.evaluation.rescore import find_rewards, rescore_now
from turnwise.runs import RunDirectory, read_trajectories
from turnwise.runs.episodes import first_difference, read_episode, read_episode_file, read_episodes
from turnwise.targets import load_target
from turnwise.training.evaluate import run_evaluation
from turnwise.training.replay import BranchPoint, branch_episode


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "run"
    run_tiny(folder, steps=2, sft=SFT, checkpoint={"every": 1, "keep": 3}, learner={"optimizer": {"lr": 0.1}})
    return RunDirectory.open(folder)


def branch(run, name, checkpoint, **how):
    changes = Changes(**{key: how.pop(key) for key in ("seed", "edit_result", "action") if key in how})
    config = load_target(str(run.path), model=str(run.checkpoints / f"step-{checkpoint:06d}"))
    stored = read_episode(run, name)
    return stored, branch_episode(config, stored, BranchPoint(changes=changes, **how))


@pytest.mark.parametrize("from_turn", [1, 2, 3])
def test_with_the_weights_that_sampled_it_a_trajectory_repeats_itself(run, from_turn):
    for name in ("train-1/0/0", "train-1/3/2"):
        stored, made = branch(run, name, checkpoint=0, from_turn=from_turn)
        assert [turn.action_ids for turn in made.trajectory.turns] == [t.action_ids for t in stored.trajectory.turns]
        assert first_difference(stored, made.episode) is None
        assert made.diverged is None
        assert made.trajectory.rewards == stored.trajectory.rewards
        assert made.trajectory.stop is stored.trajectory.stop
        for ours, theirs in zip(made.trajectory.turns, stored.trajectory.turns, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_a_full_device_is_one_line_wherever_the_policy_plays(run, tmp_path, monkeypatch):
    """Evaluation, branches and the doctor had a traceback for each episode, where training had this line."""

    def fail(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 72.00 MiB.")

    monkeypatch.setattr("turnwise.engines.local.runner.ModelRunner.prefill", fail)
    config, episode = load_target(str(run.path)), read_episode(run, "train-1/0/0")
    for play in (lambda: run_evaluation(config), lambda: branch_episode(config, episode, BranchPoint(from_turn=1))):
        with pytest.raises(ModelError, match=r"^the device is out of memory: lower engine\.slots, or end"):
            play()
    with pytest.raises(ModelError, match=r"^the device is out of memory: lower learner\.[^\n]*there$"):
        examine_recipe(tiny_config(), subject="tiny", folder=tmp_path)


def test_a_version_is_that_of_the_weights_that_played(run):
    _, made = branch(run, "train-1/0/0", checkpoint=2, from_turn=2)
    assert [turn.version for turn in made.trajectory.turns] == [0, 2]


def test_another_checkpoint_or_draw_changes_what_follows_alone(run):
    changed = 0
    for member in range(4):
        for how in ({"checkpoint": 2}, {"checkpoint": 0, "seed": 5}):
            stored, made = branch(run, f"train-1/0/{member}", from_turn=2, **how)
            assert made.trajectory.turns[0].action_ids == stored.trajectory.turns[0].action_ids
            changed += made.trajectory.turns[1].action_ids != stored.trajectory.turns[1].action_ids
    assert changed >= 3


def test_a_persons_own_move_is_paid_for_and_has_no_logprob(run):
    _, wrong = branch(run, "train-1/0/0", checkpoint=0, from_turn=1, action="down")
    _, right = branch(run, "train-1/0/0", checkpoint=0, from_turn=1, action="up")
    assert [made.trajectory.turns[0].rewards for made in (wrong, right)] == [{"right": 0.0}, {"right": 0.5}]
    assert right.episode.turns[0].action_text.startswith("up")
    assert all(one != one for one in right.trajectory.turns[0].logprobs)
    assert all(one == one for one in right.trajectory.turns[1].logprobs)


def test_an_edited_result_is_read_in_its_place(run):
    stored, made = branch(run, "train-1/0/0", checkpoint=0, from_turn=2, edit_result="a stormy sea")
    assert "a stormy sea" not in stored.turns[1].context_text
    assert "a stormy sea" in made.episode.turns[1].context_text
    assert made.episode.turns[0] == stored.turns[0].__class__(
        context_text=stored.turns[0].context_text,
        action_text=stored.turns[0].action_text,
        advantages=None,
        learner_logprobs=None,
        entropies=None,
    )
    _, opening = branch(run, "train-1/0/0", checkpoint=0, from_turn=1, edit_result="no sun")
    assert "no sun" in opening.episode.turns[0].context_text


def test_a_limit_of_turns_leaves_what_the_environment_answered(run):
    _, made = branch(run, "train-1/0/0", checkpoint=0, from_turn=1, action="up", turns=1)
    assert len(made.trajectory.turns) == 1
    assert made.trajectory.stop.value == "max_turns"
    assert "sea" in made.episode.tail_text


def test_a_turn_that_is_not_there_is_an_error(run):
    with pytest.raises(RunError, match="give 1 to 3"):
        branch(run, "train-1/0/0", checkpoint=0, from_turn=4)


def test_the_command_prints_compares_saves_and_goes_on_from_what_it_saved(run, tmp_path, capsys):
    saved = tmp_path / "branch-000001.parquet"
    arguments = ["replay", str(run.path), "train-1/0/0", "--checkpoint=0", "--from-turn=1", "--action=up", "--turns=1"]
    assert main([*arguments, f"--save={saved}"]) == 0
    assert "reward +0.5, was" in capsys.readouterr().out
    assert read_episode_file(saved).trajectory.rewards == {"right": 0.5}
    (group,) = read_trajectories(saved)
    assert len(group.trajectories) == 1
    further = ["replay", str(run.path), str(saved), "--checkpoint=0", "--from-turn=2", "--action=left"]
    assert main(further) == 0
    told = capsys.readouterr().out
    assert "reward +1, was +0.5" in told
    assert "the same as far as both go (2 turns, were 1)" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train-9/0/0", "--from-turn=1"], "no such file"),
        (["train-1/0/0", "--from-turn=1", "--checkpoint=7"], "this run keeps: 0, 1, 2"),
        (["train-1/0/0", "--from-turn=1", "--turns=0"], "--turns"),
    ],
)
def test_mistakes_are_one_line(run, capsys, arguments, told):
    assert main(["replay", str(run.path), *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_reward_that_was_paid_is_what_a_run_is_rescored_to(run, tmp_path):
    """Half a point a word, computed again from conversations that the model sampled."""
    (tmp_path / "words.py").write_text(
        "def words(episode):\n"
        "    said = [one.content for one in episode.messages if one.role == 'assistant']\n"
        "    return sum(0.5 * (word == right) for word, right in zip(said, ('up', 'left')))\n"
    )
    scored = rescore_now(read_episodes(run, "train", 1), find_rewards([f"{tmp_path / 'words.py'}:words"]))
    assert [one.rescored for one in scored] == [one.reward for one in scored]
    assert any(one.reward for one in scored)
