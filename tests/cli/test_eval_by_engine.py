"""`turnwise eval` with `engine.kind=openai`: the server's own model plays a recipe, and a run's weights are loaded."""

import json

import pytest

from chat_stub import says, serve
from tiny_runs import SIGNALS, SMALLEST
from turnwise.cli.main import main


@pytest.fixture
def command(tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps({"env": {"name": SIGNALS}, "model": {"small": SMALLEST}}))
    return ["eval", str(tmp_path / "recipe.yaml"), "evaluate.tasks=3", "engine.kind=openai", "engine.model=m", "--json"]


def test_the_model_of_a_server_plays_a_recipe(command, capsys, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "k")
    with serve(lambda body, number: says("I do not know.")) as stub:
        assert main([*command, f"engine.url={stub.url}", "engine.key_env=SOME_KEY"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["split"]) == ("m", "test")
    assert len(stub.asked) == 6, "three episodes of two turns"
    path, headers, body = stub.asked[0]
    assert path.endswith("/chat/completions")
    assert (body["model"], headers["Authorization"]) == ("m", "Bearer k")


def test_an_evaluation_on_tasks_held_out_of_training_says_so(command, capsys):
    with serve(lambda body, number: says("I do not know.")) as stub:
        alone = [word for word in command if word != "evaluate.tasks=3"]  # what is held out says how many
        asked = [*alone, f"engine.url={stub.url}", "evaluate.hold_out=2"]
        assert main(asked) == 0
        assert json.loads(capsys.readouterr().out)["split"] == "train"
        assert main([one for one in asked if one != "--json"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("m, on tasks held out of training: success ")


def test_the_weights_of_a_model_that_is_named_are_not_replaced_by_the_servers(command, capsys, tmp_path):
    """A chat endpoint cannot load them, so that is one line, and not the figures of another model."""
    folder = _small_model(tmp_path)
    with serve(lambda body, number: says("I do not know.")) as stub:
        assert main([*command, f"engine.url={stub.url}", "--model", str(folder)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "completes no prompt of token ids with ids and logprobs, which training needs" in error


def _small_model(folder):
    from turnwise.models.loading import save_model
    from turnwise.models.settings import SmallSettings
    from turnwise.models.small import build_small, train_tokenizer

    settings = SmallSettings(layers=1, width=32, heads=2, positions=512, vocabulary=300, induction=False)
    tokenizer = train_tokenizer(["hello"], settings)
    save_model(build_small(settings, tokenizer, seed=0), tokenizer, folder / "model")
    return folder / "model"
