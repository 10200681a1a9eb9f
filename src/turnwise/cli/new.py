"""`turnwise new`: a folder with an environment, a recipe, a test and a README, which trains at once.

Invariant: nothing that exists is overwritten, and the new module hides none that Python or the project imports.
"""

import argparse
import importlib.util
import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from turnwise.cli.arguments import print_line
from turnwise.errors import ConfigError

HELP = "make a folder with an environment, a recipe and a test of your own"
EXPECTS = "the name of one new folder"
_MODULE, _CLASS = "my_agent", "MyAgent"
"""What the files of the template are named after, and what replaces both is made from the name."""
_SUFFIX = ".txt"
"""Templates have it, so that none is taken for a module of the package."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the folder to make, and of the environment in it: shop, agents/help-desk")


def run(options: argparse.Namespace) -> int:
    folder = Path(options.name)
    files = fill_template(folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: there is something there already; name a new folder, or an empty one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from None
    for name in files:
        print_line(f"wrote {folder / name}")
    print_line(f"Next: cd {folder} && turnwise train recipe.yaml")
    return 0


def fill_template(name: str) -> Mapping[str, str]:
    """The files of a new folder by name, with what is in them: `{"help_desk.py": "...", "recipe.yaml": ...}`."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", module) or keyword.iskeyword(module):
        raise ConfigError(f"'{name}' cannot name an environment: give letters, digits, - and _, a letter first")
    if importlib.util.find_spec(module) is not None:
        raise ConfigError(f"'{name}': {module}.py would hide the module '{module}'; choose another name")
    words = [word for word in module.split("_") if word]
    cls = "".join(word[0].upper() + word[1:] for word in words)

    def fill(text: str) -> str:
        return text.replace(_MODULE, module).replace(_CLASS, cls)

    template = resources.files("turnwise.cli") / "template"
    found = sorted(template.iterdir(), key=lambda file: file.name)
    return {fill(file.name.removesuffix(_SUFFIX)): fill(file.read_text(encoding="utf-8")) for file in found}
