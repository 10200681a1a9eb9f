"""`python tests/mutants/rounds.py FILE`: a mutant's tests in a process that has imported nothing before."""

import json
import sys
from pathlib import Path

from trial import Traced, run_rounds

if __name__ == "__main__":
    rounds = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(run_rounds([[Traced(test, seconds, frozenset()) for test, seconds in tests] for tests in rounds]))
