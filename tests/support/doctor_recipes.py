"""Recipes as the doctor's tests examine them: the built-in model for one to download, tiny data for a user's."""

import gzip
import json
from pathlib import Path

from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings
from turnwise.models.settings import SMALL, ModelSettings, SmallSettings
from turnwise.recipes import packaged_recipes

RECIPES = tuple(packaged_recipes())
_PEOPLE = ("Ada", "Bo", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ida", "Jon", "Kit", "Lea", "Max", "Nan", "Ola", "Pia")
_TOWNS = ("Vardo", "Lund", "Turku", "Bergen", "Narvik", "Umea", "Oulu", "Vaasa")


def sound_config(recipe: str, folder: Path) -> Config:
    """The recipe's config, with a model and data that are there."""
    config = load_config(recipe)
    if config.model.name != SMALL:
        positions = config.rollout.context_tokens or 1024
        small = SmallSettings(layers=1, width=32, heads=2, positions=positions, vocabulary=600, induction=False)
        config = config.model_copy(update={"model": ModelSettings(small=small, device="cpu")})
    assert isinstance(config, Config)
    if isinstance(config.env, EnvSettings) and _needs_data(config.env):
        args = {**config.env.args, **_write_data(folder, config)}
        config = config.model_copy(update={"env": config.env.model_copy(update={"args": args})})
    return config


def _needs_data(env: EnvSettings) -> bool:
    named = [env.args.get(key) for key in ("corpus", "questions")]
    return any(isinstance(path, str) and not Path(path).exists() for path in named)


def _write_data(folder: Path, config: Config) -> dict[str, object]:
    """A corpus of people and their firms, and two-hop questions: of other firms in each split."""
    folder.mkdir(parents=True, exist_ok=True)
    passages, questions = [], []
    for place, person in enumerate(_PEOPLE):
        town, firm = _TOWNS[place % len(_TOWNS)], f"{person}co"
        passages += [
            {"id": f"f{place}", "title": firm, "text": f"{firm} makes lamps. It was founded by {person}."},
            {"id": f"p{place}", "title": person, "text": f"{person} was born in {town}."},
        ]
        questions.append(
            {
                "id": f"q{place}",
                "question": f"Where was the founder of {firm} born?",
                "answers": [town],
                "supporting_titles": [firm, person],
                "supporting_ids": [f"f{place}", f"p{place}"],
                "source": "tiny",
                "hops": 2,
            }
        )
    files = {"corpus": passages, "train": questions[:8], "dev": questions[8:]}
    paths = {}
    for name, rows in files.items():
        paths[name] = str(folder / f"{name}.jsonl.gz")
        with gzip.open(paths[name], "wt", encoding="utf-8") as file:
            file.write("\n".join(map(json.dumps, rows)))
    splits = {"train", config.evaluate.split, config.sft.split if config.sft else "train"}
    named = {split: paths["dev" if split == config.evaluate.split else "train"] for split in sorted(splits)}
    return {"corpus": paths["corpus"], "questions": named}
