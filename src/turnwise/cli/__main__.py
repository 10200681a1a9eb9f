"""`python -m turnwise.cli`."""

import sys

from turnwise.cli.main import main

sys.exit(main())
