"""Recipes: experiments as YAML, those that come with the package and the user's own.

Invariant: a recipe given by name, without a folder, is one of the package's, unless the working folder has a file of
that name; what `extends` names is looked for beside the recipe that names it.
"""

import difflib
import re
from itertools import takewhile
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.settings import RESOLVED, Layer, Recipe, load_yaml, plain_data, show_value

_PACKAGED = Path(__file__).parent
_GROUPS = {
    "Search in the embedded encyclopedia, on a CPU": ("encyclopedia",),
    "Search in documents of your own": ("multihop", "search"),
    "Games: StarPO and StarPO-S": ("starpo",),
    "Conversations longer than their context": ("memory",),
    "Environments of others, and several in one run": (
        "reasoning",
        "textarena",
        "textworld",
        "scienceworld",
        "gymnasium",
        "minigrid",
        "mixture",
    ),
    "A pretrained model on a CPU": ("bandit",),
    "Pretrained models on one GPU": ("gpu",),
    "Behind `turnwise bench`": ("credit", "games"),
}
"""What `turnwise recipes` lists together, by the first word of a recipe's name."""


def packaged_recipes() -> dict[str, Path]:
    """The package's own, by name: `{"encyclopedia-grpo": .../encyclopedia-grpo.yaml, ...}`."""
    return {file.stem: file for file in sorted(_PACKAGED.glob("*.yaml"), key=lambda file: file.stem)}


def packaged_divisions() -> dict[str, Path]:
    """How the recipes' questions are divided, by name; `turnwise questions --divide NAME` reads them."""
    return {file.stem: file for file in sorted((_PACKAGED / "questions").glob("*.yaml"), key=lambda file: file.stem)}


def group_recipes() -> dict[str, dict[str, Path]]:
    """The package's own by what they are for, then by name; one that no group claims comes last."""
    left = packaged_recipes()
    groups: dict[str, dict[str, Path]] = {}
    for title, words in _GROUPS.items():
        groups[title] = {name: left.pop(name) for name in list(left) if name.partition("-")[0] in words}
    return groups | ({"Others": left} if left else {})


def describe_recipe(path: Path) -> str:
    """The first sentence of the comment that a recipe opens with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0]


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe that is given by its path or by the name of a packaged one."""
    path = Path(name)
    own = path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")
    if path.is_file() or own.is_file():
        return path if path.is_file() else own
    packaged = packaged_recipes().get(own.stem)
    return path if packaged is None or path.parent != Path() else packaged


def read_recipe(path: str | Path) -> Recipe:
    """Reads a recipe by path or name, merged over the one it `extends` (relative to itself) or, in order, several.

    Sections merge key by key; lists and plain values replace; an empty mapping `{}` clears what it extends.
    """
    return Recipe(_read_layers(find_recipe(path), ()))


def _read_layers(path: Path, extended_by: tuple[Path, ...]) -> list[Layer]:
    if path.resolve() in extended_by:
        chain = " -> ".join(p.name for p in (*extended_by, path))
        raise ConfigError(f"{path}: recipes extend each other in a circle ({chain}): remove one `extends`")
    data, resolved = _read_mapping(path)
    extended = data.pop("extends", None)
    bases = extended if isinstance(extended, list) else [] if extended is None else [extended]
    below: list[Layer] = []
    for base in bases:
        if not isinstance(base, str):
            shown = f"{show_value(base)} in {path}"
            raise ConfigError(f"extends: expected the file name of another recipe, or a list of such, got {shown}")
        layers = _read_layers(path.parent / base, (*extended_by, path.resolve()))
        # What two of them extend lies beneath both: read again, it would undo what the first one set.
        known = {Path(layer.origin).resolve() for layer in below}
        below += [layer for layer in layers if Path(layer.origin).resolve() not in known]
    return [*below, Layer(str(path), data, chosen=not resolved)]


def _read_mapping(path: Path) -> tuple[dict[str, object], bool]:
    """A recipe's data, and whether it is a resolved config, as a run has one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ConfigError(f"{path}: no such recipe; {_nearby(path)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not YAML: the file is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this recipe: {error.strerror}") from None
    data = load_yaml(text, source=str(path))
    resolved = text.startswith(RESOLVED)
    if data is None:
        return {}, resolved
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of sections, not {show_value(data)}")
    return plain_data(data, str(path)), resolved


def _nearby(path: Path) -> str:
    folders = [path, path.parent, Path("recipes")]
    found = {str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.y*ml")}
    by_name = {name: name for name in packaged_recipes()} | {Path(file).stem: file for file in sorted(found)}
    near = difflib.get_close_matches(path.stem, by_name, n=1)
    if near:
        return f"did you mean {by_name[near[0]]}?"
    nearby = f"nearby: {', '.join(sorted(found)[:8])}; " if found else ""
    return f"{nearby}`turnwise recipes` lists the packaged ones"
