"""The house has one direction: what a module imports, read from its source."""

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnwise

SOURCE = Path(turnwise.__file__).parent
LAYERS = (
    "errors",
    "spelling",
    "types",
    "seeds",
    "ledger",
    "lazy",
    "settings",
    "sources",
    "plugins",
    "http",
    "http_limits",
    "http_server",
    "endpoints",
    "recipes",
    "tools",
    "rewards",
    "envs",
    "render",
    "compute",
    "engines",
    "agents",
    "rollout",
    "credit",
    "losses",
    "models",
    "stability",
    "learner",
    "oracle",
    "runs",
    "evaluation",
    "cluster",
    "algorithms",
    "familiar",
    "config",
    "targets",
    "reference",
    "checks",
    "training",
    "planning",
    "gateway",
    "doctor",
    "studio",
    "serving",
    "api",
    "cli",
    "__main__",
)
"""Every room, and every module that stands by itself, on a floor of its own: imports go to the left alone."""
TORCH_WHEN_USED = ("turnwise.tools.search.encoders", "turnwise.tools.search.nearest")
"""Dense search is a tool and needs torch; nothing imports these two before an index of that kind is opened."""
PLACE = {room: place for place, room in enumerate(LAYERS)}
MODULES = {
    ".".join(("turnwise", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
"""Every module by name; `turnwise` itself, which only hands names out, belongs to no room."""


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module a source names in an import, wherever in the source it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None, "and so name a module"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in whole)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def forbidden(module: str, source: ast.AST) -> list[str]:
    """The rooms a module imports though they are to its right, and torch where it does not belong."""
    here = PLACE[room_of(module)]
    found = []
    for name in imports_of(source):
        if name == "turnwise" and here < PLACE["cli"]:
            found.append(name)
        elif name.startswith("turnwise."):
            if PLACE[room_of(name)] > here:
                found.append(name)
        elif name.split(".")[0] == "torch" and here < PLACE["compute"] and module not in TORCH_WHEN_USED:
            found.append(name)
    return found


def test_every_module_has_a_place_in_the_order():
    lost = {name for name in MODULES if name != "turnwise" and room_of(name) not in PLACE}
    assert not lost, "put these rooms into LAYERS, where they belong"
    rooms = {room_of(name) for name in MODULES if name != "turnwise"}
    assert rooms == set(PLACE), "LAYERS names rooms that are not there"


@pytest.mark.parametrize("module", [name for name in MODULES if name != "turnwise"])
def test_rooms_import_only_to_their_left(module):
    assert forbidden(module, parse(MODULES[module])) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("turnwise.types", "from turnwise.tools.tool import Tool"),
        ("turnwise.tools.tool", "from turnwise import rewards"),
        ("turnwise.envs.base", "def late():\n    import turnwise.engines.base"),
        ("turnwise.credit.gae", "from turnwise.learner.batch import Batch"),
        ("turnwise.runs.store", "from turnwise.cli.main import main"),
        ("turnwise.rewards.reward", "import torch.nn.functional as F"),
        ("turnwise.render.chat", "from torch import nn"),
        ("turnwise.render.chat", "import turnwise"),
    ],
)
def test_an_import_to_the_right_would_be_seen(module, source):
    assert len(forbidden(module, ast.parse(source))) == 1


def test_no_module_needs_itself():
    """No circle of imports, not even within a room; those for type checkers alone are not followed."""
    needs = {
        name: set(imports_of(_without_type_checking(parse(path)))) & set(MODULES) for name, path in MODULES.items()
    }
    needs["turnwise"] = set()  # it hands out names; rooms do not import it (see above)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path, name))}"
        if name not in done:
            for needed in sorted(needs[name]):
                visit(needed, (*path, name))
            done.add(name)

    for name in needs:
        visit(name, ())
    assert done == set(MODULES)


ENGINE_FACE = {f"turnwise.engines{name}" for name in ("", ".base", ".settings", ".factory", ".scripted")}
"""What other rooms may import of engines: the protocol, its settings and values, the factory, and scripted replies."""


def test_other_rooms_know_engines_by_their_protocol_alone():
    found = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if not module.startswith("turnwise.engines")
        for name in imports_of(parse(path))
        if name.startswith("turnwise.engines") and name not in ENGINE_FACE
    ]
    assert found == []


def test_nothing_prints_but_the_command_line():
    printing = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [place for place in printing if not place.startswith("turnwise.cli.main:")] == []


@pytest.mark.parametrize(
    "module",
    [
        "turnwise",
        "turnwise.envs",
        "turnwise.envs.encyclopedia.env",
        "turnwise.envs.workers.nursery",
        "turnwise.cluster.envs.actor",
        "turnwise.engines",
        "turnwise.compute.process",
        "turnwise.render.formats",
        "turnwise.rollout.play",
        "turnwise.tools.search.server",
        "turnwise.config",
        "turnwise.plugins",
        "turnwise.training.callbacks",
        "turnwise.runs.listing",
        "turnwise.runs.transcript",
        "turnwise.studio.server",
    ],
)
def test_environments_and_configs_are_written_without_waiting_for_torch(module):
    heavy = {"torch", "transformers", "faiss", "sentence_transformers"}
    code = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def _without_type_checking(tree: ast.Module) -> ast.Module:
    class Drop(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            guards = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if guards else self.generic_visit(node)

    return Drop().visit(tree)


def test_every_public_name_is_there_without_torch():
    names = sorted(turnwise.__all__)
    code = f"import sys; from turnwise import {', '.join(names)}; sys.exit('torch' in sys.modules)"
    began = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert time.monotonic() - began < 10, "about a second on a quiet machine; torch alone takes several"
