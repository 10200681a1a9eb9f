"""What a user can get wrong about a benchmark is one line, before any job begins."""

from pathlib import Path

import pytest
import yaml

from benchmarks.credit import benchmark as credit
from benchmarks.harness import benchmark
from tiny_bench import tiny_data
from turnwise.cli.main import main


@pytest.fixture
def attempt(tmp_path, monkeypatch, capsys):
    """Runs a command that must fail, in a folder with a recipe and a page, and gives the one line it said."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path(f"{credit.RECIPE}.yaml").write_text(yaml.safe_dump(tiny_data()))
    Path("docs/credit.md").write_text("# Credit\n")

    def work(*args, **options):
        raise AssertionError("the work began")

    monkeypatch.setattr(benchmark, "run_jobs", work)

    def attempt(*command: str) -> str:
        assert main(["bench", *command]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line.removeprefix("error: ")

    return attempt


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["credits"],
            "bench: there is no 'credits' (did you mean 'credit'?); the benchmarks are: ablation, credit, games, "
            "masks, multihop, speed, starpo",
        ),
        (["credit", "--seeds", "0"], "--seeds: 0 would run nothing; give 1 or more"),
        (["credit", "--jobs", "-1"], "--jobs: -1 would run nothing; give 1 or more"),
        (["credit", "steps=3"], "unexpected argument 'steps=3': expected one benchmark"),
    ],
)
def test_a_command_that_cannot_be_meant(attempt, command, said):
    assert attempt(*command) == said


def test_a_page_that_is_not_there(attempt):
    Path("docs/credit.md").unlink()
    assert "docs/credit.md: no such page to put results into" in attempt("credit")


def test_a_recipe_that_is_not_there_or_does_not_parse(attempt, monkeypatch):
    Path(f"{credit.RECIPE}.yaml").write_text("env: {name: frozen_lake}\nstpes: 3\n")
    assert f"stpes: unknown key in {credit.RECIPE}.yaml; did you mean 'steps'?" in attempt("credit")
    monkeypatch.setattr(credit, "RECIPE", "no-such-game")
    assert "no-such-game: no such recipe" in attempt("credit")


def test_stopping_says_how_to_go_on(attempt, monkeypatch, capsys):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "run_jobs", interrupted)
    assert main(["bench", "credit"]) == 130
    assert "the same command continues" in capsys.readouterr().out
