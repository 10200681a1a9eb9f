"""The settings reference is true: of every key, its default, and where a run's values come from."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings
from turnwise.errors import ConfigError
from turnwise.reference.listing import list_settings
from turnwise.reference.origins import explain_recipe
from turnwise.reference.page import to_markdown
from turnwise.settings import leaves, load_yaml
from turnwise.settings.base import all_keys, sections_at

ROOT = Path(__file__).parents[1]
EVERY = {one.key: one for one in list_settings()}


def test_the_page_is_what_the_command_prints():
    """But for the readers, of which it may have missed a new one: one that it names must still be one."""
    page, printed = (ROOT / "docs/settings.md").read_text(encoding="utf-8").splitlines(), to_markdown().splitlines()
    anew = "write it anew: turnwise settings --markdown > docs/settings.md"
    assert [_split(line)[0] for line in page] == [_split(line)[0] for line in printed], anew
    for line, now in zip(page, printed, strict=True):
        assert _split(line)[1] <= _split(now)[1], anew


def _split(line):
    """A line of the page without its readers, and its readers."""
    cells = line.split(" | ")
    if len(cells) < 6 or cells[4] == "read by":
        return line, set()
    return " | ".join([*cells[:4], *cells[5:]]), set(cells[4].split(", "))


def test_every_key_is_there_once():
    values = {key for key in all_keys(Config) if not sections_at(Config, key.split("."))}
    assert values - {"callbacks.name", "callbacks.args"} <= set(EVERY)
    assert len(EVERY) == len(list_settings())


@pytest.mark.parametrize("key", EVERY)
def test_a_key_says_what_it_does_and_who_reads_it(key):
    one = EVERY[key]
    assert one.about.endswith((".", ")", "`")), "a sentence, beneath the field"
    assert one.type
    assert one.read_by, "a setting that nothing reads"
    for module in one.read_by:
        assert (ROOT / "src/turnwise" / module).is_file()


def test_defaults_are_those_of_a_config():
    plain = dict(leaves(Config(env=EnvSettings(name="x")).model_dump(mode="json")))
    for path, value in plain.items():
        shown = EVERY[".".join(path)].default
        if path[0] != "env" and not isinstance(value, dict):
            assert load_yaml(shown, source="default") == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("key", "type_", "default", "reader", "known"),
    [
        ("rollout.group_size", "integer ≥ 1", "8", "rollout/collector.py", "num_generations"),
        ("learner.optimizer.lr", "number > 0", "1e-06", "learner/optimizer.py", "learning_rate"),
        ("learner.critic.optimizer.lr", "number > 0", "1e-05", "learner/optimizer.py", "critic.optim.lr"),
        ("loss.clip_high", "number ≥ 0", "0.2", "losses/policy.py", "epsilon_high"),
        ("credit.lam", "number ≥ 0, ≤ 1", "1", "credit/gae.py", "gae_lambda"),
        ("loss.dual_clip", "number > 1 or null", "3", "losses/policy.py", "delta"),
        ("stability.mode", "`off` or `monitor` or `auto` or `always`", '"monitor"', "stability/controller.py", None),
    ],
)
def test_a_few_by_hand(key, type_, default, reader, known):
    one = EVERY[key]
    assert (one.type, one.default) == (type_, default)
    assert reader in one.read_by
    assert known is None or known in one.known_as


def test_the_command_shows_a_section_a_key_or_what_was_meant(capsys):
    assert main(["settings", "loss.clip_high"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("loss.clip_high   number ≥ 0, default: 0.2\n    Upper clip range")
    assert "elsewhere: epsilon, epsilon_high" in told
    assert main(["settings", "learner.optimizer"]) == 0
    assert "learner.optimizer.betas" in capsys.readouterr().out
    assert main(["settings", "learning_rate"]) == 2
    assert capsys.readouterr().err == "error: learning_rate is learner.optimizer.lr here\n"
    with pytest.raises(ConfigError, match=r"there is no 'rolout' \(did you mean 'rollout'\?\)"):
        list_settings("rolout")
    with pytest.raises(ConfigError, match=r"did you mean 'rollout.turn_tokens'"):
        list_settings("limits.turn_tokens")


def test_explain_says_where_each_value_comes_from(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "env: bandit\nsteps: 9\nlearner:\n  optimizer: {lr: 1e-4, betas: [0.9, 0.95]}\n"
    )
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nalgorithm: gspo\nsteps: 20\n")
    told = {one.key: one for one in explain_recipe(tmp_path / "top.yaml", ["rollout.group_size=16"])}
    origins = {key: one.origin.replace(f"{tmp_path}/", "") for key, one in told.items()}
    assert origins["env.name"] == "base.yaml:1"
    assert origins["steps"] == "top.yaml:3"
    assert origins["learner.optimizer.lr"] == "base.yaml:4"
    assert origins["learner.optimizer.betas"] == "base.yaml:4"
    assert origins["loss.form"] == "algorithm gspo"
    assert origins["rollout.group_size"] == "override"
    assert origins["seed"] == "default"
    assert (told["rollout.group_size"].value, told["loss.clip_low"].value) == ("16", "0.0003")
    resolved = load_config(tmp_path / "top.yaml", ["rollout.group_size=16"]).model_dump(mode="json")
    assert set(told) == {".".join(path) for path, _ in leaves(resolved)}


def test_explain_is_quick_and_trains_nothing(tmp_path):
    script = (
        "import sys; from turnwise.cli.main import main\n"
        "code = main(['train', 'encyclopedia-ppo', 'steps=3', '--explain'])\n"
        "sys.exit(code or ('torch imported' if 'torch' in sys.modules else 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("steps: 3 ") and line.endswith("# override") for line in lines)
    assert any(line.startswith("credit.estimator: ") and "encyclopedia-ppo.yaml:3" in line for line in lines)
    assert list(tmp_path.iterdir()) == []
