"""Whatever a user gets wrong is one line that says what to do, before any long work starts."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from tiny_runs import SMALLEST, tiny_data
from turnwise.cli.main import main
from turnwise.models.loading import save_model
from turnwise.models.small import SmallSettings, build_small, train_tokenizer
from turnwise.training.trainer import Trainer

ENV_FILE = '''
from turnwise import Env, Message, Step, Task, ToolEnv, reward, tool

@reward
def broken(episode):
    return float("nan")

class Broken(ToolEnv):
    def __init__(self):
        super().__init__(rewards=[broken], tasks=[{"question": "How much?"}])

class Mute(Env):
    """Has no expert."""
    def tasks(self, split):
        return [Task(id="only")]
    async def reset(self, task, episode_seed):
        return [Message(role="user", content="Well?")]
    async def step(self, message):
        return Step(done=True)

class Idle(Mute):
    def tasks(self, split):
        return []

class Raising(Mute):
    async def reset(self, task, episode_seed):
        raise KeyError("level 3")

class Late(Mute):
    """Goes wrong with bad episode_seed alone, which a rehearsal may not have."""
    async def reset(self, task, episode_seed):
        self.episode_seed = episode_seed
        return [Message(role="user", content="Well?")]
    async def step(self, message):
        return Step(done=True, rewards={"late": float("inf") if self.episode_seed else 1.0})

class NotOne:
    pass
'''
UNTYPED_FILE = '''
from turnwise import ToolEnv, reward, tool

@tool
def lookup(city):
    """Looks up a city."""
'''


@pytest.fixture
def attempt(tmp_path, monkeypatch, capsys):
    """Runs a command that must fail, in a folder with a recipe, and gives the one line it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("recipe.yaml").write_text(yaml.safe_dump(tiny_data()))
    Path("mine.py").write_text(ENV_FILE)
    Path("untyped.py").write_text(UNTYPED_FILE)

    async def work(self):
        raise AssertionError("the work began")

    monkeypatch.setattr(Trainer, "run", work)

    def attempt(*command: str) -> str:
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        (line,) = captured.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    return attempt


MISTAKES = [
    pytest.param(
        ["rollout.grop_size=3"],
        ["rollout.grop_size: unknown key in override", "did you mean 'group_size'?"],
        id="unknown",
    ),
    pytest.param(["rolout.tasks=3"], ["rolout: unknown key", "did you mean 'rollout'?"], id="unknown section"),
    pytest.param(["steps"], ["override 'steps': write it as section.key=value"], id="no value"),
    pytest.param(["steps=many"], ["steps: expected an integer", '"many"'], id="wrong type"),
    pytest.param(["steps=-1"], ["steps: expected a value greater than or equal to 0"], id="out of range"),
    pytest.param(
        ["credit.estimator=gea"],
        ["credit.estimator: 'gea' is not an estimator (did you mean 'gae'?)"],
        id="unknown estimator",
    ),
    pytest.param(
        ["rollout.context_tokens=4096"],
        ["asks for 4096 tokens but the model has 64 positions", "lower rollout.context_tokens"],
        id="more tokens than positions",
    ),
    pytest.param(["rollout.turn_tokens=65"], ["65 tokens", "64 positions"], id="a turn too long"),
    pytest.param(["model.small.width=30"], ["model.small: width 30 must be a multiple of"], id="no such shape"),
    pytest.param(["env.name=encyclopaedia"], ["did you mean 'encyclopedia'?"], id="unknown environment"),
    pytest.param(["env.name=mine.py:Brokn"], ["mine.py has no 'Brokn'", "did you mean 'Broken'?"], id="missing class"),
    pytest.param(["env.name=mien.py:Broken"], ["there is no file 'mien.py'", "mine.py"], id="missing file"),
    pytest.param(["env.name=mine.py:NotOne"], ["is not an environment", "derive it from"], id="not an environment"),
    pytest.param(["env.name=mine.py:Idle"], ["the split 'train' has no tasks"], id="no tasks"),
    pytest.param(
        ["env.name=encyclopedia", "env.args.hop=[2]"],
        ["no argument 'hop'", "did you mean 'hops'?"],
        id="unknown argument",
    ),
    pytest.param(["env.name=untyped.py:World"], ["lookup", "city", "type"], id="a tool without types"),
    pytest.param(["env.name=mine.py:Broken"], ["reward 'broken' is nan", "return a finite number"], id="NaN reward"),
    pytest.param(["env.name=mine.py:Raising"], ["Raising failed", "KeyError: 'level 3'", "check"], id="broken reset"),
    pytest.param(
        ["env.name=mine.py:Mute", "sft.demonstrations=8"],
        ["Mute has no expert", "sft", "chats"],
        id="no expert",
    ),
    pytest.param(["evaluate.split=dev", "env.name=encyclopedia"], ["no split 'dev'", "train, test"], id="no split"),
    pytest.param(["model.name=./nowhere"], ["model.name: no folder ./nowhere"], id="missing model"),
    pytest.param(["model.name=nowhere.gguf"], ["model.name: no file nowhere.gguf"], id="missing GGUF file"),
    pytest.param(["model.name=nobody/nothing"], ["model.name: 'nobody/nothing'", "check the name"], id="missing id"),
    pytest.param(["render.template=nowhere.jinja"], ["render.template", "nowhere.jinja"], id="missing template"),
    pytest.param(["rollout.top_p=0.9"], ["rollout: to train, sample with", "top_p = 1"], id="truncated sampling"),
    pytest.param(["rollout.temperature=0"], ["temperature > 0"], id="greedy sampling"),
    pytest.param(["rollout.group_size=1"], ["rollout.group_size: grpo compares", "set 2 or more"], id="groups of one"),
    pytest.param(["sft.chats=nowhere.jsonl"], ["sft.chats: no file nowhere.jsonl"], id="missing chats"),
    pytest.param(["model.lora.targets=[q_porj]"], ["model.lora.targets: 'q_porj' is no linear"], id="no such layer"),
]


@pytest.mark.parametrize(("overrides", "said"), MISTAKES)
def test_a_mistake_in_a_recipe(attempt, overrides, said):
    line = attempt("train", "recipe.yaml", *overrides, "--run", "run")
    for words in said:
        assert words in line
    assert not Path("run").exists(), "the same command, put right, must work"


def test_a_reward_that_breaks_in_the_middle(tmp_path, monkeypatch, capsys):
    """No rehearsal can find it: every episode fails of it, and the run ends in one line with the task and the place."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(ENV_FILE)
    Path("recipe.yaml").write_text(yaml.safe_dump(tiny_data(env={"name": "mine.py:Late"})))
    assert main(["train", "recipe.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: every episode failed, the first: task 'only': step: RewardError: reward 'late' is inf: return a finite "
        "number from its reward function (mine.py:35 in step); try `turnwise check`"
    )


def test_a_recipe_that_is_not_there(attempt):
    assert "recipe.yaml" in attempt("train", "recpie.yaml")
    assert "recipe" in attempt("eval", "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env: {name: x", "broken.yaml:1:"),
        ("- env", "a recipe is a mapping of sections"),
        ("steps: 3", "env: required, but missing in broken.yaml"),
        ("env: {name: encyclopedia}\nmodle: {}", "modle: unknown key in broken.yaml; did you mean 'model'?"),
        ("env: {name: encyclopedia}\nsteps: 1\nsteps: 2", "key 'steps' is given twice"),
    ],
)
def test_a_recipe_that_is_not_one(attempt, text, said):
    Path("broken.yaml").write_text(text)
    assert said in attempt("train", "broken.yaml")


def test_a_model_without_a_chat_template(attempt):
    settings = SmallSettings(**SMALLEST)
    tokenizer = train_tokenizer(["sun up sea left"], settings)
    tokenizer.chat_template = None
    save_model(build_small(settings, tokenizer, seed=0), tokenizer, Path("base"))
    assert AutoTokenizer.from_pretrained("base").chat_template is None
    line = attempt("train", "recipe.yaml", "model.name=base", "--run", "run")
    assert "has no chat template" in line
    assert "render.template" in line
    assert not Path("run").exists()


def test_a_model_that_is_no_model(attempt):
    Path("empty").mkdir()
    assert "folder empty has no config.json" in attempt("train", "recipe.yaml", "model.name=empty")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(attempt):
    assert "torch sees no GPU" in attempt("train", "recipe.yaml", "model.device=cuda")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no chat"),
        ("not json", "chats.jsonl:1: not a chat"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "role 'robot' is none of"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "have an assistant's reply"),
    ],
)
def test_a_file_of_chats_that_is_none(attempt, text, said):
    Path("chats.jsonl").write_text(text)
    assert said in attempt("train", "recipe.yaml", "sft.chats=chats.jsonl", "--run", "run")
    assert not Path("run").exists()


def test_a_run_that_exists_is_not_overwritten(attempt):
    Path("run").mkdir()
    Path("run/config.yaml").write_text("kept")
    assert "--resume" in attempt("train", "recipe.yaml", "--run", "run")
    assert Path("run/config.yaml").read_text() == "kept"


def test_there_is_no_run_to_resume(attempt):
    assert "no run to resume" in attempt("train", "recipe.yaml", "--run", "run", "--resume")
    assert not Path("run").exists()


def test_a_folder_that_is_no_run_is_not_evaluated(attempt):
    Path("folder").mkdir()
    assert "not a run" in attempt("eval", "folder")
    Path("folder/config.yaml").write_text(yaml.safe_dump(tiny_data()))
    assert "has no checkpoint yet" in attempt("eval", "folder")


def test_a_task_that_is_not_there(attempt):
    assert "no task 99 in 'train'" in attempt("play", "mine.py:Mute", "--task", "99")
    assert "has no 'Muet'" in attempt("check", "mine.py:Muet")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("trian", "error: there is no command 'trian' (did you mean 'train'?)\n"),
        ("xyzzy", "error: there is no command 'xyzzy'; there are: new, train, eval, "),
    ],
)
def test_an_unknown_command_is_one_line(word, told, capsys):
    assert main([word, "runs/one"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(told)
    assert error.count("\n") == 1
