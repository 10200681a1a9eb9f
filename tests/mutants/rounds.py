"""`python tests/mutants/rounds.py FILE`: a mutant's tests in a process that has imported nothing before."""

import json
import sys
from pathlib import Path

from trial import Traced, run_rounds

if __name__ == "__main__":
    rounds = json.loads(Path(sys.argv[1]).read_text())
    read = [[Traced(test, seconds, frozenset(), setup) for test, seconds, setup in tests] for tests in rounds]
    sys.exit(run_rounds(read))
