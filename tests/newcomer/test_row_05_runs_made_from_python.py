"""A newcomer's script trains, and its run is evaluated from any folder; a run made elsewhere runs no Python unasked."""

import json
import logging
import shutil
import subprocess
import sys

import pytest
import yaml

import turnwise
from tiny_runs import Silent, tiny_data
from turnwise import plugins, sources
from turnwise.cli.main import main
from turnwise.config import read_run_config
from turnwise.envs.registry import make_env
from turnwise.errors import ConfigError
from turnwise.rewards import choose_rewards
from turnwise.settings import load_yaml

TINY = {key: value for key, value in tiny_data().items() if key not in ("env", "steps", "rollout")}
CLASS = """
from helpers import WORD
from turnwise import Env, Message, Step, Task

class Support(Env):
    def __init__(self, fail: float = 0.0):
        self.fail = fail
    def tasks(self, split):
        return [Task(id=f"{split}-{i}") for i in range(4)]
    async def reset(self, task, episode_seed):
        return [Message(role="user", content=WORD)]
    async def step(self, message):
        return Step(done=True, rewards={"said": self.fail})
"""
SCRIPT = (
    CLASS
    + f"""
import turnwise
turnwise.train(
    env=Support(fail=0.25), steps=0, run="runs/mine", rollout={{"turn_tokens": 4}}, **{TINY!r}
)
print("trained")
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where `python support.py` was run: a script without a guard, whose class is in `__main__`."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "helpers.py").write_text("WORD = 'hello'\n")
    (folder / "support.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "support.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    return folder


def sign_again(run, before, after):
    """Moves the recorded paths, as if the user had made the run there."""
    recorded = run / "sources.json"
    recorded.write_text(recorded.read_text().replace(before, after))
    moved = sources.read_sources(run)
    recorded.unlink()
    config = load_yaml((run / "config.yaml").read_text(), source="config")
    sources.write_sources(run, config, moved, lambda path, text: path.write_text(text))


@pytest.fixture
def copied(folder, tmp_path, monkeypatch):
    """The same in a folder of this test's own, with its recorded paths; and a process that has seen none of it."""
    shutil.copytree(folder, tmp_path / "made")
    sign_again(tmp_path / "made/runs/mine", str(folder.resolve()), str((tmp_path / "made").resolve()))
    for registry in ("_OBJECTS", "_FOUND"):
        monkeypatch.setattr(plugins, registry, {})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "made"


def made_again(run, **options):
    return make_env(read_run_config(run, **options).env)


def test_the_run_records_where_its_environment_came_from(folder):
    (source,) = json.loads((folder / "runs/mine/sources.json").read_text())["sources"]
    assert source["name"] == "__main__:Support"
    assert source["file"] == str((folder / "support.py").resolve())
    assert len(source["sha256"]) == 64


def test_it_is_evaluated_from_another_folder(copied, capsys):
    assert main(["eval", str(copied / "runs/mine")]) == 0
    assert "reward 0.250, 4 episodes" in capsys.readouterr().out


def test_a_changed_file_is_run_when_asked_for(copied, caplog):
    run = copied / "runs/mine"
    (copied / "support.py").write_text(SCRIPT.replace('"said"', '"spoken"'))
    expected = (
        r"^env\.name: .*support\.py has changed since .*runs/mine was made: pass --trust \(trust=True in Python\)"
    )
    with pytest.raises(ConfigError, match=expected) as raised:
        made_again(run)
    assert "or give your own: turnwise.evaluate(run=" in str(raised.value)
    assert "\n" not in str(raised.value)
    with caplog.at_level(logging.WARNING):
        assert made_again(run, trust=True).fail == 0.25
    assert "support.py has changed since" in caplog.text


def test_a_file_that_is_gone_says_what_to_pass(copied):
    (copied / "support.py").unlink()
    with pytest.raises(
        ConfigError, match=r"__main__:Support was defined in .*support\.py, which is not there: put it"
    ) as e:
        made_again(copied / "runs/mine")
    assert "env=Support(...)" in str(e.value)


def test_a_file_of_ones_own_stands_in(copied):
    (copied / "support.py").unlink()
    (copied / "other.py").write_text(CLASS)
    config = read_run_config(copied / "runs/mine", [f"env={copied / 'other.py'}:Support"])
    assert make_env(config.env).fail == 0.0


def test_a_run_made_elsewhere_runs_no_python_unasked(copied):
    """It came with a file of its own, and its config names it; nothing on this machine vouches for it."""
    run = copied / "runs/mine"
    evil = copied / "evil.py"
    evil.write_text("open('ran', 'w').close()\n" + CLASS)
    data = load_yaml((run / "config.yaml").read_text(), source="config")
    data["env"] = {"name": f"{evil}:Support"}
    (run / "config.yaml").write_text(yaml.safe_dump(data))
    for trusting, ran in ((False, False), (True, True)):
        if not trusting:
            with pytest.raises(
                ConfigError, match=r"names .*evil\.py:Support, of which it records no source: pass --tr"
            ):
                made_again(run)
        else:
            made_again(run, trust=True)
        assert (copied.parent / "elsewhere/ran").exists() == ran


def test_a_hash_that_anybody_can_write_vouches_for_nothing(copied, monkeypatch, tmp_path):
    """The run records its file and the right hash of it, but another user made it."""
    run = copied / "runs/mine"
    assert made_again(run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(ConfigError, match="was made elsewhere or was changed: pass --trust"):
        made_again(run)
    assert made_again(run, trust=True)


def test_the_vouch_is_of_the_names_in_the_config(copied):
    """A run of one's own that comes back with another class of the same file is not one's own any more."""
    run = copied / "runs/mine"
    file = copied / "support.py"
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("__main__:Support", f"{file}:Support"))
    with pytest.raises(ConfigError, match="records no source: pass --trust"):
        made_again(run)


@pytest.mark.parametrize("name", ["program", "turnwise.gateway.program:AgentProgram"])
def test_a_foreign_run_starts_no_command_unasked(copied, name):
    run = copied / "runs/mine"
    command = [sys.executable, "-c", "open('ran', 'w').close()"]
    data = load_yaml((run / "config.yaml").read_text(), source="config")
    data["env"] = {"name": name, "args": {"command": command, "rewards": "exact_match"}}
    (run / "config.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=r"env\.args\.command: .*pass --trust"):
        made_again(run)
    assert made_again(run, trust=True)
    sign_again(run, "", "")
    assert made_again(run), "made by this user, it runs as it is"


def test_nor_does_the_command_unless_trusted(copied, capsys):
    run = copied / "runs/mine"
    (run / "sources.json").unlink()
    assert main(["eval", str(run)]) == 2
    assert "pass --trust" in capsys.readouterr().err


@pytest.mark.parametrize(
    "section",
    [
        {"env": {"name": "encyclopedia", "args": {"rewards": {"EVIL": 1.0}}}},
        {"env": {"name": "encyclopedia", "args": {"rewards": [{"name": "EVIL"}]}}},
        {"env": {"name": "gymnasium", "args": {"id": "evil_module:Env-v0"}}},
        {"render": {"name": "EVIL"}, "env": {"name": "bandit"}},
        {"credit": {"estimator": "EVIL"}, "env": {"name": "bandit"}},
        {"callbacks": [{"name": "EVIL"}], "env": {"name": "bandit"}},
    ],
    ids=["reward", "reward with args", "gymnasium", "renderer", "estimator", "callback"],
)
def test_no_key_of_a_foreign_config_runs_python(copied, section):
    """Whatever the section, the name is refused where it is looked up, or is not looked up by an evaluation at all."""
    run = copied / "runs/mine"
    (copied / "evil.py").write_text("raise SystemExit('it ran')\n")
    (copied.parent / "elsewhere/evil_module.py").write_text("raise SystemExit('it ran')\n")
    text = json.dumps({**load_yaml((run / "config.yaml").read_text(), source="c"), **section})
    (run / "config.yaml").write_text(text.replace("EVIL", f"{copied / 'evil.py'}:thing"))
    if "callbacks" in section or "credit" in section:
        assert made_again(run)
        return
    rewards = read_run_config(run).env.args.get("rewards")
    with pytest.raises(ConfigError, match="records no source: pass --trust"):
        choose_rewards(rewards) if rewards else turnwise.evaluate(run=run, display=Silent())


def test_what_the_user_names_is_the_users_own(copied, monkeypatch):
    """The same name in a call of one's own is no longer the foreign run's."""
    run = copied / "runs/mine"
    (run / "sources.json").unlink()
    with pytest.raises(ConfigError):
        made_again(run)
    monkeypatch.chdir(copied)
    (copied / "support.py").write_text(CLASS)
    trained = turnwise.train(
        env="support.py:Support", steps=0, run="runs/own", display=Silent(), rollout={"turn_tokens": 4}, **TINY
    )
    monkeypatch.chdir(copied.parent)
    assert turnwise.evaluate(run=trained.path.resolve() if trained.path.is_absolute() else copied / trained.path)


def test_a_module_in_a_package_is_found_with_its_neighbours(copied, monkeypatch):
    package = copied / "shop_of_row_5"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("WORD = 'hello'\n")
    (package / "desk.py").write_text(CLASS.replace("from helpers", "from .words"))
    monkeypatch.syspath_prepend(str(copied))
    from shop_of_row_5.desk import Support

    run = turnwise.train(
        env=Support(), steps=0, run=copied / "runs/pkg", display=Silent(), rollout={"turn_tokens": 4}, **TINY
    )
    monkeypatch.setattr(plugins, "_OBJECTS", {})
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(copied)])
    for module in [name for name in sys.modules if name.startswith("shop_of_row_5")]:
        monkeypatch.delitem(sys.modules, module)
    assert type(made_again(run.path)).__module__ == "shop_of_row_5.desk"
    assert str(copied) not in sys.path
