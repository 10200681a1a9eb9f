"""A patched function computes what its mutated source would; what a patch cannot change is refused."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
from mutations import find_mutations
from patching import Imported

SOURCE = """LIMITS = (3,)


def double(x, times=2):
    return x * times + sum(y for y in range(1))


class Adder:
    @property
    def one(self):
        return -1
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A package of one module, imported from a tree, and the module."""
    folder = tmp_path / "src" / "turnwise"
    folder.mkdir(parents=True)
    (folder / "sums.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("turnwise_sums", folder / "sums.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "turnwise_sums", module)
    spec.loader.exec_module(module)
    return Imported(SimpleNamespace(source=tmp_path / "src"), []), module


def test_mutations_of_bodies_are_patched_and_others_refused(imported):
    package, module = imported
    by_line = {(mutation.kind, mutation.line): mutation for mutation in find_mutations(SOURCE)}
    assert not package.patch("src/turnwise/sums.py", by_line["constant", 1]), "module level"
    assert not package.patch("src/turnwise/sums.py", by_line["constant", 4]), "a default of an argument"
    assert module.double(3) == 6
    held = module.double  # as another module's import would
    changes = [mutation for mutation in find_mutations(SOURCE) if mutation.line == 5 and mutation.kind == "arithmetic"]
    assert package.patch("src/turnwise/sums.py", next(one for one in changes if "x / times" in one.source))
    assert held(3) == 1.5


def test_methods_and_properties_are_patched(imported):
    package, module = imported
    source = SOURCE.replace("return -1", "return -abs(1)")
    assert module.Adder().one == -1
    mutation = next(one for one in find_mutations(source) if one.kind == "sign")
    assert mutation.function == "Adder.one"
    assert package.patch("src/turnwise/sums.py", mutation)
    assert module.Adder().one == 1
