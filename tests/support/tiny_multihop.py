"""The benchmark's recipes at the size of a test, and a folder of questions for the variant with a model."""

import gzip
import json
import shutil
from pathlib import Path

import yaml
from rich.console import Console

from benchmarks.harness.benchmark import find_benchmark, run_benchmark

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = PROJECT / "src/turnwise/recipes"
PAGE = PROJECT / "docs/multihop.md"

_SHARED = {
    "model": {"small": {"layers": 1, "width": 32, "heads": 2, "positions": 512, "vocabulary": 512, "induction": False}},
    "sft": {"demonstrations": 8, "batch": 8},
    "steps": 1,
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_turns": 3, "turn_tokens": 8, "context_tokens": 512},
    "learner": {"optimizer": {"lr": 1e-3}},
}
ENCYCLOPEDIA = {**_SHARED, "env": {"name": "encyclopedia", "args": {"hops": [2], "lazy": 0.6}}}
PASSAGES = [
    {"id": "p1", "title": "Lumen", "text": "Lumen makes lamps. It was founded by Ada."},
    {"id": "p2", "title": "Ada", "text": "Ada was born in Vardo."},
    {"id": "p3", "title": "Nox", "text": "Nox makes no lamps. It was founded by Bo."},
    {"id": "p4", "title": "Bo", "text": "Bo was born in Lund."},
]


def question(name: str, answer: str, source: str, hops: int, ids: list[str]) -> dict[str, object]:
    titles = [passage["title"] for passage in PASSAGES if passage["id"] in ids]
    told = {"id": name, "question": f"Where was the founder of {name} born?", "answers": [answer]}
    return {**told, "supporting_titles": titles, "supporting_ids": ids, "source": source, "hops": hops}


def write_data(folder: Path) -> Path:
    """A corpus, questions to train on and three to be asked: two sources, two numbers of hops."""
    folder.mkdir()
    files = {
        "corpus": PASSAGES,
        "train": [
            question("Lumen", "Vardo", "2wiki", 2, ["p1", "p2"]),
            question("Nox", "Lund", "hotpot", 2, ["p3", "p4"]),
        ],
        "dev": [
            question("Lumen lamps", "Vardo", "2wiki", 2, ["p1", "p2"]),
            question("Nox lamps", "Lund", "2wiki", 4, ["p3", "p4"]),
            question("no lamps", "Lund", "musique", 2, ["p3", "p4"]),
        ],
    }
    for name, lines in files.items():
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def write_project(folder: Path) -> None:
    """The page, the recipes that extend others as they are, and those that are extended at the size of a test."""
    (folder / "docs").mkdir()
    shutil.copy(PAGE, folder / "docs")
    for recipe in RECIPES.glob("encyclopedia-*.yaml"):
        shutil.copy(recipe, folder)
    (folder / "encyclopedia-grpo.yaml").write_text(yaml.safe_dump(ENCYCLOPEDIA))
    ppo = {"extends": "encyclopedia-grpo.yaml", "credit": {"estimator": "gae"}}
    (folder / "encyclopedia-ppo.yaml").write_text(yaml.safe_dump(ppo))
    args = {"questions": "data/multihop", "passages": 1, "cache": "off", "lazy": 0.5}
    real = {
        **_SHARED,
        "loss": {"kl_coef": 0.001},
        "env": {"name": "search_qa", "args": args},
        "evaluate": {"split": "dev", "tasks": 3},
    }
    (folder / "multihop-smollm2.yaml").write_text(yaml.safe_dump(real))


def run_multihop(**options: object) -> tuple[int, str]:
    """The exit code of the benchmark, and what it said."""
    console = Console(record=True, width=400)
    code = run_benchmark(find_benchmark("multihop"), console, **options)
    return code, console.export_text()
