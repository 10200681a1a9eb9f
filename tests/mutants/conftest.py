"""Mutants are held against the proofs of tests/oracle, so its modules are importable here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
