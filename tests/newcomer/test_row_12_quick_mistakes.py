"""A newcomer's typo is answered at once: what would make it slow is not imported. Modules are counted, not seconds,
which depend on the machine: torch takes most of ten."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pyarrow", "httpx2", "bm25s", "faiss", "jinja2", "uvicorn", "matplotlib")
"""The first is seconds, the others are tenths of one."""
SCRIPT = """
import sys
from turnwise.cli.main import main
try:
    code = main(sys.argv[2:])
except SystemExit as end:
    code = end.code
print("heavy:", *[name for name in sys.argv[1].split(",") if name in sys.modules])
sys.exit(code)
"""


def run(*arguments, cwd, heavy=HEAVY):
    command = [sys.executable, "-c", SCRIPT, ",".join(heavy), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "encyclopedia-grpo", "typo=1"], "typo: unknown key in override"),
        (["train", "encyclopedia-grpo", "algorithm=gpro"], "did you mean 'grpo'?"),
        (["train", "encyclopedia-grpo", "rollout.group_size=1"], "rollout.group_size: grpo compares"),
        (["train", "encyclopedia-gpro"], "did you mean encyclopedia-grpo?"),
        (["eval", "encyclopedia-grpo", "typo=1"], "typo: unknown key in override"),
        (["demo", "sed=1"], "did you mean 'seed'?"),
        (["train", "mine.yaml"], "learning_rate is learner.optimizer.lr here"),
        (["check", "mine.py:Mine", "wrong=1"], "Mine has no argument 'wrong'"),
    ],
)
def test_a_mistake_is_found_before_anything_heavy_is_imported(tmp_path, arguments, told):
    (tmp_path / "mine.yaml").write_text("env: bandit\nlearning_rate: 1e-5\n")
    (tmp_path / "mine.py").write_text(
        "from turnwise import Env\nclass Mine(Env):\n    async def reset(self, task, episode_seed): ...\n"
        "    async def step(self, message): ...\n"
    )
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout.strip() == "heavy:"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("train(env='bandit', model='small', algorithm='gpro')", "did you mean 'grpo'?"),
        ("train(env='bandit', model='small', learning_rate=1e-5)", "learning_rate is learner.optimizer.lr here"),
        ("train(env='bandit')", "give a model"),
        ("evaluate(env='bandit', model='small', evaluate={'task': 3})", "did you mean 'tasks'?"),
    ],
)
def test_so_is_one_in_python(tmp_path, call, told):
    script = (
        f"import sys, turnwise\ntry:\n    turnwise.{call}\nexcept turnwise.errors.ConfigError as error:\n"
        "    print(error)\nprint('heavy:', *[name for name in sys.argv[1].split(',') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, ",".join(HEAVY)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "heavy:"


def test_help_needs_next_to_nothing(tmp_path):
    done = run("--help", cwd=tmp_path, heavy=(*HEAVY, "numpy", "pydantic", "yaml", "turnwise.config"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "heavy:"


def test_check_needs_no_torch(tmp_path):
    done = run("check", "bandit", cwd=tmp_path, heavy=("torch", "transformers", "pyarrow", "httpx2", "faiss"))
    assert done.returncode == 0, done.stderr
    assert "✓ Bandit keeps the contract" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "heavy:"
