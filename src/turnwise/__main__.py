"""`python -m turnwise`, which `torchrun -m turnwise` starts too."""

import sys

from turnwise.cli.main import main

sys.exit(main())
