"""Checkpoints in shards hold what whole ones hold: a run goes on from either, to the bit, and exports one folder."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tiny_runs import SFT, Died, records, run_tiny, same_weights, weights
from turnwise.cli.main import main
from turnwise.errors import RunError
from turnwise.models.loading import load_model
from turnwise.models.settings import ModelSettings
from turnwise.runs import Checkpoints, load_state
from turnwise.targets import load_target

ALL = {"sft": SFT, "credit": {"estimator": "gae"}, "loss": {"kl_coef": 0.05}, "evaluate": {"tasks": 2}}
"""A cold start, a critic and a reference: all that a checkpoint can hold."""


def saving(how, **more):
    return {"checkpoint": {"every": 1, "keep": 3, "format": how, **more}}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("straight") / "run", steps=2, **ALL, **saving("whole"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("sharded") / "run", steps=2, **ALL, **saving("sharded"))


def test_one_process_writes_whole_checkpoints_unless_asked(straight, sharded, tmp_path):
    run = run_tiny(tmp_path / "run", steps=0)
    assert (run.checkpoints / "step-000000/model/model.safetensors").is_file()
    assert not (run.checkpoints / "step-000000/shards").exists()
    folder = sharded.checkpoints / "step-000002"
    assert not list((folder / "model").glob("*.safetensors")), "weights lie in the shards alone"
    state = load_state(folder / "state.pt")
    assert all(part.is_meta for part in state["learner"]["critic"].values()), "and so do the learner's tensors"


@pytest.mark.parametrize(("first", "then"), [("sharded", "whole"), ("whole", "sharded")])
def test_a_run_goes_on_from_either_form_as_if_it_had_never_stopped(straight, tmp_path, first, then):
    with pytest.raises(Died):
        run_tiny(tmp_path, steps=2, die=lambda event, step: (event, step) == ("training", 2), **ALL, **saving(first))
    resumed = run_tiny(tmp_path, steps=2, resume=True, **ALL, **saving(then))
    assert records(resumed) == records(straight)
    exported = tmp_path / "exported"
    assert main(["export", str(tmp_path), str(exported)]) == 0
    assert same_weights(load_file(exported / "model.safetensors"), weights(straight, 2))


def test_a_cold_start_goes_on_from_its_shards(straight, tmp_path):
    some = saving("sharded", sft_every=1)
    with pytest.raises(Died):
        run_tiny(tmp_path, steps=2, die=lambda event, step: (event, step) == ("cold start", 2), **ALL, **some)
    assert (tmp_path / "checkpoints/sft/step-000001/shards").is_dir()
    resumed = run_tiny(tmp_path, steps=2, resume=True, **ALL, **some)
    assert records(resumed) == records(straight)


def test_shards_are_evaluated_and_exported_as_one_folder(straight, sharded, tmp_path, capsys):
    config = load_target(str(sharded.path))
    loaded = load_model(config.model, seed=0)
    expected = AutoModelForCausalLM.from_pretrained(straight.checkpoints / "step-000002/model")
    assert same_weights(loaded.model.state_dict(), expected.state_dict())
    assert main(["export", str(sharded.path), str(tmp_path / "one"), "--step", "1"]) == 0
    assert "the model of step-000001" in capsys.readouterr().out
    assert same_weights(load_file(tmp_path / "one/model.safetensors"), weights(straight, 1))
    assert load_model(ModelSettings(name=str(tmp_path / "one"), device="cpu"), seed=0).tokenizer.vocab_size > 0


@pytest.mark.parametrize("damage", ["flipped", "shorter", "gone"])
def test_a_damaged_shard_is_noticed_and_the_checkpoint_before_it_is_taken(sharded, tmp_path, damage, caplog):
    folder = tmp_path / "checkpoints"
    shutil.copytree(sharded.checkpoints, folder)
    [shard] = (folder / "step-000002/shards").iterdir()
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    match damage:
        case "flipped":
            shard.write_bytes(content)
        case "shorter":
            shard.write_bytes(content[:-8])
        case "gone":
            shard.unlink()
    assert Checkpoints(folder).newest_whole().name == "step-000001"
    assert shard.name in caplog.text


def test_an_adapter_is_saved_whole_and_its_moments_in_shards(tmp_path):
    lora = {"model": {"lora": {"rank": 2}}}
    whole = run_tiny(tmp_path / "whole", steps=2, **lora, **saving("whole"))
    died = {"die": lambda event, step: (event, step) == ("training", 2)}
    with pytest.raises(Died):
        run_tiny(tmp_path / "run", steps=2, **died, **lora, **saving("sharded"))
    resumed = run_tiny(tmp_path / "run", steps=2, resume=True, **lora, **saving("sharded"))
    assert records(resumed) == records(whole)
    assert same_weights(weights(resumed, 2), weights(whole, 2))
    moments = load_state(resumed.checkpoints / "step-000002/state.pt")["learner"]["optimizer"]["adam"]["state"]
    assert torch.device("meta") == moments[0]["exp_avg"].device


def test_what_cannot_be_exported_is_one_line(sharded, tmp_path):
    from turnwise.training.export import export_model

    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(RunError, match=r"it is there already: name a folder that is new or empty$"):
        export_model(sharded.path, tmp_path / "full")
    with pytest.raises(RunError, match=r"no checkpoint of step 7; available: 0, 1, 2$"):
        export_model(sharded.path, tmp_path / "new", step=7)
    assert not (tmp_path / "new").exists()
